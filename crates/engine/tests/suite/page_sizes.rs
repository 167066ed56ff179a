//! Tables with different page sizes in one database.
//!
//! Reads return what was written; transactions, backup, restore, repair, compaction, verification
//! and budget changes handle all sizes; and impossible settings are refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::copies::{Entries, check};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace::{
    Builder, Compression, Db, Durability, Error, MemoryDirectory, Mode, SimulatedDisk, Table, TableOptions,
    WriteBatch,
};

use super::common;

const SIZES: [u64; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];

/// A database with its own pages of `page_bytes`, and others of up to 64 KiB.
fn builder(page_bytes: u64) -> Builder {
    // Too little memory for all pages of any class.
    let builder = common::builder().dram(24 << 20).page_size(page_bytes).page_size_max(64 << 10);
    builder.log_max(4 << 20).mode(Mode::Inline).seed(1).durability(Durability::Buffered)
}

fn value(random: &mut SmallRng) -> Vec<u8> {
    let length = match random.random_range(0..30) {
        0 => random.random_range(30_000..400_000),
        1..5 => random.random_range(500..15_000),
        _ => random.random_range(0..300),
    };
    let noise = [0, length / 2, length][random.random_range(0..3)];
    (0..length).map(|at| if at < noise { random.random() } else { at as u8 / 16 }).collect()
}

/// A table for each size, plus a compressed one where possible.
fn make_tables(db: &Db) -> BTreeMap<String, Entries> {
    let mut expected = BTreeMap::new();
    for bytes in SIZES {
        let options = TableOptions::new().page_size(bytes);
        let kinds = [Compression::None, Compression::Lz4];
        for compression in kinds.into_iter().take(if bytes > 4 << 10 { 2 } else { 1 }) {
            let name = format!("{bytes:05} {compression}");
            db.create_table_with(&name, &options.clone().compression(compression)).unwrap();
            expected.insert(name, Entries::new());
        }
    }
    for table in db.table_stats().unwrap() {
        assert_eq!(table.name[..5].parse::<u64>().unwrap(), table.page_bytes);
    }
    expected
}

/// Puts and deletes, single and in transactions over several tables, noted in `expected`.
fn change(db: &Db, expected: &mut BTreeMap<String, Entries>, changes: usize, random: &mut SmallRng) {
    let tables: Vec<Table> = expected.keys().map(|name| db.open_table(name).unwrap()).collect();
    let mut left = changes;
    while left > 0 {
        let mut batch = WriteBatch::new();
        for _ in 0..random.random_range(1..6).min(left) {
            left -= 1;
            let table = &tables[random.random_range(0..tables.len())];
            let entries = expected.get_mut(&table.name()).unwrap();
            let key = random.random_range(0..300u16).to_be_bytes().to_vec();
            match random.random_range(0..8) {
                0 => {
                    batch.delete(table, &key);
                    entries.remove(&key);
                }
                _ => {
                    let value = value(random);
                    batch.put(table, &key, &value);
                    entries.insert(key, value);
                }
            }
        }
        db.write(batch, Durability::Buffered).unwrap();
        let table = &tables[random.random_range(0..tables.len())];
        let entries = expected.get_mut(&table.name()).unwrap();
        let (key, value) = (random.random_range(0..300u16).to_be_bytes().to_vec(), value(random));
        table.put(&key, &value).unwrap();
        entries.insert(key, value);
    }
}

#[test]
fn tables_of_all_sizes_hold_what_maps_do() {
    for (page_bytes, seed) in [(4 << 10, 1), (16 << 10, 2), (64 << 10, 3)] {
        let mut random = SmallRng::seed_from_u64(seed);
        let directory = Arc::new(MemoryDirectory::new());
        let open = || builder(page_bytes).directory(directory.clone()).open("").unwrap();
        let mut expected = make_tables(&open());
        for round in 0..4 {
            let db = open();
            change(&db, &mut expected, 300, &mut random);
            check(&db, &expected);
            // Closed or killed: recovery finds pages of every size under the log.
            if round % 2 == 0 {
                db.checkpoint().unwrap();
                change(&db, &mut expected, 50, &mut random);
                drop(db);
            } else {
                let stats = db.stats();
                assert!(stats.faults > 100 && stats.evictions > 100, "seed {seed}: {stats:?}");
                db.close().unwrap();
            }
        }
        check(&open(), &expected);
    }
}

