//! The command line: every command, flag and default.
//!
//! A command flattens the groups of flags that have an effect on it: memory to read, a cache and
//! commits to change, a layout to create, all ([`TierArgs`]) to measure. The last occurrence of a
//! repeated flag wins, so a configuration file can come first (see `config`).

#[cfg(feature = "mount")]
mod mount;
mod simulate;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use terrace_common::store::Settings;
use terrace_common::tiers::{
    CacheArgs, CommitArgs, LayoutArgs, LogMemoryArgs, MemoryArgs, MiddleArgs, MigrationArgs, OutputArgs,
    TierArgs, threads,
};
use terrace_common::units;
#[cfg(feature = "lab")]
use terrace_lab::{BenchCommand, ReproduceArgs};

#[cfg(feature = "mount")]
pub use mount::MountArgs;
pub use simulate::{Policies, Shard, SimulateArgs};

/// An embedded, transactional key-value engine for data larger than memory.
#[derive(Parser, Debug)]
#[command(name = "terrace", version, args_override_self = true, propagate_version = true)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// The two-minute tour on real input: load, serve, crash, recover, verify, and an HTML report
    Demo(DemoArgs),
    /// Run a benchmark
    #[cfg(feature = "lab")]
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Load records from a CSV or JSON-lines file into a table
    Load(LoadArgs),
    /// Write a table to standard output, in a form that `load` reads back
    Dump(DumpArgs),
    /// Print the value of one key
    Get(GetArgs),
    /// Set one key; makes the database and the table if they are missing
    Put(PutArgs),
    /// Remove one key
    Delete(DeleteArgs),
    /// Print the entries of a table in key order
    Scan(ScanArgs),
    /// Show the tables of a database and the sizes of its files
    Stat(StatArgs),
    /// Check every page and entry of a database or a backup; exit code 3 if something is damaged
    Verify(VerifyArgs),
    /// Copy a database to a new or empty directory
    Backup(BackupArgs),
    /// Restore a database from a backup, then open and verify it
    Restore(RestoreArgs),
    /// Salvage intact data from a damaged database into a new one; exit code 3 if something is lost
    Repair(RepairArgs),
    /// Shrink the page file to fit its contents
    Compact(CompactArgs),
    /// Mount a directory with a block cache on a faster device before its files
    #[cfg(feature = "mount")]
    Mount(MountArgs),
    /// Replay a block trace through cache policies and report miss ratios
    Simulate(Box<SimulateArgs>),
    /// Re-run the papers' experiments and compare with their claims
    #[cfg(feature = "lab")]
    Reproduce(ReproduceArgs),
    /// Measure this machine: NUMA nodes, DAX devices, the disk
    Devices(DevicesArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write the pages of all commands to a directory
    Man(ManArgs),
    /// Part of the lab, which this build does not include
    #[cfg(not(feature = "lab"))]
    #[command(hide = true, disable_help_flag = true, disable_version_flag = true)]
    Bench(AbsentArgs),
    /// Part of the lab, which this build does not include
    #[cfg(not(feature = "lab"))]
    #[command(hide = true, disable_help_flag = true, disable_version_flag = true)]
    Reproduce(AbsentArgs),
}

/// Arguments of a command that this build lacks.
#[cfg(not(feature = "lab"))]
#[derive(Args, Clone, Debug)]
pub struct AbsentArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _rest: Vec<OsString>,
}

/// A database, and memory to open it with.
#[derive(Args, Clone, Debug)]
pub struct DatabaseArgs {
    /// The database directory
    #[arg(value_name = "DB")]
    pub database: PathBuf,
    #[command(flatten)]
    pub memory: MemoryArgs,
}

impl DatabaseArgs {
    /// Settings to read the database.
    pub fn read(&self) -> Settings {
        Settings { read_only: true, ..self.open(TierArgs::default()) }
    }

    /// Settings to open the database for changes, with `tiers` beside its memory.
    pub fn open(&self, tiers: TierArgs) -> Settings {
        Settings::new(&TierArgs { memory: self.memory.clone(), ..tiers }, Some(self.database.clone()))
    }
}

