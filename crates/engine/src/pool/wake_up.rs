//! Wake-up of the maintenance thread, and of threads that wait for rounds.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};

/// Longest sleep of the maintenance thread, and of waiting threads.
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
pub(crate) struct WakeUp {
    pub(crate) state: Mutex<WakeUpState>,
    pub(crate) work: Condvar,
    pub(crate) done: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct WakeUpState {
    pub(crate) wanted: bool,
    pub(crate) urgent: bool,
    /// A thread needs more log than the checkpoint keeps free.
    pub(crate) log_wanted: bool,
    pub(crate) stop: bool,
    pub(crate) rounds: u64,
    /// Whether the last round found no room in the page file.
    pub(crate) is_full: bool,
}

impl WakeUp {
    /// Asks for a round.
    pub(crate) fn request(&self, urgent: bool) {
        let mut state = self.state.lock();
        if !state.wanted || (urgent && !state.urgent) {
            state.wanted = true;
            state.urgent |= urgent;
            self.work.notify_one();
        }
    }

    /// Asks for an urgent round, and waits briefly for its end.
    pub(crate) fn wait_for_round(&self) -> Result<()> {
        let mut state = self.state.lock();
        if state.stop {
            return Err(Error::Poisoned { reason: "the database is being closed".into() });
        }
        state.wanted = true;
        state.urgent = true;
        self.work.notify_one();
        self.done.wait_for(&mut state, PAUSE);
        Ok(())
    }

    /// Waits briefly for a request. Returns whether it is urgent. `None` ends the thread.
    pub(crate) fn next_round(&self) -> Option<bool> {
        let mut state = self.state.lock();
        if !state.wanted && !state.stop {
            self.work.wait_for(&mut state, PAUSE);
        }
        if state.stop {
            return None;
        }
        state.wanted = false;
        Some(std::mem::take(&mut state.urgent))
    }

    /// Wakes threads that wait for log: it has grown, and needs no checkpoint for them.
    pub(crate) fn log_is_there(&self) {
        self.state.lock().log_wanted = false;
        self.done.notify_all();
    }

    /// Whether log was wanted, and still is.
    pub(crate) fn take_log_wanted(&self) -> bool {
        std::mem::take(&mut self.state.lock().log_wanted)
    }

    pub(crate) fn round_done(&self, is_full: bool) {
        let mut state = self.state.lock();
        state.rounds += 1;
        state.is_full = is_full;
        self.done.notify_all();
    }

    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.work.notify_all();
        self.done.notify_all();
    }
}
