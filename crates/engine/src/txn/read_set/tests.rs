//! What a read set keeps, and its memory.

use std::ops::Bound::{Excluded, Included, Unbounded};

use super::*;

const TABLE: TableId = TableId(1);

#[test]
fn points_come_back_as_they_were_noted() {
    let mut reads = ReadSet::default();
    assert!(reads.is_empty());
    reads.point(TABLE, b"key", Some(Timestamp(7)));
    reads.point(TableId(2), b"", None);
    reads.point(TABLE, b"another", Some(Timestamp(5)));
    let seen: Vec<_> = reads.points().collect();
    assert_eq!(seen[0], PointRead { table: TABLE, key: b"key", seen: Some(Timestamp(7)) });
    assert_eq!(seen[1], PointRead { table: TableId(2), key: b"", seen: None });
    assert_eq!(seen[2], PointRead { table: TABLE, key: b"another", seen: Some(Timestamp(5)) });
    assert_eq!(reads.highest(), Timestamp(7));
}

#[test]
fn a_range_covers_only_what_was_looked_at() {
    let mut reads = ReadSet::default();
    let id = reads.begin_range(TABLE);
    assert!(reads.ranges().next().unwrap().covered().is_none());
    reads.cover(&id, (Included(b"a"), Included(b"c")));
    reads.saw(&id, b"c", Timestamp(9));
    reads.visited(&id, PageId(4), 12);
    reads.cover(&id, (Included(b"a"), Unbounded));
    let range = reads.ranges().next().unwrap();
    assert_eq!(range.covered(), Some((Included(&b"a"[..]), Unbounded)));
    assert_eq!((range.table(), range.leaves()), (TABLE, Some(&[(PageId(4), 12)][..])));
    assert_eq!(reads.highest(), Timestamp(9));
    let _: KeyRange<'_> = (Excluded(b"a"), Unbounded);
}

#[test]
fn a_digest_knows_entries_but_not_their_order() {
    let mut reads = ReadSet::default();
    let id = reads.begin_range(TABLE);
    reads.saw(&id, b"a", Timestamp(1));
    reads.saw(&id, b"b", Timestamp(2));
    let first = reads.ranges().next().unwrap().digest();
    let digest = |entries: &[(&[u8], u64)]| {
        let mut digest = first.fresh();
        entries.iter().for_each(|&(key, timestamp)| digest.add(key, Timestamp(timestamp)));
        digest
    };
    assert_eq!(*first, digest(&[(b"b", 2), (b"a", 1)]));
    assert_ne!(*first, digest(&[(b"b", 1), (b"a", 2)]));
    assert_ne!(*first, digest(&[(b"a", 1)]));
    assert_ne!(*first, digest(&[(b"a", 1), (b"b", 3)]));
    assert_ne!(*first, digest(&[(b"a", 1), (b"b", 2), (b"c", 2)]));
}

fn memory(bytes: u64) -> ReadMemory {
    ReadMemory::of(32 * bytes)
}

#[test]
fn equal_reads_are_kept_once() {
    let memory = memory(1 << 20);
    let mut reads = ReadSet::default();
    for round in 0..10_000u32 {
        reads.point(TABLE, &(round % 100).to_be_bytes(), Some(Timestamp(u64::from(round % 100 + 1))));
        let id = reads.begin_range(TABLE);
        let key = (round % 50).to_be_bytes();
        reads.visited(&id, PageId(1), u64::from(round));
        reads.cover(&id, (Included(&key), Unbounded));
        reads.saw(&id, &key, Timestamp(3));
        reads.afford(&memory, 0).unwrap();
    }
    reads.complete();
    assert!(!reads.is_contradicted());
    // Duplicates among the first few are kept.
    let (points, ranges) = (reads.points().count(), reads.ranges().count());
    assert_eq!((points, ranges), (100, 50));
    assert_eq!(
        reads.ranges().nth(49).unwrap().leaves(),
        Some(&[(PageId(1), 9999)][..]),
        "the leaves seen last"
    );
    assert!(reads.size_bytes() < 32 << 10, "{} bytes", reads.size_bytes());
    let bytes: usize = reads.ranges().map(RangeRead::heap_bytes).sum();
    assert_eq!(reads.range_bytes, bytes);
    reads.give_back(&memory);
    assert_eq!(memory.used(), 0);
}

