//! The seam between the command and an engine: one table seen as an ordered map, and a database as a set of tables.
//!
//! The workload drivers, `load`, `dump` and the demo are written against [`Store`], so they run the same over Terrace,
//! over another engine in a comparison, and over a `BTreeMap` in the tests. The traits are no wider than what those
//! need. Keys and values are plain bytes; every call may fail, and a conflict is the engine's business: `transact`
//! runs its body again until it commits.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use serde::Serialize;
use terrace::migration::{Choice, CleanVictims};
use terrace::{Backend, Cache, CacheStats, LineWrites, Middle, MiddleStats, Migrate, NodeSet, Replacement};

use crate::failure::{Failure, Outcome};

/// One open table. Shared by threads.
pub trait Store: Send + Sync {
    /// The value of `key`, if there is one.
    fn get(&self, key: &[u8]) -> Outcome<Option<Vec<u8>>>;

    /// The values of `keys`, in their order.
    fn get_many(&self, keys: &[Vec<u8>]) -> Outcome<Vec<Option<Vec<u8>>>> {
        keys.iter().map(|key| self.get(key)).collect()
    }

    /// Sets `key`, durable on return unless the store was opened with buffered durability.
    fn put(&self, key: &[u8], value: &[u8]) -> Outcome;

    /// Removes `key`; whether it was there.
    fn delete(&self, key: &[u8]) -> Outcome<bool>;

    /// Sets all of `entries`, or none of them.
    fn write(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Outcome;

    /// Runs `body` as one transaction. Returns how many times a conflict made it run again. The body must expect
    /// to be run again from the start.
    fn transact(&self, body: &mut dyn FnMut(&mut dyn Access) -> Outcome<Ending>) -> Outcome<u64>;

    /// Shows `visit` the entries from `from` on (included), in key order, until it breaks.
    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Outcome;

    /// As [`Store::scan`], where `visit` is going to break after so many entries. Engines that make no use of that
    /// do the same.
    fn scan_some(&self, from: &[u8], entries: u64, visit: &mut Visit<'_>) -> Outcome {
        let _ = entries;
        self.scan(from, visit)
    }

    /// What the engine counted so far. All zeros for an engine that does not count.
    fn counters(&self) -> Counters;

    /// How often each line of a simulated middle tier was written, if there is one.
    fn line_writes(&self) -> Option<LineWrites> {
        None
    }
}

/// What is called with each entry of a scan.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// The inside of a transaction.
pub trait Access {
    /// The value of `key` as this transaction sees it.
    fn get(&mut self, key: &[u8]) -> Outcome<Option<Vec<u8>>>;
    /// Sets `key` when the transaction commits.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Outcome;
}

/// How the body of a transaction wants it to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Make its writes visible and durable.
    Commit,
    /// Forget its writes.
    Abort,
}

/// An open database.
pub trait Database: Send + Sync {
    /// Opens a table; `create` makes it when it is missing.
    fn table(&self, name: &str, create: bool) -> Outcome<Box<dyn Store>>;
    /// Removes a table with all its entries, if there is one.
    fn drop_table(&self, name: &str) -> Outcome;
    /// What `terrace stat` shows. Only engines whose databases the command looks after have it.
    fn stat(&self) -> Outcome<Stat> {
        Err(Failure::Work(
            "this engine is measured only; use its own tools to look into its files".to_owned(),
        ))
    }
    /// Checks every page and entry, likewise.
    fn verify(&self) -> Outcome<Verification> {
        Err(Failure::Work("this engine is measured only; use its own tools to check its files".to_owned()))
    }
    /// Makes its page file shorter, likewise, and tells `progress` what is done so far.
    fn compact(&self, _progress: &mut dyn FnMut(&Compacted)) -> Outcome<Compacted> {
        Err(Failure::Work("this engine is measured only; use its own tools to compact its files".to_owned()))
    }
    /// Copies it to a directory while it is used, likewise.
    fn backup(&self, _destination: &Path) -> Outcome<Copied> {
        Err(Failure::Work("this engine is measured only; use its own tools to copy its files".to_owned()))
    }
    /// The settings it runs with, in the engine's own words, and its version: told with every measurement.
    fn settings(&self) -> BTreeMap<&'static str, String> {
        BTreeMap::new()
    }
    /// Writes everything out and lets go of the files.
    fn close(self: Box<Self>) -> Outcome;
}

