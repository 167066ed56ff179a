//! Warm restarts, stepping aside, budget and resizing.

use std::time::Duration;

use super::*;
use crate::policy::Relation;
use crate::{Bypass, Start};
use terrace_io::{Clock, CountedDevice, Counters, Limits, Read, ThrottledDevice, VirtualClock};

const BLOCKS: u64 = 4000;
const CAPACITY: u32 = 1000;

fn work(cached: &Cached, random: &mut Random, steps: u64, writes: bool) -> f64 {
    let before = cached.stats();
    for step in 0..steps {
        let offset = random.skewed(random.0 % BLOCKS + 1) * BLOCK as u64;
        match writes && step % 10 == 0 {
            true => cached.write_at(offset, &filled(BLOCK, step as u8)).unwrap(),
            false => drop(read(cached, offset, BLOCK)),
        }
        if writes && step % 500 == 0 {
            cached.sync().unwrap();
        }
    }
    let after = cached.stats();
    let hits = after.hits + after.below - before.hits - before.below;
    hits as f64 / (hits + after.misses - before.misses) as f64
}

/// The hit ratio after a restart, relative to the one before.
fn warmth(is_closed: bool, writes: bool, policy: &str) -> f64 {
    let slow = Arc::new(MemoryDevice::new("slow", BLOCKS * BLOCK as u64));
    let fast = Arc::new(MemoryDevice::new("fast", 0));
    let open = || {
        let config = CacheConfig::new(CAPACITY)
            .policy(policy)
            .unwrap()
            .power_cycle(Some([3; 16]))
            .clock(Arc::new(VirtualClock::default()));
        Cached::open(Arc::clone(&slow) as _, Arc::clone(&fast) as _, config).unwrap()
    };
    let mut random = Random(9);
    let cached = open();
    work(&cached, &mut random, 20_000, writes);
    let before = work(&cached, &mut random, 10_000, writes);
    if is_closed {
        cached.close().unwrap();
    }
    // Memory is lost and the devices keep all writes, as after a kill.
    drop(cached);
    let cached = open();
    assert!(matches!(cached.start(), Start::Warm { .. }));
    let after = work(&cached, &mut random, 10_000, writes);
    println!("{policy}, closed: {is_closed}, writes: {writes}: {before:.3} and then {after:.3}");
    after / before
}

#[test]
fn a_restart_keeps_99_percent_of_the_hits_after_a_close_and_95_after_a_kill() {
    // The journal has the hits, but not W-TinyLFU's counts of blocks outside the cache.
    for (policy, least) in [("sieve", 0.99), ("w-tinylfu", 0.99)] {
        for writes in [false, true] {
            let (closed, killed) = (warmth(true, writes, policy), warmth(false, writes, policy));
            assert!(closed >= least && killed >= 0.95, "{policy}, writes {writes}: {closed} and {killed}");
        }
    }
}

/// A fast device of this latency and a slow one of 500 us, on one clock.
fn throttled(fast_us: u64) -> (Cached, Arc<VirtualClock>) {
    let clock = Arc::new(VirtualClock::default());
    let device = |us: u64| {
        let limits = Limits { latency: Duration::from_micros(us), ..Limits::default() };
        let inner = Arc::new(MemoryDevice::new("inner", BLOCKS * BLOCK as u64));
        let clock = Arc::clone(&clock) as Arc<dyn Clock>;
        Arc::new(ThrottledDevice::new(inner, limits, clock)) as Arc<dyn BlockDevice>
    };
    let config = CacheConfig::new(CAPACITY).clock(Arc::clone(&clock) as Arc<dyn Clock>);
    (Cached::open(device(500), device(fast_us), config).unwrap(), clock)
}

#[test]
fn before_a_faster_device_the_cache_steps_aside_and_says_so() {
    let (cached, clock) = throttled(1500);
    let mut random = Random(4);
    work(&cached, &mut random, 20_000, true);
    assert!(cached.stats().is_aside);
    let (began, steps) = (clock.now(), 20_000);
    work(&cached, &mut random, steps, false);
    let without = Duration::from_micros(500) * steps as u32;
    let ratio = without.as_secs_f64() / (clock.now() - began).as_secs_f64();
    assert!(ratio >= 0.97, "{ratio}");
    assert!(cached.stats().bypasses.of(Bypass::Aside) > 0);
}

/// Both devices take 1 ns per byte; verifying half a block reads the whole.
#[test]
fn that_a_part_of_a_block_is_compared_as_a_whole_does_not_make_the_cache_step_aside() {
    let clock = Arc::new(VirtualClock::default());
    let device = |bytes| {
        let limits = Limits { bytes_per_second: Some(1 << 30), ..Limits::default() };
        let clock = Arc::clone(&clock) as Arc<dyn Clock>;
        Arc::new(ThrottledDevice::new(Arc::new(MemoryDevice::new("inner", bytes)), limits, clock))
    };
    let config = CacheConfig::new(16).block_bytes(2 * BLOCK).clock(Arc::clone(&clock) as Arc<dyn Clock>);
    let cached = Cached::open(device(16 * 2 * BLOCK as u64), device(0), config).unwrap();
    let mut random = Random(4);
    for _ in 0..20_000 {
        read(&cached, random.below(32) * BLOCK as u64, BLOCK);
    }
    let stats = cached.stats();
    assert!(!stats.is_aside && stats.below < 100, "{stats:?}");
}

