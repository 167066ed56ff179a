//! Flags that several commands share, grouped by what commands need, and the output format.
//!
//! Clap parses here. Commands see numbers and library types, never text.

mod flags;
mod migration;

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use terrace::{
    Backend, Builder, Cache, CacheTrust, Compression, Concurrency, Db, Durability, Error, LogMemory, Middle,
    NodeSet, PageTableKind, RecordCache, Replacement, TableOptions,
};

pub use flags::{OF_MIDDLE, is_middle_in_environment};
pub use migration::MigrationArgs;

use crate::units;

/// Output flags of most commands.
#[derive(Args, Clone, Debug, Default)]
pub struct OutputArgs {
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// A TOML file with any of this command's flags; the command line takes precedence
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Memory of a database: flags of every command that opens one.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct MemoryArgs {
    /// Total memory budget of the engine, such as 64MiB
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub dram: Option<u64>,
    /// How pages are kept in memory: frames or mapped [default: frames, or $TERRACE_BACKEND]
    #[arg(long, value_name = "NAME")]
    pub backend: Option<Backend>,
    /// NUMA nodes for DRAM frames, used round-robin, such as 0 or 0,2 [default: chosen by the
    /// kernel]
    #[arg(long, value_name = "NODES")]
    pub dram_nodes: Option<NodeSet>,
}

/// The middle tier.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct MiddleArgs {
    /// Memory between DRAM and the store, such as numa:1,1GiB or simulated:optane,1GiB; with
    /// shm:FILE,1GiB or pmem:FILE,1GiB its pages stay when the process ends [default: none, or
    /// $TERRACE_MIDDLE]
    #[arg(long, value_name = "KIND,SIZE")]
    pub middle: Option<Middle>,
}

/// Persistent memory for the log: flag of commands that change a database.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct LogMemoryArgs {
    /// Persistent memory that makes commits durable before the log's file has them, needed until
    /// the database is closed: pmem:FILE, or shm:FILE, which outlives the process but no power cut,
    /// each with ,SIZE or without, or simulated:PROFILE,SIZE
    #[arg(long, value_name = "KIND[,SIZE]")]
    pub log_memory: Option<LogMemory>,
}

/// The block cache: flags of commands that change a database.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct CacheArgs {
    /// Block cache for the page file on a faster device, such as file:/mnt/nvme/cache,8GiB (a file,
    /// or a directory to create one in) or simulated:optane,1GiB
    #[arg(long, value_name = "KIND,SIZE")]
    pub cache: Option<Cache>,
    /// Admission to the cache: always, or policies such as obp, small-bypass+obp or
    /// probability:0.1@reads [default: always]
    #[arg(long, value_name = "NAME", requires = "cache", value_parser = cache_admission)]
    pub cache_admission: Option<String>,
    /// Eviction from the cache: sieve, lru, lfru, arc, w-tinylfu, heuristicdb, other policies of
    /// `simulate`, or nvcache (lfru behind small-bypass and obp) [default: sieve]
    #[arg(long, value_name = "NAME", requires = "cache", value_parser = cache_eviction)]
    pub cache_eviction: Option<String>,
    /// Bytes per day that may be written to the cache device, for its endurance, such as 50GiB
    /// [default: unlimited]
    #[arg(long, value_name = "SIZE", requires = "cache", value_parser = units::size)]
    pub cache_write_budget: Option<u64>,
    /// Cached blocks to trust after a kill: written (all, unless the machine rebooted), synced
    /// (only synced blocks, for devices that may lose writes, such as network disks), auto (synced
    /// unless the file system is known to be local)
    #[arg(long, value_name = "NAME", requires = "cache", default_value_t)]
    pub cache_trust: CacheTrust,
}

/// Layout of databases and tables: flags of commands that create them.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct LayoutArgs {
    /// Page size of databases and tables created here: a power of two from 4KiB to 64KiB
    #[arg(long, value_name = "SIZE", value_parser = page_size)]
    pub page_size: Option<u64>,
    /// Largest page for long values of tables created here: a power of two from the page size to
    /// 2MiB
    #[arg(long, value_name = "SIZE", value_parser = value_page_size)]
    pub value_page_size: Option<u64>,
    /// Compression of tables created here
    #[arg(long, default_value = "none", value_parser = compressions())]
    pub compression: Compression,
    /// Log size of databases created here, at which pages are written out
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub log_max: Option<u64>,
}

