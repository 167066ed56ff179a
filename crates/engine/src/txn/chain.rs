//! The records of a transaction as they are appended.

use super::undo::Inverse;
use crate::error::Result;
use crate::ids::{Lsn, Timestamp};
use crate::index::{Change, Tree, Write};
use crate::pool::{Grant, Pool};
use crate::wal::Reservation;

/// The records of a transaction as they are appended.
pub(super) struct Chain<'a, 'p> {
    pub(super) pool: &'p Pool,
    pub(super) timestamp: Timestamp,
    left: usize,
    pub(super) lsns: Vec<Lsn>,
    pub(super) end: Lsn,
    undo: Vec<u8>,
    /// Leaves that are nearly empty now.
    pub(super) underfull: Vec<(Tree, Box<[u8]>)>,
    pub(super) reservation: &'a mut Reservation<'p>,
    pub(super) grant: &'a mut Grant<'p>,
    /// Whether the pages hold all of the transaction or nothing.
    pub(super) settled: bool,
}

/// Fails the log if a panic leaves half a transaction in the pages.
///
/// This drops before the timestamp is decided and the keys are unlocked.
impl Drop for Chain<'_, '_> {
    fn drop(&mut self) {
        if !self.settled {
            self.pool.wal().poison("a thread panicked while it committed");
        }
    }
}

impl<'a, 'p> Chain<'a, 'p> {
    /// A chain of `records` records.
    pub(super) fn new(
        pool: &'p Pool,
        timestamp: Timestamp,
        records: usize,
        reservation: &'a mut Reservation<'p>,
        grant: &'a mut Grant<'p>,
    ) -> Self {
        Chain {
            pool,
            timestamp,
            left: records,
            lsns: Vec::with_capacity(records),
            end: Lsn::NONE,
            undo: Vec::new(),
            underfull: Vec::new(),
            reservation,
            grant,
            settled: false,
        }
    }

    pub(super) fn apply(&mut self, tree: Tree, change: Change<'_>, inverse: &Inverse<'_>) -> Result<()> {
        inverse.encode(&mut self.undo);
        self.left -= 1;
        let mut underfull = false;
        let mut write = Write {
            transaction: self.timestamp,
            previous: self.previous(),
            undo: &self.undo,
            commit: self.left == 0,
            reservation: Some(&mut *self.reservation),
            grant: Some(&mut *self.grant),
            underfull: Some(&mut underfull),
            ..Write::default()
        };
        let appended = tree.apply(self.pool, &mut write, change)?;
        if underfull {
            self.underfull.push((tree, change.key().into()));
        }
        self.lsns.push(appended.lsn);
        self.end = appended.end;
        Ok(())
    }

    pub(super) fn previous(&self) -> Lsn {
        self.lsns.last().copied().unwrap_or(Lsn::NONE)
    }
}
