//! Transactions.

use std::collections::HashMap;
use std::ops::RangeBounds;
use std::sync::Arc;

use super::core::Shared;
use super::range::{Pin, TransactionRange, load_own, load_pinned, of_prefix, own};
use super::table::Table;
use crate::error::{Error, Result};
use crate::ids::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use crate::index::get_many;
use crate::index::node::leaf::max_inline_value;
use crate::index::node::overflow::Reference;
use crate::txn::commit::{Committed, Work};
use crate::txn::durability::Durability;
use crate::txn::garbage::{GarbageKey, Transfer};
use crate::txn::gate::Alone;
use crate::txn::large::Written;
use crate::txn::next_owner;
use crate::txn::priority::ProtectedReads;
use crate::txn::read::collect;
use crate::txn::read_set::{POINT_BYTES, ReadSet};
use crate::txn::scan::OwnedRange;
use crate::txn::table::TableState;
use crate::txn::validate::validate;
use crate::txn::versions::OverflowRef;
use crate::txn::write_set::{NewValue, Write, WriteSet};

/// Log bytes per changed key, beside key and value.
const RECORD_BYTES: usize = 160;

/// Log bytes per removed key, beside three times the key and twice the old value.
///
/// The record's inverse and the compensation repeat key and value.
const DELETION_BYTES: usize = 256;

#[derive(Debug)]
pub(crate) struct Deleted {
    pub(crate) entries: u64,
    /// Highest key removed, if more may follow.
    pub(crate) last: Option<Vec<u8>>,
}

/// Several reads and writes that happen atomically.
///
/// Each read returns the latest committed value, or the transaction's own write. At commit all
/// values read must still hold, otherwise it fails with [`Error::Conflict`] and changes nothing.
/// Committed transactions are strictly serializable; one that will fail may read inconsistent
/// values. Writes stay in memory until commit, except large values. A drop discards them.
///
/// [`crate::Db::update`] retries a closure until it commits.
///
/// ```
/// use terrace::{Db, MemoryDirectory};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
/// let accounts = db.create_table("accounts")?;
/// let mut transaction = db.begin();
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
    reads: ReadSet,
    writes: WriteSet,
    tables: Vec<Arc<TableState>>,
    pub(crate) large: HashMap<OverflowRef, GarbageKey>,
    pub(crate) transfers: Vec<Transfer>,
    /// Valid savepoints, oldest first: number and mark in the write journal.
    savepoints: Vec<(u64, usize)>,
    /// Keeps pages of large values; taken before the first read.
    pin: Option<Pin>,
}

