//! Cached records beside everything that changes entries, in one thread and in several.
//!
//! Updates and deletions, splits and merges, the cleaner, compaction, dropped tables, budgets,
//! snapshots and transactions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace::{Builder, CachedRecords, Db, Durability, MemoryDirectory, Mode, RecordCache, Snapshot, Table};

use super::common;

const DRAM: u64 = 2 << 20;

fn open(mode: Mode, records: RecordCache) -> Db {
    builder(mode).record_cache(records).open("").unwrap()
}

fn builder(mode: Mode) -> Builder {
    let builder = common::builder().directory(Arc::new(MemoryDirectory::new())).dram(DRAM).dram_max(2 * DRAM);
    builder.log_max(1 << 20).mode(mode).seed(1).durability(Durability::Buffered)
}

/// Most of the data is in a middle tier, where pages move, change in place, or do both.
fn open_over_a_middle_tier(mode: Mode, policy: &str) -> Db {
    let middle = "simulated:dram,6MiB".parse().unwrap();
    let builder = builder(mode).middle(middle).policy(policy.parse().unwrap());
    builder.record_cache(RecordCache::Percent(60)).open("").unwrap()
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// Values from empty to more than a page, mostly short.
fn value(number: u32, round: u32) -> Vec<u8> {
    let length = match number % 50 {
        0 => 5000,
        1 => 1500,
        short => short as usize * 16,
    };
    let own = u64::from(number) << 32 | u64::from(round);
    own.to_le_bytes().into_iter().cycle().take(length + 8).collect()
}

/// Mostly few keys, spread over the table.
fn pick(random: &mut SmallRng, keys: u32) -> u32 {
    let hot = random.random_range(0..10) < 7;
    let number = if hot { random.random_range(0..200) * (keys / 200) } else { random.random_range(0..keys) };
    number.min(keys - 1)
}

type Model = BTreeMap<u32, Vec<u8>>;

fn read(db: &Db, table: &Table, model: &Model, number: u32, random: &mut SmallRng) {
    let expected = model.get(&number);
    let found = match random.random_range(0..6) {
        0 => db.snapshot().get(table, key(number)).unwrap(),
        1 => db.update(|transaction| transaction.get(table, key(number))).unwrap(),
        2 => match table.get_async(key(number)).now() {
            Ok(found) => found.unwrap(),
            Err(_) => unreachable!("inline the caller reads for itself"),
        },
        3 => {
            let others = [number, number + 1, number / 2, number];
            let found = table.get_many(others.map(key)).unwrap();
            for (number, found) in others.into_iter().zip(&found) {
                assert_eq!(found.as_ref(), model.get(&number), "key {number}");
            }
            found.into_iter().next().unwrap()
        }
        _ => table.get(key(number)).unwrap(),
    };
    assert_eq!(found.as_ref(), expected, "key {number}");
}

/// Makes another table `u`, whose pages may be those of a table that was dropped.
fn rewrite_another_table(db: &Db) {
    db.drop_table("u").ok();
    let other = db.create_table("u").unwrap();
    (0..500).for_each(|number| other.put(key(number), value(number, 1 << 30)).unwrap());
    (0..500).for_each(|number| {
        assert_eq!(other.get(key(number)).unwrap(), Some(value(number, 1 << 30)));
    });
}

/// Compares a snapshot, unless it has become too old, with its model.
fn check_snapshot(snapshot: &Snapshot, model: &Model, table: &Table, keys: u32) {
    for number in (0..keys).step_by(61) {
        match snapshot.get(table, key(number)) {
            Ok(found) => assert_eq!(found.as_ref(), model.get(&number), "key {number}"),
            Err(terrace::Error::SnapshotTooOld) => break,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn reads_are_what_a_map_says_whatever_happens_to_the_pages() {
    for seed in 0..2 {
        let records = do_all_beside(open(Mode::Inline, RecordCache::Percent(60)), seed);
        assert!(records.hits > 1000, "seed {seed}: {records:?}");
    }
}

#[test]
fn reads_over_a_middle_tier_are_what_a_map_says_too() {
    for (seed, policy) in [(0, "0,0,1,1"), (1, ".05,.05,.7,1"), (2, "1,1,1,1"), (3, ".5,0,.5,.5")] {
        let records = do_all_beside(open_over_a_middle_tier(Mode::Inline, policy), seed);
        // A mapped page has one copy, which an eager policy promotes at its first access.
        let is_mapped = std::env::var("TERRACE_BACKEND").as_deref() == Ok("mapped");
        let hits = if is_mapped && policy == "1,1,1,1" { records.hits } else { records.middle_hits };
        assert!(hits > 500, "seed {seed}, {policy}: {records:?}");
    }
}

/// Reads and changes a table, and everything around it, beside cached records.
fn do_all_beside(db: Db, seed: u64) -> CachedRecords {
    const KEYS: u32 = 12_000;
    let mut random = SmallRng::seed_from_u64(seed);
    let mut model = Model::new();
    let mut table = db.create_table("t").unwrap();
    for number in 0..KEYS {
        table.put(key(number), value(number, 0)).unwrap();
        model.insert(number, value(number, 0));
    }
    let mut kept = None;
    for step in 1..=15_000u32 {
        let number = pick(&mut random, KEYS + 100);
        match random.random_range(0..100) {
            0..4 => {
                table.put(key(number), value(number, step)).unwrap();
                model.insert(number, value(number, step));
            }
            4..6 => {
                table.delete(key(number)).unwrap();
                model.remove(&number);
            }
            _ => read(&db, &table, &model, number, &mut random),
        }
        match step % 5000 {
            1000 => {
                // Leaves are merged, and their pages reused.
                let from = random.random_range(0..KEYS);
                for number in from..from + 600 {
                    table.delete(key(number)).unwrap();
                    model.remove(&number);
                }
            }
            1500 => kept = Some((db.snapshot(), model.clone())),
            2000 => rewrite_another_table(&db),
            2500 => {
                if let Some((snapshot, model)) = kept.take() {
                    check_snapshot(&snapshot, &model, &table, KEYS);
                }
            }
            3000 => {
                let rows = table.range::<&[u8]>(..).count();
                assert_eq!(rows, model.len(), "seed {seed}, step {step}");
            }
            3500 => db.set_dram(if step > 10_000 { DRAM * 2 } else { DRAM * 3 / 4 }).unwrap(),
            4000 => {
                db.compact().unwrap();
            }
            4500 => db.set_dram(DRAM).unwrap(),
            0 => {
                db.drop_table("t").unwrap();
                table = db.create_table("t").unwrap();
                for (number, value) in &model {
                    table.put(key(*number), value).unwrap();
                }
            }
            _ => {}
        }
    }
    assert!(db.verify().unwrap().is_ok(), "seed {seed}");
    let records = db.stats().records;
    assert!(records.stale > 50 && records.evicted > 100, "seed {seed}: {records:?}");
    records
}

#[test]
fn nothing_is_taken_while_everything_fits_and_most_is_taken_where_it_helps() {
    let db = open(Mode::Inline, RecordCache::Auto);
    let table = db.create_table("t").unwrap();
    (0..1000).for_each(|number| table.put(key(number), [7; 100]).unwrap());
    let mut random = SmallRng::seed_from_u64(1);
    for _ in 0..20_000 {
        table.get(key(random.random_range(0..1000))).unwrap().unwrap();
    }
    assert_eq!(db.stats().records, terrace::CachedRecords::default());
    // Reads one record in forty and nothing else.
    (1000..80_000).for_each(|number| table.put(key(number), [7; 100]).unwrap());
    for _ in 0..100_000 {
        assert!(table.get(key(random.random_range(0..2000) * 40)).unwrap().is_some());
    }
    let stats = db.stats();
    assert!(stats.records.entries > 1800 && stats.records.hits > 50_000, "{stats:?}");
    let before = db.stats();
    for _ in 0..10_000 {
        assert!(table.get(key(random.random_range(0..2000) * 40)).unwrap().is_some());
    }
    let stats = db.stats();
    assert!(stats.faults - before.faults < 1000, "{before:?} {stats:?}");
    // Reads more whole leaves repeatedly than fit beside the records.
    for round in 0..60 {
        let from = 40_000 + round % 2 * 200;
        for leaf in 0..22 {
            let start = key(from + leaf * 400).to_vec();
            assert_eq!(table.range(start..).take(400).map(Result::unwrap).count(), 400);
        }
    }
    let after = db.stats();
    assert!(after.records.bytes < stats.records.bytes, "{stats:?} {after:?}");
    db.set_dram(DRAM / 2 + DRAM / 4).unwrap();
    assert_eq!(db.stats().records.bytes, 0, "their frames were among those that went");
    assert!(table.get(key(0)).unwrap().is_some());
}

#[test]
fn a_key_that_is_not_there_is_known_not_to_be() {
    let db = open(Mode::Inline, RecordCache::Percent(50));
    let table = db.create_table("t").unwrap();
    (0..60_000).for_each(|number| table.put(key(number * 2), [7; 100]).unwrap());
    let absent = || (0..50).for_each(|number| assert_eq!(table.get(key((number * 2001) | 1)).unwrap(), None));
    let others = |from: u32| {
        (0..3000)
            .for_each(|number| drop(table.get(key((from + number * 17) % 60_000 * 2)).unwrap().unwrap()));
    };
    absent();
    others(0);
    absent();
    others(5);
    let (hits, faults) = (db.stats().records.hits, db.stats().faults);
    absent();
    assert!(db.stats().records.hits - hits >= 40 && db.stats().faults - faults <= 10, "{:?}", db.stats());
    (0..50).for_each(|number| table.put(key((number * 2001) | 1), "now it is").unwrap());
    others(9);
    let now = |number: u32| assert_eq!(table.get(key((number * 2001) | 1)).unwrap().unwrap(), b"now it is");
    (0..50).for_each(now);
}

#[test]
fn no_thread_sees_a_key_go_back() {
    let records = count_up(open(Mode::Background, RecordCache::Percent(70)));
    assert!(records.hits > 1000, "{records:?}");
}

#[test]
fn no_thread_sees_a_key_go_back_over_a_middle_tier() {
    for policy in ["0,0,1,1", ".1,.1,.5,1"] {
        let records = count_up(open_over_a_middle_tier(Mode::Background, policy));
        assert!(records.middle_hits > 1000, "{policy}: {records:?}");
    }
}

/// Each key counts up. No thread may see it count down, or a value never written.
fn count_up(db: Db) -> CachedRecords {
    const KEYS: u32 = 20_000;
    let table = db.create_table("t").unwrap();
    let hot = |number: u32| number * 97 % KEYS;
    let entry = |number: u32, count: u64| -> Vec<u8> {
        let mut entry = vec![count as u8; 150];
        entry[..8].copy_from_slice(&count.to_be_bytes());
        entry[8..12].copy_from_slice(&number.to_be_bytes());
        entry
    };
    (0..KEYS).for_each(|number| table.put(key(number), entry(number, 0)).unwrap());
    // Acknowledged counts: a later read must not see less.
    let counts: Vec<AtomicU64> = (0..300).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (table, counts, done) = (&table, &counts, &done);
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(thread);
                while !done.load(SeqCst) {
                    let index = random.random_range(0..counts.len());
                    let number = hot(index as u32);
                    let least = counts[index].load(SeqCst);
                    let found = table.get(key(number)).unwrap().unwrap();
                    let count = u64::from_be_bytes(found[..8].try_into().unwrap());
                    assert_eq!(found, entry(number, count), "whole");
                    assert!(count >= least, "key {number}: {count} after {least}");
                }
            });
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut random = SmallRng::seed_from_u64(9);
            for step in 0..40_000u64 {
                let index = random.random_range(0..counts.len());
                let number = hot(index as u32);
                match step % 20 {
                    0 => {
                        let count = counts[index].load(SeqCst) + 1;
                        table.put(key(number), entry(number, count)).unwrap();
                        counts[index].store(count, SeqCst);
                    }
                    1..18 => drop(table.get(key(random.random_range(0..KEYS))).unwrap()),
                    _ => drop(table.get_many([key(number), key(hot(random.random_range(0..300)))]).unwrap()),
                }
                if step % 10_000 == 9_999 {
                    db.set_dram(if step % 20_000 > 10_000 { DRAM } else { DRAM * 2 }).unwrap();
                }
            }
        }));
        done.store(true, SeqCst);
        outcome.unwrap();
    });
    assert!(db.verify().unwrap().is_ok());
    let records = db.stats().records;
    assert!(records.stale > 0, "{records:?}");
    records
}