/// How to change a database.
#[derive(Args, Clone, Debug)]
pub struct ChangeArgs {
    #[command(flatten)]
    pub cache: CacheArgs,
    #[command(flatten)]
    pub log_memory: LogMemoryArgs,
    #[command(flatten)]
    pub commits: CommitArgs,
}

impl ChangeArgs {
    fn tiers(&self) -> TierArgs {
        let (cache, log_memory) = (self.cache.clone(), self.log_memory.clone());
        TierArgs { cache, log_memory, commits: self.commits.clone(), ..TierArgs::default() }
    }
}

/// How to change a database, and to create it if missing.
#[derive(Args, Clone, Debug)]
pub struct CreateArgs {
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub layout: LayoutArgs,
}

impl CreateArgs {
    fn tiers(&self) -> TierArgs {
        TierArgs { layout: self.layout.clone(), ..self.change.tiers() }
    }
}

/// `terrace stat`
#[derive(Args, Clone, Debug)]
pub struct StatArgs {
    #[command(flatten)]
    pub of: DatabaseArgs,
    #[command(flatten)]
    pub middle: MiddleArgs,
    /// Print all statistics in Prometheus format
    #[arg(long, conflicts_with = "json")]
    pub prometheus: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl StatArgs {
    /// Settings to read the database.
    pub fn settings(&self) -> Settings {
        let tiers = TierArgs { middle: self.middle.clone(), ..TierArgs::default() };
        Settings { read_only: true, ..self.of.open(tiers) }
    }
}

/// `terrace verify`
#[derive(Args, Clone, Debug)]
pub struct VerifyArgs {
    #[command(flatten)]
    pub of: DatabaseArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `terrace compact`
#[derive(Args, Clone, Debug)]
pub struct CompactArgs {
    #[command(flatten)]
    pub of: DatabaseArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
    #[command(flatten)]
    pub log_memory: LogMemoryArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl CompactArgs {
    /// Settings to change the database.
    pub fn settings(&self) -> Settings {
        let (cache, log_memory) = (self.cache.clone(), self.log_memory.clone());
        self.of.open(TierArgs { cache, log_memory, ..TierArgs::default() })
    }
}

/// `terrace demo`
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// Directory of the database [default: a temporary directory, removed afterwards]
    #[arg(long, value_name = "PATH")]
    pub store: Option<PathBuf>,
    /// Directory whose files are loaded as records [default: system directories of this machine]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// How much data to load
    #[arg(long, value_name = "SIZE", default_value = "128MiB", value_parser = units::size)]
    pub data_size: u64,
    /// File of the HTML report
    #[arg(long, value_name = "FILE", default_value = "terrace-demo.html")]
    pub report: PathBuf,
    /// Threads of the served workload
    #[arg(long, default_value_t = 2, value_parser = threads())]
    pub threads: u16,
    #[command(flatten)]
    pub tiers: TierArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Run as the process to be killed, and announce commits on standard output
    #[arg(long, hide = true)]
    pub victim: bool,
}

/// A table in a database.
#[derive(Args, Clone, Debug)]
pub struct TableArgs {
    #[command(flatten)]
    pub at: DatabaseArgs,
    /// The table
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub table: String,
}

/// Record formats of input files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Comma-separated values with a header line
    Csv,
    /// One JSON object per line
    Jsonl,
}

/// `terrace load`
#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    #[command(flatten)]
    pub to: TableArgs,
    /// Format of the file
    #[arg(long, value_enum)]
    pub format: Format,
    /// CSV column or JSON member that holds the key [default: the first CSV column; for jsonl
    /// "key", with the value in "value", as `dump` writes it]
    #[arg(long, value_name = "COLUMN")]
    pub key: Option<String>,
    /// The file, or - for standard input
    pub file: PathBuf,
    #[command(flatten)]
    pub create: CreateArgs,
    #[command(flatten)]
    pub middle: MiddleArgs,
    #[command(flatten)]
    pub migration: MigrationArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl LoadArgs {
    /// Settings to change the database, creating it if missing.
    pub fn settings(&self) -> Settings {
        let (middle, migration) = (self.middle.clone(), self.migration);
        let tiers = TierArgs { middle, migration, ..self.create.tiers() };
        Settings { create: true, ..self.to.at.open(tiers) }
    }
}

/// Output formats of `dump`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DumpFormat {
    /// One JSON object per line: {"key": ..., "value": ...}
    #[default]
    Jsonl,
}

