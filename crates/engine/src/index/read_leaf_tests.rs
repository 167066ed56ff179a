//! Moves from leaf to leaf by an older version of the parent.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::pool_tests::{TestPool, new_tree, put, remove, test_pool};
use super::{LeafRows, Seek, Toward};
use crate::ids::{PageId, Timestamp};
use crate::pool::Mode;

type Extent<'a> = (PageId, u64, &'a [u8], Option<&'a [u8]>);
type Row<'a> = (&'a [u8], Timestamp, &'a [u8]);

/// All content of `leaf`.
fn content(leaf: &LeafRows) -> (Extent<'_>, Vec<Row<'_>>) {
    let rows = (0..leaf.len()).map(|at| (leaf.key(at), leaf.timestamp(at), leaf.value(at)));
    ((leaf.leaf, leaf.version, &leaf.lower, leaf.upper.as_deref()), rows.collect())
}

/// Moves on from `leaf`; returns whether there was a next leaf. It must be the leaf that a descent
/// finds.
fn go(test: &TestPool, toward: Toward, leaf: &mut LeafRows) -> bool {
    let fence = match toward {
        Toward::Up => leaf.upper.clone(),
        Toward::Down => Some(leaf.lower.clone()).filter(|lower| !lower.is_empty()),
    };
    let Some(fence) = fence else { return false };
    let seek = if toward == Toward::Up { Seek::At(&fence) } else { Seek::Before(&fence) };
    let mut expected = LeafRows::new();
    test.tree.prefetch_beside(&test.pool, toward, leaf);
    test.tree.read_beside(&test.pool, seek, toward, leaf).unwrap();
    test.tree.read_leaf(&test.pool, seek, &mut expected).unwrap();
    assert_eq!(content(leaf), content(&expected));
    true
}

#[test]
fn whatever_changes_in_between_the_leaf_beside_is_the_one_a_descent_leads_to() {
    for seed in 0..20 {
        println!("seed {seed}");
        let mut random = SmallRng::seed_from_u64(seed);
        // Few frames: leaves and parents are evicted between two steps.
        let test = test_pool(4096, 40, Mode::Inline);
        let mut clock = 1;
        for number in (0..3000u64).step_by(2) {
            test.put(&number.to_be_bytes(), clock, &[7; 60]);
        }
        for _ in 0..60 {
            let toward = if random.random() { Toward::Up } else { Toward::Down };
            let start = random.random_range(1..3000u64).to_be_bytes();
            let mut leaf = LeafRows::new();
            test.tree.read_leaf(&test.pool, Seek::At(&start), &mut leaf).unwrap();
            let (mut from, busy) = (u64::from_be_bytes(start), random.random_range(0..3) == 0);
            while go(&test, toward, &mut leaf) {
                if !busy {
                    continue;
                }
                // Splits and merges near the walk.
                if let Some(first) = leaf.len().checked_sub(1) {
                    from = u64::from_be_bytes(leaf.key(first).try_into().unwrap());
                }
                for number in from.saturating_sub(30)..from + 30 {
                    clock += 1;
                    match random.random_range(0..3) {
                        0 => test.put(&number.to_be_bytes(), clock, &vec![1; random.random_range(0..300)]),
                        1 => remove(&test.pool, test.tree, &number.to_be_bytes(), clock),
                        _ => {}
                    }
                }
                if random.random_range(0..8) == 0 {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_parent_is_followed_at_its_version_and_never_after() {
    let test = test_pool(4096, 256, Mode::Inline);
    let (pool, first) = (&*test.pool, test.tree);
    // Two trees of one shape, so that fences match in both. Rows of the second look like rows of
    // the first whose parent became a page of the second.
    let second = new_tree(pool);
    for number in 0..2000u64 {
        put(pool, first, &number.to_be_bytes(), 1, &[1; 100]);
        put(pool, second, &number.to_be_bytes(), 1, &[2; 100]);
    }
    let mut leaf = LeafRows::new();
    second.read_leaf(pool, Seek::At(&700u64.to_be_bytes()), &mut leaf).unwrap();
    let upper = leaf.upper.clone().unwrap();
    let beside = |mut leaf: LeafRows| {
        first.prefetch_beside(pool, Toward::Up, &leaf);
        first.read_beside(pool, Seek::At(&upper), Toward::Up, &mut leaf).unwrap();
        assert_eq!(leaf.lower, upper);
        leaf.value(0)[0]
    };
    assert_eq!(beside(leaf.clone()), 2, "as long as the parent is at the version, it is taken at its word");
    // Splits at the far end change the parent, but not these leaves.
    for number in 2000..2100u64 {
        put(pool, second, &number.to_be_bytes(), 2, &[2; 100]);
    }
    assert_eq!(beside(leaf), 1, "and then the tree is asked");
}

#[test]
fn memory_that_was_given_back_brings_no_rows_along() {
    let test = test_pool(4096, 64, Mode::Inline);
    for number in 0..300u64 {
        test.put(&number.to_be_bytes(), 1, &[1; 100]);
    }
    let mut leaf = LeafRows::lent();
    test.tree.read_leaf(&test.pool, Seek::First, &mut leaf).unwrap();
    assert!(leaf.len() > 0 && leaf.upper.is_some());
    leaf.give_back();
    let mut leaf = LeafRows::lent();
    assert_eq!((leaf.len(), &leaf.lower[..], &leaf.upper), (0, &[][..], &None));
    // Without a sibling this is a descent.
    test.tree.read_beside(&test.pool, Seek::Last, Toward::Up, &mut leaf).unwrap();
    assert_eq!(leaf.upper, None);
    assert_eq!(leaf.key(leaf.len() - 1), 299u64.to_be_bytes());
}
