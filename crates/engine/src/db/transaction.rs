//! Transactions.

use std::ops::RangeBounds;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::buffer::{or_empty, with_value};
use super::core::Shared;
use super::pending::Pending;
#[cfg(doc)]
use super::range::TransactionRange;
use super::range::{Pin, load_own, load_own_to, load_pinned, load_pinned_to};
use super::table::Table;
use crate::error::{Error, Result};
use crate::ids::MAX_VALUE_BYTES;
#[cfg(test)]
use crate::ids::Timestamp;
use crate::index::node::leaf::max_inline_value;
use crate::index::{Held, Part, Wanted, Whole, get_many};
use crate::txn::commit::{Committed, Work};
use crate::txn::durability::Durability;
#[cfg(test)]
use crate::txn::garbage::GarbageKey;
use crate::txn::gate::Alone;
use crate::txn::large::Written;
use crate::txn::next_owner;
use crate::txn::priority::ProtectedReads;
use crate::txn::read::collect;
use crate::txn::read_set::{POINT_BYTES, ReadSet};
use crate::txn::validate::validate;
use crate::txn::versions::OverflowRef;
use crate::txn::write_set::{NewValue, Write};

/// Several reads and writes that happen atomically.
///
/// Each read returns the latest committed value, or the transaction's own write. At commit all
/// values read must still hold, otherwise it fails with [`Error::Conflict`] and changes nothing.
/// Committed transactions are strictly serializable; one that will fail may read inconsistent
/// values. [`Concurrency::Mvto`](crate::Concurrency) is another protocol. Writes stay in memory
/// until commit, except large values. A drop discards them.
///
/// [`crate::Db::update`] retries a closure until it commits.
///
/// All calls take `&self`, so a transaction may write while it iterates ([`TransactionRange`]).
/// Threads may share it; its calls then run one at a time.
///
/// ```
/// use terrace::{Db, MemoryDirectory};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
/// let accounts = db.create_table("accounts")?;
/// let transaction = db.begin();
/// transaction.put(&accounts, "alice", "10")?;
/// transaction.put(&accounts, "bob", "0")?;
/// assert_eq!(transaction.get(&accounts, "bob")?.as_deref(), Some(&b"0"[..]));
/// assert_eq!(accounts.get("bob")?, None, "not before it commits");
/// transaction.commit()?;
/// assert_eq!(accounts.len()?, 2);
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Debug)]
pub struct Transaction {
    shared: Arc<Shared>,
    durability: Durability,
    pending: Mutex<Pending>,
    /// Taken before the first read.
    pin: OnceLock<Pin>,
    /// Whether it reads in a turn, instead of validating its reads.
    in_turn: bool,
}

/// A moment in a transaction, from [`Transaction::savepoint`].
///
/// ```
/// use terrace::{Db, Error, MemoryDirectory};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
/// let transaction = db.begin();
/// let outer = transaction.savepoint();
/// let inner = transaction.savepoint();
/// transaction.rollback_to(&outer)?;
/// assert!(matches!(transaction.rollback_to(&inner), Err(Error::SavepointGone)));
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Debug)]
pub struct Savepoint {
    number: u64,
}

