//! Belady's optimum: the block whose next use is farthest leaves. It needs the future, so it is a bound for others only.
//!
//! [`Future`] holds, for every look-up of a trace, when its block is looked up next. The policy counts the look-ups
//! it is told of and reads the future at that place; it must see the whole trace, in order.

use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use super::{Access, Policy, Slot};

/// When every look-up's block is looked up again: four bytes a look-up.
///
/// ```
/// use terrace_block::policy::Future;
///
/// let future = Future::of([7, 8, 7]);
/// assert_eq!(future.len(), 3);
/// ```
#[derive(Clone, Debug)]
pub struct Future {
    next: Vec<u32>,
}

/// The block is never looked up again.
const NEVER: u32 = u32::MAX;

impl Future {
    /// The future of a trace of blocks.
    ///
    /// # Panics
    /// With 2^32 - 1 look-ups or more.
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

    /// The number of look-ups.
    pub fn len(&self) -> usize {
        self.next.len()
    }

    /// Whether there are no look-ups.
    pub fn is_empty(&self) -> bool {
        self.next.is_empty()
    }
}

/// Belady's optimum; see the module [`policy`](crate::policy) for how to drive it. Look-ups after the end of the future
/// are taken for blocks that never come back.
///
/// ```
/// use std::sync::Arc;
/// use terrace_block::policy::{Access, Belady, Future, Policy, Slot};
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
    /// Look-ups so far.
    now: usize,
    /// The next use of the block in a slot; none if the slot is free.
    next: Vec<Option<u32>>,
    /// Every slot under its next use, farthest first, among entries that are out of date.
    farthest: BinaryHeap<(u32, u32)>,
}

impl Belady {
    /// For `capacity` blocks.
    pub fn new(capacity: usize, future: Arc<Future>) -> Belady {
        Belady { future, now: 0, next: vec![None; capacity], farthest: BinaryHeap::new() }
    }

    /// Puts `slot` under the next use of the block of the latest look-up.
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

    /// Linear in the capacity: only the bound's own callers ask, and they need no speed.
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
