//! Tables: single operations, each a transaction of its own.

use std::ops::RangeBounds;
use std::sync::Arc;

use super::buffer::{or_empty, with_value};
use super::core::Shared;
use super::lookup::Lookup;
use crate::error::{Error, Result};
use crate::index::{Part, Whole};
use crate::txn::table::TableState;

/// An ordered map from byte keys to byte values.
///
/// A cheap handle: clones share the table, and a rename keeps them valid. After a drop of the table
/// calls fail with [`Error::TableNotFound`].
///
/// Each call is its own transaction, with the database's default durability. Keys compare as bytes,
/// have up to [`crate::MAX_KEY_BYTES`] and may be empty. Values have up to
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

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn state(&self) -> &Arc<TableState> {
        &self.state
    }

    pub(crate) fn belongs_to(&self, shared: &Arc<Shared>) -> Result<()> {
        if Arc::ptr_eq(&self.shared, shared) {
            return Ok(());
        }
        Err(Error::Config(format!("table {:?} belongs to another database", self.name())))
    }

    /// Returns the current name.
    pub fn name(&self) -> String {
        self.state.name.read().to_string()
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// [`Error::TableNotFound`], [`Error::Poisoned`], [`Error::Corrupt`], [`Error::Io`].
    #[inline]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.shared.get_now(&self.state, key.as_ref())
    }

    /// Calls `read` with the value of `key`, if it exists; returns the result.
    ///
    /// Allocates nothing if the value is in a leaf: `read` gets a copy in a buffer that the thread
    /// keeps, up to 64 KiB. It holds no latch and may call the database.
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
    /// table.put("k", "value")?;
    /// assert_eq!(table.get_with("k", |value| value.len())?, Some(5));
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn get_with<R>(&self, key: impl AsRef<[u8]>, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        with_value(|value| self.shared.copy_now(&self.state, key.as_ref(), Whole, value), read)
    }

    /// Copies the value of `key` into `value`, which is empty otherwise; returns whether it exists.
    ///
    /// Reuses the buffer's memory, and extends it if the value is longer.
    ///
    /// # Errors
    /// Those of [`Table::get`].
    pub fn get_into(&self, key: impl AsRef<[u8]>, value: &mut Vec<u8>) -> Result<bool> {
        or_empty(value, |value| self.shared.copy_now(&self.state, key.as_ref(), Whole, value))
    }

    /// Returns a part of the value of `key`: the bytes of `range`, without an end up to the last.
    ///
    /// Reads only them from a leaf, and only their pages of a large value. [`Table::update_range`]
    /// changes a part.
    ///
    /// # Errors
    /// [`Error::OutsideValue`] if the range is not inside the value, and those of [`Table::get`].
    ///
    /// ```
    /// use terrace::{Db, Error, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// let table = db.create_table("t")?;
    /// table.put("row", "name: anna")?;
    /// assert_eq!(table.get_range("row", ..4)?.as_deref(), Some(&b"name"[..]));
    /// assert_eq!(table.get_range("row", 6..)?.as_deref(), Some(&b"anna"[..]));
    /// assert!(matches!(table.get_range("row", 6..11), Err(Error::OutsideValue { .. })));
    /// assert_eq!(table.get_range("other", 6..11)?, None);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn get_range(
        &self,
        key: impl AsRef<[u8]>,
        range: impl RangeBounds<usize>,
    ) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        let found = self.shared.copy_now(&self.state, key.as_ref(), Part::new(&range), &mut value)?;
        Ok(found.then_some(value))
    }

    /// Calls `read` with a part of the value of `key`; see [`Table::get_range`] and
    /// [`Table::get_with`].
    ///
    /// # Errors
    /// Those of [`Table::get_range`].
    pub fn get_range_with<R>(
        &self,
        key: impl AsRef<[u8]>,
        range: impl RangeBounds<usize>,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>> {
        with_value(|value| self.shared.copy_now(&self.state, key.as_ref(), Part::new(&range), value), read)
    }

    /// Copies a part of the value of `key` into `part`; see [`Table::get_range`] and
    /// [`Table::get_into`].
    ///
    /// # Errors
    /// Those of [`Table::get_range`].
    pub fn get_range_into(
        &self,
        key: impl AsRef<[u8]>,
        range: impl RangeBounds<usize>,
        part: &mut Vec<u8>,
    ) -> Result<bool> {
        or_empty(part, |part| self.shared.copy_now(&self.state, key.as_ref(), Part::new(&range), part))
    }

    /// Returns the value of `key` without blocking on the disk.
    ///
    /// The answer is immediate if it is in memory and no longer than a page. Otherwise a thread of
    /// the database completes the future, for any async runtime. The call itself blocks only if
    /// 4096 requests wait, in [`crate::Mode::Inline`], and in a read-only database.
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
    /// The future returns those of [`Table::get`].
    pub fn get_async(&self, key: impl AsRef<[u8]>) -> Lookup {
        self.shared.get_async(&self.state, key.as_ref())
    }

    /// Returns the values of `keys`, in their order.
    ///
    /// Pages missing in memory are read together, up to 64 at a time. Each key is read like
    /// [`Table::get`], not all at one moment; use a [`Snapshot`](crate::Snapshot) for that.
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
    /// Those of [`Table::get`], for the first key that cannot be read.
    pub fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let keys: Vec<K> = keys.into_iter().collect();
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        self.shared.get_all_now(&self.state, &keys)
    }

    /// Whether `key` exists.
    ///
    /// # Errors
    /// Those of [`Table::get`].
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.get(key).map(|value| value.is_some())
    }
}
