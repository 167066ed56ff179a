//! SIEVE: a FIFO whose hand evicts blocks not hit since its last pass (Zhang et al., NSDI 2024).
//!
//! The hand walks from old to new. Unlike in CLOCK, passed blocks stay in place, so new blocks are
//! filtered first.

use super::lists::Lists;
use super::{Access, Policy, Slot};

/// The SIEVE policy.
///
/// ```
/// use terrace_cache::policy::{Access, Policy, Sieve, Slot};
///
/// let mut sieve = Sieve::new(2);
/// sieve.insert(Access::read(4), Slot(0));
/// sieve.insert(Access::read(5), Slot(1));
/// sieve.hit(Slot(0), Access::read(4));
/// assert_eq!(sieve.victim(Access::read(6)), Some(Slot(1)));
/// ```
#[derive(Clone, Debug)]
pub struct Sieve {
    /// Newest in front.
    slots: Lists<1>,
    visited: Vec<bool>,
    /// The hand's next position; the back if it has passed the front.
    hand: Option<u32>,
}

impl Sieve {
    /// For `capacity` blocks.
    pub fn new(capacity: usize) -> Sieve {
        Sieve { slots: Lists::new(capacity), visited: vec![false; capacity], hand: None }
    }
}

impl Policy for Sieve {
    #[inline]
    fn hit(&mut self, slot: Slot, _: Access) {
        self.visited[slot.index()] = true;
    }

    fn victim(&mut self, _: Access) -> Option<Slot> {
        let mut slot = self.hand.or_else(|| self.slots.back(0))?;
        while std::mem::take(&mut self.visited[slot as usize]) {
            slot = self.slots.before(slot).or_else(|| self.slots.back(0))?;
        }
        self.hand = self.slots.before(slot);
        self.slots.unlink(0, slot);
        Some(Slot(slot))
    }

    fn coldest(&self) -> Option<Slot> {
        self.hand.or_else(|| self.slots.back(0)).map(Slot)
    }

    fn insert(&mut self, _: Access, slot: Slot) {
        self.visited[slot.index()] = false;
        self.slots.push_front(0, slot.0);
    }

    fn remove(&mut self, slot: Slot) {
        if self.hand == Some(slot.0) {
            self.hand = self.slots.before(slot.0);
        }
        self.slots.unlink(0, slot.0);
    }

    fn renamed(&mut self, _: Slot, _: Access) {}

    fn moved(&mut self, from: Slot, to: Slot, _: Access) {
        self.visited[to.index()] = self.visited[from.index()];
        if self.hand == Some(from.0) {
            self.hand = Some(to.0);
        }
        self.slots.substitute(from.0, to.0);
    }

    fn resize(&mut self, capacity: usize) {
        self.slots.grow(capacity);
        self.visited.resize(capacity.max(self.visited.len()), false);
    }
}
