//! Threads that accept connections until the mount ends.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longest wait before a thread looks whether it shall end.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// Whether threads shall end.
#[derive(Clone, Debug, Default)]
pub(super) struct End(Arc<AtomicBool>);

impl End {
    pub fn has_come(&self) -> bool {
        // Acquire: pairs with the release in `come`.
        self.0.load(Ordering::Acquire)
    }

    pub fn come(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A thread that accepts connections. Dropping it ends it, and waits for that.
#[derive(Debug)]
pub(super) struct Accepting {
    end: End,
    thread: Option<JoinHandle<()>>,
}

impl Accepting {
    /// Runs `accept_all` in a thread called `name`.
    pub fn start(name: &str, accept_all: impl FnOnce(&End) + Send + 'static) -> io::Result<Accepting> {
        let end = End::default();
        let thread = {
            let end = end.clone();
            thread::Builder::new().name(name.to_owned()).spawn(move || accept_all(&end))?
        };
        Ok(Accepting { end, thread: Some(thread) })
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.end.come();
        if let Some(thread) = self.thread.take() {
            // A panic there was reported by its thread.
            let _ = thread.join();
        }
    }
}

/// Calls `take` with each connection of a listener that does not block, until the end. `what` names
/// it in warnings.
pub(super) fn accept_all<L: AsFd, S>(
    (listener, what): (&L, &str),
    accept: impl Fn(&L) -> io::Result<S>,
    end: &End,
    mut take: impl FnMut(S),
) {
    let mut has_failed = false;
    while !end.has_come() {
        match accept(listener) {
            Ok(connection) => {
                has_failed = false;
                take(connection);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait_for(listener),
            Err(error) if is_pause(&error) || error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                // Such as too many open files, which may pass.
                if !has_failed {
                    tracing::warn!(%error, "{what}: connections cannot be accepted; trying again");
                }
                has_failed = true;
                thread::sleep(PAUSE);
            }
        }
    }
}

/// Waits a moment for a connection.
fn wait_for(listener: &impl AsFd) {
    let pause = Timespec::try_from(PAUSE).ok();
    if poll(&mut [PollFd::new(listener, PollFlags::IN)], pause.as_ref()).is_err() {
        thread::sleep(PAUSE);
    }
}

/// Whether a transfer may be tried again: it has waited for its time limit, or was interrupted.
pub(super) fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}
