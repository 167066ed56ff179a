//! Range deletion: all or nothing, for all readers, whatever fails; see decision 8.
//!
//! Models and random power cuts are in `model.rs` and `crash.rs`.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace::{Db, Durability, Error, MemoryDirectory, Mode, Result, SimulatedDisk, Table};
use terrace_io::{CallKind, FaultPlan};

use super::common;

fn open_on(disk: &SimulatedDisk) -> Result<Db> {
    let builder = common::builder().directory(Arc::new(disk.clone())).dram(1 << 20).page_size(4096);
    builder.log_max(256 << 10).mode(Mode::Inline).seed(1).open("")
}

fn fill(table: &Table, keys: u32, bytes: usize) {
    (0..keys).for_each(|number| table.put(number.to_be_bytes(), vec![number as u8; bytes]).unwrap());
}

/// The numbers in the table; checks each value.
fn numbers(table: &Table, bytes: usize) -> Result<Vec<u32>> {
    let number = |entry: Result<(Vec<u8>, Vec<u8>)>| {
        let (key, value) = entry?;
        let number = u32::from_be_bytes(key.try_into().expect("four bytes"));
        assert!(value.len() == bytes && value.iter().all(|&byte| byte == number as u8), "value of {number}");
        Ok(number)
    };
    table.iter().map(number).collect()
}

#[test]
fn bounds_of_every_kind_are_kept() {
    let db = common::builder().directory(Arc::new(MemoryDirectory::new())).dram(2 << 20).open("").unwrap();
    let table = db.create_table("t").unwrap();
    let key = |number: u32| number.to_be_bytes().to_vec();
    let ranges = [
        (Bound::Included(key(10)), Bound::Included(key(20)), 11),
        (Bound::Excluded(key(10)), Bound::Excluded(key(20)), 9),
        (Bound::Unbounded, Bound::Excluded(key(3)), 3),
        (Bound::Included(key(95)), Bound::Unbounded, 5),
        (Bound::Included(key(50)), Bound::Excluded(key(50)), 0),
        (Bound::Included(key(60)), Bound::Included(key(40)), 0),
        (Bound::Unbounded, Bound::Unbounded, 100),
    ];
    for (low, high, expected) in ranges {
        fill(&table, 100, 20);
        let before = db.snapshot();
        assert_eq!(table.delete_range((low.clone(), high.clone())).unwrap(), expected, "{low:?} {high:?}");
        assert_eq!(table.len().unwrap(), 100 - expected);
        let inverted = matches!((&low, &high), (Bound::Included(low), Bound::Included(high)) if low > high);
        assert!(inverted || table.range((low, high)).next().is_none());
        assert_eq!(before.len(&table).unwrap(), 100, "a snapshot keeps what it saw");
    }
    assert_eq!(table.delete_range::<&[u8]>(..).unwrap(), 0);
    assert_eq!(db.verify().unwrap().errors, []);
}

/// Emptied pages are freed, those of large values too.
#[test]
fn what_a_range_took_is_free_again() {
    let directory = Arc::new(MemoryDirectory::new());
    let db = common::builder().directory(directory).dram(16 << 20).mode(Mode::Inline).open("").unwrap();
    let table = db.create_table("t").unwrap();
    let empty = db.stats().live_pages;
    fill(&table, 3000, 500);
    (0..20u8).for_each(|number| table.put([1, number], vec![number; 50_000]).unwrap());
    assert!(table.pages().unwrap() > 300);
    assert_eq!(table.delete_range::<&[u8]>(..).unwrap(), 3020);
    db.checkpoint().unwrap();
    assert_eq!(table.pages().unwrap(), 1);
    assert_eq!(db.stats().live_pages, empty);
    assert_eq!(db.verify().unwrap().errors, []);
}

/// Inserts pairs of a low and a high key, and counts the entries.
fn insert_pairs(db: &Db, table: &Table, seed: u64, thread: u64, inserted: &AtomicU64) {
    let mut random = SmallRng::seed_from_u64(seed + thread);
    for round in 0..1500u64 {
        let tail = [random.random(), thread as u8, (round >> 8) as u8, round as u8];
        db.update(|transaction| {
            for side in [b'a', b'z'] {
                let key = [&[side][..], &tail].concat();
                transaction.put(table, key, vec![side; 150])?;
            }
            Ok::<_, Error>(())
        })
        .unwrap();
        inserted.fetch_add(2, SeqCst);
    }
}

