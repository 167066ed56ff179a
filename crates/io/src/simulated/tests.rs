//! Charges in both kinds of time, against the profiles and their sources.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::virtual_time::VirtualTime;
use super::*;
use crate::device::throttled::Clock;

fn memory(profile: &str, workers: usize) -> (SimulatedMemory, Arc<VirtualTime>) {
    let time = Arc::new(VirtualTime::new(workers));
    let memory = SimulatedMemory::new(Profile::named(profile).unwrap(), Time::Virtual(Arc::clone(&time)));
    (memory, time)
}

/// An address far from recent ones, all over a memory.
fn scattered(turn: u64) -> u64 {
    turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20 << 8
}

/// Name, unit, nanoseconds and GB/s of reads and writes, each sequential and random, price.
type Row = (&'static str, u64, [u64; 4], [f64; 4], f64);

/// One worker's reads and writes, nanoseconds: latency, and media units at the bandwidth of the
/// table in `built_in.rs`.
#[test]
fn every_profile_charges_what_its_source_says() {
    #[rustfmt::skip]
    let rows: [Row; 8] = [
        // Unit; latency of reads (sequential, random) and writes; GB/s likewise; price.
        ("dram",          64,    [75, 80, 75, 80],                     [180.0, 180.0, 180.0, 180.0], 10.0),
        ("optane",        256,   [170, 320, 75, 80],                   [91.2, 28.8, 27.6, 6.0],      4.5),
        ("optane-2",      256,   [170, 320, 75, 80],                   [12.0, 12.0, 2.2, 2.2],       3.8),
        ("cxl-prototype", 64,    [557, 557, 557, 557],                 [9.4, 9.4, 9.4, 9.4],         10.0),
        ("cxl-2024",      64,    [250, 250, 250, 250],                 [26.0, 26.0, 26.0, 26.0],     10.0),
        ("nvme-optane",   16384, [10_000, 12_000, 10_000, 12_000],     [2.6, 2.4, 2.4, 2.3],         2.8),
        ("nvme-flash",    4096,  [20_000, 80_000, 15_000, 15_000],     [6.5, 4.0, 4.0, 0.7],         0.2),
        ("network-disk",  4096,  [500_000, 500_000, 700_000, 700_000], [0.5, 0.25, 0.5, 0.25],       2.9),
    ];
    assert!(rows.iter().map(|row| row.0).eq(Profile::names()));
    for (name, unit, latency, gb_s, price) in rows {
        let (memory, time) = memory(name, 1);
        assert_eq!(memory.profile().price_per_gb(), price);
        let mut expected = 0.0;
        for (which, (latency, gb_s)) in latency.into_iter().zip(gb_s).enumerate() {
            let direction = [Direction::Read, Direction::Write][which / 2];
            let pattern = [Pattern::Sequential, Pattern::Random][which % 2];
            for (turn, bytes) in [1u64, 64, 100, 4096, 16384].into_iter().enumerate() {
                // A separate address each, at the start of a unit.
                let address = ((which * 10 + turn) as u64 + 1) << 30;
                let bytes_moved = bytes.next_multiple_of(unit) as f64;
                // One core reads and writes less than all of them.
                let core = match (name, which) {
                    ("optane", 0 | 1) => bytes_moved * 170.0 / 640.0,
                    ("optane", _) => bytes_moved / 3.5,
                    _ => 0.0,
                };
                let cost = (latency as f64 + bytes_moved / gb_s).max(core);
                let charged = memory.begin(direction, address, bytes, pattern).finish();
                assert!(
                    (charged as f64 - cost).abs() <= 1.0,
                    "{name} {direction:?} {pattern:?} {bytes}: {charged} for {cost}"
                );
                let alone = memory.profile().time_of(direction, pattern, bytes);
                assert!((alone.as_nanos() as f64 - cost).abs() <= 1.0, "{name}: {alone:?} for {cost}");
                expected += cost;
            }
        }
        assert!((time.now(0) as f64 - expected).abs() <= 20.0, "{name}");
    }
}

#[test]
fn more_bytes_never_cost_less_and_a_byte_costs_its_unit() {
    for name in Profile::names() {
        let (memory, _) = memory(name, 1);
        let unit = memory.profile().granularity_bytes();
        for (direction, pattern) in [
            (Direction::Read, Pattern::Sequential),
            (Direction::Read, Pattern::Random),
            (Direction::Write, Pattern::Sequential),
            (Direction::Write, Pattern::Random),
        ] {
            let mut last = 0;
            for turn in 1..200u64 {
                let bytes = turn * unit / 8;
                let cost = memory.begin(direction, scattered(turn) << 12, bytes, pattern).finish();
                assert!(cost >= last, "{name} {direction:?} {pattern:?} {bytes}");
                last = cost;
            }
            let base = 1 << 60;
            let of = |address, bytes| memory.begin(direction, address, bytes, Pattern::Sequential).finish();
            assert_eq!(of(base, 1), of(base, unit));
            assert_eq!(of(base + unit - 1, 2), of(base, 2 * unit), "two units are touched");
            assert_eq!(of(base, 0), 0);
        }
    }
}

/// Drives `readers` and `writers` continuously, and returns their total bandwidths in GB/s.
fn bandwidth(profile: &str, readers: usize, writers: usize) -> (f64, f64) {
    const BYTES: u64 = 16 << 10;
    let (memory, time) = memory(profile, readers + writers);
    let mut moved = [0u64; 2];
    while time.now(time.next()) < 1_000_000 {
        let worker = time.next();
        time.enter(worker);
        let writes = worker >= readers;
        let direction = if writes { Direction::Write } else { Direction::Read };
        memory.begin(direction, 0, BYTES, Pattern::Sequential).finish();
        moved[usize::from(writes)] += BYTES;
    }
    let elapsed = time.elapsed_ns() as f64;
    (moved[0] as f64 / elapsed, moved[1] as f64 / elapsed)
}

#[test]
fn bandwidth_is_shared_and_latency_is_not() {
    // Ten lines in 170 ns are all that one core reads.
    for (readers, gb_s) in [(1, 3.76), (4, 15.05), (32, 91.2)] {
        let (all, _) = bandwidth("optane", readers, 0);
        assert!((all - gb_s).abs() < gb_s / 40.0, "{readers}: {all}");
    }
    // Single lines leave bandwidth to spare: eight workers do eight times the work of one.
    let (memory, time) = memory("cxl-prototype", 8);
    for turn in 0..8000 {
        let worker = time.next();
        time.enter(worker);
        memory.read(scattered(turn), 64, Pattern::Random);
    }
    let throughput = time.throughput(8000);
    assert!((throughput - 8.0 * 1e9 / 563.8).abs() / throughput < 0.01, "{throughput}");
}

/// NVCache, figure 2: one writer takes 72 % from eight readers, eight take 93 %; of DRAM 18 % and
/// 35 %.
#[test]
fn writers_slow_readers_down_as_measured() {
    for (profile, readers, one_writer, eight_writers) in
        [("optane", 32, 0.28, 0.07), ("optane-2", 8, 0.28, 0.07), ("dram", 8, 0.82, 0.65)]
    {
        let alone = bandwidth(profile, readers, 0).0;
        for (writers, share) in [(1, one_writer), (8, eight_writers)] {
            let left = bandwidth(profile, readers, writers).0 / alone;
            assert!((left - share).abs() < 0.03, "{profile}, {writers} writers: {left}");
        }
    }
    let by_writers = [1, 2, 4, 8].map(|writers| bandwidth("optane-2", 0, writers).1);
    // One writer has its latency each time. From two on, more writers are slower (figure 1).
    assert!(by_writers[1..].is_sorted_by(|fewer, more| fewer > more), "{by_writers:?}");
}

/// A worker that is driven late waits only for concurrent use of the channel.
#[test]
fn a_worker_uses_time_that_others_left() {
    let (memory, time) = memory("nvme-optane", 2);
    time.enter(0);
    for page in 0..10 {
        memory.read(page << 14, 16 << 10, Pattern::Random);
    }
    time.enter(1);
    let charged = memory.read(100 << 14, 16 << 10, Pattern::Random);
    // Only the bytes of the first worker's first page delay it.
    assert_eq!(charged, 2 * 6826 + 12_000 + 1);
}

#[test]
fn a_run_is_the_same_each_time() {
    let run = || {
        let (memory, time) = memory("optane", 5);
        for turn in 0..20_000 {
            let worker = time.next();
            time.enter(worker);
            time.spend(worker, 120);
            let address = scattered(turn) % (4 << 20);
            if turn % 7 == 0 {
                memory.write(address, 100, Pattern::Random);
            } else {
                memory.read(address, 64, Pattern::Random);
            }
        }
        (0..5).map(|worker| time.now(worker)).collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

#[test]
fn lines_in_the_cache_are_free_to_read_and_every_worker_has_its_own() {
    let (memory, time) = memory("optane", 2);
    let lines = memory.profile().cache_bytes() / LINE_BYTES / 4;
    let read_all = || (0..lines).map(|line| memory.read(line * 64, 64, Pattern::Random)).sum::<u64>();
    assert!(read_all() >= lines * 300);
    assert!(read_all() < lines * 10, "nearly all are in the cache");
    // Bytes across a line boundary are in both lines.
    assert_eq!(memory.read(1 << 40, 64, Pattern::Random), 328);
    assert_eq!(memory.read((1 << 40) + 32, 64, Pattern::Random), 328, "the second line is not there");
    assert_eq!(memory.read((1 << 40) + 32, 64, Pattern::Random), 0);
    // A unit with two missed lines is read once.
    assert_eq!(memory.read(2 << 40, 128, Pattern::Random), 328);
    assert!(memory.write(2 << 40, 64, Pattern::Random) > 80, "a write has to arrive");
    assert_eq!(memory.read(2 << 40, 64, Pattern::Random), 0);
    time.spend(1, time.now(0) + 1);
    time.enter(1);
    assert_eq!(memory.read(2 << 40, 64, Pattern::Random), 328);

    let uncached = Profile::named("optane").unwrap().with_cache_bytes(0);
    let memory = SimulatedMemory::new(uncached, Time::Virtual(time));
    assert_eq!([0; 3].map(|address| memory.read(address, 64, Pattern::Random)), [328; 3]);
}

#[test]
fn on_the_wall_clock_the_caller_waits() {
    let profile =
        Profile::parse("base = 'dram'\nrandom_read_ns = 3e5\nrandom_read_gb_s = 1\ncache_bytes = 0", "slow");
    let memory = SimulatedMemory::new(profile.unwrap(), Time::wall());
    let started = Instant::now();
    assert_eq!(memory.read(0, 64, Pattern::Random), 300_064);
    assert!(started.elapsed() >= Duration::from_nanos(299_900));
    // The caller's own work counts towards the charge, but no access ends early.
    let started = Instant::now();
    let charge = memory.begin(Direction::Read, 0, 64, Pattern::Random);
    std::thread::sleep(Duration::from_micros(100));
    drop(charge);
    assert!(started.elapsed() >= Duration::from_nanos(299_900));
}

#[test]
fn on_the_wall_clock_threads_share_the_bandwidth() {
    const BYTES: u64 = 1 << 20;
    let profile =
        Profile::parse("base = 'dram'\nsequential_write_gb_s = 1\nread_share_by_writers = [0.5]", "slow")
            .unwrap();
    let memory = SimulatedMemory::new(profile, Time::wall());
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                (0..5).for_each(|_| drop(memory.begin(Direction::Write, 0, BYTES, Pattern::Sequential)))
            });
        }
    });
    assert!(started.elapsed() >= Duration::from_nanos(20 * BYTES - 100), "all pass one after the other");
    // During one write, half of the read bandwidth is left.
    let alone = memory.read(0, 180 * BYTES, Pattern::Sequential);
    let write = memory.begin(Direction::Write, 0, 64, Pattern::Sequential);
    let beside = memory.read(0, 180 * BYTES, Pattern::Sequential);
    drop(write);
    assert!(beside > alone * 19 / 10, "{beside} {alone}");
    assert!(memory.read(0, 180 * BYTES, Pattern::Sequential) < alone * 11 / 10, "and nobody writes any more");
}

