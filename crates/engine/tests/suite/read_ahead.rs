//! Scans that read ahead: what they read, what they leave alone, and failed reads.

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace::{Db, Durability, Error, MemoryDirectory, Mode, SimulatedDisk, Stats, Table, WriteBatch};
use terrace_io::{CallKind, Directory, FaultPlan};

use super::common;

const ENTRIES: u32 = 6000;

fn open(directory: Arc<dyn Directory>, dram: u64) -> (Db, Table) {
    let builder = common::builder().directory(directory).dram(dram).page_size(4096).log_max(1 << 20);
    let db = builder.mode(Mode::Inline).seed(1).open("").unwrap();
    let table = db.open_or_create_table("t").unwrap();
    (db, table)
}

fn value(number: u32) -> Vec<u8> {
    vec![number as u8; 600 + number as usize % 700]
}

/// A table with nothing in memory.
fn cold(directory: &Arc<dyn Directory>, dram: u64) -> (Db, Table) {
    let (db, table) = open(Arc::clone(directory), 8 << 20);
    if table.is_empty().unwrap() {
        for first in (0..ENTRIES).step_by(100) {
            let mut batch = WriteBatch::new();
            (first..first + 100).for_each(|number| {
                batch.put(&table, number.to_be_bytes(), value(number));
            });
            db.write(batch, Durability::Buffered).unwrap();
        }
    }
    drop(table);
    db.close().unwrap();
    open(Arc::clone(directory), dram)
}

fn memory() -> Arc<dyn Directory> {
    Arc::new(MemoryDirectory::new())
}

fn numbers(entries: impl Iterator<Item = terrace::Result<(Vec<u8>, Vec<u8>)>>) -> Vec<u32> {
    let number = |entry: terrace::Result<(Vec<u8>, Vec<u8>)>| {
        let (key, found) = entry.unwrap();
        let number = u32::from_be_bytes(key.try_into().unwrap());
        assert_eq!(found, value(number));
        number
    };
    entries.map(number).collect()
}

#[test]
fn a_long_scan_reads_its_leaves_together() {
    let directory = memory();
    for back in [false, true] {
        let (db, table) = cold(&directory, 8 << 20);
        let before = db.stats();
        let all = match back {
            false => numbers(table.iter()),
            true => numbers(table.iter().rev()).into_iter().rev().collect(),
        };
        assert!(all.into_iter().eq(0..ENTRIES), "back: {back}");
        let Stats { faults, batched_reads, ahead_pages, ahead_used, ahead_unused, .. } = db.stats();
        let read = faults - before.faults;
        assert!(ahead_pages * 10 > read * 8, "{ahead_pages} of {read} pages were read ahead");
        assert!(batched_reads * 8 < ahead_pages, "{batched_reads} batches of {ahead_pages} pages");
        assert_eq!((ahead_used, ahead_unused), (ahead_pages, 0));
        let (reads, pages) = (db.stats().faults, db.stats().ahead_pages);
        assert_eq!(table.iter().take(2000).count(), 2000);
        if db.stats().faults == reads {
            assert_eq!(db.stats().ahead_pages, pages, "it is in memory");
        }
    }
}

#[test]
fn a_scan_that_ends_in_its_first_leaf_reads_nothing_ahead() {
    let directory = memory();
    let (db, table) = cold(&directory, 8 << 20);
    for number in (0..ENTRIES).step_by(500) {
        let entry = table.range(number.to_be_bytes()..).next().unwrap().unwrap();
        assert_eq!(entry.1, value(number));
    }
    assert_eq!(db.stats().ahead_pages, 0);
}

