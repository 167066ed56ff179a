//! A shadow cache: a policy at work on a sample of the blocks, with no bytes, to see how many misses it would have.
//!
//! A block is in the sample if a hash of its key is small, so all accesses to it are, and a cache of the same share of the
//! capacity has about the same miss ratio (Waldspurger et al., "Efficient MRC Construction with SHARDS", FAST 2015).

use crate::policy::{Access, BlockTable, Hint, Policy, Slot};

/// What a shadow has counted since it was last asked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub misses: u64,
    pub admissions: u64,
}

pub(super) struct Shadow<T> {
    policy: Box<dyn Policy>,
    slots: T,
    blocks: Vec<u64>,
    resident: usize,
    pub counts: Counts,
}

impl<T: BlockTable> Shadow<T> {
    /// `policy` is for `capacity` blocks.
    pub fn new(policy: Box<dyn Policy>, capacity: usize) -> Self {
        Shadow {
            policy,
            slots: T::default(),
            blocks: vec![0; capacity],
            resident: 0,
            counts: Counts::default(),
        }
    }

    /// A look-up of a block of the sample.
    pub fn look_up(&mut self, access: Access) {
        if let Some(slot) = self.slots.get(access.block) {
            return self.policy.hit(Slot(slot), access);
        }
        self.counts.misses += 1;
        self.policy.miss(access);
        if !self.policy.admits(access) {
            return;
        }
        let slot = if self.resident < self.blocks.len() {
            self.resident += 1;
            Slot(self.resident as u32 - 1)
        } else {
            let Some(slot) = self.policy.victim(access) else { return };
            self.slots.take(self.blocks[slot.index()]);
            slot
        };
        self.counts.admissions += 1;
        self.policy.insert(access, slot);
        self.blocks[slot.index()] = access.block;
        self.slots.set(access.block, slot.0);
    }

    pub fn hint(&mut self, hint: Hint<'_>) {
        self.policy.hint(hint);
    }
}

/// Which blocks are in the sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    hash_max: u64,
    /// The capacity of shadows, in blocks.
    pub capacity: usize,
}

impl Sample {
    /// A sample for shadows of at most `blocks_max` blocks of a cache of `capacity`.
    pub fn new(capacity: usize, blocks_max: usize) -> Sample {
        if capacity <= blocks_max {
            return Sample { hash_max: u64::MAX, capacity };
        }
        let share = blocks_max as f64 / capacity as f64;
        Sample { hash_max: (share * u64::MAX as f64) as u64, capacity: blocks_max }
    }

    pub fn has(self, block: u64) -> bool {
        // The finaliser of SplitMix64, from another start than the sketch's.
        let mut hash = block.wrapping_add(0x3C6E_F372_FE94_F82B);
        hash = (hash ^ hash >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        hash = (hash ^ hash >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        hash ^ hash >> 31 <= self.hash_max
    }
}

#[cfg(test)]
mod tests {
    use super::{Sample, Shadow};
    use crate::policy::conformance::{Cache, Random};
    use crate::policy::{Access, HashedTable, Lru};

    #[test]
    fn a_shadow_misses_about_as_often_as_the_cache() {
        const CAPACITY: usize = 20_000;
        let sample = Sample::new(CAPACITY, 2000);
        let mut shadow = Shadow::<HashedTable>::new(Box::new(Lru::new(sample.capacity)), sample.capacity);
        let mut cache = Cache::new(Lru::new(CAPACITY), CAPACITY);
        let (mut random, mut sampled) = (Random(3), 0);
        for _ in 0..400_000 {
            let access = Access::read(random.skewed(100_000));
            cache.access(access);
            if sample.has(access.block) {
                sampled += 1;
                shadow.look_up(access);
            }
        }
        let (shadow, cache) =
            (shadow.counts.misses as f64 / f64::from(sampled), cache.misses as f64 / 400_000.0);
        assert!((36_000..44_000).contains(&sampled), "{sampled}");
        assert!((shadow - cache).abs() < 0.02, "shadow {shadow}, cache {cache}");
    }
}
