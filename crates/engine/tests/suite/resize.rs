//! Budget changes during other work: nothing is lost, reads are right, and impossible budgets are
//! refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace::{
    Builder, Db, Durability, Error, MemoryDirectory, Mode, SimulatedDisk, Snapshot, Table, WriteBatch,
};
use terrace_io::{CallKind, FaultPlan};

use super::common;
use crate::common::Retry;

const ACCOUNTS: u64 = 6000;
const BALANCE: u64 = 1000;
const VALUE_BYTES: usize = 700;

fn builder() -> Builder {
    common::builder()
        .directory(Arc::new(MemoryDirectory::new()))
        .log_max(8 << 20)
        .durability(Durability::Buffered)
}

/// An account's value: number, balance, and bytes that follow from both.
fn account(number: u64, balance: u64) -> Vec<u8> {
    let mut value = vec![(number ^ balance) as u8; VALUE_BYTES];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value[8..16].copy_from_slice(&balance.to_le_bytes());
    value
}

fn balance(number: u64, value: &[u8]) -> u64 {
    let balance = u64::from_le_bytes(value[8..16].try_into().unwrap());
    assert!(value == account(number, balance), "account {number} is not what anybody wrote");
    balance
}

fn load(db: &Db) -> Table {
    let table = db.create_table("accounts").unwrap();
    for first in (0..ACCOUNTS).step_by(100) {
        let mut batch = WriteBatch::new();
        for number in first..first + 100 {
            batch.put(&table, number.to_be_bytes(), account(number, BALANCE));
        }
        db.write(batch, Durability::Buffered).unwrap();
    }
    table
}

fn total(table: &Table, snapshot: &Snapshot) -> u64 {
    let entries = snapshot.iter(table).map(Result::unwrap);
    entries.map(|(key, value)| balance(u64::from_be_bytes(key[..].try_into().unwrap()), &value)).sum()
}

/// Transfers per scan: their old versions fit into the smallest budget.
const TRANSFERS_PER_SCAN: i64 = 60;

#[test]
fn a_budget_that_goes_up_and_down_disturbs_nobody() {
    let db = builder().dram(4 << 20).dram_max(16 << 20).open("").unwrap();
    let table = load(&db);
    let (done, scans, quota) = (AtomicBool::new(false), AtomicU64::new(0), AtomicI64::new(0));
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (db, table, done, quota) = (&db, &table, &done, &quota);
            scope.spawn(move || {
                let _stop = Retry(done);
                let mut random = SmallRng::seed_from_u64(seed);
                while !done.load(Relaxed) {
                    let [from, to] = [0, 1].map(|_| random.random_range(0..ACCOUNTS));
                    let amount = random.random_range(1..10);
                    if from == to || quota.fetch_sub(1, Relaxed) <= 0 {
                        std::thread::yield_now();
                        continue;
                    }
                    db.update(|transaction| {
                        let [left, right] = [from, to].map(|number| {
                            let value = transaction.get(table, number.to_be_bytes())?.unwrap();
                            Ok::<_, Error>(balance(number, &value))
                        });
                        let (left, right) = (left?, right?);
                        if left < amount {
                            return Ok(());
                        }
                        transaction.put(table, from.to_be_bytes(), account(from, left - amount))?;
                        transaction.put(table, to.to_be_bytes(), account(to, right + amount))
                    })
                    .unwrap();
                }
            });
        }
        let (db, table, done, scans, quota) = (&db, &table, &done, &scans, &quota);
        scope.spawn(move || {
            let _stop = Retry(done);
            let mut random = SmallRng::seed_from_u64(9);
            while !done.load(Relaxed) {
                for _ in 0..500 {
                    let number = random.random_range(0..ACCOUNTS);
                    balance(number, &table.get(number.to_be_bytes()).unwrap().unwrap());
                }
                let snapshot = db.snapshot();
                quota.store(TRANSFERS_PER_SCAN, Relaxed);
                assert_eq!(total(table, &snapshot), ACCOUNTS * BALANCE);
                scans.fetch_add(1, Relaxed);
            }
        });
        let _stop = Retry(done);
        let mut random = SmallRng::seed_from_u64(7);
        let mut changes = 0;
        // Until the other threads have seen many changes, or one has failed.
        while (changes < 40 || scans.load(Relaxed) < 5) && !done.load(Relaxed) {
            let bytes = random.random_range(2 << 20..=16 << 20);
            db.set_dram(bytes).unwrap();
            let stats = db.stats();
            assert_eq!(stats.budget_bytes, bytes);
            assert!(stats.frame_bytes < bytes && stats.frame_bytes > bytes / 4, "{stats:?}");
            changes += 1;
        }
    });
    assert!(db.stats().evictions > 0);
    assert_eq!(total(&table, &db.snapshot()), ACCOUNTS * BALANCE);
    let report = db.verify().unwrap();
    assert!(report.is_ok(), "{:?}", report.errors);
    db.close().unwrap();
}