impl LayoutArgs {
    /// The options of tables created with these flags.
    pub fn table_options(&self) -> TableOptions {
        let options = self.page_size.into_iter().fold(TableOptions::new(), TableOptions::page_size);
        self.value_page_size.into_iter().fold(options, TableOptions::value_page_size_max)
    }
}

/// Commits.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct CommitArgs {
    /// Whether a commit waits for the disk
    #[arg(long, default_value = "sync", value_parser = durabilities())]
    pub durability: Durability,
}

/// All flags of a database, for commands that measure one. Default: none set, seed 0.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct TierArgs {
    /// Memory.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// The middle tier.
    #[command(flatten)]
    pub middle: MiddleArgs,
    /// Which pages move between the tiers.
    #[command(flatten)]
    pub migration: MigrationArgs,
    /// The block cache.
    #[command(flatten)]
    pub cache: CacheArgs,
    /// Persistent memory for the log.
    #[command(flatten)]
    pub log_memory: LogMemoryArgs,
    /// Layout of new databases and tables.
    #[command(flatten)]
    pub layout: LayoutArgs,
    /// Commits.
    #[command(flatten)]
    pub commits: CommitArgs,
    /// Page replacement: mark; baselines fifo-paper, clock-paper
    #[arg(long, value_name = "NAME")]
    pub replacement: Option<Replacement>,
    /// Page table: array; baseline hash [default: array, or $TERRACE_PAGE_TABLE]
    // Other commands have a table of the user's by this name.
    #[arg(long, alias = "table", value_name = "NAME")]
    pub page_table: Option<PageTableKind>,
    /// Keep beside inner nodes where children are in the hash table, for point reads
    #[arg(long, requires = "page_table")]
    pub swizzle: bool,
    /// Protocol of transactions: occ or mvto [default: occ, or $TERRACE_CONCURRENCY]
    #[arg(long, value_name = "NAME")]
    pub concurrency: Option<Concurrency>,
    /// Percent of frames for the record cache [default: tuned automatically]
    #[arg(long, value_name = "PERCENT", value_parser = units::whole::<u8>(0..=u64::from(RecordCache::PERCENT_MAX)))]
    pub record_cache: Option<u8>,
    /// Seed for all random choices
    #[arg(long, default_value_t = 1, value_parser = units::whole::<u64>(0..=u64::MAX))]
    pub seed: u64,
}

impl CacheArgs {
    /// The cache described by the flags.
    pub fn block_cache(&self) -> Option<Cache> {
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
}

impl TierArgs {
    /// A builder with the flags applied.
    ///
    /// The seed is for workloads only. Databases stay unseeded: their random identity keeps files
    /// of two databases from being mixed up.
    ///
    /// The environment supplies a missing back end or middle tier ([`Builder::defaults_from`]).
    ///
    /// # Errors
    /// [`terrace::Error::Config`] if an environment variable is invalid.
    pub fn builder(&self) -> terrace::Result<Builder> {
        let builder = Db::builder().defaults_from(|name| std::env::var(name).ok())?;
        let TierArgs { memory, layout, .. } = self;
        let builder = self.middle_tier(builder).durability(self.commits.durability);
        let builder = builder.compression(layout.compression);
        let builder = with(builder, memory.dram, Builder::dram);
        let builder =
            with(builder, layout.page_size, |builder, bytes| builder.page_size(bytes).page_size_max(bytes));
        let builder = with(builder, layout.value_page_size, Builder::value_page_size_max);
        let builder = with(builder, memory.backend, Builder::backend);
        let builder = with(builder, self.replacement, Builder::replacement);
        let builder = with(builder, self.page_table, Builder::page_table);
        let builder = with(builder, self.swizzle.then_some(true), Builder::swizzle);
        let builder = with(builder, self.concurrency, Builder::concurrency);
        let builder = with(builder, self.cache.block_cache(), Builder::cache);
        let builder = with(builder, memory.dram_nodes.clone(), Builder::dram_nodes);
        let builder = with(builder, layout.log_max, Builder::log_max);
        let builder = with(builder, self.log_memory.log_memory.clone(), Builder::log_memory);
        Ok(with(builder, self.record_cache, |builder, percent| match percent {
            0 => builder.record_cache(RecordCache::Off),
            percent => builder.record_cache(RecordCache::Percent(percent)),
        }))
    }

