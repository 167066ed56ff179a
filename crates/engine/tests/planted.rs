//! The planted bugs that a whole database shows: each test passes without its bug and fails with it.
#![cfg(feature = "planted-bugs")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use terrace::planted::{Bug, plant};
use terrace::{Db, Durability, Error, MemoryDirectory, Mode, SimulatedDisk};

fn open(disk: &SimulatedDisk) -> Result<Db, String> {
    let builder = Db::builder().directory(Arc::new(disk.clone())).dram(1 << 20).page_size(4096);
    builder.log_max(256 << 10).mode(Mode::Inline).seed(1).open("").map_err(|error| error.to_string())
}

/// Runs `check` with the bug, which must show, and without, which must not.
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
        let mut transaction = db.begin();
        transaction.put(&table, "key", "new").map_err(text)?;
        let got = transaction.get(&table, "key").map_err(text)?;
        expect(got.as_deref() == Some(b"new"), "an own write is not read")?;
        let all: Vec<_> = transaction.prefix(&table, "").collect();
        expect(all.len() == 1 && all[0].as_ref().is_ok_and(|(_, value)| value == b"new"), "nor scanned")
    });
}

/// Two transactions that each see an empty range and put a key into it. Only one of the two may commit.
fn phantoms(bug: Option<Bug>, rounds: u32) -> Result<(), String> {
    let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(8 << 20);
    let db = builder.durability(Durability::Buffered).open("").map_err(text)?;
    // Written before the keys of the range, which makes the time between validating and applying longer.
    let first = db.create_table("first").map_err(text)?;
    let range = db.create_table("range").map_err(text)?;
    range.put("far below", "").map_err(text)?;
    for round in 0..rounds {
        let ready = AtomicU32::new(0);
        let insert = |me: u32| {
            plant(bug);
            let mut transaction = db.begin();
            let seen = transaction.prefix(&range, round.to_be_bytes()).count();
            for number in 0..300u32 {
                transaction.put(&first, [me, number].map(u32::to_be_bytes).concat(), [0; 10]).unwrap();
            }
            transaction.put(&range, [round, me].map(u32::to_be_bytes).concat(), "").unwrap();
            ready.fetch_add(1, SeqCst);
            while ready.load(SeqCst) < 2 {
                std::thread::yield_now();
            }
            seen == 0 && transaction.commit().is_ok()
        };
        let both = std::thread::scope(|scope| {
            let other = scope.spawn(|| insert(1));
            let mine = insert(2);
            other.join().unwrap() && mine
        });
        expect(!both, "two transactions inserted into a range that each had seen empty")?;
    }
    Ok(())
}

#[test]
fn catches_no_range_check() {
    let outcome = phantoms(Some(Bug::NoRangeCheck), 3000);
    plant(None);
    println!("{:?}", outcome.expect_err("the bug was not noticed"));
    phantoms(None, 500).expect("the same passes without the bug");
}