/// Pages beyond a range are not read, so their damage does not matter.
#[test]
fn nothing_is_read_beyond_the_range() {
    let directory = memory();
    let (db, table) = cold(&directory, 8 << 20);
    for (low, high) in [(1000u32, 1012u32), (2000, 2100), (3000, 3003), (4000, 4700)] {
        let before = db.stats();
        let found = numbers(table.range(low.to_be_bytes()..high.to_be_bytes()));
        assert!(found.into_iter().eq(low..high));
        let stats = db.stats();
        // Three or four entries per leaf, the two at the ends, and inner nodes.
        let most = u64::from(high - low) / 3 + 4;
        assert!(
            stats.faults - before.faults <= most,
            "{low}..{high}: {} pages",
            stats.faults - before.faults
        );
        assert_eq!(stats.ahead_used, stats.ahead_pages, "{low}..{high}");
    }
}

#[test]
fn what_is_expected_is_read_at_once() {
    let directory = memory();
    let read = |expected: Option<usize>, inside: bool| {
        let (db, table) = cold(&directory, 8 << 20);
        // A miss before the scan.
        table.get(5000u32.to_be_bytes()).unwrap();
        let before = db.stats();
        let low = 100u32.to_be_bytes();
        let transaction = db.begin();
        let found = match (inside, expected) {
            (false, None) => numbers(table.range(low..).take(90)),
            (false, Some(entries)) => numbers(table.range(low..).expect_entries(entries).take(90)),
            (true, None) => numbers(transaction.range(&table, low..).take(90)),
            (true, Some(entries)) => {
                numbers(transaction.range(&table, low..).expect_entries(entries).take(90))
            }
        };
        assert!(found.into_iter().eq(100..190));
        transaction.commit().unwrap();
        let stats = db.stats();
        (stats.batched_reads - before.batched_reads, stats.faults - before.faults)
    };
    for inside in [false, true] {
        let (adaptive, _) = read(None, inside);
        let (batches, pages) = read(Some(90), inside);
        assert!(batches <= 2 && adaptive > batches, "{batches} batches, {adaptive} without a word");
        assert!(pages <= 90 / 3 + 6, "{pages} pages");
        // More entries than announced.
        let (batches, _) = read(Some(10), inside);
        assert!(batches > 1);
    }
}

#[test]
fn pages_that_were_read_in_vain_are_counted() {
    let directory = memory();
    let (db, table) = cold(&directory, 1 << 20);
    let mut random = SmallRng::seed_from_u64(7);
    for _ in 0..300 {
        let number = random.random_range(0..ENTRIES - 100);
        let found = numbers(table.range(number.to_be_bytes()..).take(8));
        assert!(found.into_iter().eq(number..number + 8));
    }
    let Stats { ahead_pages, ahead_used, ahead_unused, frames, .. } = db.stats();
    assert!(
        ahead_used > 100 && ahead_unused > 20,
        "{ahead_pages} read, {ahead_used} used, {ahead_unused} not"
    );
    let held = ahead_pages - ahead_used - ahead_unused;
    assert!(held <= frames, "{held} of {frames} frames hold pages nobody has looked at");
}

/// Each read of a scan fails once: the scan continues, ends with the error, or never needed the
/// page.
///
/// A second scan finds everything.
#[test]
fn a_failed_read_ahead_fails_nobody_else() {
    let disk = SimulatedDisk::new(1);
    let directory: Arc<dyn Directory> = Arc::new(disk.clone());
    let mut failed = 0;
    for nth in 1..60 {
        let (db, table) = cold(&directory, 1 << 20);
        disk.fail(FaultPlan::once(CallKind::Read, nth, 5));
        let mut next = 500u32;
        for entry in table.range(next.to_be_bytes()..).take(100) {
            match entry {
                Ok((key, found)) => {
                    assert_eq!((&key[..], found), (&next.to_be_bytes()[..], value(next)), "read {nth}");
                    next += 1;
                }
                Err(error) => {
                    assert!(matches!(error, Error::Io { operation: "read", .. }), "read {nth}: {error}");
                    failed += 1;
                }
            }
        }
        disk.mend();
        assert!(numbers(table.range(500u32.to_be_bytes()..).take(100)).into_iter().eq(500..600));
        assert_eq!(db.verify().unwrap().errors, []);
        drop(table);
        db.close().unwrap();
    }
    assert!(failed < 30, "{failed} scans failed, though most reads were ahead");
}

