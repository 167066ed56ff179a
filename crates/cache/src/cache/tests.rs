//! Shared parts of the tests.

mod account;
mod claims;
mod crash;
mod damage;
mod faults;
mod lives;
mod model;
mod races;
mod relocate;
#[cfg(feature = "simulator")]
mod requests;
mod service;
mod sessions;
mod threads;
mod write_back;
mod write_back_threads;

use std::sync::Arc;

use super::{CacheConfig, Cached, WriteMode};
use terrace_io::{AlignedBuffer, BlockDevice, MemoryDevice, VirtualClock};

const BLOCK: usize = 4096;

/// SplitMix64, as in the simulated disk.
pub(super) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// A number below `limit`, small ones far more often.
    pub fn skewed(&mut self, limit: u64) -> u64 {
        let below = self.below(limit) + 1;
        self.below(below)
    }
}

fn filled(length: usize, byte: u8) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::zeroed(length);
    buffer.fill(byte);
    buffer
}

fn read(device: &dyn BlockDevice, offset: u64, length: usize) -> AlignedBuffer {
    let mut buffer = filled(length, 0xee);
    device.read_at(offset, &mut buffer).unwrap();
    buffer
}

/// The default configuration on a stopped clock, so that noise moves no hits.
fn timeless(capacity: u32) -> CacheConfig {
    CacheConfig::new(capacity).clock(Arc::new(VirtualClock::default()))
}

/// A cache over `blocks` blocks, all in memory.
fn in_memory(blocks: u64, config: CacheConfig) -> (Cached, Arc<MemoryDevice>) {
    let slow = Arc::new(MemoryDevice::new("slow", blocks * BLOCK as u64));
    let fast = Arc::new(MemoryDevice::new("fast", 0));
    (Cached::open(Arc::clone(&slow) as Arc<dyn BlockDevice>, fast, config).unwrap(), slow)
}