#[test]
fn many_keys_scans_and_ranges_go_through_pages_of_all_sizes() {
    let directory = Arc::new(MemoryDirectory::new());
    let db = builder(4 << 10).directory(directory).open("").unwrap();
    for bytes in SIZES {
        let table = db.create_table_with(&bytes.to_string(), &TableOptions::new().page_size(bytes)).unwrap();
        let value = |key: u32| vec![key as u8; 100 + key as usize % 900];
        let mut batch = WriteBatch::new();
        for key in 0..12_000u32 {
            batch.put(&table, key.to_be_bytes(), value(key));
            if key % 100 == 99 {
                db.write(std::mem::take(&mut batch), Durability::Buffered).unwrap();
            }
        }
        let keys: Vec<_> = (0..500u32).map(|at| (at * 7919 % 13_000).to_be_bytes()).collect();
        let found = table.get_many(&keys).unwrap();
        for (key, found) in keys.iter().zip(found) {
            let key = u32::from_be_bytes(*key);
            assert_eq!(found, (key < 12_000).then(|| value(key)), "{bytes}: {key}");
        }
        assert!(
            table
                .iter()
                .map(Result::unwrap)
                .eq((0..12_000u32).map(|key| (key.to_be_bytes().to_vec(), value(key))))
        );
        let (low, high) = (3000u32.to_be_bytes(), 9000u32.to_be_bytes());
        assert_eq!(table.delete_range_in_steps(low..high).unwrap(), 6000);
        assert_eq!(table.len().unwrap(), 6000);
    }
    assert_eq!(db.verify().unwrap().errors, []);
    for bytes in SIZES {
        db.drop_table(&bytes.to_string()).unwrap();
    }
    db.checkpoint().unwrap();
    let left = db.stats().live_pages;
    assert!(left < 40, "{left} pages are left of nothing");
}

#[test]
fn copies_repairs_and_compactions_know_pages_of_every_size() {
    for (page_bytes, seed) in [(4 << 10, 10), (16 << 10, 11)] {
        let mut random = SmallRng::seed_from_u64(seed);
        let disk = SimulatedDisk::new(seed);
        let db = builder(page_bytes).directory(Arc::new(disk.clone())).open("").unwrap();
        let mut expected = make_tables(&db);
        change(&db, &mut expected, 600, &mut random);
        db.checkpoint().unwrap();

        // Part of the state in the backup is only in the log.
        change(&db, &mut expected, 50, &mut random);
        crate::common::copies::survives(db, &disk, expected, &|| builder(page_bytes), 64 << 20);
    }
}

#[test]
fn the_budget_changes_while_pages_of_all_sizes_come_and_go() {
    let directory = Arc::new(MemoryDirectory::new());
    let mut random = SmallRng::seed_from_u64(77);
    let open = || builder(4 << 10).dram_max(96 << 20).directory(directory.clone()).open("").unwrap();
    let db = open();
    let mut expected = make_tables(&db);
    for round in 0..6 {
        db.set_dram([24 << 20, 96 << 20, 40 << 20][round % 3]).unwrap();
        change(&db, &mut expected, 200, &mut random);
    }
    db.set_dram(24 << 20).unwrap();
    check(&db, &expected);
    let stats = db.stats();
    assert!(stats.frame_bytes <= stats.budget_bytes, "{stats:?}");
    drop(db);
    check(&open(), &expected);
}

