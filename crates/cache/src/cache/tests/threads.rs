//! Several threads: no reader sees an outdated block, or half of one.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use terrace_io::{CountedDevice, Counters};

const BLOCKS: u64 = 64;

fn versioned(version: u64) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::zeroed(BLOCK);
    for word in buffer.chunks_exact_mut(8) {
        word.copy_from_slice(&version.to_le_bytes());
    }
    buffer
}

fn versions(block: &[u8]) -> (u64, u64) {
    let words = || block.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    (words().min().unwrap(), words().max().unwrap())
}

/// Each block has one writer of rising versions; a reader knows the oldest allowed one.
fn readers_and_writers(policy: &str, mode: WriteMode, seed: u64) {
    let config = timeless(20).policy(policy).unwrap().mode(mode);
    let (cached, _) = in_memory(BLOCKS, config);
    let written: Vec<_> = (0..BLOCKS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (cached, written) = (&cached, &written);
            scope.spawn(move || {
                let mut random = Random(seed + thread);
                for version in 1..4000 {
                    let block = random.skewed(BLOCKS / 2) * 2 + thread;
                    cached.write_at(block * BLOCK as u64, &versioned(version)).unwrap();
                    written[block as usize].store(version, Ordering::SeqCst);
                    if version % 64 == 0 {
                        cached.free(block * BLOCK as u64, 4 * BLOCK as u64);
                    }
                }
            });
            scope.spawn(move || {
                let mut random = Random(seed + 10 + thread);
                for _ in 0..8000 {
                    let block = random.skewed(BLOCKS);
                    let count = (1 + random.below(3)).min(BLOCKS - block);
                    let oldest: Vec<_> = (block..block + count)
                        .map(|block| written[block as usize].load(Ordering::SeqCst))
                        .collect();
                    let bytes = read(cached, block * BLOCK as u64, count as usize * BLOCK);
                    for (bytes, oldest) in bytes.chunks(BLOCK).zip(oldest) {
                        let (first, last) = versions(bytes);
                        assert!(first >= oldest, "seed {seed}: version {first} after {oldest}");
                        assert_eq!(first, last, "seed {seed}: half of a block");
                    }
                }
            });
        }
    });
    for block in 0..BLOCKS {
        let bytes = read(&cached, block * BLOCK as u64, BLOCK);
        let version = written[block as usize].load(Ordering::SeqCst);
        assert_eq!(versions(&bytes), (version, version), "seed {seed}: block {block} at the end");
    }
}

#[test]
fn no_reader_sees_an_old_block_or_half_of_one() {
    for (seed, policy) in (1..).zip(["sieve", "lru", "fifo", "probability:0.5+lru"]) {
        readers_and_writers(policy, WriteMode::Through, seed);
        readers_and_writers(policy, WriteMode::Around, seed + 100);
    }
}

#[test]
fn a_block_that_many_miss_at_once_is_fetched_once() {
    let counters = Arc::new(Counters::default());
    let memory = Arc::new(MemoryDevice::new("slow", 1 << 20));
    let slow = Arc::new(CountedDevice::new(memory, Arc::clone(&counters)));
    let fast = Arc::new(MemoryDevice::new("fast", 0));
    let cached = Cached::open(slow, fast, timeless(256)).unwrap();
    let barrier = std::sync::Barrier::new(8);
    for block in 0..200 {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    barrier.wait();
                    read(&cached, block * BLOCK as u64, BLOCK);
                });
            }
        });
        assert_eq!(counters.counts().reads, block + 1, "block {block}");
    }
}
