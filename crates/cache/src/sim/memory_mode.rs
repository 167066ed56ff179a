//! Memory mode, a baseline: DRAM as a direct-mapped cache of slower memory.
//!
//! The memory controller of Intel's Optane machines keeps it (NVCache, section 4.1.1, calls it MM;
//! claims S1, N7 and N11). There is no policy: a miss replaces the only possible slot. All lines of
//! a block behave alike, so one slot per block suffices. A block's address is its number in order
//! of appearance, as if memory was allocated at first touch; other allocation has more conflicts.
//!
//! A **conflict miss** would hit in an LRU cache of the same size, which is simulated as well (Hill
//! and Smith, "Evaluating Associativity in CPU Caches", IEEE Transactions on Computers 1989).

use std::ops::Range;

use crate::policy::Lru;

use super::cache::Cache;
use super::chunk::{Chunk, Interned};
use super::counts::Counts;
use super::lane::Body;

/// Marks an empty slot.
const EMPTY: u32 = u32::MAX;

pub(super) struct MemoryMode {
    numbers: Vec<u32>,
    is_dirty: Vec<bool>,
    counts: Counts,
    associative: Cache<Lru>,
}

impl MemoryMode {
    pub(super) fn new(capacity: usize) -> MemoryMode {
        MemoryMode {
            numbers: vec![EMPTY; capacity],
            is_dirty: vec![false; capacity],
            counts: Counts::default(),
            associative: Cache::new(Lru::new(capacity), capacity),
        }
    }

    fn request(&mut self, Interned { number, write, .. }: Interned, would_hit: bool) {
        let set = number as usize % self.numbers.len();
        let counts = &mut self.counts;
        let resident = self.numbers[set];
        if resident == number {
            counts.hits += 1;
            counts.write_hits += u64::from(write);
            self.is_dirty[set] |= write;
            return;
        }
        counts.conflict_misses += u64::from(would_hit);
        counts.write_misses += u64::from(write);
        counts.admissions += 1;
        counts.write_admissions += u64::from(write);
        counts.evictions += u64::from(resident != EMPTY);
        counts.write_backs += u64::from(self.is_dirty[set]);
        (self.numbers[set], self.is_dirty[set]) = (number, write);
    }
}

impl Body for MemoryMode {
    fn grow(&mut self, footprint: usize) {
        self.associative.grow(footprint);
    }

    fn requests(&mut self, chunk: &Chunk, range: Range<usize>) {
        self.counts.requests += range.len() as u64;
        for (index, request) in range.clone().zip(chunk.requests(range)) {
            let before = self.associative.counts().hits;
            self.associative.requests(chunk, index..index + 1);
            let would_hit = self.associative.counts().hits > before;
            self.request(request, would_hit);
        }
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn dirty(&self) -> u64 {
        self.is_dirty.iter().filter(|is_dirty| **is_dirty).count() as u64
    }
}
