//! Threads for calls that may take long, such as fsync.
//!
//! Some of the threads that serve the kernel may make them themselves, which is soonest. The others
//! hand them over, so that other requests go on. A thread is started if none is idle, up to
//! [`THREADS_MAX`]; beyond that, calls wait in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use parking_lot::{Condvar, Mutex};

/// Far more than programs that sync at a time.
const THREADS_MAX: usize = 64;

/// Ends the process if its thread panics: a killed mount loses nothing, but one without this
/// thread's work might.
#[derive(Debug)]
pub(crate) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

type Call = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    calls: VecDeque<Call>,
    threads: usize,
    idle: usize,
    is_over: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake_up: Condvar,
}

/// The threads. Dropping it ends them after the calls in the queue.
pub(crate) struct SlowCalls {
    shared: Arc<Shared>,
    /// How many callers may still make their calls themselves.
    may_stay: AtomicUsize,
}

impl SlowCalls {
    /// At most `here_max` callers at a time make their calls themselves.
    pub fn new(here_max: usize) -> SlowCalls {
        SlowCalls { shared: Arc::default(), may_stay: AtomicUsize::new(here_max) }
    }

    /// Runs `call` here, or in another thread if there are many here and there can be one.
    pub fn run(&self, call: impl FnOnce() + Send + 'static) {
        // Relaxed: it only counts.
        let stays = self.may_stay.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
        match stays {
            true => {
                let guard = AbortOnPanic;
                call();
                drop(guard);
                self.may_stay.fetch_add(1, Relaxed);
            }
            false => self.hand_over(call),
        }
    }

    fn hand_over(&self, call: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.state.lock();
        state.calls.push_back(Box::new(call));
        if state.idle >= state.calls.len() || state.threads >= THREADS_MAX {
            self.shared.wake_up.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let shared = Arc::clone(&self.shared);
        let started = thread::Builder::new().name("slow-call".to_owned()).spawn(move || shared.serve());
        if started.is_err() {
            let mut state = self.shared.state.lock();
            state.threads -= 1;
            if state.threads == 0 {
                let calls: Vec<_> = state.calls.drain(..).collect();
                drop(state);
                calls.into_iter().for_each(|call| call());
            }
        }
    }
}

impl Shared {
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(call) = state.calls.pop_front() {
                drop(state);
                let guard = AbortOnPanic;
                call();
                drop(guard);
                state = self.state.lock();
            } else if state.is_over {
                state.threads -= 1;
                self.wake_up.notify_all();
                return;
            } else {
                state.idle += 1;
                self.wake_up.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
}

impl Drop for SlowCalls {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.is_over = true;
        self.shared.wake_up.notify_all();
        while state.threads > 0 {
            self.shared.wake_up.wait(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_call_that_waits_stops_no_other() {
        let calls = SlowCalls::new(0);
        let (release, wait) = mpsc::channel::<()>();
        let (done, results) = mpsc::channel();
        calls.run(move || assert!(wait.recv().is_err()));
        for number in 0..10 {
            let done = done.clone();
            calls.run(move || done.send(number).expect("the test waits"));
        }
        let mut finished: Vec<u32> = results.iter().take(10).collect();
        finished.sort_unstable();
        assert_eq!(finished, (0..10).collect::<Vec<_>>());
        drop(release);
        drop(calls);
    }

    #[test]
    fn only_some_callers_stay() {
        let calls = Arc::new(SlowCalls::new(1));
        let (done, results) = mpsc::channel();
        let here = thread::current().id();
        for _ in 0..2 {
            let (inner, to_inner, to_outer) = (Arc::clone(&calls), done.clone(), done.clone());
            calls.run(move || {
                inner.run(move || to_inner.send(thread::current().id()).expect("the test waits"));
                to_outer.send(thread::current().id()).expect("the test waits");
            });
            let found: Vec<_> = results.iter().take(2).map(|thread| thread == here).collect();
            assert!(found.contains(&true) && found.contains(&false), "{found:?}");
        }
    }
}
