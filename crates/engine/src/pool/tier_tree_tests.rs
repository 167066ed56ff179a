//! Databases over a middle tier: promotion of tree pages, virtual time, and threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace_io::{MemoryDirectory, VirtualTime};

use super::Mode;
use super::tier_tests::{Whereabouts, policy, whereabouts};
use super::view::View;
use crate::ids::PageId;
use crate::migration::Choice;
use crate::store::page;
use crate::{Db, Durability, MiddleStats, RecordCache, Time};

/// A table over a simulated Optane middle tier, without a record cache.
fn rows(dram: u64, middle: u64, choice: Choice, time: Time) -> (Db, crate::Table) {
    let directory = Arc::new(MemoryDirectory::new());
    let builder = Db::builder().directory(directory).dram(dram).page_size(4096).mode(Mode::Inline).seed(3);
    let middle = format!("simulated:optane,{middle}B").parse().unwrap();
    let builder = builder.middle(middle).policy(choice).simulated_time(time);
    let db = builder.record_cache(RecordCache::Off).durability(Durability::Buffered).open("").unwrap();
    let table = db.create_table("t").unwrap();
    (db, table)
}

/// Spitfire, section 3.5: n reads promote with probability 1 - (1 - D_r)^n.
#[test]
fn reads_bring_pages_of_a_tree_to_dram_with_the_probability_of_the_paper() {
    const ROWS: u32 = 1500;
    for (dr, reads) in [(0.0, 3), (0.02, 1), (0.02, 20), (0.1, 5), (0.3, 2), (0.5, 4), (1.0, 1)] {
        let time = Time::Virtual(Arc::new(VirtualTime::new(1)));
        let (db, table) = rows(16 << 20, 16 << 20, "0,0,1,1".parse().unwrap(), time);
        (0..ROWS).for_each(|key| table.put(key.to_be_bytes(), [7; 2500]).unwrap());
        let pool = &db.shared.maintenance;
        let leaves_in = |wanted: Whereabouts| {
            let is_leaf = |id: &PageId| {
                let location = pool.table.entry(*id).unwrap().location();
                let Some((frame, below)) = pool.frames.whole_copy(location) else { return false };
                let view = pool.frames.view(*id, below.unwrap_or(frame));
                view.u8(page::LEVEL_AT) == 0
            };
            pool.page_ids().filter(is_leaf).filter(|&id| whereabouts(pool, id) == wanted).count() as f64
        };
        let all = leaves_in(Whereabouts::Middle);
        assert!(
            all >= f64::from(ROWS) * 0.9
                && leaves_in(Whereabouts::Both) + leaves_in(Whereabouts::Dram) == 0.0,
            "{all} leaves"
        );
        db.set_policy(policy(dr, 0.0, 1.0, 1.0));
        for _ in 0..reads {
            (0..ROWS).for_each(|key| assert!(table.get(key.to_be_bytes()).unwrap().is_some()));
        }
        let expected = 1.0 - (1.0 - dr).powi(reads);
        let share = (leaves_in(Whereabouts::Both) + leaves_in(Whereabouts::Dram)) / all;
        let slack = 5.0 * (expected * (1.0 - expected) / all).sqrt() + 0.01;
        assert!((share - expected).abs() <= slack, "{share} for {expected}: D_r {dr}, {reads} reads");
        assert_eq!(pool.audit(), [""; 0]);
    }
}

/// Each run of a program gives the same figures.
#[test]
fn simulated_time_is_the_same_each_time_and_counts_what_is_in_the_middle() {
    fn run(choice: Choice) -> (u64, MiddleStats) {
        let time = Arc::new(VirtualTime::new(1));
        let (db, table) = rows(2 << 20, 8 << 20, choice, Time::Virtual(Arc::clone(&time)));
        (0..1000u32).for_each(|key| table.put(key.to_be_bytes(), [7; 1000]).unwrap());
        let loaded = time.elapsed_ns();
        let mut random = SmallRng::seed_from_u64(1);
        (0..5000).for_each(|_| _ = table.get(random.random_range(0..1000u32).to_be_bytes()).unwrap());
        (time.elapsed_ns() - loaded, db.stats().middle.unwrap())
    }
    // Periodic work is counted per thread, so each run has a thread of its own.
    let run = |policy: &'static str| {
        std::thread::spawn(move || run(policy.parse().unwrap())).join().expect("the run panics by itself")
    };
    let (in_place, stats) = run("0,0,1,1");
    assert_eq!((in_place, &stats), (run("0,0,1,1").0, &run("0,0,1,1").1));
    assert!(stats.reads_in_place > 5000 && in_place > 5000 * 320, "{in_place} ns, {stats:?}");
    assert_eq!(run("0,0,0,0").0, 0, "nothing is ever in the middle tier");
}

