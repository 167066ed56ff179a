//! The flags of `terrace simulate`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use terrace_cache::policy::{NAMES, Name};
use terrace_cache::sim::Size;
use terrace_cache::trace::{Columns, Format};
use terrace_io::Profile;

use terrace_common::tiers::{OutputArgs, threads};
use terrace_common::units;

/// `terrace simulate`
#[derive(Args, Clone, Debug)]
pub struct SimulateArgs {
    /// The trace, or - for standard input; with --merge, the outputs of all shards
    #[arg(value_name = "TRACE", required = true, num_args = 1..)]
    pub traces: Vec<PathBuf>,
    /// Cache policies, each alone or behind an admission policy; or all
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "lru", value_parser = str::parse::<Policies>)]
    pub policy: Vec<Policies>,
    /// Cache sizes: blocks, bytes such as 64MiB, or a share of the footprint such as 10% [default:
    /// 1%,5%,10%,20%, or none with --curve]
    #[arg(long, value_name = "BLOCKS|BYTES|P%,...", value_delimiter = ',', value_parser = str::parse::<Size>)]
    pub size: Vec<Size>,
    /// Miss-ratio curve from 0.1% to 100% of the footprint, with its knee: exact for lru, at 200
    /// sizes; simulated for others, at 24
    #[arg(long)]
    pub curve: bool,
    /// Do only part I of N of the work, 1 <= I <= N; --merge joins the parts
    #[arg(long, value_name = "I/N", value_parser = str::parse::<Shard>)]
    pub shard: Option<Shard>,
    /// Join the --json outputs of all shards into one
    #[arg(long, conflicts_with_all = ["shard", "curve", "size", "sample", "policy", "per_query", "per_relation",
          "format", "columns", "block_size", "profile", "workers", "threads"])]
    pub merge: bool,
    /// Count per query, if the trace names queries
    #[arg(long)]
    pub per_query: bool,
    /// Count per table and index, if the trace names them
    #[arg(long)]
    pub per_relation: bool,
    /// Format of the trace: lis u32le csv pgt oracleGeneral blktrace msr alibaba tencent systor
    /// vscsi fio iolog, each also with .zst or .gz [default: from the file name]
    #[arg(long = "format", value_name = "NAME", value_parser = str::parse::<Format>)]
    pub format: Option<Format>,
    /// Columns of a csv trace, instead of the names in its header: a list of roles. Each means the
    /// next column, ROLE=N the N-th, ROLE=NAME that of the header; - skips one. Roles: block sector
    /// offset (bytes) for the position; size (bytes) sectors blocks for the length; op (r, w, SCSI)
    /// or write (0, 1); device; time (us) time_s time_ms time_ns filetime. Such as
    /// time,device,op=5,offset=3,size
    #[arg(long, value_name = "ROLE,...", value_parser = str::parse::<Columns>)]
    pub columns: Option<Columns>,
    /// Bytes per block [default: 8KiB for pgt, PostgreSQL's, else 4KiB]. A trace of SQLite has
    /// blocks of its page_size
    #[arg(long, value_name = "SIZE", value_parser = block_size)]
    pub block_size: Option<u32>,
    /// Simulate only this share of the blocks, 0 < SHARE < 1, and estimate the rest
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub sample: Option<f64>,
    /// Report latency and throughput for a cache and a store on these devices: profile names, such
    /// as nvme-optane,nvme-flash, or TOML files
    #[arg(long, value_name = "CACHE,STORE", value_parser = profiles)]
    pub profile: Option<(Profile, Profile)>,
    /// Workers that issue requests, for --profile
    #[arg(long, value_name = "N", default_value_t = 16, requires = "profile", value_parser = threads())]
    pub workers: u16,
    /// Simulation threads [default: one per core]
    #[arg(long, value_parser = threads())]
    pub threads: Option<u16>,
    /// File for an HTML report with curves
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// One policy, or all of them.
#[derive(Clone, Debug, PartialEq)]
pub enum Policies {
    /// Every eviction policy.
    All,
    /// One named policy.
    One(Name),
}

impl Policies {
    /// The policies in documentation order.
    pub fn names(&self) -> Vec<Name> {
        match self {
            Policies::All => NAMES.iter().map(|name| name.parse().expect("a name of the list")).collect(),
            Policies::One(name) => vec![name.clone()],
        }
    }
}

impl FromStr for Policies {
    type Err = String;

    fn from_str(text: &str) -> Result<Policies, String> {
        match text {
            "all" => Ok(Policies::All),
            text => text.parse().map(Policies::One).map_err(|error| error.to_string()),
        }
    }
}