#[test]
fn before_a_slower_device_it_serves_what_it_has() {
    let (cached, clock) = throttled(20);
    let mut random = Random(4);
    work(&cached, &mut random, 40_000, false);
    let (began, steps) = (clock.now(), 20_000);
    let hit_ratio = work(&cached, &mut random, steps, false);
    let without = Duration::from_micros(500) * steps as u32;
    let ratio = without.as_secs_f64() / (clock.now() - began).as_secs_f64();
    // A miss costs both devices.
    let expected = 500.0 / (20.0 * hit_ratio + 520.0 * (1.0 - hit_ratio));
    assert!(ratio >= 0.95 * expected, "{ratio} of {expected}");
    assert!(!cached.stats().is_aside);
}

#[test]
fn no_more_is_written_in_a_day_than_the_budget_has() {
    let clock = Arc::new(VirtualClock::default());
    let mut config = CacheConfig::new(CAPACITY).clock(Arc::clone(&clock) as Arc<dyn Clock>);
    config.write_budget_bytes_day = Some(24 << 20);
    let (cached, _) = in_memory(BLOCKS, config);
    let mut random = Random(6);
    for step in 0..86_400 {
        clock.sleep_until(Duration::from_secs(step));
        read(&cached, random.below(BLOCKS) * BLOCK as u64, BLOCK);
    }
    let stats = cached.stats();
    assert!(stats.bypasses.of(Bypass::Budget) > 10_000, "{stats:?}");
    let written = stats.written_bytes;
    assert!((24 << 20..=26 << 20).contains(&written), "{written} bytes");
}

#[test]
fn the_capacity_changes_while_the_cache_runs() {
    let mut config = timeless(100);
    config.capacity_blocks_max = Some(400);
    for policy in ["sieve", "w-tinylfu", "obp:1+s3-fifo", "arc", "heuristicdb"] {
        let (cached, slow) = in_memory(BLOCKS, config.clone().policy(policy).unwrap());
        let mut random = Random(8);
        for capacity in [100, 400, 50, 1, 399, 7] {
            cached.resize(capacity).unwrap();
            work(&cached, &mut random, 2000, true);
            let stats = cached.stats();
            assert_eq!(stats.capacity_blocks(), u64::from(capacity));
            assert!(stats.resident_blocks() <= u64::from(capacity), "{policy}: {stats:?}");
            assert!(stats.resident_blocks() > 0, "{policy}: {stats:?}");
        }
        assert!(cached.resize(0).is_err() && cached.resize(401).is_err());
        for block in 0..BLOCKS {
            let offset = block * BLOCK as u64;
            assert!(read(&cached, offset, BLOCK)[..] == read(&*slow, offset, BLOCK)[..]);
        }
    }
}

#[test]
fn relations_are_counted_apart() {
    let relations = |block: u64| (block < 20).then_some((Relation((block / 10) as u32), block % 10));
    let (cached, _) = in_memory(BLOCKS, timeless(CAPACITY).relations(Arc::new(relations)));
    for block in [1, 1, 2, 11, 12, 30, 30, 30] {
        read(&cached, block * BLOCK as u64, BLOCK);
    }
    cached.write_at(12 * BLOCK as u64, &filled(BLOCK, 1)).unwrap();
    let counts: Vec<_> = cached
        .relation_stats()
        .iter()
        .map(|stats| (stats.relation, stats.hits, stats.misses, stats.writes, stats.admissions))
        .collect();
    let expected = [(None, 2, 1, 0, 1), (Some(Relation(0)), 1, 2, 0, 2), (Some(Relation(1)), 0, 2, 1, 2)];
    assert_eq!(counts, expected);
}

