//! The command line: every command, flag and default in one place.
//!
//! The flags about memory and files are the same for every command that opens a database ([`TierArgs`]). Parsing is
//! clap's; what a flag means is turned into plain numbers here, so that no command sees text. A flag given twice
//! counts as given last, which is what lets a configuration file come first (see `config`).

mod flags;
mod reproduce;
mod simulate;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use terrace::migration::{Choice, CleanVictims};
use terrace::{Backend, Cache, CacheTrust, Error, Middle, Migrate, NodeSet, RecordCache, Replacement};

pub use flags::{OF_MIDDLE, is_middle_in_environment};
pub use reproduce::ReproduceArgs;
pub use simulate::{Policies, Shard, SimulateArgs};

use crate::cost::Shape;
use crate::peers;
use crate::store::{Compression, Durability, Settings};
use crate::units;
use crate::workload::rate::Rate;
use crate::workload::ycsb::{Distribution, Mix};

/// An embedded, transactional key-value engine for data larger than memory.
#[derive(Parser, Debug)]
#[command(name = "terrace", version, args_override_self = true, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// The two-minute tour on real input: load, serve, crash, recover, verify, and an HTML report
    Demo(DemoArgs),
    /// Measure
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Read records from a CSV or JSON-lines file into a table
    Load(LoadArgs),
    /// Write a table to standard output, in a form that `load` reads back
    Dump(DumpArgs),
    /// Print the value of one key
    Get(GetArgs),
    /// Set one key
    Put(PutArgs),
    /// Remove one key
    Delete(DeleteArgs),
    /// Print the entries of a table in key order
    Scan(ScanArgs),
    /// Show what a database holds and how much room it takes
    Stat(StatArgs),
    /// Check every page and entry of a database, or of a backup; exit code 3 when something is damaged
    Verify(DatabaseArgs),
    /// Copy a database to a directory that is empty or does not exist
    Backup(BackupArgs),
    /// Make a database of a backup, open it and check all of it
    Restore(RestoreArgs),
    /// Save what is whole in a damaged database into a new one; exit code 3 when something is lost
    Repair(RepairArgs),
    /// Make the page file of a database as short as what is in it allows
    Compact(DatabaseArgs),
    /// Say what policies of a block cache would have done with a trace
    Simulate(Box<SimulateArgs>),
    /// Hold the papers' claims against what is measured here: table, verdict, figures
    Reproduce(ReproduceArgs),
    /// Show what this machine has: NUMA nodes with measured speed, DAX devices, the disk
    Devices(DevicesArgs),
}

/// What can be measured.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// The Yahoo! Cloud Serving Benchmark and its kin, with values verified on every read
    Ycsb(Box<YcsbArgs>),
    /// One thread's reads of keys that are not in memory: one by one, many at a time, and what the disk gains by that
    GetMany(Box<GetManyArgs>),
    /// Reads of random pages under guards, beside raw reads of the disk
    Pages(PagesArgs),
    /// The sum of a paged column, beside a plain array or sequential reads of the disk
    Column(StructureArgs),
}

