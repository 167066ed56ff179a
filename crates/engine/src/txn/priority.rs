//! Priority: protects the reads of a transaction with repeated conflicts.
//!
//! A long optimistic transaction can lose to a stream of short ones for ever. So one transaction at
//! a time has priority, first come first served. Commits of other threads that write its
//! *protected* reads wait outside the gate until it ends; all others pass.
//!
//! A read is entered after it was made, so a commit may still slip in between. Then the transaction
//! conflicts and runs again, with its reads still protected. A body that repeats its reads meets no
//! further conflict.
//!
//! A body may wait for anything, even for the commits that it stops. So protection *lapses*. After
//! twice the longest run, between [`PROTECTED_MIN`] and [`PROTECTED_MAX`], a waiting commit ends
//! it, and the transaction meets an ordinary conflict. A commit waits at most [`WAIT_MAX`] for all
//! turns together.
//!
//! Validation is the same as without priority, so errors here cost time, never a wrong answer. The
//! mutexes of the state and of the reads are never held together, nor while entering the gate.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::{Condvar, Mutex};

use super::snapshots::TimeSource;
use super::{KeyRange, hash_key};
use crate::TableId;
use crate::planted::{Bug, planted};

/// The shortest protection; losing the processor must not cost a thread its turn.
pub(crate) const PROTECTED_MIN: Duration = Duration::from_millis(10);
pub(crate) const PROTECTED_MAX: Duration = Duration::from_secs(30);
/// The longest wait of a commit for all turns together.
pub(crate) const WAIT_MAX: Duration = PROTECTED_MAX;
/// The longest sleep between looks at the clock, which may be a test's.
const NAP: Duration = Duration::from_millis(5);
/// Separate ranges per table. Beyond that, one range covers them all.
const RANGES_MAX: usize = 256;
/// Separate keys per table. Beyond that, the whole table is protected.
const POINTS_MAX: usize = 1 << 16;

/// The holder of priority and its queue.
#[derive(Debug)]
pub(crate) struct Priority {
    time: Arc<dyn TimeSource>,
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    holder: Option<Holder>,
    /// Turn numbers of the waiting transactions, oldest first.
    waiting: VecDeque<u64>,
    numbers: u64,
}

#[derive(Debug)]
struct Holder {
    number: u64,
    thread: u64,
    reads: Arc<ProtectedReads>,
    /// When protection may be ended; none before its time begins.
    until: Option<Duration>,
}

impl State {
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

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    pub(super) fn is_held(&self, number: u64) -> bool {
        self.state.lock().is_held(number)
    }

    pub(super) fn reads_of(&self, thread: u64) -> Option<Arc<ProtectedReads>> {
        let state = self.state.lock();
        let holder = state.holder.as_ref().filter(|holder| holder.thread == thread)?;
        Some(Arc::clone(&holder.reads))
    }

    /// The turn that stops a commit of `thread` with these `writes`.
    pub(super) fn stops(&self, thread: u64, writes: &dyn Fn(&Reads) -> bool) -> Option<u64> {
        let state = self.state.lock();
        let holder = state.holder.as_ref().filter(|holder| holder.thread != thread)?;
        let (number, reads) = (holder.number, Arc::clone(&holder.reads));
        drop(state);
        writes(&reads.0.lock()).then_some(number)
    }

    /// Waits until turn `number` ends, or until `patience`; ends it if its time is over.
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

/// The reads of a transaction with priority, over all its runs.
#[derive(Debug, Default)]
pub(crate) struct ProtectedReads(Mutex<Reads>);

/// Keys and ranges. They may cover more than was read, to save memory; a commit then waits
/// needlessly.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    points: HashMap<TableId, HashSet<u64, RandomState>, RandomState>,
    /// In order and disjoint.
    ranges: HashMap<TableId, Vec<Interval>, RandomState>,
}

/// A position between two keys.
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
    /// The reads of a run without priority.
    pub(crate) fn of<'r>(
        points: impl Iterator<Item = (TableId, &'r [u8])>,
        ranges: impl Iterator<Item = (TableId, KeyRange<'r>)>,
    ) -> Arc<Self> {
        let mut protected = Reads::default();
        points.for_each(|(table, key)| protected.add_point(table, key));
        ranges.for_each(|(table, covered)| protected.add_range(table, covered));
        Arc::new(ProtectedReads(Mutex::new(protected)))
    }

    pub(crate) fn point(&self, table: TableId, key: &[u8]) {
        self.0.lock().add_point(table, key);
    }

    #[cfg(test)]
    pub(crate) fn holds(&self, table: TableId, key: &[u8]) -> bool {
        self.0.lock().holds(table, key)
    }

    pub(crate) fn range(&self, table: TableId, covered: KeyRange<'_>) {
        self.0.lock().add_range(table, covered);
    }
}

impl Reads {
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
