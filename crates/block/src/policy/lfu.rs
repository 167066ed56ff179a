//! LFU: the block used least often leaves, among equals the one not used for the longest time.
//!
//! Two kinds. [`Lfu`] keeps the counts of all blocks for ever, so a block that comes back goes on where it was ("perfect"
//! LFU); it needs a number for every block ever seen. [`LfuInCache`] loses a block's count with the block: it needs no
//! memory beyond the cache, and old blocks with high counts may stay for ever in both.

use super::frequency::FrequencyLists;
use super::{Access, BlockTable, Policy, Slot};

/// LFU with counts that survive eviction; memory is proportional to the number of blocks ever looked up.
///
/// ```
/// use terrace_block::policy::{Access, HashedTable, Lfu, Policy, Slot};
///
/// let mut lfu = Lfu::<HashedTable>::new(2);
/// for (block, slot) in [(4, Slot(0)), (5, Slot(1))] {
///     lfu.miss(Access::read(block));
///     lfu.insert(Access::read(block), slot);
/// }
/// lfu.hit(Slot(0), Access::read(4));
/// assert_eq!(lfu.victim(Access::read(6)), Some(Slot(1)));
/// ```
#[derive(Clone, Debug)]
pub struct Lfu<T> {
    slots: FrequencyLists,
    blocks: Vec<u64>,
    /// Counts of blocks that are not resident; those of resident ones are stale.
    counts: T,
}

impl<T: BlockTable> Lfu<T> {
    /// For `capacity` blocks.
    pub fn new(capacity: usize) -> Self {
        Lfu { slots: FrequencyLists::new(capacity), blocks: vec![0; capacity], counts: T::default() }
    }
}

impl<T: BlockTable> Policy for Lfu<T> {
    fn hit(&mut self, slot: Slot, _: Access) {
        self.slots.increment(slot.0);
    }

    fn miss(&mut self, access: Access) {
        let count = self.counts.get(access.block).unwrap_or(0);
        self.counts.set(access.block, (count + 1).min(u32::MAX - 1));
    }

    fn victim(&mut self, _: Access) -> Option<Slot> {
        let (slot, _) = self.slots.coldest()?;
        self.remove(Slot(slot));
        Some(Slot(slot))
    }

    fn coldest(&self) -> Option<Slot> {
        self.slots.coldest().map(|(slot, _)| Slot(slot))
    }

    fn insert(&mut self, access: Access, slot: Slot) {
        self.blocks[slot.index()] = access.block;
        self.slots.insert(slot.0, self.counts.get(access.block).unwrap_or(1));
    }

    fn remove(&mut self, slot: Slot) {
        self.counts.set(self.blocks[slot.index()], self.slots.frequency(slot.0).min(u32::MAX - 1));
        self.slots.remove(slot.0);
    }

    fn renamed(&mut self, slot: Slot, access: Access) {
        self.blocks[slot.index()] = access.block;
    }

    fn resize(&mut self, capacity: usize) {
        self.slots.grow(capacity);
        self.blocks.resize(capacity.max(self.blocks.len()), 0);
    }
}

/// LFU whose counts start at one with admission and are lost with eviction.
///
/// ```
/// use terrace_block::policy::{Access, LfuInCache, Policy, Slot};
///
/// let mut lfu = LfuInCache::new(2);
/// lfu.insert(Access::read(4), Slot(0));
/// lfu.insert(Access::read(5), Slot(1));
/// lfu.hit(Slot(0), Access::read(4));
/// assert_eq!(lfu.victim(Access::read(6)), Some(Slot(1)));
/// ```
#[derive(Clone, Debug)]
pub struct LfuInCache {
    slots: FrequencyLists,
}

impl LfuInCache {
    /// For `capacity` blocks.
    pub fn new(capacity: usize) -> Self {
        LfuInCache { slots: FrequencyLists::new(capacity) }
    }
}

impl Policy for LfuInCache {
    fn hit(&mut self, slot: Slot, _: Access) {
        self.slots.increment(slot.0);
    }

    fn victim(&mut self, _: Access) -> Option<Slot> {
        let (slot, _) = self.slots.coldest()?;
        self.slots.remove(slot);
        Some(Slot(slot))
    }

    fn coldest(&self) -> Option<Slot> {
        self.slots.coldest().map(|(slot, _)| Slot(slot))
    }

    fn insert(&mut self, _: Access, slot: Slot) {
        self.slots.insert(slot.0, 1);
    }

    fn remove(&mut self, slot: Slot) {
        self.slots.remove(slot.0);
    }

    fn renamed(&mut self, _: Slot, _: Access) {}

    fn resize(&mut self, capacity: usize) {
        self.slots.grow(capacity);
    }
}