/// Output flags, the same for every command.
#[derive(Args, Clone, Debug, Default)]
pub struct OutputArgs {
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// A TOML file with any of this command's flags; flags on the command line win
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Tier flags, the same for every command that opens a database.
#[derive(Args, Clone, Debug)]
pub struct TierArgs {
    /// Memory the engine may use, everything included, such as 64MiB
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub dram: Option<u64>,
    /// Where the bytes of pages are: frames or mapped; frames unless the variable TERRACE_BACKEND says otherwise
    #[arg(long, value_name = "NAME")]
    pub backend: Option<Backend>,
    /// Which pages leave memory first: mark, or fifo-paper and clock-paper to compare with
    #[arg(long, value_name = "NAME")]
    pub replacement: Option<Replacement>,
    /// Memory between DRAM and the store, such as numa:1,1GiB or simulated:optane,1GiB; none unless the variable TERRACE_MIDDLE says otherwise
    #[arg(long, value_name = "KIND,SIZE")]
    pub middle: Option<Middle>,
    /// Keeps blocks of the page file on a faster device, such as file:/mnt/nvme/cache,8GiB (a file, or a directory to make one in) or
    /// simulated:optane,1GiB; commands that only read the database go past it
    #[arg(long, value_name = "KIND,SIZE")]
    pub cache: Option<Cache>,
    /// Which blocks may come into the cache: always, or admission policies such as obp, small-bypass+obp or probability:0.1@reads [default: always]
    #[arg(long, value_name = "NAME", requires = "cache", value_parser = cache_admission)]
    pub cache_admission: Option<String>,
    /// Which blocks leave the cache first: sieve, lru, lfru, arc, w-tinylfu, heuristicdb and others of `simulate`, or nvcache, which is
    /// lfru behind small-bypass and obp [default: sieve]
    #[arg(long, value_name = "NAME", requires = "cache", value_parser = cache_eviction)]
    pub cache_eviction: Option<String>,
    /// Bytes a day that may be written to the cache's device, for its endurance, such as 50GiB; by default as many as come
    #[arg(long, value_name = "SIZE", requires = "cache", value_parser = units::size)]
    pub cache_write_budget: Option<u64>,
    /// How much of the cache is believed after a kill: written, all of it, unless the machine was switched on anew; synced, what was
    /// synced, for devices that may lose writes by themselves, as network disks do; auto, synced where a file system is not known to be local
    #[arg(long, value_name = "NAME", requires = "cache", default_value_t)]
    pub cache_trust: CacheTrust,
    /// How pages move between DRAM, the middle tier and the store: adaptive, eager, lazy, hymem, lazy-cxl, or four probabilities [default: adaptive]
    #[arg(long, value_name = "NAME|DR,DW,NR,NW")]
    pub policy: Option<Choice>,
    /// Pages that a queue remembers which decides in place of NW; half as many as the middle tier has frames with hymem, else none
    #[arg(long, value_name = "PAGES")]
    pub admission_queue: Option<u64>,
    /// What is done with pages that leave DRAM and need not be written: drop, offer or always; by default as the policy's paper has it
    #[arg(long, value_name = "NAME")]
    pub clean_victims: Option<CleanVictims>,
    /// NUMA nodes for frames in DRAM, in turn, such as 0 or 0,2; by default where the system puts them
    #[arg(long, value_name = "NODES")]
    pub dram_nodes: Option<NodeSet>,
    /// How memory goes from the nodes of one tier to those of the other, with the back end mapped and --middle numa: batch (default), mbind or copy
    #[arg(long, value_name = "NAME")]
    pub migrate: Option<Migrate>,
    /// Page size of a database, and of tables, created here: a power of two from 4KiB to 64KiB
    #[arg(long, value_name = "SIZE", value_parser = page_size)]
    pub page_size: Option<u64>,
    /// Largest page that a long value of tables created here may have: a power of two from the page size to 2MiB
    #[arg(long, value_name = "SIZE", value_parser = value_page_size)]
    pub value_page_size: Option<u64>,
    /// How pages of tables created here are written
    #[arg(long, value_enum, default_value_t)]
    pub compression: Compression,
    /// How long the log may grow before pages are written out
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub log_max: Option<u64>,
    /// Share of the frames that records without their pages get, in a hundred; by default as many as make misses fewest
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=i64::from(RecordCache::PERCENT_MAX)))]
    pub record_cache: Option<u8>,
    /// Whether a commit waits for the disk
    #[arg(long, value_enum, default_value_t)]
    pub durability: Durability,
    /// Seed of every random choice
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl TierArgs {
    /// The cache that the flags describe.
    fn cache(&self) -> Option<Cache> {
        let eviction = self.cache_eviction.as_deref().unwrap_or("sieve");
        let admission = self.cache_admission.as_ref().map(|name| format!("{name}+")).unwrap_or_default();
        let cache = self.cache.clone()?;
        let cache = cache.policy(&format!("{admission}{eviction}")).expect("both names were checked");
        let cache = cache.trust(self.cache_trust);
        Some(match self.cache_write_budget {
            Some(bytes_day) => cache.write_budget(bytes_day),
            None => cache,
        })
    }

    /// The settings these flags come to, for a database in `store`.
    pub fn settings(&self, store: Option<PathBuf>) -> Settings {
        Settings {
            store,
            dram_bytes: self.dram,
            backend: self.backend,
            replacement: self.replacement,
            middle: self.middle.clone(),
            cache: self.cache(),
            policy: self.policy,
            admission_queue_pages: self.admission_queue,
            clean_victims: self.clean_victims,
            dram_nodes: self.dram_nodes.clone(),
            migrate: self.migrate,
            page_bytes: self.page_size,
            value_page_bytes_max: self.value_page_size,
            compression: self.compression,
            log_bytes_max: self.log_max,
            record_cache_percent: self.record_cache,
            durability: self.durability,
            seed: self.seed,
            create: false,
            read_only: false,
            scratch: None,
            threads: 0,
            records: 0,
            value_bytes: 0,
        }
    }
}

