//! A candidate at the size of the cache, with its strays.
//!
//! A stray is a block of the cache that is not in the expert's shadow; it leaves first if the
//! expert is followed. Strays are listed in the order given up, updated on every lookup, so an
//! expert can be followed at any time. A late one lists a few slots per lookup.

use super::shadow::{Change, Shadow};
use crate::policy::lists::Lists;
use crate::policy::{Access, BlockTable, Slot};

/// Slots that a late expert lists per lookup.
const LISTED_AT_ONCE: usize = 16;

/// The cache's blocks by slot, and slots by block.
pub(super) struct Held<T> {
    slots: T,
    blocks: Vec<u64>,
    /// Latest in front.
    arrivals: Lists<1>,
}

impl<T: BlockTable> Held<T> {
    pub fn new(capacity: usize) -> Self {
        Held { slots: T::default(), blocks: vec![0; capacity], arrivals: Lists::new(capacity) }
    }

    pub fn grow(&mut self, capacity: usize) {
        self.blocks.resize(capacity.max(self.blocks.len()), 0);
        self.arrivals.grow(capacity);
    }

    pub fn slots(&self) -> usize {
        self.blocks.len()
    }

    pub fn holds(&self, slot: Slot) -> bool {
        self.slot(self.block(slot)) == Some(slot)
    }

    #[inline]
    pub fn slot(&self, block: u64) -> Option<Slot> {
        self.slots.get(block).map(Slot)
    }

    pub fn block(&self, slot: Slot) -> u64 {
        self.blocks[slot.index()]
    }

    pub fn earliest(&self) -> Option<Slot> {
        self.arrivals.back(0).map(Slot)
    }

    pub fn insert(&mut self, block: u64, slot: Slot) {
        self.blocks[slot.index()] = block;
        self.slots.set(block, slot.0);
        self.arrivals.push_front(0, slot.0);
    }

    pub fn rename(&mut self, slot: Slot, block: u64) {
        let before = std::mem::replace(&mut self.blocks[slot.index()], block);
        self.slots.take(before);
        self.slots.set(block, slot.0);
    }

    pub fn remove(&mut self, slot: Slot) {
        self.slots.take(self.blocks[slot.index()]);
        self.arrivals.unlink(0, slot.0);
    }
}

/// One candidate's shadow and strays.
pub(super) struct Expert<T> {
    pub shadow: Shadow<T>,
    /// Latest in front.
    strays: Lists<1>,
    is_stray: Vec<bool>,
    /// Strays below this slot are listed.
    listed: usize,
    /// Lookups until a late expert has seen enough of the load.
    cold: u64,
}

impl<T: BlockTable> Expert<T> {
    /// Starts with an empty cache of slots below `slots`.
    pub fn new(shadow: Shadow<T>, slots: usize) -> Self {
        Expert { shadow, strays: Lists::new(slots), is_stray: vec![false; slots], listed: slots, cold: 0 }
    }

    /// Starts beside a cache in use; ready after `cold` lookups.
    pub fn late(shadow: Shadow<T>, slots: usize, cold: u64) -> Self {
        Expert { listed: 0, cold, ..Expert::new(shadow, slots) }
    }

    /// Sets the shadow's capacity; the cache's slots follow.
    pub fn resize(&mut self, capacity: usize, held: &Held<T>) {
        if self.listed == self.is_stray.len() {
            self.listed = held.slots();
        }
        self.strays.grow(held.slots());
        self.is_stray.resize(held.slots(), false);
        let mut left = Vec::new();
        self.shadow.resize(capacity, |block| left.push(block));
        left.into_iter().filter_map(|block| held.slot(block)).for_each(|slot| self.stray(slot));
    }

    /// Whether all strays are listed and the shadow is warm.
    pub fn is_ready(&self) -> bool {
        self.listed == self.is_stray.len() && self.cold == 0
    }

    pub fn strays(&self) -> usize {
        self.strays.len(0)
    }

    /// The stray given up first.
    pub fn first_stray(&self) -> Option<Slot> {
        self.strays.back(0).map(Slot)
    }

    /// The block in `slot` has left the shadow.
    pub fn stray(&mut self, slot: Slot) {
        if slot.index() < self.listed && !std::mem::replace(&mut self.is_stray[slot.index()], true) {
            self.strays.push_front(0, slot.0);
        }
    }

    /// The block in `slot` entered the shadow, or leaves the cache.
    pub fn unlist(&mut self, slot: Slot) {
        if std::mem::replace(&mut self.is_stray[slot.index()], false) {
            self.strays.unlink(0, slot.0);
        }
    }

    /// Looks up in the shadow, and lists some more strays if late.
    pub fn look_up(&mut self, access: Access, held: &Held<T>) -> Change {
        let change = self.shadow.look_up(access);
        if let Change::Admitted { left } = change {
            if let Some(slot) = held.slot(access.block) {
                self.unlist(slot);
            }
            if let Some(slot) = left.and_then(|block| held.slot(block)) {
                self.stray(slot);
            }
        }
        self.cold = self.cold.saturating_sub(1);
        for _ in 0..LISTED_AT_ONCE.min(self.is_stray.len() - self.listed) {
            let slot = Slot(self.listed as u32);
            self.listed += 1;
            if held.holds(slot) && !self.shadow.has(held.block(slot)) {
                self.stray(slot);
            }
        }
        change
    }
}
