//! Tables with types for keys and values, over tables of bytes.
//!
//! `keys.rs` has the keys, `values.rs` the values, `views.rs` tables in a transaction or snapshot.

pub(crate) mod keys;
pub(crate) mod values;
pub(crate) mod views;

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use self::keys::{AsKey, Key, KeyPrefix, Misfit};
use self::values::{AsValue, Value};
use super::snapshot::Range;
use super::table::Table;
use crate::error::{Error, Result};

/// A [`Table`] with types for its keys and values, from [`Table::typed`].
///
/// Keys have the order of their values: numbers, strings, and tuples member by member. The database
/// does not store the types; name the same ones each time. Bytes that do not fit are
/// [`Error::Codec`]. [`Key`] and [`Value`] list the types.
///
/// ```
/// use terrace::{Db, MemoryDirectory, TypedTable};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
/// let degrees: TypedTable<(String, i32), i16> = db.create_table("degrees")?.typed();
/// for (city, day, value) in [("Oslo", -1, -7), ("Lima", 3, 19), ("Oslo", 2, -4)] {
///     degrees.put((city, day), value)?;
/// }
/// assert_eq!(degrees.get(("Lima", 3))?, Some(19));
/// let oslo: Vec<_> = degrees.prefix(("Oslo",)).collect::<Result<_, _>>()?;
/// assert_eq!(oslo, [(("Oslo".to_owned(), -1), -7), (("Oslo".to_owned(), 2), -4)]);
/// db.update(|transaction| {
///     let degrees = degrees.within(transaction);
///     let warmer = degrees.get(("Oslo", 2))?.unwrap_or_default() + 1;
///     degrees.put(("Oslo", 2), warmer)
/// })?;
/// # Ok::<(), terrace::Error>(())
/// ```
pub struct TypedTable<K, V> {
    table: Table,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> Clone for TypedTable<K, V> {
    fn clone(&self) -> Self {
        TypedTable { table: self.table.clone(), types: PhantomData }
    }
}

impl<K, V> fmt::Debug for TypedTable<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedTable").field("table", &self.table).finish()
    }
}

impl Table {
    /// The same table with types for its keys and values.
    pub fn typed<K: Key, V: Value>(&self) -> TypedTable<K, V> {
        TypedTable { table: self.clone(), types: PhantomData }
    }
}

impl<K: Key, V: Value> TypedTable<K, V> {
    /// The table of bytes.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// See [`Table::get`].
    ///
    /// # Errors
    /// [`Error::Codec`], and those of [`Table::get`].
    pub fn get(&self, key: impl AsKey<K>) -> Result<Option<V::Owned>> {
        let found = self.table.get_with(self.key(&key), |bytes| self.value_of(bytes))?;
        found.transpose()
    }

    /// See [`Table::get_many`].
    ///
    /// # Errors
    /// Those of [`TypedTable::get`].
    pub fn get_many<Q: AsKey<K>>(&self, keys: impl IntoIterator<Item = Q>) -> Result<Vec<Option<V::Owned>>> {
        self.values_of(self.table.get_many(keys.into_iter().map(|key| self.key(&key)))?)
    }

    /// See [`Table::contains`].
    ///
    /// # Errors
    /// Those of [`Table::contains`].
    pub fn contains(&self, key: impl AsKey<K>) -> Result<bool> {
        self.table.contains(self.key(&key))
    }

    /// See [`Table::put`].
    ///
    /// # Errors
    /// [`Error::Codec`] if the value has no encoding, and those of [`Table::put`].
    pub fn put(&self, key: impl AsKey<K>, value: impl AsValue<V>) -> Result<()> {
        self.table.put(self.key(&key), self.bytes_of(&value)?)
    }

    /// See [`Table::delete`].
    ///
    /// # Errors
    /// Those of [`Table::delete`].
    pub fn delete(&self, key: impl AsKey<K>) -> Result<bool> {
        self.table.delete(self.key(&key))
    }

    /// See [`Table::replace`].
    ///
    /// # Errors
    /// [`Error::Codec`], also after the change if the old value does not fit, and those of
    /// [`Table::replace`].
    pub fn replace(&self, key: impl AsKey<K>, value: impl AsValue<V>) -> Result<Option<V::Owned>> {
        self.some_value_of(self.table.replace(self.key(&key), self.bytes_of(&value)?)?)
    }

    /// See [`Table::take`].
    ///
    /// # Errors
    /// Those of [`TypedTable::replace`].
    pub fn take(&self, key: impl AsKey<K>) -> Result<Option<V::Owned>> {
        self.some_value_of(self.table.take(self.key(&key))?)
    }

    /// See [`Table::update`]; returns nothing.
    ///
    /// # Errors
    /// [`Error::Codec`], and those of [`Table::update`].
    pub fn update<W: AsValue<V>>(
        &self,
        key: impl AsKey<K>,
        mut change: impl FnMut(Option<V::Owned>) -> Option<W>,
    ) -> Result<()> {
        let changed = self.table.try_update(self.key(&key), |old| {
            let old = old.map(|bytes| self.value_of(bytes)).transpose()?;
            change(old).map(|new| self.bytes_of(&new)).transpose()
        });
        changed.map(drop)
    }

    /// See [`Table::delete_range`].
    ///
    /// # Errors
    /// Those of [`Table::delete_range`].
    pub fn delete_range<Q: AsKey<K>>(&self, range: impl RangeBounds<Q>) -> Result<u64> {
        self.table.delete_range(self.range_of(range))
    }

