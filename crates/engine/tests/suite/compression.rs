//! Compressed pages: reads return what was written, whatever the settings are now.
//!
//! Files shrink, and backup, restore, repair, compaction, verification and budget changes handle
//! images of any length.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::copies::{Entries, check, entries};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace::{
    Builder, Compression, Db, Durability, Error, MemoryDirectory, Mode, SimulatedDisk, Table, TableOptions,
};

use super::common;

const PAGE_SIZES: [u64; 4] = [8 << 10, 16 << 10, 32 << 10, 64 << 10];

fn builder(page_bytes: u64) -> Builder {
    // Little memory: a few dozen frames.
    let builder = common::builder().dram(160 * page_bytes + (1 << 20)).page_size(page_bytes);
    builder.log_max(64 * page_bytes).mode(Mode::Inline).seed(1).durability(Durability::Buffered)
}

/// A value that compresses almost entirely, by half, or not at all.
fn value(random: &mut SmallRng) -> Vec<u8> {
    let length = match random.random_range(0..30) {
        0 => random.random_range(5_000..150_000),
        1..5 => random.random_range(500..3000),
        _ => random.random_range(0..300),
    };
    let noise = [0, length / 2, length][random.random_range(0..3)];
    (0..length).map(|at| if at < noise { random.random() } else { at as u8 / 16 }).collect()
}

/// Puts and deletes in all tables, noted in `expected`.
fn change(db: &Db, expected: &mut BTreeMap<String, Entries>, changes: usize, random: &mut SmallRng) {
    let tables: Vec<Table> = expected.keys().map(|name| db.open_table(name).unwrap()).collect();
    for _ in 0..changes {
        let table = &tables[random.random_range(0..tables.len())];
        let entries = expected.get_mut(&table.name()).unwrap();
        let key = random.random_range(0..400u16).to_be_bytes().to_vec();
        if random.random_range(0..4) == 0 {
            assert_eq!(table.delete(&key).unwrap(), entries.remove(&key).is_some());
        } else {
            let value = value(random);
            table.put(&key, &value).unwrap();
            entries.insert(key, value);
        }
    }
}

#[test]
fn tables_of_both_kinds_hold_what_maps_do_whatever_the_settings_are() {
    for (page_bytes, seed) in PAGE_SIZES.into_iter().zip(1..) {
        let mut random = SmallRng::seed_from_u64(seed);
        let directory = Arc::new(MemoryDirectory::new());
        let mut expected = BTreeMap::new();
        for round in 0..4 {
            // The setting applies to new tables; existing ones keep their own.
            let setting = [Compression::Lz4, Compression::None][round % 2];
            let db = builder(page_bytes).compression(setting).directory(directory.clone()).open("").unwrap();
            let made = [
                (format!("as the database {round}"), TableOptions::new()),
                (format!("compressed {round}"), TableOptions::new().compression(Compression::Lz4)),
                (format!("plain {round}"), TableOptions::new().compression(Compression::None)),
            ];
            for (name, options) in made {
                db.create_table_with(&name, &options).unwrap();
                expected.insert(name, Entries::new());
            }
            change(&db, &mut expected, 400, &mut random);
            check(&db, &expected);
            for table in db.table_stats().unwrap() {
                let is_compressed = table.name.starts_with("compressed")
                    || ["as the database 0", "as the database 2"].contains(&table.name.as_str());
                assert_eq!(table.compression == Compression::Lz4, is_compressed, "{}", table.name);
            }
            db.checkpoint().unwrap();
            let stats = db.stats();
            assert!(stats.images_compressed > 0, "{page_bytes}: {stats:?}");
            assert!(stats.compression_output_bytes < stats.compression_input_bytes);
            db.close().unwrap();
        }
        let db = builder(page_bytes).directory(directory).open("").unwrap();
        check(&db, &expected);
    }
}

