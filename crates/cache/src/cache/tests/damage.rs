//! Bytes of the fast device change while the cache runs; the slow device serves them.

use super::*;
use crate::planted::{CacheBug, plant};
use crate::{CacheStats, Start};
use terrace_io::{CountedDevice, Counters, Read};

const BLOCKS: u64 = 16;

/// A cache over blocks filled with their number plus one.
struct Rotting {
    slow: Arc<MemoryDevice>,
    fast: Arc<MemoryDevice>,
    cached: Cached,
}

fn offset(block: u64) -> u64 {
    block * BLOCK as u64
}

fn content(block: u64) -> AlignedBuffer {
    filled(BLOCK, block as u8 + 1)
}

impl Rotting {
    fn new(verify_hits: bool) -> Self {
        Self::with(CacheConfig { verify_hits, ..timeless(64) })
    }

    fn with(config: CacheConfig) -> Self {
        let slow = Arc::new(MemoryDevice::new("slow", BLOCKS * BLOCK as u64));
        (0..BLOCKS).for_each(|block| slow.write_at(offset(block), &content(block)).unwrap());
        let fast = Arc::new(MemoryDevice::new("fast", 0));
        let cached = Cached::open(Arc::clone(&slow) as _, Arc::clone(&fast) as _, config).unwrap();
        Self { slow, fast, cached }
    }

    /// Changes a byte of every cached copy of a block filled with `byte`.
    fn rot(&self, byte: u8) {
        let mut found = 0;
        for at in (0..self.fast.len()).step_by(BLOCK) {
            let mut bytes = read(&*self.fast, at, BLOCK);
            if bytes.iter().all(|&other| other == byte) {
                bytes[BLOCK / 2] ^= 1;
                self.fast.write_at(at, &bytes).unwrap();
                found += 1;
            }
        }
        assert!(found > 0, "no block of {byte} is cached");
    }
}

fn counts(stats: &CacheStats) -> (u64, u64, u64, u64) {
    (stats.hits, stats.misses, stats.damaged, stats.fallbacks)
}

#[test]
fn a_bad_byte_in_the_cache_is_never_served() {
    let mut batched = filled(BLOCK, 0);
    for way in 0..3_u64 {
        let rotting = Rotting::new(true);
        let cached = &rotting.cached;
        read(cached, offset(3), BLOCK);
        rotting.rot(4);
        match way {
            0 => batched.copy_from_slice(&read(cached, offset(3), BLOCK)),
            // A part of it, which proves nothing about the rest.
            1 => batched.chunks_exact_mut(BLOCK / 2).for_each(|half| {
                half.copy_from_slice(&read(cached, offset(3), BLOCK / 2));
            }),
            _ => {
                let mut other = filled(BLOCK, 0);
                let mut reads = [Read::new(offset(3), &mut batched), Read::new(offset(4), &mut other)];
                cached.read_batch(&mut reads);
                assert!(reads.iter().all(|read| read.result.is_ok()));
            }
        }
        assert!(batched[..] == content(3)[..], "way {way}");
        let (_, _, damaged, fallbacks) = counts(&cached.stats());
        assert_eq!((damaged, fallbacks), (1, 1), "way {way}");
        // The slot is undamaged again.
        let hits = cached.stats().hits;
        assert!(read(cached, offset(3), BLOCK)[..] == content(3)[..]);
        assert_eq!(cached.stats().hits, hits + 1, "way {way}");
        assert_eq!(cached.stats().out_of_service, None);
    }
}

/// Twice reads four blocks with the reader's own checks, after damage to the second block.
fn read_again_twice() -> (bool, CacheStats) {
    let rotting = Rotting::new(false);
    let cached = &rotting.cached;
    let whole: Vec<u8> = (4..8).flat_map(|block| content(block).to_vec()).collect();
    let is_whole = |bytes: &[u8]| bytes == whole;
    assert!(is_whole(&read(cached, offset(4), 4 * BLOCK)));
    rotting.rot(6);
    let mut buffer = read(cached, offset(4), 4 * BLOCK);
    assert!(!is_whole(&buffer), "it is served: nobody else compares it");
    assert!(cached.read_again(offset(4), &mut buffer, is_whole).unwrap() && is_whole(&buffer));
    let buffer = read(cached, offset(4), 4 * BLOCK);
    (is_whole(&buffer), cached.stats())
}

