//! LFRU, the eviction of NVCache: among blocks that were not used within a window, the one used least often leaves (paper
//! 004, section 3.1; its source is Bilal and Kang 2017).
//!
//! NVCache's thread scans the cache once a second and approximates; here the order is exact. Time is look-ups, so that
//! runs repeat. A block used within the window waits in a list by last use; once the window has passed over it, it is a
//! candidate, in lists by count. Where the paper's thread finds no candidate it evicts nothing; a policy must name a
//! victim, and then the block not used for the longest time leaves.

use super::frequency::FrequencyLists;
use super::lists::Lists;
use super::{Access, Policy, Slot};

/// LFRU; see the module [`policy`](crate::policy) for how to drive it.
///
/// ```
/// use terrace_block::policy::{Access, Lfru, Policy, Slot};
///
/// let mut policy = Lfru::new(2, 1);
/// policy.insert(Access::read(4), Slot(0));
/// policy.hit(Slot(0), Access::read(4));
/// policy.insert(Access::read(5), Slot(1));
/// for block in 6..9 {
///     policy.miss(Access::read(block));
/// }
/// assert_eq!(policy.victim(Access::read(9)), Some(Slot(1)));
/// ```
#[derive(Clone, Debug)]
pub struct Lfru {
    /// Used within the window, most recently used in front.
    recent: Lists<1>,
    candidates: FrequencyLists,
    counts: Vec<u32>,
    last_use: Vec<u64>,
    now: u64,
    window: u64,
}

impl Lfru {
    /// For `capacity` blocks, and a window of that many look-ups.
    pub fn new(capacity: usize, window: u64) -> Lfru {
        Lfru {
            recent: Lists::new(capacity),
            candidates: FrequencyLists::new(capacity),
            counts: vec![0; capacity],
            last_use: vec![0; capacity],
            now: 0,
            window,
        }
    }

    /// One look-up passes; blocks that leave the window become candidates.
    fn tick(&mut self) {
        self.now += 1;
        while let Some(slot) = self.recent.back(0)
            && self.last_use[slot as usize] + self.window < self.now
        {
            self.recent.unlink(0, slot);
            self.candidates.insert(slot, self.counts[slot as usize]);
        }
    }

    fn enter(&mut self, slot: Slot, count: u32) {
        self.counts[slot.index()] = count;
        self.last_use[slot.index()] = self.now;
        self.recent.push_front(0, slot.0);
    }
}

impl Policy for Lfru {
    fn hit(&mut self, slot: Slot, _: Access) {
        self.remove(slot);
        self.tick();
        self.enter(slot, self.counts[slot.index()].saturating_add(1));
    }

    fn miss(&mut self, _: Access) {
        self.tick();
    }

    fn victim(&mut self, _: Access) -> Option<Slot> {
        let slot = self.coldest()?;
        self.remove(slot);
        Some(slot)
    }

    fn coldest(&self) -> Option<Slot> {
        let candidate = self.candidates.coldest().map(|(slot, _)| slot);
        candidate.or_else(|| self.recent.back(0)).map(Slot)
    }

    fn insert(&mut self, _: Access, slot: Slot) {
        self.enter(slot, 1);
    }

    fn remove(&mut self, slot: Slot) {
        if self.candidates.contains(slot.0) {
            self.candidates.remove(slot.0);
        } else {
            self.recent.unlink(0, slot.0);
        }
    }

    fn renamed(&mut self, _: Slot, _: Access) {}

    fn resize(&mut self, capacity: usize) {
        self.recent.grow(capacity);
        self.candidates.grow(capacity);
        let slots = capacity.max(self.counts.len());
        self.counts.resize(slots, 0);
        self.last_use.resize(slots, 0);
    }
}