/// Admission policies of a cache, one or more with a plus between.
fn cache_admission(text: &str) -> Result<String, String> {
    policy_of(&format!("{text}+sieve")).map(|()| text.to_owned())
}

/// The eviction policy of a cache.
fn cache_eviction(text: &str) -> Result<String, String> {
    match text.contains('+') {
        true => {
            Err("what is before the plus is an admission policy; give it with --cache-admission".to_owned())
        }
        false => policy_of(text).map(|()| text.to_owned()),
    }
}

fn policy_of(name: &str) -> Result<(), String> {
    let cache: Cache = "simulated:dram,1MiB".parse()?;
    cache.policy(name).map(drop).map_err(|error| match error {
        // The flag that is wrong is said by whoever asks.
        Error::Config(what) => what,
        error => error.to_string(),
    })
}

/// A database and how to open it.
#[derive(Args, Clone, Debug)]
pub struct DatabaseArgs {
    /// The database directory
    #[arg(value_name = "DB")]
    pub database: PathBuf,
    #[command(flatten)]
    pub tiers: TierArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl DatabaseArgs {
    /// Settings to change a database that exists.
    pub fn write(&self) -> Settings {
        self.tiers.settings(Some(self.database.clone()))
    }

    /// Settings to change a database, created when it is missing.
    pub fn create(&self) -> Settings {
        Settings { create: true, ..self.write() }
    }

    /// Settings to look at a database.
    pub fn read(&self) -> Settings {
        Settings { read_only: true, ..self.write() }
    }
}

/// `terrace stat`
#[derive(Args, Clone, Debug)]
pub struct StatArgs {
    #[command(flatten)]
    pub of: DatabaseArgs,
    /// Print everything that is counted, as text for Prometheus
    #[arg(long, conflicts_with = "json")]
    pub prometheus: bool,
}

/// `terrace demo`
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// Where the database goes [default: a directory for temporary files, removed afterwards]
    #[arg(long, value_name = "PATH")]
    pub store: Option<PathBuf>,
    /// Directory whose files are loaded as records [default: what this machine has]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// How much data to load
    #[arg(long, value_name = "SIZE", default_value = "128MiB", value_parser = units::size)]
    pub data_size: u64,
    /// Where the HTML report goes
    #[arg(long, value_name = "FILE", default_value = "terrace-demo.html")]
    pub report: PathBuf,
    /// Threads of the served workload
    #[arg(long, default_value_t = 2, value_parser = threads())]
    pub threads: u16,
    #[command(flatten)]
    pub tiers: TierArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Runs as the process that gets killed; commits are announced on standard output
    #[arg(long, hide = true)]
    pub victim: bool,
}

