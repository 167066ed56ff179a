//! Priority: what a transaction gets that meets conflict after conflict.
//!
//! Optimistic transactions can starve: a long one loses to a stream of short ones again and again. One transaction at a
//! time has priority, in the order of asking. What it has read is *protected*: commits of other threads that write it wait outside
//! the gate until the transaction has ended. All other commits pass.
//!
//! A read is entered here after it was made, so a commit may still slip in between the two. Then the transaction meets a conflict and
//! runs again, and what it has read stays protected from one run to the next. A body that reads the same again finds it
//! protected from its beginning, and meets no further conflict.
//!
//! A body is its user's, and may wait for anything, the commits that it stops included. So protection *lapses*: after
//! twice the length of the transaction's longest run so far, at least [`PROTECTED_MIN`] and at most [`PROTECTED_MAX`],
//! a commit that waits ends it and goes on. The transaction then meets a conflict, as if it had no priority. A commit
//! also waits no longer than [`WAIT_MAX`] in all, however many transactions have priority one after the other.
//!
//! Protection is no lock: a transaction with priority is validated as all others are, so whatever happens here costs time
//! and never a wrong answer.
//!
//! The mutex of the state and that of the reads are never held together, nor while a thread enters the gate.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::{Condvar, Mutex};

use super::read_set::ReadSet;
use super::snapshots::TimeSource;
use super::{KeyRange, hash_key};
use crate::TableId;
use crate::planted::{Bug, planted};

/// The shortest time for which reads are protected, so that a thread that loses its processor does not lose its turn.
pub(crate) const PROTECTED_MIN: Duration = Duration::from_millis(10);
/// The longest time for which reads are protected.
pub(crate) const PROTECTED_MAX: Duration = Duration::from_secs(30);
/// The longest a commit waits for transactions with priority, all of them together.
pub(crate) const WAIT_MAX: Duration = PROTECTED_MAX;
/// The longest a waiting thread sleeps before it looks at the clock again, which may be a test's.
const NAP: Duration = Duration::from_millis(5);
/// Ranges of a table that are kept apart. Beyond that, one range that covers them all takes their place.
const RANGES_MAX: usize = 256;
/// Keys of a table that are kept apart. Beyond that, the whole table takes their place.
const POINTS_MAX: usize = 1 << 16;

/// Who has priority, and who waits for it.
#[derive(Debug)]
pub(crate) struct Priority {
    time: Arc<dyn TimeSource>,
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    holder: Option<Holder>,
    /// The numbers of those that wait for priority, oldest first.
    waiting: VecDeque<u64>,
    /// Turns asked for so far.
    numbers: u64,
}

#[derive(Debug)]
struct Holder {
    number: u64,
    thread: u64,
    reads: Arc<ProtectedReads>,
    /// When protection may be ended; none = its time has not begun.
    until: Option<Duration>,
}

impl State {
    /// Ends the holder's turn if its time is over.
    fn lapse(&mut self, now: Duration, unprotect: &dyn Fn()) -> bool {
        let over = |holder: &Holder| holder.until.is_some_and(|until| now >= until);
        let lapsed = self.holder.as_ref().is_some_and(over) && !planted(Bug::ProtectForEver);
        if lapsed {
            self.holder = None;
            unprotect();
        }
        lapsed
    }

    fn is_held(&self, number: u64) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.number == number)
    }
}

impl Priority {
    pub(super) fn new(time: Arc<dyn TimeSource>) -> Self {
        Priority { time, state: Mutex::default(), moved: Condvar::new() }
    }

    pub(super) fn now(&self) -> Duration {
        self.time.elapsed()
    }

    /// Waits for the turn. Its time begins with [`Priority::start`].
    pub(super) fn acquire(
        &self,
        thread: u64,
        reads: Arc<ProtectedReads>,
        protect: impl FnOnce() -> u64,
        unprotect: impl Fn(),
    ) -> u64 {
        let mut state = self.state.lock();
        let number = state.numbers;
        state.numbers += 1;
        state.waiting.push_back(number);
        loop {
            if state.lapse(self.now(), &unprotect) {
                self.moved.notify_all();
            }
            if state.holder.is_none() && state.waiting.front() == Some(&number) {
                state.waiting.pop_front();
                state.holder = Some(Holder { number, thread, reads, until: None });
                protect();
                return number;
            }
            self.moved.wait_for(&mut state, NAP);
        }
    }

    /// Begins the time of a turn.
    pub(super) fn start(&self, number: u64, length: Duration) {
        let until = self.now() + length;
        let mut state = self.state.lock();
        if let Some(holder) = state.holder.as_mut().filter(|holder| holder.number == number) {
            holder.until = Some(until);
        }
    }

    /// Ends a turn, unless it has lapsed.
    pub(super) fn release(&self, number: u64, unprotect: impl Fn()) {
        let mut state = self.state.lock();
        if state.is_held(number) {
            state.holder = None;
            unprotect();
            self.moved.notify_all();
        }
    }

