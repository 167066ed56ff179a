//! The log's own thread: writes what has been appended and nobody waits for.
//!
//! Buffered commits leave their records in the ring. Were these written only when the ring is full, whoever comes then
//! would have to wait until all of it is on the device, and everybody else with him. So a thread of its own begins when
//! a part of the ring is full, and writes on while others append; and it writes what there is after a pause in any case,
//! so that a buffered commit is durable soon. It shares rounds with those who wait for theirs (`group.rs`), and has
//! no rights that they have not.
//!
//! Whoever appends rings for it when he passes the end of such a part. Inline there is no such thread; then who finds the ring
//! full writes it out, and who wants records durable says so.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::Wal;
use super::group::Pace;
use crate::error::Result;

/// How long appended records stay unwritten when nobody asks for more.
const PAUSE: Duration = Duration::from_millis(5);
/// The thread is rung for when one part in this many of the ring has been filled.
const PART: u64 = 8;
/// Larger parts would only make rounds longer.
const PART_BYTES_MAX: u64 = 256 << 10;

/// Rings for the log's thread.
#[derive(Debug, Default)]
pub(super) struct Bell {
    /// Set by who rings, cleared by the thread: while it is set nobody needs the mutex.
    rung: AtomicBool,
    stop: Mutex<bool>,
    called: Condvar,
}

impl Bell {
    /// Rings once. Takes a mutex, never for long.
    fn ring(&self) {
        if !self.rung.swap(true, SeqCst) {
            drop(self.stop.lock());
            self.called.notify_one();
        }
    }

    /// Waits until rung for, or a pause; false = stop.
    fn wait(&self) -> bool {
        let mut stop = self.stop.lock();
        // Looked at under the mutex: who rings after this look waits for the mutex, and then for nobody.
        if !*stop && !self.rung.load(SeqCst) {
            self.called.wait_for(&mut stop, PAUSE);
        }
        self.rung.store(false, SeqCst);
        !*stop
    }
}

impl Wal {
    /// A record was filled from `lsn` to `end`: rings if that passes the end of a part, and much is unwritten.
    pub(super) fn note_filled(&self, lsn: u64, end: u64) {
        let part = (self.ring.size() / PART).min(PART_BYTES_MAX);
        if lsn / part != end / part && end - self.ring.durable().min(end) >= part {
            self.bell.ring();
        }
    }

    /// The body of the log's thread: returns after [`Wal::stop_writer`], or when the log has failed.
    pub(crate) fn run_writer(&self) {
        while self.bell.wait() && self.flush_at_leisure().is_ok() {}
    }

    /// Returns when everything appended so far is durable. Lets commits gather first.
    ///
    /// # Errors
    /// As [`Wal::flush_to`].
    pub(crate) fn flush_at_leisure(&self) -> Result<()> {
        self.flusher.flush_to(self.tail(), Pace::Leisure)
    }

    /// Ends [`Wal::run_writer`].
    pub(crate) fn stop_writer(&self) {
        *self.bell.stop.lock() = true;
        self.bell.called.notify_all();
    }
}
