//! The commit clock: hands out timestamps; all up to `visible` are decided.
//!
//! A commit draws its timestamp before it knows whether it will succeed. `visible` passes
//! timestamps in order: a failed one at once, a `buffered` one when applied, a `sync` one when its
//! log is durable too. A snapshot reads at `visible`, so it never sees a half-applied or, for
//! `sync`, a losable commit.
//!
//! ```text
//!    ... 41   42   43   44   45   46  | 47
//!        done done sync done open done| next
//!             ^ visible: 43 is not durable yet, 45 is not decided
//! ```
//!
//! Undecided timestamps live in a ring with an entry for each of `window` consecutive ones. An
//! entry has two words: the LSN that must be durable, then the timestamp, stored last. Entries need
//! no clearing: timestamp `t` is drawn only after `visible` has reached `t - window`. A thread that
//! reads an old entry late finds `visible` moved and starts again.
//!
//! Every thread advances `visible`: on completing a timestamp, on making log durable, while
//! waiting. Completion is a sequentially consistent store, the check a sequentially consistent
//! load. Otherwise the threads that complete 42 and 43 might miss each other's store, and `visible`
//! would stay at 41.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::Padded;
use crate::planted::{Bug, planted};
use crate::{Lsn, Result, Timestamp};

/// Checks of `visible` before a waiter yields its core.
const SPINS: usize = 1000;
const YIELDS: usize = 50;
/// Timestamps whose entries share a line of the ring.
const LINE: usize = 4;
/// Distance of these timestamps from each other. Up to this number of threads that commit at the
/// same time write different lines.
const APART: usize = 16;
/// Lines between consecutive timestamps, as the processor prefetches a line's neighbour.
const STRIDE: usize = 7;
/// The longest sleep between calls of `advance`, which reports a poisoned database.
const NAP: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing was changed.
    Failed,
    /// Applied; visible before it is durable.
    Buffered,
    /// Applied; visible once the log is durable up to `needs`.
    Sync {
        /// The end of the commit's last record.
        needs: Lsn,
    },
}

/// Hands out commit timestamps and tracks which are decided.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The highest timestamp drawn, shared with checkpoints.
    drawn: Arc<Padded<AtomicU64>>,
    /// On its own cache lines: all that a reader loads.
    visible: Padded<AtomicU64>,
    /// Undecided commits at most.
    window: u64,
    ring: Box<[Line]>,
    sleepers: Padded<AtomicUsize>,
    bed: Mutex<()>,
    moved: Condvar,
    waits: AtomicU64,
}

#[derive(Debug, Default)]
struct Pending {
    needs: AtomicU64,
    done: AtomicU64,
}

/// Entries of one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([Pending; LINE]);

/// A drawn timestamp. Dropping it fails it, since an undecided one would stop `visible` for ever.
#[derive(Debug)]
#[must_use]
pub(crate) struct Ticket<'a> {
    clock: &'a Clock,
    timestamp: Timestamp,
}

impl Clock {
    /// 4,096 undecided commits, 64 KiB: far more than committing threads.
    pub(crate) const WINDOW_DEFAULT: usize = 4096;

    /// Continues in `drawn`, the highest timestamp known to log and superblock. `window` is the
    /// number of undecided commits, rounded up to a power of two.
    pub(crate) fn counting_on(drawn: Arc<Padded<AtomicU64>>, window: usize) -> Self {
        if planted(Bug::TimestampsFromZero) {
            drawn.store(0, SeqCst);
        }
        let window = window.max(2).next_power_of_two();
        Clock {
            visible: Padded(AtomicU64::new(drawn.load(SeqCst))),
            drawn,
            window: window as u64,
            ring: (0..window.max(LINE * APART) / LINE).map(|_| Line::default()).collect(),
            sleepers: Padded::default(),
            bed: Mutex::new(()),
            moved: Condvar::new(),
            waits: AtomicU64::new(0),
        }
    }

