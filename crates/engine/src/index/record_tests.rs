//! A descent to a leaf whose page moves to another tree.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use super::pool_tests::{new_tree, put, remove, test_pool_with};
use super::{Found, LeafRows, Seek, Tree};
use crate::ids::PageId;
use crate::maintenance::Maintenance;
use crate::pool::{Mode, Pool, RecordCache};

const KEYS: u32 = 1200;

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn leaf_of(pool: &Pool, tree: Tree, key: &[u8]) -> PageId {
    let mut rows = LeafRows::new();
    tree.read_leaf(pool, Seek::At(key), &mut rows).unwrap();
    rows.leaf
}

/// Reads enough of `tree` to evict all other pages.
fn evict(pool: &Maintenance, tree: Tree, wanted: PageId) {
    pool.wal().flush_to(pool.wal().tail()).unwrap();
    pool.round(true).unwrap();
    for _ in 0..3 {
        for number in (0..KEYS).step_by(3) {
            assert!(tree.get(pool, &key(number)).unwrap().is_some());
        }
    }
    assert!(pool.is_marked(wanted).is_none(), "page {wanted} is still in memory");
}

/// Reads a key while another tree with that key reuses its leaf's page. Returns the reader's
/// result.
fn reads_while_its_leaf_is_used_again() -> Option<Found> {
    let test = test_pool_with(4096, 160, Mode::Inline, RecordCache::Percent(40));
    let (pool, tree) = (Arc::clone(&test.pool), test.tree);
    let (other, filler) = (new_tree(&pool), new_tree(&pool));
    for number in 0..KEYS {
        put(&pool, tree, &key(number), 1, &[1; 300]);
        put(&pool, filler, &key(number), 1, &[3; 900]);
    }
    let wanted = KEYS / 2;
    let leaf = leaf_of(&pool, tree, &key(wanted));
    evict(&pool, filler, leaf);
    let (happened, others) = (Rc::new(Cell::new(false)), Arc::clone(&pool));
    let seen = Rc::clone(&happened);
    crate::crash::play(Some(Rc::new(move |_| {
        crate::crash::play(None);
        let pool = &others;
        for number in wanted - 40..wanted + 40 {
            remove(pool, tree, &key(number), 2);
        }
        for number in 0.. {
            assert!(number < KEYS, "the page was not used again");
            // New pages are at the end of the tree, and the key is always there.
            put(pool, other, &key(number), 3, &[2; 300]);
            pool.wal().flush_to(pool.wal().tail()).unwrap();
            pool.round(false).unwrap();
            if leaf_of(pool, other, &key(number)) == leaf {
                put(pool, other, &key(wanted), 3, &[2; 300]);
                break;
            }
        }
        assert_eq!(leaf_of(pool, other, &key(wanted)), leaf);
        evict(pool, filler, leaf);
        assert!(other.get(pool, &key(wanted)).unwrap().is_some());
        evict(pool, filler, leaf);
        seen.set(true);
    })));
    let found = tree.get(&pool, &key(wanted)).unwrap();
    assert!(happened.get(), "the reader looked for a record");
    found
}

#[test]
fn a_record_of_the_page_a_leaf_once_was_is_not_found() {
    assert_eq!(reads_while_its_leaf_is_used_again(), None);
}

#[test]
fn catches_record_of_left_page() {
    use super::Stored;
    use crate::ids::Timestamp;
    use crate::planted::{Bug, plant};
    plant(Some(Bug::RecordOfLeftPage));
    let found = reads_while_its_leaf_is_used_again();
    plant(None);
    let others = Found { timestamp: Timestamp(3), value: Stored::Inline(vec![2; 300]) };
    assert_eq!(found, Some(others), "was not noticed");
    assert_eq!(reads_while_its_leaf_is_used_again(), None);
}
