//! MRU: right for cyclic scans larger than the cache, else mostly wrong.

use super::lists::Lists;
use super::{Access, Policy, Slot};

/// The most recently used block leaves.
///
/// ```
/// use terrace_cache::policy::{Access, Mru, Policy, Slot};
///
/// let mut mru = Mru::new(2);
/// mru.insert(Access::read(4), Slot(0));
/// mru.insert(Access::read(5), Slot(1));
/// assert_eq!(mru.victim(Access::read(6)), Some(Slot(1)));
/// ```
#[derive(Clone, Debug)]
pub struct Mru {
    /// Most recently used in front.
    slots: Lists<1>,
}

impl Mru {
    /// For `capacity` blocks.
    pub fn new(capacity: usize) -> Mru {
        Mru { slots: Lists::new(capacity) }
    }
}

impl Policy for Mru {
    fn hit(&mut self, slot: Slot, _: Access) {
        self.slots.move_to_front(0, slot.0);
    }

    fn victim(&mut self, _: Access) -> Option<Slot> {
        let slot = self.slots.front(0)?;
        self.slots.unlink(0, slot);
        Some(Slot(slot))
    }

    fn coldest(&self) -> Option<Slot> {
        self.slots.front(0).map(Slot)
    }

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
