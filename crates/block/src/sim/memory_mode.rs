//! Memory mode, a baseline: DRAM as a direct-mapped cache of slower memory, kept by the memory controller.
//!
//! The controller of Intel's Optane machines can put DRAM in front of persistent memory so that programs see one large memory
//! (NVCache, section 4.1.1, calls it MM; claims S1, N7 and N11 compare with it). It caches lines of 64 bytes, and a line has one
//! place: its address modulo the size of the DRAM. There is no policy. A miss takes the place of what was there, for a
//! write as for a read; a line that was written is written back when it leaves.
//!
//! Requests here are for whole blocks, and block and cache are whole numbers of lines. All lines of a block then have the same
//! fate, so a place of a block's size is simulated for the 64 (of 4 KiB) there are, with the same outcome. What a
//! trace does not tell is where a block is in memory. It is taken to be where memory given out page by page at its first touch
//! would be, that is at the number the block got when it was first seen. Memory that was given out otherwise has more conflicts.
//!
//! A **conflict miss** is one whose block an LRU cache of the same size would have had (Hill and Smith, "Evaluating Associativity in
//! CPU Caches", IEEE Transactions on Computers 1989). The LRU cache is simulated beside it, so this takes a little more than both.

use std::ops::Range;

use crate::policy::Lru;

use super::cache::{Cache, Counts};
use super::chunk::{Chunk, Interned};
use super::lane::Body;

/// What is in a place: a block's number, or nothing, and whether it was written.
const EMPTY: u32 = u32::MAX;

/// DRAM that is being simulated.
pub(super) struct MemoryMode {
    numbers: Vec<u32>,
    is_dirty: Vec<bool>,
    counts: Counts,
    associative: Cache<Lru>,
}

impl MemoryMode {
    /// An empty cache of `capacity` blocks.
    pub(super) fn new(capacity: usize) -> MemoryMode {
        MemoryMode {
            numbers: vec![EMPTY; capacity],
            is_dirty: vec![false; capacity],
            counts: Counts::default(),
            associative: Cache::new(Lru::new(capacity), capacity),
        }
    }

    fn request(&mut self, Interned { number, write, .. }: Interned, would_hit: bool) {
        let place = number as usize % self.numbers.len();
        let counts = &mut self.counts;
        let resident = self.numbers[place];
        if resident == number {
            counts.hits += 1;
            counts.write_hits += u64::from(write);
            self.is_dirty[place] |= write;
            return;
        }
        counts.conflict_misses += u64::from(would_hit);
        counts.write_misses += u64::from(write);
        counts.admissions += 1;
        counts.write_admissions += u64::from(write);
        counts.evictions += u64::from(resident != EMPTY);
        counts.write_backs += u64::from(self.is_dirty[place]);
        (self.numbers[place], self.is_dirty[place]) = (number, write);
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
