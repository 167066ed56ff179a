//! Typed tables in a transaction and in a snapshot.

use std::ops::RangeBounds;

use super::keys::{AsKey, Key, KeyPrefix};
use super::values::{AsValue, Value};
use super::{TypedRange, TypedTable};
use crate::db::range::TransactionRange;
use crate::db::snapshot::{Range, Snapshot};
use crate::db::transaction::Transaction;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;

impl<K, V> TypedTable<K, V> {
    /// This table inside a transaction.
    pub fn within<'t>(&'t self, transaction: &'t Transaction) -> TypedTransaction<'t, K, V> {
        TypedTransaction { table: self, transaction }
    }

    /// This table in a snapshot.
    pub fn at<'t>(&'t self, snapshot: &'t Snapshot) -> TypedSnapshot<'t, K, V> {
        TypedSnapshot { table: self, snapshot }
    }
}

/// A [`TypedTable`] in a transaction; from [`TypedTable::within`].
#[derive(Debug)]
pub struct TypedTransaction<'t, K, V> {
    table: &'t TypedTable<K, V>,
    transaction: &'t Transaction,
}

impl<K, V> Clone for TypedTransaction<'_, K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for TypedTransaction<'_, K, V> {}

impl<'t, K: Key, V: Value> TypedTransaction<'t, K, V> {
    /// See [`Transaction::get`].
    ///
    /// # Errors
    /// [`Error::Codec`], and those of [`Transaction::get`].
    pub fn get(self, key: impl AsKey<K>) -> Result<Option<V::Owned>> {
        let read = |bytes: &[u8]| self.table.value_of(bytes);
        let found = self.transaction.get_with(self.table.table(), self.table.key(&key), read)?;
        found.transpose()
    }

    /// See [`Transaction::get_many`].
    ///
    /// # Errors
    /// Those of [`TypedTransaction::get`].
    pub fn get_many<Q: AsKey<K>>(self, keys: impl IntoIterator<Item = Q>) -> Result<Vec<Option<V::Owned>>> {
        let keys = keys.into_iter().map(|key| self.table.key(&key));
        self.table.values_of(self.transaction.get_many(self.table.table(), keys)?)
    }

    /// See [`Transaction::contains`].
    ///
    /// # Errors
    /// Those of [`Transaction::contains`].
    pub fn contains(self, key: impl AsKey<K>) -> Result<bool> {
        self.transaction.contains(self.table.table(), self.table.key(&key))
    }

    /// See [`Transaction::put`].
    ///
    /// # Errors
    /// [`Error::Codec`] if the value has no encoding, and those of [`Transaction::put`].
    pub fn put(self, key: impl AsKey<K>, value: impl AsValue<V>) -> Result<()> {
        let value = self.table.bytes_of(&value)?;
        self.transaction.put(self.table.table(), self.table.key(&key), value)
    }

    /// See [`Transaction::delete`].
    ///
    /// # Errors
    /// Those of [`Transaction::delete`].
    pub fn delete(self, key: impl AsKey<K>) -> Result<bool> {
        self.transaction.delete(self.table.table(), self.table.key(&key))
    }

    /// See [`Transaction::replace`].
    ///
    /// # Errors
    /// [`Error::Codec`], also after the change if the old value does not fit, and those of
    /// [`Transaction::replace`].
    pub fn replace(self, key: impl AsKey<K>, value: impl AsValue<V>) -> Result<Option<V::Owned>> {
        let value = self.table.bytes_of(&value)?;
        let old = self.transaction.replace(self.table.table(), self.table.key(&key), value)?;
        self.table.some_value_of(old)
    }

    /// See [`Transaction::take`].
    ///
    /// # Errors
    /// Those of [`TypedTransaction::replace`].
    pub fn take(self, key: impl AsKey<K>) -> Result<Option<V::Owned>> {
        self.table.some_value_of(self.transaction.take(self.table.table(), self.table.key(&key))?)
    }

    /// See [`Transaction::delete_range`].
    ///
    /// # Errors
    /// Those of [`Transaction::delete_range`].
    pub fn delete_range<Q: AsKey<K>>(self, range: impl RangeBounds<Q>) -> Result<u64> {
        self.transaction.delete_range(self.table.table(), self.table.range_of(range))
    }

