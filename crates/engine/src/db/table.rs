//! Tables: one operation at a time, each its own transaction.

use std::ops::RangeBounds;
use std::sync::Arc;

use super::core::{Shared, TableState};
use super::snapshot::{Range, Snapshot};
use super::transaction::Transaction;
use crate::MAX_KEY_BYTES;
use crate::error::{Error, Result};
use crate::index::Single;
use crate::index::leaf::max_inline_value;

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
        let page_bytes = self.shared.pool.page_bytes();
        if key.len() <= MAX_KEY_BYTES && value.len() <= max_inline_value(page_bytes, key.len()) {
            let single = Single { key, value: Some(value) };
            if self.shared.commit_single(&self.state, single, self.shared.settings.durability)?.is_some() {
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
            if let Some(committed) = self.shared.commit_single(&self.state, single, durability)? {
                return Ok(committed.existed);
            }
        }
        let mut transaction = self.begin();
        transaction.remove(self, key)?;
        transaction.finish().map(|committed| committed.existed)
    }

    /// The entries of a range of keys, in order, from either end, all of one moment.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range {
        Snapshot::new(&self.shared).range(self, range)
    }

    /// The entries whose keys begin with `prefix`.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        Snapshot::new(&self.shared).prefix(self, prefix)
    }

    /// All entries.
    pub fn iter(&self) -> Range {
        self.range::<&[u8]>(..)
    }

    /// How many entries there are. Walks all of them.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn len(&self) -> Result<u64> {
        self.iter().count_entries()
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