impl Transaction {
    pub(crate) fn new(shared: &Arc<Shared>, durability: Durability) -> Self {
        Transaction {
            shared: Arc::clone(shared),
            durability,
            pending: Mutex::default(),
            pin: OnceLock::new(),
            in_turn: shared.order.is_some(),
        }
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// [`Error::Conflict`] if the transaction can no longer commit, and those of [`Table::get`].
    pub fn get(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        let found = self.copy(table, key.as_ref(), Whole, &mut value)?;
        Ok(found.then_some(value))
    }

    /// Calls `read` with the value of `key`, if it exists; see [`Table::get_with`].
    ///
    /// # Errors
    /// Those of [`Transaction::get`].
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
    /// Those of [`Transaction::get`].
    pub fn get_into(&self, table: &Table, key: impl AsRef<[u8]>, value: &mut Vec<u8>) -> Result<bool> {
        or_empty(value, |value| self.copy(table, key.as_ref(), Whole, value))
    }

    /// Returns a part of the value of `key`; see [`Table::get_range`]. A change of any other part
    /// conflicts too.
    ///
    /// # Errors
    /// [`Error::OutsideValue`], and those of [`Transaction::get`].
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
    /// Those of [`Transaction::get_range`].
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
    /// Those of [`Transaction::get_range`].
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
        let (shared, state) = (&*self.shared, table.state());
        let mut pending = self.pending.lock();
        pending.enlist(&self.shared, table)?;
        match pending.writes.get(state.id, key) {
            Some(Write::Put(own)) => return load_own_to(shared, own, wanted, value).map(|()| true),
            Some(Write::Delete) => return Ok(false),
            None => {}
        }
        let pin = self.pin()?;
        shared.complete_up_to(state, key, pin.timestamp());
        if let Some(turn) = pin.turn() {
            return pin.checked(shared.copy_at(state, key, turn.snapshot, wanted, value));
        }
        pending.reads.afford(&shared.read_memory, 0)?;
        let copied = state.tree.copy_to(&shared.pool, key, wanted, value);
        if let Ok(copied) = &copied {
            pending.reads.point(state.id, key, copied.map(|copied| copied.timestamp));
        }
        let found = copied.and_then(|copied| {
            match copied.map(|copied| copied.held) {
                None => return Ok(false),
                Some(Held::Inline) => {}
                Some(Held::Outside(length)) => _ = wanted.inside(length)?,
                Some(Held::Overflow(reference)) => load_pinned_to(shared, reference, pin, wanted, value)?,
            }
            Ok(true)
        });
        state.check().and(found)
    }

    /// Returns the values of `keys`, in order, each read like [`Transaction::get`].
    ///
    /// Pages missing in memory are read together; see [`Table::get_many`].
    ///
    /// # Errors
    /// Those of [`Transaction::get`], for the first key that cannot be read.
    pub fn get_many<K: AsRef<[u8]>>(
        &self,
        table: &Table,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let keys: Vec<K> = keys.into_iter().collect();
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        let (shared, state) = (&*self.shared, table.state());
        let pending = &mut *self.pending.lock();
        pending.enlist(&self.shared, table)?;
        let pin = self.pin()?;
        if pin.turn().is_none() {
            let more = keys.iter().map(|key| key.len() + POINT_BYTES).sum();
            pending.reads.afford(&shared.read_memory, more)?;
        }
        let (reads, writes) = (&mut pending.reads, &pending.writes);
        let values = collect(keys.len(), |answer| {
            let mut asked = Vec::with_capacity(keys.len());
            let mut wanted = Vec::with_capacity(keys.len());
            for (index, &key) in keys.iter().enumerate() {
                match writes.get(state.id, key) {
                    Some(Write::Put(value)) => answer(index, load_own(shared, value).map(Some)),
                    Some(Write::Delete) => answer(index, Ok(None)),
                    None => {
                        asked.push(index);
                        wanted.push((state.tree, key));
                    }
                }
            }
            wanted.iter().for_each(|(_, key)| shared.complete_up_to(state, key, pin.timestamp()));
            if let Some(turn) = pin.turn() {
                let keys: Vec<&[u8]> = wanted.iter().map(|&(_, key)| key).collect();
                return shared.get_each_at(state, &keys, turn.snapshot, &mut |at, value| {
                    answer(asked[at], pin.checked(value));
                });
            }
            get_many(&shared.pool, &wanted, &mut |at, found| {
                let value = found.and_then(|found| {
                    reads.point(state.id, wanted[at].1, found.as_ref().map(|found| found.timestamp));
                    found.map(|found| load_pinned(shared, found.value, pin)).transpose()
                });
                answer(asked[at], value);
            });
        });
        // A failed log unlocks commits that are half done.
        shared.check().and(state.check()).and(values)
    }

