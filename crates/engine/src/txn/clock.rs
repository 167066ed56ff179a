//! The clock of commits. It hands out timestamps, and `visible` says up to which of them everything is decided.
//!
//! A commit draws its timestamp before it knows whether it will succeed, so timestamps end in any order. `visible`
//! moves over them in timestamp order only: past a failed one at once, past a `buffered` one when it is applied, past
//! a `sync` one when its log is durable as well. A snapshot reads at `visible` and so never sees a half-applied or,
//! for `sync`, a losable commit; a `buffered` commit may have to wait behind an older `sync` one.
//!
//! ```text
//!    ... 41   42   43   44   45   46  | 47
//!        done done sync done open done| next
//!             ^ visible: 43 is not durable yet, 45 is not decided
//! ```
//!
//! The undecided ones live in a ring of a power of two of entries, one for each of `window` timestamps in a row. An entry is two words:
//! the LSN that must be durable, then the timestamp itself, stored last. It need not be cleared: timestamp `t` may be
//! drawn only after `visible` has reached `t - window`, so an entry is written again only when nobody needs the old
//! content, and an advancing thread that read it late finds `visible` moved and starts again.
//!
//! Everybody advances: who completes a timestamp, who makes log durable, who waits. Completing is a sequentially
//! consistent store, looking a sequentially consistent load. Otherwise the threads that complete 42 and 43 might each
//! miss the other's store, and `visible` would stay at 41 with nobody left to move it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::Padded;
use crate::planted::{Bug, planted};
use crate::{Lsn, Result, Timestamp};

/// Looks at `visible` before a waiter gives up its core.
const SPINS: usize = 1000;
/// Yields before a waiter sleeps.
const YIELDS: usize = 50;
/// From one timestamp's entry to the next one's.
const STRIDE: u64 = 9;
/// The longest a sleeper goes without asking `pump` again, which is how it learns that the database was poisoned.
const NAP: Duration = Duration::from_millis(1);

/// How a commit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing was changed.
    Failed,
    /// Applied; seen before it is durable.
    Buffered,
    /// Applied; seen once the log is durable up to `needs`.
    Sync {
        /// The durable end the log must reach: the end of the commit's last record.
        needs: Lsn,
    },
}

/// Hands out commit timestamps and knows up to which all are decided.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The highest timestamp drawn. Shared with who stores it at a checkpoint.
    drawn: Arc<Padded<AtomicU64>>,
    /// Alone on its lines: this is all a reader loads.
    visible: Padded<AtomicU64>,
    ring: Box<[Pending]>,
    sleepers: Padded<AtomicUsize>,
    bed: Mutex<()>,
    moved: Condvar,
    /// How often there was no timestamp to be drawn.
    waits: AtomicU64,
}

#[derive(Debug, Default)]
struct Pending {
    needs: AtomicU64,
    done: AtomicU64,
}

/// A drawn timestamp. It must be decided, or `visible` would stop below it for ever: dropping it means it failed.
#[derive(Debug)]
#[must_use]
pub(crate) struct Ticket<'a> {
    clock: &'a Clock,
    timestamp: Timestamp,
}

impl Clock {
    /// 4,096 undecided commits, 64 KiB: far more than threads that commit.
    pub(crate) const WINDOW_DEFAULT: usize = 4096;

    /// A clock that counts on in `drawn`, which holds the highest timestamp ever drawn as far as log and superblock
    /// know. `window` is the number of undecided commits, rounded up to a power of two.
    pub(crate) fn counting_on(drawn: Arc<Padded<AtomicU64>>, window: usize) -> Self {
        if planted(Bug::TimestampsFromZero) {
            drawn.store(0, SeqCst);
        }
        let window = window.max(2).next_power_of_two();
        Clock {
            visible: Padded(AtomicU64::new(drawn.load(SeqCst))),
            drawn,
            ring: (0..window).map(|_| Pending::default()).collect(),
            sleepers: Padded::default(),
            bed: Mutex::new(()),
            moved: Condvar::new(),
            waits: AtomicU64::new(0),
        }
    }

    /// A clock of its own, for tests.
    #[cfg(test)]
    pub(crate) fn starting_above(highest: Timestamp, window: usize) -> Self {
        Self::counting_on(Arc::new(Padded(AtomicU64::new(highest.0))), window)
    }

