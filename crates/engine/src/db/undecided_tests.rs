//! Tests of other threads that meet changes of an undecided commit, which then fails.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use terrace_io::{CallKind, FaultPlan, SimulatedDisk};

use super::range::{Pin, load_pinned};
use crate::crash::play;
use crate::pool::Pool;
use crate::txn::garbage::entries;
use crate::{Db, Durability, Error, Mode, Result, Table, WriteBatch};

const KEYS: u32 = 1200;
const FIRST: [u8; 4] = [0; 4];
/// Records after which the commit is past the first key's leaf.
const RECORDS: u64 = 40;

fn open(disk: &SimulatedDisk) -> Db {
    let builder = Db::builder().directory(Arc::new(disk.clone())).dram(1 << 20).page_size(4096);
    builder.log_max(2 << 20).mode(Mode::Inline).seed(1).open("").unwrap()
}

fn filled(disk: &SimulatedDisk) -> (Db, Table) {
    let db = open(disk);
    let table = db.create_table("t").unwrap();
    (0..KEYS).for_each(|number| table.put(number.to_be_bytes(), [1; 1000]).unwrap());
    db.checkpoint().unwrap();
    (db, table)
}

/// New keys in many leaves behind the first key's.
///
/// Their old versions are small, so that no snapshot is given up for them.
fn changes(table: &Table) -> WriteBatch {
    let mut batch = WriteBatch::new();
    for number in (9..KEYS).step_by(3) {
        batch.put(table, [&number.to_be_bytes()[..], b"new"].concat(), [2; 9]);
    }
    batch
}

/// Commits `batch` and calls `between` once, between its first and last record.
fn commit_with(db: &Db, batch: WriteBatch, between: impl FnOnce(&Pool) + 'static) -> Result<()> {
    let (before, between) = (db.stats().log_records, RefCell::new(Some(between)));
    let watched = db.clone();
    play(Some(Rc::new(move |pool: &Pool| {
        let is_halfway = watched.stats().log_records >= before + RECORDS;
        if let Some(between) = is_halfway.then(|| between.take()).flatten() {
            between(pool);
        }
    })));
    let outcome = catch_unwind(AssertUnwindSafe(|| db.write(batch, Durability::Buffered)));
    play(None);
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Commits like [`commit_with`], then fails the next read, so that the commit is taken back.
fn take_back(disk: &SimulatedDisk, db: &Db, batch: WriteBatch, between: impl FnOnce(&Pool) + 'static) {
    let failing = disk.clone();
    let outcome = commit_with(db, batch, move |pool| {
        between(pool);
        failing.fail(FaultPlan::once(CallKind::Read, 1, 5));
    });
    disk.mend();
    assert!(matches!(outcome, Err(Error::Io { operation: "read", .. })), "{outcome:?}");
}

/// Regression: a `get` met an undecided deletion, later taken back with its old versions dropped.
///
/// It reported a key as absent that was never deleted.
#[test]
fn a_get_that_met_a_deletion_which_was_taken_back_does_not_say_absent() {
    let disk = SimulatedDisk::new(1);
    let (db, table) = filled(&disk);
    let core = &db.shared;
    let mut batch = changes(&table);
    batch.delete(&table, FIRST);
    let found = Rc::new(RefCell::new(None));
    let (note, reader, seen_by) = (Rc::clone(&found), Arc::clone(table.state()), db.clone());
    take_back(&disk, &db, batch, move |pool| {
        let visible = seen_by.shared.clock.visible();
        *note.borrow_mut() = Some((reader.tree.get(pool, &FIRST).unwrap(), visible));
    });
    core.collect();
    let (found, visible) = found.take().expect("the commit logged many changes");
    assert!(found.is_none(), "the reader came after the deletion");
    assert_eq!(core.decided(table.state(), found, visible), None, "it must look again");
    assert_eq!(table.get(FIRST).unwrap(), Some(vec![1; 1000]));
    assert_eq!(table.get("never there").unwrap(), None);
}

/// Regression: pages of an undecided value were freed when its commit was taken back.
///
/// A transaction that read the value found damage, or other bytes, in a sound database.
#[test]
fn a_large_value_that_was_taken_back_stays_for_a_transaction_that_found_it() {
    let disk = SimulatedDisk::new(1);
    let (db, table) = filled(&disk);
    let core = &db.shared;
    let new = vec![3; 9000];
    let mut batch = changes(&table);
    batch.put(&table, FIRST, &new);
    let pin = Pin::new(core);
    let found = Rc::new(RefCell::new(None));
    let (note, reader) = (Rc::clone(&found), Arc::clone(table.state()));
    take_back(&disk, &db, batch, move |pool| {
        *note.borrow_mut() = reader.tree.get(pool, &FIRST).unwrap();
    });
    core.free_all_garbage().unwrap();
    let found = found.take().expect("the key was there all the time");
    assert_eq!(load_pinned(core, found.value, &pin).unwrap(), new);
    assert_eq!(core.garbage.waiting(), 1);
    drop(pin);
    core.free_all_garbage().unwrap();
    assert_eq!((core.garbage.waiting(), entries(&core.pool).unwrap().len()), (0, 0));
    assert_eq!(table.get(FIRST).unwrap(), Some(vec![1; 1000]));
    assert_eq!(db.verify().unwrap().errors, []);
}

/// Regression: other threads saw the first half of a commit whose thread had panicked.
#[test]
fn a_panic_between_two_records_of_a_commit_fails_the_database() {
    let disk = SimulatedDisk::new(1);
    let (db, table) = filled(&disk);
    let mut batch = changes(&table);
    batch.delete(&table, FIRST);
    let snapshot = db.snapshot();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        commit_with(&db, batch, |pool| {
            pool.wal().flush_to(pool.wal().tail()).unwrap();
            panic!("planted by the test");
        })
    }));
    assert!(outcome.is_err(), "the panic goes on: {outcome:?}");
    let refused = table.get(FIRST);
    assert!(matches!(refused, Err(Error::Poisoned { .. })), "{refused:?}");
    let refused = snapshot.get(&table, FIRST);
    assert!(matches!(refused, Err(Error::Poisoned { .. })), "{refused:?}");
    drop((snapshot, table, db));
    let db = open(&disk.killed());
    let table = db.open_table("t").unwrap();
    assert_eq!(table.len().unwrap(), u64::from(KEYS));
    assert!((0..KEYS).all(|number| table.get(number.to_be_bytes()).unwrap() == Some(vec![1; 1000])));
    assert_eq!(db.verify().unwrap().errors, []);
}

/// Regression: validation of reused pages reported damage or a conflict.
#[test]
fn a_transaction_that_read_a_table_which_is_gone_says_so() {
    let disk = SimulatedDisk::new(1);
    let (db, table) = filled(&disk);
    let core = &db.shared;
    let transaction = db.begin();
    assert!(transaction.get(&table, FIRST).unwrap().is_some());
    db.drop_table("t").unwrap();
    // Gives up the snapshot that keeps the pages.
    assert_eq!(core.snapshots.give_up_oldest(), 1);
    core.free_all_garbage().unwrap();
    db.checkpoint().unwrap();
    assert_eq!(core.garbage.waiting(), 0);
    let conflicts = db.stats().conflicts;
    let ended = transaction.commit();
    match core.order {
        None => assert!(matches!(ended, Err(Error::TableNotFound(_))), "{ended:?}"),
        // It has read what was there in its turn.
        Some(_) => ended.unwrap(),
    }
    assert_eq!(db.stats().conflicts, conflicts);
}
