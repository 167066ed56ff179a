//! Long values on pages of their own size, up to 2 MiB.
//!
//! Each has the fewest possible pages, survives crashes, copies and repairs, and frees its pages;
//! impossible settings are refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::copies::{Entries, check};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace::{
    Builder, Compression, Db, Durability, Error, MemoryDirectory, Mode, SimulatedDisk, Table, TableOptions,
};

use super::common;

const SIZES: [u64; 10] =
    [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20];
/// Header bytes of a value page.
const HEADER: u64 = 32;

/// A database with pages of 4 KiB and value pages of up to `most` bytes.
fn builder(most: u64) -> Builder {
    untold(most).value_page_size_max(most)
}

/// A database for the same values without a setting for its buffers.
fn untold(most: u64) -> Builder {
    let builder = common::builder().mode(Mode::Inline).seed(1).durability(Durability::Buffered);
    builder.dram(if most > 512 << 10 { 64 << 20 } else { 32 << 20 })
}

fn table(db: &Db, name: &str, most: u64) -> Table {
    db.create_table_with(name, &TableOptions::new().value_page_size_max(most)).unwrap()
}

/// Bytes that identify their value and position.
fn bytes(seed: u64, length: u64) -> Vec<u8> {
    (0..length).map(|at| (at ^ at >> 8 ^ at >> 16 ^ seed.wrapping_mul(0x9e37)) as u8).collect()
}

/// Lengths at which number or size of the pages changes.
fn borders(most: u64) -> Vec<u64> {
    let sizes = SIZES.into_iter().filter(|&size| size <= most).map(|size| size - HEADER);
    let one = sizes.flat_map(|length| [length - 1, length, length + 1]);
    let capacity = most - HEADER;
    one.chain([2 * capacity, 2 * capacity + 1, 2 * capacity + 5000]).collect()
}

/// Pages of a value of this length, index pages included.
fn pages(most: u64, length: u64) -> u64 {
    let data = length.div_ceil(most - HEADER);
    let batch = if most > 64 << 10 { 1 } else { 15 };
    data + if data > 1 { data.div_ceil(batch) } else { 0 }
}

#[test]
fn a_value_is_on_the_smallest_page_that_holds_it() {
    for most in SIZES {
        let disk = SimulatedDisk::new(most);
        let db = builder(most).directory(Arc::new(disk.clone())).open("").unwrap();
        let table = table(&db, "t", most);
        table.put("short", [1; 100]).unwrap();
        db.checkpoint().unwrap();
        let (live, mut expected) =
            (db.stats().live_pages, Entries::from([(b"short".to_vec(), vec![1; 100])]));
        let mut there = 0;
        for (seed, length) in (1..).zip(borders(most)) {
            let (key, value) = (length.to_be_bytes().to_vec(), bytes(seed, length));
            table.put(&key, &value).unwrap();
            assert!(table.get(&key).unwrap().as_ref() == Some(&value), "{length} bytes on {most}");
            expected.insert(key, value);
            there += pages(most, length);
            db.checkpoint().unwrap();
            assert_eq!(db.stats().live_pages, live + there, "{length} bytes on {most}");
        }
        assert_eq!(db.verify().unwrap().errors, []);
        // From the log and from the images. An open makes room for the sizes in use.
        let all = BTreeMap::from([("t".to_owned(), expected)]);
        db.flush().unwrap();
        let killed = untold(most).directory(Arc::new(disk.killed())).open("").unwrap();
        check(&killed, &all);
        let (killed, value) = (killed.open_table("t").unwrap(), bytes(77, most - HEADER));
        killed.put("another", &value).unwrap();
        assert!(killed.get("another").unwrap() == Some(value));
        drop(table);
        db.close().unwrap();
        let db = builder(most).directory(Arc::new(disk)).open("").unwrap();
        check(&db, &all);
        let stats = &db.table_stats().unwrap()[0];
        assert_eq!((stats.page_bytes, stats.value_page_bytes_max), (4 << 10, most));
        // Deleted values free their pages.
        let table = db.open_table("t").unwrap();
        for key in all["t"].keys() {
            table.delete(key).unwrap();
        }
        db.checkpoint().unwrap();
        assert_eq!(db.stats().live_pages, live, "pages of {most} are left of nothing");
        assert_eq!(db.verify().unwrap().errors, []);
    }
}

