//! LFU: the least frequently used block leaves, then the least recently used.
//!
//! [`Lfu`] keeps the counts of all blocks for ever ("perfect" LFU), for traces. In a live cache it
//! is [bounded](Lfu::bounded): the counts of blocks unused for longest are dropped. [`LfuInCache`]
//! drops a block's count on eviction, so needs no extra memory. Old blocks with high counts may
//! stay for ever in both.

use super::frequency::FrequencyLists;
use super::ghosts::Ghosts;
use super::{Access, BlockTable, Policy, Slot};

/// AccessCounts of absent blocks in a live cache, in multiples of the capacity.
pub(crate) const COUNTS_PER_SLOT: usize = 4;

/// LFU whose counts survive eviction.
///
/// Memory is proportional to the blocks ever looked up, or to the capacity if
/// [bounded](Lfu::bounded).
///
/// ```
/// use terrace_cache::policy::{Access, HashedTable, Lfu, Policy, Slot};
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
pub struct Lfu<T: BlockTable> {
    slots: FrequencyLists,
    blocks: Vec<u64>,
    counts: AccessCounts<T>,
}

#[derive(Clone, Debug)]
enum AccessCounts<T: BlockTable> {
    /// All blocks; entries of resident ones are stale.
    All(T),
    /// The last used ones, `per_slot` of them per slot.
    Latest { counts: Ghosts<T, 1>, per_slot: usize, max: usize },
}

impl<T: BlockTable> AccessCounts<T> {
    /// Takes a block's count, or only reads it if counts are unbounded.
    fn take(&mut self, block: u64) -> Option<u32> {
        match self {
            AccessCounts::All(counts) => counts.get(block),
            AccessCounts::Latest { counts, .. } => counts.take(block).map(|(_, count)| count),
        }
    }

    fn keep(&mut self, block: u64, count: u32) {
        let count = count.min(u32::MAX - 1);
        match self {
            AccessCounts::All(counts) => counts.set(block, count),
            AccessCounts::Latest { counts, max, .. } => {
                // The new name of a renamed block may have a count.
                counts.take(block);
                counts.push_front(0, block, count);
                while counts.len(0) > *max {
                    counts.drop_back(0);
                }
            }
        }
    }

    fn resize(&mut self, capacity: usize) {
        if let AccessCounts::Latest { counts, per_slot, max } = self {
            *max = capacity * *per_slot;
            while counts.len(0) > *max {
                counts.drop_back(0);
            }
        }
    }
}

impl<T: BlockTable> Lfu<T> {
    /// For `capacity` blocks.
    pub fn new(capacity: usize) -> Self {
        Lfu {
            slots: FrequencyLists::new(capacity),
            blocks: vec![0; capacity],
            counts: AccessCounts::All(T::default()),
        }
    }

    /// For `capacity` blocks, with the counts of at most `per_slot` absent blocks per slot.
    pub fn bounded(capacity: usize, per_slot: usize) -> Self {
        let counts = AccessCounts::Latest { counts: Ghosts::new(), per_slot, max: capacity * per_slot };
        Lfu { counts, ..Lfu::new(capacity) }
    }
}

impl<T: BlockTable> Policy for Lfu<T> {
    fn hit(&mut self, slot: Slot, _: Access) {
        self.slots.increment(slot.0);
    }

    fn miss(&mut self, access: Access) {
        let count = self.counts.take(access.block).unwrap_or(0);
        self.counts.keep(access.block, count.saturating_add(1));
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
        self.slots.insert(slot.0, self.counts.take(access.block).unwrap_or(1));
    }

    fn remove(&mut self, slot: Slot) {
        self.counts.keep(self.blocks[slot.index()], self.slots.frequency(slot.0));
        self.slots.remove(slot.0);
    }

    fn renamed(&mut self, slot: Slot, access: Access) {
        self.blocks[slot.index()] = access.block;
    }

    fn moved(&mut self, from: Slot, to: Slot, _: Access) {
        self.blocks[to.index()] = self.blocks[from.index()];
        self.slots.substitute(from.0, to.0);
    }

    fn resize(&mut self, capacity: usize) {
        self.slots.grow(capacity);
        self.blocks.resize(capacity.max(self.blocks.len()), 0);
        self.counts.resize(capacity);
    }
}

/// LFU whose counts start at one on admission and end with eviction.
///
/// ```
/// use terrace_cache::policy::{Access, LfuInCache, Policy, Slot};
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

    fn moved(&mut self, from: Slot, to: Slot, _: Access) {
        self.slots.substitute(from.0, to.0);
    }

    fn resize(&mut self, capacity: usize) {
        self.slots.grow(capacity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::HashedTable;

    fn look_up(lfu: &mut Lfu<HashedTable>, block: u64) {
        lfu.miss(Access::read(block));
        if let Some(slot) = lfu.victim(Access::read(block)) {
            lfu.insert(Access::read(block), slot);
        }
    }

    #[test]
    fn a_bounded_one_forgets_who_was_away_longest_and_no_other() {
        let mut lfu = Lfu::<HashedTable>::bounded(2, 4);
        for (block, slot) in [(0, Slot(0)), (1, Slot(1))] {
            lfu.miss(Access::read(block));
            lfu.insert(Access::read(block), slot);
        }
        (0..100).for_each(|_| lfu.hit(Slot(0), Access::read(0)));
        let kept = |lfu: &Lfu<HashedTable>| match &lfu.counts {
            AccessCounts::Latest { counts, .. } => counts.len(0),
            AccessCounts::All(_) => 0,
        };
        for block in 2..10_000 {
            look_up(&mut lfu, block);
            assert!(kept(&lfu) <= 8, "{block}");
        }
        // AccessCounts of recent blocks continue, others start anew.
        assert_eq!(lfu.counts.take(9_998), Some(1));
        assert_eq!(lfu.counts.take(2), None);
        // A block renamed to a counted one has one count.
        lfu.renamed(Slot(0), Access::read(9_997));
        lfu.remove(Slot(0));
        let before = kept(&lfu);
        assert!(lfu.counts.take(9_997).is_some() && lfu.counts.take(9_997).is_none());
        assert_eq!(kept(&lfu), before - 1);
        lfu.resize(1);
        assert!(kept(&lfu) <= 4);
    }

    #[test]
    fn a_bounded_one_with_room_is_as_the_perfect_one() {
        let (mut all, mut bounded) = (Lfu::<HashedTable>::new(4), Lfu::<HashedTable>::bounded(4, 10));
        for lfu in [&mut all, &mut bounded] {
            for slot in 0..4 {
                lfu.miss(Access::read(slot));
                lfu.insert(Access::read(slot), Slot(slot as u32));
            }
        }
        for step in 0..2000_u64 {
            let block = 4 + step * step % 31;
            let is_resident = all.blocks.iter().position(|&resident| resident == block);
            for lfu in [&mut all, &mut bounded] {
                match is_resident {
                    Some(slot) => lfu.hit(Slot(slot as u32), Access::read(block)),
                    None => look_up(lfu, block),
                }
            }
            assert_eq!(all.blocks, bounded.blocks, "step {step}");
        }
    }
}
