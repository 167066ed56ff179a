//! Entry counts: exact at any moment, during concurrent work, and after a crash.
//!
//! Power cuts at any call are in `crash.rs`, which verifies every recovered database with its
//! counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace::{Db, Durability, Error, MemoryDirectory, Mode, Result, SimulatedDisk, Table};

use super::common;

fn open(disk: &SimulatedDisk) -> Db {
    let builder = common::builder().directory(Arc::new(disk.clone())).dram(1 << 20).log_max(256 << 10);
    builder.mode(Mode::Inline).seed(1).open("").unwrap()
}

fn fill(table: &Table, keys: u32) {
    (0..keys).for_each(|number| table.put(number.to_be_bytes(), [number as u8; 100]).unwrap());
}

#[test]
fn a_count_survives_closing_and_costs_no_walk() {
    let disk = SimulatedDisk::new(1);
    let db = open(&disk);
    let (one, other) = (db.create_table("one").unwrap(), db.create_table("other").unwrap());
    fill(&one, 3000);
    fill(&other, 7);
    db.create_table("empty").unwrap();
    assert_eq!(one.len_if_known().unwrap(), Some(3000));
    drop((one, other));
    db.close().unwrap();
    let db = open(&disk);
    let faults = db.stats().faults;
    for (name, entries) in [("one", 3000), ("other", 7), ("empty", 0)] {
        let table = db.open_table(name).unwrap();
        assert_eq!(table.len_if_known().unwrap(), Some(entries), "{name}");
        assert_eq!((table.len().unwrap(), table.approximate_len().unwrap()), (entries, entries));
    }
    assert!(db.stats().faults - faults < 8, "{} pages were read", db.stats().faults - faults);
    db.rename_table("one", "renamed").unwrap();
    db.drop_table("other").unwrap();
    let other = db.create_table("other").unwrap();
    assert_eq!(other.len_if_known().unwrap(), Some(0), "not that of the table dropped");
    drop(other);
    db.close().unwrap();
    // Opened and closed without changes: nothing is saved.
    open(&disk).close().unwrap();
    let db = open(&disk);
    assert_eq!(db.open_table("renamed").unwrap().len_if_known().unwrap(), Some(3000));
    assert_eq!(db.open_table("other").unwrap().len_if_known().unwrap(), Some(0));
}

#[test]
fn a_count_saved_before_a_crash_is_not_believed_after_it() {
    let disk = SimulatedDisk::new(2);
    let db = open(&disk);
    let (one, other) = (db.create_table("one").unwrap(), db.create_table("other").unwrap());
    fill(&one, 500);
    fill(&other, 500);
    drop((one, other));
    db.close().unwrap();

    let db = open(&disk);
    let (one, other) = (db.open_table("one").unwrap(), db.open_table("other").unwrap());
    assert!(one.delete(3u32.to_be_bytes()).unwrap());
    other.put("added", "x").unwrap();
    fill(&db.create_table("made since").unwrap(), 30);
    let disk = disk.killed();
    drop((one, other, db));

    let db = open(&disk);
    let one = db.open_table("one").unwrap();
    assert_eq!(one.len_if_known().unwrap(), None);
    assert!(one.approximate_len().unwrap().abs_diff(499) <= 32);
    assert_eq!(one.len().unwrap(), 499);
    assert_eq!(one.len_if_known().unwrap(), Some(499), "counted once");
    one.put("more", "x").unwrap();
    assert_eq!(one.len_if_known().unwrap(), Some(500));
    drop(one);
    db.close().unwrap();

    // The second table was not opened since the crash: its saved count is from before.
    let db = open(&disk);
    assert_eq!(db.open_table("one").unwrap().len_if_known().unwrap(), Some(500));
    for (name, entries) in [("other", 501), ("made since", 30)] {
        let table = db.open_table(name).unwrap();
        assert_eq!(table.len_if_known().unwrap(), None, "{name}");
        assert_eq!(table.len().unwrap(), entries, "{name}");
    }
    assert_eq!(db.verify().unwrap().errors, []);
}

/// The count saved while the database is open is close, however long ago it was closed.
#[test]
fn after_a_crash_the_approximate_count_lags_by_an_eighth_of_the_log_at_most() {
    let disk = SimulatedDisk::new(3);
    let db = open(&disk);
    let table = db.create_table("t").unwrap();
    fill(&table, 20_000);
    let disk = disk.killed();
    drop((table, db));
    let db = open(&disk);
    let table = db.open_table("t").unwrap();
    assert_eq!(table.len_if_known().unwrap(), None);
    // An entry takes more than 180 bytes of log. A collection, which checks whether to save, comes
    // every 64 commits.
    let most = (256 << 10) / 8 / 180 + 64;
    let about = table.approximate_len().unwrap();
    assert!((20_000 - most..=20_000).contains(&about), "about {about} entries");
    assert_eq!(table.len().unwrap(), 20_000);
}