/// Puts and deletes values of lengths up to one and a half times `most`.
fn change(db: &Db, expected: &mut BTreeMap<String, Entries>, changes: usize, random: &mut SmallRng) {
    for _ in 0..changes {
        let at = random.random_range(0..expected.len());
        let (name, entries) = expected.iter_mut().nth(at).unwrap();
        let table = db.open_table(name).unwrap();
        let most: u64 = name.split(' ').next().unwrap().parse().unwrap();
        let key = random.random_range(0..20u16).to_be_bytes().to_vec();
        if random.random_range(0..4) == 0 {
            table.delete(&key).unwrap();
            entries.remove(&key);
            continue;
        }
        let length = match random.random_range(0..3) {
            0 => random.random_range(0..3000),
            _ => most * random.random_range(1..150) / 100,
        };
        let mut value = bytes(random.random(), length);
        // Half of it does not compress.
        random.fill(&mut value[..length as usize / 2]);
        table.put(&key, &value).unwrap();
        entries.insert(key, value);
    }
}

fn tables(db: &Db, sizes: &[u64]) -> BTreeMap<String, Entries> {
    let mut expected = BTreeMap::new();
    for &size in sizes {
        for compression in [Compression::None, Compression::Lz4] {
            let name = format!("{size} {compression}");
            let options = TableOptions::new().page_size(8 << 10).value_page_size_max(size);
            db.create_table_with(&name, &options.compression(compression)).unwrap();
            expected.insert(name, Entries::new());
        }
    }
    expected
}

#[test]
fn copies_repairs_and_compactions_know_pages_of_values() {
    for (sizes, seed) in [([32 << 10, 128 << 10], 1), ([256 << 10, 1 << 20], 2)] {
        let mut random = SmallRng::seed_from_u64(seed);
        let disk = SimulatedDisk::new(seed);
        let db = builder(sizes[1]).directory(Arc::new(disk.clone())).open("").unwrap();
        let mut expected = tables(&db, &sizes);
        change(&db, &mut expected, 80, &mut random);
        db.checkpoint().unwrap();
        assert!(db.stats().images_compressed > 0);
        // Part of the state in the backup is only in the log.
        change(&db, &mut expected, 10, &mut random);
        crate::common::copies::survives(db, &disk, expected, &|| builder(sizes[1]), 128 << 20);
    }
}

#[test]
fn values_survive_a_power_cut_whole_or_not_at_all() {
    for seed in 0..12 {
        let mut random = SmallRng::seed_from_u64(seed);
        let disk = SimulatedDisk::new(seed);
        let most = [16 << 10, 128 << 10, 256 << 10][seed as usize % 3];
        let open = |disk: &SimulatedDisk| {
            builder(most).durability(Durability::Sync).directory(Arc::new(disk.clone())).open("").unwrap()
        };
        let db = open(&disk);
        let mut expected = tables(&db, &[most]);
        for _ in 0..3 {
            change(&db, &mut expected, 12, &mut random);
            if random.random_range(0..2) == 0 {
                db.checkpoint().unwrap();
            }
        }
        check(&open(&disk.survivor(seed)), &expected);
    }
}