/// `terrace bench ycsb`
#[derive(Args, Clone, Debug)]
pub struct YcsbArgs {
    /// a b c d e f ro ba wh scan, cxl-update cxl-read cxl-scan, or rw:PCT with PCT percent of reads
    #[arg(long, default_value = "a", value_parser = str::parse::<Mix>)]
    pub workload: Mix,
    /// Records loaded before the measurement
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub records: u64,
    /// Bytes of each value [default: 1000, 64 with cxl-*]
    #[arg(long, value_parser = value_size)]
    pub value_size: Option<usize>,
    /// zipfian:THETA with 0 < THETA < 2, or uniform
    #[arg(long, default_value = "zipfian:0.99", value_parser = str::parse::<Distribution>)]
    pub distribution: Distribution,
    /// Threads that send requests
    #[arg(long, default_value_t = 1, value_parser = threads())]
    pub threads: u16,
    /// How long to measure, such as 10 or 500ms [default: 10]
    #[arg(long, value_parser = units::duration, overrides_with = "operations")]
    pub seconds: Option<Duration>,
    /// Measure this many operations instead of a time
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub operations: Option<u64>,
    /// How long to run before the measurement
    #[arg(long, default_value = "0", value_parser = units::duration)]
    pub warmup: Duration,
    /// Open loop: N requests of kind OP a second, or all=N of all kinds, whether or not the last ones were answered; latencies
    /// count from when a request was due
    #[arg(long, value_name = "OP=N", value_parser = str::parse::<Rate>)]
    pub rate: Option<Rate>,
    /// Goes on after --seconds until the log was filled N times, but no longer than ten times as long
    #[arg(long, value_name = "N", conflicts_with_all = ["operations", "compare"],
          value_parser = clap::value_parser!(u32).range(1..))]
    pub log_cycles: Option<u32>,
    /// The database directory; absent for main memory only
    #[arg(long, value_name = "PATH")]
    pub store: Option<PathBuf>,
    /// The engine to measure: terrace, redb, fjall, lmdb, sqlite or btreemap, in some builds rocksdb or raw-frames
    #[arg(long, value_name = "NAME", default_value = peers::TERRACE, value_parser = peers::parse)]
    pub engine: String,
    /// Measure these engines against each other, each in a process of its own and all within the same memory;
    /// their databases are made below --store and removed
    #[arg(long, value_name = "ENGINE,...", value_delimiter = ',', value_parser = peers::parse, conflicts_with = "engine")]
    pub compare: Vec<String>,
    /// Times each engine of a comparison is measured; every other round in reverse order
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    /// Measures the hierarchies that cost the same, by the profiles' prices, one after the other: dram-store (local-store), middle-store
    /// (far-store) and three-tiers. The price is that of BASE, whose sizes --dram and --middle say, as far as it has them; what is left
    /// over is the size of three-tiers
    #[arg(long, value_name = "BASE", value_parser = str::parse::<Shape>, requires = "middle", conflicts_with_all = ["compare", "engine"])]
    pub equal_cost: Option<Shape>,
    /// An HTML report, with charts, goes here as well
    #[arg(long, value_name = "FILE", conflicts_with = "compare")]
    pub report: Option<PathBuf>,
    /// Compare without holding each process to --dram and 32 MiB, page cache included
    #[arg(long)]
    pub unconfined: bool,
    #[command(flatten)]
    pub tiers: TierArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Runs as one process of a comparison: where to put files that are not to be stored
    #[arg(long, value_name = "PATH", hide = true)]
    pub scratch: Option<PathBuf>,
    /// Runs as one process of a comparison: the control group to run in
    #[arg(long, value_name = "PATH", hide = true)]
    pub group: Option<PathBuf>,
}

impl YcsbArgs {
    /// Bytes of each value.
    pub fn value_bytes(&self) -> usize {
        self.value_size.unwrap_or(self.workload.value_bytes())
    }
}

/// `terrace bench get-many`
#[derive(Args, Clone, Debug)]
pub struct GetManyArgs {
    /// Records loaded before the measurement; their bytes should be many times --dram
    #[arg(long, default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub records: u64,
    /// Bytes of each value
    #[arg(long, default_value = "1000", value_parser = value_size)]
    pub value_size: usize,
    /// Keys read at a time
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub keys: u16,
    /// Keys that each way reads in a round
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..))]
    pub round_keys: u32,
    /// Times each way is measured; every other round in reverse order
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub rounds: u16,
    /// The database directory
    #[arg(long, value_name = "PATH")]
    pub store: PathBuf,
    /// Read what an earlier run has loaded there, instead of loading it
    #[arg(long)]
    pub loaded: bool,
    #[command(flatten)]
    pub tiers: TierArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `terrace bench column`, and what `terrace bench pages` shares with it