#[test]
fn a_reader_with_checks_of_its_own_reads_past_bad_bytes_and_drops_them() {
    let (is_whole, stats) = read_again_twice();
    assert!(is_whole);
    // Only the damaged block was read from the slow device again.
    assert_eq!(counts(&stats), (4 + 3, 4 + 1, 1, 1));
}

#[test]
fn a_read_again_that_finds_nothing_wrong_in_the_cache_is_no_fallback() {
    let rotting = Rotting::new(false);
    let cached = &rotting.cached;
    read(cached, offset(2), BLOCK);
    let mut buffer = filled(BLOCK, 0xee);
    assert!(cached.read_again(offset(2), &mut buffer, |bytes| bytes[..] == content(2)[..]).unwrap());
    assert_eq!(counts(&cached.stats()), (0, 1, 0, 0));
    // Two readers saw the same damage, and the first dropped the block.
    rotting.rot(3);
    for _ in 0..2 {
        assert!(cached.read_again(offset(2), &mut buffer, |_| true).unwrap());
    }
    assert_eq!(counts(&cached.stats()), (0, 1, 1, 1));
}

#[test]
fn catches_keep_damaged() {
    plant(Some(CacheBug::KeepDamaged));
    let (is_whole, _) = read_again_twice();
    plant(None);
    assert!(!is_whole);
}

#[test]
fn damage_of_the_slow_device_is_not_laid_to_the_cache() {
    let rotting = Rotting::new(false);
    let mut buffer = read(&rotting.cached, offset(2), BLOCK);
    assert!(!rotting.cached.read_again(offset(2), &mut buffer, |_| false).unwrap());
    assert_eq!(counts(&rotting.cached.stats()), (0, 1, 0, 0));
    assert!(read(&rotting.cached, offset(2), BLOCK)[..] == content(2)[..]);
    assert_eq!(counts(&rotting.cached.stats()), (1, 1, 0, 0), "nothing was dropped");
}

#[test]
fn a_damaged_only_copy_is_damage_of_the_cache_and_is_told_as_that() {
    for verify_hits in [true, false] {
        let guard = Arc::new(MemoryDevice::new("guard", BLOCK as u64));
        let config = timeless(64).mode(WriteMode::Back).guard(guard);
        let rotting = Rotting::with(CacheConfig { verify_hits, ..config });
        let cached = &rotting.cached;
        cached.write_at(offset(5), &filled(BLOCK, 200)).unwrap();
        // The undamaged block also comes from the cache.
        let mut buffer = filled(2 * BLOCK, 0);
        assert!(
            cached.read_again(offset(5), &mut buffer, |bytes| bytes[0] == 200 && bytes[BLOCK] == 7).unwrap()
        );
        rotting.rot(200);
        let told = |outcome: std::io::Result<bool>| {
            let error = outcome.expect_err("nobody has it");
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
            let text = error.to_string();
            assert!(
                text.starts_with("memory:fast is damaged") && text.contains("only copy of block 5"),
                "{text}"
            );
            assert!(text.contains("restore a backup"), "{text}");
        };
        told(cached.read_again(offset(5), &mut buffer, |_| true));
        told(cached.drain().map(|()| true));
        if verify_hits {
            told(cached.read_at(offset(5), &mut buffer[..BLOCK]).map(|()| true));
        }
        // Other blocks are read as before.
        assert!(read(cached, offset(6), BLOCK)[..] == content(6)[..]);
        assert!(read(&*rotting.slow, offset(5), BLOCK)[..] == content(5)[..]);
    }
}

