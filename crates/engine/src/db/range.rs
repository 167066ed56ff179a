//! Bounds, and the cursor of a transaction: what the tree holds now, with the transaction's own changes laid over it.
//!
//! Each end of the cursor notes what it has looked at as a range of its own in the read set: from the end of the
//! range asked for up to the last key met, and when it runs dry up to where the other end stands. So a scan that
//! stops early promises nothing about the rest, and one from both ends covers no gap twice and leaves none.

use std::ops::{Bound, RangeBounds};

use super::core::{Core, TableState};
use super::scan::{OwnedRange, Row, Scan, as_slice};
use crate::error::{Error, Result};
use crate::index::Stored;
use crate::index::overflow::Reference;
use crate::txn::merge::{Merged, MergedRange};
use crate::txn::read_set::{RangeId, ReadSet};
use crate::txn::snapshots::SnapshotHandle;
use crate::txn::write_set::{NewValue, OwnRange};

/// A range as bytes of its own.
pub(crate) fn own<K: AsRef<[u8]>>(range: impl RangeBounds<K>) -> OwnedRange {
    let bound = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
    (bound(range.start_bound()), bound(range.end_bound()))
}

/// The keys that begin with `prefix`.
pub(crate) fn of_prefix(prefix: &[u8]) -> OwnedRange {
    let mut end = prefix.to_vec();
    // The shortest key above all of them: the last byte that can be raised is.
    while end.pop_if(|byte| *byte == u8::MAX).is_some() {}
    let high = match end.last_mut() {
        Some(byte) => {
            *byte += 1;
            Bound::Excluded(end)
        }
        None => Bound::Unbounded,
    };
    (Bound::Included(prefix.to_vec()), high)
}

/// The tree's side of a transaction's scan.
#[derive(Debug)]
struct Base<'t> {
    core: &'t Core,
    table: &'t TableState,
    reads: &'t mut ReadSet,
    asked: OwnedRange,
    scan: Scan,
    up: Option<RangeId>,
    down: Option<RangeId>,
}

impl Base<'_> {
    fn row(&mut self, back: bool) -> Result<Option<(Vec<u8>, Stored)>> {
        let slot = if back { &mut self.down } else { &mut self.up };
        let id = *slot.get_or_insert_with(|| self.reads.begin_range(self.table.id));
        let reads = &mut *self.reads;
        let mut visit = |leaf, version| reads.visited(id, leaf, version);
        let row = if back {
            self.scan.next_back(self.core, self.table, &mut visit)
        } else {
            self.scan.next(self.core, self.table, &mut visit)
        }?;
        let (low, high) = (as_slice(&self.asked.0), as_slice(&self.asked.1));
        let Some(Row { key, timestamp, value }) = row else {
            let left = self.scan.left();
            self.reads.cover(id, if back { (left.0, high) } else { (low, left.1) });
            return Ok(None);
        };
        let covered = if back { (Bound::Included(&key[..]), high) } else { (low, Bound::Included(&key[..])) };
        self.reads.cover(id, covered);
        self.reads.saw(id, &key, timestamp);
        Ok(Some((key, value)))
    }
}

impl Iterator for Base<'_> {
    type Item = Result<(Vec<u8>, Stored)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.row(false).transpose()
    }
}

impl DoubleEndedIterator for Base<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.row(true).transpose()
    }
}

/// The entries of a range as a transaction sees them, its own changes included: an iterator that can be walked from
/// both ends. What it has looked at must still hold when the transaction commits.
///
/// ```
/// use terrace::{Db, MemoryDirectory};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
/// let table = db.create_table("t")?;
/// table.put("a", "1")?;
/// let mut transaction = db.begin();
/// transaction.put(&table, "b", "2")?;
/// let keys: Vec<_> = transaction.range(&table, "a"..).map(|entry| entry.unwrap().0).collect();
/// assert_eq!(keys, [b"a", b"b"]);
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Debug)]
pub struct TransactionRange<'t> {
    /// An error that is to be the only item.
    refused: Option<Error>,
    merged: Option<MergedRange<'t, Base<'t>, Stored>>,
    core: &'t Core,
    table: &'t TableState,
    pin: &'t SnapshotHandle,
}

