//! 2Q, full version: a FIFO, ghosts, and an LRU list (Johnson and Shasha, VLDB 1994).
//!
//! New blocks enter the FIFO, where hits change nothing, so correlated references look unlike
//! reuse. Returning ghosts enter the LRU list. Sizes as in the paper: a quarter of the capacity for
//! A1in, ghosts (A1out) for half of it.

use super::ghosts::Ghosts;
use super::lists::Lists;
use super::{Access, BlockTable, Policy, Slot};

/// The paper's A1in: blocks seen once, newest in front.
const NEW: usize = 0;
/// The paper's Am: returned blocks, most recently used in front.
const REUSED: usize = 1;

/// The 2Q policy.
///
/// ```
/// use terrace_cache::policy::{Access, HashedTable, Policy, Slot, TwoQ};
///
/// let mut policy = TwoQ::<HashedTable>::new(2);
/// policy.insert(Access::read(4), Slot(0));
/// policy.insert(Access::read(5), Slot(1));
/// assert_eq!(policy.victim(Access::read(6)), Some(Slot(0)));
/// ```
#[derive(Clone, Debug)]
pub struct TwoQ<T: BlockTable> {
    queues: Lists<2>,
    ghosts: Ghosts<T, 1>,
    blocks: Vec<u64>,
    reused: Vec<bool>,
    new_target: usize,
    ghosts_max: usize,
    /// The last `victim`'s block, if it was a ghost.
    returning: Option<u64>,
}

impl<T: BlockTable> TwoQ<T> {
    /// For `capacity` blocks.
    pub fn new(capacity: usize) -> Self {
        let mut policy = TwoQ {
            queues: Lists::new(0),
            ghosts: Ghosts::new(),
            blocks: Vec::new(),
            reused: Vec::new(),
            new_target: 0,
            ghosts_max: 0,
            returning: None,
        };
        policy.resize(capacity);
        policy
    }

    fn donor(&self) -> usize {
        if self.queues.len(NEW) > self.new_target || self.queues.len(REUSED) == 0 { NEW } else { REUSED }
    }
}

impl<T: BlockTable> Policy for TwoQ<T> {
    #[inline]
    fn hit(&mut self, slot: Slot, _: Access) {
        if self.reused[slot.index()] {
            self.queues.move_to_front(REUSED, slot.0);
        }
    }

    fn victim(&mut self, access: Access) -> Option<Slot> {
        // Before the victim's ghost may push this one out.
        if self.returning != Some(access.block) {
            self.returning = self.ghosts.take(access.block).map(|_| access.block);
        }
        let list = self.donor();
        let slot = self.queues.pop_back(list)?;
        if list == NEW && self.ghosts_max > 0 {
            if self.ghosts.len(0) >= self.ghosts_max {
                self.ghosts.drop_back(0);
            }
            self.ghosts.push_front(0, self.blocks[slot as usize], 0);
        }
        Some(Slot(slot))
    }

    fn coldest(&self) -> Option<Slot> {
        self.queues.back(self.donor()).map(Slot)
    }

    fn insert(&mut self, access: Access, slot: Slot) {
        let returns = self.returning.take() == Some(access.block) || self.ghosts.take(access.block).is_some();
        self.blocks[slot.index()] = access.block;
        self.reused[slot.index()] = returns;
        self.queues.push_front(if returns { REUSED } else { NEW }, slot.0);
    }

    fn remove(&mut self, slot: Slot) {
        self.queues.unlink(if self.reused[slot.index()] { REUSED } else { NEW }, slot.0);
    }

    fn renamed(&mut self, slot: Slot, access: Access) {
        self.ghosts.take(access.block);
        self.blocks[slot.index()] = access.block;
    }

    fn moved(&mut self, from: Slot, to: Slot, _: Access) {
        self.blocks[to.index()] = self.blocks[from.index()];
        self.reused[to.index()] = self.reused[from.index()];
        self.queues.substitute(from.0, to.0);
    }

    fn resize(&mut self, capacity: usize) {
        self.new_target = capacity / 4;
        self.ghosts_max = capacity / 2;
        while self.ghosts.len(0) > self.ghosts_max {
            self.ghosts.drop_back(0);
        }
        self.queues.grow(capacity);
        let slots = capacity.max(self.blocks.len());
        self.blocks.resize(slots, 0);
        self.reused.resize(slots, false);
    }
}
