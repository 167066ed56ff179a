//! Ranges of a transaction.

use std::ops::{ControlFlow, RangeBounds};

use super::range::{TransactionRange, of_prefix, own};
use super::table::Table;
use super::transaction::Transaction;
use crate::error::{Error, Result};
use crate::txn::scan::OwnedRange;

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

impl Transaction {
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
    /// let transaction = db.begin();
    /// transaction.put(&table, "a2", "")?;
    /// assert_eq!(transaction.delete_range(&table, "a".."b")?, 2, "its own changes included");
    /// transaction.commit()?;
    /// assert_eq!(table.first()?.unwrap().0, b"b1");
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn delete_range<K: AsRef<[u8]>>(&self, table: &Table, range: impl RangeBounds<K>) -> Result<u64> {
        self.delete_owned(table, own(range), None).map(|deleted| deleted.entries)
    }

    /// Removes the entries of a range; with `log_bytes`, only the lowest that take about this much
    /// log.
    pub(crate) fn delete_owned(
        &self,
        table: &Table,
        range: OwnedRange,
        log_bytes: Option<u64>,
    ) -> Result<Deleted> {
        self.shared().check_writable()?;
        let max = self.shared().pool.wal().max_reservation();
        let begun = self.pending().lock().size_bytes();
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
                return Err(Error::TransactionTooLarge { bytes, max, reads: false });
            }
            keys.push(key);
        }
        for key in &keys {
            self.remove(table, key)?;
        }
        Ok(Deleted { entries: keys.len() as u64, last: keys.pop().filter(|_| !all) })
    }

    /// Returns the entries of a key range, own changes included, as a double-ended iterator.
    pub fn range<'t, K: AsRef<[u8]>>(
        &'t self,
        table: &'t Table,
        range: impl RangeBounds<K>,
    ) -> TransactionRange<'t> {
        self.cursor(table, own(range))
    }

    /// Calls `visit` with the entries of a key range, in ascending order, until it breaks.
    ///
    /// Returns the break value. Only the entries visited count as read.
    ///
    /// # Errors
    /// Those of [`Transaction::get`].
    pub fn scan<K: AsRef<[u8]>, B>(
        &self,
        table: &Table,
        range: impl RangeBounds<K>,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Result<Option<B>> {
        for entry in self.range(table, range) {
            let (key, value) = entry?;
            if let ControlFlow::Break(value) = visit(&key, &value) {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Returns the entries whose keys begin with `prefix`, own changes included.
    pub fn prefix<'t>(&'t self, table: &'t Table, prefix: impl AsRef<[u8]>) -> TransactionRange<'t> {
        self.cursor(table, of_prefix(prefix.as_ref()))
    }

    /// Returns all entries, own changes included.
    pub fn iter<'t>(&'t self, table: &'t Table) -> TransactionRange<'t> {
        self.range::<&[u8]>(table, ..)
    }

    /// Returns the entry with the lowest key.
    ///
    /// # Errors
    /// Those of [`Transaction::get`].
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// let queue = db.create_table("queue")?;
    /// queue.put("job 1", "build")?;
    /// db.update(|transaction| {
    ///     if let Some((job, _)) = transaction.first(&queue)? {
    ///         transaction.delete(&queue, job)?;
    ///     }
    ///     Ok::<_, terrace::Error>(())
    /// })?;
    /// assert!(queue.is_empty()?);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn first(&self, table: &Table) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.iter(table).next().transpose()
    }

    /// Returns the entry with the highest key.
    ///
    /// # Errors
    /// Those of [`Transaction::get`].
    pub fn last(&self, table: &Table) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.iter(table).next_back().transpose()
    }

    fn cursor<'t>(&'t self, table: &'t Table, range: OwnedRange) -> TransactionRange<'t> {
        let shared = self.shared();
        let enlisted = self.pending().lock().enlist(shared, table);
        let pin = enlisted.and_then(|()| self.pin()).inspect(|pin| {
            shared.order.iter().for_each(|order| order.scan(table.state().id, pin.timestamp()));
        });
        TransactionRange::new(shared, table.state(), range, self.pending(), pin)
    }
}