impl<'t> TransactionRange<'t> {
    pub(crate) fn new(
        core: &'t Core,
        table: &'t TableState,
        asked: OwnedRange,
        reads: &'t mut ReadSet,
        own: OwnRange<'t>,
        pin: &'t SnapshotHandle,
        refused: Option<Error>,
    ) -> Self {
        let scan = Scan::new(table.tree, asked.clone(), None);
        let base = Base { core, table, reads, asked, scan, up: None, down: None };
        let merged = refused.is_none().then(|| MergedRange::new(base, own));
        TransactionRange { refused, merged, core, table, pin }
    }

    /// Says that about `entries` entries will be taken from the front, as [`crate::Range::expect_entries`] does. It changes
    /// nothing about what must still hold when the transaction commits: that is what was looked at.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// let table = db.create_table("t")?;
    /// let mut transaction = db.begin();
    /// transaction.put(&table, "a", "1")?;
    /// let page: Vec<_> =
    ///     transaction.range(&table, "a"..).expect_entries(50).take(50).collect::<Result<_, _>>()?;
    /// assert_eq!(page.len(), 1);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn expect_entries(mut self, entries: usize) -> Self {
        if let Some(merged) = &mut self.merged {
            merged.base_mut().scan.expect(entries);
        }
        self
    }

    /// The next entry, its value turned into something by `take`.
    fn step<T>(
        &mut self,
        back: bool,
        take: impl FnOnce(&Core, &SnapshotHandle, Merged<'t, Stored>) -> Result<T>,
    ) -> Option<Result<(Vec<u8>, T)>> {
        if let Some(refused) = self.refused.take() {
            return Some(Err(refused));
        }
        let merged = self.merged.as_mut()?;
        let affordable = merged.base_mut().reads.afford(&self.core.read_memory, 0);
        if let Err(error) = self.core.check().and(affordable) {
            self.merged = None;
            return Some(Err(error));
        }
        let entry = if back { merged.next_back() } else { merged.next() }?;
        let entry = entry.and_then(|(key, value)| Ok((key, take(self.core, self.pin, value)?)));
        let entry = entry.or_else(|error| self.table.check().and(Err(error)));
        if entry.is_err() {
            self.merged = None;
        }
        Some(entry)
    }

    fn entry(&mut self, back: bool) -> Option<Result<(Vec<u8>, Vec<u8>)>> {
        self.step(back, |core, pin, value| match value {
            Merged::Base(stored) => load_pinned(core, stored, pin),
            Merged::Own(own) => load_own(core, own),
        })
    }

    /// The key of the next entry, and how many bytes its value takes in its leaf. Large values are not read.
    pub(crate) fn next_key(&mut self) -> Option<Result<(Vec<u8>, usize)>> {
        self.step(false, |_, _, value| {
            Ok(match value {
                Merged::Base(Stored::Inline(bytes)) => bytes.len(),
                Merged::Base(Stored::Overflow(_)) => Reference::BYTES,
                Merged::Own(own) => own.leaf_bytes(),
            })
        })
    }
}

/// A value that the tree referred to after `pin` was taken.
pub(crate) fn load_pinned(core: &Core, stored: Stored, pin: &SnapshotHandle) -> Result<Vec<u8>> {
    let reference = match stored {
        Stored::Inline(bytes) => return Ok(bytes),
        overflow => overflow,
    };
    let value = core.load(Some(reference));
    // Given up: the pages may have been freed under the read. The transaction may well succeed when it runs again.
    if pin.expired() {
        return Err(Error::Conflict);
    }
    value.map(|value| value.expect("a value that is referred to"))
}

/// A value of the transaction's own.
pub(crate) fn load_own(core: &Core, own: &NewValue) -> Result<Vec<u8>> {
    match own {
        NewValue::Inline(bytes) => Ok(bytes.to_vec()),
        NewValue::Overflow(reference) => {
            let stored = super::scan::stored(crate::txn::versions::OldValue::Overflow(*reference))?;
            core.load(stored).map(|value| value.expect("a value that is referred to"))
        }
    }
}

impl Iterator for TransactionRange<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.entry(false)
    }
}

impl DoubleEndedIterator for TransactionRange<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.entry(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_a_prefix_end_before_the_next_prefix() {
        let high = |prefix: &[u8]| of_prefix(prefix).1;
        assert_eq!(high(b"ab"), Bound::Excluded(b"ac".to_vec()));
        assert_eq!(high(b"a\xff\xff"), Bound::Excluded(b"b".to_vec()));
        assert_eq!(high(b"\xff"), Bound::Unbounded);
        assert_eq!(high(b""), Bound::Unbounded);
    }
}