/// More threads than a page size's first frames, and none of them hangs.
#[test]
fn threads_put_and_get_values_on_large_pages_at_once() {
    let builder =
        common::builder().dram(64 << 20).value_page_size_max(2 << 20).durability(Durability::Buffered);
    let db = builder.directory(Arc::new(MemoryDirectory::new())).open("").unwrap();
    let table = table(&db, "t", 2 << 20);
    let value =
        |key: u32| bytes(key.into(), [70_000, 200_000, 900_000, 1_800_000, 5_000_000][key as usize % 5]);
    std::thread::scope(|scope| {
        for thread in 0..6u32 {
            let (table, value) = (&table, &value);
            scope.spawn(move || {
                for at in 0..8 {
                    let key = thread * 8 + at;
                    table.put(key.to_be_bytes(), value(key)).unwrap();
                    let other = key / 2;
                    let found = table.get(other.to_be_bytes()).unwrap();
                    assert!(found.is_none_or(|found| found == value(other)), "{other}");
                    if at % 4 == 3 {
                        table.delete((key - 1).to_be_bytes()).unwrap();
                    }
                }
            });
        }
    });
    for key in 0..48u32 {
        let expected = (key % 4 != 2).then(|| value(key));
        assert!(table.get(key.to_be_bytes()).unwrap() == expected, "{key}");
    }
    assert_eq!(db.verify().unwrap().errors, []);
    let stats = db.stats();
    assert!(stats.frame_bytes <= stats.budget_bytes, "{stats:?}");
}

/// Segments hold four of the largest pages, and a change must find its room in the last ones.
#[test]
fn a_full_file_takes_changes_and_is_emptied() {
    for (seed, most, room) in [(1, 256 << 10, 6 << 20), (2, 256 << 10, 5 << 20), (3, 2 << 20, 40 << 20)] {
        let disk = SimulatedDisk::new(seed);
        let db = builder(most).directory(Arc::new(disk.clone())).open("").unwrap();
        let tables = [4 << 10, most].map(|most| table(&db, &most.to_string(), most));
        let mut random = SmallRng::seed_from_u64(seed);
        let value = |random: &mut SmallRng| vec![random.random(); random.random_range(3_000..most as usize)];
        let mut counts = [0u32; 2];
        tables[1].put("short", [0; 500]).unwrap();
        let error = loop {
            if counts.iter().sum::<u32>() == 60 {
                disk.set_capacity(db.stats().file_bytes + room);
            }
            let table = random.random_range(0..2);
            match tables[table].put(counts[table].to_be_bytes(), value(&mut random)) {
                Ok(_) => counts[table] += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::Full { .. }), "seed {seed}: {error}");
        for key in 0..counts[1] {
            tables[1].put("short", [key as u8; 500]).unwrap();
            tables[1].delete(key.to_be_bytes()).unwrap();
        }
        // Freed space is usable once the log record is durable.
        db.checkpoint().unwrap();
        for at in 0..counts[1] / 2 {
            tables[1].put(at.to_be_bytes(), value(&mut random)).unwrap();
        }
        assert_eq!(db.verify().unwrap().errors, []);
    }
}

#[test]
fn the_budget_changes_while_values_come_and_go() {
    let directory = Arc::new(MemoryDirectory::new());
    let mut random = SmallRng::seed_from_u64(7);
    let open = || builder(1 << 20).dram_max(128 << 20).directory(directory.clone()).open("").unwrap();
    let db = open();
    let mut expected = tables(&db, &[64 << 10, 1 << 20]);
    for round in 0..6 {
        db.set_dram([64 << 20, 128 << 20, 80 << 20][round % 3]).unwrap();
        change(&db, &mut expected, 15, &mut random);
        let stats = db.stats();
        assert!(stats.frame_bytes <= stats.budget_bytes, "{stats:?}");
    }
    check(&db, &expected);
    // Not below the least frames of the sizes in use.
    let error = db.set_dram(16 << 20).unwrap_err().to_string();
    assert!(error.contains("give it about") && error.contains("1048576 bytes"), "{error}");
    drop(db);
    check(&open(), &expected);
}

