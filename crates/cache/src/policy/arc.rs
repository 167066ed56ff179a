//! ARC: two LRU lists with adaptive sizes (Megiddo and Modha, FAST 2003, figure 4).
//!
//! ```text
//! L1:  T1 resident | B1 ghosts      seen once
//! L2:  T2 resident | B2 ghosts      seen at least twice
//! ```
//!
//! `p`, the target size of T1, is real: a hit in B1 adds max(1, |B2| / |B1|), one in B2 subtracts
//! the inverse. Rounding the quotient would change counts.

use super::ghosts::Ghosts;
use super::lists::Lists;
use super::{Access, BlockTable, Policy, Slot};

const ONCE: usize = 0;
const AGAIN: usize = 1;

/// The ARC policy. Ghosts: at most as many as slots.
///
/// ```
/// use terrace_cache::policy::{Access, Arc, HashedTable, Policy, Slot};
///
/// let mut arc = Arc::<HashedTable>::new(2);
/// arc.insert(Access::read(4), Slot(0));
/// arc.hit(Slot(0), Access::read(4));
/// arc.insert(Access::read(5), Slot(1));
/// assert_eq!(arc.victim(Access::read(6)), Some(Slot(1)));
/// ```
#[derive(Clone, Debug)]
pub struct Arc<T: BlockTable> {
    /// T1 and T2, most recently used in front.
    resident: Lists<2>,
    ghosts: Ghosts<T, 2>,
    blocks: Vec<u64>,
    seen_again: Vec<bool>,
    /// The paper's p.
    once_target: f64,
    capacity: usize,
    /// The ghost that the last `victim` removed for insertion.
    returning: Option<u64>,
}

impl<T: BlockTable> Arc<T> {
    /// For `capacity` blocks.
    pub fn new(capacity: usize) -> Self {
        Arc {
            resident: Lists::new(capacity),
            ghosts: Ghosts::new(),
            blocks: vec![0; capacity],
            seen_again: vec![false; capacity],
            once_target: 0.0,
            capacity,
            returning: None,
        }
    }

    /// Adjusts the target if `block` is a ghost; returns its list. The ghost stays.
    fn adapt(&mut self, block: u64) -> Option<usize> {
        let list = self.ghosts.list_of(block)?;
        let (once, again) = (self.ghosts.len(ONCE) as f64, self.ghosts.len(AGAIN) as f64);
        if list == ONCE {
            self.once_target = (self.once_target + (again / once).max(1.0)).min(self.capacity as f64);
        } else {
            self.once_target = (self.once_target - (once / again).max(1.0)).max(0.0);
        }
        Some(list)
    }

    /// The paper's REPLACE: the list that gives up a slot.
    fn donor(&self, ghost: Option<usize>) -> usize {
        let once = self.resident.len(ONCE) as f64;
        let from_once = once > self.once_target || (ghost == Some(AGAIN) && once == self.once_target);
        if self.resident.len(AGAIN) == 0 || (once > 0.0 && from_once) { ONCE } else { AGAIN }
    }

    fn evict(&mut self, list: usize, keep_ghost: bool) -> Option<Slot> {
        let slot = self.resident.pop_back(list)?;
        if keep_ghost {
            self.ghosts.push_front(list, self.blocks[slot as usize], 0);
        }
        Some(Slot(slot))
    }
}

impl<T: BlockTable> Policy for Arc<T> {
    #[inline]
    fn hit(&mut self, slot: Slot, _: Access) {
        let again = std::mem::replace(&mut self.seen_again[slot.index()], true);
        self.resident.unlink(again as usize, slot.0);
        self.resident.push_front(AGAIN, slot.0);
    }

    fn victim(&mut self, access: Access) -> Option<Slot> {
        if self.returning == Some(access.block) {
            // A repeated request: its ghost is already used.
            return self.evict(self.donor(None), true);
        }
        let ghost = self.adapt(access.block);
        if ghost.is_some() {
            let slot = self.evict(self.donor(ghost), true)?;
            self.ghosts.take(access.block);
            self.returning = Some(access.block);
            return Some(slot);
        }
        self.returning = None;
        let seen_once = self.resident.len(ONCE) + self.ghosts.len(ONCE);
        if seen_once >= self.capacity {
            if self.ghosts.len(ONCE) == 0 {
                return self.evict(ONCE, false);
            }
            self.ghosts.drop_back(ONCE);
        } else if seen_once + self.resident.len(AGAIN) + self.ghosts.len(AGAIN) >= 2 * self.capacity {
            self.ghosts.drop_back(AGAIN);
        }
        self.evict(self.donor(None), true)
    }

    fn coldest(&self) -> Option<Slot> {
        self.resident.back(self.donor(None)).map(Slot)
    }

    fn insert(&mut self, access: Access, slot: Slot) {
        let mut again = self.returning.take() == Some(access.block);
        // Without a `victim`, because a slot was free, the ghost still exists.
        if !again && self.adapt(access.block).is_some() {
            self.ghosts.take(access.block);
            again = true;
        }
        self.blocks[slot.index()] = access.block;
        self.seen_again[slot.index()] = again;
        self.resident.push_front(again as usize, slot.0);
        // Free slots from invalidation fill without a victim, so the paper's bounds are enforced
        // here too.
        while self.ghosts.len(ONCE) > 0 && self.resident.len(ONCE) + self.ghosts.len(ONCE) > self.capacity {
            self.ghosts.drop_back(ONCE);
        }
        while self.ghosts.len(ONCE) + self.ghosts.len(AGAIN) > self.capacity {
            self.ghosts.drop_back(if self.ghosts.len(AGAIN) > 0 { AGAIN } else { ONCE });
        }
    }

    fn remove(&mut self, slot: Slot) {
        self.resident.unlink(self.seen_again[slot.index()] as usize, slot.0);
    }

    fn renamed(&mut self, slot: Slot, access: Access) {
        self.ghosts.take(access.block);
        self.blocks[slot.index()] = access.block;
    }

    fn moved(&mut self, from: Slot, to: Slot, _: Access) {
        self.blocks[to.index()] = self.blocks[from.index()];
        self.seen_again[to.index()] = self.seen_again[from.index()];
        self.resident.substitute(from.0, to.0);
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.once_target = self.once_target.min(capacity as f64);
        self.resident.grow(capacity);
        let slots = capacity.max(self.blocks.len());
        self.blocks.resize(slots, 0);
        self.seen_again.resize(slots, false);
    }
}
