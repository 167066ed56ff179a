//! Named snapshots, for long readers.
//!
//! A named snapshot lives until it is dropped or the database closes, independent of handles. It is
//! in memory only, because old versions do not outlive the process.
//!
//! It is not given up for its age, but for room: beyond its own limit of old version bytes since it
//! was taken, or beyond [`Builder::old_version_bytes_max`](crate::Builder::old_version_bytes_max)
//! for all snapshots together. Nothing replaced after the oldest snapshot is dropped. So a snapshot
//! keeps all versions pushed since it was taken, alone or with younger ones.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;

use super::snapshots::SnapshotHandle;
use super::versions::Versions;
#[cfg(doc)]
use crate::Error;

#[derive(Debug, Default)]
pub(crate) struct NamedSnapshots {
    pub(crate) by_name: Mutex<BTreeMap<String, Named>>,
}

#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) handle: Arc<SnapshotHandle>,
    /// Bytes of old versions pushed before it was taken.
    pub(crate) pushed: u64,
    pub(crate) version_bytes_max: u64,
}

impl Named {
    fn version_bytes(&self, versions: &Versions) -> u64 {
        if self.handle.expired() { 0 } else { versions.pushed_bytes() - self.pushed }
    }
}

/// A named snapshot, listed by [`crate::Db::named_snapshots`].
///
/// ```
/// use terrace::{Db, MemoryDirectory};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
/// db.create_named_snapshot("audit", Some(100_000))?;
/// let [audit] = &db.named_snapshots()[..] else { panic!() };
/// assert_eq!((&audit.name[..], audit.given_up), ("audit", false));
/// assert_eq!(audit.version_bytes_max, 100_000);
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NamedSnapshot {
    /// Name of the snapshot.
    pub name: String,
    /// Time since it was taken.
    pub age: Duration,
    /// Bytes of old versions kept since then; 0 once given up.
    pub version_bytes: u64,
    /// Limit of those bytes; beyond it the snapshot is given up.
    pub version_bytes_max: u64,
    /// Whether it was given up: reads fail with [`Error::SnapshotTooOld`].
    pub given_up: bool,
}

impl NamedSnapshots {
    pub(crate) fn list(&self, versions: &Versions) -> Vec<NamedSnapshot> {
        let by_name = self.by_name.lock();
        let listed = by_name.iter().map(|(name, named)| NamedSnapshot {
            name: name.clone(),
            age: named.handle.age(),
            version_bytes: named.version_bytes(versions),
            version_bytes_max: named.version_bytes_max,
            given_up: named.handle.expired(),
        });
        listed.collect()
    }

    /// Gives up the snapshots beyond their limits, and adds their number to `counter`.
    pub(super) fn give_up(&self, versions: &Versions, counter: &AtomicU64) {
        let by_name = self.by_name.lock();
        for (name, named) in by_name.iter() {
            let bytes = named.version_bytes(versions);
            if bytes > named.version_bytes_max && named.handle.give_up() {
                counter.fetch_add(1, Relaxed);
                tracing::warn!(name, bytes, max = named.version_bytes_max, "a named snapshot is given up");
            }
        }
    }
}