#[test]
fn a_read_with_two_outcomes_is_noted_and_nothing_after_it() {
    let mut reads = ReadSet::default();
    for round in 0..1000u64 {
        let seen = if round < 500 { 1 } else { round };
        reads.point(TABLE, &(round % 40).to_be_bytes(), Some(Timestamp(seen)));
        assert_eq!(reads.is_contradicted(), round >= 500);
    }
    assert_eq!(reads.points().count(), 40);
    let mut reads = ReadSet::default();
    for round in 0..1000u64 {
        let id = reads.begin_range(TABLE);
        let key = (round % 40).to_be_bytes();
        reads.cover(&id, (Included(&key), Included(&key)));
        if round >= 500 {
            reads.saw(&id, &key, Timestamp(round));
        }
    }
    assert!(reads.is_contradicted());
    assert!(reads.ranges().count() <= 42);
}

#[test]
fn scans_at_once_keep_their_ranges_apart_until_they_end() {
    let mut reads = ReadSet::default();
    let outer = reads.begin_range(TABLE);
    for round in 0..100u64 {
        let inner = reads.begin_range(TableId(2));
        reads.cover(&inner, (Included(b"k"), Included(b"k")));
        reads.saw(&inner, b"k", Timestamp(7));
        reads.cover(&outer, (Unbounded, Included(&round.to_be_bytes())));
        reads.saw(&outer, &round.to_be_bytes(), Timestamp(round));
        reads.visited(&outer, PageId(round), 1);
    }
    let of = |reads: &ReadSet, table| reads.ranges().filter(|range| range.table() == table).count();
    assert_eq!((of(&reads, TABLE), reads.is_contradicted()), (1, false));
    let range = reads.ranges().find(|range| range.table() == TABLE).unwrap();
    assert_eq!(range.covered(), Some((Unbounded, Included(&99u64.to_be_bytes()[..]))));
    assert_eq!((range.leaves().unwrap().len(), range.digest().entries), (100, 100));
    drop(outer);
    reads.complete();
    assert_eq!((of(&reads, TABLE), reads.open.len()), (1, 0));
    assert!(of(&reads, TableId(2)) <= FEW + 1, "equal ranges are kept once");
}

#[test]
fn reads_beyond_the_share_are_refused_and_leaves_forgotten_before() {
    let memory = memory(64 << 10);
    let mut other = ReadSet::default();
    let mut reads = ReadSet::default();
    let id = reads.begin_range(TABLE);
    let mut leaves = 0;
    while reads.ranges().next().unwrap().leaves().is_some() {
        reads.visited(&id, PageId(leaves), 1);
        reads.afford(&memory, 0).unwrap();
        leaves += 1;
        assert!(leaves < 100_000, "leaves are never forgotten");
    }
    assert!(leaves > 2000, "forgotten after {leaves}");
    let refused = (0..100_000u64).find_map(|n| {
        reads.point(TABLE, &n.to_be_bytes(), None);
        reads.afford(&memory, 0).err()
    });
    let Some(crate::Error::TransactionTooLarge { bytes, max, reads: true }) = refused else {
        panic!("{refused:?}")
    };
    assert!(bytes > max && max <= (64 << 10) + FREE_BYTES as u64, "{bytes} {max}");
    assert!(memory.used() <= 64 << 10);
    for n in 0..20u64 {
        other.point(TABLE, &n.to_be_bytes(), None);
        other.afford(&memory, 0).expect("a little is always there");
    }
    reads.give_back(&memory);
    assert_eq!(memory.used(), 0);
    (0..500u64).for_each(|n| other.point(TABLE, &n.to_be_bytes(), None));
    other.afford(&memory, 0).unwrap();
    other.give_back(&memory);
    assert_eq!(memory.used(), 0);
}
