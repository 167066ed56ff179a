//! The reads of a read-write transaction, kept for validation at commit.
//!
//! A **point** is a key and the timestamp of the entry seen, or its absence. It holds if the tree
//! still says the same and no other commit holds the key's lock.
//!
//! A **range** has the bounds really covered, the visited leaves with their versions, and a digest
//! of all (key, timestamp) pairs seen. It holds if no foreign key is in flight inside the bounds
//! and either no leaf has moved or a second scan gives the same digest. The digest is a sum, so
//! order does not matter; a seed per process keeps anyone from preparing colliding keys.
//!
//! Entries that the transaction itself wrote belong to neither.
//!
//! **Memory.** Keys go into one growing buffer. A repeated read with the same outcome is kept once.
//! After one with another outcome the transaction cannot commit, and nothing further is kept.
//! Memory beyond [`FREE_BYTES`] comes from the database's [share for reads](ReadMemory). If that is
//! used up, ranges first drop their leaves, which costs a second scan; then reads fail.
//!
//! Several scans may run at once. A range is *open* while its scan holds the [`RangeId`].

mod memory;

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::ops::Bound;
use std::sync::Arc;

use foldhash::quality::RandomState;

pub(crate) use self::memory::ReadMemory;
use super::KeyRange;
use super::priority::ProtectedReads;
use crate::{PageId, Result, TableId, Timestamp};

/// Bytes that a transaction takes without asking; enough for most.
pub(crate) const FREE_BYTES: usize = 4 << 10;
/// Up to this many reads, duplicates are kept.
const FEW: usize = 32;
/// Bytes of an index entry: key, value, and a control byte, at a load of 7/8.
const INDEX_BYTES: usize = 20;
/// Approximate bytes of a point beside its key: vectors and tables grow by doubling.
pub(crate) const POINT_BYTES: usize = 2 * (size_of::<Point>() + INDEX_BYTES);

/// The last read of each hash.
type Index = HashMap<u64, u32, foldhash::fast::RandomState>;

#[derive(Debug)]
pub(crate) struct ReadSet {
    keys: Vec<u8>,
    points: Vec<Point>,
    /// Empty while there are few points.
    point_index: Index,
    /// Completed ranges, without duplicates.
    ranges: Vec<RangeRead>,
    /// Empty while there are few ranges.
    range_index: Index,
    /// Ranges whose scan has not ended, and those that ended since the last scan began.
    open: Vec<(RangeId, RangeRead)>,
    range_bytes: usize,
    highest: Timestamp,
    seed: RandomState,
    /// A repeated read had another outcome.
    contradicted: bool,
    /// Also receives the reads, if the transaction has priority.
    protected: Option<Arc<ProtectedReads>>,
    /// Bytes it may take without asking.
    granted: usize,
}

#[derive(Debug)]
struct Point {
    table: TableId,
    /// The end of the key in the buffer; it begins at the previous point's end.
    end: usize,
    seen: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PointRead<'a> {
    pub table: TableId,
    pub key: &'a [u8],
    /// Timestamp of the entry seen; `None`: the key was absent.
    pub seen: Option<Timestamp>,
}

/// Names a range during its scan, which ends when the caller's last copy is dropped.
#[derive(Clone, Debug)]
pub(crate) struct RangeId(Arc<()>);

#[derive(Debug)]
pub(crate) struct RangeRead {
    table: TableId,
    covered: Option<OwnedRange>,
    /// None: dropped to save memory.
    leaves: Option<Vec<(PageId, u64)>>,
    digest: RangeDigest,
}

type OwnedRange = (Bound<Box<[u8]>>, Bound<Box<[u8]>>);

/// An order-independent fingerprint of the entries seen in a range.
#[derive(Clone, Debug)]
pub(crate) struct RangeDigest {
    seed: RandomState,
    sum: u64,
    entries: u64,
}

impl Default for ReadSet {
    fn default() -> Self {
        ReadSet {
            keys: Vec::new(),
            points: Vec::new(),
            point_index: Index::default(),
            ranges: Vec::new(),
            range_index: Index::default(),
            open: Vec::new(),
            range_bytes: 0,
            highest: Timestamp::NONE,
            seed: RandomState::default(),
            contradicted: false,
            protected: None,
            granted: FREE_BYTES,
        }
    }
}

impl ReadSet {
    /// A copy for a run with priority.
    pub(crate) fn to_protected(&self) -> Arc<ProtectedReads> {
        let points = self.points().map(|point| (point.table, point.key));
        let ranges = self.ranges().filter_map(|range| Some((range.table(), range.covered()?)));
        ProtectedReads::of(points, ranges)
    }

    /// Also enters later reads in `protected`.
    pub(crate) fn protect(&mut self, protected: Arc<ProtectedReads>) {
        self.protected = Some(protected);
    }

