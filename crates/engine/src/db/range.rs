//! Bounds, and the cursor of a transaction.
//!
//! Each end of the cursor adds its own range to the read set: from the end of the requested range
//! to the last key met. An exhausted end adds the range up to the other end. So a scan that stops
//! early does not depend on the rest.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;

use super::pending::Pending;
use crate::error::{Error, Result};
use crate::ids::Timestamp;
use crate::index::chain::read_value_to;
use crate::index::node::overflow::Reference;
use crate::index::{Stored, Wanted, Whole};
use crate::txn::merge::{Merged, MergedRange};
use crate::txn::mvcc::Mvcc;
use crate::txn::order::Turn;
use crate::txn::read_set::RangeId;
use crate::txn::scan::{OwnedRange, Row, Scan, as_slice};
use crate::txn::snapshots::SnapshotHandle;
use crate::txn::table::TableState;
use crate::txn::write_set::NewValue;

pub(crate) fn own<K: AsRef<[u8]>>(range: impl RangeBounds<K>) -> OwnedRange {
    let bound = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
    (bound(range.start_bound()), bound(range.end_bound()))
}

pub(crate) fn of_prefix(prefix: &[u8]) -> OwnedRange {
    let mut end = prefix.to_vec();
    // Increment the last byte that can be.
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

#[derive(Debug)]
struct Base<'t> {
    core: &'t Mvcc,
    table: &'t TableState,
    pending: &'t Mutex<Pending>,
    asked: OwnedRange,
    scan: Scan,
    up: Option<RangeId>,
    down: Option<RangeId>,
    /// With timestamp ordering: what it reads needs no validation.
    in_turn: bool,
}

impl Base<'_> {
    fn row(&mut self, back: bool) -> Result<Option<(Vec<u8>, Stored)>> {
        if self.in_turn {
            return self.row_in_turn(back);
        }
        let reads = &mut self.pending.lock().reads;
        let slot = if back { &mut self.down } else { &mut self.up };
        let id = slot.get_or_insert_with(|| reads.begin_range(self.table.id));
        let mut visit = |leaf, version| reads.visited(id, leaf, version);
        let row = if back {
            self.scan.next_back(self.core, self.table, &mut visit)
        } else {
            self.scan.next(self.core, self.table, &mut visit)
        }?;
        let (low, high) = (as_slice(&self.asked.0), as_slice(&self.asked.1));
        let Some(Row { key, timestamp, value }) = row else {
            let left = self.scan.left();
            reads.cover(id, if back { (left.0, high) } else { (low, left.1) });
            return Ok(None);
        };
        let covered = if back { (Bound::Included(&key[..]), high) } else { (low, Bound::Included(&key[..])) };
        reads.cover(id, covered);
        reads.saw(id, &key, timestamp);
        Ok(Some((key, value)))
    }

    /// A row as it was in the transaction's turn. The table is marked as scanned.
    fn row_in_turn(&mut self, back: bool) -> Result<Option<(Vec<u8>, Stored)>> {
        let row = if back {
            self.scan.next_back(self.core, self.table, &mut |_, _| {})
        } else {
            self.scan.next(self.core, self.table, &mut |_, _| {})
        };
        Ok(row?.map(|Row { key, value, .. }| (key, value)))
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

/// The entries of a range in a transaction, as a double-ended iterator.
///
/// Includes the changes that the transaction made before the iterator, and none made since: the
/// body may change the entries that it walks. Everything read must still hold at commit.
///
/// ```
/// use terrace::{Db, MemoryDirectory};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
/// let table = db.create_table("t")?;
/// table.put("a", "1")?;
/// let transaction = db.begin();
/// transaction.put(&table, "b", "2")?;
/// for entry in transaction.range(&table, "a"..) {
///     let (key, value) = entry?;
///     transaction.put(&table, [&key[..], b"2"].concat(), value)?;
/// }
/// let keys: Vec<_> = transaction.iter(&table).map(|entry| entry.unwrap().0).collect();
/// assert_eq!(keys, [&b"a"[..], b"a2", b"b", b"b2"]);
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Debug)]
pub struct TransactionRange<'t> {
    refused: Option<Error>,
    merged: Option<MergedRange<Base<'t>, Stored>>,
    core: &'t Mvcc,
    table: &'t TableState,
    /// None if the range was refused.
    pin: Option<&'t Pin>,
    /// Keeps the transaction's own large values, even replaced ones.
    _own_values: Arc<()>,
}

