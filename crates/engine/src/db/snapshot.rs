//! Snapshots and their cursors.

use std::ops::{ControlFlow, RangeBounds};
use std::sync::Arc;

use super::buffer::{or_empty, with_value};
use super::core::Shared;
use super::table::Table;
use crate::error::{Error, Result};
use crate::index::{Part, Toward, Wanted, Whole};
use crate::txn::scan::{Met, OwnedRange, Row, Scan};
use crate::txn::snapshots::SnapshotHandle;
use crate::txn::table::TableState;

/// All tables at one moment.
///
/// Reads never wait for writers. They see every commit acknowledged before the snapshot was taken,
/// and nothing later.
///
/// Memory keeps old versions for it, limited by age and bytes. Beyond a limit the oldest snapshot
/// is given up: its reads fail with [`Error::SnapshotTooOld`]. Long readers can use [named
/// snapshots](crate::Db::create_named_snapshot).
///
/// ```
/// use terrace::{Db, MemoryDirectory};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
/// let table = db.create_table("t")?;
/// table.put(b"k", b"before")?;
/// let snapshot = db.snapshot();
/// table.put(b"k", b"after")?;
/// assert_eq!(snapshot.get(&table, b"k")?.as_deref(), Some(&b"before"[..]));
/// assert_eq!(table.get(b"k")?.as_deref(), Some(&b"after"[..]));
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Snapshot {
    shared: Arc<Shared>,
    handle: Arc<SnapshotHandle>,
}

impl Snapshot {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self::of(shared, &Arc::new(shared.snapshot(false)))
    }

    /// A snapshot that no age limit ends.
    pub(crate) fn kept(shared: &Arc<Shared>) -> Self {
        Self::of(shared, &Arc::new(shared.snapshot(true)))
    }

    /// A snapshot for reads of one table.
    pub(crate) fn of_table(shared: &Arc<Shared>, table: &TableState) -> Self {
        Self::of(shared, &Arc::new(shared.snapshot_of(table)))
    }

    pub(crate) fn of(shared: &Arc<Shared>, handle: &Arc<SnapshotHandle>) -> Self {
        Snapshot { shared: Arc::clone(shared), handle: Arc::clone(handle) }
    }

    pub(crate) fn handle(&self) -> &Arc<SnapshotHandle> {
        &self.handle
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`], [`Error::TableNotFound`] if the table was dropped before the
    /// snapshot was taken, [`Error::Poisoned`], [`Error::Corrupt`], [`Error::Io`].
    pub fn get(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        table.belongs_to(&self.shared)?;
        self.shared.get_at(table.state(), key.as_ref(), &self.handle)
    }

    /// Calls `read` with the value of `key`, if it exists; see [`Table::get_with`].
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    pub fn get_with<R>(
        &self,
        table: &Table,
        key: impl AsRef<[u8]>,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>> {
        with_value(|value| self.copy(table, key.as_ref(), Whole, value), read)
    }

    /// Copies the value of `key` into `value`; see [`Table::get_into`].
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    pub fn get_into(&self, table: &Table, key: impl AsRef<[u8]>, value: &mut Vec<u8>) -> Result<bool> {
        or_empty(value, |value| self.copy(table, key.as_ref(), Whole, value))
    }

    /// Returns a part of the value of `key`; see [`Table::get_range`].
    ///
    /// # Errors
    /// [`Error::OutsideValue`], and those of [`Snapshot::get`].
    pub fn get_range(
        &self,
        table: &Table,
        key: impl AsRef<[u8]>,
        range: impl RangeBounds<usize>,
    ) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        let found = self.copy(table, key.as_ref(), Part::new(&range), &mut value)?;
        Ok(found.then_some(value))
    }

    /// Calls `read` with a part of the value of `key`; see [`Table::get_range_with`].
    ///
    /// # Errors
    /// Those of [`Snapshot::get_range`].
    pub fn get_range_with<R>(
        &self,
        table: &Table,
        key: impl AsRef<[u8]>,
        range: impl RangeBounds<usize>,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>> {
        with_value(|value| self.copy(table, key.as_ref(), Part::new(&range), value), read)
    }

    /// Copies a part of the value of `key` into `part`; see [`Table::get_range_into`].
    ///
    /// # Errors
    /// Those of [`Snapshot::get_range`].
    pub fn get_range_into(
        &self,
        table: &Table,
        key: impl AsRef<[u8]>,
        range: impl RangeBounds<usize>,
        part: &mut Vec<u8>,
    ) -> Result<bool> {
        or_empty(part, |part| self.copy(table, key.as_ref(), Part::new(&range), part))
    }

    fn copy(&self, table: &Table, key: &[u8], wanted: impl Wanted, value: &mut Vec<u8>) -> Result<bool> {
        table.belongs_to(&self.shared)?;
        self.shared.copy_at(table.state(), key, &self.handle, wanted, value)
    }

    /// Returns the values of `keys`, in their order.
    ///
    /// Pages missing in memory are read together; see [`Table::get_many`].
    ///
    /// # Errors
    /// Those of [`Snapshot::get`], for the first key that cannot be read.
    pub fn get_many<K: AsRef<[u8]>>(
        &self,
        table: &Table,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Vec<u8>>>> {
        table.belongs_to(&self.shared)?;
        let keys: Vec<K> = keys.into_iter().collect();
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        self.shared.get_all_at(table.state(), &keys, &self.handle)
    }

    /// Whether `key` exists.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    pub fn contains(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<bool> {
        self.get(table, key).map(|value| value.is_some())
    }

    /// Returns the entries of a key range as a double-ended iterator.
    pub fn range<K: AsRef<[u8]>>(&self, table: &Table, range: impl RangeBounds<K>) -> Range {
        self.cursor(table, super::range::own(range))
    }

    /// Calls `visit` with the entries of a key range, in ascending order, until it breaks.
    ///
    /// Returns the break value. Faster than [`Snapshot::range`]: entries come from a copy of each
    /// leaf, without an allocation per entry or a latch.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    pub fn scan<K: AsRef<[u8]>, B>(
        &self,
        table: &Table,
        range: impl RangeBounds<K>,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Result<Option<B>> {
        self.range(table, range).visit(visit)
    }

    /// Returns the entries whose keys begin with `prefix`.
    pub fn prefix(&self, table: &Table, prefix: impl AsRef<[u8]>) -> Range {
        self.cursor(table, super::range::of_prefix(prefix.as_ref()))
    }

    /// Returns all entries.
    pub fn iter(&self, table: &Table) -> Range {
        self.range::<&[u8]>(table, ..)
    }

    /// Returns the entry with the lowest key.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    pub fn first(&self, table: &Table) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.iter(table).next().transpose()
    }

    /// Returns the entry with the highest key.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    pub fn last(&self, table: &Table) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.iter(table).next_back().transpose()
    }

    /// Counts the entries by a walk over all of them.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    pub fn len(&self, table: &Table) -> Result<u64> {
        self.iter(table).count_entries()
    }

    /// Whether there are no entries.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    pub fn is_empty(&self, table: &Table) -> Result<bool> {
        self.iter(table).next().transpose().map(|first| first.is_none())
    }

    /// Time since the snapshot was taken.
    pub fn age(&self) -> std::time::Duration {
        self.handle.age()
    }

    pub(crate) fn cursor(&self, table: &Table, range: OwnedRange) -> Range {
        let foreign = table.belongs_to(&self.shared).err();
        Range::new(self.clone(), Arc::clone(table.state()), range, foreign)
    }
}

/// The entries of a range in a snapshot, as a double-ended iterator.
///
/// ```
/// use terrace::{Db, MemoryDirectory};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
/// let table = db.create_table("t")?;
/// for key in ["a", "b", "c"] {
///     table.put(key, "value")?;
/// }
/// let mut range = table.range("a"..);
/// assert_eq!(range.next().unwrap()?.0, b"a");
/// assert_eq!(range.next_back().unwrap()?.0, b"c");
/// assert_eq!(range.count(), 1);
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Debug)]
pub struct Range {
    snapshot: Snapshot,
    table: Arc<TableState>,
    scan: Scan,
    failed: bool,
    foreign: Option<Error>,
}

