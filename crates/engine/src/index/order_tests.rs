//! The LSNs of a leaf's records go up in the order in which its changes are made: pages are latched first, the record
//! is appended then.
//!
//! Another thread's change of the same leaf comes in between the look at the leaf and its latch, and an image of the
//! leaf is written right after it. There are no threads: the other one's work is done in place. A change that had drawn
//! its LSN before would be on the page without being in that image, and recovery would take the image's higher LSN to
//! say that it is.

use std::cell::Cell;
use std::rc::Rc;

use super::pool_tests::{TestPool, put, rows, test_pool};
use crate::buffer::Mode;
use crate::crash;

type Rows = [(&'static [u8], (u64, &'static [u8])); 2];

/// What was acknowledged.
const LEDGER: Rows = [(b"mine", (2, b"my value")), (b"other", (3, b"their value"))];

/// Commits the rows of the ledger, the other one in the midst of mine, and lets the process be killed.
fn interrupted_put_and_crash() -> TestPool {
    let test = test_pool(4096, 64, Mode::Inline);
    put(&test.pool, test.tree, b"mine", 1, b"an older value");
    let (tree, done) = (test.tree, Cell::new(false));
    crash::play(Some(Rc::new(move |pool| {
        if !done.replace(true) {
            put(pool, tree, b"other", 3, b"their value");
            pool.checkpoint_now(true).unwrap();
        }
    })));
    put(&test.pool, test.tree, b"mine", 2, b"my value");
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
    use crate::planted::{Bug, plant};
    plant(Some(Bug::AppendBeforeLatching));
    let test = interrupted_put_and_crash();
    plant(None);
    // Mine, with the lower LSN, is lost.
    assert_holds(&test, [(b"mine", (1, b"an older value")), LEDGER[1]]);
    assert_holds(&interrupted_put_and_crash(), LEDGER);
}
