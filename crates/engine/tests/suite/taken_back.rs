//! Commits that fail after their first change are taken back, and the database goes on.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrace::{Db, Durability, Error, Mode, Result, SimulatedDisk, Table, WriteBatch};
use terrace_io::{CallKind, FaultPlan};

use super::common;

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

const EIO: i32 = 5;
/// More than fits into memory and a small middle tier.
const KEYS: u32 = 1200;

fn open(disk: &SimulatedDisk) -> Result<Db> {
    let builder = common::builder().directory(Arc::new(disk.clone())).dram(1 << 20).page_size(4096);
    builder.log_max(1 << 20).mode(Mode::Inline).seed(1).open("")
}

fn value(number: u32, round: u32) -> Vec<u8> {
    let mut value = vec![(number + round) as u8; if number.is_multiple_of(80) { 9000 } else { 1000 }];
    if number % 24 == 16 {
        // A change of some bytes is logged, and taken back, as a part.
        value[..400].fill(7);
    }
    value
}

fn filled(disk: &SimulatedDisk) -> (Db, Table) {
    let db = open(disk).unwrap();
    let table = db.create_table("t").unwrap();
    (0..KEYS).for_each(|number| table.put(number.to_be_bytes(), value(number, 0)).unwrap());
    db.checkpoint().unwrap();
    (db, table)
}

/// Inserts, updates and deletes keys in as many leaves as possible.
fn write(db: &Db, table: &Table, round: u32) -> Result<()> {
    let mut batch = WriteBatch::new();
    for number in (0..KEYS).step_by(8) {
        match number % 24 {
            0 => _ = batch.delete(table, (number + 1).to_be_bytes()),
            8 => _ = batch.put(table, [&number.to_be_bytes()[..], b"new"].concat(), [round as u8; 300]),
            _ => _ = batch.put(table, number.to_be_bytes(), value(number, round)),
        }
        if number.is_multiple_of(80) {
            batch.put(table, number.to_be_bytes(), value(number, round));
        }
    }
    db.write(batch, Durability::Sync)
}

fn entries(table: &Table) -> Entries {
    table.iter().map(Result::unwrap).collect()
}

/// Any read of a commit fails: nothing changes, snapshots stay right, and the next commit works.
#[test]
fn a_commit_that_cannot_read_a_page_while_it_is_applied_is_taken_back() {
    let disk = SimulatedDisk::new(1);
    let (db, table) = filled(&disk);
    let before = entries(&table);
    let (mut halfway, mut round) = (0, 0);
    for nth in (1..).step_by(9) {
        round += 1;
        let snapshot = db.snapshot();
        let records = db.stats().log_records;
        disk.fail(FaultPlan::once(CallKind::Read, nth, EIO));
        let outcome = write(&db, &table, round);
        disk.mend();
        let Err(error) = outcome else { break };
        assert!(matches!(error, Error::Io { operation: "read", .. }), "read {nth}: {error}");
        // Values too large for a leaf have records of their own before the commit begins.
        halfway += u64::from(db.stats().log_records - records > 60);
        assert!(entries(&table) == before, "read {nth}");
        assert_eq!(table.len().unwrap(), before.len() as u64);
        assert!(snapshot.iter(&table).map(Result::unwrap).eq(before.clone()), "read {nth}");
        drop(snapshot);
        // Frees the garbage.
        db.checkpoint().unwrap();
        if halfway % 4 == 1 {
            assert_eq!(db.verify().unwrap().errors, [], "read {nth}");
        }
    }
    assert!(halfway > 4, "{halfway} commits failed after their first record");
    assert!(entries(&table) != before);
    assert_eq!(db.verify().unwrap().errors, []);
}

/// The power goes while a commit is taken back, or some commits later.
#[test]
fn a_power_cut_finds_nothing_of_a_commit_that_was_taken_back() {
    // Read `nth` of a commit fails, and the power goes `cut` calls after its begin. Returns the
    // number of calls.
    let script = |disk: &SimulatedDisk, nth: u64, cut: u64| -> (u64, Entries, Result<()>) {
        let (db, table) = filled(disk);
        let (before, calls) = (entries(&table), disk.calls());
        disk.crash_at(calls + cut);
        disk.fail(FaultPlan::once(CallKind::Read, nth, EIO));
        let after = match write(&db, &table, 1) {
            Err(Error::Io { operation: "read", .. }) => {
                disk.mend();
                (0..30u32).try_for_each(|number| table.put(format!("after {number}"), [7; 100]))
            }
            other => other,
        };
        (disk.calls() - calls, before, after)
    };
    // The failing read that leaves the most records of the commit in the log.
    let (records, nth) = {
        let disk = SimulatedDisk::new(1);
        let (db, table) = filled(&disk);
        let fails_after = |nth: u64| {
            let records = db.stats().log_records;
            disk.fail(FaultPlan::once(CallKind::Read, nth, EIO));
            let failed = write(&db, &table, 1).is_err();
            disk.mend();
            failed.then(|| (db.stats().log_records - records, nth))
        };
        (1..).step_by(9).map_while(fails_after).max().expect("a commit reads")
    };
    // Values too large for a leaf have records of their own before the commit begins.
    assert!(records > 60, "{records} records before read {nth}");
    let (calls, _, after) = script(&SimulatedDisk::new(1), nth, u64::MAX / 2);
    after.unwrap();
    for cut in (1..=calls).step_by((calls / 24).max(1) as usize) {
        let disk = SimulatedDisk::new(1);
        let (_, before, after) = script(&disk, nth, cut);
        assert!(after.is_err() || cut + 10 > calls, "{cut} of {calls} calls");
        for seed in 0..2 {
            let db = open(&disk.survivor(seed)).unwrap();
            let mut found = entries(&db.open_table("t").unwrap());
            found.retain(|key, _| !key.starts_with(b"after"));
            assert!(found == before, "{cut} of {calls} calls, seed {seed}");
            assert_eq!(db.verify().unwrap().errors, [], "{cut} of {calls} calls, seed {seed}");
        }
    }
}