#[test]
fn verification_counts_what_was_not_known() {
    let disk = SimulatedDisk::new(4);
    let db = open(&disk);
    let table = db.create_table("t").unwrap();
    fill(&table, 100);
    let disk = disk.killed();
    drop((table, db));
    let db = open(&disk);
    assert_eq!(db.verify().unwrap().errors, []);
    assert_eq!(db.open_table("t").unwrap().len_if_known().unwrap(), Some(100));
}

/// Entries of the table whose count is of one moment.
const ENTRIES: u64 = 3000;

/// Moves entries to free keys, each in a transaction of its own.
fn move_entries(db: &Db, table: &Table, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut key = || random.random_range(0..2 * ENTRIES as u32).to_be_bytes();
    for _ in 0..3000 {
        let (from, to) = (key(), key());
        db.update(|transaction| {
            if transaction.contains(table, from)? && !transaction.contains(table, to)? {
                transaction.delete(table, from)?;
                transaction.put(table, to, "moved")?;
            }
            Ok::<_, terrace::Error>(())
        })
        .unwrap();
    }
}

/// Counts after single changes in another table, whose count is separate.
fn count_single_changes(db: &Db) {
    let single = db.create_table("single").unwrap();
    for number in 0..2000u32 {
        single.put(number.to_be_bytes(), "x").unwrap();
        assert_eq!(single.len().unwrap(), 1);
        assert!(single.delete(number.to_be_bytes()).unwrap());
    }
}

/// Transactions that remove one entry and add another keep the number.
///
/// Readers find that number, though the two are counted one after the other, and also during the
/// first walk after a crash.
#[test]
fn a_count_is_of_one_moment() {
    let seed = 0xc0_0417;
    println!("seed {seed:#x}");
    let directory = Arc::new(MemoryDirectory::new());
    let disk = SimulatedDisk::new(5);
    for crashed in [false, true] {
        let builder = || {
            let builder = common::builder().dram(2 << 20).durability(Durability::Buffered);
            if crashed {
                builder.directory(Arc::new(disk.clone()))
            } else {
                builder.directory(directory.clone())
            }
        };
        let mut db = builder().mode(Mode::Inline).open("").unwrap();
        let mut table = db.create_table("t").unwrap();
        fill(&table, ENTRIES as u32);
        if crashed {
            db.flush().unwrap();
            let left = Arc::new(disk.killed());
            drop((table, db));
            db = common::builder()
                .directory(left)
                .dram(2 << 20)
                .durability(Durability::Buffered)
                .open("")
                .unwrap();
            table = db.open_table("t").unwrap();
            assert_eq!(table.len_if_known().unwrap(), None);
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (db, table, stop) = (&db, &table, &stop);
            let movers: Vec<_> = (0..3u64)
                .map(|thread| {
                    scope.spawn(move || {
                        move_entries(db, table, seed + thread);
                    })
                })
                .collect();
            let counter = scope.spawn(move || {
                // Once at least, however late this thread runs.
                loop {
                    assert_eq!(table.len().unwrap(), ENTRIES, "crashed: {crashed}");
                    if stop.load(SeqCst) {
                        break;
                    }
                }
            });
            count_single_changes(db);
            let results: Vec<_> = movers.into_iter().map(|mover| mover.join()).collect();
            stop.store(true, SeqCst);
            results.into_iter().for_each(|result| result.unwrap());
            counter.join().unwrap();
        });
        assert_eq!(table.len().unwrap(), ENTRIES);
        assert_eq!(db.verify().unwrap().errors, []);
        db.close().unwrap();
    }
}

#[test]
fn a_transaction_that_is_alone_may_count() {
    let db = common::builder().directory(Arc::new(MemoryDirectory::new())).dram(2 << 20).open("").unwrap();
    let table = db.create_table("t").unwrap();
    fill(&table, 10);
    let mut conflicts = 0;
    db.update(|transaction| {
        let _ = transaction.get(&table, 1u32.to_be_bytes())?;
        if db.stats().alone == 0 {
            // Simulates conflicts until this transaction has priority.
            conflicts += 1;
            return Err(Error::Conflict);
        }
        assert_eq!(table.len()?, 10);
        transaction.put(&table, "k", "v")
    })
    .unwrap();
    assert!(conflicts > 0 && db.stats().alone == 1);
    assert_eq!(table.len().unwrap(), 11);
}

#[test]
fn a_dropped_table_has_no_count() -> Result<()> {
    let db = common::builder().directory(Arc::new(MemoryDirectory::new())).dram(2 << 20).open("")?;
    let table = db.create_table("t")?;
    db.drop_table("t")?;
    for outcome in [table.len(), table.approximate_len(), table.len_if_known().map(Option::unwrap_or_default)]
    {
        assert!(matches!(outcome, Err(Error::TableNotFound(_))), "{outcome:?}");
    }
    Ok(())
}
