//! Threads for calls that may take long, such as fsync.
//!
//! The threads that serve the kernel hand them over, so that other requests go on. A thread is
//! started if none is idle, up to [`THREADS_MAX`]; beyond that, calls wait in order.

use std::collections::VecDeque;
use std::sync::Arc;
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
#[derive(Default)]
pub(crate) struct SlowCalls(Arc<Shared>);

impl SlowCalls {
    /// Runs `call` in another thread, or here if there cannot be one.
    pub fn run(&self, call: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        state.calls.push_back(Box::new(call));
        if state.idle >= state.calls.len() || state.threads >= THREADS_MAX {
            self.0.wake_up.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let shared = Arc::clone(&self.0);
        let started = thread::Builder::new().name("slow-call".to_owned()).spawn(move || shared.serve());
        if started.is_err() {
            let mut state = self.0.state.lock();
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
        let mut state = self.0.state.lock();
        state.is_over = true;
        self.0.wake_up.notify_all();
        while state.threads > 0 {
            self.0.wake_up.wait(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_call_that_waits_stops_no_other() {
        let calls = SlowCalls::default();
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
}
