//! FIFO: hits change nothing.

use super::lists::Lists;
use super::{Access, Policy, Slot};

/// First in, first out.
///
/// ```
/// use terrace_cache::policy::{Access, Fifo, Policy, Slot};
///
/// let mut fifo = Fifo::new(1);
/// fifo.insert(Access::write(4), Slot(0));
/// assert_eq!(fifo.coldest(), Some(Slot(0)));
/// ```
#[derive(Clone, Debug)]
pub struct Fifo {
    /// Newest in front.
    slots: Lists<1>,
}

impl Fifo {
    /// For `capacity` blocks.
    pub fn new(capacity: usize) -> Fifo {
        Fifo { slots: Lists::new(capacity) }
    }
}

impl Policy for Fifo {
    #[inline]
    fn hit(&mut self, _: Slot, _: Access) {}

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