#[test]
fn what_was_written_under_any_budget_is_there_after_a_restart() {
    let directory = Arc::new(MemoryDirectory::new());
    let open = || {
        let builder = builder().directory(directory.clone()).mode(Mode::Inline);
        builder.dram(2 << 20).dram_max(12 << 20).open("").unwrap()
    };
    let mut random = SmallRng::seed_from_u64(3);
    let mut expected = vec![BALANCE; ACCOUNTS as usize];
    load(&open());
    for _ in 0..4 {
        let db = open();
        let table = db.open_table("accounts").unwrap();
        for _ in 0..12 {
            db.set_dram(random.random_range(3 << 19..=12 << 20)).unwrap();
            for _ in 0..200 {
                let number = random.random_range(0..ACCOUNTS);
                let found = table.get(number.to_be_bytes()).unwrap().unwrap();
                assert_eq!(balance(number, &found), expected[number as usize]);
                expected[number as usize] += 1;
                table.put(number.to_be_bytes(), account(number, expected[number as usize])).unwrap();
            }
        }
        let report = db.verify().unwrap();
        assert!(report.is_ok(), "{:?}", report.errors);
    }
    open().close().unwrap();
    // A read-only database can change its budget too.
    let builder = builder().directory(directory).read_only(true).dram(8 << 20).dram_max(16 << 20);
    let db = builder.open("").unwrap();
    let table = db.open_table("accounts").unwrap();
    for bytes in [2 << 20, 16 << 20, 8 << 20] {
        db.set_dram(bytes).unwrap();
        for (number, &expected) in (0..).zip(&expected) {
            let found = table.get(u64::to_be_bytes(number)).unwrap().unwrap();
            assert_eq!(balance(number, &found), expected);
        }
    }
}

#[test]
fn a_budget_that_cannot_be_is_refused_and_the_old_one_stays() {
    let db = builder().dram(32 << 20).open("").unwrap();
    let table = load(&db);
    let before = db.stats();
    for (bytes, says) in [(1000, "1 MiB"), (2 << 20, "give it about"), (33 << 20, "dram_max of 33554432")] {
        let refused = db.set_dram(bytes).unwrap_err();
        assert!(matches!(&refused, Error::Config(what) if what.contains(says)), "{bytes}: {refused}");
        let stats = db.stats();
        assert_eq!((stats.budget_bytes, stats.frames), (before.budget_bytes, before.frames));
    }
    // The budget that the message suggests is sufficient.
    db.set_dram(8 << 20).unwrap();
    assert_eq!(total(&table, &db.snapshot()), ACCOUNTS * BALANCE);
    db.set_dram(32 << 20).unwrap();
    assert_eq!(db.stats().frames, before.frames);
    assert!(matches!(builder().dram(8 << 20).dram_max(4 << 20).open(""), Err(Error::Config(_))));
}

#[test]
fn a_disk_without_room_for_dirty_pages_keeps_the_budget() {
    let disk = SimulatedDisk::new(1);
    let db = builder().directory(Arc::new(disk.clone())).mode(Mode::Inline).dram(8 << 20).open("").unwrap();
    let table = load(&db);
    db.checkpoint().unwrap();
    let before = db.stats();
    for number in 0..ACCOUNTS / 4 {
        table.put(number.to_be_bytes(), account(number, 7)).unwrap();
    }
    disk.fail(FaultPlan::from_then_on(CallKind::Write, 1, libc::ENOSPC));
    let refused = db.set_dram(2 << 20).unwrap_err();
    assert!(matches!(refused, Error::Full { .. }), "{refused}");
    assert_eq!((db.stats().budget_bytes, db.stats().frames), (before.budget_bytes, before.frames));
    disk.mend();
    db.set_dram(2 << 20).unwrap();
    let found = table.get(0u64.to_be_bytes()).unwrap().unwrap();
    assert_eq!(balance(0, &found), 7);
}
