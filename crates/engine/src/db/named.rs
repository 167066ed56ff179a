//! Named snapshots: kept by the database under a name, for readers that take long.
//!
//! A named snapshot lives until it is dropped or the database is closed, whoever holds a handle of it, and whoever
//! knows its name can go on reading where others have begun. It is in memory only: what it reads are old versions, and
//! these do not outlive the process; so neither do the names.
//!
//! Age is no reason to give it up. Room is: it has a limit of its own on the bytes of old versions that have been kept
//! since it was taken, and like every snapshot it is given up when all old versions together take more than
//! [`Builder::old_version_bytes_max`](crate::Builder::old_version_bytes_max). Nothing superseded after the oldest snapshot
//! is dropped; so what has been pushed since a snapshot was taken is what it keeps, alone or together with younger ones.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;

use super::Db;
use super::core::Core;
use super::snapshot::Snapshot;
use crate::error::{Error, Result};
use crate::txn::snapshots::SnapshotHandle;
use crate::txn::versions::Versions;

/// The snapshots that have names.
#[derive(Debug, Default)]
pub(crate) struct NamedSnapshots {
    by_name: Mutex<BTreeMap<String, Named>>,
}

#[derive(Debug)]
struct Named {
    handle: Arc<SnapshotHandle>,
    /// Bytes of old versions ever pushed, when it was taken.
    pushed: u64,
    version_bytes_max: u64,
}

impl Named {
    fn version_bytes(&self, versions: &Versions) -> u64 {
        if self.handle.expired() { 0 } else { versions.pushed_bytes() - self.pushed }
    }
}

/// A named snapshot, as [`Db::named_snapshots`] lists it.
///
/// ```
/// use terrace::{Db, MemoryDirectory};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
/// db.create_named_snapshot("audit", Some(100_000))?;
/// let [audit] = &db.named_snapshots()[..] else { panic!() };
/// assert_eq!((&audit.name[..], audit.version_bytes_max, audit.given_up), ("audit", 100_000, false));
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NamedSnapshot {
    /// Its name.
    pub name: String,
    /// How long ago it was taken.
    pub age: Duration,
    /// Bytes of old versions that have been kept since then; 0 once it was given up.
    pub version_bytes: u64,
    /// Bytes of old versions beyond which it is given up.
    pub version_bytes_max: u64,
    /// Whether it was given up: its reads fail with [`Error::SnapshotTooOld`].
    pub given_up: bool,
}

impl Db {
    /// Takes a snapshot and keeps it under `name` until [`Db::drop_named_snapshot`], or until the database is closed: it
    /// is not on disk. It is not given up for its age, but soon after old versions of more than `version_bytes_max` bytes
    /// have been kept since it was taken; none = [`Builder::old_version_bytes_max`](crate::Builder::old_version_bytes_max),
    /// which is the limit of all snapshots together in any case. It then keeps its name, and its reads fail with
    /// [`Error::SnapshotTooOld`].
    ///
    /// # Errors
    /// [`Error::SnapshotExists`], [`Error::Config`] for a limit above that of all, [`Error::Poisoned`].
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
            let what = "for a named snapshot, which is more than all old versions may take together";
            return Err(Error::Config(format!("{version_bytes_max} bytes of old versions {what}: {most}")));
        }
        let mut by_name = self.shared.named.by_name.lock();
        let Entry::Vacant(place) = by_name.entry(name.to_owned()) else {
            return Err(Error::SnapshotExists(name.to_owned()));
        };
        // Before the snapshot: what is pushed in between counts.
        let pushed = self.shared.versions.pushed_bytes();
        let snapshot = Snapshot::new(&self.shared);
        snapshot.handle().keep(true);
        place.insert(Named { handle: Arc::clone(snapshot.handle()), pushed, version_bytes_max });
        Ok(snapshot)
    }

    /// The snapshot of this name.
    ///
    /// # Errors
    /// [`Error::SnapshotNotFound`].
    pub fn named_snapshot(&self, name: &str) -> Result<Snapshot> {
        let by_name = self.shared.named.by_name.lock();
        let named = by_name.get(name).ok_or_else(|| Error::SnapshotNotFound(name.to_owned()))?;
        Ok(Snapshot::of(&self.shared, &named.handle))
    }

    /// All named snapshots by name, those that were given up included.
    pub fn named_snapshots(&self) -> Vec<NamedSnapshot> {
        self.shared.list_named()
    }

    /// Takes the name from a snapshot. Handles of it that are left become snapshots like others, given up for their age.
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

impl Core {
    pub(crate) fn list_named(&self) -> Vec<NamedSnapshot> {
        let by_name = self.named.by_name.lock();
        let listed = by_name.iter().map(|(name, named)| NamedSnapshot {
            name: name.clone(),
            age: named.handle.age(),
            version_bytes: named.version_bytes(&self.versions),
            version_bytes_max: named.version_bytes_max,
            given_up: named.handle.expired(),
        });
        listed.collect()
    }

    /// Gives up the named snapshots that keep more than they may.
    pub(super) fn give_up_named(&self) {
        let by_name = self.named.by_name.lock();
        for (name, named) in by_name.iter() {
            let bytes = named.version_bytes(&self.versions);
            if bytes > named.version_bytes_max && named.handle.give_up() {
                self.counters.given_up_for_memory.fetch_add(1, Relaxed);
                tracing::warn!(name, bytes, max = named.version_bytes_max, "a named snapshot is given up");
            }
        }
    }
}
