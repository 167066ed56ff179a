//! Taking back a commit that has failed between its first record and its last.
//!
//! It goes as recovery does with a loser, while others work: each record is undone by a compensation record that names
//! what is to be undone next, in descending order, and an end record closes the transaction. The space for all of them
//! in the log was set aside with that for the commit. The keys are locked, the timestamp is undecided and the ticket
//! holds the log until the end record is durable. So nobody sees anything of it: readers as of earlier times find the
//! old versions, transactions that read a change meanwhile meet a conflict, and a crash leaves a loser that recovery
//! undoes from where this has stopped.
//!
//! The old versions stay until no snapshot is that old: a reader may have looked at a page before it was as it was
//! again. What they refer to is the page's again, and is not freed with them.

use std::sync::Arc;

use super::super::core::{Core, TableState};
use super::super::garbage::{GarbageKey, Transfer, garbage_tree};
use super::super::undo::Inverse;
use super::{Chain, Old, for_each_record};
use crate::error::{Error, Result};
use crate::ids::{Lsn, TableId, Timestamp};
use crate::index::{Tree, Write as TreeWrite};
use crate::planted::{Bug, planted};
use crate::txn::versions::OverflowRef;
use crate::txn::write_set::Write;
use crate::wal::RecordBuilder;

impl Core {
    /// Takes back what `chain` has changed, because of `error`; returns the end of its last record. `None` if that
    /// cannot be done: the log has failed then.
    pub(super) fn take_back<'w>(
        &self,
        chain: &mut Chain<'_, '_>,
        tables: &[Arc<TableState>],
        steps: impl Iterator<Item = ((TableId, &'w Arc<[u8]>, &'w Write), &'w Option<Old>)>,
        large: &dyn Fn(OverflowRef) -> GarbageKey,
        transfers: &[Transfer],
        error: &Error,
    ) -> Option<Lsn> {
        let (garbage, records) = (garbage_tree(&self.pool), chain.lsns.len());
        let mut inverses: Vec<Vec<u8>> = Vec::with_capacity(records);
        for_each_record(garbage, tables, steps, large, transfers, Timestamp::NONE, |_, _, inverse| {
            if inverses.len() < records {
                let mut bytes = Vec::new();
                inverse.encode(&mut bytes);
                inverses.push(bytes);
            }
            Ok(())
        })
        .expect("listing does not fail");
        let taken_back = self.check().and_then(|()| chain.take_back(&inverses));
        match taken_back {
            Ok(end) => {
                tracing::warn!(timestamp = chain.timestamp.0, %error, "a commit was taken back");
                Some(end)
            }
            Err(second) => {
                let what = format!("a commit failed halfway: {error}; and could not be taken back: {second}");
                self.pool.wal().poison(&what);
                None
            }
        }
    }
}

impl Chain<'_, '_> {
    /// Undoes the records, which have these inverses, the last one first, and closes the transaction.
    fn take_back(&mut self, inverses: &[Vec<u8>]) -> Result<Lsn> {
        let (pool, mut last) = (&self.core.pool, self.previous());
        let undone_by = inverses.iter().enumerate().rev().filter(|_| !planted(Bug::LeaveAbortedChanges));
        for (index, inverse) in undone_by {
            let inverse = Inverse::decode(inverse).expect("encoded just now");
            let next = index.checked_sub(1).map_or(Lsn::NONE, |before| self.lsns[before]);
            let mut underfull = false;
            let mut write = TreeWrite {
                transaction: self.timestamp,
                previous: last,
                compensation: Some(next),
                reservation: Some(&mut *self.reservation),
                grant: Some(&mut *self.grant),
                underfull: Some(&mut underfull),
                ..TreeWrite::default()
            };
            last = Tree { root: inverse.root }.apply(pool, &mut write, inverse.change())?.lsn;
        }
        let mut end = RecordBuilder::end(self.timestamp, last);
        Ok(pool.wal().append(&mut end, Some(&mut *self.reservation))?.end)
    }
}