/// A moment in a transaction, from [`Transaction::savepoint`].
///
/// ```
/// use terrace::{Db, Error, MemoryDirectory};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
/// let mut transaction = db.begin();
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
            reads: ReadSet::default(),
            writes: WriteSet::default(),
            tables: Vec::new(),
            large: HashMap::new(),
            transfers: Vec::new(),
            savepoints: Vec::new(),
            pin: None,
        }
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// [`Error::Conflict`] if the transaction can no longer commit, and those of [`Table::get`].
    pub fn get(&mut self, table: &Table, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let key = key.as_ref();
        self.enlist(table)?;
        match self.writes.get(table.state().id, key) {
            Some(Write::Put(value)) => return load_own(&self.shared, value).map(Some),
            Some(Write::Delete) => return Ok(None),
            None => {}
        }
        let shared = Arc::clone(&self.shared);
        self.reads.afford(&shared.read_memory, 0)?;
        let pin = self.pin.get_or_insert_with(|| Pin::new(&shared));
        let state = table.state();
        let value = match state.tree.get(&shared.pool, key) {
            Ok(Some(found)) => {
                self.reads.point(state.id, key, Some(found.timestamp));
                load_pinned(&shared, found.value, pin).map(Some)
            }
            Ok(None) => {
                self.reads.point(state.id, key, None);
                Ok(None)
            }
            Err(error) => Err(error),
        };
        state.check().and(value)
    }

    /// Returns the values of `keys`, in order, each read like [`Transaction::get`].
    ///
    /// Pages missing in memory are read together; see [`Table::get_many`].
    ///
    /// # Errors
    /// Those of [`Transaction::get`], for the first key that cannot be read.
    pub fn get_many<K: AsRef<[u8]>>(
        &mut self,
        table: &Table,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Vec<u8>>>> {
        self.enlist(table)?;
        let keys: Vec<K> = keys.into_iter().collect();
        let shared = Arc::clone(&self.shared);
        let more = keys.iter().map(|key| key.as_ref().len() + POINT_BYTES).sum();
        self.reads.afford(&shared.read_memory, more)?;
        let pin = self.pin.get_or_insert_with(|| Pin::new(&shared));
        let state = table.state();
        let (reads, writes) = (&mut self.reads, &self.writes);
        let values = collect(keys.len(), |answer| {
            let mut asked = Vec::with_capacity(keys.len());
            let mut wanted = Vec::with_capacity(keys.len());
            for (index, key) in keys.iter().enumerate() {
                let key = key.as_ref();
                match writes.get(state.id, key) {
                    Some(Write::Put(value)) => answer(index, load_own(&shared, value).map(Some)),
                    Some(Write::Delete) => answer(index, Ok(None)),
                    None => {
                        asked.push(index);
                        wanted.push((state.tree, key));
                    }
                }
            }
            get_many(&shared.pool, &wanted, &mut |at, found| {
                let value = found.and_then(|found| {
                    reads.point(state.id, wanted[at].1, found.as_ref().map(|found| found.timestamp));
                    found.map(|found| load_pinned(&shared, found.value, pin)).transpose()
                });
                answer(asked[at], value);
            });
        });
        state.check().and(values)
    }

    /// Whether `key` exists.
    ///
    /// # Errors
    /// Those of [`Transaction::get`].
    pub fn contains(&mut self, table: &Table, key: impl AsRef<[u8]>) -> Result<bool> {
        self.get(table, key).map(|value| value.is_some())
    }

    /// Sets `key` to `value` at commit. A large value is written to disk now.
    ///
    /// # Errors
    /// [`Error::KeyTooLarge`], [`Error::ValueTooLarge`], [`Error::TransactionTooLarge`],
    /// [`Error::ReadOnly`], [`Error::Full`], [`Error::TableNotFound`], [`Error::Poisoned`],
    /// [`Error::Io`].
    pub fn put(&mut self, table: &Table, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        if value.len() > MAX_VALUE_BYTES {
            return Err(Error::ValueTooLarge { length: value.len(), max: MAX_VALUE_BYTES });
        }
        self.before_write(table, key, value.len().min(table.state().tree.page_bytes()))?;
        let value = if value.len() <= max_inline_value(table.state().tree.page_bytes(), key.len()) {
            NewValue::inline(value)
        } else {
            let Written { reference, key } = self.shared.write_value(value, table.state())?;
            let reference = OverflowRef(reference.encode());
            self.large.insert(reference, key);
            NewValue::Overflow(reference)
        };
        let before = self.writes.put(table.state().id, key, value);
        self.forget(before);
        Ok(())
    }

    /// Removes `key` at commit; returns whether it exists now, which counts as a read.
    ///
    /// # Errors
    /// Those of [`Transaction::get`] and [`Transaction::put`].
    pub fn delete(&mut self, table: &Table, key: impl AsRef<[u8]>) -> Result<bool> {
        let was_there = self.contains(table, key.as_ref())?;
        self.remove(table, key.as_ref())?;
        Ok(was_there)
    }

    pub(crate) fn remove(&mut self, table: &Table, key: &[u8]) -> Result<()> {
        self.before_write(table, key, 0)?;
        let before = self.writes.delete(table.state().id, key);
        self.forget(before);
        Ok(())
    }

    /// Removes all entries of a key range at commit; returns their number now.
    ///
    /// The whole range counts as read, so a concurrent insert into it is a conflict. The log limits
    /// its size: see [`Table::delete_range`].
    ///
    /// # Errors
    /// Those of [`Transaction::get`] and [`Transaction::put`]. [`Error::TransactionTooLarge`]
    /// leaves the transaction unchanged.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// let table = db.create_table("t")?;
    /// table.put("a1", "")?;
    /// table.put("b1", "")?;
    /// let mut transaction = db.begin();
    /// transaction.put(&table, "a2", "")?;
    /// assert_eq!(transaction.delete_range(&table, "a".."b")?, 2, "its own changes included");
    /// transaction.commit()?;
    /// assert_eq!(table.first()?.unwrap().0, b"b1");
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn delete_range<K: AsRef<[u8]>>(&mut self, table: &Table, range: impl RangeBounds<K>) -> Result<u64> {
        self.delete_owned(table, own(range), None).map(|deleted| deleted.entries)
    }

    /// Removes the entries of a range; with `log_bytes`, only the lowest that take about this much
    /// log.
    pub(crate) fn delete_owned(
        &mut self,
        table: &Table,
        range: OwnedRange,
        log_bytes: Option<u64>,
    ) -> Result<Deleted> {
        self.shared.check_writable()?;
        let max = self.shared.pool.wal().max_reservation();
        let begun = self.size_bytes();
        let mut bytes = begun;
        let mut keys = Vec::new();
        let mut all = true;
        let mut entries = self.cursor(table, range);
        while let Some(entry) = entries.next_key() {
            let (key, value_bytes) = entry?;
            bytes += (DELETION_BYTES + 3 * key.len() + 2 * value_bytes) as u64;
            if log_bytes.is_some_and(|most| bytes - begun > most) && !keys.is_empty() {
                all = false;
                break;
            }
            // Before any removal, and before the keys take more memory than the log allows.
            if bytes > max {
                return Err(Error::TransactionTooLarge { bytes, max });
            }
            keys.push(key);
        }
        drop(entries);
        for key in &keys {
            self.remove(table, key)?;
        }
        Ok(Deleted { entries: keys.len() as u64, last: keys.pop().filter(|_| !all) })
    }

    /// Returns the entries of a key range, own changes included, as a double-ended iterator.
    pub fn range<'t, K: AsRef<[u8]>>(
        &'t mut self,
        table: &'t Table,
        range: impl RangeBounds<K>,
    ) -> TransactionRange<'t> {
        self.cursor(table, own(range))
    }

    /// Returns the entries whose keys begin with `prefix`, own changes included.
    pub fn prefix<'t>(&'t mut self, table: &'t Table, prefix: impl AsRef<[u8]>) -> TransactionRange<'t> {
        self.cursor(table, of_prefix(prefix.as_ref()))
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
    /// let mut transaction = db.begin();
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
    pub fn savepoint(&mut self) -> Savepoint {
        let savepoint = Savepoint { number: next_owner() };
        self.savepoints.push((savepoint.number, self.writes.mark()));
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
    pub fn rollback_to(&mut self, savepoint: &Savepoint) -> Result<()> {
        let at = self.savepoints.iter().rposition(|(number, _)| *number == savepoint.number);
        let at = at.ok_or(Error::SavepointGone)?;
        self.savepoints.truncate(at + 1);
        for gone in self.writes.roll_back(self.savepoints[at].1) {
            self.forget(Some(gone));
        }
        Ok(())
    }

    /// Makes the changes visible to other threads, and durable if requested.
    ///
    /// After [`Error::Conflict`], [`Error::Full`] or the refusal of a single call nothing has
    /// changed. After any other error the changes may survive a crash.
    ///
    /// # Errors
    /// [`Error::Conflict`] if a value read has changed, [`Error::TransactionTooLarge`],
    /// [`Error::Full`], [`Error::TableNotFound`], [`Error::Poisoned`], [`Error::Corrupt`],
    /// [`Error::Io`].
    pub fn commit(mut self) -> Result<()> {
        self.finish(None).map(|_| ())
    }

    /// Discards the changes, like dropping the transaction.
    pub fn abort(self) {}

    pub(crate) fn protect(&mut self, reads: Arc<ProtectedReads>) {
        self.reads.protect(reads);
    }

    pub(crate) fn reads(&self) -> &ReadSet {
        &self.reads
    }

    /// Whether one of its calls failed with [`Error::Conflict`].
    pub(crate) fn met_conflict(&self) -> bool {
        self.pin.as_ref().is_some_and(Pin::has_lost)
    }

    /// Whether pages of large values that it read may have been freed.
    pub(crate) fn is_too_old(&self) -> bool {
        self.pin.as_ref().is_some_and(Pin::is_too_old)
    }

    /// Commits. With `alone`, other commits wait for its validation. Not usable afterwards.
    pub(crate) fn finish(&mut self, alone: Option<Alone<'_>>) -> Result<Committed> {
        if self.met_conflict() {
            return Err(Error::Conflict);
        }
        let writes = std::mem::take(&mut self.writes);
        let transfers = std::mem::take(&mut self.transfers);
        let used: Vec<OverflowRef> = writes.overflow_values().collect();
        let outcome = self.shared.commit(Work {
            tables: &self.tables,
            reads: &self.reads,
            writes,
            large: &|reference| self.large[&reference],
            transfers,
            durability: self.durability,
            alone,
        });
        if outcome.is_ok() {
            // The tables own them now. The rest becomes garbage when `self` is dropped.
            used.iter().for_each(|reference| {
                self.large.remove(reference);
            });
        }
        outcome
    }

    pub(crate) fn still_holds(&self) -> bool {
        validate(&self.shared, &self.tables, &self.reads, next_owner()).is_ok()
    }

    fn cursor<'t>(&'t mut self, table: &'t Table, range: OwnedRange) -> TransactionRange<'t> {
        let refused = self.enlist(table).err();
        self.reads.begin_cursor();
        let shared = &self.shared;
        let pin = self.pin.get_or_insert_with(|| Pin::new(shared));
        let bounds = (crate::txn::scan::as_slice(&range.0), crate::txn::scan::as_slice(&range.1));
        let own = self.writes.range(table.state().id, bounds);
        TransactionRange::new(shared, table.state(), range.clone(), &mut self.reads, own, pin, refused)
    }

    /// Log bytes it will take, roughly, or its memory if that is more.
    fn size_bytes(&self) -> u64 {
        let logged = self.writes.log_bytes() + self.writes.len() * RECORD_BYTES;
        logged.max(self.writes.size_bytes()) as u64
    }

    fn before_write(&mut self, table: &Table, key: &[u8], value_bytes: usize) -> Result<()> {
        self.shared.check_writable()?;
        if key.len() > MAX_KEY_BYTES {
            return Err(Error::KeyTooLarge { length: key.len(), max: MAX_KEY_BYTES });
        }
        let bytes = self.size_bytes() + (key.len() + value_bytes) as u64;
        let max = self.shared.pool.wal().max_reservation();
        if bytes > max {
            return Err(Error::TransactionTooLarge { bytes, max });
        }
        self.enlist(table)
    }

    fn enlist(&mut self, table: &Table) -> Result<()> {
        self.shared.check()?;
        table.state().check()?;
        if !self.tables.iter().any(|known| Arc::ptr_eq(known, table.state())) {
            table.belongs_to(&self.shared)?;
            self.tables.push(Arc::clone(table.state()));
        }
        Ok(())
    }

    /// Discards the large value of a write replaced within the transaction.
    fn forget(&mut self, before: Option<Write>) {
        if let Some(Write::Put(NewValue::Overflow(reference))) = before {
            self.discard(reference);
        }
    }

    fn discard(&mut self, reference: OverflowRef) {
        if let Some((key, reference)) = self.large.remove(&reference).zip(Reference::decode(&reference.0)) {
            self.shared.garbage.add_value(key, reference);
        }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let left: Vec<OverflowRef> = self.large.keys().copied().collect();
        left.into_iter().for_each(|reference| self.discard(reference));
        self.reads.give_back(&self.shared.read_memory);
    }
}