/// Deletes all entries, then those that came since in a transaction, and counts them.
fn delete_all_in_two_ways(db: &Db, table: &Table, deleted: &AtomicU64) {
    deleted.fetch_add(table.delete_range::<&[u8]>(..).unwrap(), SeqCst);
    // In a transaction with other work, partly rolled back.
    let mut removed = 0;
    db.update(|transaction| {
        removed = transaction.delete_range(table, "a".."b")?;
        removed += transaction.delete_range(table, "z"..)?;
        let savepoint = transaction.savepoint();
        transaction.put(table, "m", "never seen")?;
        transaction.delete_range::<&[u8]>(table, ..)?;
        transaction.rollback_to(&savepoint)
    })
    .unwrap();
    deleted.fetch_add(removed, SeqCst);
}

/// Writers insert a low and a high key per transaction; deleters take whole ranges.
///
/// Readers see both keys of a pair or none, and exactly one deleter counts each entry.
#[test]
fn nobody_sees_a_part_of_a_deletion_and_nobody_is_missed() {
    let seed = 0xde1e7e;
    println!("seed {seed:#x}");
    let directory = Arc::new(MemoryDirectory::new());
    let builder = common::builder().directory(directory).dram(4 << 20).durability(Durability::Buffered);
    // Room for all entries ever written.
    let db = builder.log_max(16 << 20).open("").unwrap();
    let table = db.create_table("t").unwrap();
    let (stop, inserted, deleted) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let check = |keys: Vec<Vec<u8>>| {
        let (low, high): (Vec<_>, Vec<_>) = keys.into_iter().partition(|key| key[0] == b'a');
        let tails = |keys: Vec<Vec<u8>>| keys.into_iter().map(|key| key[1..].to_vec()).collect::<Vec<_>>();
        assert_eq!(tails(low), tails(high));
    };
    std::thread::scope(|scope| {
        let (db, table, stop, inserted, deleted, check) = (&db, &table, &stop, &inserted, &deleted, &check);
        let writers: Vec<_> = (0..2u64)
            .map(|thread| {
                scope.spawn(move || {
                    insert_pairs(db, table, seed, thread, inserted);
                })
            })
            .collect();
        scope.spawn(move || {
            // Once at least, however late this thread runs.
            loop {
                delete_all_in_two_ways(db, table, deleted);
                if stop.load(SeqCst) {
                    break;
                }
            }
        });
        scope.spawn(move || {
            loop {
                let keys = table.iter().map(|entry| entry.map(|(key, _)| key)).collect::<Result<Vec<_>>>();
                match keys {
                    Ok(keys) => check(keys),
                    Err(Error::SnapshotTooOld) => {}
                    Err(error) => panic!("{error}"),
                }
                check(
                    db.update(|transaction| {
                        let entries = transaction.range::<&[u8]>(table, ..);
                        entries.map(|entry| entry.map(|(key, _)| key)).collect::<Result<Vec<_>>>()
                    })
                    .unwrap(),
                );
                if stop.load(SeqCst) {
                    break;
                }
            }
        });
        let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        stop.store(true, SeqCst);
        results.into_iter().for_each(|result| result.unwrap());
    });
    let left = table.len().unwrap();
    assert_eq!(inserted.load(SeqCst), deleted.load(SeqCst) + left);
    assert!(deleted.load(SeqCst) > 0);
    assert_eq!(db.verify().unwrap().errors, []);
}

#[test]
fn a_range_beyond_the_log_is_refused_whole_and_removed_in_steps() {
    let disk = SimulatedDisk::new(1);
    let db = open_on(&disk).unwrap();
    let table = db.create_table("t").unwrap();
    fill(&table, 3000, 300);
    let error = table.delete_range::<&[u8]>(..).unwrap_err();
    assert!(
        matches!(error, Error::TransactionTooLarge { bytes, max, reads: false } if bytes > max),
        "{error}"
    );
    let transaction = db.begin();
    transaction.put(&table, 5000u32.to_be_bytes(), [136; 300]).unwrap();
    let error = transaction.delete_range::<&[u8]>(&table, ..).unwrap_err();
    assert!(matches!(error, Error::TransactionTooLarge { .. }), "{error}");
    transaction.commit().unwrap();
    assert_eq!(numbers(&table, 300).unwrap().len(), 3001, "nothing was removed");
    assert_eq!(table.delete_range_in_steps(100u32.to_be_bytes()..).unwrap(), 2901);
    assert_eq!(numbers(&table, 300).unwrap(), (0..100).collect::<Vec<_>>());
    assert_eq!(db.verify().unwrap().errors, []);
}

