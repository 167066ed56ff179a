//! The command line: every command, flag and default.
//!
//! Commands that open a database share their memory and file flags ([`TierArgs`]). The last
//! occurrence of a repeated flag wins, so a configuration file can come first (see `config`).

mod simulate;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use terrace_common::store::Settings;
use terrace_common::tiers::{OutputArgs, TierArgs, threads};
use terrace_common::units;
#[cfg(feature = "lab")]
use terrace_lab::{BenchCommand, ReproduceArgs};

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
    /// Set one key
    Put(PutArgs),
    /// Remove one key
    Delete(DeleteArgs),
    /// Print the entries of a table in key order
    Scan(ScanArgs),
    /// Show the tables of a database and the sizes of its files
    Stat(StatArgs),
    /// Check every page and entry of a database or a backup; exit code 3 if something is damaged
    Verify(DatabaseArgs),
    /// Copy a database to a new or empty directory
    Backup(BackupArgs),
    /// Restore a database from a backup, then open and verify it
    Restore(RestoreArgs),
    /// Salvage intact data from a damaged database into a new one; exit code 3 if something is lost
    Repair(RepairArgs),
    /// Shrink the page file to fit its contents
    Compact(DatabaseArgs),
    /// Replay a block trace through cache policies and report miss ratios
    Simulate(Box<SimulateArgs>),
    /// Re-run the papers' experiments and compare with their claims
    #[cfg(feature = "lab")]
    Reproduce(ReproduceArgs),
    /// Measure this machine: NUMA nodes, DAX devices, the disk
    Devices(DevicesArgs),
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
    /// Settings to change an existing database.
    pub fn write(&self) -> Settings {
        Settings::new(&self.tiers, Some(self.database.clone()))
    }

    /// Settings to change a database, creating it if missing.
    pub fn create(&self) -> Settings {
        Settings { create: true, ..self.write() }
    }

    /// Settings to read a database.
    pub fn read(&self) -> Settings {
        Settings { read_only: true, ..self.write() }
    }
}

/// `terrace stat`
#[derive(Args, Clone, Debug)]
pub struct StatArgs {
    #[command(flatten)]
    pub of: DatabaseArgs,
    /// Print all statistics in Prometheus format
    #[arg(long, conflicts_with = "json")]
    pub prometheus: bool,
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
    #[arg(long, value_name = "NAME")]
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
}

/// `terrace get`
#[derive(Args, Clone, Debug)]
pub struct GetArgs {
    #[command(flatten)]
    pub from: TableArgs,
    /// Write the raw bytes of the value, without a newline
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
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
}

/// `terrace backup`
#[derive(Args, Clone, Debug)]
pub struct BackupArgs {
    #[command(flatten)]
    pub from: DatabaseArgs,
    /// Directory of the backup, new or empty
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
    /// Directory of the new database, new or empty
    #[arg(value_name = "DEST")]
    pub destination: PathBuf,
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }
}