/// How to open a database: what the tier flags came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The database directory; none keeps everything in memory.
    pub store: Option<std::path::PathBuf>,
    /// DRAM budget, everything included; none leaves it to the engine.
    pub dram_bytes: Option<u64>,
    /// Page size of a database that is created here.
    pub page_bytes: Option<u64>,
    /// The largest pages of long values of tables that are created here.
    pub value_page_bytes_max: Option<u64>,
    /// How pages of tables that are created here are written.
    pub compression: Compression,
    /// How long the log may grow.
    pub log_bytes_max: Option<u64>,
    /// Frames in a hundred for records without their pages; none leaves it to the engine.
    pub record_cache_percent: Option<u8>,
    /// Where the bytes of pages are; by default as the engine has it.
    pub backend: Option<Backend>,
    /// Which pages leave memory first; by default as the engine has it.
    pub replacement: Option<Replacement>,
    /// Memory between DRAM and the store; by default as the engine has it.
    pub middle: Option<Middle>,
    /// Blocks of the page file on a faster device.
    pub cache: Option<Cache>,
    /// How pages move between the tiers; by default as the engine has it.
    pub policy: Option<Choice>,
    /// Pages that an admission queue remembers; by default as the policy has it.
    pub admission_queue_pages: Option<u64>,
    /// What is done with clean pages that leave DRAM; by default as the policy has it.
    pub clean_victims: Option<CleanVictims>,
    /// Nodes for frames in DRAM; by default where the system puts them.
    pub dram_nodes: Option<NodeSet>,
    /// How memory goes from the nodes of one tier to those of the other; by default as the engine has it.
    pub migrate: Option<Migrate>,
    /// Whether commits wait for the disk.
    pub durability: Durability,
    /// Seed of every random choice.
    pub seed: u64,
    /// Whether to create the database when there is none.
    pub create: bool,
    /// Whether to refuse every change.
    pub read_only: bool,
    /// Directory for the files of an engine that has to have some though no `store` is given; none makes one.
    pub scratch: Option<std::path::PathBuf>,
    /// Threads that will use it; 0 when unknown.
    pub threads: u64,
    /// Records that it will hold; 0 when unknown.
    pub records: u64,
    /// Bytes of each of their values.
    pub value_bytes: u64,
}

impl Settings {
    /// Bytes of the records it will hold.
    pub fn data_bytes(&self) -> u64 {
        self.records.saturating_mul(self.value_bytes + crate::workload::values::KEY_BYTES as u64)
    }
}

/// Whether a commit waits for the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Durability {
    /// A commit returns when it would survive a power cut.
    #[default]
    Sync,
    /// A commit returns at once; a crash may lose the last ones, never tear one.
    Buffered,
}

impl Durability {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Durability::Sync => "sync",
            Durability::Buffered => "buffered",
        }
    }
}

/// How pages are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Compression {
    /// As they are.
    #[default]
    None,
    /// Compressed with LZ4 where that saves 4 KiB; pages must be larger than that.
    Lz4,
}

impl Compression {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Lz4 => "lz4",
        }
    }
}

/// Opens databases.
pub trait Opener {
    /// Opens the database that `settings` describe.
    fn open(&self, settings: &Settings) -> Outcome<Box<dyn Database>>;
}

/// What an engine counts, since it was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    /// Bytes of memory the engine allows itself.
    pub budget_bytes: u64,
    /// Bytes of the frames in DRAM.
    pub dram_capacity_bytes: u64,
    /// Pages of the system's that frames in DRAM were given, since it was opened, and that are on other nodes than asked for.
    pub dram_misplaced_pages: u64,
    /// Bytes the page file takes.
    pub store_capacity_bytes: u64,
    /// Bytes the log takes, beside the page file; 0 where they are counted with it.
    pub log_capacity_bytes: u64,
    /// Page accesses that had to read the store.
    pub store_hits: u64,
    /// Bytes read from the store.
    pub store_read_bytes: u64,
    /// Bytes written to the page file.
    pub store_written_bytes: u64,
    /// Bytes written to the log.
    pub log_bytes: u64,
    /// How often the log was filled from end to end; absent where that is not told.
    pub log_cycles: Option<f64>,
    /// Pages read into DRAM.
    pub store_to_dram: u64,
    /// Pages written from DRAM.
    pub dram_to_store: u64,
    /// The middle tier, if there is one.
    pub middle: Option<MiddleStats>,
    /// The block cache, if there is one.
    pub cache: Option<CacheStats>,
    /// Transactions that a conflict ended.
    pub aborts: u64,
    /// Times somebody had to wait, by reason.
    pub stalls: Vec<(String, u64)>,
}

