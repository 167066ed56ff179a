//! Undo of losers: transactions with log records but no commit.
//!
//! Undo is logical, by key, like the rollback of a failed commit (`txn/take_back.rs`). It takes the
//! records of all losers in descending order of LSNs, because losers may overwrite each other's
//! changes. A compensation record for each is redo-only and names the next record to undo, so an
//! interrupted recovery continues there. An end record closes the loser. All of this is durable
//! before the first new commit (docs/durability.md, rule 4). The log is cut past the losers only
//! then.

use std::collections::BinaryHeap;

use super::analysis::Loser;
use crate::error::{Error, Result};
use crate::ids::{Lsn, Timestamp};
use crate::maintenance::Maintenance;
use crate::planted::{Bug, planted};
use crate::pool::Pool;
use crate::store::files::Files;
use crate::wal::RecordBuilder;

/// Undoes a change from its undo bytes. Reserves log: redo may have taken what the commit reserved.
pub(crate) trait Undo {
    /// Undoes a change of `loser` with one compensation record after `previous`, which names
    /// `undo_next`. Returns its LSN.
    fn undo(&self, pool: &Pool, loser: Timestamp, previous: Lsn, undo_next: Lsn, undo: &[u8]) -> Result<Lsn>;
}

/// Undoes and closes `losers` durably. Always the last step of recovery.
pub(crate) fn undo_losers(
    maintenance: &Maintenance,
    files: &Files,
    mut losers: Vec<Loser>,
    undo: &dyn Undo,
) -> Result<()> {
    // The records end below the filed end, since losers are older than this recovery.
    let mut reader = maintenance.wal.reader()?;
    let mut due: BinaryHeap<(Lsn, usize)> =
        losers.iter().enumerate().map(|(index, loser)| (loser.last, index)).collect();
    while let Some((lsn, index)) = due.pop() {
        let loser = &mut losers[index];
        let record = reader.read_record_at(lsn)?;
        let next = match record.compensation() {
            Some(undo_next) => undo_next,
            None => record.previous(),
        };
        let damaged = |what: &str| Err(Error::corrupt(files.log.name(), None, format!("{what} {lsn}")));
        if record.transaction() != loser.transaction {
            return damaged("another transaction's record is in the chain to be undone, at");
        }
        if !next.is_none() && next >= lsn {
            return damaged("the chain to be undone does not descend at");
        }
        let undoable = record.compensation().is_none() && !record.undo().is_empty();
        if undoable && !planted(Bug::SkipUndo) {
            loser.last = undo.undo(&maintenance.pool, loser.transaction, loser.last, next, record.undo())?;
        }
        if next.is_none() {
            close_loser(maintenance, loser)?;
        } else {
            due.push((next, index));
        }
    }
    maintenance.wal.flush_to(maintenance.wal.tail())?;
    maintenance.recovery_done();
    Ok(())
}

fn close_loser(maintenance: &Maintenance, loser: &Loser) -> Result<()> {
    if planted(Bug::NoEndRecordAfterUndo) {
        return Ok(());
    }
    let mut end = RecordBuilder::end(loser.transaction, loser.last);
    let mut reservation = maintenance.pool.reserve_log_for_structure(end.len() as u64)?;
    maintenance.wal.append(&mut end, Some(&mut reservation)).map(|_| ())
}