    #[cfg(test)]
    pub(crate) fn starting_above(highest: Timestamp, window: usize) -> Self {
        Self::counting_on(Arc::new(Padded(AtomicU64::new(highest.0))), window)
    }

    pub(crate) fn size_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.ring)
    }

    /// How often the window was full.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Relaxed)
    }

    /// Everything up to this timestamp is decided, and durable where requested. Snapshots read at
    /// it.
    #[inline]
    pub(crate) fn visible(&self) -> Timestamp {
        Timestamp(self.visible.load(SeqCst))
    }

    /// The highest timestamp drawn, for the superblock.
    pub(crate) fn highest_drawn(&self) -> Timestamp {
        Timestamp(self.drawn.load(SeqCst))
    }

    /// Draws the next timestamp. While the window is full, waits and calls `advance`, as
    /// [`Clock::wait_visible`] does.
    pub(crate) fn draw(&self, mut advance: impl FnMut() -> Result<()>) -> Result<Ticket<'_>> {
        loop {
            match self.try_draw() {
                Ok(ticket) => return Ok(ticket),
                Err(needs) => self.wait_visible(needs, &mut advance)?,
            }
        }
    }

    /// Draws the next timestamp, or returns the one that must become visible first. Never waits, so
    /// it may be called under a latch.
    pub(crate) fn try_draw(&self) -> std::result::Result<Ticket<'_>, Timestamp> {
        let window = self.window;
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
        // Relaxed: the store of `done` below publishes it; `is_decided` reads it after loading
        // `done`.
        pending.needs.store(needs.0, Relaxed);
        pending.done.store(timestamp.0, SeqCst);
    }

    fn pending(&self, timestamp: u64) -> &Pending {
        // Four commits soon after each other use one line, so three of them find it in the cache.
        let timestamp = timestamp as usize;
        let (group, within) = (timestamp / (LINE * APART), timestamp % (LINE * APART));
        let line = group * APART + within * STRIDE % APART;
        &self.ring[line & (self.ring.len() - 1)].0[within / APART]
    }

    fn is_decided(&self, timestamp: u64, durable: Lsn) -> bool {
        let pending = self.pending(timestamp);
        pending.done.load(SeqCst) == timestamp && pending.needs.load(Relaxed) <= durable.0
    }

    /// Moves `visible` over all that is decided, and returns it. The log is durable up to
    /// `durable`. Never waits. Call it after completing a timestamp and after the log became
    /// durable.
    pub(crate) fn advance(&self, durable: Lsn) -> Timestamp {
        loop {
            let from = self.visible.load(SeqCst);
            let mut to = from;
            while to - from < self.window && self.is_decided(to + 1, durable) {
                to += 1;
            }
            if to > from {
                // Decided stays decided, so the maximum over all advancing threads is right.
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

    /// Waits until `visible` reaches `timestamp`.
    ///
    /// `advance` makes progress, or fails if that is hopeless. It advances the clock, writes the
    /// log if no other thread does, and reports a poisoned database. It runs at once, after
    /// spinning, and then at least every millisecond.
    #[inline]
    pub(crate) fn wait_visible(
        &self,
        timestamp: Timestamp,
        advance: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        if self.visible() >= timestamp { Ok(()) } else { self.wait(timestamp, advance) }
    }

    fn wait(&self, timestamp: Timestamp, mut advance: impl FnMut() -> Result<()>) -> Result<()> {
        for round in 0usize.. {
            advance()?;
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
        // Counted before the check, so that a thread that moves `visible` later wakes this one.
        if self.visible() < timestamp {
            self.moved.wait_for(&mut bed, NAP);
        }
        self.sleepers.fetch_sub(1, SeqCst);
    }
}

impl Ticket<'_> {
    pub(crate) fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    /// Decides the timestamp. Call [`Clock::advance`] afterwards.
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