/// A run of adjacent lines takes 320 ns and its units of 256 bytes 9 ns each; those of a copy take
/// 170 ns and 3 ns each, or the core 68 ns each.
#[test]
fn counted_lines_are_charged_as_they_are_touched() {
    #[derive(Clone, Copy)]
    struct Set {
        rows: u32,
        counts: bool,
        cache_bytes: u64,
    }
    /// Nanoseconds of a read of the bytes of `range`.
    fn run(set: &Set, range: std::ops::Range<usize>) -> u64 {
        const READS: u32 = 2000;
        let time = Arc::new(VirtualTime::new(1));
        let profile = crate::Profile::named("optane").unwrap().with_cache_bytes(set.cache_bytes);
        let kind = crate::MiddleKind::Simulated(profile.with_counted_lines(set.counts));
        let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(8 << 20);
        let builder = builder.page_size(16 << 10).mode(Mode::Inline).seed(3).record_cache(RecordCache::Off);
        let builder = builder.middle(crate::Middle::new(kind, 32 << 20)).policy("0,0,1,1".parse().unwrap());
        let db = builder.simulated_time(Time::Virtual(Arc::clone(&time))).open("").unwrap();
        let table = db.create_table("t").unwrap();
        (0..set.rows).for_each(|key| table.put(key.to_be_bytes(), [7; 1000]).unwrap());
        let (before, mut part) = (time.elapsed_ns(), Vec::new());
        for turn in 0..READS {
            let key = (turn.wrapping_mul(2_654_435_761) % set.rows).to_be_bytes();
            assert!(
                table.get_range_into(key, range.clone(), &mut part).unwrap() && part == vec![7; range.len()]
            );
        }
        (time.elapsed_ns() - before) / u64::from(READS)
    }
    // One page. Four lines wherever they are, and a copy.
    let average = Set { rows: 10, counts: false, cache_bytes: 0 };
    assert!((4 * 328 + 272..4 * 329 + 345).contains(&run(&average, 0..1000)));
    // Header and slots, the entry that has what all suffixes share, and the key's own; the copy.
    let bare = Set { counts: true, ..average };
    let (whole, field) = (run(&bare, 0..1000), run(&bare, 500..600));
    assert!((2 * 328 + 272..3 * 330 + 345).contains(&whole), "{whole}");
    assert!((whole - 180..whole - 80).contains(&field), "{field} of {whole}");
    // The first bytes are mostly in the line of the entry.
    assert!(run(&bare, 0..8) < field - 50);
    assert!(run(&Set { cache_bytes: 64 << 10, ..bare }, 0..1000) < 20, "all of it is cached");
    // A root and its leaves.
    let tree = Set { rows: 5000, ..bare };
    let cached = Set { cache_bytes: 64 << 10, ..tree };
    let (bare, few) = (run(&tree, 500..600), run(&cached, 500..600));
    assert!((4 * 328..9 * 340).contains(&bare), "{bare}");
    assert!(few + 328 < bare && few > 2 * 328, "the root is cached, its leaves are not: {few} of {bare}");
    assert_eq!(few, run(&cached, 500..600));
}

#[test]
fn threads_read_and_change_over_tiers_of_fewer_frames_than_there_are_threads() {
    for (frames, text) in [(1u64, "1,1,1,1"), (3, "0.5,0.5,0.5,0.5"), (3, "0,0,1,1"), (64, "0.3,0.3,0.7,0.7")]
    {
        let directory = Arc::new(MemoryDirectory::new());
        let builder = Db::builder().directory(directory).dram(1 << 20).page_size(4096);
        let middle = format!("simulated:dram,{}B", frames * 4096).parse().unwrap();
        let builder = builder.middle(middle).policy(text.parse().unwrap()).durability(Durability::Buffered);
        let db = builder.record_cache(RecordCache::Off).open("").unwrap();
        let table = db.create_table("t").unwrap();
        let counters: Vec<AtomicU64> = (0..600).map(|_| AtomicU64::new(0)).collect();
        (0..600u64).for_each(|key| table.put(key.to_be_bytes(), [0; 1500]).unwrap());
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (table, counters) = (&table, &counters);
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(thread);
                    for _ in 0..1500 {
                        // Each thread changes its own keys and reads all.
                        let key = random.random_range(0..100) * 6 + thread;
                        let count = counters[key as usize].fetch_add(1, Relaxed) + 1;
                        let mut value = vec![count as u8; 1500];
                        value[..8].copy_from_slice(&count.to_le_bytes());
                        table.put(key.to_be_bytes(), value).unwrap();
                        let other = random.random_range(0..600u64);
                        let value = table.get(other.to_be_bytes()).unwrap().unwrap();
                        assert!(value[8..].iter().all(|byte| *byte == value[0]), "{other}: torn");
                    }
                });
            }
        });
        for (key, counter) in (0u64..).zip(&counters) {
            let value = table.get(key.to_be_bytes()).unwrap().unwrap();
            assert_eq!(
                u64::from_le_bytes(value[..8].try_into().unwrap()),
                counter.load(Relaxed),
                "{text}: {key}"
            );
        }
        assert!(db.verify().unwrap().is_ok());
        db.checkpoint().unwrap();
        assert_eq!(db.shared.maintenance.audit(), [""; 0], "{text}");
    }
}
