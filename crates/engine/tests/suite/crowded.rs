//! Transactions that split many leaves: one small entry into each of many full leaves.

use std::sync::Arc;

use terrace::{Builder, Db, Durability, Error, Mode, SimulatedDisk, Table, WriteBatch};

use super::common;

const MODES: [Mode; 2] = [Mode::Inline, Mode::Background];

/// A table of full leaves, loaded in ascending order, and its database.
fn full_leaves(disk: &SimulatedDisk, mode: Mode, log_bytes: u64) -> (Db, Table) {
    let builder = common::builder().directory(Arc::new(disk.clone())).dram(4 << 20).page_size(4096);
    let db = builder.log_max(log_bytes).mode(mode).seed(1).open("").unwrap();
    let table = db.create_table("t").unwrap();
    for first in (0..20_000u32).step_by(100) {
        let mut batch = WriteBatch::new();
        (first..first + 100).for_each(|number| _ = batch.put(&table, key(number * 10), [7; 100]));
        db.write(batch, Durability::Buffered).unwrap();
    }
    db.checkpoint().unwrap();
    (db, table)
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// One entry for each of `count` leaves.
fn scattered(table: &Table, count: u32) -> WriteBatch {
    let mut batch = WriteBatch::new();
    (0..count).for_each(|number| _ = batch.put(table, key(number * 600 + 305), [9; 100]));
    batch
}

#[test]
fn a_batch_may_split_more_leaves_than_the_log_holds_records_for() {
    for mode in MODES {
        let disk = SimulatedDisk::new(1);
        let (db, table) = full_leaves(&disk, mode, 256 << 10);
        let log_records = db.stats().log_records;
        db.write(scattered(&table, 300), Durability::Sync).unwrap();
        assert!(db.stats().log_records > log_records + 600, "the leaves were split");
        assert_eq!(table.len().unwrap(), 20_300);
        assert_eq!(db.verify().unwrap().errors, []);
    }
}

#[test]
fn a_batch_that_finds_the_disk_full_changes_nothing_and_reads_go_on() {
    for mode in MODES {
        let disk = SimulatedDisk::new(1);
        let (db, table) = full_leaves(&disk, mode, 4 << 20);
        disk.set_capacity(0);
        let accepted = (0..40)
            .map(|round| {
                let mut batch = WriteBatch::new();
                (0..300).for_each(|n| _ = batch.put(&table, key(n * 600 + 301 + round), [9; 100]));
                db.write(batch, Durability::Sync)
            })
            .take_while(|outcome| !matches!(outcome, Err(Error::Full { .. })))
            .inspect(|outcome| assert!(outcome.is_ok(), "{outcome:?}"))
            .count();
        assert!(accepted < 40, "the disk never was full");
        assert_eq!(table.len().unwrap(), 20_000 + accepted as u64 * 300);
        disk.set_capacity(u64::MAX);
        db.write(scattered(&table, 300), Durability::Sync).unwrap();
        assert_eq!(db.verify().unwrap().errors, []);
    }
}

/// Tables of one full leaf each.
fn full_tables(disk: &SimulatedDisk, mode: Mode, count: u32) -> (Db, Vec<Table>) {
    let builder = common::builder().directory(Arc::new(disk.clone())).dram(4 << 20).page_size(4096);
    let db = builder.log_max(256 << 10).mode(mode).seed(1).open("").unwrap();
    let table = |number| {
        let table = db.create_table(&format!("table {number}")).unwrap();
        let mut batch = WriteBatch::new();
        (0..30u32).for_each(|number| _ = batch.put(&table, key(number), [7; 100]));
        db.write(batch, Durability::Buffered).unwrap();
        table
    };
    let tables = (0..count).map(table).collect();
    db.checkpoint().unwrap();
    (db, tables)
}

/// One entry for each table.
fn one_for_each(tables: &[Table], number: u32) -> WriteBatch {
    let mut batch = WriteBatch::new();
    tables.iter().for_each(|table| _ = batch.put(table, key(number), [9; 100]));
    batch
}

#[test]
fn the_crowded_leaves_of_many_tables_count_together() {
    for mode in MODES {
        let disk = SimulatedDisk::new(1);
        let (db, tables) = full_tables(&disk, mode, 100);
        for number in 100..103 {
            db.write(one_for_each(&tables, number), Durability::Sync).unwrap();
        }
        assert!(tables.iter().all(|table| table.len().unwrap() == 33));
        disk.set_capacity(0);
        let accepted = (200..300)
            .map(|number| db.write(one_for_each(&tables, number), Durability::Sync))
            .take_while(|outcome| !matches!(outcome, Err(Error::Full { .. })))
            .inspect(|outcome| assert!(outcome.is_ok(), "{outcome:?}"))
            .count();
        assert!(tables.iter().all(|table| table.len().unwrap() == 33 + accepted as u64));
        disk.set_capacity(u64::MAX);
        db.write(one_for_each(&tables, 300), Durability::Sync).unwrap();
        assert_eq!(db.verify().unwrap().errors, []);
    }
}

/// Threads that write long values and transactions near the smallest budget; returns their errors.
///
/// The database must be sound afterwards.
fn crowd(threads: u32, rounds: u32, builder: Builder) -> Vec<String> {
    let disk = SimulatedDisk::new(1);
    let db = builder.directory(Arc::new(disk)).mode(Mode::Background).seed(1).open("").unwrap();
    let db = &db;
    let table = &db.open_or_create_table("t").unwrap();
    let work = |thread: u32| {
        let mut refused = Vec::new();
        for round in 0..rounds {
            let written = match round % 2 {
                0 => table.put(format!("{thread} long {}", round % 6), vec![thread as u8; 160_000]).map(drop),
                _ => db.update(|transaction| {
                    for number in 0..20 {
                        let key = format!("{thread} {}", (round * 97 + number * 31) % 1000);
                        transaction.put(table, key, vec![round as u8; 1500])?;
                    }
                    Ok(())
                }),
            };
            refused.extend(written.err().map(|error| error.to_string()));
        }
        refused
    };
    let refused = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        all.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(db.verify().unwrap().errors, []);
    refused
}

/// Each thread briefly needs half of the frames.
#[test]
fn threads_that_have_few_frames_for_long_values_wait_for_each_other() {
    let builder = common::builder().dram(2 << 20).page_size(16 << 10).log_max(1 << 20);
    assert_eq!(crowd(4, 24, builder), [""; 0]);
}

/// Each thread briefly needs a good part of the log.
#[test]
fn threads_that_have_little_log_wait_for_each_other_and_no_disk_is_full() {
    let builder = common::builder().dram(1 << 20).page_size(4096).log_max(256 << 10);
    assert_eq!(crowd(16, 8, builder), [""; 0]);
}
