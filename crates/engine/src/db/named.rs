//! Named snapshots, for long readers.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use super::Db;
use super::snapshot::Snapshot;
use crate::error::{Error, Result};
use crate::txn::named::{Named, NamedSnapshot};

impl Db {
    /// Takes a snapshot and keeps it under `name` until dropped.
    ///
    /// It ends with [`Db::drop_named_snapshot`] or when the database closes, and is not on disk. It
    /// has no age limit. Once more than `version_bytes_max` bytes of old versions were kept since
    /// it was taken, it is given up: it keeps its name, and its reads fail with
    /// [`Error::SnapshotTooOld`]. `None` means
    /// [`Builder::old_version_bytes_max`](crate::Builder::old_version_bytes_max), which always
    /// limits all snapshots together.
    ///
    /// # Errors
    /// [`Error::SnapshotExists`], [`Error::Config`] for a limit above that of all snapshots,
    /// [`Error::Poisoned`].
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
    /// let table = db.create_table("t")?;
    /// table.put("k", "monday")?;
    /// db.create_named_snapshot("weekly report", None)?;
    /// table.put("k", "tuesday")?;
    /// let report = db.named_snapshot("weekly report")?;
    /// assert_eq!(report.get(&table, "k")?.as_deref(), Some(&b"monday"[..]));
    /// db.drop_named_snapshot("weekly report")?;
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn create_named_snapshot(&self, name: &str, version_bytes_max: Option<u64>) -> Result<Snapshot> {
        self.shared.check()?;
        let most = self.shared.budget.split().versions;
        let version_bytes_max = version_bytes_max.unwrap_or(most);
        if version_bytes_max > most {
            return Err(Error::Config(format!(
                "{version_bytes_max} bytes of old versions for a named snapshot; all snapshots together may keep {most}"
            )));
        }
        let mut by_name = self.shared.named.by_name.lock();
        let Entry::Vacant(vacant) = by_name.entry(name.to_owned()) else {
            return Err(Error::SnapshotExists(name.to_owned()));
        };
        // Before the snapshot, so versions pushed in between count.
        let pushed = self.shared.versions.pushed_bytes();
        let snapshot = Snapshot::kept(&self.shared);
        vacant.insert(Named { handle: Arc::clone(snapshot.handle()), pushed, version_bytes_max });
        Ok(snapshot)
    }

    /// Returns the snapshot of this name.
    ///
    /// # Errors
    /// [`Error::SnapshotNotFound`].
    pub fn named_snapshot(&self, name: &str) -> Result<Snapshot> {
        let by_name = self.shared.named.by_name.lock();
        let named = by_name.get(name).ok_or_else(|| Error::SnapshotNotFound(name.to_owned()))?;
        Ok(Snapshot::of(&self.shared, &named.handle))
    }

    /// Lists all named snapshots by name, including given-up ones.
    pub fn named_snapshots(&self) -> Vec<NamedSnapshot> {
        self.shared.named.list(&self.shared.versions)
    }

    /// Drops the name of a snapshot. Remaining handles become ordinary snapshots.
    ///
    /// # Errors
    /// [`Error::SnapshotNotFound`].
    pub fn drop_named_snapshot(&self, name: &str) -> Result<()> {
        let named = self.shared.named.by_name.lock().remove(name);
        named.ok_or_else(|| Error::SnapshotNotFound(name.to_owned()))?.handle.keep(false);
        self.shared.collector.ring();
        Ok(())
    }
}