#[test]
fn workers_are_clocks_too() {
    let time = VirtualTime::new(2);
    time.enter(1);
    time.sleep_until(Duration::from_micros(3));
    assert_eq!(Clock::now(&time), Duration::from_micros(3));
    assert_eq!((time.now(0), time.now(1), time.next()), (0, 3000, 0));
}

#[test]
fn lines_written_back_are_charged_where_their_memory_says() {
    let (optane, time) = memory("optane", 1);
    // 1.4 ns a line, and a line that is touched in part counts.
    assert_eq!(optane.write_back(60, 8), 2);
    assert_eq!(optane.write_back(0, 64 * 1000), 1400);
    assert_eq!(optane.write_back(4096, 0), 0);
    assert_eq!(optane.fence(), 62);
    assert_eq!(time.now(0), 2 + 1400 + 62);
    for volatile in ["dram", "cxl-prototype", "cxl-2024"] {
        let (memory, time) = memory(volatile, 1);
        assert_eq!(memory.write_back(0, 1 << 20) + memory.fence() + time.now(0), 0, "{volatile}");
    }
}

#[test]
fn a_fence_waits_by_the_wall_clock_and_single_lines_do_not() {
    let slow = Profile { fence_ns: 50_000.0, ..Profile::named("optane").unwrap() };
    let memory = SimulatedMemory::new(slow, Time::wall());
    let start = Instant::now();
    assert_eq!(memory.fence(), 50_000);
    assert!(start.elapsed() >= Duration::from_micros(49));
    assert_eq!(memory.write_back(0, 64), 0);
    let start = Instant::now();
    assert_eq!(memory.write_back(0, 64 << 20), 1_468_006);
    assert!(start.elapsed() >= Duration::from_micros(1467));
}