#[test]
fn what_cannot_be_is_refused_and_says_what_would_do() {
    let directory = Arc::new(MemoryDirectory::new());
    let refused = |outcome: terrace::Result<()>, words: &[&str]| match outcome {
        Err(Error::Config(what)) => assert!(words.iter().all(|word| what.contains(word)), "{what}"),
        other => panic!("{other:?}"),
    };
    let create = |db: &Db, own: u64, most: u64| {
        let options = TableOptions::new().page_size(own).value_page_size_max(most);
        db.create_table_with("t", &options).map(drop)
    };
    let db = common::builder().dram(4 << 20).directory(directory).open("").unwrap();
    for most in [0, 1, 5000, 100_000, 4 << 20, u64::MAX] {
        refused(create(&db, 4 << 10, most), &[&most.to_string(), "2097152"]);
    }
    refused(create(&db, 16 << 10, 8 << 10), &["8192", "16384"]);
    refused(create(&db, 4 << 10, 2 << 20), &["open it with"]);
    assert_eq!(db.table_names().unwrap(), <[String; 0]>::default());
    db.close().unwrap();
    // Pages of databases and tables stay limited.
    let new = || common::builder().directory(Arc::new(MemoryDirectory::new())).dram(64 << 20);
    refused(new().page_size(128 << 10).open("").map(drop), &["131072", "65536"]);
    refused(new().page_size_max(128 << 10).open("").map(drop), &["131072", "65536"]);
    refused(new().value_page_size_max(4 << 20).open("").map(drop), &["4194304", "2097152"]);
    refused(new().value_page_size_max(2 << 20).log_max(8 << 20).open("").map(drop), &["log_max", "16777216"]);
    refused(new().dram(8 << 20).value_page_size_max(2 << 20).open("").map(drop), &["give it about"]);
    // The least frames of all sizes that the table's values may have.
    let db = new().dram(32 << 20).value_page_size_max(2 << 20).open("").unwrap();
    refused(create(&db, 4 << 10, 2 << 20), &["4 of 131072 and of", "2097152 bytes", "give it about"]);
    create(&db, 4 << 10, 256 << 10).unwrap();
    db.close().unwrap();
    // Segments keep their length.
    let directory = Arc::new(MemoryDirectory::new());
    new().directory(directory.clone()).open("").unwrap().close().unwrap();
    let db =
        common::builder().dram(64 << 20).value_page_size_max(1 << 20).directory(directory).open("").unwrap();
    refused(create(&db, 4 << 10, 1 << 20), &["segment", "value_page_size_max"]);
}

/// Read-only opens and repairs have a part of the budget: errors name it, and ask for more than was
/// given.
#[test]
fn an_error_of_a_part_of_the_budget_says_whose_part_it_is() {
    let disk = SimulatedDisk::new(3);
    let db = builder(2 << 20).directory(Arc::new(disk.clone())).open("").unwrap();
    table(&db, "t", 2 << 20).put("key", bytes(1, 2_000_000)).unwrap();
    db.flush().unwrap();
    let killed = || Arc::new(disk.killed());
    let open = |dram: u64| untold(2 << 20).dram(dram).read_only(true).directory(killed()).open("");
    let told = |outcome: terrace::Result<()>| match outcome {
        Err(Error::Config(what)) => {
            assert!(what.starts_with("of 50331648 bytes of dram"), "{what}");
            assert!(what.contains("give it about"), "{what}");
        }
        other => panic!("{other:?}"),
    };
    told(open(48 << 20).map(drop));
    let db = open(96 << 20).unwrap();
    assert!(db.open_table("t").unwrap().get("key").unwrap() == Some(bytes(1, 2_000_000)));
    let repair = |dram: u64| {
        untold(2 << 20).dram(dram).repair_in(&*killed(), Arc::new(MemoryDirectory::new())).map(drop)
    };
    told(repair(48 << 20));
    repair(96 << 20).unwrap();
}