    /// Whether `key` exists.
    ///
    /// # Errors
    /// Those of [`Transaction::get`].
    pub fn contains(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<bool> {
        self.get(table, key).map(|value| value.is_some())
    }

    /// Overwrites a part of the value of `key` at commit; returns whether the key exists now, which
    /// counts as a read.
    ///
    /// See [`Table::update_range`].
    ///
    /// # Errors
    /// [`Error::OutsideValue`]; those of [`Transaction::get`] and [`Transaction::put`].
    pub fn update_range(
        &self,
        table: &Table,
        key: impl AsRef<[u8]>,
        at: usize,
        bytes: impl AsRef<[u8]>,
    ) -> Result<bool> {
        let (key, bytes) = (key.as_ref(), bytes.as_ref());
        let Some(mut value) = self.get(table, key)? else { return Ok(false) };
        let part = Part::at(at, bytes.len()).inside(value.len())?;
        value[part].copy_from_slice(bytes);
        self.put(table, key, value).map(|()| true)
    }

    /// Sets `key` to `value` at commit. A large value is written to disk now.
    ///
    /// # Errors
    /// [`Error::KeyTooLarge`], [`Error::ValueTooLarge`], [`Error::TransactionTooLarge`],
    /// [`Error::ReadOnly`], [`Error::Full`], [`Error::TableNotFound`], [`Error::Poisoned`],
    /// [`Error::Io`].
    pub fn put(&self, table: &Table, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_bytes(table, key.as_ref(), value.as_ref())
    }

    fn put_bytes(&self, table: &Table, key: &[u8], value: &[u8]) -> Result<()> {
        if value.len() > MAX_VALUE_BYTES {
            return Err(Error::ValueTooLarge { length: value.len(), max: MAX_VALUE_BYTES });
        }
        let page_bytes = table.state().tree.page_bytes();
        let pending = &mut *self.pending.lock();
        pending.before_write(&self.shared, table, key, value.len().min(page_bytes))?;
        let value = if value.len() <= max_inline_value(page_bytes, key.len()) {
            NewValue::inline(value)
        } else {
            let Written { reference, key } = self.shared.write_value(value, table.state())?;
            let reference = OverflowRef(reference.encode());
            pending.large.insert(reference, key);
            NewValue::Overflow(reference)
        };
        let before = pending.writes.put(table.state().id, key, value);
        pending.forget(&self.shared, before);
        Ok(())
    }

    /// Sets `key` to `value` at commit; returns its value now, which counts as a read.
    ///
    /// # Errors
    /// Those of [`Transaction::get`] and [`Transaction::put`].
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// let table = db.create_table("t")?;
    /// let transaction = db.begin();
    /// assert_eq!(transaction.replace(&table, "k", "1")?, None);
    /// assert_eq!(transaction.replace(&table, "k", "2")?.as_deref(), Some(&b"1"[..]));
    /// assert_eq!(transaction.take(&table, "k")?.as_deref(), Some(&b"2"[..]));
    /// assert!(!transaction.contains(&table, "k")?);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn replace(
        &self,
        table: &Table,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<Option<Vec<u8>>> {
        let old = self.get(table, key.as_ref())?;
        self.put(table, key, value)?;
        Ok(old)
    }

    /// Removes `key` at commit; returns its value now, which counts as a read.
    ///
    /// # Errors
    /// Those of [`Transaction::get`] and [`Transaction::put`].
    pub fn take(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let old = self.get(table, key.as_ref())?;
        self.remove(table, key.as_ref())?;
        Ok(old)
    }

    /// Removes `key` at commit; returns whether it exists now, which counts as a read.
    ///
    /// # Errors
    /// Those of [`Transaction::get`] and [`Transaction::put`].
    pub fn delete(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<bool> {
        let was_there = self.contains(table, key.as_ref())?;
        self.remove(table, key.as_ref())?;
        Ok(was_there)
    }

    pub(crate) fn remove(&self, table: &Table, key: &[u8]) -> Result<()> {
        let pending = &mut *self.pending.lock();
        pending.before_write(&self.shared, table, key, 0)?;
        let before = pending.writes.delete(table.state().id, key);
        pending.forget(&self.shared, before);
        Ok(())
    }

    /// Marks a moment for [`Transaction::rollback_to`].
    ///
    /// Cheap, but writes overwritten later stay in memory until the transaction ends.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// let table = db.create_table("t")?;
    /// let transaction = db.begin();
    /// transaction.put(&table, "kept", "1")?;
    /// let savepoint = transaction.savepoint();
    /// transaction.put(&table, "kept", "2")?;
    /// transaction.put(&table, "forgotten", "3")?;
    /// transaction.rollback_to(&savepoint)?;
    /// transaction.commit()?;
    /// assert_eq!(table.get("kept")?.as_deref(), Some(&b"1"[..]));
    /// assert_eq!(table.get("forgotten")?, None);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn savepoint(&self) -> Savepoint {
        let savepoint = Savepoint { number: next_owner() };
        let pending = &mut *self.pending.lock();
        pending.savepoints.push((savepoint.number, pending.writes.mark()));
        savepoint
    }

    /// Takes back all changes made since `savepoint`.
    ///
    /// The savepoint stays valid; later ones become invalid. Reads made since still count for
    /// conflicts.
    ///
    /// # Errors
    /// [`Error::SavepointGone`], with nothing taken back, for a savepoint of another transaction,
    /// or one taken after a savepoint that the transaction rolled back to.
    pub fn rollback_to(&self, savepoint: &Savepoint) -> Result<()> {
        let pending = &mut *self.pending.lock();
        let at = pending.savepoints.iter().rposition(|(number, _)| *number == savepoint.number);
        let at = at.ok_or(Error::SavepointGone)?;
        pending.savepoints.truncate(at + 1);
        for gone in pending.writes.roll_back(pending.savepoints[at].1) {
            pending.forget(&self.shared, Some(gone));
        }
        Ok(())
    }

    /// Makes the changes visible to other threads, and durable if requested.
    ///
    /// After [`Error::Conflict`], [`Error::Full`] or the refusal of a single call nothing has
    /// changed. After any other error the changes may survive a crash.
    ///
    /// # Errors
    /// [`Error::Conflict`] if a value read has changed, or as [`crate::Concurrency::Mvto`] says;
    /// [`Error::TransactionTooLarge`], [`Error::Full`], [`Error::TableNotFound`],
    /// [`Error::Poisoned`], [`Error::Corrupt`], [`Error::Io`].
    pub fn commit(mut self) -> Result<()> {
        self.finish(None).map(|_| ())
    }

    /// Discards the changes, like dropping the transaction.
    pub fn abort(self) {}

    /// Enters its reads in `reads`, which stop commits. So it validates them in any case.
    pub(crate) fn protect(&mut self, reads: Arc<ProtectedReads>) {
        self.in_turn = false;
        self.pending.get_mut().reads.protect(reads);
    }

    pub(crate) fn reads(&mut self) -> &ReadSet {
        &self.pending.get_mut().reads
    }

    /// Its turn, once it has read.
    #[cfg(test)]
    pub(crate) fn turn(&self) -> Option<Timestamp> {
        self.pin.get().and_then(Pin::turn).map(|turn| turn.timestamp)
    }

    /// The large values written.
    #[cfg(test)]
    pub(crate) fn large(&self) -> Vec<GarbageKey> {
        self.pending.lock().large.values().copied().collect()
    }

    pub(crate) fn met_conflict(&self) -> bool {
        self.pin.get().is_some_and(Pin::has_lost)
    }

    /// Whether pages of large values that it read may have been freed.
    pub(crate) fn is_too_old(&self) -> bool {
        self.pin.get().is_some_and(Pin::is_too_old)
    }

    /// Commits. With `alone`, other commits wait for its validation. Not usable afterwards.
    pub(crate) fn finish(&mut self, alone: Option<Alone<'_>>) -> Result<Committed> {
        if self.met_conflict() {
            return Err(Error::Conflict);
        }
        let pending = self.pending.get_mut();
        let writes = std::mem::take(&mut pending.writes);
        let used: Vec<OverflowRef> = writes.overflow_values().collect();
        let outcome = self.shared.commit(Work {
            tables: &pending.tables,
            reads: &pending.reads,
            writes,
            large: &|reference| pending.large[&reference],
            transfers: Vec::new(),
            durability: self.durability,
            alone,
            turn: self.pin.get().and_then(Pin::turn),
        });
        if outcome.is_ok() {
            // The tables own them now. The rest becomes garbage when `self` is dropped.
            used.iter().for_each(|reference| {
                pending.large.remove(reference);
            });
        }
        outcome
    }

    /// Whether its reads hold together.
    pub(crate) fn still_holds(&self) -> bool {
        if let Some(turn) = self.pin.get().and_then(Pin::turn) {
            return !turn.snapshot.expired();
        }
        let pending = self.pending.lock();
        validate(&self.shared, &pending.tables, &pending.reads, next_owner()).is_ok()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn pending(&self) -> &Mutex<Pending> {
        &self.pending
    }

    pub(crate) fn pin(&self) -> Result<&Pin> {
        if let Some(pin) = self.pin.get() {
            return Ok(pin);
        }
        let pin = if self.in_turn { Pin::in_turn(&self.shared)? } else { Pin::new(&self.shared) };
        Ok(self.pin.get_or_init(|| pin))
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let pending = self.pending.get_mut();
        let left: Vec<OverflowRef> = pending.large.keys().copied().collect();
        left.into_iter().for_each(|reference| pending.discard(&self.shared, reference));
        pending.reads.give_back(&self.shared.read_memory);
    }
}
