//! The command line of `terrace mount`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use terrace_common::tiers::{CacheArgs, threads};
use terrace_common::units;

/// `terrace mount`
#[derive(Args, Clone, Debug)]
pub struct MountArgs {
    /// The directory whose files are shown
    #[arg(value_name = "SLOW")]
    pub source: PathBuf,
    /// The empty directory where they are shown
    #[arg(value_name = "MOUNTPOINT")]
    pub mountpoint: PathBuf,
    #[command(flatten)]
    pub cache: CacheArgs,
    /// Use the cache even if its device reads no sooner than the directory. Otherwise the mount
    /// measures both when it begins, and leaves out a cache that cannot help
    #[arg(long)]
    pub cache_always: bool,
    /// Bytes of a block of cache and trace: a power of two from 4KiB to 1MiB, at most the page size
    /// of the database [default: 4KiB]
    #[arg(long, value_name = "SIZE", value_parser = block_size)]
    pub block_size: Option<u64>,
    /// Record all reads and writes in a new file, FILE.pgt or FILE.csv, for `simulate`
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Threads that serve requests
    #[arg(long, default_value_t = 16, value_parser = threads())]
    pub threads: u16,
    /// Show statistics by HTTP at this address, such as 127.0.0.1:9480: a live page at /, those for
    /// Prometheus at /metrics, JSON at /stats.json
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<SocketAddr>,
    /// Listen at this Unix socket for the queries that run, for `--cache-eviction heuristicdb`; see
    /// scripts/pg_hints
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
    /// Never let the kernel read and write files by itself. Otherwise it does so with files that
    /// are never cached: logs of databases, and without --cache all, unless --trace or --metrics is
    /// to show them
    #[arg(long)]
    pub no_passthrough: bool,
    /// Refuse all changes
    #[arg(long)]
    pub read_only: bool,
    /// Let other users in, as their permissions allow
    #[arg(long)]
    pub allow_other: bool,
    /// A TOML file with any of this command's flags; the command line takes precedence
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

fn block_size(text: &str) -> Result<u64, String> {
    match units::size(text)? {
        bytes if bytes.is_power_of_two() && (4096..=1 << 20).contains(&bytes) => Ok(bytes),
        bytes => Err(format!("{bytes} bytes is not a block size; use a power of two from 4KiB to 1MiB")),
    }
}