    fn middle_tier(&self, builder: Builder) -> Builder {
        let builder = builder.migration(self.migration.into());
        let builder = with(builder, self.middle.middle.clone(), Builder::middle);
        let builder = with(builder, self.migration.migrate, Builder::migrate);
        let builder = with(builder, self.migration.lines, Builder::lines);
        with(builder, self.migration.mini_pages.then_some(true), Builder::mini_pages)
    }
}

/// Applies a setting if given.
fn with<T>(builder: Builder, given: Option<T>, set: impl FnOnce(Builder, T) -> Builder) -> Builder {
    match given {
        Some(value) => set(builder, value),
        None => builder,
    }
}

/// A durability's name on the command line.
pub fn durability_name(durability: Durability) -> &'static str {
    match durability {
        Durability::Sync => "sync",
        Durability::Buffered => "buffered",
    }
}

fn durabilities() -> impl TypedValueParser<Value = Durability> {
    let sync = PossibleValue::new("sync").help("A commit returns once it would survive a power cut");
    let buffered = PossibleValue::new("buffered")
        .help("A commit returns at once; a crash may lose the last commits, but never part of one");
    PossibleValuesParser::new([sync, buffered]).map(|name| match name.as_str() {
        "buffered" => Durability::Buffered,
        _ => Durability::Sync,
    })
}

fn compressions() -> impl TypedValueParser<Value = Compression> {
    let none = PossibleValue::new("none").help("Uncompressed");
    let lz4 = PossibleValue::new("lz4").help("LZ4, if it saves 4 KiB; needs pages larger than 4 KiB");
    PossibleValuesParser::new([none, lz4]).map(|name| match name.as_str() {
        "lz4" => Compression::Lz4,
        _ => Compression::None,
    })
}

/// Parses admission policies joined by plus signs.
fn cache_admission(text: &str) -> Result<String, String> {
    policy_of(&format!("{text}+sieve")).map(|()| text.to_owned())
}

/// Parses the cache's eviction policy.
fn cache_eviction(text: &str) -> Result<String, String> {
    match text.contains('+') {
        true => {
            Err("the part before the plus is an admission policy; give it with --cache-admission".to_owned())
        }
        false => policy_of(text).map(|()| text.to_owned()),
    }
}

fn policy_of(name: &str) -> Result<(), String> {
    let cache: Cache = "simulated:dram,1MiB".parse()?;
    cache.policy(name).map(drop).map_err(|error| match error {
        // The caller names the offending flag.
        Error::Config(what) => what,
        error => error.to_string(),
    })
}

/// Thread limit of a workload.
const THREADS_MAX: u64 = 1024;

/// Parser for a number of threads.
pub fn threads() -> impl Fn(&str) -> Result<u16, String> + Clone + Send + Sync + 'static {
    units::whole(1..=THREADS_MAX)
}

fn page_size(text: &str) -> Result<u64, String> {
    match units::size(text)? {
        bytes if bytes.is_power_of_two() && (4096..=65536).contains(&bytes) => Ok(bytes),
        bytes => Err(format!("{bytes} bytes is not a page size; use 4KiB, 8KiB, 16KiB, 32KiB or 64KiB")),
    }
}

