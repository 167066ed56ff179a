//! The interface between commands and engines: a database is a set of ordered maps.
//!
//! Workload drivers, `load`, `dump` and the demo use [`Store`], so they run on Terrace, on other
//! engines in a comparison, and on a `BTreeMap` in tests. Every call may fail. Conflicts stay
//! inside the engine: `transact` reruns its body until it commits.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use serde::Serialize;
use terrace::{
    BackupReport, CacheStats, Compaction, FrameClass, LineWrites, MiddleClass, MiddleStats, TableStats,
    VerifyReport,
};

use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::tiers::TierArgs;
use crate::values::KEY_BYTES;

/// An open table, shared by threads.
pub trait Store: Send + Sync {
    /// The value of `key`, if present.
    fn get(&self, key: &[u8]) -> Outcome<Option<Vec<u8>>>;

    /// Passes the value of `key` to `read`, as cheaply as the engine's interface allows. Returns
    /// whether it is present.
    fn get_with(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        Ok(self.get(key)?.map(|value| read(&value)).is_some())
    }

    /// The bytes `range` of the value of `key`; `None` without the key, or if the value is shorter.
    fn get_range(&self, key: &[u8], range: Range<usize>) -> Outcome<Option<Vec<u8>>> {
        Ok(self.get(key)?.and_then(|value| value.get(range).map(<[u8]>::to_vec)))
    }

    /// Overwrites a part of the value of `key`, from offset `at` on. Returns whether a value is
    /// there and long enough.
    fn update_range(&self, key: &[u8], at: usize, bytes: &[u8]) -> Outcome<bool> {
        let mut done = false;
        self.transact(&mut |transaction| {
            done = false;
            let Some(mut value) = transaction.get(key)? else { return Ok(Ending::Abort) };
            let Some(part) = value.get_mut(at..at + bytes.len()) else { return Ok(Ending::Abort) };
            part.copy_from_slice(bytes);
            transaction.put(key, &value)?;
            done = true;
            Ok(Ending::Commit)
        })?;
        Ok(done)
    }

    /// Whether the engine itself reads and changes parts of values. Otherwise the two calls above
    /// read and write whole ones.
    fn has_ranges(&self) -> bool {
        false
    }

    /// The values of `keys`, in order.
    fn get_many(&self, keys: &[Vec<u8>]) -> Outcome<Vec<Option<Vec<u8>>>> {
        keys.iter().map(|key| self.get(key)).collect()
    }

    /// Sets `key`; durable on return unless durability is buffered.
    fn put(&self, key: &[u8], value: &[u8]) -> Outcome;

    /// Removes `key`; returns whether it was present.
    fn delete(&self, key: &[u8]) -> Outcome<bool>;

    /// Sets all `entries` atomically.
    fn write(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Outcome;

    /// Runs `body` as one transaction and returns the number of retries after conflicts. The body
    /// may run several times.
    fn transact(&self, body: &mut dyn FnMut(&mut dyn Access) -> Outcome<Ending>) -> Outcome<u64>;

    /// Passes entries from `from` (inclusive) on to `visit`, in key order, until it breaks.
    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Outcome;

    /// Like [`Store::scan`], with the expected number of entries as a hint.
    fn scan_some(&self, from: &[u8], entries: u64, visit: &mut Visit<'_>) -> Outcome {
        let _ = entries;
        self.scan(from, visit)
    }

    /// Statistics so far; all zeros if the engine keeps none.
    fn counters(&self) -> Counters;

    /// Write counts per line of a simulated middle tier, if there is one.
    fn line_writes(&self) -> Option<LineWrites> {
        None
    }
}

/// Called with each entry of a scan.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Operations inside a transaction.
pub trait Access {
    /// The value of `key` as this transaction sees it.
    fn get(&mut self, key: &[u8]) -> Outcome<Option<Vec<u8>>>;
    /// Sets `key` when the transaction commits.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Outcome;
}

/// The outcome a transaction's body asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Make its writes visible and durable.
    Commit,
    /// Discard its writes.
    Abort,
}