/// A broken disk is reported by the scan that reaches the page, and by no earlier one.
#[test]
fn a_disk_that_stays_broken_is_met_when_the_scan_comes_there() {
    let disk = SimulatedDisk::new(1);
    let directory: Arc<dyn Directory> = Arc::new(disk.clone());
    let (db, table) = cold(&directory, 1 << 20);
    let mut range = table.iter();
    for number in 0..40u32 {
        assert_eq!(range.next().unwrap().unwrap().0, number.to_be_bytes());
    }
    disk.fail(FaultPlan::from_then_on(CallKind::Read, 1, 5));
    let mut number = 40u32;
    let error = loop {
        match range.next().expect("more entries, or an error") {
            Ok((key, _)) => assert_eq!(key, number.to_be_bytes()),
            Err(error) => break error,
        }
        number += 1;
    };
    assert!(matches!(error, Error::Io { operation: "read", .. }), "{error}");
    assert!((41..200).contains(&number), "{number} entries were in memory");
    assert!(range.next().is_none());
    disk.mend();
    assert!(numbers(table.iter()).into_iter().eq(0..ENTRIES));
    assert_eq!(db.verify().unwrap().errors, []);
}

#[test]
fn threads_that_scan_and_write_in_a_tiny_budget() {
    let seed = 0xa4ead;
    println!("seed {seed:#x}");
    let db = common::builder()
        .directory(memory())
        .dram(1 << 20)
        .page_size(4096)
        .log_max(1 << 20)
        .open("")
        .unwrap();
    let table = db.create_table("t").unwrap();
    let fill = |number: u32, version: u8| [&number.to_be_bytes()[..], &vec![version; 900]].concat();
    for number in 0..1500u32 {
        table.put((number * 2).to_be_bytes(), fill(number * 2, 0)).unwrap();
    }
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (db, table) = (&db, &table);
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(seed + thread);
                for round in 0..1000u32 {
                    let number = random.random_range(0..1500u32) * 2;
                    // Odd keys come and go, so that leaves are split and merged.
                    match random.random_range(0..3) {
                        0 => table.put(number.to_be_bytes(), fill(number, round as u8)).map(drop),
                        1 => table.put((number + 1).to_be_bytes(), fill(number + 1, 1)).map(drop),
                        _ => table.delete((number + 1).to_be_bytes()).map(drop),
                    }
                    .unwrap();
                }
                db.flush().unwrap();
            });
        }
        for thread in 2..5u64 {
            let table = &table;
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(seed + thread);
                for _ in 0..150 {
                    let low = random.random_range(0..3000u32);
                    let count = random.random_range(1..200);
                    let range = table.range(low.to_be_bytes()..);
                    let range = if thread == 2 { range.expect_entries(count) } else { range };
                    let mut even = low.next_multiple_of(2);
                    for entry in range.take(count) {
                        let (key, found) = match entry {
                            Err(Error::SnapshotTooOld) => break,
                            entry => entry.unwrap(),
                        };
                        assert_eq!(key, found[..4]);
                        let number = u32::from_be_bytes(key.try_into().unwrap());
                        assert!(number >= low && number <= even, "{even} is missing before {number}");
                        even = (number + 1).next_multiple_of(2);
                    }
                    if thread == 3 {
                        let numbers: Vec<u32> = (0..60).map(|_| random.random_range(0..1500) * 2).collect();
                        let found =
                            table.get_many(numbers.iter().map(|number| number.to_be_bytes())).unwrap();
                        for (number, found) in numbers.iter().zip(found) {
                            assert_eq!(found.unwrap()[..4], number.to_be_bytes());
                        }
                    }
                }
            });
        }
    });
    assert_eq!(db.verify().unwrap().errors, []);
    let stats = db.stats();
    assert!(stats.ahead_used > 0 && stats.reads_in_flight == 0, "{stats:?}");
    assert!(stats.evictions > 1000);
}
