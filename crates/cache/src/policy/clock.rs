//! CLOCK: FIFO with a second chance for blocks with a reference bit.
//!
//! The hand is at the back of a list. A block with a second chance moves to the front, the same
//! order as in a ring. New blocks start with a clear bit.

use super::lists::Lists;
use super::{Access, Policy, Slot};

/// The CLOCK policy with one reference bit.
///
/// ```
/// use terrace_cache::policy::{Access, Clock, Policy, Slot};
///
/// let mut clock = Clock::new(2);
/// clock.insert(Access::read(4), Slot(0));
/// clock.insert(Access::read(5), Slot(1));
/// clock.hit(Slot(0), Access::read(4));
/// assert_eq!(clock.victim(Access::read(6)), Some(Slot(1)));
/// ```
#[derive(Clone, Debug)]
pub struct Clock {
    slots: Lists<1>,
    referenced: Vec<bool>,
}

impl Clock {
    /// For `capacity` blocks.
    pub fn new(capacity: usize) -> Clock {
        Clock { slots: Lists::new(capacity), referenced: vec![false; capacity] }
    }
}

impl Policy for Clock {
    #[inline]
    fn hit(&mut self, slot: Slot, _: Access) {
        self.referenced[slot.index()] = true;
    }

    fn victim(&mut self, _: Access) -> Option<Slot> {
        loop {
            let slot = self.slots.back(0)?;
            if !std::mem::take(&mut self.referenced[slot as usize]) {
                self.slots.unlink(0, slot);
                return Some(Slot(slot));
            }
            self.slots.move_to_front(0, slot);
        }
    }

    fn coldest(&self) -> Option<Slot> {
        self.slots.back(0).map(Slot)
    }

    fn insert(&mut self, _: Access, slot: Slot) {
        self.referenced[slot.index()] = false;
        self.slots.push_front(0, slot.0);
    }

    fn remove(&mut self, slot: Slot) {
        self.slots.unlink(0, slot.0);
    }

    fn renamed(&mut self, _: Slot, _: Access) {}

    fn moved(&mut self, from: Slot, to: Slot, _: Access) {
        self.referenced[to.index()] = self.referenced[from.index()];
        self.slots.substitute(from.0, to.0);
    }

    fn resize(&mut self, capacity: usize) {
        self.slots.grow(capacity);
        self.referenced.resize(capacity.max(self.referenced.len()), false);
    }
}