/// An open database.
pub trait Database: Send + Sync {
    /// Opens a table; `create` makes it if missing.
    fn table(&self, name: &str, create: bool) -> Outcome<Box<dyn Store>>;
    /// Removes a table with its entries, if it exists.
    fn drop_table(&self, name: &str) -> Outcome;
    /// Data for `terrace stat`. Only Terrace supports this and the next four.
    fn stat(&self) -> Outcome<Stat> {
        Err(Failure::Work(
            "this engine is for benchmarks only; use its own tools to inspect its files".to_owned(),
        ))
    }
    /// Checks every page and entry.
    fn verify(&self) -> Outcome<VerifyReport> {
        Err(Failure::Work(
            "this engine is for benchmarks only; use its own tools to check its files".to_owned(),
        ))
    }
    /// Shrinks the page file and reports progress, until that breaks.
    fn compact(&self, _progress: &mut dyn FnMut(&Compaction) -> ControlFlow<()>) -> Outcome<Compaction> {
        Err(Failure::Work(
            "this engine is for benchmarks only; use its own tools to compact its files".to_owned(),
        ))
    }
    /// Copies the database to a directory while it is in use.
    fn backup(&self, _destination: &Path) -> Outcome<BackupReport> {
        Err(Failure::Work(
            "this engine is for benchmarks only; use its own tools to copy its files".to_owned(),
        ))
    }
    /// The engine's version and settings in its own terms, reported with every measurement.
    fn settings(&self) -> BTreeMap<&'static str, String> {
        BTreeMap::new()
    }
    /// Writes everything out and closes the files.
    fn close(self: Box<Self>) -> Outcome;
}

/// How to open a database.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The database directory; `None` keeps everything in memory.
    pub store: Option<PathBuf>,
    /// Tier flags, from which Terrace makes its builder.
    pub tiers: TierArgs,
    /// Whether to create the database if missing.
    pub create: bool,
    /// Whether to refuse every change.
    pub read_only: bool,
    /// Directory for engines that need files even without `store`; `None` makes one.
    pub scratch: Option<PathBuf>,
    /// Threads that will use it; 0 if unknown.
    pub threads: u64,
    /// Records it will hold; 0 if unknown.
    pub records: u64,
    /// Bytes per value.
    pub value_bytes: u64,
}

impl Settings {
    /// Settings for an existing database in `store`.
    pub fn new(tiers: &TierArgs, store: Option<PathBuf>) -> Settings {
        Settings { store, tiers: tiers.clone(), ..Settings::default() }
    }

    /// Bytes of all records.
    pub fn data_bytes(&self) -> u64 {
        self.records.saturating_mul(self.value_bytes + KEY_BYTES as u64)
    }
}

/// Opens databases.
pub trait Opener {
    /// Opens the database that `settings` describe.
    fn open(&self, settings: &Settings) -> Outcome<Box<dyn Database>>;
}

/// Opens a database, passes it to `work`, and closes it even after a failure.
pub fn with_database<T>(
    opener: &dyn Opener,
    settings: &Settings,
    work: impl FnOnce(&dyn Database) -> Outcome<T>,
) -> Outcome<T> {
    // A signal during recovery loses nothing: the next open repeats it.
    let database = interrupt::at_once(|| opener.open(settings))?;
    let worked = work(&*database);
    let closed = database.close();
    // Report the first failure; a failed close counts only without one.
    worked.and_then(|value| closed.map(|()| value))
}

/// Statistics of an engine since it was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    /// The engine's memory budget in bytes.
    pub budget_bytes: u64,
    /// Bytes of the DRAM frames.
    pub dram_capacity_bytes: u64,
    /// OS pages of DRAM frames on other NUMA nodes than requested, since the database was opened.
    pub dram_misplaced_pages: u64,
    /// Bytes of the page file.
    pub store_capacity_bytes: u64,
    /// Bytes of the log; 0 if counted with the page file.
    pub log_capacity_bytes: u64,
    /// Page accesses that read the store.
    pub store_hits: u64,
    /// Bytes read from the store.
    pub store_read_bytes: u64,
    /// Bytes written to the page file.
    pub store_written_bytes: u64,
    /// Bytes written to the log.
    pub log_bytes: u64,
    /// Position in a log that wraps; absent if unknown.
    pub log_position: Option<LogPosition>,
    /// Pages read into DRAM.
    pub store_to_dram: u64,
    /// Pages written from DRAM.
    pub dram_to_store: u64,
    /// The middle tier, if any.
    pub middle: Option<MiddleStats>,
    /// The block cache, if any.
    pub cache: Option<CacheStats>,
    /// Transactions ended by a conflict.
    pub aborts: u64,
    /// Waits of threads, by reason.
    pub stalls: Vec<(String, u64)>,
}

/// The end of a log that wraps, and may grow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LogPosition {
    /// Bytes ever appended.
    pub tail: u64,
    /// Bytes that the log holds.
    pub capacity: u64,
}