    /// Records a read of `key` and the entry seen.
    pub(crate) fn point(&mut self, table: TableId, key: &[u8], seen: Option<Timestamp>) {
        let seen = seen.unwrap_or(Timestamp::NONE);
        self.highest = self.highest.max(seen);
        if self.contradicted || self.is_known(table, key, seen) {
            return;
        }
        self.keys.extend_from_slice(key);
        self.points.push(Point { table, end: self.keys.len(), seen });
        if let Some(protected) = &self.protected {
            protected.point(table, key);
        }
    }

    /// Whether the point is known already; if not, indexes it as the next one.
    fn is_known(&mut self, table: TableId, key: &[u8], seen: Timestamp) -> bool {
        let next = self.points.len() as u32;
        if self.points.len() < FEW {
            return false;
        }
        if self.point_index.is_empty() {
            let hash = |point: PointRead<'_>| hash(&self.seed, point.table, [point.key]);
            self.point_index = self.points().map(hash).zip(0..).collect();
        }
        let hash = hash(&self.seed, table, [key]);
        let known = self.point_index.insert(hash, next).map(|index| index as usize);
        let Some(known) = known.filter(|&known| self.points[known].table == table && self.key(known) == key)
        else {
            return false;
        };
        self.point_index.insert(hash, known as u32);
        self.contradicted |= self.points[known].seen != seen;
        true
    }

    fn key(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.points[before].end);
        &self.keys[start..self.points[index].end]
    }

    fn complete(&mut self) {
        let ended = self.open.extract_if(.., |(id, _)| Arc::strong_count(&id.0) == 1);
        for (_, range) in ended.collect::<Vec<_>>() {
            self.note_covered(range);
        }
    }

    fn note_covered(&mut self, range: RangeRead) {
        let bytes = range.heap_bytes();
        let Some((low, high)) = range.covered().filter(|_| !self.contradicted) else {
            // The range covers nothing.
            self.range_bytes -= bytes;
            return;
        };
        if self.ranges.len() >= FEW {
            let sides = |(low, high): KeyRange<'_>| {
                let side = |bound: Bound<&[u8]>| match bound {
                    Bound::Unbounded => 0u8,
                    Bound::Included(_) => 1,
                    Bound::Excluded(_) => 2,
                };
                [side(low), side(high)]
            };
            let hash = |range: &RangeRead| {
                let covered = range.covered().expect("a completed range covers something");
                let key = |bound| match bound {
                    Bound::Unbounded => &[][..],
                    Bound::Included(key) | Bound::Excluded(key) => key,
                };
                let kinds = sides(covered);
                hash(&self.seed, range.table, [&kinds[..], key(covered.0), key(covered.1)])
            };
            if self.range_index.is_empty() {
                self.range_index = self.ranges.iter().map(hash).zip(0..).collect();
            }
            let (hash, next) = (hash(&range), self.ranges.len() as u32);
            let known = self.range_index.insert(hash, next).map(|index| index as usize);
            let same = |at: &usize| {
                let known = &self.ranges[*at];
                known.table == range.table && known.covered() == Some((low, high))
            };
            if let Some(known) = known.filter(same) {
                self.range_index.insert(hash, known as u32);
                self.contradicted |= self.ranges[known].digest != range.digest;
                self.range_bytes -= self.ranges[known].heap_bytes();
                // The newer leaf versions are less likely to have moved.
                self.ranges[known] = range;
                return;
            }
        }
        self.ranges.push(range);
    }

    /// Starts a scan of `table`. It covers nothing until [`ReadSet::cover`].
    pub(crate) fn begin_range(&mut self, table: TableId) -> RangeId {
        self.complete();
        let digest = RangeDigest { seed: self.seed.clone(), sum: 0, entries: 0 };
        let id = RangeId(Arc::new(()));
        self.open.push((id.clone(), RangeRead { table, covered: None, leaves: Some(Vec::new()), digest }));
        id
    }

    fn open_mut<'r>(open: &'r mut [(RangeId, RangeRead)], id: &RangeId) -> &'r mut RangeRead {
        // The newest scan is the usual one.
        let found = open.iter_mut().rev().find(|(other, _)| Arc::ptr_eq(&other.0, &id.0));
        &mut found.expect("the range of a scan is open").1
    }

    /// Sets the bounds covered so far, gaps between entries included. Bounds only widen; a scan in
    /// two disjoint pieces is two ranges.
    pub(crate) fn cover(&mut self, id: &RangeId, covered: KeyRange<'_>) {
        let range = Self::open_mut(&mut self.open, id);
        let before = range.heap_bytes();
        range.cover(covered);
        self.range_bytes = self.range_bytes + range.heap_bytes() - before;
        if let Some(protected) = &self.protected {
            protected.range(range.table, covered);
        }
    }

    pub(crate) fn visited(&mut self, id: &RangeId, leaf: PageId, version: u64) {
        let range = Self::open_mut(&mut self.open, id);
        let before = range.heap_bytes();
        range.leaves.iter_mut().for_each(|leaves| leaves.push((leaf, version)));
        self.range_bytes = self.range_bytes + range.heap_bytes() - before;
    }

    pub(crate) fn saw(&mut self, id: &RangeId, key: &[u8], timestamp: Timestamp) {
        Self::open_mut(&mut self.open, id).digest.add(key, timestamp);
        self.highest = self.highest.max(timestamp);
    }

    pub(crate) fn points(&self) -> impl Iterator<Item = PointRead<'_>> {
        let mut start = 0;
        self.points.iter().map(move |point| {
            let key = &self.keys[start..point.end];
            start = point.end;
            let seen = (!point.seen.is_none()).then_some(point.seen);
            PointRead { table: point.table, key, seen }
        })
    }

    pub(crate) fn ranges(&self) -> impl Iterator<Item = &RangeRead> {
        self.ranges.iter().chain(self.open.iter().map(|(_, range)| range))
    }

    /// Whether a repeated read had another outcome. Then reads are missing, and the transaction
    /// cannot commit.
    pub(crate) fn is_contradicted(&self) -> bool {
        self.contradicted
    }

    /// The highest timestamp of any entry read. A read-only transaction is acknowledged when
    /// `visible` has reached it.
    pub(crate) fn highest(&self) -> Timestamp {
        self.highest
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.points.is_empty() && self.ranges.is_empty() && self.open.is_empty()
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.keys.capacity()
            + self.points.capacity() * size_of::<Point>()
            + (self.ranges.capacity() + self.open.capacity()) * size_of::<RangeRead>()
            + (self.point_index.capacity() + self.range_index.capacity()) * INDEX_BYTES
            + self.range_bytes
    }

    /// Takes memory for the reads so far and `more` bytes. Counts the memory granted already.
    ///
    /// # Errors
    /// [`crate::Error::TransactionTooLarge`] if the share is used up.
    #[inline]
    pub(crate) fn afford(&mut self, memory: &ReadMemory, more: usize) -> Result<()> {
        if self.size_bytes() + more <= self.granted { Ok(()) } else { self.ask(memory, more) }
    }

    #[cold]
    fn ask(&mut self, memory: &ReadMemory, more: usize) -> Result<()> {
        let bytes = self.size_bytes() + more;
        let refused = match memory.grow(self.granted, bytes) {
            Ok(granted) => {
                self.granted = granted;
                return Ok(());
            }
            Err(refused) => refused,
        };
        for range in self.ranges.iter_mut().chain(self.open.iter_mut().map(|(_, range)| range)) {
            let before = range.heap_bytes();
            range.leaves = None;
            self.range_bytes = self.range_bytes + range.heap_bytes() - before;
        }
        if self.size_bytes() + more <= self.granted { Ok(()) } else { Err(refused) }
    }

    /// Returns the granted memory; no reads follow.
    pub(crate) fn give_back(&mut self, memory: &ReadMemory) {
        memory.shrink(std::mem::replace(&mut self.granted, FREE_BYTES) - FREE_BYTES);
    }
}