impl Range {
    fn new(snapshot: Snapshot, table: Arc<TableState>, range: OwnedRange, foreign: Option<Error>) -> Self {
        let scan = Scan::new(table.tree, range, Some(snapshot.handle.timestamp()));
        Range { snapshot, table, scan, failed: false, foreign }
    }

    /// Announces that about `entries` entries will be read from the front.
    ///
    /// Their pages are then read together right after the first leaf. Reading more or fewer is
    /// allowed.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// let table = db.create_table("t")?;
    /// table.put("a", "1")?;
    /// let page: Vec<_> = table.range("a"..).expect_entries(50).take(50).collect::<Result<_, _>>()?;
    /// assert_eq!(page.len(), 1);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn expect_entries(mut self, entries: usize) -> Self {
        self.scan.expect(entries);
        self
    }

    fn step(&mut self, toward: Toward) -> Result<Option<Met>> {
        if let Some(foreign) = self.foreign.take() {
            return Err(foreign);
        }
        let (shared, handle) = (&self.snapshot.shared, &self.snapshot.handle);
        shared.check()?;
        self.table.check_at(handle.timestamp())?;
        let met = self.scan.step(shared, &self.table, toward, &mut |_, _| {});
        handle.check()?;
        met
    }

    fn load(&self, row: Row) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let value = self.snapshot.shared.load(Some(row.value));
        self.snapshot.handle.check()?;
        Ok(value?.map(|value| (row.key, value)))
    }

    /// Calls `visit` with the remaining entries, in ascending order, until it breaks.
    ///
    /// Returns the break value; see [`Snapshot::scan`].
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    pub fn visit<B>(mut self, mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>) -> Result<Option<B>> {
        while let Some(met) = self.step(Toward::Up)? {
            let flow = match met {
                Met::Here(index) => {
                    let (key, value) = self.scan.row(Toward::Up, index);
                    visit(key, value)
                }
                Met::Apart(row) => match self.load(row)? {
                    Some((key, value)) => visit(&key, &value),
                    None => ControlFlow::Continue(()),
                },
            };
            // The rest of that leaf was copied with the entry.
            let flow = match flow {
                ControlFlow::Continue(()) => self.scan.show(&mut visit),
                done => done,
            };
            if let ControlFlow::Break(value) = flow {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    fn entry(&mut self, back: bool) -> Option<Result<(Vec<u8>, Vec<u8>)>> {
        if self.failed {
            return None;
        }
        let toward = if back { Toward::Down } else { Toward::Up };
        let entry = self.step(toward).and_then(|met| match met {
            None => Ok(None),
            Some(Met::Here(index)) => {
                let (key, value) = self.scan.row(toward, index);
                Ok(Some((key.to_vec(), value.to_vec())))
            }
            Some(Met::Apart(row)) => self.load(row),
        });
        self.failed = entry.is_err();
        entry.transpose()
    }

    pub(crate) fn count_entries(mut self) -> Result<u64> {
        let mut count = 0;
        while self.step(Toward::Up)?.is_some() {
            count += 1;
        }
        Ok(count)
    }
}

impl Iterator for Range {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.entry(false)
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.entry(true)
    }
}