#[derive(Args, Clone, Debug)]
pub struct StructureArgs {
    /// Bytes of all pages together
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = units::size)]
    pub data: u64,
    /// Memory for the pages, everything included, such as 64MiB
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub dram: Option<u64>,
    /// Where the bytes of pages are: frames or mapped; frames unless the variable TERRACE_BACKEND says otherwise
    #[arg(long, value_name = "NAME")]
    pub backend: Option<Backend>,
    /// Page size: a power of two from 4KiB to 2MiB [default: pages 4KiB, column 64KiB]
    #[arg(long, value_name = "SIZE", value_parser = value_page_size)]
    pub page_size: Option<u64>,
    /// Threads that read
    #[arg(long, default_value_t = 2, value_parser = threads())]
    pub threads: u16,
    /// Times each thing is measured; every other round in reverse order
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub rounds: u16,
    /// The directory where the file of the pages is made, and removed afterwards
    #[arg(long, value_name = "PATH")]
    pub store: PathBuf,
    /// Seed of every random choice
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `terrace bench pages`
#[derive(Args, Clone, Debug)]
pub struct PagesArgs {
    #[command(flatten)]
    pub of: StructureArgs,
    /// How long to measure, all rounds together, such as 10 or 500ms
    #[arg(long, default_value = "10", value_parser = units::duration)]
    pub seconds: Duration,
    /// Share of the cache lines of a page that are looked at, in a hundred
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub touch: u8,
}

/// A table of a database.
#[derive(Args, Clone, Debug)]
pub struct TableArgs {
    #[command(flatten)]
    pub at: DatabaseArgs,
    /// The table
    #[arg(long, value_name = "NAME")]
    pub table: String,
}

/// Forms of records in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Comma-separated values with a header line
    Csv,
    /// One JSON object a line
    Jsonl,
}

/// `terrace load`
#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    #[command(flatten)]
    pub to: TableArgs,
    /// Form of the file
    #[arg(long, value_enum)]
    pub format: Format,
    /// The column, or the member of each object, that is the key [default: csv the first column; jsonl "key",
    /// with the value in "value", as `dump` writes it]
    #[arg(long, value_name = "COLUMN")]
    pub key: Option<String>,
    /// The file, or - for standard input
    pub file: PathBuf,
}

/// Forms `dump` writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DumpFormat {
    /// One JSON object a line: {"key": ..., "value": ...}
    #[default]
    Jsonl,
}

/// `terrace dump`
#[derive(Args, Clone, Debug)]
pub struct DumpArgs {
    #[command(flatten)]
    pub from: TableArgs,
    /// Form of the output
    #[arg(long, value_enum, default_value_t)]
    pub format: DumpFormat,
}

/// `terrace get`
#[derive(Args, Clone, Debug)]
pub struct GetArgs {
    #[command(flatten)]
    pub from: TableArgs,
    /// Write the value's bytes as they are, with no newline
    #[arg(long)]
    pub raw: bool,
    /// The key
    pub key: OsString,
}

/// `terrace put`
#[derive(Args, Clone, Debug)]
pub struct PutArgs {
    #[command(flatten)]
    pub to: TableArgs,
    /// The key
    pub key: OsString,
    /// The value, or - to read it from standard input
    pub value: OsString,
}

/// `terrace delete`
#[derive(Args, Clone, Debug)]
pub struct DeleteArgs {
    #[command(flatten)]
    pub from: TableArgs,
    /// The key
    pub key: OsString,
}

/// `terrace scan`
#[derive(Args, Clone, Debug)]
pub struct ScanArgs {
    #[command(flatten)]
    pub of: TableArgs,
    /// First key shown
    #[arg(long, value_name = "KEY")]
    pub from: Option<OsString>,
    /// Key to stop before
    #[arg(long, value_name = "KEY")]
    pub to: Option<OsString>,
    /// Only keys that begin with this
    #[arg(long)]
    pub prefix: Option<OsString>,
    /// At most this many entries
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
}

/// `terrace backup`
#[derive(Args, Clone, Debug)]
pub struct BackupArgs {
    #[command(flatten)]
    pub from: DatabaseArgs,
    /// The directory of the backup, empty or not there yet
    #[arg(value_name = "DEST")]
    pub destination: PathBuf,
}

