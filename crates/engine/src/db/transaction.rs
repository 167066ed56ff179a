//! Transactions as their users see them.

use std::collections::HashMap;
use std::ops::RangeBounds;
use std::sync::Arc;

use super::commit::{Committed, Work};
use super::core::{Shared, TableState};
use super::garbage::{GarbageKey, Transfer};
use super::large::Written;
use super::range::{TransactionRange, load_own, load_pinned, of_prefix, own};
use super::read::collect;
use super::scan::OwnedRange;
use super::table::Table;
use crate::config::Durability;
use crate::error::{Error, Result};
use crate::index::get_many;
use crate::index::leaf::max_inline_value;
use crate::index::overflow::Reference;
use crate::txn::gate::Alone;
use crate::txn::next_owner;
use crate::txn::priority::ProtectedReads;
use crate::txn::read_set::{POINT_BYTES, ReadSet};
use crate::txn::snapshots::SnapshotHandle;
use crate::txn::versions::OverflowRef;
use crate::txn::write_set::{NewValue, Write, WriteSet};
use crate::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

/// Bytes of log that the change of one key takes beside key and value.
const RECORD_BYTES: usize = 160;

/// Bytes of log that the removal of one key takes beside three times the key and twice the old value: they are in the
/// record's inverse and in the compensation that recovery would write. More than it takes of memory.
const DELETION_BYTES: usize = 256;

/// What [`Transaction::delete_owned`] has done.
#[derive(Debug)]
pub(crate) struct Deleted {
    pub(crate) entries: u64,
    /// The highest key removed, if there may be more above it.
    pub(crate) last: Option<Vec<u8>>,
}

/// Several reads and writes that happen as one, or not at all.
///
/// It reads what is committed at the moment of each read, and its own writes. When it commits, all that it read must
/// still hold, else it fails with [`Error::Conflict`] and has changed nothing; committed transactions are strictly
/// serializable. One that is going to fail may meanwhile have seen things that do not fit together. Writes are kept in
/// memory until then, large values on disk; dropping the transaction forgets them. [`Transaction::savepoint`] marks a
/// moment that it can go back to without giving up the rest.
///
/// [`crate::Db::update`] runs a closure again until it commits.
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
    /// The entry of the garbage tree of each large value written.
    pub(super) large: HashMap<OverflowRef, GarbageKey>,
    pub(crate) transfers: Vec<Transfer>,
    /// The savepoints that can be gone back to, oldest first: each with its mark in the journal of the writes.
    savepoints: Vec<(u64, usize)>,
    /// Keeps the pages of large values that were read; taken before the first read.
    pin: Option<SnapshotHandle>,
}

