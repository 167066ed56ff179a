//! A count-min sketch with four-bit counters and decay (Einziger, Friedman and Manes, "TinyLFU",
//! ACM Transactions on Storage 2017).
//!
//! Every block has a counter in each of four rows; its frequency is the minimum. A 64-bit word
//! holds 16 counters. Ten times as many increments as blocks halve all counters.

const ROWS: usize = 4;
pub(crate) const FREQUENCY_MAX: u8 = 15;
/// The low three bits of every counter of a word, after a shift by one.
const HALVES: u64 = 0x7777_7777_7777_7777;
/// The lowest bit of every counter of a word.
const ODD: u64 = 0x1111_1111_1111_1111;

#[derive(Clone, Debug)]
pub(crate) struct Sketch {
    words: Vec<u64>,
    increments: u64,
    increments_max: u64,
}

impl Sketch {
    /// For `capacity` blocks: eight bytes per block, rounded up to a power of two.
    pub fn new(capacity: usize) -> Sketch {
        let words = capacity.next_power_of_two().max(8);
        Sketch { words: vec![0; words], increments: 0, increments_max: 10 * capacity.max(1) as u64 }
    }

    /// Word and shift of the counter of `hash` in `row`.
    #[inline]
    fn counter(&self, hash: u64, row: usize) -> (usize, u32) {
        // Rows take different multiples of one hash and different quarters of a word, so that they
        // never share a counter.
        let mixed = hash
            .wrapping_add((hash >> 32 | 1).wrapping_mul(row as u64 + 1))
            .wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let word = (mixed >> 32) as usize & (self.words.len() - 1);
        let counter = row as u32 * 4 + (hash & 3) as u32;
        (word, 4 * counter)
    }

    #[inline]
    pub fn hash(block: u64) -> u64 {
        // The finaliser of SplitMix64.
        let mut hash = block.wrapping_add(0x9E37_79B9_7F4A_7C15);
        hash = (hash ^ hash >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        hash = (hash ^ hash >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        hash ^ hash >> 31
    }

    /// Recent count of `block`, at most 15; too low only by halving.
    #[inline]
    pub fn frequency(&self, block: u64) -> u8 {
        let hash = Self::hash(block);
        let count = |row| {
            let (word, shift) = self.counter(hash, row);
            (self.words[word] >> shift & u64::from(FREQUENCY_MAX)) as u8
        };
        (0..ROWS).map(count).min().unwrap_or(0)
    }

    #[inline]
    pub fn increment(&mut self, block: u64) {
        let hash = Self::hash(block);
        let mut counted = false;
        for row in 0..ROWS {
            let (word, shift) = self.counter(hash, row);
            if self.words[word] >> shift & u64::from(FREQUENCY_MAX) < u64::from(FREQUENCY_MAX) {
                self.words[word] += 1 << shift;
                counted = true;
            }
        }
        self.increments += u64::from(counted);
        if self.increments >= self.increments_max {
            self.halve();
        }
    }

    fn halve(&mut self) {
        let mut odd = 0;
        for word in &mut self.words {
            odd += u64::from((*word & ODD).count_ones());
            *word = *word >> 1 & HALVES;
        }
        // Rounding down loses a quarter of the odd counters in each of four rows.
        self.increments = (self.increments - odd / ROWS as u64) / 2;
    }
}

#[cfg(test)]
mod tests {
    use super::{FREQUENCY_MAX, Sketch};

    #[test]
    fn counts_are_never_too_low_and_fade() {
        let mut sketch = Sketch::new(1000);
        for block in 0..100 {
            for _ in 0..=block / 10 {
                sketch.increment(block);
            }
        }
        assert!((0..100).all(|block| sketch.frequency(block) as u64 > block / 10));
        let exact = (0..100).filter(|&block| sketch.frequency(block) as u64 == 1 + block / 10).count();
        assert!(exact > 90, "{exact} of 100 exact");
        for _ in 0..20 {
            sketch.increment(7);
        }
        assert_eq!(sketch.frequency(7), FREQUENCY_MAX);
        for block in 1000..12_000 {
            sketch.increment(block);
        }
        assert!(sketch.frequency(7) < FREQUENCY_MAX);
    }
}
