//! The LSNs of a leaf's records follow the order of its changes: a change latches first, then
//! appends.
//!
//! Between the read of the leaf and its latch, these tests change the leaf otherwise and write its
//! image. A change that had drawn its LSN earlier would be missing from that image. Recovery would
//! take the image's higher LSN as proof that it is there.

use std::cell::Cell;
use std::rc::Rc;

use super::Change;
use super::change::describe_op;
use super::pool_tests::{TestPool, put, rows, test_pool};
use crate::crash;
use crate::ids::{Lsn, PageId, Timestamp};
use crate::planted::{Bug, plant, planted};
use crate::pool::{Edit, Mode, Pool};
use crate::wal::RecordBuilder;

type Rows = [(&'static [u8], (u64, &'static [u8])); 2];

/// The acknowledged rows.
const LEDGER: Rows = [(b"mine", (2, b"my value")), (b"other", (3, b"their value"))];

/// A wrong writer: its record has an LSN before it latches `leaf`.
///
/// [`Pool::change`] takes latched pages, but asks for them only after it has appended the record.
fn put_late(pool: &Pool, leaf: PageId, key: &[u8], timestamp: u64, value: &[u8]) {
    let op = Change::Put { key, timestamp: Timestamp(timestamp), flags: 0, value }.op();
    let mut record = RecordBuilder::pages(Timestamp::NONE, Lsn::NONE);
    describe_op(&mut record, leaf, &op);
    let (mut guard, mut content) = (None, Vec::new());
    let late = std::iter::once_with(|| {
        pool.meanwhile();
        let guard = guard.insert(pool.latch(leaf).unwrap());
        guard.copy(&mut content);
        assert!(op.apply(&mut content).unwrap(), "the leaf has room");
        Edit::Update(guard, &mut content)
    });
    pool.change(&mut record, None, late).unwrap();
}

/// Commits both rows, the other within mine, and crashes the process.
fn interrupted_put_and_crash() -> TestPool {
    let test = test_pool(4096, 64, Mode::Inline);
    put(&test.pool, test.tree, b"mine", 1, b"an older value");
    let (tree, done) = (test.tree, Cell::new(false));
    let maintenance = std::sync::Arc::clone(&test.pool);
    crash::play(Some(Rc::new(move |pool| {
        if !done.replace(true) {
            put(pool, tree, b"other", 3, b"their value");
            maintenance.checkpoint_now(true).unwrap();
        }
    })));
    match planted(Bug::AppendBeforeLatching) {
        true => put_late(&test.pool, test.tree.root, b"mine", 2, b"my value"),
        false => put(&test.pool, test.tree, b"mine", 2, b"my value"),
    }
    crash::play(None);
    assert_holds(&test, LEDGER);
    test.reopen()
}

#[track_caller]
fn assert_holds(test: &TestPool, expected: Rows) {
    let expected = expected.map(|(key, (timestamp, value))| (key.to_vec(), (timestamp, value.to_vec())));
    assert_eq!(rows(&test.pool, test.tree, true), expected);
}

#[test]
fn a_change_between_look_and_latch_is_logged_in_its_turn() {
    assert_holds(&interrupted_put_and_crash(), LEDGER);
}

#[test]
fn catches_append_before_latching() {
    plant(Some(Bug::AppendBeforeLatching));
    let test = interrupted_put_and_crash();
    plant(None);
    // Mine, with the lower LSN, is lost.
    assert_holds(&test, [(b"mine", (1, b"an older value")), LEDGER[1]]);
    assert_holds(&interrupted_put_and_crash(), LEDGER);
}
