//! The reads and writes of a running transaction.

use std::collections::HashMap;
use std::sync::Arc;

use super::core::Shared;
use super::table::Table;
use crate::error::{Error, Result};
use crate::ids::{MAX_KEY_BYTES, TableId};
use crate::index::node::overflow::Reference;
use crate::txn::garbage::GarbageKey;
use crate::txn::read_set::ReadSet;
use crate::txn::scan::{OwnedRange, as_slice};
use crate::txn::table::TableState;
use crate::txn::versions::OverflowRef;
use crate::txn::write_set::{NewValue, OwnRange, Write, WriteSet};

/// Log bytes per changed key, beside key and value.
const RECORD_BYTES: usize = 160;

#[derive(Debug, Default)]
pub(crate) struct Pending {
    pub(crate) reads: ReadSet,
    pub(crate) writes: WriteSet,
    pub(crate) tables: Vec<Arc<TableState>>,
    /// Large values written, used or not; the transaction's end discards those left.
    pub(crate) large: HashMap<OverflowRef, GarbageKey>,
    /// Valid savepoints, oldest first: number and mark in the write journal.
    pub(crate) savepoints: Vec<(u64, usize)>,
    /// Cursors have copies; they may read values replaced since.
    cursors: Arc<()>,
}

impl Pending {
    /// The changes so far in a range, and a token that keeps their large values.
    pub(crate) fn own_range(&self, table: TableId, asked: &OwnedRange) -> (OwnRange, Arc<()>) {
        let own = self.writes.range(table, (as_slice(&asked.0), as_slice(&asked.1)));
        (own, Arc::clone(&self.cursors))
    }

    /// Log bytes it will take, roughly, or its memory if that is more.
    pub(crate) fn size_bytes(&self) -> u64 {
        let logged = self.writes.log_bytes() + self.writes.len() * RECORD_BYTES;
        logged.max(self.writes.size_bytes()) as u64
    }

    pub(crate) fn before_write(
        &mut self,
        shared: &Arc<Shared>,
        table: &Table,
        key: &[u8],
        value_bytes: usize,
    ) -> Result<()> {
        shared.check_writable()?;
        if key.len() > MAX_KEY_BYTES {
            return Err(Error::KeyTooLarge { length: key.len(), max: MAX_KEY_BYTES });
        }
        let bytes = self.size_bytes() + (key.len() + value_bytes) as u64;
        let max = shared.pool.wal().max_reservation();
        if bytes > max {
            return Err(Error::TransactionTooLarge { bytes, max, reads: false });
        }
        self.enlist(shared, table)
    }

    pub(crate) fn enlist(&mut self, shared: &Arc<Shared>, table: &Table) -> Result<()> {
        shared.check()?;
        table.state().check()?;
        if !self.tables.iter().any(|known| Arc::ptr_eq(known, table.state())) {
            table.belongs_to(shared)?;
            self.tables.push(Arc::clone(table.state()));
        }
        Ok(())
    }

    /// Discards the large value of a write replaced within the transaction, unless a cursor may
    /// still read it.
    pub(crate) fn forget(&mut self, shared: &Shared, before: Option<Write>) {
        if let Some(Write::Put(NewValue::Overflow(reference))) = before
            && Arc::strong_count(&self.cursors) == 1
        {
            self.discard(shared, reference);
        }
    }

    pub(crate) fn discard(&mut self, shared: &Shared, reference: OverflowRef) {
        if let Some((key, reference)) = self.large.remove(&reference).zip(Reference::decode(&reference.0)) {
            shared.garbage.add_value(key, reference);
        }
    }
}