#[test]
fn a_killed_database_opens_without_being_told_of_the_sizes_it_has() {
    let disk = SimulatedDisk::new(6);
    let new = |disk: &SimulatedDisk| {
        common::builder().directory(Arc::new(disk.clone())).dram(24 << 20).mode(Mode::Inline)
    };
    let db = new(&disk).page_size_max(64 << 10).open("").unwrap();
    let table = db.create_table_with("t", &TableOptions::new().page_size(64 << 10)).unwrap();
    table.put("k", "v").unwrap();
    let db = new(&disk.killed()).open("").unwrap();
    assert_eq!(db.open_table("t").unwrap().len().unwrap(), 1);
    // Sixteen of its pages are one log record, which the log buffer must hold.
    let long: Vec<u8> = (0..3 << 20).map(|at: u32| (at >> 8) as u8).collect();
    db.open_table("t").unwrap().put("long", &long).unwrap();
    assert!(db.open_table("t").unwrap().get("long").unwrap() == Some(long));
    assert_eq!(db.verify().unwrap().errors, []);
}

#[test]
fn threads_work_on_tables_of_several_sizes() {
    let directory = Arc::new(MemoryDirectory::new());
    let db = builder(4 << 10).mode(Mode::Background).directory(directory).open("").unwrap();
    let tables = [4 << 10, 16 << 10, 64 << 10].map(|bytes: u64| {
        db.create_table_with(&bytes.to_string(), &TableOptions::new().page_size(bytes)).unwrap()
    });
    let value = |key: u32, round: u32| {
        let mut value = round.to_be_bytes().to_vec();
        value.resize(1000 + key as usize % 500, (key ^ round) as u8);
        value
    };
    for key in 0..9000u32 {
        tables[key as usize % 3].put(key.to_be_bytes(), value(key, 0)).unwrap();
    }
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let (tables, value) = (&tables, &value);
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(thread.into());
                for round in 1..1500 {
                    // Each thread changes its own keys and reads all keys.
                    let key = random.random_range(0..2250) * 4 + thread;
                    tables[key as usize % 3].put(key.to_be_bytes(), value(key, round)).unwrap();
                    let key = random.random_range(0..9000u32);
                    let found = tables[key as usize % 3].get(key.to_be_bytes()).unwrap().unwrap();
                    let round = u32::from_be_bytes(found[..4].try_into().unwrap());
                    assert!(found == value(key, round), "key {key}");
                }
            });
        }
    });
    assert_eq!(db.verify().unwrap().errors, []);
}

/// The next open sizes its buffers for this page size, though only the log has such pages.
#[test]
fn a_size_used_just_before_a_crash_is_known_afterwards() {
    for seed in 0..8 {
        let disk = SimulatedDisk::new(seed);
        let open = |disk: &SimulatedDisk, builder: Builder| {
            builder
                .dram(16 << 20)
                .mode(Mode::Inline)
                .seed(1)
                .directory(Arc::new(disk.clone()))
                .open("")
                .unwrap()
        };
        let db = open(&disk, common::builder().page_size_max(64 << 10).log_max(8 << 20));
        let table = db.create_table_with("t", &TableOptions::new().page_size(64 << 10)).unwrap();
        table.put(b"inline", vec![1; 30_000]).unwrap();
        let survivor = disk.survivor(seed);
        drop((table, db));
        let db = open(&survivor, common::builder());
        assert!(db.stats().log_buffer_bytes >= 32 * (64 << 10), "seed {seed}");
        let table = db.open_table("t").unwrap();
        let large: Vec<u8> = (0..3_000_000u32).map(|at| at as u8).collect();
        table.put(b"large", &large).unwrap();
        // The second one keeps the first as an old version.
        for byte in [2, 3] {
            table.put(b"inline", vec![byte; 31_000]).unwrap();
        }
        assert!(table.get(b"large").unwrap().unwrap() == large, "seed {seed}");
        assert!(table.get(b"inline").unwrap().unwrap() == [3; 31_000], "seed {seed}");
        assert_eq!(db.verify().unwrap().errors, []);
    }
}

