//! Undoing the losers: transactions whose records are in the log and whose commit is not.
//!
//! Undo is logical, by key. (A commit that fails while the database is open is taken back by its own thread, in the same
//! way: `db/commit/take_back.rs`.) The records of all losers are taken together, in descending
//! order of their LSNs, so that what one loser wrote over another comes off in the right order. Each record that
//! carries undo bytes is undone by a compensation record, which is redo-only and names what is to be undone next: a
//! recovery that is itself interrupted goes on from there and undoes nothing twice. An end record closes the loser.
//! All of that is durable before the first new commit (durability, rule 4), and only then may the log be cut past
//! the losers.

use std::collections::BinaryHeap;

use super::analysis::Loser;
use crate::buffer::create::Files;
use crate::buffer::pool::Pool;
use crate::error::{Error, Result};
use crate::ids::{Lsn, Timestamp};
use crate::planted::{Bug, planted};
use crate::wal::{Geometry, RecordBuilder, RecordReader};

/// Knows how to take a change back, from the undo bytes its record carries.
pub(crate) trait Undo {
    /// Takes a change of `loser` back with one compensation record, whose predecessor is `previous` and which names
    /// `undo_next`. Returns the LSN of that record.
    fn undo(&self, pool: &Pool, loser: Timestamp, previous: Lsn, undo_next: Lsn, undo: &[u8]) -> Result<Lsn>;
}

impl Pool {
    /// Undoes and closes `losers`, durably. The last step of a recovery, also when there are none.
    pub(crate) fn undo_losers(&self, files: &Files, mut losers: Vec<Loser>, undo: &dyn Undo) -> Result<()> {
        // The records to be read end below what is durable now: a loser's are older than this recovery.
        let geometry = Geometry::new(self.log_capacity)?;
        let mut reader = RecordReader::new(files.log.clone(), geometry, self.wal.cut(), self.wal.durable())?;
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
                loser.last = undo.undo(self, loser.transaction, loser.last, next, record.undo())?;
            }
            if next.is_none() {
                self.close_loser(loser)?;
            } else {
                due.push((next, index));
            }
        }
        self.wal.flush_to(self.wal.tail())?;
        self.recovery_done();
        Ok(())
    }

    fn close_loser(&self, loser: &Loser) -> Result<()> {
        if planted(Bug::NoEndRecordAfterUndo) {
            return Ok(());
        }
        self.wal.append(&mut RecordBuilder::end(loser.transaction, loser.last), None).map(|_| ())
    }
}
