//! What a read-write transaction has read, kept for the validation when it commits.
//!
//! A **point** is a key and the timestamp of the entry seen, or that there was none. It still holds when the tree
//! says the same again and no other commit holds the key's lock.
//!
//! A **range** is the bounds that were really covered (a scan that stopped early promises nothing about the rest),
//! the leaves visited with their versions, and a digest of all (key, timestamp) pairs seen. It still holds when no
//! foreign key is in flight inside the bounds and either no leaf has moved or a second scan gives the same digest.
//! The digest is a sum, so entries may come in any order: a scan from both ends is validated by one from the front.
//! It is seeded afresh in every process, so that nobody can prepare keys that collide.
//!
//! Entries the transaction wrote itself are not read; they belong to neither.
//!
//! Keys are copied into one growing buffer: a read costs no allocation of its own.

use std::hash::{BuildHasher, Hasher};
use std::ops::Bound;

use foldhash::quality::RandomState;

use super::KeyRange;
use crate::{PageId, TableId, Timestamp};

/// Everything a transaction has read.
#[derive(Debug, Default)]
pub(crate) struct ReadSet {
    keys: Vec<u8>,
    points: Vec<Point>,
    ranges: Vec<RangeRead>,
    highest: Timestamp,
    seed: RandomState,
}

#[derive(Debug)]
struct Point {
    table: TableId,
    /// Where the key ends in the buffer; it begins where the one before ends.
    end: usize,
    seen: Timestamp,
}

/// One key read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PointRead<'a> {
    /// The table.
    pub table: TableId,
    /// The key.
    pub key: &'a [u8],
    /// Timestamp of the entry seen; `None` = the key was absent.
    pub seen: Option<Timestamp>,
}

/// Names a range of a read set while its scan goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RangeId(usize);

/// One range read.
#[derive(Debug)]
pub(crate) struct RangeRead {
    table: TableId,
    covered: Option<OwnedRange>,
    leaves: Vec<(PageId, u64)>,
    digest: RangeDigest,
}

type OwnedRange = (Bound<Box<[u8]>>, Bound<Box<[u8]>>);

/// A fingerprint of the entries seen in a range, whatever their order.
#[derive(Clone, Debug)]
pub(crate) struct RangeDigest {
    seed: RandomState,
    sum: u64,
    entries: u64,
}

impl ReadSet {
    /// Notes that `key` was read, and which entry of it.
    pub(crate) fn point(&mut self, table: TableId, key: &[u8], seen: Option<Timestamp>) {
        self.keys.extend_from_slice(key);
        let seen = seen.unwrap_or(Timestamp::NONE);
        self.points.push(Point { table, end: self.keys.len(), seen });
        self.highest = self.highest.max(seen);
    }

    /// Notes that a scan of `table` has begun. It covers nothing until [`RangeRead::cover`] says so.
    pub(crate) fn begin_range(&mut self, table: TableId) -> RangeId {
        let digest = RangeDigest { seed: self.seed.clone(), sum: 0, entries: 0 };
        self.ranges.push(RangeRead { table, covered: None, leaves: Vec::new(), digest });
        RangeId(self.ranges.len() - 1)
    }

    /// The range of a scan that goes on, to note more of it.
    pub(crate) fn range_mut(&mut self, id: RangeId) -> &mut RangeRead {
        &mut self.ranges[id.0]
    }

    /// Notes an entry seen by a scan.
    pub(crate) fn saw(&mut self, id: RangeId, key: &[u8], timestamp: Timestamp) {
        self.ranges[id.0].digest.add(key, timestamp);
        self.highest = self.highest.max(timestamp);
    }