    /// See [`Table::range`].
    pub fn range<Q: AsKey<K>>(&self, range: impl RangeBounds<Q>) -> TypedRange<Range, K, V> {
        self.entries_of(self.table.range(self.range_of(range)))
    }

    /// The entries whose keys begin with a string, or with the first members of a tuple.
    pub fn prefix(&self, prefix: impl KeyPrefix<K>) -> TypedRange<Range, K, V> {
        self.entries_of(self.table.prefix(self.prefix_of(&prefix)))
    }

    /// See [`Table::iter`].
    pub fn iter(&self) -> TypedRange<Range, K, V> {
        self.entries_of(self.table.iter())
    }

    /// See [`Table::first`].
    ///
    /// # Errors
    /// Those of [`TypedTable::get`].
    pub fn first(&self) -> Result<Option<(K, V::Owned)>> {
        self.iter().next().transpose()
    }

    /// See [`Table::last`].
    ///
    /// # Errors
    /// Those of [`TypedTable::get`].
    pub fn last(&self) -> Result<Option<(K, V::Owned)>> {
        self.iter().next_back().transpose()
    }

    /// See [`Table::len`].
    ///
    /// # Errors
    /// Those of [`Table::len`].
    pub fn len(&self) -> Result<u64> {
        self.table.len()
    }

    /// See [`Table::is_empty`].
    ///
    /// # Errors
    /// Those of [`Table::is_empty`].
    pub fn is_empty(&self) -> Result<bool> {
        self.table.is_empty()
    }

    pub(super) fn key(&self, key: &impl AsKey<K>) -> Vec<u8> {
        let mut bytes = Vec::new();
        key.encode(&mut bytes);
        bytes
    }

    pub(super) fn prefix_of(&self, prefix: &impl KeyPrefix<K>) -> Vec<u8> {
        let mut bytes = Vec::new();
        prefix.encode_prefix(&mut bytes);
        bytes
    }

    pub(super) fn range_of<Q: AsKey<K>>(
        &self,
        range: impl RangeBounds<Q>,
    ) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let bound = |bound: Bound<&Q>| bound.map(|key| self.key(key));
        (bound(range.start_bound()), bound(range.end_bound()))
    }

    pub(super) fn bytes_of(&self, value: &impl AsValue<V>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        value.encode(&mut bytes).map_err(|what| self.misfit("a value to store", what))?;
        Ok(bytes)
    }

    pub(super) fn value_of(&self, bytes: &[u8]) -> Result<V::Owned> {
        V::decode(bytes).map_err(|what| self.misfit("a value", what))
    }

    pub(super) fn some_value_of(&self, bytes: Option<Vec<u8>>) -> Result<Option<V::Owned>> {
        bytes.map(|bytes| self.value_of(&bytes)).transpose()
    }

    pub(super) fn values_of(&self, values: Vec<Option<Vec<u8>>>) -> Result<Vec<Option<V::Owned>>> {
        values.into_iter().map(|bytes| self.some_value_of(bytes)).collect()
    }

    pub(super) fn entries_of<R>(&self, entries: R) -> TypedRange<R, K, V> {
        TypedRange { entries, table: self.clone() }
    }

    fn entry_of(&self, entry: Result<(Vec<u8>, Vec<u8>)>) -> Result<(K, V::Owned)> {
        let (key, value) = entry?;
        let key = K::decode(&key).map_err(|what| self.misfit("a key", what))?;
        Ok((key, self.value_of(&value)?))
    }

    fn misfit(&self, part: &str, what: Misfit) -> Error {
        Error::Codec { table: self.table.name(), what: format!("{part}: {what}") }
    }
}

impl<K: Key> TypedTable<K, Vec<u8>> {
    /// See [`Table::get_range`].
    ///
    /// # Errors
    /// Those of [`Table::get_range`].
    pub fn get_range(&self, key: impl AsKey<K>, range: impl RangeBounds<usize>) -> Result<Option<Vec<u8>>> {
        self.table.get_range(self.key(&key), range)
    }

    /// See [`Table::update_range`].
    ///
    /// # Errors
    /// Those of [`Table::update_range`].
    pub fn update_range(&self, key: impl AsKey<K>, at: usize, bytes: impl AsRef<[u8]>) -> Result<bool> {
        self.table.update_range(self.key(&key), at, bytes)
    }
}

/// The entries of a range of a typed table, as a double-ended iterator.
///
/// An entry that does not fit is [`Error::Codec`], and the iterator goes on behind it.
#[derive(Debug)]
pub struct TypedRange<R, K, V> {
    entries: R,
    table: TypedTable<K, V>,
}

impl<R, K: Key, V: Value> Iterator for TypedRange<R, K, V>
where
    R: Iterator<Item = Result<(Vec<u8>, Vec<u8>)>>,
{
    type Item = Result<(K, V::Owned)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.entries.next().map(|entry| self.table.entry_of(entry))
    }
}

impl<R, K: Key, V: Value> DoubleEndedIterator for TypedRange<R, K, V>
where
    R: DoubleEndedIterator<Item = Result<(Vec<u8>, Vec<u8>)>>,
{
    fn next_back(&mut self) -> Option<Self::Item> {
        self.entries.next_back().map(|entry| self.table.entry_of(entry))
    }
}
