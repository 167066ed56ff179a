//! Tables: one operation at a time, each its own transaction.

use std::ops::{Bound, ControlFlow, RangeBounds};
use std::sync::Arc;

use super::core::{Shared, TableState};
use super::lookup::Lookup;
use super::scan::OwnedRange;
use super::single::SingleEnd;
use super::snapshot::{Range, Snapshot};
use super::swap::Swap;
use super::transaction::{Deleted, Transaction};
use super::update::insist;
use crate::MAX_KEY_BYTES;
use crate::error::{Error, Result};
use crate::index::Single;
use crate::index::leaf::max_inline_value;

/// Steps of a long deletion that the log would have room for together.
const STEPS_PER_LOG: u64 = 16;

/// An ordered map from keys to values, both bytes. A handle: clones name the same table, and it stays valid when the
/// table is renamed. After the table is dropped its calls fail with [`Error::TableNotFound`].
///
/// Each call is a transaction of its own, with the durability the database was opened with. Keys are up to
/// [`crate::MAX_KEY_BYTES`] long, the empty one included, and ordered as bytes; values up to
/// [`crate::MAX_VALUE_BYTES`].
///
/// ```
/// use terrace::{Db, MemoryDirectory};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
/// let colours = db.create_table("colours")?;
/// colours.put("sky", "blue")?;
/// assert_eq!(colours.get("sky")?.as_deref(), Some(&b"blue"[..]));
/// assert!(colours.delete("sky")?);
/// assert!(colours.is_empty()?);
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Table {
    shared: Arc<Shared>,
    state: Arc<TableState>,
}

impl Table {
    pub(crate) fn new(shared: Arc<Shared>, state: Arc<TableState>) -> Self {
        Table { shared, state }
    }