    /// All keys read, in the order they were read in; a key read twice comes twice.
    pub(crate) fn points(&self) -> impl Iterator<Item = PointRead<'_>> {
        let mut start = 0;
        self.points.iter().map(move |point| {
            let key = &self.keys[start..point.end];
            start = point.end;
            let seen = (!point.seen.is_none()).then_some(point.seen);
            PointRead { table: point.table, key, seen }
        })
    }

    /// All ranges read.
    pub(crate) fn ranges(&self) -> &[RangeRead] {
        &self.ranges
    }

    /// The highest timestamp of any entry read. A transaction that wrote nothing is acknowledged when `visible` has
    /// reached it.
    pub(crate) fn highest(&self) -> Timestamp {
        self.highest
    }

    /// Whether nothing was read.
    pub(crate) fn is_empty(&self) -> bool {
        self.points.is_empty() && self.ranges.is_empty()
    }
}

impl RangeRead {
    /// The table scanned.
    pub(crate) fn table(&self) -> TableId {
        self.table
    }

    /// The bounds covered; `None` = the scan ended before it had looked at anything.
    pub(crate) fn covered(&self) -> Option<KeyRange<'_>> {
        self.covered.as_ref().map(|(low, high)| (as_slice(low), as_slice(high)))
    }

    /// The leaves visited, with the version each had.
    pub(crate) fn leaves(&self) -> &[(PageId, u64)] {
        &self.leaves
    }

    /// The digest of what was seen.
    pub(crate) fn digest(&self) -> &RangeDigest {
        &self.digest
    }

    /// Says what the scan covers by now, from its first call on: the bounds of everything it has looked at, gaps
    /// between entries included. Bounds only ever widen; a scan in two disjoint pieces is two ranges.
    pub(crate) fn cover(&mut self, (low, high): KeyRange<'_>) {
        match &mut self.covered {
            None => self.covered = Some((low.map(Box::from), high.map(Box::from))),
            Some((old_low, old_high)) => {
                // Mostly only one end moves, and the other need not be copied again.
                if as_slice(old_low) != low {
                    *old_low = low.map(Box::from);
                }
                if as_slice(old_high) != high {
                    *old_high = high.map(Box::from);
                }
            }
        }
    }

    /// Notes a leaf visited, at the version its content was read at.
    pub(crate) fn visited(&mut self, leaf: PageId, version: u64) {
        self.leaves.push((leaf, version));
    }
}

impl RangeDigest {
    /// An empty digest with the same seed, for a second scan.
    pub(crate) fn fresh(&self) -> RangeDigest {
        RangeDigest { seed: self.seed.clone(), sum: 0, entries: 0 }
    }

    /// Adds an entry.
    pub(crate) fn add(&mut self, key: &[u8], timestamp: Timestamp) {
        let mut hasher = self.seed.build_hasher();
        hasher.write_u64(timestamp.0);
        hasher.write(key);
        self.sum = self.sum.wrapping_add(hasher.finish());
        self.entries += 1;
    }
}

impl PartialEq for RangeDigest {
    fn eq(&self, other: &Self) -> bool {
        (self.sum, self.entries) == (other.sum, other.entries)
    }
}

fn as_slice(bound: &Bound<Box<[u8]>>) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &**key)
}

#[cfg(test)]
mod tests {
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
        assert!(reads.ranges()[0].covered().is_none());
        reads.range_mut(id).cover((Included(b"a"), Included(b"c")));
        reads.saw(id, b"c", Timestamp(9));
        reads.range_mut(id).visited(PageId(4), 12);
        reads.range_mut(id).cover((Included(b"a"), Unbounded));
        let range = &reads.ranges()[0];
        assert_eq!(range.covered(), Some((Included(&b"a"[..]), Unbounded)));
        assert_eq!((range.table(), range.leaves()), (TABLE, &[(PageId(4), 12)][..]));
        assert_eq!(reads.highest(), Timestamp(9));
        let _: KeyRange<'_> = (Excluded(b"a"), Unbounded);
    }

    #[test]
    fn a_digest_knows_entries_but_not_their_order() {
        let mut reads = ReadSet::default();
        let id = reads.begin_range(TABLE);
        reads.saw(id, b"a", Timestamp(1));
        reads.saw(id, b"b", Timestamp(2));
        let first = reads.ranges()[0].digest();
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
}