    /// See [`Transaction::range`].
    pub fn range<Q: AsKey<K>>(self, range: impl RangeBounds<Q>) -> TypedRange<TransactionRange<'t>, K, V> {
        let range = self.table.range_of(range);
        self.table.entries_of(self.transaction.range(self.table.table(), range))
    }

    /// See [`TypedTable::prefix`].
    pub fn prefix(self, prefix: impl KeyPrefix<K>) -> TypedRange<TransactionRange<'t>, K, V> {
        let prefix = self.table.prefix_of(&prefix);
        self.table.entries_of(self.transaction.prefix(self.table.table(), prefix))
    }

    /// See [`Transaction::iter`].
    pub fn iter(self) -> TypedRange<TransactionRange<'t>, K, V> {
        self.table.entries_of(self.transaction.iter(self.table.table()))
    }

    /// See [`Transaction::first`].
    ///
    /// # Errors
    /// Those of [`TypedTransaction::get`].
    pub fn first(self) -> Result<Option<(K, V::Owned)>> {
        self.iter().next().transpose()
    }

    /// See [`Transaction::last`].
    ///
    /// # Errors
    /// Those of [`TypedTransaction::get`].
    pub fn last(self) -> Result<Option<(K, V::Owned)>> {
        self.iter().next_back().transpose()
    }
}

impl<K: Key> TypedTransaction<'_, K, Vec<u8>> {
    /// See [`Transaction::get_range`].
    ///
    /// # Errors
    /// Those of [`Transaction::get_range`].
    pub fn get_range(self, key: impl AsKey<K>, range: impl RangeBounds<usize>) -> Result<Option<Vec<u8>>> {
        self.transaction.get_range(self.table.table(), self.table.key(&key), range)
    }

    /// See [`Transaction::update_range`].
    ///
    /// # Errors
    /// Those of [`Transaction::update_range`].
    pub fn update_range(self, key: impl AsKey<K>, at: usize, bytes: impl AsRef<[u8]>) -> Result<bool> {
        self.transaction.update_range(self.table.table(), self.table.key(&key), at, bytes)
    }
}

/// A [`TypedTable`] in a snapshot; from [`TypedTable::at`].
#[derive(Debug)]
pub struct TypedSnapshot<'t, K, V> {
    table: &'t TypedTable<K, V>,
    snapshot: &'t Snapshot,
}

impl<K, V> Clone for TypedSnapshot<'_, K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for TypedSnapshot<'_, K, V> {}

impl<'t, K: Key, V: Value> TypedSnapshot<'t, K, V> {
    /// See [`Snapshot::get`].
    ///
    /// # Errors
    /// [`Error::Codec`], and those of [`Snapshot::get`].
    pub fn get(self, key: impl AsKey<K>) -> Result<Option<V::Owned>> {
        let read = |bytes: &[u8]| self.table.value_of(bytes);
        let found = self.snapshot.get_with(self.table.table(), self.table.key(&key), read)?;
        found.transpose()
    }

    /// See [`Snapshot::get_many`].
    ///
    /// # Errors
    /// Those of [`TypedSnapshot::get`].
    pub fn get_many<Q: AsKey<K>>(self, keys: impl IntoIterator<Item = Q>) -> Result<Vec<Option<V::Owned>>> {
        let keys = keys.into_iter().map(|key| self.table.key(&key));
        self.table.values_of(self.snapshot.get_many(self.table.table(), keys)?)
    }

    /// See [`Snapshot::contains`].
    ///
    /// # Errors
    /// Those of [`Snapshot::contains`].
    pub fn contains(self, key: impl AsKey<K>) -> Result<bool> {
        self.snapshot.contains(self.table.table(), self.table.key(&key))
    }

    /// See [`Snapshot::range`].
    pub fn range<Q: AsKey<K>>(self, range: impl RangeBounds<Q>) -> TypedRange<Range, K, V> {
        let range = self.table.range_of(range);
        self.table.entries_of(self.snapshot.range(self.table.table(), range))
    }

    /// See [`TypedTable::prefix`].
    pub fn prefix(self, prefix: impl KeyPrefix<K>) -> TypedRange<Range, K, V> {
        let prefix = self.table.prefix_of(&prefix);
        self.table.entries_of(self.snapshot.prefix(self.table.table(), prefix))
    }

    /// See [`Snapshot::iter`].
    pub fn iter(self) -> TypedRange<Range, K, V> {
        self.table.entries_of(self.snapshot.iter(self.table.table()))
    }

    /// See [`Snapshot::first`].
    ///
    /// # Errors
    /// Those of [`TypedSnapshot::get`].
    pub fn first(self) -> Result<Option<(K, V::Owned)>> {
        self.iter().next().transpose()
    }

    /// See [`Snapshot::last`].
    ///
    /// # Errors
    /// Those of [`TypedSnapshot::get`].
    pub fn last(self) -> Result<Option<(K, V::Owned)>> {
        self.iter().next_back().transpose()
    }
}

impl<K: Key> TypedSnapshot<'_, K, Vec<u8>> {
    /// See [`Snapshot::get_range`].
    ///
    /// # Errors
    /// Those of [`Snapshot::get_range`].
    pub fn get_range(self, key: impl AsKey<K>, range: impl RangeBounds<usize>) -> Result<Option<Vec<u8>>> {
        self.snapshot.get_range(self.table.table(), self.table.key(&key), range)
    }
}
