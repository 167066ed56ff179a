//! Runs over a block cache on the same disk.
//!
//! A crash cuts off its calls and drops its unsynced sectors too. Results must equal those without
//! the cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use terrace_cache::{CacheConfig, Cached, Start};
use terrace_io::{AlignedBuffer, BlockDevice, Clock, Directory, OpenMode, SimulatedDisk};

use super::cycle::{Plan, Tally};
use super::open;
use super::raw::Raw;
use super::tests::{SIZES, live_caught, seeds};
use crate::error::{Error, Result};
use crate::store::files::Files;
use crate::store::mapping_word::BLOCK_BYTES;

/// Blocks of the cache, fewer than the page file has, so that blocks are evicted.
const BLOCKS: u32 = 48;
/// Bytes of the page file per region mark, few, so that a power cut leaves some blocks warm.
const REGION_BYTES: u64 = 16 << 10;

/// Creates the files of a cache on a new disk.
pub(super) fn create(disk: &SimulatedDisk) {
    for name in ["cache", "guard"] {
        disk.open(name, OpenMode::CreateNew).expect("a new disk is empty");
    }
    disk.sync().expect("a new disk works");
}

/// Opens the files with a cache, like a database. In every other run the cache knows `power_cycle`.
pub(super) fn open_cached(disk: &SimulatedDisk, seed: u64, power_cycle: u64) -> Result<Files> {
    let failed = |source| Error::io("open", "the disk", None, source);
    let file = |name| disk.open(name, OpenMode::Write).map_err(failed);
    let (files, fast, guard) = (open(disk).map_err(failed)?, file("cache")?, file("guard")?);
    let policies = ["sieve", "lru", "s3-fifo", "probability:0.5@writes+fifo"];
    let superblock = crate::maintenance::inspect(&files)?;
    let power_cycle = (seed / 4).is_multiple_of(2).then(|| u128::from(power_cycle).to_le_bytes());
    let config = CacheConfig {
        progress: superblock.sequence,
        power_cycle,
        region_bytes: REGION_BYTES,
        verify_hits: false,
        policy: policies[seed as usize % policies.len()].parse().expect("a policy's name"),
        ..CacheConfig::new(BLOCKS).block_bytes(BLOCK_BYTES)
    };
    let config = config.identity([7; 16]).guard(guard).clock(Arc::new(Hasty::default()));
    let cached = Cached::open(Arc::clone(&files.pages) as Arc<dyn BlockDevice>, fast, config);
    let cached = cached.map_err(|error| failed(std::io::Error::other(error)))?;
    if let Start::Cold(reason) = cached.start() {
        // No file is restored from a copy here: a crash leaves a cache that fits page file and
        // guard.
        assert!(!reason.contains("as it was left"), "{reason}");
    }
    Ok(files.with_cache(Arc::new(cached)))
}

/// A clock that advances a second per reading, so that marks are removed every few syncs.
#[derive(Debug, Default)]
struct Hasty(AtomicU64);

impl Clock for Hasty {
    fn now(&self) -> Duration {
        Duration::from_secs(self.0.fetch_add(1, Relaxed))
    }

    fn sleep_until(&self, deadline: Duration) {
        self.0.fetch_max(deadline.as_secs(), Relaxed);
    }
}

#[test]
fn nothing_is_lost_over_a_cache() {
    let mut tally = Tally::default();
    let seeds = seeds(100);
    for seed in seeds.clone() {
        match live_caught(Plan::cached(seed)) {
            Ok(more) => tally += more,
            Err(what) => panic!("TERRACE_CRASH_SEED={seed} replays this: {what}"),
        }
    }
    println!("{tally:?}");
    let is_short = seeds.end - seeds.start < 100;
    assert!(is_short || (tally.cache_hits > 1000 && tally.relocated > 50 && tally.kept > 50), "{tally:?}");
}

/// Share of cached blocks warm after a power cut, for a page file only read during `rounds` of
/// maintenance.
fn warm_after(rounds: u32) -> f64 {
    let disk = SimulatedDisk::new(5);
    super::create(&disk, &SIZES);
    create(&disk);
    let files = open_cached(&disk, 0, 1).expect("a new disk works");
    let pool = crate::recovery::recover(&files, &SIZES.options(), &Raw).expect("it is new").maintenance;
    let cache = pool.cache.as_ref().expect("the files have a cache");
    let mut buffer = AlignedBuffer::zeroed(BLOCK_BYTES);
    for number in 0..(cache.len() / BLOCK_BYTES as u64).min(u64::from(BLOCKS)) {
        cache.read_at(number * BLOCK_BYTES as u64, &mut buffer).expect("a new disk works");
    }
    let resident = cache.stats().resident_blocks();
    for _ in 0..rounds {
        pool.round(false).expect("a new disk works");
    }
    drop(pool);
    let files = open_cached(&disk.survivor(1), 0, 2).expect("it was only read");
    match files.cache.as_ref().map(|cache| cache.start()) {
        Some(Start::Warm { kept, .. }) => kept as f64 / resident as f64,
        other => panic!("the cache begins with {other:?}"),
    }
}

#[test]
fn maintenance_keeps_a_cache_warm_that_is_only_read() {
    let (left_alone, looked_after) = (warm_after(0), warm_after(20));
    assert!(left_alone < 0.5 && looked_after == 1.0, "{left_alone} and {looked_after}");
}