    /// How many wait for the turn.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    pub(super) fn is_held(&self, number: u64) -> bool {
        self.state.lock().is_held(number)
    }

    /// What is protected for `thread`, if it has the turn.
    pub(super) fn reads_of(&self, thread: u64) -> Option<Arc<ProtectedReads>> {
        let state = self.state.lock();
        let holder = state.holder.as_ref().filter(|holder| holder.thread == thread)?;
        Some(Arc::clone(&holder.reads))
    }

    /// The turn that keeps a commit of `thread` outside which writes what `writes` says.
    pub(super) fn stops(&self, thread: u64, writes: &dyn Fn(&Reads) -> bool) -> Option<u64> {
        let state = self.state.lock();
        let holder = state.holder.as_ref().filter(|holder| holder.thread != thread)?;
        let (number, reads) = (holder.number, Arc::clone(&holder.reads));
        drop(state);
        writes(&reads.0.lock()).then_some(number)
    }

    /// Returns when the turn `number` has ended, ending it if its time is over, or at `patience`.
    pub(super) fn wait(&self, number: u64, patience: Duration, unprotect: impl Fn()) {
        let mut state = self.state.lock();
        while state.is_held(number) {
            let now = self.now();
            if state.lapse(now, &unprotect) {
                self.moved.notify_all();
            } else if now >= patience && !planted(Bug::ProtectForEver) {
                return;
            } else {
                self.moved.wait_for(&mut state, NAP);
            }
        }
    }
}

/// What a transaction with priority has read, in all of its runs.
#[derive(Debug, Default)]
pub(crate) struct ProtectedReads(Mutex<Reads>);

/// Keys and ranges. They hold more than was read where that takes less memory; a commit then waits needlessly.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    points: HashMap<TableId, HashSet<u64, RandomState>, RandomState>,
    /// In order and apart from each other.
    ranges: HashMap<TableId, Vec<Interval>, RandomState>,
}

/// A place between two keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cut<K> {
    Start,
    /// Just before the key, or just after it.
    At(K, Side),
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Before,
    After,
}

#[derive(Debug)]
struct Interval {
    low: Cut<Box<[u8]>>,
    high: Cut<Box<[u8]>>,
}

impl ProtectedReads {
    /// What a run without priority has read.
    pub(crate) fn of(reads: &ReadSet) -> Arc<Self> {
        let mut protected = Reads::default();
        for point in reads.points() {
            protected.add_point(point.table, point.key);
        }
        for range in reads.ranges() {
            range.covered().into_iter().for_each(|covered| protected.add_range(range.table(), covered));
        }
        Arc::new(ProtectedReads(Mutex::new(protected)))
    }

    /// Protects a key.
    pub(crate) fn point(&self, table: TableId, key: &[u8]) {
        self.0.lock().add_point(table, key);
    }

    /// Whether a key is protected.
    #[cfg(test)]
    pub(crate) fn holds(&self, table: TableId, key: &[u8]) -> bool {
        self.0.lock().holds(table, key)
    }

    /// Protects a range.
    pub(crate) fn range(&self, table: TableId, covered: KeyRange<'_>) {
        self.0.lock().add_range(table, covered);
    }
}

impl Reads {
    /// Whether `key` is among them.
    pub(crate) fn holds(&self, table: TableId, key: &[u8]) -> bool {
        if self.points.get(&table).is_some_and(|points| points.contains(&hash_key(table, key))) {
            return true;
        }
        let Some(ranges) = self.ranges.get(&table) else { return false };
        let (before, after) = (Cut::At(key, Side::Before), Cut::At(key, Side::After));
        let first = ranges.partition_point(|range| range.high.borrowed() < after);
        ranges.get(first).is_some_and(|range| range.low.borrowed() <= before)
    }

    fn add_point(&mut self, table: TableId, key: &[u8]) {
        if self.holds(table, key) {
            return;
        }
        let points = self.points.entry(table).or_default();
        if points.len() < POINTS_MAX {
            points.insert(hash_key(table, key));
        } else {
            *points = HashSet::default();
            self.add_range(table, (Bound::Unbounded, Bound::Unbounded));
        }
    }

    fn add_range(&mut self, table: TableId, (low, high): KeyRange<'_>) {
        let low = match low {
            Bound::Unbounded => Cut::Start,
            Bound::Included(key) => Cut::At(key, Side::Before),
            Bound::Excluded(key) => Cut::At(key, Side::After),
        };
        let high = match high {
            Bound::Unbounded => Cut::End,
            Bound::Included(key) => Cut::At(key, Side::After),
            Bound::Excluded(key) => Cut::At(key, Side::Before),
        };
        if low >= high {
            return;
        }
        let ranges = self.ranges.entry(table).or_default();
        let first = ranges.partition_point(|range| range.high.borrowed() < low);
        let behind = ranges.partition_point(|range| range.low.borrowed() <= high);
        let met = &ranges[first..behind];
        let new = Interval {
            low: met.first().map_or(low, |range| range.low.borrowed().min(low)).owned(),
            high: met.last().map_or(high, |range| range.high.borrowed().max(high)).owned(),
        };
        ranges.splice(first..behind, [new]);
        if ranges.len() > RANGES_MAX
            && let Some(last) = ranges.pop()
        {
            ranges.truncate(1);
            ranges[0].high = last.high;
        }
    }
}

impl Cut<Box<[u8]>> {
    fn borrowed(&self) -> Cut<&[u8]> {
        match self {
            Cut::Start => Cut::Start,
            Cut::At(key, side) => Cut::At(key, *side),
            Cut::End => Cut::End,
        }
    }
}

impl Cut<&[u8]> {
    fn owned(self) -> Cut<Box<[u8]>> {
        match self {
            Cut::Start => Cut::Start,
            Cut::At(key, side) => Cut::At(key.into(), side),
            Cut::End => Cut::End,
        }
    }
}

#[cfg(test)]
mod tests;