/// `terrace restore`
#[derive(Args, Clone, Debug)]
pub struct RestoreArgs {
    /// The directory of the backup
    #[arg(value_name = "SRC")]
    pub source: PathBuf,
    #[command(flatten)]
    pub to: DatabaseArgs,
}

/// `terrace repair`
#[derive(Args, Clone, Debug)]
pub struct RepairArgs {
    #[command(flatten)]
    pub from: DatabaseArgs,
    /// The directory of the new database, empty or not there yet
    #[arg(value_name = "DEST")]
    pub destination: PathBuf,
}

/// `terrace devices`
#[derive(Args, Clone, Debug)]
pub struct DevicesArgs {
    /// Directory whose disk is measured
    #[arg(long, value_name = "PATH", default_value = ".")]
    pub store: PathBuf,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// The most threads a workload may ask for.
const THREADS_MAX: i64 = 1024;

fn threads() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=THREADS_MAX)
}

fn page_size(text: &str) -> Result<u64, String> {
    match units::size(text)? {
        bytes if bytes.is_power_of_two() && (4096..=65536).contains(&bytes) => Ok(bytes),
        bytes => Err(format!("{bytes} bytes is no page size; use 4KiB, 8KiB, 16KiB, 32KiB or 64KiB")),
    }
}

fn value_page_size(text: &str) -> Result<u64, String> {
    match units::size(text)? {
        bytes if bytes.is_power_of_two() && (4096..=2 << 20).contains(&bytes) => Ok(bytes),
        bytes => {
            Err(format!("{bytes} bytes is no page size for values; use a power of two from 4KiB to 2MiB"))
        }
    }
}