    /// Bytes of memory the clock takes.
    pub(crate) fn size_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.ring)
    }

    /// How often there was no timestamp to be drawn.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Relaxed)
    }

    /// Everything up to this timestamp is decided, and durable where that was asked for. Snapshots read at it.
    #[inline]
    pub(crate) fn visible(&self) -> Timestamp {
        Timestamp(self.visible.load(SeqCst))
    }

    /// The highest timestamp drawn so far. A checkpoint stores it in the superblock.
    pub(crate) fn highest_drawn(&self) -> Timestamp {
        Timestamp(self.drawn.load(SeqCst))
    }

    /// Draws the next timestamp. While the window is full, waits and calls `pump`, as [`Clock::wait_visible`] does;
    /// nothing is drawn when `pump` fails.
    pub(crate) fn draw(&self, mut pump: impl FnMut() -> Result<()>) -> Result<Ticket<'_>> {
        loop {
            match self.try_draw() {
                Ok(ticket) => return Ok(ticket),
                Err(needs) => self.wait_visible(needs, &mut pump)?,
            }
        }
    }

    /// Draws the next timestamp, or says what must be visible before one can be drawn. Never waits, so it may be
    /// called under a latch.
    pub(crate) fn try_draw(&self) -> std::result::Result<Ticket<'_>, Timestamp> {
        let window = self.ring.len() as u64;
        let mut drawn = self.drawn.load(SeqCst);
        loop {
            let next = drawn + 1;
            if next - self.visible.load(SeqCst).min(next) > window {
                self.waits.fetch_add(1, Relaxed);
                return Err(Timestamp(next - window));
            }
            match self.drawn.compare_exchange_weak(drawn, next, SeqCst, SeqCst) {
                Ok(_) => return Ok(Ticket { clock: self, timestamp: Timestamp(next) }),
                Err(seen) => drawn = seen,
            }
        }
    }

    fn complete(&self, timestamp: Timestamp, outcome: Outcome) {
        let needs = match outcome {
            Outcome::Failed | Outcome::Buffered => Lsn::NONE,
            Outcome::Sync { needs } => needs,
        };
        let pending = self.pending(timestamp.0);
        debug_assert!(pending.done.load(SeqCst) < timestamp.0, "{timestamp} is decided twice");
        // Relaxed: published by the store of `done` below, read after the load of it in `is_decided`.
        pending.needs.store(needs.0, Relaxed);
        pending.done.store(timestamp.0, SeqCst);
    }

    fn pending(&self, timestamp: u64) -> &Pending {
        // Neighbours in time are decided by different threads: an odd stride puts them on different lines.
        &self.ring[(timestamp.wrapping_mul(STRIDE) & (self.ring.len() as u64 - 1)) as usize]
    }

    fn is_decided(&self, timestamp: u64, durable: Lsn) -> bool {
        let pending = self.pending(timestamp);
        pending.done.load(SeqCst) == timestamp && pending.needs.load(Relaxed) <= durable.0
    }

    /// Moves `visible` over all that is decided, given that the log is durable up to `durable`, and returns it.
    /// Never waits. To be called after a timestamp is completed and after the log's durable end has moved.
    pub(crate) fn advance(&self, durable: Lsn) -> Timestamp {
        loop {
            let from = self.visible.load(SeqCst);
            let mut to = from;
            while to - from < self.ring.len() as u64 && self.is_decided(to + 1, durable) {
                to += 1;
            }
            if to > from {
                // Decided stays decided, so the highest of several advancing threads is right.
                self.visible.fetch_max(to, SeqCst);
                if self.sleepers.load(SeqCst) > 0 {
                    drop(self.bed.lock());
                    self.moved.notify_all();
                }
            } else if self.visible.load(SeqCst) == from {
                return Timestamp(from);
            }
        }
    }

    /// Returns once `visible` has reached `timestamp`.
    ///
    /// `pump` does what brings it nearer and fails when that is hopeless: it calls [`Clock::advance`] with the log's
    /// durable end, reports a poisoned database and, where no thread writes the log, writes it. It is called at once,
    /// after a spell of spinning, and then at least every millisecond.
    pub(crate) fn wait_visible(
        &self,
        timestamp: Timestamp,
        mut pump: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        if self.visible() >= timestamp {
            return Ok(());
        }
        for round in 0usize.. {
            pump()?;
            match round {
                0 => {
                    (0..SPINS).take_while(|_| self.visible() < timestamp).for_each(|_| std::hint::spin_loop())
                }
                1..=YIELDS => std::thread::yield_now(),
                _ => self.nap(timestamp),
            }
            if self.visible() >= timestamp {
                return Ok(());
            }
        }
        unreachable!("the rounds do not end")
    }

    fn nap(&self, timestamp: Timestamp) {
        let mut bed = self.bed.lock();
        self.sleepers.fetch_add(1, SeqCst);
        // Counted before it looks: who moves `visible` after this look sees the sleeper and wakes it.
        if self.visible() < timestamp {
            self.moved.wait_for(&mut bed, NAP);
        }
        self.sleepers.fetch_sub(1, SeqCst);
    }
}

impl Ticket<'_> {
    /// The timestamp drawn.
    pub(crate) fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    /// Decides the timestamp. Call [`Clock::advance`] after it.
    pub(crate) fn complete(self, outcome: Outcome) {
        self.clock.complete(self.timestamp, outcome);
        std::mem::forget(self);
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.clock.complete(self.timestamp, Outcome::Failed);
    }
}

#[cfg(test)]
mod tests;
