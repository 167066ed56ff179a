//! Planted bugs that show in a whole database: each test passes without its bug and fails with it.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use terrace_io::{CallKind, FaultPlan, MemoryDirectory, SimulatedDisk};

use crate::crash::play;
use crate::planted::{Bug, plant};
use crate::{Concurrency, Db, Durability, Error, Mode, RecordCache, Table, Transaction, WriteBatch};

fn open(disk: &SimulatedDisk) -> Result<Db, String> {
    let builder = Db::builder().directory(Arc::new(disk.clone())).dram(1 << 20).page_size(4096);
    builder.log_max(256 << 10).mode(Mode::Inline).seed(1).open("").map_err(|error| error.to_string())
}

/// Runs `check` with the bug, which must show, and without.
fn caught(bug: Bug, check: fn() -> Result<(), String>) {
    plant(Some(bug));
    let outcome = catch_unwind(AssertUnwindSafe(check));
    plant(None);
    match outcome {
        Ok(Ok(())) => panic!("{bug:?} was not noticed"),
        Ok(Err(what)) => println!("{bug:?}: {what}"),
        Err(_) => println!("{bug:?}: a panic"),
    }
    check().expect("the same passes without the bug");
}

fn text(error: Error) -> String {
    error.to_string()
}

fn expect(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

#[test]
fn catches_timestamps_from_zero() {
    caught(Bug::TimestampsFromZero, || {
        let disk = SimulatedDisk::new(1);
        let db = open(&disk)?;
        let table = db.create_table("t").map_err(text)?;
        for number in 0..20u32 {
            table.put(number.to_be_bytes(), "first life").map_err(text)?;
        }
        drop((table, db));
        let db = open(&disk)?;
        let table = db.open_table("t").map_err(text)?;
        let snapshot = db.snapshot();
        table.put(7u32.to_be_bytes(), "second life").map_err(text)?;
        let seen = snapshot.get(&table, 7u32.to_be_bytes()).map_err(text)?;
        expect(seen.as_deref() == Some(b"first life"), "a snapshot sees what came after it, or nothing")?;
        expect(db.verify().map_err(text)?.is_ok(), "timestamps above the clock")
    });
}

#[test]
fn catches_skip_directory_sync() {
    caught(Bug::SkipDirectorySync, || {
        for seed in 0..50 {
            let disk = SimulatedDisk::new(seed);
            let db = open(&disk)?;
            let table = db.create_table("t").map_err(text)?;
            table.put("key", "acknowledged").map_err(text)?;
            let left = disk.survivor(seed);
            let db = open(&left)?;
            let table = db.open_table("t").map_err(text)?;
            expect(table.contains("key").map_err(text)?, "an acknowledged commit is gone")?;
        }
        Ok(())
    });
}

#[test]
fn catches_commits_acknowledged_before_the_flush() {
    caught(Bug::AcknowledgeBeforeFlush, || {
        for seed in 0..20 {
            let disk = SimulatedDisk::new(seed);
            let db = open(&disk)?;
            let table = db.create_table("t").map_err(text)?;
            for number in 0..20u32 {
                table.put(number.to_be_bytes(), "acknowledged").map_err(text)?;
            }
            let db = open(&disk.survivor(seed))?;
            let table = db.open_table("t").map_err(text)?;
            expect(table.len().map_err(text)? == 20, "acknowledged commits are gone")?;
        }
        Ok(())
    });
}

#[test]
fn catches_read_own_stale_version() {
    caught(Bug::ReadOwnStaleVersion, || {
        let db = open(&SimulatedDisk::new(1))?;
        let table = db.create_table("t").map_err(text)?;
        table.put("key", "old").map_err(text)?;
        let transaction = db.begin();
        transaction.put(&table, "key", "new").map_err(text)?;
        let got = transaction.get(&table, "key").map_err(text)?;
        expect(got.as_deref() == Some(b"new"), "an own write is not read")?;
        let all: Vec<_> = transaction.prefix(&table, "").collect();
        expect(all.len() == 1 && all[0].as_ref().is_ok_and(|(_, value)| value == b"new"), "nor scanned")
    });
}

#[test]
fn catches_part_by_page_offset() {
    caught(Bug::PartByPageOffset, || {
        let db = open(&SimulatedDisk::new(1))?;
        let table = db.create_table("t").map_err(text)?;
        table.put("key", "0123456789").map_err(text)?;
        let snapshot = db.snapshot();
        table.update_range("key", 4, "ab").map_err(text)?;
        let seen = snapshot.get(&table, "key").map_err(text)?;
        expect(seen.as_deref() == Some(b"0123456789"), "a snapshot sees another value")?;
        for number in 0..60u32 {
            table.put(number.to_be_bytes(), [0; 100]).map_err(text)?;
        }
        let seen = snapshot.get(&table, "key").map_err(text)?;
        expect(seen.as_deref() == Some(b"0123456789"), "nor after the entry has moved")
    });
}

/// A commit over more leaves than frames fails halfway; nothing may change.
fn failed_halfway() -> Result<(), String> {
    let disk = SimulatedDisk::new(1);
    let builder = Db::builder().directory(Arc::new(disk.clone())).dram(1 << 20).page_size(4096);
    let db = builder.log_max(2 << 20).mode(Mode::Inline).seed(1).open("").map_err(text)?;
    let table = db.create_table("t").map_err(text)?;
    table.put([0; 4], vec![1; 9000]).map_err(text)?;
    for number in 1..600u32 {
        table.put(number.to_be_bytes(), vec![1; 1000]).map_err(text)?;
    }
    db.checkpoint().map_err(text)?;
    for nth in (100..500).step_by(7) {
        let mut batch = WriteBatch::new();
        (0..600u32).step_by(3).for_each(|number| _ = batch.put(&table, number.to_be_bytes(), [2; 90]));
        disk.fail(FaultPlan::once(CallKind::Read, nth, 5));
        let records = db.stats().log_records;
        let outcome = db.write(batch, Durability::Sync);
        disk.mend();
        let error = outcome.err().ok_or("no commit failed halfway")?;
        expect(matches!(error, Error::Io { operation: "read", .. }), &error.to_string())?;
        if db.stats().log_records > records {
            break;
        }
    }
    // Frees the garbage.
    db.checkpoint().map_err(text)?;
    let mut seen = table.iter();
    expect(seen.all(|row| row.is_ok_and(|(_, value)| value[0] == 1)), "half of a failed commit is seen")?;
    expect(db.verify().map_err(text)?.is_ok(), "a page that is in use was freed")
}

#[test]
fn catches_leave_aborted_changes() {
    caught(Bug::LeaveAbortedChanges, failed_halfway);
}

#[test]
fn catches_free_restored_value() {
    caught(Bug::FreeRestoredValue, failed_halfway);
}

/// Two transactions each see an empty range and insert into it; only one may commit.
///
/// The second one validates after the first one has, and before that one's first change.
fn phantoms(bug: Option<Bug>) -> Result<(), String> {
    let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(2 << 20).seed(1);
    // With timestamp ordering the second one waits for the first.
    let builder = builder.concurrency(Concurrency::Occ);
    let db = builder.mode(Mode::Inline).durability(Durability::Buffered).open("").map_err(text)?;
    let range = db.create_table("range").map_err(text)?;
    let begin = |db: &Db, range: &Table, me: &str| -> crate::Result<Transaction> {
        let transaction = db.begin();
        assert_eq!(transaction.iter(range).count(), 0);
        transaction.put(range, me, "")?;
        Ok(transaction)
    };
    let first = begin(&db, &range, "first").map_err(text)?;
    let second: Rc<RefCell<Option<JoinHandle<bool>>>> = Rc::default();
    let (shared, played) = (db.clone(), Rc::clone(&second));
    play(Some(Rc::new(move |_| {
        if played.borrow().is_some() {
            return;
        }
        let (db, range, records) = (shared.clone(), range.clone(), shared.stats().log_records);
        let thread = std::thread::spawn(move || {
            plant(bug);
            begin(&db, &range, "second").unwrap().commit().is_ok()
        });
        // It becomes visible after the first one only.
        while shared.stats().log_records == records && !thread.is_finished() {
            std::thread::yield_now();
        }
        *played.borrow_mut() = Some(thread);
    })));
    let first = first.commit().is_ok();
    play(None);
    let second =
        second.take().ok_or("the first transaction made no change")?.join().expect("it panics by itself");
    expect(first || second, "nothing was committed")?;
    expect(!(first && second), "two transactions inserted into a range that each had seen empty")
}

#[test]
fn catches_no_range_check() {
    println!("{:?}", phantoms(Some(Bug::NoRangeCheck)).expect_err("the bug was not noticed"));
    phantoms(None).expect("the same passes without the bug");
}

#[test]
fn catches_record_of_other_image() {
    caught(Bug::RecordOfOtherImage, || {
        let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(2 << 20).seed(1);
        let builder = builder.mode(Mode::Inline).durability(Durability::Buffered);
        let db = builder.record_cache(RecordCache::Percent(50)).open("").map_err(text)?;
        let table = db.create_table("t").map_err(text)?;
        let key = |number: u32| (number * 37 % 30_000).to_be_bytes();
        for number in 0..30_000 {
            table.put(key(number), [1; 100]).map_err(text)?;
        }
        for round in 1..4u8 {
            for number in 0..6_000 {
                table.get(key(number % 300 * 3)).map_err(text)?;
                table.get(key(number * 5)).map_err(text)?;
            }
            for number in 0..100 {
                table.put(key(number * 3), [round; 100]).map_err(text)?;
            }
            for number in 10_000..20_000 {
                table.get(key(number)).map_err(text)?;
            }
            for number in 0..100 {
                let found = table.get(key(number * 3)).map_err(text)?;
                expect(found == Some(vec![round; 100]), "a record as it was before it was changed")?;
            }
        }
        Ok(())
    });
}

/// A page in the middle tier is dirty and changes in place, so only its version tells the records
/// of it apart.
#[test]
fn catches_record_of_other_version() {
    caught(Bug::RecordOfOtherVersion, || {
        let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(2 << 20).seed(1);
        let middle = "simulated:dram,8MiB".parse().expect("a middle tier");
        let builder = builder.middle(middle).policy("0,0,1,1".parse().expect("a policy"));
        let builder = builder.mode(Mode::Inline).durability(Durability::Buffered);
        let db = builder.record_cache(RecordCache::Percent(50)).open("").map_err(text)?;
        let table = db.create_table("t").map_err(text)?;
        let key = |number: u32| number.to_be_bytes();
        for number in 0..2000 {
            table.put(key(number), [0; 100]).map_err(text)?;
        }
        for round in 0..3u8 {
            for number in 0..2000 * 30 {
                let found = table.get(key(number % 2000)).map_err(text)?;
                expect(found == Some(vec![round; 100]), "a record as it was before it was changed")?;
            }
            for number in 0..2000 {
                table.put(key(number), [round + 1; 100]).map_err(text)?;
            }
        }
        let stats = db.stats();
        let middle = stats.middle.as_ref().expect("it has a middle tier");
        expect(stats.records.middle_hits > 100_000, "few records were cached")?;
        expect(middle.writes_in_place > 6000 && stats.faults == 0, "the pages did not stay")
    });
}