#[test]
fn a_file_of_compressed_pages_is_a_fraction_of_one_of_plain_ones() {
    let bytes = |compression: Compression| {
        let directory = Arc::new(MemoryDirectory::new());
        let db = builder(16 << 10).compression(compression).directory(directory).open("").unwrap();
        let table = db.create_table("t").unwrap();
        for key in 0..20_000u32 {
            table
                .put(key.to_be_bytes(), format!("{{\"id\": {key}, \"name\": \"somebody\", \"city\": null}}"))
                .unwrap();
        }
        table.put("long", "again and again ".repeat(20_000)).unwrap();
        db.checkpoint().unwrap();
        db.compact().unwrap();
        let stats = db.stats();
        assert_eq!(stats.images_compressed > 0, compression == Compression::Lz4);
        (stats.live_bytes, stats.file_bytes, stats.written_bytes)
    };
    let (plain, compressed) = (bytes(Compression::None), bytes(Compression::Lz4));
    println!("live, file and written bytes: plain {plain:?}, compressed {compressed:?}");
    // Less than 3/5: the last block of an image is half empty on average.
    let is_shorter = |compressed: u64, plain: u64| compressed * 5 < plain * 3;
    assert!(is_shorter(compressed.0, plain.0) && compressed.1 < plain.1 && is_shorter(compressed.2, plain.2));
}

#[test]
fn pages_that_cannot_become_shorter_are_not_to_be_compressed() {
    let directory = Arc::new(MemoryDirectory::new());
    let new = || common::builder().dram(4 << 20).directory(directory.clone());
    let refused = |outcome: terrace::Result<()>| match outcome {
        Err(Error::Config(what)) => assert!(what.contains("4096") && what.contains("16 KiB"), "{what}"),
        other => panic!("{other:?}"),
    };
    refused(new().compression(Compression::Lz4).open("").map(drop));
    let db = new().open("").unwrap();
    let options = TableOptions::new().compression(Compression::Lz4);
    refused(db.create_table_with("t", &options).map(drop));
    db.close().unwrap();
    // An existing database keeps its page size: it opens, and the creation of a table fails.
    let db = new().compression(Compression::Lz4).open("").unwrap();
    refused(db.create_table("t").map(drop));
    db.create_table_with("t", &TableOptions::new().compression(Compression::None)).unwrap();
}

#[test]
fn what_does_not_become_shorter_is_written_as_it_is() {
    let directory = Arc::new(MemoryDirectory::new());
    let mut random = SmallRng::seed_from_u64(5);
    let noise: Vec<Vec<u8>> = (0..300).map(|_| (0..900).map(|_| random.random()).collect()).collect();
    let db = builder(8 << 10).compression(Compression::Lz4).directory(directory.clone()).open("").unwrap();
    let table = db.create_table("t").unwrap();
    for (key, value) in (0u32..).zip(&noise) {
        table.put(key.to_be_bytes(), value).unwrap();
    }
    db.checkpoint().unwrap();
    let stats = db.stats();
    assert!(stats.images_incompressible > 20, "{stats:?}");
    db.close().unwrap();
    // A database keeps its own page size, whatever the default is, so compression works.
    let db =
        common::builder().dram(4 << 20).compression(Compression::Lz4).directory(directory).open("").unwrap();
    assert!(entries(&db.open_table("t").unwrap()).into_values().eq(noise));
    db.create_table("u").unwrap();
}

#[test]
fn copies_repairs_and_compactions_know_images_of_every_length() {
    for (page_bytes, seed) in PAGE_SIZES.into_iter().zip(10..) {
        let mut random = SmallRng::seed_from_u64(seed);
        let disk = SimulatedDisk::new(seed);
        let db = builder(page_bytes).directory(Arc::new(disk.clone())).open("").unwrap();
        let mut expected = BTreeMap::new();
        for (name, compression) in [("compressed", Compression::Lz4), ("plain", Compression::None)] {
            db.create_table_with(name, &TableOptions::new().compression(compression)).unwrap();
            expected.insert(name.to_owned(), Entries::new());
        }
        change(&db, &mut expected, 800, &mut random);
        db.checkpoint().unwrap();

        // Part of the state in the backup is only in the log.
        change(&db, &mut expected, 50, &mut random);
        crate::common::copies::survives(db, &disk, expected, &|| builder(page_bytes), 16 << 20);
    }
}

#[test]
fn the_budget_changes_while_compressed_pages_come_and_go() {
    let directory = Arc::new(MemoryDirectory::new());
    let (page_bytes, mut random) = (16 << 10, SmallRng::seed_from_u64(77));
    let small = 160 * page_bytes + (1 << 20);
    let open = || builder(page_bytes).dram_max(4 * small).directory(directory.clone()).open("").unwrap();
    let db = open();
    let mut expected = BTreeMap::from([("t".to_owned(), Entries::new()), ("u".to_owned(), Entries::new())]);
    db.create_table_with("t", &TableOptions::new().compression(Compression::Lz4)).unwrap();
    db.create_table("u").unwrap();
    for round in 0..6 {
        db.set_dram(small * [1, 4, 2][round % 3]).unwrap();
        change(&db, &mut expected, 300, &mut random);
    }
    check(&db, &expected);
    // Killed: recovery finds images of any length under the log.
    drop(db);
    check(&open(), &expected);
}

