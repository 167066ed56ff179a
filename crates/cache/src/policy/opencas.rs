//! OpenCAS, a baseline: Linux's block cache in write-around mode, with defaults.
//!
//! NVCache compares with it (section 4.1.2, claim N7). Every read miss is admitted. A write miss
//! bypasses the cache, a write hit goes to both, so nothing is dirty.
//!
//! LRU evicts. The front half of the list is hot, and a hit on a hot block moves nothing, which
//! saves the list's lock (`OCF_LRU_HOT_RATIO`). OpenCAS's 32 lists are one here, since they only
//! split locks.
//!
//! ```text
//! front [ hot ... hot | cold ... cold ] back -> leaves
//!         ^------------- a hit ----'
//! ```

use super::lists::Lists;
use super::{Access, Policy, Slot};

const HOT: usize = 0;
const COLD: usize = 1;

/// One block in this many is hot.
const HOT_RATIO: usize = 2;

/// OpenCAS's policy in write-around mode, for comparison.
///
/// ```
/// use terrace_cache::policy::{Access, OpenCas, Policy, Slot};
///
/// let mut policy = OpenCas::new(2);
/// assert!(policy.admits(Access::read(4)) && !policy.admits(Access::write(5)));
/// policy.insert(Access::read(4), Slot(0));
/// assert_eq!(policy.coldest(), Some(Slot(0)));
/// ```
#[derive(Clone, Debug)]
pub struct OpenCas {
    /// The halves of one list, most recently used in front.
    halves: Lists<2>,
    is_hot: Vec<bool>,
}

impl OpenCas {
    /// For `capacity` blocks.
    pub fn new(capacity: usize) -> OpenCas {
        OpenCas { halves: Lists::new(capacity), is_hot: vec![false; capacity] }
    }

    fn half(&self, slot: u32) -> usize {
        if self.is_hot[slot as usize] { HOT } else { COLD }
    }

    fn push_front(&mut self, half: usize, slot: u32) {
        self.is_hot[slot as usize] = half == HOT;
        self.halves.push_front(half, slot);
    }

    /// Moves the border between the halves.
    fn balance(&mut self) {
        let hot = (self.halves.len(HOT) + self.halves.len(COLD)) / HOT_RATIO;
        while self.halves.len(HOT) > hot {
            let Some(slot) = self.halves.pop_back(HOT) else { return };
            self.push_front(COLD, slot);
        }
        while self.halves.len(HOT) < hot {
            let Some(slot) = self.halves.front(COLD) else { return };
            self.halves.unlink(COLD, slot);
            self.is_hot[slot as usize] = true;
            self.halves.push_back(HOT, slot);
        }
    }
}

impl Policy for OpenCas {
    fn hit(&mut self, slot: Slot, _: Access) {
        if !self.is_hot[slot.index()] {
            self.halves.unlink(COLD, slot.0);
            self.push_front(HOT, slot.0);
            self.balance();
        }
    }

    fn admits(&mut self, access: Access) -> bool {
        !access.write
    }

    fn victim(&mut self, _: Access) -> Option<Slot> {
        let slot = self.coldest()?;
        self.remove(slot);
        Some(slot)
    }

    fn coldest(&self) -> Option<Slot> {
        self.halves.back(COLD).or_else(|| self.halves.back(HOT)).map(Slot)
    }

    fn insert(&mut self, _: Access, slot: Slot) {
        self.push_front(HOT, slot.0);
        self.balance();
    }

    fn remove(&mut self, slot: Slot) {
        self.halves.unlink(self.half(slot.0), slot.0);
        self.balance();
    }

    fn resize(&mut self, capacity: usize) {
        self.halves.grow(capacity);
        self.is_hot.resize(capacity.max(self.is_hot.len()), false);
    }
}

#[cfg(test)]
mod tests {
    use super::OpenCas;
    use crate::policy::conformance::Cache;
    use crate::policy::{Access, Policy};

    #[test]
    fn a_hit_in_the_hot_half_moves_nothing() {
        let mut cache = Cache::new(OpenCas::new(4), 4);
        for block in [1, 2, 3, 4] {
            cache.access(Access::read(block));
        }
        // 4 and 3 are hot, 2 and 1 cold; 1 moves to the front, and 3 becomes cold.
        cache.access(Access::read(3));
        cache.access(Access::read(1));
        cache.access(Access::read(5));
        assert!(!cache.access(Access::write(2)), "2 left for 5");
        assert!(!cache.access(Access::read(2)), "a write is not admitted");
        // 3 left for it, though it was used after 4, because it was hot then.
        assert!(!cache.access(Access::write(3)));
        assert!(cache.access(Access::read(4)) && cache.access(Access::read(1)));
        assert!(cache.policy.coldest().is_some());
    }
}