/// More threads than a size's first frames.
#[test]
fn threads_put_large_values_at_once_into_a_table_of_a_new_size() {
    let directory = Arc::new(MemoryDirectory::new());
    let builder = common::builder().dram(96 << 20).durability(Durability::Buffered).directory(directory);
    let db = builder.open("").unwrap();
    let table = db.create_table_with("t", &TableOptions::new().page_size(64 << 10)).unwrap();
    let value = |thread: u32, at: u32| vec![(thread * 16 + at) as u8; 1_000_000];
    std::thread::scope(|scope| {
        for thread in 0..8u32 {
            let table = &table;
            scope.spawn(move || {
                for at in 0..4u32 {
                    table.put((thread << 8 | at).to_be_bytes(), value(thread, at)).unwrap();
                }
            });
        }
    });
    for (thread, at) in (0..8u32).flat_map(|thread| (0..4u32).map(move |at| (thread, at))) {
        assert!(table.get((thread << 8 | at).to_be_bytes()).unwrap().unwrap() == value(thread, at));
    }
    assert_eq!(db.verify().unwrap().errors, []);
}

/// Segments hold four of the largest pages, and images of both sizes never fill one.
///
/// Once, nothing could be changed or even deleted on a full disk.
#[test]
fn a_full_file_with_pages_of_two_sizes_takes_changes_and_is_emptied() {
    for seed in 1..5 {
        let disk = SimulatedDisk::new(seed);
        let builder = builder(4 << 10).dram(16 << 20).directory(Arc::new(disk.clone()));
        let db = builder.open("").unwrap();
        let tables = [4 << 10, 64 << 10].map(|bytes: u64| {
            db.create_table_with(&bytes.to_string(), &TableOptions::new().page_size(bytes)).unwrap()
        });
        let mut random = SmallRng::seed_from_u64(seed);
        let mut counts = [0u32; 2];
        let error = loop {
            if counts.iter().sum::<u32>() == 40_000 {
                disk.set_capacity(db.stats().file_bytes + (6 << 20));
            }
            let table = random.random_range(0..2);
            match tables[table].put(counts[table].to_be_bytes(), [7; 900]) {
                Ok(_) => counts[table] += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::Full { .. }), "seed {seed}: {error}");
        for _ in 0..1_000 {
            let table = random.random_range(0..2);
            let key = random.random_range(0..counts[table]);
            let changed = tables[table].put(key.to_be_bytes(), [random.random(); 900]);
            assert!(changed.is_ok(), "seed {seed}: {changed:?}");
        }
        for key in 0..counts[0] {
            tables[0].delete(key.to_be_bytes()).unwrap();
        }
        tables[1].put(b"there is room again", [1; 900]).unwrap();
        assert_eq!(db.verify().unwrap().errors, []);
    }
}

#[test]
fn a_size_that_cannot_be_is_refused_and_says_what_would_do() {
    let directory = Arc::new(MemoryDirectory::new());
    let db =
        common::builder().dram(2 << 20).log_max(256 << 10).directory(directory.clone()).open("").unwrap();
    let table =
        |db: &Db, bytes: u64| db.create_table_with("t", &TableOptions::new().page_size(bytes)).map(drop);
    let refused = |outcome: terrace::Result<()>, words: &[&str]| match outcome {
        Err(Error::Config(what)) => assert!(words.iter().all(|word| what.contains(word)), "{what}"),
        other => panic!("{other:?}"),
    };
    for bytes in [0, 1, 4095, 5000, 128 << 10, u64::MAX] {
        refused(table(&db, bytes), &[&bytes.to_string(), "65536"]);
    }
    refused(table(&db, 64 << 10), &["65536"]);
    assert_eq!(db.table_names().unwrap(), <[String; 0]>::default());
    db.close().unwrap();
    let large = || common::builder().directory(directory.clone()).page_size_max(64 << 10);
    refused(large().dram(2 << 20).open("").map(drop), &["give it about"]);
    for bytes in [0, 5000, 128 << 10] {
        refused(large().page_size_max(bytes).open("").map(drop), &[&bytes.to_string()]);
    }
    // The log's length is fixed at creation.
    let db = large().dram(64 << 20).open("").unwrap();
    refused(table(&db, 64 << 10), &["log"]);
    table(&db, 4 << 10).unwrap();
    db.close().unwrap();
}