impl Counters {
    /// What was counted since `earlier`; capacities stay as they are now.
    pub fn since(&self, earlier: &Counters) -> Counters {
        let before = |reason: &str| {
            earlier.stalls.iter().find(|(name, _)| name == reason).map_or(0, |(_, count)| *count)
        };
        Counters {
            store_hits: self.store_hits.saturating_sub(earlier.store_hits),
            store_read_bytes: self.store_read_bytes.saturating_sub(earlier.store_read_bytes),
            store_written_bytes: self.store_written_bytes.saturating_sub(earlier.store_written_bytes),
            log_bytes: self.log_bytes.saturating_sub(earlier.log_bytes),
            log_cycles: self.log_cycles.map(|cycles| cycles - earlier.log_cycles.unwrap_or(0.0)),
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
    /// The tables by name.
    pub tables: Vec<TableStat>,
    /// Pages in use.
    pub pages: u64,
    /// Pages that may be used again.
    pub free_pages: u64,
    /// Bytes of one page.
    pub page_bytes: u64,
    /// Bytes of the page file.
    pub file_bytes: u64,
    /// Bytes of the log that a recovery would read.
    pub log_bytes: u64,
    /// Where the last checkpoint stands in the log.
    pub last_checkpoint_lsn: u64,
    /// Bytes of memory the engine allows itself.
    pub budget_bytes: u64,
    /// Its frames by the size of their pages, the smallest first.
    pub frames: Vec<FrameStat>,
    /// Its middle tier, if it has one.
    pub middle: Option<MiddleStat>,
    /// All of what the engine counts, as text for Prometheus.
    #[serde(skip)]
    pub prometheus: String,
}

/// The middle tier in [`Stat`].
#[derive(Clone, Debug, Default, Serialize)]
pub struct MiddleStat {
    /// Bytes of its frames.
    pub bytes: u64,
    /// Frames there are.
    pub frames: u64,
    /// Bytes of a page of it.
    pub page_bytes: u64,
    /// Sizes of pages in use that do not go there, in bytes, the smallest first.
    pub other_page_bytes: Vec<u64>,
    /// Pages of those sizes that were read or made.
    pub other_sizes: u64,
}

/// The frames for pages of one size in [`Stat`].
#[derive(Clone, Debug, Default, Serialize)]
pub struct FrameStat {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Frames there are.
    pub frames: u64,
    /// Bytes of them and of their headers.
    pub bytes: u64,
    /// Bytes of memory behind their content.
    pub resident_bytes: u64,
    /// Whether huge pages of the system were asked for.
    pub huge_pages: bool,
    /// Frames that came from pages of another size.
    pub gained: u64,
    /// Frames that went to pages of another size.
    pub lost: u64,
}

/// One table in [`Stat`].
#[derive(Clone, Debug, Default, Serialize)]
pub struct TableStat {
    /// The table's name.
    pub name: String,
    /// Entries in it.
    pub entries: u64,
    /// Whether there are exactly so many. After a crash the number is about right, until somebody counts.
    pub entries_exact: bool,
    /// Pages of its tree, where the engine counts them by table and that does not take long.
    pub pages: Option<u64>,
    /// Bytes of each of its pages, but for those of long values.
    pub page_bytes: u64,
    /// Bytes of the largest pages that its long values may have.
    pub value_page_bytes_max: u64,
    /// How its pages are written.
    pub compression: String,
}

/// What `terrace compact` did.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Compacted {
    /// Bytes of the page file before.
    pub file_bytes_before: u64,
    /// Bytes of the page file now.
    pub file_bytes_after: u64,
    /// Pages that were moved.
    pub pages_moved: u64,
}

/// What `terrace verify` found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verification {
    /// Pages read and checked.
    pub pages_checked: u64,
    /// Entries read and checked.
    pub entries_checked: u64,
    /// What did not hold; empty when all is well. The first 1,000 findings.
    pub errors: Vec<Damage>,
    /// Findings beyond those.
    pub more_errors: u64,
}