fn value_size(text: &str) -> Result<usize, String> {
    let bytes = units::size(text)?;
    match usize::try_from(bytes) {
        Ok(bytes) if bytes <= terrace::MAX_VALUE_BYTES => Ok(bytes),
        _ => Err(format!("{bytes} bytes is too large, at most {} are allowed", terrace::MAX_VALUE_BYTES)),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn ycsb(flags: &str) -> Result<YcsbArgs, clap::Error> {
        let line = format!("terrace bench ycsb {flags}");
        match Cli::try_parse_from(line.split_whitespace())?.command {
            Command::Bench(BenchCommand::Ycsb(args)) => Ok(*args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn bench_flags_of_the_interface() {
        let args = ycsb(
            "--workload rw:80 --records 5 --value-size 100 --distribution zipfian:0.3 --threads 2 --seconds 1500ms \
             --warmup 1 --seed 9 --dram 64MiB --store /x --backend mapped --replacement fifo-paper \
             --cache file:/fast/cache,2GiB --cache-admission small-bypass+obp --cache-eviction lfru \
             --middle simulated:optane,256MiB --policy .1,.1,.5,1 --admission-queue 70 --clean-victims always --dram-nodes 0,2-3 --migrate copy \
             --page-size 16KiB --value-page-size 1MiB --compression lz4 --log-max 1GiB \
             --record-cache 40 --durability buffered --json",
        )
        .unwrap();
        assert_eq!((args.records, args.value_bytes(), args.threads), (5, 100, 2));
        assert_eq!(args.seconds, Some(Duration::from_millis(1500)));
        assert_eq!(args.warmup, Duration::from_secs(1));
        let settings = args.tiers.settings(args.store.clone());
        assert_eq!(settings.dram_bytes, Some(64 << 20));
        assert_eq!(settings.backend, Some(Backend::Mapped));
        assert_eq!(settings.replacement, Some(Replacement::FifoPaper));
        assert_eq!(settings.middle.map(|middle| middle.bytes()), Some(256 << 20));
        let cache = settings.cache.unwrap();
        assert_eq!((cache.bytes(), cache.policy_name().as_str()), (2 << 30, "small-bypass+obp+lfru"));
        assert_eq!(cache.kind().to_string(), "file:/fast/cache");
        assert_eq!(settings.policy.map(|choice| choice.to_string()), Some("0.1,0.1,0.5,1".to_owned()));
        assert_eq!(settings.admission_queue_pages, Some(70));
        assert_eq!(settings.clean_victims, Some(CleanVictims::Always));
        assert_eq!(settings.dram_nodes.map(|nodes| nodes.to_string()), Some("0,2,3".to_owned()));
        assert_eq!(settings.migrate, Some(Migrate::Copy));
        assert_eq!((settings.page_bytes, settings.compression), (Some(16384), Compression::Lz4));
        assert_eq!(settings.value_page_bytes_max, Some(1 << 20));
        assert_eq!((settings.log_bytes_max, settings.record_cache_percent), (Some(1 << 30), Some(40)));
        assert_eq!((settings.durability, settings.seed), (Durability::Buffered, 9));
        assert!(args.output.json);
    }

    #[test]
    fn a_cache_has_presets_and_a_write_budget() {
        let cache = |flags: &str| {
            let args = ycsb(&format!("--cache simulated:optane,1GiB {flags}")).unwrap();
            args.tiers.settings(None).cache.unwrap()
        };
        let preset = cache("--cache-eviction nvcache --cache-write-budget 1.5GiB");
        assert_eq!(preset.policy_name(), "nvcache");
        assert_eq!(preset.write_budget_bytes_day(), Some(3 << 29));
        let more = cache("--cache-eviction nvcache --cache-admission probability:.5");
        assert_eq!(more.policy_name(), "probability:.5+nvcache");
        assert_eq!(more.write_budget_bytes_day(), None);
    }

    #[test]
    fn the_last_of_seconds_and_operations_counts() {
        let args = ycsb("--operations 7 --seconds 3").unwrap();
        assert_eq!((args.seconds, args.operations), (Some(Duration::from_secs(3)), None));
        let args = ycsb("--seconds 3 --operations 7").unwrap();
        assert_eq!((args.seconds, args.operations), (None, Some(7)));
        assert_eq!(ycsb("--threads 1 --threads 2").unwrap().threads, 2);
    }

    #[test]
    fn nonsense_is_refused_by_flag() {
        for (flags, named) in [
            ("--dram 64MB", "--dram"),
            ("--record-cache 81", "--record-cache"),
            ("--backend mmap", "--backend"),
            ("--replacement lru", "--replacement"),
            ("--middle optane,1GiB", "--middle"),
            ("--middle simulated:optane", "--middle"),
            ("--cache file:/fast/cache", "--cache"),
            ("--cache numa:1,1GiB", "--cache"),
            ("--cache simulated:dram,1MiB --cache-eviction lruu", "--cache-eviction"),
            ("--cache simulated:dram,1MiB --cache-eviction belady", "--cache-eviction"),
            ("--cache simulated:dram,1MiB --cache-eviction opencas", "--cache-eviction"),
            ("--cache simulated:dram,1MiB --cache-eviction memory-mode", "--cache-eviction"),
            ("--cache simulated:dram,1MiB --cache-eviction obp+lru", "--cache-admission"),
            ("--cache simulated:dram,1MiB --cache-admission lru", "--cache-admission"),
            ("--cache simulated:dram,1MiB --cache-write-budget much", "--cache-write-budget"),
            ("--cache-eviction lru", "--cache"),
            ("--cache-write-budget 1GiB", "--cache"),
            ("--policy 1,1,2,1", "--policy"),
            ("--clean-victims keep", "--clean-victims"),
            ("--dram-nodes far", "--dram-nodes"),
            ("--migrate slowly", "--migrate"),
            ("--page-size 5KiB", "--page-size"),
            ("--page-size 128KiB", "--page-size"),
            ("--value-page-size 4MiB", "--value-page-size"),
            ("--compression zip", "--compression"),
            ("--workload z", "--workload"),
            ("--distribution zipfian:2", "--distribution"),
            ("--records 0", "--records"),
            ("--threads 0", "--threads"),
            ("--value-size 2GiB", "--value-size"),
            ("--workload rw:101", "--workload"),
            ("--rate update", "--rate"),
            ("--nonsense", "--nonsense"),
        ] {
            let error = ycsb(flags).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(named), "{flags}: {error}");
            assert!(!error.to_string().contains("bad setting"), "{flags}: {error}");
        }
    }
}