fn hash<const PARTS: usize>(seed: &RandomState, table: TableId, parts: [&[u8]; PARTS]) -> u64 {
    let mut hasher = seed.build_hasher();
    hasher.write_u64(table.0);
    for part in parts {
        hasher.write_usize(part.len());
        hasher.write(part);
    }
    hasher.finish()
}

impl RangeRead {
    pub(crate) fn table(&self) -> TableId {
        self.table
    }

    /// The bounds covered; `None`: the scan looked at nothing.
    pub(crate) fn covered(&self) -> Option<KeyRange<'_>> {
        self.covered.as_ref().map(|(low, high)| (as_slice(low), as_slice(high)))
    }

    /// The visited leaves with their versions; none: only a second scan can validate the range.
    pub(crate) fn leaves(&self) -> Option<&[(PageId, u64)]> {
        self.leaves.as_deref()
    }

    pub(crate) fn digest(&self) -> &RangeDigest {
        &self.digest
    }

    fn heap_bytes(&self) -> usize {
        let key = |bound: Bound<&[u8]>| match bound {
            Bound::Unbounded => 0,
            Bound::Included(key) | Bound::Excluded(key) => key.len(),
        };
        let leaves = self.leaves.as_ref().map_or(0, Vec::capacity);
        leaves * size_of::<(PageId, u64)>() + self.covered().map_or(0, |(low, high)| key(low) + key(high))
    }

    fn cover(&mut self, (low, high): KeyRange<'_>) {
        match &mut self.covered {
            None => self.covered = Some((low.map(Box::from), high.map(Box::from))),
            Some((old_low, old_high)) => {
                // Usually only one end moves; the other needs no new copy.
                if as_slice(old_low) != low {
                    *old_low = low.map(Box::from);
                }
                if as_slice(old_high) != high {
                    *old_high = high.map(Box::from);
                }
            }
        }
    }
}

impl RangeDigest {
    /// An empty digest with the same seed, for a second scan.
    pub(crate) fn fresh(&self) -> RangeDigest {
        RangeDigest { seed: self.seed.clone(), sum: 0, entries: 0 }
    }

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
mod tests;