impl<'t> TransactionRange<'t> {
    pub(crate) fn new(
        core: &'t Mvcc,
        table: &'t TableState,
        asked: OwnedRange,
        pending: &'t Mutex<Pending>,
        pin: Result<&'t Pin>,
    ) -> Self {
        let (own, _own_values) = pending.lock().own_range(table.id, &asked);
        let (pin, refused) = match pin {
            Ok(pin) => (Some(pin), None),
            Err(refused) => (None, Some(refused)),
        };
        let merged = pin.map(|pin| {
            let scan = Scan::new(table.tree, asked.clone(), pin.reads_at());
            let in_turn = pin.turn().is_some();
            MergedRange::new(Base { core, table, pending, asked, scan, up: None, down: None, in_turn }, own)
        });
        TransactionRange { refused, merged, core, table, pin, _own_values }
    }

    /// Announces that about `entries` entries will be read from the front.
    ///
    /// Works like [`crate::Range::expect_entries`], and has no effect on conflicts.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// let table = db.create_table("t")?;
    /// let transaction = db.begin();
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

    fn step<T>(
        &mut self,
        back: bool,
        take: impl FnOnce(&Mvcc, &Pin, Merged<Stored>) -> Result<T>,
    ) -> Option<Result<(Vec<u8>, T)>> {
        if let Some(refused) = self.refused.take() {
            return Some(Err(refused));
        }
        let (merged, pin) = self.merged.as_mut().zip(self.pin)?;
        let affordable = merged.base_mut().pending.lock().reads.afford(&self.core.read_memory, 0);
        if let Err(error) = self.core.check().and(affordable) {
            self.merged = None;
            return Some(Err(error));
        }
        let Some(entry) = (if back { merged.next_back() } else { merged.next() }) else {
            let lost = pin.checked(Ok(())).err();
            self.merged = None;
            return lost.map(Err);
        };
        let entry = entry.and_then(|(key, value)| Ok((key, take(self.core, pin, value)?)));
        let entry = pin.checked(entry);
        let entry = entry.or_else(|error| self.table.check().and(Err(error)));
        if entry.is_err() {
            self.merged = None;
        }
        Some(entry)
    }

    fn entry(&mut self, back: bool) -> Option<Result<(Vec<u8>, Vec<u8>)>> {
        self.step(back, |core, pin, value| match value {
            Merged::Base(stored) => load_pinned(core, stored, pin),
            Merged::Own(own) => load_own(core, &own),
        })
    }

    /// The next key, and the bytes of its value in the leaf. Does not read large values.
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

/// What a transaction has read, or may read, stays until this is dropped.
///
/// Optimistic transactions read the newest entries, whose large values may be replaced meanwhile.
/// With timestamp ordering a transaction reads the snapshot, which ends just below its timestamp.
#[derive(Debug)]
pub(crate) struct Pin {
    snapshot: SnapshotHandle,
    /// The timestamp, with timestamp ordering.
    turn: Option<Timestamp>,
    /// A read failed because what it wanted may be gone.
    lost: AtomicBool,
}

impl Pin {
    pub(crate) fn new(mvcc: &Mvcc) -> Self {
        Pin { snapshot: mvcc.snapshots.register(&mvcc.clock), turn: None, lost: AtomicBool::new(false) }
    }

