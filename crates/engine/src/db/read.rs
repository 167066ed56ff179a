//! Reading one key: now, and at a time.

use super::core::{Core, TableState};
use super::scan::stored;
use crate::error::{Error, Result};
use crate::ids::Timestamp;
use crate::index::chain::read_value;
use crate::index::{Found, Stored};
use crate::txn::snapshots::SnapshotHandle;

/// Attempts of a read outside a transaction whose snapshot is given up each time.
const ATTEMPTS: u32 = 100;

impl Core {
    /// What everybody may see of `key` now.
    ///
    /// `visible` is loaded before the entry is read. An inline value written by then, or a key that is absent and was
    /// not deleted lately, is the answer, and nothing shared was written to get it. Everything else takes a snapshot:
    /// an entry of a commit that is not decided yet, a deletion that may not be, a large value whose pages must stay.
    #[inline]
    pub(crate) fn get_now(&self, table: &TableState, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.check()?;
        table.check()?;
        let visible = self.clock.visible();
        let found = match table.tree.get(&self.pool, key) {
            Ok(found) => found,
            Err(error) => return table.check().and(Err(error)),
        };
        let answer = match found {
            Some(Found { timestamp, value: Stored::Inline(value) }) if timestamp <= visible => Some(value),
            None if self.versions.nothing_deleted(table.id) => None,
            _ => return self.get_by_snapshot(table, key),
        };
        // The table may have been dropped, and its pages used for something else, under the read.
        table.check()?;
        Ok(answer)
    }

    #[cold]
    fn get_by_snapshot(&self, table: &TableState, key: &[u8]) -> Result<Option<Vec<u8>>> {
        for _ in 0..ATTEMPTS {
            let snapshot = self.snapshots.register(&self.clock);
            match self.get_at(table, key, &snapshot) {
                Err(Error::SnapshotTooOld) => {}
                outcome => return outcome,
            }
        }
        Err(Error::SnapshotTooOld)
    }

    /// What `snapshot` sees of `key`.
    pub(crate) fn get_at(
        &self,
        table: &TableState,
        key: &[u8],
        snapshot: &SnapshotHandle,
    ) -> Result<Option<Vec<u8>>> {
        self.check()?;
        let at = snapshot.timestamp();
        table.check_at(at)?;
        let outcome = self.find_at(table, key, at).and_then(|value| self.load(value));
        // After the read, whatever came out of it: pages may have been freed under a snapshot that was given up.
        snapshot.check()?;
        outcome
    }

    fn find_at(&self, table: &TableState, key: &[u8], at: Timestamp) -> Result<Option<Stored>> {
        // The page first, the old versions second.
        let found = table.tree.get(&self.pool, key)?;
        match found {
            Some(Found { timestamp, value }) if timestamp <= at => Ok(Some(value)),
            newer => match self.versions.read(table.id, key, at) {
                Some(old) => stored(old.value),
                None if newer.is_none() => Ok(None),
                None => Err(Error::SnapshotTooOld),
            },
        }
    }

    /// The bytes of a value, wherever they are.
    pub(crate) fn load(&self, value: Option<Stored>) -> Result<Option<Vec<u8>>> {
        match value {
            None => Ok(None),
            Some(Stored::Inline(bytes)) => Ok(Some(bytes)),
            Some(Stored::Overflow(reference)) => read_value(&self.pool, reference).map(Some),
        }
    }
}
