//! Samples of blocks, for shadow caches.
//!
//! A block is sampled if its key's hash is small, so all its accesses are. A cache scaled by the
//! same factor has about the same miss ratio (Waldspurger et al., "Efficient MRC Construction with
//! SHARDS", FAST 2015).

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    hash_max: u64,
    /// The capacity of shadows, in blocks.
    pub capacity: usize,
}

impl Sample {
    /// For shadows of at most `blocks_max` blocks of a cache of `capacity`.
    pub fn new(capacity: usize, blocks_max: usize) -> Sample {
        if capacity <= blocks_max {
            return Sample { hash_max: u64::MAX, capacity };
        }
        let share = blocks_max as f64 / capacity as f64;
        Sample { hash_max: (share * u64::MAX as f64) as u64, capacity: blocks_max }
    }

    pub fn has(self, block: u64) -> bool {
        // The finaliser of SplitMix64, with another start than the sketch's.
        let mut hash = block.wrapping_add(0x3C6E_F372_FE94_F82B);
        hash = (hash ^ hash >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        hash = (hash ^ hash >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        hash ^ hash >> 31 <= self.hash_max
    }
}