/// Changes lengthen pages that were short while the file could still grow.
///
/// Once, all frames held such pages, and reads evicted each other from the last one for minutes.
#[test]
fn a_full_file_that_its_pages_outgrow_is_read_and_opened_all_the_same() {
    for (seed, (page_bytes, mode)) in
        (1..).zip([(8 << 10, Mode::Inline), (8 << 10, Mode::Background), (64 << 10, Mode::Inline)])
    {
        let disk = SimulatedDisk::new(seed);
        let open = |disk: &SimulatedDisk| {
            let builder = builder(page_bytes).mode(mode).compression(Compression::Lz4);
            builder.directory(Arc::new(disk.clone())).open("").unwrap()
        };
        let db = open(&disk);
        let table = db.create_table("t").unwrap();
        let mut random = SmallRng::seed_from_u64(seed);
        let keys = page_bytes as u32 / 2;
        let mut expected: Vec<Vec<u8>> = vec![vec![7; 800]; keys as usize];
        for (key, value) in (0u32..).zip(&expected) {
            table.put(key.to_be_bytes(), value).unwrap();
        }
        db.checkpoint().unwrap();
        disk.set_capacity(0);
        let mut changed = 0;
        let error = loop {
            let key = random.random_range(0..keys);
            let noise: Vec<u8> = (0..800).map(|_| random.random()).collect();
            match table.put(key.to_be_bytes(), &noise) {
                Ok(_) => expected[key as usize] = noise,
                Err(error) => break error,
            }
            changed += 1;
            assert!(changed < 10 * keys, "{page_bytes}: the file is never full");
        };
        assert!(matches!(error, Error::Full { .. }), "{page_bytes} {mode:?}: {error}");
        let check = |table: &Table| {
            for (key, value) in (0u32..).zip(&expected) {
                let found = table.get(key.to_be_bytes()).unwrap();
                assert_eq!(found.as_ref(), Some(value), "{page_bytes} {mode:?}: {key}");
            }
        };
        check(&table);
        assert!(matches!(table.put("more", [1; 100]), Err(Error::Full { .. })));
        check(&table);
        db.flush().unwrap();
        drop((table, db));

        // The machine stops, and the disk is as full afterwards.
        let disk = disk.survivor(seed);
        let db = open(&disk);
        let table = db.open_table("t").unwrap();
        check(&table);
        disk.set_capacity(u64::MAX);
        for (key, value) in (0u32..).zip(&expected) {
            table.put((key + keys).to_be_bytes(), value).unwrap();
        }
        check(&table);
        assert_eq!(db.verify().unwrap().errors, []);
    }
}

#[test]
fn threads_read_and_write_compressed_pages() {
    let directory = Arc::new(MemoryDirectory::new());
    let db = builder(16 << 10).mode(Mode::Background).directory(directory).open("").unwrap();
    let options = TableOptions::new().compression(Compression::Lz4);
    let table = db.create_table_with("t", &options).unwrap();
    let value = |key: u32, round: u32| {
        let mut random = SmallRng::seed_from_u64(u64::from(key) << 32 | u64::from(round));
        let noise = if (key + round).is_multiple_of(3) { 500 } else { 0 };
        let mut value = round.to_be_bytes().to_vec();
        value.extend((0..1000).map(|at| if at < noise { random.random() } else { key as u8 }));
        value
    };
    for key in 0..6000u32 {
        table.put(key.to_be_bytes(), value(key, 0)).unwrap();
    }
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let (table, value) = (table.clone(), &value);
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(thread.into());
                for round in 1..1500 {
                    // Each thread changes its own keys and reads all keys.
                    let key = random.random_range(0..1500) * 4 + thread;
                    table.put(key.to_be_bytes(), value(key, round)).unwrap();
                    let key = random.random_range(0..6000u32);
                    let found = table.get(key.to_be_bytes()).unwrap().unwrap();
                    let round = u32::from_be_bytes(found[..4].try_into().unwrap());
                    assert!(found == value(key, round), "key {key}");
                }
            });
        }
    });
    assert_eq!(db.verify().unwrap().errors, []);
    let stats = db.stats();
    assert!(stats.faults > 1000 && stats.images_compressed > 100, "{stats:?}");
}