/// A moment in a transaction, by [`Transaction::savepoint`]. It may be dropped at any time.
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
    /// Never given to another savepoint.
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

    /// The value of `key`.
    ///
    /// # Errors
    /// [`Error::Conflict`] if it can be seen already that the transaction will fail, and as [`Table::get`].
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
        let pin = self.pin.get_or_insert_with(|| shared.snapshots.register(&shared.clock));
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

    /// The values of `keys`, in their order, as [`Transaction::get`] reads each. Pages that are not in memory are read
    /// together, see [`Table::get_many`].
    ///
    /// # Errors
    /// As [`Transaction::get`]: that of the first key that could not be read.
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
        let pin = self.pin.get_or_insert_with(|| shared.snapshots.register(&shared.clock));
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

    /// Whether `key` is there.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn contains(&mut self, table: &Table, key: impl AsRef<[u8]>) -> Result<bool> {
        self.get(table, key).map(|value| value.is_some())
    }

    /// Sets `key` to `value` when the transaction commits. A large value is written to disk now.
    ///
    /// # Errors
    /// [`Error::KeyTooLarge`], [`Error::ValueTooLarge`], [`Error::TransactionTooLarge`], [`Error::ReadOnly`],
    /// [`Error::Full`], [`Error::TableNotFound`], [`Error::Poisoned`], [`Error::Io`].
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

    /// Removes `key` when the transaction commits; whether it is there now, which counts as read.
    ///
    /// # Errors
    /// As [`Transaction::get`] and [`Transaction::put`].
    pub fn delete(&mut self, table: &Table, key: impl AsRef<[u8]>) -> Result<bool> {
        let was_there = self.contains(table, key.as_ref())?;
        self.remove(table, key.as_ref())?;
        Ok(was_there)
    }

    /// Removes `key` without looking at it.
    pub(crate) fn remove(&mut self, table: &Table, key: &[u8]) -> Result<()> {
        self.before_write(table, key, 0)?;
        let before = self.writes.delete(table.state().id, key);
        self.forget(before);
        Ok(())
    }

    /// Removes all entries of a range of keys when the transaction commits; how many there are now. The whole range counts
    /// as read: an entry that others add to it before the commit is a conflict.
    ///
    /// Every entry takes log as a single deletion does, its old value included, so a range is limited as any transaction is:
    /// see [`Table::delete_range`].
    ///
    /// # Errors
    /// As [`Transaction::get`] and [`Transaction::put`]; on [`Error::TransactionTooLarge`] nothing of the range is removed
    /// and the transaction is as it was before.
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

    /// Removes the entries of a range; with `log_bytes`, only the lowest ones that take about so much of the log.
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
            // Before anything is removed, and before the keys themselves take more memory than the log allows.
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

    /// The entries of a range of keys with this transaction's changes, in order, from either end.
    pub fn range<'t, K: AsRef<[u8]>>(
        &'t mut self,
        table: &'t Table,
        range: impl RangeBounds<K>,
    ) -> TransactionRange<'t> {
        self.cursor(table, own(range))
    }

    /// The entries whose keys begin with `prefix`, with this transaction's changes.
    pub fn prefix<'t>(&'t mut self, table: &'t Table, prefix: impl AsRef<[u8]>) -> TransactionRange<'t> {
        self.cursor(table, of_prefix(prefix.as_ref()))
    }

    /// A moment to come back to with [`Transaction::rollback_to`]. Taking it costs next to nothing; what is overwritten
    /// in the transaction after it is kept in memory until the transaction ends.
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

    /// Takes back every change made since `savepoint`, which stays and can be gone back to again; those taken after it
    /// are gone. What was read in between still counts as read: if it changes, the transaction meets a conflict.
    ///
    /// # Errors
    /// [`Error::SavepointGone`] if the savepoint is of another transaction, or was taken after one that the transaction
    /// has gone back to. Nothing is taken back then.
    pub fn rollback_to(&mut self, savepoint: &Savepoint) -> Result<()> {
        let at = self.savepoints.iter().rposition(|(number, _)| *number == savepoint.number);
        let at = at.ok_or(Error::SavepointGone)?;
        self.savepoints.truncate(at + 1);
        for gone in self.writes.roll_back(self.savepoints[at].1) {
            self.forget(Some(gone));
        }
        Ok(())
    }

    /// Makes the changes visible to others, and durable if that was asked for. An error other than
    /// [`Error::Conflict`], [`Error::Full`] and the refusals of a single call leaves open whether they survive a crash.
    ///
    /// # Errors
    /// [`Error::Conflict`] if something that was read has changed, [`Error::TransactionTooLarge`], [`Error::Full`],
    /// [`Error::TableNotFound`], [`Error::Poisoned`], [`Error::Corrupt`], [`Error::Io`].
    pub fn commit(mut self) -> Result<()> {
        self.finish(None).map(|_| ())
    }

    /// Forgets the changes. Dropping the transaction does the same.
    pub fn abort(self) {}

    /// What it has read is protected from now on.
    pub(crate) fn protect(&mut self, reads: Arc<ProtectedReads>) {
        self.reads.protect(reads);
    }

    /// What it has read.
    pub(crate) fn reads(&self) -> &ReadSet {
        &self.reads
    }

    /// Whether the pages of large values that it has read may have been freed.
    pub(crate) fn is_too_old(&self) -> bool {
        self.pin.as_ref().is_some_and(SnapshotHandle::expired)
    }

    /// Commits; with `alone`, no other commit is in flight until what was read is validated. It is of no use afterwards.
    pub(crate) fn finish(&mut self, alone: Option<Alone<'_>>) -> Result<Committed> {
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
            // They belong to the tables now; whatever is left in the map is garbage when `self` is dropped.
            used.iter().for_each(|reference| {
                self.large.remove(reference);
            });
        }
        outcome
    }

    /// Whether everything read so far still holds.
    pub(crate) fn still_holds(&self) -> bool {
        self.shared.validate(&self.tables, &self.reads, next_owner()).is_ok()
    }

    fn cursor<'t>(&'t mut self, table: &'t Table, range: OwnedRange) -> TransactionRange<'t> {
        let refused = self.enlist(table).err();
        self.reads.begin_cursor();
        let shared = &self.shared;
        let pin = self.pin.get_or_insert_with(|| shared.snapshots.register(&shared.clock));
        let bounds = (super::scan::as_slice(&range.0), super::scan::as_slice(&range.1));
        let own = self.writes.range(table.state().id, bounds);
        TransactionRange::new(shared, table.state(), range.clone(), &mut self.reads, own, pin, refused)
    }

    /// What it will take of the log, roughly, or what it takes of memory now, if that is more.
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

    /// Notes that a table is used.
    fn enlist(&mut self, table: &Table) -> Result<()> {
        self.shared.check()?;
        table.state().check()?;
        if !self.tables.iter().any(|known| Arc::ptr_eq(known, table.state())) {
            table.belongs_to(&self.shared)?;
            self.tables.push(Arc::clone(table.state()));
        }
        Ok(())
    }

    /// A write that was replaced within the transaction: its large value is garbage.
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
