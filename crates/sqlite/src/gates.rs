//! Simulated slow disks, each shared by all files of a database.
//!
//! Transfers and syncs are counted by [`Cause`] and pass a [`Gate`]. It waits, or with
//! `time=counted` only advances a virtual clock: such runs are fast and repeatable.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use terrace_io::{Clock, Gate, MachineClock, VirtualClock};

use crate::options::Slowness;

/// Kind of disk access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    DatabaseRead,
    DatabaseWrite,
    /// Of the write-ahead log or a journal.
    LogRead,
    LogWrite,
    Sync,
}

impl Cause {
    const NAMES: [&str; 5] = ["database_reads", "database_writes", "log_reads", "log_writes", "syncs"];
}

#[derive(Debug)]
pub(crate) struct SlowDisk {
    gate: Gate,
    pub clock: Arc<dyn Clock>,
    counts: [AtomicU64; Cause::NAMES.len()],
}

impl SlowDisk {
    fn new(slowness: Slowness) -> SlowDisk {
        let clock: Arc<dyn Clock> = match slowness.is_counted {
            true => Arc::new(VirtualClock::default()),
            false => Arc::new(MachineClock::default()),
        };
        let gate = Gate::new(slowness.into(), Arc::clone(&clock));
        SlowDisk { gate, clock, counts: Default::default() }
    }

    /// Runs a transfer of `bytes`, or a sync, at disk speed.
    pub fn slowly<T>(&self, cause: Cause, bytes: usize, act: impl FnOnce() -> T) -> T {
        // Relaxed: a counter only.
        self.counts[cause as usize].fetch_add(1, Ordering::Relaxed);
        let size = (cause != Cause::Sync).then_some(bytes);
        self.gate.slowly(size, act)
    }

    /// Counters and the clock's time, as a JSON object.
    pub fn stats(&self) -> String {
        let counts = Cause::NAMES.iter().zip(&self.counts);
        let counts: String =
            counts.map(|(name, count)| format!(r#""{name}":{},"#, count.load(Ordering::Relaxed))).collect();
        format!(r#"{{{counts}"clock_us":{}}}"#, self.clock.now().as_micros())
    }
}

type Disks = HashMap<(PathBuf, Slowness), Weak<SlowDisk>>;

static DISKS: Mutex<Option<Disks>> = Mutex::new(None);

/// The slow disk of the database, journal or write-ahead log at `path`.
pub(crate) fn of(path: &Path, slowness: Slowness) -> Arc<SlowDisk> {
    let mut disks = DISKS.lock();
    let disks = disks.get_or_insert_default();
    disks.retain(|_, disk| disk.strong_count() > 0);
    let key = (database_of(path), slowness);
    if let Some(disk) = disks.get(&key).and_then(Weak::upgrade) {
        return disk;
    }
    let disk = Arc::new(SlowDisk::new(slowness));
    disks.insert(key, Arc::downgrade(&disk));
    disk
}

pub(crate) fn database_of(path: &Path) -> PathBuf {
    let text = path.to_string_lossy();
    let name = ["-journal", "-wal"].into_iter().find_map(|ending| text.strip_suffix(ending));
    name.map_or_else(|| path.to_owned(), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_time_is_not_waited_for() {
        let slowness = Slowness { latency_us: 1_000_000, operations_per_second: None, is_counted: true };
        let disk = of(Path::new("/x.db"), slowness);
        assert_eq!(disk.slowly(Cause::DatabaseRead, 4096, || 7), 7);
        of(Path::new("/x.db-wal"), slowness).slowly(Cause::LogWrite, 24, || ());
        disk.slowly(Cause::Sync, 0, || ());
        let stats = r#"{"database_reads":1,"database_writes":0,"log_reads":0,"log_writes":1,"syncs":1,"clock_us":3000000}"#;
        assert_eq!(disk.stats(), stats);
    }
}
