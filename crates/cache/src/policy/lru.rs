//! LRU: the least recently used block leaves.

use super::lists::Lists;
use super::{Access, Policy, Slot};

/// Least recently used.
///
/// ```
/// use terrace_cache::policy::{Access, Lru, Policy, Slot};
///
/// let mut lru = Lru::new(1);
/// lru.insert(Access::write(4), Slot(0));
/// assert_eq!(lru.coldest(), Some(Slot(0)));
/// ```
#[derive(Clone, Debug)]
pub struct Lru {
    /// Most recently used in front.
    slots: Lists<1>,
}

impl Lru {
    /// For `capacity` blocks.
    pub fn new(capacity: usize) -> Lru {
        Lru { slots: Lists::new(capacity) }
    }
}

impl Policy for Lru {
    #[inline]
    fn hit(&mut self, slot: Slot, _: Access) {
        self.slots.move_to_front(0, slot.0);
    }

    #[inline]
    fn victim(&mut self, _: Access) -> Option<Slot> {
        self.slots.pop_back(0).map(Slot)
    }

    fn coldest(&self) -> Option<Slot> {
        self.slots.back(0).map(Slot)
    }

    #[inline]
    fn insert(&mut self, _: Access, slot: Slot) {
        self.slots.push_front(0, slot.0);
    }

    fn remove(&mut self, slot: Slot) {
        self.slots.unlink(0, slot.0);
    }

    fn renamed(&mut self, _: Slot, _: Access) {}

    fn moved(&mut self, from: Slot, to: Slot, _: Access) {
        self.slots.substitute(from.0, to.0);
    }

    fn resize(&mut self, capacity: usize) {
        self.slots.grow(capacity);
    }
}