impl Verification {
    /// How much did not hold.
    pub fn error_count(&self) -> u64 {
        self.errors.len() as u64 + self.more_errors
    }
}

/// One thing `verify` found wrong.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Damage {
    /// The file it is in.
    pub file: String,
    /// The page it is on, where one can be named.
    pub page: Option<u64>,
    /// What did not hold.
    pub what: String,
}

/// What `terrace backup` or `terrace restore` copied.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Copied {
    /// Pages.
    pub pages: u64,
    /// Bytes of the page file written.
    pub page_file_bytes: u64,
    /// Bytes of log.
    pub log_bytes: u64,
}

#[cfg(test)]
pub mod tests {
    //! An engine in thirty lines, for the tests of everything written against the traits.

    use std::sync::{Arc, Mutex};

    use super::*;

    type Map = BTreeMap<Vec<u8>, Vec<u8>>;

    /// A table in memory.
    #[derive(Clone, Default)]
    pub struct MemoryStore(pub Arc<Mutex<Map>>);

    /// A database of such tables.
    #[derive(Clone, Default)]
    pub struct MemoryDatabase(Arc<Mutex<BTreeMap<String, MemoryStore>>>);

    struct Body<'a>(&'a mut Map);

    impl Access for Body<'_> {
        fn get(&mut self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
            Ok(self.0.get(key).cloned())
        }
        fn put(&mut self, key: &[u8], value: &[u8]) -> Outcome {
            self.0.insert(key.to_vec(), value.to_vec());
            Ok(())
        }
    }

    impl Store for MemoryStore {
        fn get(&self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
            Ok(self.0.lock().unwrap().get(key).cloned())
        }
        fn put(&self, key: &[u8], value: &[u8]) -> Outcome {
            self.0.lock().unwrap().insert(key.to_vec(), value.to_vec());
            Ok(())
        }
        fn delete(&self, key: &[u8]) -> Outcome<bool> {
            Ok(self.0.lock().unwrap().remove(key).is_some())
        }
        fn write(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Outcome {
            self.0.lock().unwrap().extend(entries.iter().cloned());
            Ok(())
        }
        fn transact(&self, body: &mut dyn FnMut(&mut dyn Access) -> Outcome<Ending>) -> Outcome<u64> {
            let mut map = self.0.lock().unwrap();
            let mut copy = map.clone();
            if body(&mut Body(&mut copy))? == Ending::Commit {
                *map = copy;
            }
            Ok(0)
        }
        fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Outcome {
            for (key, value) in self.0.lock().unwrap().range(from.to_vec()..) {
                if visit(key, value).is_break() {
                    break;
                }
            }
            Ok(())
        }
        fn counters(&self) -> Counters {
            Counters { budget_bytes: 1 << 30, stalls: vec![("log".into(), 2)], ..Counters::default() }
        }
    }

    impl Database for MemoryDatabase {
        fn table(&self, name: &str, create: bool) -> Outcome<Box<dyn Store>> {
            let mut tables = self.0.lock().unwrap();
            if !create && !tables.contains_key(name) {
                return Err(terrace::Error::TableNotFound(name.to_owned()).into());
            }
            Ok(Box::new(tables.entry(name.to_owned()).or_default().clone()))
        }
        fn drop_table(&self, name: &str) -> Outcome {
            self.0.lock().unwrap().remove(name);
            Ok(())
        }
        fn stat(&self) -> Outcome<Stat> {
            Ok(Stat { format: 1, ..Stat::default() })
        }
        fn verify(&self) -> Outcome<Verification> {
            Ok(Verification::default())
        }
        fn close(self: Box<Self>) -> Outcome {
            Ok(())
        }
    }

    impl Opener for MemoryDatabase {
        fn open(&self, _: &Settings) -> Outcome<Box<dyn Database>> {
            Ok(Box::new(self.clone()))
        }
    }

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
}