/// 170 ns and whole units at 91.2 GB/s in sequence, 320 ns and 28.8 GB/s at random.
#[test]
fn a_look_pays_for_the_lines_that_are_not_cached() {
    let time = Arc::new(VirtualTime::new(2));
    let memory = SimulatedMemory::new(Profile::named("optane").unwrap(), Time::Virtual(Arc::clone(&time)));
    assert_eq!(memory.look(0, 64, Pattern::Random), 328);
    assert_eq!(memory.look(0, 1024, Pattern::Sequential), 272, "a core's time for the 1024 bytes");
    assert_eq!(memory.look(100, 900, Pattern::Sequential), 0);
    assert_eq!(memory.look(960, 128, Pattern::Sequential), 170 + 2, "one unit more");
    assert_eq!(memory.read(0, 1024, Pattern::Sequential), 272, "a page's copy goes past the cache");
    time.enter(1);
    assert!(memory.look(0, 64, Pattern::Random) > 0, "another worker has its own");
    time.enter(0);
    let bare = Profile::named("optane").unwrap().with_cache_bytes(0);
    let bare = SimulatedMemory::new(bare, Time::Virtual(Arc::new(VirtualTime::new(1))));
    assert_eq!((bare.look(0, 64, Pattern::Random), bare.look(0, 64, Pattern::Random)), (328, 328));
    let behind = Profile::named("optane").unwrap().with_dram_cache_bytes(1 << 20);
    let behind = SimulatedMemory::new(behind, Time::Virtual(Arc::new(VirtualTime::new(1))));
    assert!(behind.look(0, 128, Pattern::Sequential) > 0);
    assert_eq!(behind.look(0, 128, Pattern::Sequential), 0);
    let counts = behind.dram_cache().unwrap();
    assert_eq!((counts.hits, counts.misses), (0, 2), "the second look does not leave the processor");
}
