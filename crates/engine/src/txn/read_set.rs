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
//! **Memory.** Keys are copied into one growing buffer: a read costs no allocation of its own. A key or range that is
//! read again with the same outcome is kept once; with another outcome, the transaction cannot commit any more, and
//! nothing further is kept. What is kept beyond [`FREE_BYTES`] is taken from the database's
//! [share for reads](ReadMemory). Where that is used up, the leaves of ranges are forgotten first, which costs a second
//! scan; then reads fail.

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

/// Bytes that a transaction keeps without asking: most never come to more.
pub(crate) const FREE_BYTES: usize = 4 << 10;
/// Reads up to which equal ones are not looked for.
const FEW: usize = 32;
/// Bytes that an entry of an index takes: key, value, a byte of the table's, an eighth of them empty.
const INDEX_BYTES: usize = 20;
/// Bytes that a point takes beside its key, about: vectors and tables grow by doubling.
pub(crate) const POINT_BYTES: usize = 2 * (size_of::<Point>() + INDEX_BYTES);

/// The last read of a hash.
type Index = HashMap<u64, u32, foldhash::fast::RandomState>;

/// Everything a transaction has read.
#[derive(Debug)]
pub(crate) struct ReadSet {
    keys: Vec<u8>,
    points: Vec<Point>,
    /// Empty as long as there are few points.
    point_index: Index,
    ranges: Vec<RangeRead>,
    /// Empty as long as there are few ranges.
    range_index: Index,
    /// Ranges whose scans have ended, of which no two are equal.
    settled: usize,
    /// Bytes that ranges take beside themselves.
    range_bytes: usize,
    highest: Timestamp,
    seed: RandomState,
    /// Something was read twice, with two outcomes.
    contradicted: bool,
    /// Where reads are entered as well, if the transaction has priority.
    protected: Option<Arc<ProtectedReads>>,
    /// Bytes it may take without asking.
    granted: usize,
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
    /// None = forgotten.
    leaves: Option<Vec<(PageId, u64)>>,
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

impl Default for ReadSet {
    fn default() -> Self {
        ReadSet {
            keys: Vec::new(),
            points: Vec::new(),
            point_index: Index::default(),
            ranges: Vec::new(),
            range_index: Index::default(),
            settled: 0,
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
    /// Enters what is read from now on in `protected`, too.
    pub(crate) fn protect(&mut self, protected: Arc<ProtectedReads>) {
        self.protected = Some(protected);
    }

    /// Notes that `key` was read, and which entry of it.
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

    /// Whether a point is there already; if not, it is the next one.
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

    /// Notes that a cursor is made: scans before it have ended.
    pub(crate) fn begin_cursor(&mut self) {
        for range in self.ranges.split_off(self.settled) {
            self.settle(range);
        }
        self.settled = self.ranges.len();
    }

    /// Keeps a range that is complete, once.
    fn settle(&mut self, range: RangeRead) {
        let bytes = range.heap_bytes();
        let Some((low, high)) = range.covered().filter(|_| !self.contradicted) else {
            // It promises nothing.
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
                let covered = range.covered().expect("what is settled covers something");
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
                // Its leaves were seen later, and are less likely to have moved.
                self.ranges[known] = range;
                return;
            }
        }
        self.ranges.push(range);
    }

    /// Notes that a scan of `table` has begun. It covers nothing until [`ReadSet::cover`] says so.
    pub(crate) fn begin_range(&mut self, table: TableId) -> RangeId {
        let digest = RangeDigest { seed: self.seed.clone(), sum: 0, entries: 0 };
        self.ranges.push(RangeRead { table, covered: None, leaves: Some(Vec::new()), digest });
        RangeId(self.ranges.len() - 1)
    }

    /// Says what the scan covers by now, from its first call on: the bounds of everything it has looked at, gaps
    /// between entries included. Bounds only ever widen; a scan in two disjoint pieces is two ranges.
    pub(crate) fn cover(&mut self, id: RangeId, covered: KeyRange<'_>) {
        let range = &mut self.ranges[id.0];
        let before = range.heap_bytes();
        range.cover(covered);
        self.range_bytes = self.range_bytes + range.heap_bytes() - before;
        if let Some(protected) = &self.protected {
            protected.range(range.table, covered);
        }
    }

    /// Notes a leaf visited, at the version its content was read at.
    pub(crate) fn visited(&mut self, id: RangeId, leaf: PageId, version: u64) {
        let range = &mut self.ranges[id.0];
        let before = range.heap_bytes();
        range.leaves.iter_mut().for_each(|leaves| leaves.push((leaf, version)));
        self.range_bytes = self.range_bytes + range.heap_bytes() - before;
    }

    /// Notes an entry seen by a scan.
    pub(crate) fn saw(&mut self, id: RangeId, key: &[u8], timestamp: Timestamp) {
        self.ranges[id.0].digest.add(key, timestamp);
        self.highest = self.highest.max(timestamp);
    }

    /// All keys read, in the order they were read in; few of them may come twice.
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

    /// Whether something was read twice with two outcomes. Then not all reads are kept, and the transaction cannot commit.
    pub(crate) fn is_contradicted(&self) -> bool {
        self.contradicted
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

    /// Bytes of memory taken.
    pub(crate) fn size_bytes(&self) -> usize {
        self.keys.capacity()
            + self.points.capacity() * size_of::<Point>()
            + self.ranges.capacity() * size_of::<RangeRead>()
            + (self.point_index.capacity() + self.range_index.capacity()) * INDEX_BYTES
            + self.range_bytes
    }

    /// Takes from `memory` what was read so far and `more` bytes, if that is more than it was granted already.
    ///
    /// # Errors
    /// [`crate::Error::TransactionTooLarge`] if there is not as much.
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
        for range in &mut self.ranges {
            let before = range.heap_bytes();
            range.leaves = None;
            self.range_bytes = self.range_bytes + range.heap_bytes() - before;
        }
        if self.size_bytes() + more <= self.granted { Ok(()) } else { Err(refused) }
    }

    /// Gives back to `memory` what was taken from it. Nothing more is read then.
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
    /// The table scanned.
    pub(crate) fn table(&self) -> TableId {
        self.table
    }

    /// The bounds covered; `None` = the scan ended before it had looked at anything.
    pub(crate) fn covered(&self) -> Option<KeyRange<'_>> {
        self.covered.as_ref().map(|(low, high)| (as_slice(low), as_slice(high)))
    }

    /// The leaves visited, with the version each had; none = only a second scan tells whether the range holds.
    pub(crate) fn leaves(&self) -> Option<&[(PageId, u64)]> {
        self.leaves.as_deref()
    }

    /// The digest of what was seen.
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
mod tests;