/// Parser for the page size of long values.
pub fn value_page_size(text: &str) -> Result<u64, String> {
    match units::size(text)? {
        bytes if bytes.is_power_of_two() && (4096..=2 << 20).contains(&bytes) => Ok(bytes),
        bytes => {
            Err(format!("{bytes} bytes is not a page size for values; use a power of two from 4KiB to 2MiB"))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use terrace::Migrate;

    use super::*;

    /// A command with only these flags.
    #[derive(Parser, Debug)]
    #[command(args_override_self = true)]
    pub struct Line {
        #[command(flatten)]
        pub tiers: TierArgs,
        #[command(flatten)]
        output: OutputArgs,
    }

    pub fn line(flags: &str) -> Result<Line, clap::Error> {
        Line::try_parse_from(["line"].into_iter().chain(flags.split_whitespace()))
    }

    #[test]
    fn flags_of_the_interface() {
        let args = line(
            "--seed 9 --dram 64MiB --backend mapped --replacement fifo-paper \
             --cache file:/fast/cache,2GiB --cache-admission small-bypass+obp --cache-eviction lfru \
             --middle simulated:optane,256MiB --policy .1,.1,.5,1 --admission-queue 70 --clean-victims always \
             --dram-nodes 0,2-3 --migrate copy --page-size 16KiB --value-page-size 1MiB --compression lz4 \
             --log-max 1GiB --record-cache 40 --durability buffered --page-table hash --swizzle --concurrency mvto --json",
        )
        .unwrap();
        let tiers = args.tiers;
        assert_eq!(tiers.memory.dram, Some(64 << 20));
        assert_eq!(tiers.memory.backend, Some(Backend::Mapped));
        assert_eq!(tiers.replacement, Some(Replacement::FifoPaper));
        assert_eq!((tiers.page_table, tiers.swizzle), (Some(PageTableKind::Hash), true));
        assert_eq!(tiers.concurrency, Some(Concurrency::Mvto));
        assert_eq!(tiers.middle.middle.as_ref().map(|middle| middle.bytes()), Some(256 << 20));
        let cache = tiers.cache.block_cache().unwrap();
        assert_eq!((cache.bytes(), cache.policy_name().as_str()), (2 << 30, "small-bypass+obp+lfru"));
        assert_eq!(cache.kind().to_string(), "file:/fast/cache");
        let migration =
            ["--policy=0.1,0.1,0.5,1", "--admission-queue=70", "--clean-victims=always", "--migrate=copy"];
        assert_eq!(tiers.migration.flags(), migration);
        assert_eq!(tiers.memory.dram_nodes.as_ref().map(|nodes| nodes.to_string()), Some("0,2,3".to_owned()));
        assert_eq!(tiers.migration.migrate, Some(Migrate::Copy));
        assert_eq!((tiers.layout.page_size, tiers.layout.compression), (Some(16384), Compression::Lz4));
        assert_eq!(tiers.layout.value_page_size, Some(1 << 20));
        assert_eq!((tiers.layout.log_max, tiers.record_cache), (Some(1 << 30), Some(40)));
        assert_eq!((tiers.commits.durability, tiers.seed), (Durability::Buffered, 9));
        assert!(args.output.json);
    }

    #[test]
    fn a_cache_has_presets_and_a_write_budget() {
        let cache = |flags: &str| {
            let args = line(&format!("--cache simulated:optane,1GiB {flags}")).unwrap();
            args.tiers.cache.block_cache().unwrap()
        };
        let preset = cache("--cache-eviction nvcache --cache-write-budget 1.5GiB");
        assert_eq!(preset.policy_name(), "nvcache");
        assert_eq!(preset.write_budget_bytes_day(), Some(3 << 29));
        let more = cache("--cache-eviction nvcache --cache-admission probability:.5");
        assert_eq!(more.policy_name(), "probability:.5+nvcache");
        assert_eq!(more.write_budget_bytes_day(), None);
    }

    #[test]
    fn nonsense_is_refused_by_flag() {
        for (flags, named) in [
            ("--dram 64MB", "--dram"),
            ("--record-cache 81", "--record-cache"),
            ("--backend mmap", "--backend"),
            ("--replacement lru", "--replacement"),
            ("--page-table tree", "--page-table"),
            ("--swizzle", "--page-table"),
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
            ("--nonsense", "--nonsense"),
        ] {
            let error = line(flags).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(named), "{flags}: {error}");
            assert!(!error.to_string().contains("bad setting"), "{flags}: {error}");
        }
    }
}