/// Part I of N of a simulation's caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Part number, from 1.
    pub part: u32,
    /// Number of parts.
    pub of: u32,
}

impl Shard {
    /// Whether the cache with this index (from 0) is in the part.
    pub fn has(&self, index: usize) -> bool {
        index % self.of as usize == self.part as usize - 1
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Shard, String> {
        let parsed = text.split_once('/').and_then(|(part, of)| Some((part.parse().ok()?, of.parse().ok()?)));
        match parsed {
            Some((part, of)) if 1 <= part && part <= of => Ok(Shard { part, of }),
            _ => Err(format!("{text:?} is not a part of the work; write I/N with 1 <= I <= N, such as 2/8")),
        }
    }
}

fn profiles(text: &str) -> Result<(Profile, Profile), String> {
    let Some((cache, store)) = text.split_once(',') else {
        return Err(format!(
            "{text:?} is not two profiles; write CACHE,STORE, such as nvme-optane,nvme-flash"
        ));
    };
    let find = |name: &str| Profile::find(name).map_err(|error| error.to_string());
    Ok((find(cache)?, find(store)?))
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share < 1.0 => Ok(share),
        _ => {
            Err(format!("{text:?} is not a share of the blocks; write a number between 0 and 1, such as 0.1"))
        }
    }
}

fn block_size(text: &str) -> Result<u32, String> {
    match units::size(text)? {
        bytes if bytes.is_multiple_of(512) && (512..=1 << 30).contains(&bytes) => Ok(bytes as u32),
        bytes => Err(format!("{bytes} bytes is not a block size; use a multiple of 512B, up to 1GiB")),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::args::{Cli, Command};

    fn simulate(flags: &str) -> Result<SimulateArgs, clap::Error> {
        let line = format!("terrace simulate {flags}");
        match Cli::try_parse_from(line.split_whitespace())?.command {
            Command::Simulate(args) => Ok(*args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_of_the_interface() {
        let args = simulate(
            "t.pgt.zst --policy lru,arc --size 100,12.5%,8KiB --curve --shard 2/3 --per-query --per-relation --json",
        )
        .unwrap();
        let names: Vec<String> =
            args.policy.iter().flat_map(Policies::names).map(|name| name.to_string()).collect();
        assert_eq!(names, ["lru", "arc"]);
        let sizes: Vec<usize> = args.size.iter().map(|size| size.blocks(1000, 4096).unwrap()).collect();
        assert_eq!(sizes, [100, 125, 2]);
        let shard = args.shard.unwrap();
        assert_eq!([0, 1, 2, 3, 4].map(|index| shard.has(index)), [false, true, false, false, true]);
        assert!(args.curve && args.per_query && args.per_relation && args.output.json);
        let all = simulate("t.lis --policy all").unwrap().policy[0].names();
        assert_eq!(all.len(), NAMES.len());
    }

    #[test]
    fn the_help_lists_all_formats() {
        let refused = "xls".parse::<Format>().unwrap_err().to_string();
        let known = refused.split("the formats are ").nth(1).unwrap().split(',').next().unwrap();
        let help = Cli::command().find_subcommand_mut("simulate").unwrap().render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains(&format!("Format of the trace: {known}, each also")), "{known}: {help}");
    }

    #[test]
    fn nonsense_is_refused_by_flag() {
        for (flags, named) in [
            ("", "TRACE"),
            ("t --policy lru,nosuch", "nosuch"),
            ("t --size 0", "--size"),
            ("t --size 101%", "--size"),
            ("t --size 64MB", "MiB"),
            ("t --shard 0/2", "--shard"),
            ("t --shard 3/2", "--shard"),
            ("t --format xls", "--format"),
            ("t --block-size 1000", "--block-size"),
            ("t --columns time,op", "--columns"),
            ("t --merge --columns block", "--columns"),
            ("t --sample 1", "--sample"),
            ("t --merge --curve", "--curve"),
            ("t --merge --policy lru", "--policy"),
            ("t --merge --per-query", "--per-query"),
            ("t --merge --per-relation", "--per-relation"),
            ("t --merge --format lis", "--format"),
            ("t --merge --block-size 4KiB", "--block-size"),
            ("t --merge --profile dram,optane", "--profile"),
            ("t --merge --threads 2", "--threads"),
            ("t --profile dram", "--profile"),
            ("t --profile dram,tape", "tape"),
            ("t --workers 2", "--profile"),
        ] {
            let error = simulate(flags).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(named), "{flags}: {error}");
        }
    }
}
