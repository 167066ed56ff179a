//! Changes and scans of a table, each a transaction or a snapshot of its own.

use std::ops::{Bound, ControlFlow, RangeBounds};

use super::snapshot::{Range, Snapshot};
use super::swap::Swap;
use super::table::Table;
use super::transaction::Transaction;
use super::transaction_ranges::Deleted;
use super::update::insist;
use crate::error::{Error, Result};
use crate::ids::MAX_KEY_BYTES;
use crate::index::node::leaf::max_inline_value;
use crate::index::{New, Single, count_levels, count_pages};
use crate::txn::counts::{count_about, count_entries, count_if_known};
use crate::txn::scan::OwnedRange;
use crate::txn::single::SingleEnd;

/// Steps of a long deletion that fit into the log together.
const STEPS_PER_LOG: u64 = 16;

impl Table {
    /// Sets `key` to `value`.
    ///
    /// # Errors
    /// [`Error::KeyTooLarge`], [`Error::ValueTooLarge`], [`Error::ReadOnly`], [`Error::Full`],
    /// [`Error::TableNotFound`], [`Error::Poisoned`], [`Error::Corrupt`], [`Error::Io`].
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_bytes(key.as_ref(), value.as_ref())
    }

    /// Apart from [`Table::put`], which is compiled for each type of key and value.
    fn put_bytes(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let page_bytes = self.state().tree.page_bytes();
        if key.len() <= MAX_KEY_BYTES && value.len() <= max_inline_value(page_bytes, key.len()) {
            let single = Single { key, new: New::Value(value) };
            let durability = self.shared().settings.durability;
            let end = self.shared().commit_single(self.state(), single, durability, |_| true)?;
            if let SingleEnd::Committed(_) = end {
                return Ok(());
            }
        }
        let transaction = self.begin();
        transaction.put(self, key, value)?;
        transaction.commit()
    }

    /// Overwrites a part of the value of `key` with `bytes`, from offset `at` on. Returns whether
    /// the key exists.
    ///
    /// The value keeps its length. If it is in a leaf, the log gets only the part. A large value is
    /// read and written as a whole.
    ///
    /// # Errors
    /// [`Error::OutsideValue`] if the value is shorter than `at + bytes.len()`; those of
    /// [`Table::replace`].
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// let table = db.create_table("t")?;
    /// table.put("row", "name: anna ")?;
    /// assert!(table.update_range("row", 6, "bert ")?);
    /// assert_eq!(table.get("row")?.as_deref(), Some(&b"name: bert "[..]));
    /// assert!(!table.update_range("other", 0, "x")?);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn update_range(&self, key: impl AsRef<[u8]>, at: usize, bytes: impl AsRef<[u8]>) -> Result<bool> {
        self.shared().overwrite(self, key.as_ref(), at, bytes.as_ref())
    }

    /// Removes `key`; returns whether it existed.
    ///
    /// # Errors
    /// Those of [`Table::put`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.delete_bytes(key.as_ref())
    }

    fn delete_bytes(&self, key: &[u8]) -> Result<bool> {
        if key.len() <= MAX_KEY_BYTES {
            let single = Single { key, new: New::Nothing };
            let durability = self.shared().settings.durability;
            let end = self.shared().commit_single(self.state(), single, durability, |_| true)?;
            if let SingleEnd::Committed(committed) = end {
                return Ok(committed.existed);
            }
        }
        let mut transaction = self.begin();
        transaction.remove(self, key)?;
        transaction.finish(None).map(|committed| committed.existed)
    }

    /// Sets `key` to `value`; returns the value before.
    ///
    /// # Errors
    /// Those of [`Table::put`]. [`Error::SnapshotTooOld`] if a large value is repeatedly replaced
    /// faster than it can be read.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// let table = db.create_table("t")?;
    /// assert_eq!(table.replace("k", "1")?, None);
    /// assert_eq!(table.replace("k", "2")?.as_deref(), Some(&b"1"[..]));
    /// assert_eq!(table.take("k")?.as_deref(), Some(&b"2"[..]));
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn replace(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.shared().exchange(self, key.as_ref(), Some(value.as_ref()))
    }

    /// Removes `key`; returns its value.
    ///
    /// # Errors
    /// Those of [`Table::replace`].
    pub fn take(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.shared().exchange(self, key.as_ref(), None)
    }

    /// Atomically sets `key` to `new` if its value is `expected`.
    ///
    /// `None` stands for an absent key: as `expected` it requires absence, as `new` it removes the
    /// key. For another value the result is [`Swap::Found`] with that value, as durable as a result
    /// of [`Table::get`].
    ///
    /// # Errors
    /// Those of [`Table::replace`], but never [`Error::Conflict`].
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
        self.shared().compare_and_swap(self, key.as_ref(), expected, new)
    }

    /// Atomically sets `key` to `change` of its value; returns the new value.
    ///
    /// `None` stands for an absent key. `change` runs again if other threads change the key,
    /// finally with priority: see [`Db::update`](crate::Db::update).
    ///
    /// # Errors
    /// Those of [`Table::compare_and_swap`], and [`Error::Conflict`] if `change` waits for threads
    /// that change the key.
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
        mut change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>> {
        self.try_update(key, |old| Ok(change(old)))
    }

    /// Like [`Table::update`], with a `change` that may fail.
    ///
    /// Its error changes nothing and is returned as it is.
    ///
    /// # Errors
    /// That of `change`, and those of [`Table::update`].
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// let table = db.create_table("t")?;
    /// let taken = table.try_update("stock", |old| match old {
    ///     Some([left]) if *left > 0 => Ok(Some(vec![left - 1])),
    ///     _ => Err(Box::<dyn std::error::Error>::from("sold out")),
    /// });
    /// assert_eq!(taken.unwrap_err().to_string(), "sold out");
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn try_update<E: From<Error> + 'static>(
        &self,
        key: impl AsRef<[u8]>,
        change: impl FnMut(Option<&[u8]>) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Option<Vec<u8>>, E> {
        self.shared().fetch_and_update(self, key.as_ref(), change)
    }

    /// Atomically removes all entries of a key range; returns their number.
    ///
    /// Other threads see all of the entries or none, even after a crash. A concurrent insert counts
    /// as earlier or later.
    ///
    /// Each entry takes 256 bytes of log, plus three times its key and twice its value. More than
    /// five eighths of [`crate::Builder::log_max`] is refused; then use
    /// [`Table::delete_range_in_steps`], or drop the table.
    ///
    /// # Errors
    /// [`Error::TransactionTooLarge`], [`Error::ReadOnly`], [`Error::Full`],
    /// [`Error::TableNotFound`], [`Error::Poisoned`], [`Error::Corrupt`], [`Error::Io`]; never
    /// [`Error::Conflict`].
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

    /// Removes all entries of a key range in several transactions; returns their number.
    ///
    /// Works for ranges of any size, in ascending order, without long stalls of others. Each step
    /// is durable like a commit. Other threads may see a part of the range, and an error or crash
    /// leaves the rest.
    ///
    /// # Errors
    /// Those of [`Table::delete_range`], except [`Error::TransactionTooLarge`].
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
        let step = self.shared().pool.wal().max_reservation() / STEPS_PER_LOG;
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
        let deleted = insist(self.shared(), delete)?;
        if deleted.entries == 0 {
            // A buffered deletion may have emptied the range, and this result promises that it
            // stays empty.
            self.shared().nothing_to_do(self.shared().settings.durability)?;
        }
        Ok(deleted)
    }

    /// Returns the entries of a key range at one moment, as a double-ended iterator.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range {
        Snapshot::of_table(self.shared(), self.state()).range(self, range)
    }

    /// Calls `visit` with the entries of a key range, in ascending order, until it breaks.
    ///
    /// Returns the break value. Needs no allocation per entry: see [`Snapshot::scan`].
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
    /// Those of [`Snapshot::get`].
    pub fn scan<K: AsRef<[u8]>, B>(
        &self,
        range: impl RangeBounds<K>,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Result<Option<B>> {
        self.range(range).visit(visit)
    }

    /// Returns the entries whose keys begin with `prefix`.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        Snapshot::of_table(self.shared(), self.state()).prefix(self, prefix)
    }

    /// Returns all entries.
    pub fn iter(&self) -> Range {
        self.range::<&[u8]>(..)
    }

    /// Returns the exact number of entries at one moment during the call.
    ///
    /// Uses a kept count: waits for current commits and briefly holds back new ones. The first call
    /// after a crash walks the table, without blocking other threads.
    ///
    /// # Errors
    /// Those of [`Table::get`].
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
        count_entries(self.shared(), self.state())
    }

    /// Returns the exact number of entries, or `None` if that takes a walk.
    ///
    /// It is unknown after a crash, until [`Table::len`] or [`Db::verify`](crate::Db::verify) has
    /// counted.
    ///
    /// # Errors
    /// Those of [`Table::get`].
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
        count_if_known(self.shared(), self.state())
    }

    /// Returns the approximate number of entries at once.
    ///
    /// Waits for no commit and delays none, so it may be off by current commits. After a crash it
    /// may miss the last second of changes, or the last eighth of [`crate::Builder::log_max`] if
    /// that took longer to write. A count by [`Table::len`] or [`Db::verify`](crate::Db::verify)
    /// corrects it.
    ///
    /// # Errors
    /// Those of [`Table::get`].
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
        count_about(self.shared(), self.state())
    }

    /// Counts the pages of the table's tree, without those of large values.
    ///
    /// # Errors
    /// Those of [`Table::get`].
    pub fn pages(&self) -> Result<u64> {
        self.shared().check()?;
        self.state().check()?;
        let counted = count_pages(self.state().tree, &self.shared().pool);
        // A dropped table's pages may have been reused.
        self.state().check().and(counted)
    }

    pub(crate) fn levels(&self) -> Result<u64> {
        let counted = count_levels(self.state().tree, &self.shared().pool);
        self.state().check().and(counted)
    }

    /// Whether there are no entries.
    ///
    /// # Errors
    /// Those of [`Table::get`].
    pub fn is_empty(&self) -> Result<bool> {
        self.first().map(|first| first.is_none())
    }

    /// Returns the entry with the lowest key.
    ///
    /// # Errors
    /// Those of [`Table::get`].
    pub fn first(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.iter().next().transpose()
    }

    /// Returns the entry with the highest key.
    ///
    /// # Errors
    /// Those of [`Table::get`].
    pub fn last(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.iter().next_back().transpose()
    }

    fn begin(&self) -> Transaction {
        Transaction::new(self.shared(), self.shared().settings.durability)
    }
}
