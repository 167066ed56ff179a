//! Protected keys, and merged ranges.

use std::ops::Bound::{Excluded, Included, Unbounded};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::txn::is_empty_range;

const TABLE: TableId = TableId(1);
const KEYS: u8 = 40;

fn random_bound<'k>(random: &mut SmallRng, keys: &'k [[u8; 1]]) -> Bound<&'k [u8]> {
    let key = &keys[random.random_range(0..keys.len())][..];
    match random.random_range(0..12) {
        0 => Unbounded,
        1..6 => Included(key),
        _ => Excluded(key),
    }
}

#[test]
fn joined_ranges_hold_what_each_of_them_holds() {
    let seed = 0x9a7e;
    println!("seed {seed:#x}");
    let mut random = SmallRng::seed_from_u64(seed);
    let keys: Vec<[u8; 1]> = (0..KEYS).map(|key| [key]).collect();
    for _ in 0..2000 {
        let mut reads = Reads::default();
        let mut each: Vec<KeyRange<'_>> = Vec::new();
        for _ in 0..random.random_range(1..8) {
            let range = (random_bound(&mut random, &keys), random_bound(&mut random, &keys));
            reads.add_range(TABLE, range);
            each.push(range);
            for key in &keys {
                let within = |range: &KeyRange<'_>| {
                    use std::ops::RangeBounds;
                    !is_empty_range(*range) && RangeBounds::<[u8]>::contains(range, &key[..])
                };
                assert_eq!(reads.holds(TABLE, key), each.iter().any(within), "{key:?} in {each:?}");
                assert!(!reads.holds(TableId(2), key));
            }
        }
    }
}

#[test]
fn very_many_ranges_become_one() {
    let mut reads = Reads::default();
    let last = 10 * RANGES_MAX as u32;
    for n in 0..=last {
        let key = (2 * n).to_be_bytes();
        reads.add_range(TABLE, (Included(&key), Included(&key)));
        assert!(reads.ranges[&TABLE].len() <= RANGES_MAX);
    }
    for n in 0..=last {
        assert!(reads.holds(TABLE, &(2 * n).to_be_bytes()));
    }
    assert!(!reads.holds(TABLE, &(2 * last + 1).to_be_bytes()));
}

#[test]
fn very_many_keys_of_a_table_become_the_whole_table() {
    let other = TableId(2);
    let reads = ProtectedReads::default();
    reads.point(other, b"other");
    for n in 0..(1u32 << 16) + 10 {
        reads.point(TABLE, &n.to_be_bytes());
    }
    for n in 0..(1u32 << 16) + 10 {
        assert!(reads.holds(TABLE, &n.to_be_bytes()));
    }
    assert!(reads.holds(TABLE, b"never read"), "keys beyond so many take no memory");
    assert!(reads.holds(other, b"other") && !reads.holds(other, b"never read"));
}
