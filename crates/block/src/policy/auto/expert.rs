//! A candidate at the size of the cache: what it would keep, and what of the cache it would not.
//!
//! The cache holds blocks that the policy at work once wanted. A block that is in the cache and not in an expert's shadow is
//! a stray of that expert: it would leave first if the expert were followed. Strays are listed in the order in which the
//! expert gave them up. All of that is brought up to date with every look-up, so an expert can be followed at any time
//! without a step of preparation. One that begins late takes a few slots of the cache into its list with each look-up.

use super::shadow::{Change, Shadow};
use crate::policy::lists::Lists;
use crate::policy::{Access, BlockTable, Slot};

/// Slots of the cache that a late expert lists with each look-up.
const LISTED_AT_ONCE: usize = 16;

/// The blocks of the cache, by slot and the other way round.
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

    /// Makes room for slots below `capacity`.
    pub fn grow(&mut self, capacity: usize) {
        self.blocks.resize(capacity.max(self.blocks.len()), 0);
        self.arrivals.grow(capacity);
    }

    /// Slots there may be.
    pub fn slots(&self) -> usize {
        self.blocks.len()
    }

    /// Whether a block is in `slot`.
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

    /// The slot whose block has been there for the longest time.
    pub fn earliest(&self) -> Option<Slot> {
        self.arrivals.back(0).map(Slot)
    }

    pub fn insert(&mut self, block: u64, slot: Slot) {
        self.blocks[slot.index()] = block;
        self.slots.set(block, slot.0);
        self.arrivals.push_front(0, slot.0);
    }

    /// The block in `slot` is called `block` from now on.
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

/// What one candidate would keep, and the strays.
pub(super) struct Expert<T> {
    pub shadow: Shadow<T>,
    /// Latest in front.
    strays: Lists<1>,
    is_stray: Vec<bool>,
    /// Strays among slots below this are listed.
    listed: usize,
    /// Look-ups until the shadow of an expert that began late knows the load.
    cold: u64,
}

impl<T: BlockTable> Expert<T> {
    /// With an empty shadow, beside an empty cache with slots below `slots`.
    pub fn new(shadow: Shadow<T>, slots: usize) -> Self {
        Expert { shadow, strays: Lists::new(slots), is_stray: vec![false; slots], listed: slots, cold: 0 }
    }

    /// With an empty shadow, beside a cache that is at work; it knows the load after `cold` look-ups.
    pub fn late(shadow: Shadow<T>, slots: usize, cold: u64) -> Self {
        Expert { listed: 0, cold, ..Expert::new(shadow, slots) }
    }

    /// Sets the shadow's capacity, in which the cache's slots follow.
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

    /// All strays are listed, and the shadow knows the load: the expert may be followed.
    pub fn is_ready(&self) -> bool {
        self.listed == self.is_stray.len() && self.cold == 0
    }

    /// How many blocks of the cache the expert would not keep.
    pub fn strays(&self) -> usize {
        self.strays.len(0)
    }

    /// The slot of the stray that it gave up first.
    pub fn first_stray(&self) -> Option<Slot> {
        self.strays.back(0).map(Slot)
    }

    /// The block in `slot` is not in the shadow any more.
    pub fn stray(&mut self, slot: Slot) {
        if slot.index() < self.listed && !std::mem::replace(&mut self.is_stray[slot.index()], true) {
            self.strays.push_front(0, slot.0);
        }
    }

    /// The block in `slot` is in the shadow, or leaves the cache.
    pub fn settle(&mut self, slot: Slot) {
        if std::mem::replace(&mut self.is_stray[slot.index()], false) {
            self.strays.unlink(0, slot.0);
        }
    }

    /// A look-up of the shadow, and a step towards being ready.
    pub fn look_up(&mut self, access: Access, held: &Held<T>) -> Change {
        let change = self.shadow.look_up(access);
        if let Change::Admitted { left } = change {
            if let Some(slot) = held.slot(access.block) {
                self.settle(slot);
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