impl LogPosition {
    /// The difference from `earlier`; the capacity stays current.
    pub fn since(&self, earlier: LogPosition) -> LogPosition {
        LogPosition { tail: self.tail.saturating_sub(earlier.tail), ..*self }
    }

    /// How often a log of this capacity wraps for these bytes.
    pub fn cycles(&self) -> f64 {
        self.tail as f64 / self.capacity.max(1) as f64
    }
}

impl Counters {
    /// The difference from `earlier`; capacities stay current.
    pub fn since(&self, earlier: &Counters) -> Counters {
        let before = |reason: &str| {
            earlier.stalls.iter().find(|(name, _)| name == reason).map_or(0, |(_, count)| *count)
        };
        Counters {
            store_hits: self.store_hits.saturating_sub(earlier.store_hits),
            store_read_bytes: self.store_read_bytes.saturating_sub(earlier.store_read_bytes),
            store_written_bytes: self.store_written_bytes.saturating_sub(earlier.store_written_bytes),
            log_bytes: self.log_bytes.saturating_sub(earlier.log_bytes),
            log_position: self.log_position.map(|now| now.since(earlier.log_position.unwrap_or_default())),
            store_to_dram: self.store_to_dram.saturating_sub(earlier.store_to_dram),
            dram_to_store: self.dram_to_store.saturating_sub(earlier.dram_to_store),
            cache: self.cache.as_ref().map(|now| match &earlier.cache {
                Some(earlier) => now.since(earlier),
                None => now.clone(),
            }),
            middle: self.middle.as_ref().map(|now| match &earlier.middle {
                Some(earlier) => now.since(earlier),
                None => now.clone(),
            }),
            aborts: self.aborts.saturating_sub(earlier.aborts),
            stalls: self.stalls.iter().map(|(r, n)| (r.clone(), n.saturating_sub(before(r)))).collect(),
            ..self.clone()
        }
    }
}

/// What `terrace stat` prints.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stat {
    /// Format version of the files.
    pub format: u32,
    /// Tables by name.
    pub tables: Vec<TableStats>,
    /// Pages in use.
    pub pages: u64,
    /// Reusable pages.
    pub free_pages: u64,
    /// Bytes per page.
    pub page_bytes: u64,
    /// Bytes of the page file.
    pub file_bytes: u64,
    /// Log bytes that recovery would read.
    pub log_bytes: u64,
    /// LSN of the last checkpoint.
    pub last_checkpoint_lsn: u64,
    /// The engine's memory budget in bytes.
    pub budget_bytes: u64,
    /// Frames by page size, smallest first.
    pub frames: Vec<FrameClass>,
    /// The middle tier, if any.
    pub middle: Option<MiddleStat>,
    /// All statistics in Prometheus format.
    #[serde(skip)]
    pub prometheus: String,
}

/// The middle tier in [`Stat`].
#[derive(Clone, Debug, Default, Serialize)]
pub struct MiddleStat {
    /// Bytes of its frames.
    pub bytes: u64,
    /// Number of frames.
    pub frames: u64,
    /// Frames by page size, smallest first.
    pub classes: Vec<MiddleClass>,
    /// Page sizes in use that bypass this tier, in bytes, smallest first.
    pub other_page_bytes: Vec<u64>,
    /// Pages of those sizes that were read or created.
    pub other_sizes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_differences_but_capacities_are_not() {
        let earlier = Counters { store_hits: 5, stalls: vec![("log".into(), 2)], ..Counters::default() };
        let later = Counters {
            store_hits: 7,
            dram_capacity_bytes: 9,
            stalls: vec![("log".into(), 3), ("frame".into(), 1)],
            ..Counters::default()
        };
        let between = later.since(&earlier);
        assert_eq!((between.store_hits, between.dram_capacity_bytes), (2, 9));
        assert_eq!(between.stalls, vec![("log".to_owned(), 1), ("frame".to_owned(), 1)]);
    }

    #[test]
    fn a_log_that_grows_has_still_wrapped() {
        let at = |tail, capacity| {
            let log_position = Some(LogPosition { tail, capacity });
            Counters { log_position, ..Counters::default() }
        };
        let between = at(6 << 20, 4 << 20).since(&at(4 << 20, 2 << 20));
        assert_eq!(between.log_position.unwrap().cycles(), 0.5);
        assert_eq!(LogPosition::default().cycles(), 0.0);
    }
}
