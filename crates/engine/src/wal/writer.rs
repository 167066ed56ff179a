//! The log's background thread: writes records that no thread waits for.
//!
//! If only a full ring were written, every thread would wait for the whole of it. So an appending
//! thread wakes this one at the end of each part of the ring. It also writes after a pause, which
//! makes buffered commits durable soon. It shares rounds with waiting threads (`group.rs`). In
//! inline mode, a thread that finds the ring full writes it.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::buffer::Ring;

/// The longest that appended records stay unwritten.
const PAUSE: Duration = Duration::from_millis(5);
/// Fills of this fraction of the ring wake the thread.
const PART: u64 = 8;
/// Larger parts would only make rounds longer.
const PART_BYTES_MAX: u64 = 256 << 10;

fn part(ring: &Ring) -> u64 {
    (ring.size() / PART).min(PART_BYTES_MAX)
}

#[derive(Debug, Default)]
pub(super) struct WakeUp {
    /// Set by the waking thread, cleared by the log's thread; while set, no one needs the mutex.
    requested: AtomicBool,
    stop: Mutex<bool>,
    called: Condvar,
}

impl WakeUp {
    /// Wakes the thread once. Takes a mutex briefly.
    fn wake(&self) {
        if !self.requested.swap(true, SeqCst) {
            drop(self.stop.lock());
            self.called.notify_one();
        }
    }

    /// Wakes the thread if a record passes a part's end with much unwritten.
    pub(super) fn note_filled(&self, ring: &Ring, lsn: u64, end: u64) {
        let part = part(ring);
        if lsn / part != end / part && end - ring.filed().min(end) >= part {
            self.wake();
        }
    }

    /// Whether so much is unwritten that a record would wake the thread.
    pub(super) fn is_much(&self, ring: &Ring) -> bool {
        ring.tail() - ring.filed() >= part(ring)
    }

    /// Waits for a wake-up or a pause; false: stop.
    pub(super) fn wait(&self) -> bool {
        let mut stop = self.stop.lock();
        // Checked under the mutex, so that no wake-up is lost.
        if !*stop && !self.requested.load(SeqCst) {
            self.called.wait_for(&mut stop, PAUSE);
        }
        self.requested.store(false, SeqCst);
        !*stop
    }

    pub(super) fn stop(&self) {
        *self.stop.lock() = true;
        self.called.notify_all();
    }
}
