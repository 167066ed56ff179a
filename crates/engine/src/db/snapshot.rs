//! Snapshots, and cursors over them.

use std::ops::{ControlFlow, RangeBounds};
use std::sync::Arc;

use super::core::{Shared, TableState};
use super::scan::{Met, OwnedRange, Row, Scan};
use super::table::Table;
use crate::error::{Error, Result};
use crate::index::Toward;
use crate::txn::snapshots::SnapshotHandle;

/// The database as it was at one moment. Reads of it never wait for writers, never fail because of them, and see every
/// commit acknowledged before the snapshot was taken, and nothing later.
///
/// Old versions of what changes are kept for it in memory, up to a limit of age and of bytes; beyond it the oldest
/// snapshot is given up, and its reads fail with [`Error::SnapshotTooOld`]. For readers that take longer there are
/// [named snapshots](crate::Db::create_named_snapshot).
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
        Self::of(shared, &Arc::new(shared.snapshots.register(&shared.clock)))
    }

    /// Another handle of a snapshot.
    pub(crate) fn of(shared: &Arc<Shared>, handle: &Arc<SnapshotHandle>) -> Self {
        Snapshot { shared: Arc::clone(shared), handle: Arc::clone(handle) }
    }

    pub(crate) fn handle(&self) -> &Arc<SnapshotHandle> {
        &self.handle
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`], [`Error::TableNotFound`] if the table was dropped before the snapshot was taken,
    /// [`Error::Poisoned`], [`Error::Corrupt`], [`Error::Io`].
    pub fn get(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        table.belongs_to(&self.shared)?;
        self.shared.get_at(table.state(), key.as_ref(), &self.handle)
    }

    /// The values of `keys`, in their order, all of the snapshot's moment. Pages that are not in memory are read
    /// together, see [`Table::get_many`].
    ///
    /// # Errors
    /// As [`Snapshot::get`]: that of the first key that could not be read.
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

    /// Whether `key` is there.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn contains(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<bool> {
        self.get(table, key).map(|value| value.is_some())
    }

    /// The entries of a range of keys, in order, from either end.
    pub fn range<K: AsRef<[u8]>>(&self, table: &Table, range: impl RangeBounds<K>) -> Range {
        self.cursor(table, super::range::own(range))
    }

    /// Calls `visit` with the entries of a range of keys, in ascending order, until it breaks; what it broke with. As
    /// [`Snapshot::range`], but entries are shown where the scan has copied them, a leaf at a time, so nothing is
    /// allocated for each. No latch is held meanwhile: `visit` may call anything.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn scan<K: AsRef<[u8]>, B>(
        &self,
        table: &Table,
        range: impl RangeBounds<K>,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Result<Option<B>> {
        self.range(table, range).visit(visit)
    }

    /// The entries whose keys begin with `prefix`.
    pub fn prefix(&self, table: &Table, prefix: impl AsRef<[u8]>) -> Range {
        self.cursor(table, super::range::of_prefix(prefix.as_ref()))
    }

    /// All entries.
    pub fn iter(&self, table: &Table) -> Range {
        self.range::<&[u8]>(table, ..)
    }

    /// How many entries there are. Walks all of them.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn len(&self, table: &Table) -> Result<u64> {
        self.iter(table).count_entries()
    }

    /// Whether there are no entries.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn is_empty(&self, table: &Table) -> Result<bool> {
        self.iter(table).next().transpose().map(|first| first.is_none())
    }

    /// How long ago it was taken.
    pub fn age(&self) -> std::time::Duration {
        self.handle.age()
    }

    pub(crate) fn cursor(&self, table: &Table, range: OwnedRange) -> Range {
        let foreign = table.belongs_to(&self.shared).err();
        Range::new(self.clone(), Arc::clone(table.state()), range, foreign)
    }
}

/// The entries of a range as a snapshot sees them: an iterator that can be walked from both ends.
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

    /// Says that about `entries` entries will be taken from the front. The pages that hold them are then read from the
    /// disk together as soon as the scan has left its first one, instead of a few at first and more the longer it
    /// goes on. Any number may be taken all the same.
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

    /// The value of an entry that is not in the leaf.
    fn load(&self, row: Row) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let value = self.snapshot.shared.load(Some(row.value));
        self.snapshot.handle.check()?;
        Ok(value?.map(|value| (row.key, value)))
    }

    /// Calls `visit` with what is left, in ascending order, until it breaks; what it broke with. See [`Snapshot::scan`].
    ///
    /// # Errors
    /// As [`Snapshot::get`].
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
            // What else there is in that leaf was copied with it, and needs no more looks at anything.
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

    /// Counts what is left without reading large values.
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