    #[cfg(feature = "raw-frames")]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn state(&self) -> &Arc<TableState> {
        &self.state
    }

    /// An error if this is a table of another database.
    pub(crate) fn belongs_to(&self, shared: &Arc<Shared>) -> Result<()> {
        if Arc::ptr_eq(&self.shared, shared) {
            return Ok(());
        }
        Err(Error::Config(format!("table {:?} belongs to another database", self.name())))
    }

    /// Its name now.
    pub fn name(&self) -> String {
        self.state.name.read().to_string()
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// [`Error::TableNotFound`], [`Error::Poisoned`], [`Error::Corrupt`], [`Error::Io`].
    #[inline]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.shared.get_now(&self.state, key.as_ref())
    }

    /// The value of `key`, without waiting for the disk: at once where memory has it, else as a future that a thread of
    /// the database's own completes. It needs no runtime, and runs on any.
    ///
    /// Values of more than a page are always read by such a thread. The call itself reads, and blocks, while
    /// 4096 others wait, in [`crate::Mode::Inline`], and in a database that is open read-only.
    ///
    /// ```
    /// # use std::{future::Future, pin::pin, task::{Context, Poll, Waker}};
    /// use terrace::{Db, Table};
    ///
    /// # fn block_on<T>(future: impl Future<Output = T>) -> T {
    /// #     let mut future = pin!(future);
    /// #     loop {
    /// #         match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
    /// #             Poll::Ready(value) => return value,
    /// #             Poll::Pending => std::thread::yield_now(),
    /// #         }
    /// #     }
    /// # }
    /// async fn both(table: &Table) -> terrace::Result<usize> {
    ///     // Both reads are under way before the first is waited for.
    ///     let (a, b) = (table.get_async("a"), table.get_async("b"));
    ///     Ok(a.await?.map_or(0, |value| value.len()) + b.await?.map_or(0, |value| value.len()))
    /// }
    ///
    /// let place = tempfile::tempdir().unwrap();
    /// let db = Db::builder().dram(4 << 20).open(place.path().join("db"))?;
    /// let table = db.create_table("t")?;
    /// table.put("a", "value")?;
    /// assert_eq!(block_on(both(&table))?, 5);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    ///
    /// # Errors
    /// The future's are those of [`Table::get`].
    pub fn get_async(&self, key: impl AsRef<[u8]>) -> Lookup {
        self.shared.get_async(&self.state, key.as_ref())
    }

    /// The values of `keys`, in their order. Each is read as by [`Table::get`], not all at one moment: a
    /// [`Snapshot`] does that. Pages that are not in memory are read from the disk together, up to 64 at a time,
    /// which on most disks is several times faster than one after the other.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// let table = db.create_table("t")?;
    /// table.put("a", "1")?;
    /// table.put("b", "2")?;
    /// assert_eq!(table.get_many(["b", "x", "a"])?, [Some(b"2".to_vec()), None, Some(b"1".to_vec())]);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Table::get`]: that of the first key that could not be read.
    pub fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let keys: Vec<K> = keys.into_iter().collect();
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        self.shared.get_all_now(&self.state, &keys)
    }

    /// Whether `key` is there.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.get(key).map(|value| value.is_some())
    }

    /// Sets `key` to `value`.
    ///
    /// # Errors
    /// [`Error::KeyTooLarge`], [`Error::ValueTooLarge`], [`Error::ReadOnly`], [`Error::Full`],
    /// [`Error::TableNotFound`], [`Error::Poisoned`], [`Error::Corrupt`], [`Error::Io`].
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        let page_bytes = self.state.tree.page_bytes();
        if key.len() <= MAX_KEY_BYTES && value.len() <= max_inline_value(page_bytes, key.len()) {
            let single = Single { key, value: Some(value) };
            let durability = self.shared.settings.durability;
            let end = self.shared.commit_single(&self.state, single, durability, |_| true)?;
            if let SingleEnd::Committed(_) = end {
                return Ok(());
            }
        }
        let mut transaction = self.begin();
        transaction.put(self, key, value)?;
        transaction.commit()
    }

    /// Removes `key`; whether it was there.
    ///
    /// # Errors
    /// As [`Table::put`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let key = key.as_ref();
        if key.len() <= MAX_KEY_BYTES {
            let single = Single { key, value: None };
            let durability = self.shared.settings.durability;
            let end = self.shared.commit_single(&self.state, single, durability, |_| true)?;
            if let SingleEnd::Committed(committed) = end {
                return Ok(committed.existed);
            }
        }
        let mut transaction = self.begin();
        transaction.remove(self, key)?;
        transaction.finish(None).map(|committed| committed.existed)
    }

    /// Sets `key` to `new` if its value is `expected`, in one step that nothing can come between. None stands for a key
    /// that is absent: as `expected`, only a key that is not there is set; as `new`, the key is removed.
    ///
    /// A value of another length or content is no error but [`Swap::Found`], with the value, which is then as durable as
    /// one that [`Table::get`] returns. Values that fit into a page are compared where they are stored, larger ones read.
    ///
    /// # Errors
    /// As [`Table::put`], and [`Error::SnapshotTooOld`] if a large value is replaced again and again faster than it can
    /// be read; never [`Error::Conflict`].
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory, Swap};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// let table = db.create_table("t")?;
    /// assert!(table.compare_and_swap("owner", None, Some(b"me"))?.is_done());
    /// let swap = table.compare_and_swap("owner", None, Some(b"you"))?;
    /// assert_eq!(swap, Swap::Found(Some(b"me".to_vec())));
    /// assert!(table.compare_and_swap("owner", Some(b"me"), None)?.is_done());
    /// assert!(table.is_empty()?);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Swap> {
        self.shared.compare_and_swap(self, key.as_ref(), expected, new)
    }

    /// Sets `key` to what `change` makes of its value, and returns that; none stands for a key that is absent. `change`
    /// runs again when others change the key meanwhile, at last in a transaction that has priority: see [`Db::update`](crate::Db::update).
    ///
    /// # Errors
    /// As [`Table::compare_and_swap`], and [`Error::Conflict`] if `change` waits for other threads that change the key.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// let table = db.create_table("t")?;
    /// let longer = |old: Option<&[u8]>| Some([old.unwrap_or_default(), b"x"].concat());
    /// table.update("k", longer)?;
    /// assert_eq!(table.update("k", longer)?.as_deref(), Some(&b"xx"[..]));
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn update(
        &self,
        key: impl AsRef<[u8]>,
        change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>> {
        self.shared.fetch_and_update(self, key.as_ref(), change)
    }

    /// Removes all entries of a range of keys as one; how many there were. Others see all of them or none, after a crash
    /// too. Who adds an entry to the range at the same time does so before, and it is removed, or after, and it stays.
    ///
    /// Each entry takes log as a single deletion does, about 256 bytes, three times its key and twice its value, and all of
    /// them together at most five eighths of [`crate::Builder::log_max`]. What is more is refused before anything is
    /// removed: use [`Table::delete_range_in_steps`], or drop the table.
    ///
    /// # Errors
    /// [`Error::TransactionTooLarge`], [`Error::ReadOnly`], [`Error::Full`], [`Error::TableNotFound`],
    /// [`Error::Poisoned`], [`Error::Corrupt`], [`Error::Io`]; never [`Error::Conflict`].
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// let table = db.create_table("t")?;
    /// for day in ["2024-12-30", "2024-12-31", "2025-01-01"] {
    ///     table.put(day, "measured")?;
    /// }
    /// assert_eq!(table.delete_range(.."2025")?, 2);
    /// assert_eq!(table.len()?, 1);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn delete_range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<u64> {
        self.delete_some(&super::range::own(range), None).map(|deleted| deleted.entries)
    }

    /// Removes all entries of a range of keys, however many, in transactions of a size that disturbs nobody, from low keys
    /// to high ones; how many there were. Each step is durable as a commit is. An error, or a crash, leaves the entries
    /// that no step has come to, and so others may see a part of the range.
    ///
    /// # Errors
    /// As [`Table::delete_range`], but for [`Error::TransactionTooLarge`].
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// let table = db.create_table("t")?;
    /// table.put("k", "v")?;
    /// assert_eq!(table.delete_range_in_steps::<&str>(..)?, 1);
    /// assert!(table.is_empty()?);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn delete_range_in_steps<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<u64> {
        let step = self.shared.pool.wal().max_reservation() / STEPS_PER_LOG;
        let (mut low, high) = super::range::own(range);
        let mut entries = 0;
        loop {
            let deleted = self.delete_some(&(low, high.clone()), Some(step))?;
            entries += deleted.entries;
            match deleted.last {
                Some(last) => low = Bound::Excluded(last),
                None => return Ok(entries),
            }
        }
    }

    fn delete_some(&self, range: &OwnedRange, log_bytes: Option<u64>) -> Result<Deleted> {
        let delete = |transaction: &mut Transaction| transaction.delete_owned(self, range.clone(), log_bytes);
        let deleted = insist(&self.shared, delete)?;
        if deleted.entries == 0 {
            // The range may be empty by a buffered deletion; to be told so promises that it stays empty.
            self.shared.nothing_to_do(self.shared.settings.durability)?;
        }
        Ok(deleted)
    }

    /// The entries of a range of keys, in order, from either end, all of one moment.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range {
        Snapshot::new(&self.shared).range(self, range)
    }

    /// Calls `visit` with the entries of a range of keys, in ascending order, until it breaks; what it broke with. As
    /// [`Table::range`], but nothing is allocated for each entry: see [`Snapshot::scan`].
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// let table = db.create_table("t")?;
    /// for key in ["a", "b", "c"] {
    ///     table.put(key, key.repeat(3))?;
    /// }
    /// let mut bytes = 0;
    /// let found = table.scan("a"..="b", |key, value| {
    ///     bytes += value.len();
    ///     if key == b"z" { ControlFlow::Break("z is there") } else { ControlFlow::Continue(()) }
    /// })?;
    /// assert_eq!((bytes, found), (6, None));
    /// # Ok::<(), terrace::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn scan<K: AsRef<[u8]>, B>(
        &self,
        range: impl RangeBounds<K>,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Result<Option<B>> {
        self.range(range).visit(visit)
    }

    /// The entries whose keys begin with `prefix`.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        Snapshot::new(&self.shared).prefix(self, prefix)
    }

    /// All entries.
    pub fn iter(&self) -> Range {
        self.range::<&[u8]>(..)
    }

    /// How many entries there are, exactly, at one moment during the call. Counts are kept, so this takes as long as the
    /// commits that are under way just now, which it waits for and holds others back behind. Only after a crash, and for
    /// each table once, it walks the table, which holds up nobody.
    ///
    /// # Errors
    /// As [`Table::get`].
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// let table = db.create_table("t")?;
    /// table.put("a", "1")?;
    /// table.put("a", "2")?;
    /// table.put("b", "3")?;
    /// assert_eq!(table.len()?, 2);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn len(&self) -> Result<u64> {
        self.shared.count_entries(&self.state)
    }

    /// As [`Table::len`], but none where that would take a walk: after a crash, until `len` or [`Db::verify`](crate::Db::verify) has counted.
    ///
    /// # Errors
    /// As [`Table::get`].
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// let table = db.create_table("t")?;
    /// assert_eq!(table.len_if_known()?, Some(0));
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn len_if_known(&self) -> Result<Option<u64>> {
        self.shared.count_if_known(&self.state)
    }

    /// How many entries there are, more or less, at once: waits for nobody and holds up nobody. It may be off by the entries
    /// that commits under way add and remove, and after a crash, until [`Table::len`] or [`Db::verify`](crate::Db::verify) has counted, by
    /// those that were added and removed in the last second before it or, if that took longer, while the log grew by an
    /// eighth of [`crate::Builder::log_max`].
    ///
    /// # Errors
    /// As [`Table::get`].
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// let table = db.create_table("t")?;
    /// table.put("k", "v")?;
    /// assert_eq!(table.approximate_len()?, 1, "nobody else is at work");
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn approximate_len(&self) -> Result<u64> {
        self.shared.count_about(&self.state)
    }

    /// How many pages its tree takes; those of values that have pages of their own are not counted. Walks the tree, but
    /// not its leaves.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn pages(&self) -> Result<u64> {
        self.shared.check()?;
        self.state.check()?;
        let counted = self.state.tree.count_pages(&self.shared.pool);
        // Its pages may have become others' while it was dropped.
        self.state.check().and(counted)
    }

    /// Whether there are no entries.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn is_empty(&self) -> Result<bool> {
        self.first().map(|first| first.is_none())
    }

    /// The entry with the lowest key.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn first(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.iter().next().transpose()
    }

    /// The entry with the highest key.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn last(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.iter().next_back().transpose()
    }

    fn begin(&self) -> Transaction {
        Transaction::new(&self.shared, self.shared.settings.durability)
    }
}