/// `terrace dump`
#[derive(Args, Clone, Debug)]
pub struct DumpArgs {
    #[command(flatten)]
    pub from: TableArgs,
    /// Format of the output
    #[arg(long, value_enum, default_value_t)]
    pub format: DumpFormat,
    /// A TOML file with any of this command's flags; the command line takes precedence
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// `terrace get`
#[derive(Args, Clone, Debug)]
pub struct GetArgs {
    #[command(flatten)]
    pub from: TableArgs,
    /// Write the raw bytes of the value, without a newline
    #[arg(long, conflicts_with = "json")]
    pub raw: bool,
    /// The key
    pub key: OsString,
    #[command(flatten)]
    pub output: OutputArgs,
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
    #[command(flatten)]
    pub create: CreateArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl PutArgs {
    /// Settings to change the database, creating it if missing.
    pub fn settings(&self) -> Settings {
        Settings { create: true, ..self.to.at.open(self.create.tiers()) }
    }
}

/// `terrace delete`
#[derive(Args, Clone, Debug)]
pub struct DeleteArgs {
    #[command(flatten)]
    pub from: TableArgs,
    /// The key
    pub key: OsString,
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl DeleteArgs {
    /// Settings to change the database.
    pub fn settings(&self) -> Settings {
        self.from.at.open(self.change.tiers())
    }
}

/// `terrace scan`
#[derive(Args, Clone, Debug)]
pub struct ScanArgs {
    #[command(flatten)]
    pub of: TableArgs,
    /// First key to show
    #[arg(long, value_name = "KEY")]
    pub from: Option<OsString>,
    /// Key to stop before
    #[arg(long, value_name = "KEY")]
    pub to: Option<OsString>,
    /// Only keys with this prefix
    #[arg(long)]
    pub prefix: Option<OsString>,
    /// At most this many entries
    #[arg(long, value_name = "N", value_parser = units::whole::<u64>(0..=u64::MAX))]
    pub limit: Option<u64>,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `terrace backup`
#[derive(Args, Clone, Debug)]
pub struct BackupArgs {
    #[command(flatten)]
    pub from: DatabaseArgs,
    /// Directory of the backup, new or empty
    #[arg(value_name = "DEST")]
    pub destination: PathBuf,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `terrace restore`
#[derive(Args, Clone, Debug)]
pub struct RestoreArgs {
    /// The directory of the backup
    #[arg(value_name = "SRC")]
    pub source: PathBuf,
    #[command(flatten)]
    pub to: DatabaseArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `terrace repair`
#[derive(Args, Clone, Debug)]
pub struct RepairArgs {
    #[command(flatten)]
    pub from: DatabaseArgs,
    /// Directory of the new database, new or empty
    #[arg(value_name = "DEST")]
    pub destination: PathBuf,
    #[command(flatten)]
    pub layout: LayoutArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl RepairArgs {
    /// Settings of the new database.
    pub fn settings(&self) -> Settings {
        self.from.open(TierArgs { layout: self.layout.clone(), ..TierArgs::default() })
    }
}

/// `terrace devices`
#[derive(Args, Clone, Debug)]
pub struct DevicesArgs {
    /// Directory on the disk to measure
    #[arg(long, value_name = "PATH", default_value = ".")]
    pub store: PathBuf,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `terrace completions`
#[derive(Args, Clone, Debug)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// `terrace man`
#[derive(Args, Clone, Debug)]
pub struct ManArgs {
    /// Directory for a page per command, created if missing
    #[arg(value_name = "DIR")]
    pub directory: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }
}
