//! Belady's optimum: evicts the block used farthest in the future.
//!
//! [`Future`] holds the next use for every lookup of a trace. The policy counts its lookups, so it
//! must see the whole trace in order.

use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use super::{Access, Policy, Slot};

/// The next use of every lookup's block: four bytes per lookup.
///
/// ```
/// use terrace_cache::policy::Future;
///
/// let future = Future::of([7, 8, 7]);
/// assert_eq!(future.len(), 3);
/// ```
#[derive(Clone, Debug)]
pub struct Future {
    next: Vec<u32>,
}

/// Never looked up again.
const NEVER: u32 = u32::MAX;

impl Future {
    /// The future of a trace of blocks.
    ///
    /// # Panics
    /// With 2^32 - 1 lookups or more.
    pub fn of(blocks: impl IntoIterator<Item = u64>) -> Future {
        let mut next = Vec::new();
        let mut last = HashMap::<u64, u32, foldhash::fast::FixedState>::default();
        for block in blocks {
            let now = u32::try_from(next.len())
                .ok()
                .filter(|&now| now != NEVER)
                .expect("a trace of fewer than 2^32 - 1 look-ups");
            next.push(NEVER);
            if let Some(before) = last.insert(block, now) {
                next[before as usize] = now;
            }
        }
        Future { next }
    }

    /// Number of lookups.
    pub fn len(&self) -> usize {
        self.next.len()
    }

    /// Whether there are no lookups.
    pub fn is_empty(&self) -> bool {
        self.next.is_empty()
    }
}

/// Belady's optimum, an offline bound. Blocks of lookups beyond the future never return.
///
/// ```
/// use std::sync::Arc;
/// use terrace_cache::policy::{Access, Belady, Future, Policy, Slot};
///
/// let trace = [4, 5, 6, 4];
/// let mut policy = Belady::new(2, Arc::new(Future::of(trace)));
/// for (block, slot) in [(4, Slot(0)), (5, Slot(1))] {
///     policy.miss(Access::read(block));
///     policy.insert(Access::read(block), slot);
/// }
/// policy.miss(Access::read(6));
/// assert_eq!(policy.victim(Access::read(6)), Some(Slot(1)));
/// ```
#[derive(Clone, Debug)]
pub struct Belady {
    future: Arc<Future>,
    now: usize,
    /// The next use by slot; none if free.
    next: Vec<Option<u32>>,
    /// Slots by next use, farthest first, with outdated entries.
    farthest: BinaryHeap<(u32, u32)>,
}

impl Belady {
    /// For `capacity` blocks.
    pub fn new(capacity: usize, future: Arc<Future>) -> Belady {
        Belady { future, now: 0, next: vec![None; capacity], farthest: BinaryHeap::new() }
    }

    /// Files `slot` under the next use of the last lookup's block.
    fn push(&mut self, slot: Slot) {
        let next =
            self.now.checked_sub(1).and_then(|now| self.future.next.get(now)).copied().unwrap_or(NEVER);
        self.next[slot.index()] = Some(next);
        self.farthest.push((next, slot.0));
        if self.farthest.len() > 4 * self.next.len() + 64 {
            let next = &self.next;
            self.farthest.retain(|&(use_at, slot)| next[slot as usize] == Some(use_at));
        }
    }
}

impl Policy for Belady {
    fn hit(&mut self, slot: Slot, _: Access) {
        self.now += 1;
        self.push(slot);
    }

    fn miss(&mut self, _: Access) {
        self.now += 1;
    }

    fn victim(&mut self, _: Access) -> Option<Slot> {
        loop {
            let (next, slot) = self.farthest.pop()?;
            if self.next[slot as usize] == Some(next) {
                self.next[slot as usize] = None;
                return Some(Slot(slot));
            }
        }
    }

    /// Linear, but only the bound itself asks.
    fn coldest(&self) -> Option<Slot> {
        let resident =
            self.next.iter().enumerate().filter_map(|(slot, next)| Some((next.as_ref()?, slot as u32)));
        resident.max().map(|(_, slot)| Slot(slot))
    }

    fn insert(&mut self, _: Access, slot: Slot) {
        self.push(slot);
    }

    fn remove(&mut self, slot: Slot) {
        self.next[slot.index()] = None;
    }

    fn resize(&mut self, capacity: usize) {
        self.next.resize(capacity.max(self.next.len()), None);
    }
}