/// The power goes at each call of the disk in turn, during a deletion that takes a good part of the
/// log.
#[test]
fn a_deletion_cut_off_anywhere_is_whole_or_has_not_happened() {
    let disk = SimulatedDisk::new(3);
    let db = open_on(&disk).unwrap();
    fill(&db.create_table("t").unwrap(), 300, 200);
    db.close().unwrap();
    let (mut whole, mut nothing) = (0, 0);
    for call in 1.. {
        let disk = disk.survivor(call);
        let deleted = {
            let db = open_on(&disk).unwrap();
            let table = db.open_table("t").unwrap();
            disk.crash_at(disk.calls() + call);
            table.delete_range(50u32.to_be_bytes()..250u32.to_be_bytes())
        };
        let cut = disk.crashed().is_some();
        for seed in 0..3 {
            let db = open_on(&disk.survivor(call * 10 + seed)).unwrap();
            let left = numbers(&db.open_table("t").unwrap(), 200).unwrap();
            match left.len() {
                100 => whole += 1,
                300 if deleted.is_err() => nothing += 1,
                left => panic!("call {call}: {left} entries are left, {deleted:?} was reported"),
            }
            assert!(left.len() == 300 || left.iter().all(|number| !(50..250).contains(number)));
            assert_eq!(db.verify().unwrap().errors, [], "call {call}");
        }
        if !cut {
            assert!(call > 1 && whole > 0 && nothing > 0, "{call} calls, {whole} whole, {nothing} not");
            break;
        }
    }
}

#[test]
fn a_deletion_whose_writes_fail_is_undone_by_the_next_opening() {
    for nth in 1.. {
        let disk = SimulatedDisk::new(5);
        let db = open_on(&disk).unwrap();
        let table = db.create_table("t").unwrap();
        fill(&table, 200, 150);
        disk.fail(FaultPlan::from_then_on(CallKind::Write, nth, 5));
        let calls = disk.calls_of(CallKind::Write);
        let deleted = table.delete_range::<&[u8]>(..);
        let reached = disk.calls_of(CallKind::Write) - calls >= nth;
        drop((table, db));
        disk.mend();
        let db = open_on(&disk.survivor(nth)).unwrap();
        let left = numbers(&db.open_table("t").unwrap(), 150).unwrap().len();
        match deleted {
            Ok(count) => assert_eq!((count, left), (200, 0)),
            Err(error) => {
                assert!(matches!(error, Error::Io { .. } | Error::Poisoned { .. }), "{error}");
                assert!(left == 0 || left == 200, "write {nth}: {left} entries are left");
            }
        }
        assert_eq!(db.verify().unwrap().errors, []);
        if !reached {
            break;
        }
    }
}

#[test]
fn on_a_full_disk_a_deletion_is_refused_whole_or_works() {
    for spare in 0..12u64 {
        let disk = SimulatedDisk::new(7);
        let db = open_on(&disk).unwrap();
        let table = db.create_table("t").unwrap();
        fill(&table, 1500, 300);
        disk.set_capacity(0);
        // How much the log takes without the page file growing differs between rounds.
        let mut written = 0u64;
        while written < spare * 40 && table.put((written as u32).to_be_bytes(), [written as u8; 300]).is_ok()
        {
            written += 1;
        }
        let mut left = 1500;
        for low in (0..1500u32).step_by(150) {
            match table.delete_range(low.to_be_bytes()..(low + 150).to_be_bytes()) {
                Ok(count) => {
                    assert_eq!(count, 150);
                    left -= 150;
                }
                Err(error) => assert!(matches!(error, Error::Full { .. }), "{error}"),
            }
            assert_eq!(numbers(&table, 300).unwrap().len(), left, "all or nothing");
        }
        disk.set_capacity(u64::MAX);
        let rest = table.delete_range_in_steps::<&[u8]>(..).unwrap();
        assert_eq!(rest, left as u64);
        assert_eq!(db.verify().unwrap().errors, []);
    }
}