#[test]
fn a_batch_of_misses_is_one_batch_of_the_slow_device_and_one_of_hits_of_the_fast_one() {
    let clock = Arc::new(VirtualClock::default());
    let counters = [Arc::new(Counters::default()), Arc::new(Counters::default())];
    let device = |which: usize, bytes| {
        let memory = Arc::new(MemoryDevice::new("inner", bytes));
        for block in 0..bytes / BLOCK as u64 {
            memory.write_at(block * BLOCK as u64, &filled(BLOCK, block as u8)).unwrap();
        }
        let limits = Limits { latency: Duration::from_micros(500), ..Limits::default() };
        let counted = Arc::new(CountedDevice::new(memory, Arc::clone(&counters[which])));
        Arc::new(ThrottledDevice::new(counted, limits, Arc::clone(&clock) as _)) as Arc<dyn BlockDevice>
    };
    let config = CacheConfig::new(100).clock(Arc::clone(&clock) as Arc<dyn Clock>);
    let cached = Cached::open(device(0, 64 * BLOCK as u64), device(1, 0), config).unwrap();
    for (round, expected) in [(0, [33, 0]), (1, [33, 33])] {
        let opened = counters[1].counts().reads;
        let mut buffers = vec![filled(BLOCK, 0xee); 34];
        // One block twice, and one beyond the end.
        let blocks = (0..32).chain([5, 64]);
        let mut reads: Vec<_> =
            blocks.zip(&mut buffers).map(|(block, buffer)| Read::new(block * BLOCK as u64, buffer)).collect();
        let began = clock.now();
        cached.read_batch(&mut reads);
        for Read { offset, buffer, result } in &reads {
            let block = *offset / BLOCK as u64;
            assert_eq!(result.is_ok(), block < 64);
            assert!(block == 64 || buffer.iter().all(|&byte| byte == block as u8), "block {block}");
        }
        let slow = counters[0].counts().reads;
        let fast = if round == 0 { 0 } else { counters[1].counts().reads - opened };
        assert_eq!((slow, fast), (expected[0] - 1, expected[1]), "round {round}");
        assert!(clock.now() - began <= Duration::from_micros(2000), "each device is waited for once");
    }
}

#[test]
fn who_tends_often_syncs_once_in_five_seconds_and_only_if_something_happened() {
    let clock = Arc::new(VirtualClock::default());
    let counters = Arc::new(Counters::default());
    let fast = CountedDevice::new(Arc::new(MemoryDevice::new("fast", 0)), Arc::clone(&counters));
    let slow = Arc::new(MemoryDevice::new("slow", BLOCKS * BLOCK as u64));
    let config = CacheConfig::new(100).clock(Arc::clone(&clock) as Arc<dyn Clock>);
    let cached = Cached::open(slow, Arc::new(fast), config).unwrap();
    let opened = counters.counts().syncs;
    let mut syncs = Vec::new();
    for second in 1..=25 {
        clock.sleep_until(Duration::from_secs(second));
        if [2, 7].contains(&second) {
            read(&cached, second * BLOCK as u64, BLOCK);
        }
        let before = counters.counts().syncs;
        (0..100).for_each(|_| cached.maintain_if_needed());
        syncs.extend((counters.counts().syncs > before).then_some(second));
    }
    // A miss each before the first and the second time, and nothing to record afterwards.
    assert_eq!((syncs, counters.counts().syncs - opened), (vec![5, 10], 2));
}

/// Bytes written to the fast device in a run, by the device's count and the cache's.
fn written_in_a_life(mode: WriteMode) -> (u64, u64) {
    let clock = Arc::new(VirtualClock::default());
    let counters = Arc::new(Counters::default());
    let fast = CountedDevice::new(Arc::new(MemoryDevice::new("fast", 0)), Arc::clone(&counters));
    let slow = Arc::new(MemoryDevice::new("slow", 64 << 20));
    let guard = Arc::new(MemoryDevice::new("guard", BLOCK as u64));
    let mut config =
        CacheConfig::new(100).mode(mode).clock(Arc::clone(&clock) as Arc<dyn Clock>).guard(guard);
    config.region_bytes = 64 << 10;
    let cached = Cached::open(slow, Arc::new(fast), config).unwrap();
    let mut random = Random(11);
    for second in 0..500 {
        clock.sleep_until(Duration::from_secs(second));
        let offset = random.below(64 << 8) * BLOCK as u64;
        match second % 3 {
            0 => drop(read(&cached, offset, BLOCK)),
            1 => cached.write_at(offset, &filled(BLOCK, 1)).unwrap(),
            _ => cached.sync().unwrap(),
        }
    }
    cached.close().unwrap();
    (counters.counts().written_bytes, cached.stats().written_bytes)
}

#[test]
fn every_byte_written_to_the_fast_device_is_counted() {
    for mode in [WriteMode::Through, WriteMode::Around, WriteMode::Back] {
        let (written, told) = written_in_a_life(mode);
        assert_eq!(told, written, "{mode:?}");
        assert!(written > 1 << 20, "{mode:?}: {written}");
    }
}

#[test]
fn marks_of_regions_are_paid_for_out_of_the_budget() {
    let clock = Arc::new(VirtualClock::default());
    let mut config =
        CacheConfig::new(100).mode(WriteMode::Around).clock(Arc::clone(&clock) as Arc<dyn Clock>);
    (config.write_budget_bytes_day, config.region_bytes) = (Some(24 << 20), 64 << 10);
    let (cached, _) = in_memory(1 << 14, config);
    read(&cached, 0, BLOCK);
    assert_eq!(cached.stats().admissions, 1);
    (0..1000).for_each(|region| cached.write_at(region << 16, &filled(BLOCK, 1)).unwrap());
    assert!(cached.stats().written_bytes > 1000 * BLOCK as u64, "{:?}", cached.stats());
    read(&cached, BLOCK as u64, BLOCK);
    assert_eq!((cached.stats().admissions, cached.stats().bypasses.of(Bypass::Budget)), (1, 1));
}