    /// Takes a turn in the order of timestamps.
    ///
    /// # Errors
    /// Those of [`Mvcc::advance`]: the log has failed, or the database is closed.
    pub(crate) fn in_turn(mvcc: &Mvcc) -> Result<Self> {
        let (snapshot, turn) = mvcc.snapshots.register_below(&mvcc.clock, || {
            let drawn = mvcc.clock.draw(|| mvcc.advance())?;
            let timestamp = drawn.timestamp();
            // `visible` passes it at once.
            drop(drawn);
            mvcc.advance().map(|()| timestamp)
        })?;
        Ok(Pin { snapshot, turn: Some(turn), lost: AtomicBool::new(false) })
    }

    /// The turn, with timestamp ordering.
    pub(crate) fn turn(&self) -> Option<Turn<'_>> {
        self.turn.map(|timestamp| Turn { timestamp, snapshot: &self.snapshot })
    }

    /// The timestamp at which reads look, or none for the newest entries.
    fn reads_at(&self) -> Option<Timestamp> {
        self.turn.map(|_| self.snapshot.timestamp())
    }

    /// Up to this, what it reads has all its versions. The newest entry's large value, too, stays:
    /// another replaces it above.
    pub(crate) fn timestamp(&self) -> Timestamp {
        self.snapshot.timestamp()
    }

    /// What was read in the turn, if the old versions that it needed were there. Without a turn,
    /// the validation checks it.
    pub(crate) fn checked<T>(&self, read: Result<T>) -> Result<T> {
        if self.turn.is_some() && (self.is_too_old() || matches!(read, Err(Error::SnapshotTooOld))) {
            self.lost.store(true, Relaxed);
            return Err(Error::Conflict);
        }
        read
    }

    /// Whether what it keeps may be gone.
    pub(crate) fn is_too_old(&self) -> bool {
        self.snapshot.expired()
    }

    /// Whether a read met [`Error::Conflict`] for that reason.
    pub(crate) fn has_lost(&self) -> bool {
        self.lost.load(Relaxed)
    }
}

/// Reads a value that the tree referred to after `pin` was taken.
pub(crate) fn load_pinned(core: &Mvcc, stored: Stored, pin: &Pin) -> Result<Vec<u8>> {
    match stored {
        Stored::Inline(bytes) => Ok(bytes),
        Stored::Overflow(reference) => {
            let mut value = Vec::new();
            load_pinned_to(core, reference, pin, Whole, &mut value)?;
            Ok(value)
        }
    }
}

/// Reads the wanted bytes of a large value, as [`load_pinned`] does, into a buffer.
pub(crate) fn load_pinned_to(
    core: &Mvcc,
    reference: Reference,
    pin: &Pin,
    wanted: impl Wanted,
    value: &mut Vec<u8>,
) -> Result<()> {
    let loaded = read_value_to(&core.pool, reference, wanted, value);
    // The pages may have been freed during the read: retry the transaction.
    if pin.is_too_old() {
        pin.lost.store(true, Relaxed);
        return Err(Error::Conflict);
    }
    loaded
}

pub(crate) fn load_own(core: &Mvcc, own: &NewValue) -> Result<Vec<u8>> {
    let mut value = Vec::new();
    load_own_to(core, own, Whole, &mut value)?;
    Ok(value)
}

/// [`load_own`] of the wanted bytes into a buffer.
pub(crate) fn load_own_to(
    core: &Mvcc,
    own: &NewValue,
    wanted: impl Wanted,
    value: &mut Vec<u8>,
) -> Result<()> {
    match own {
        NewValue::Inline(bytes) => {
            value.clear();
            value.extend_from_slice(&bytes[wanted.inside(bytes.len())?]);
        }
        NewValue::Overflow(reference) => {
            let stored = crate::txn::scan::stored(crate::txn::versions::OldValue::Overflow(*reference))?;
            core.load_to(stored, wanted, value)?;
        }
    }
    Ok(())
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