#[test]
fn the_first_hit_after_a_restart_reads_its_block_once() {
    let rotting = Rotting::new(false);
    (0..4).for_each(|block| drop(read(&rotting.cached, offset(block), BLOCK)));
    rotting.cached.close().unwrap();
    rotting.rot(1);
    drop(rotting.cached);
    let counters = Arc::new(Counters::default());
    let fast = CountedDevice::new(rotting.fast, Arc::clone(&counters));
    let config = CacheConfig { verify_hits: false, ..timeless(64) };
    let cached = Cached::open(rotting.slow, Arc::new(fast), config).unwrap();
    assert_eq!(cached.start(), Start::Warm { kept: 4, dropped: 0 });
    let reads = |block: u64, length: usize| {
        let before = counters.counts().reads;
        let bytes = read(&cached, offset(block), length);
        assert!(bytes[..] == content(block)[..length]);
        counters.counts().reads - before
    };
    assert_eq!((reads(1, BLOCK), reads(2, BLOCK / 2), reads(2, BLOCK)), (1, 1, 1));
    assert_eq!((reads(0, BLOCK), reads(0, BLOCK)), (1, 1), "it was damaged meanwhile, and is there again");
    // A block of the previous run may just be outdated, so this is no damage.
    assert_eq!(counts(&cached.stats()), (4, 1, 1, 0));
}

/// The journal of a larger cache lies where the smaller one had blocks.
#[test]
fn a_cache_made_larger_is_warm_at_the_next_opening() {
    let start_of = |bug: Option<CacheBug>| {
        let slow = Arc::new(MemoryDevice::new("slow", 64 * BLOCK as u64));
        (0..64).for_each(|block| slow.write_at(offset(block), &content(block)).unwrap());
        let fast = Arc::new(MemoryDevice::new("fast", 0));
        let mut starts = Vec::new();
        plant(bug);
        for capacity in [64, 20_000, 20_000, 20_000] {
            let config = timeless(capacity).power_cycle(Some([1; 16]));
            let cached = Cached::open(Arc::clone(&slow) as _, Arc::clone(&fast) as _, config).unwrap();
            starts.push(cached.start());
            (0..64).for_each(|block| assert!(read(&cached, offset(block), BLOCK)[..] == content(block)[..]));
            cached.close().unwrap();
        }
        plant(None);
        starts
    };
    let (new, other) = (Start::New, Start::Cold("it was made with another capacity".to_owned()));
    let warm = Start::Warm { kept: 64, dropped: 0 };
    assert_eq!(start_of(None), [new.clone(), other.clone(), warm.clone(), warm]);
    let damaged = Start::Cold("the journal is damaged".to_owned());
    assert_eq!(start_of(Some(CacheBug::KeepLeftovers)), [new, other, damaged.clone(), damaged]);
}

#[test]
fn a_cache_made_smaller_gives_its_space_back() {
    let slow = Arc::new(MemoryDevice::new("slow", 64 * BLOCK as u64));
    let fast = Arc::new(MemoryDevice::new("fast", 0));
    let open = |capacity, block_bytes| {
        let config = CacheConfig { block_bytes, ..timeless(capacity) };
        let cached = Cached::open(Arc::clone(&slow) as _, Arc::clone(&fast) as _, config).unwrap();
        let (start, bytes) = (cached.start(), fast.len());
        cached.close().unwrap();
        (start, bytes)
    };
    let other = |setting: &str| Start::Cold(format!("it was made with another {setting}"));
    let (large, small) = (open(20_000, BLOCK), open(64, BLOCK));
    assert_eq!((large.0, &small.0), (Start::New, &other("capacity")));
    assert!(small.1 < large.1 / 100, "{} of {} bytes", small.1, large.1);
    assert_eq!(open(64, BLOCK), (Start::Warm { kept: 0, dropped: 0 }, small.1));
    assert_eq!(open(64, 2 * BLOCK).0, other("size of blocks"));
}
