//! The flags of `terrace bench` and `terrace reproduce`.

mod reproduce;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use terrace::Backend;
use terrace_common::tiers::{OutputArgs, TierArgs, threads, value_page_size};
use terrace_common::units;

pub use reproduce::ReproduceArgs;

use crate::cost::Shape;
use crate::design::Design;
use crate::peers;
use crate::workload::fields::{Fields, Touch};
use crate::workload::rate::Rate;
use crate::workload::tpcc;
use crate::workload::ycsb::{Distribution, Mix};

/// The benchmarks.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Yahoo! Cloud Serving Benchmark and variants, verifying every value read
    Ycsb(Box<YcsbArgs>),
    /// TPC-C: an order-entry business of thirteen tables, whose consistency is checked
    Tpcc(Box<TpccArgs>),
    /// Cold reads, single against batched, next to the disk's own gain from queue depth
    GetMany(Box<GetManyArgs>),
    /// Random pages under guards, next to raw disk reads
    Pages(PagesArgs),
    /// Sum of a paged column, next to a plain array or sequential disk reads
    Column(StructureArgs),
    /// Kills, opens again, and measures how soon the rate before is reached: warm against cold
    Restart(Box<RestartArgs>),
}

/// `terrace bench ycsb`
#[derive(Args, Clone, Debug)]
pub struct YcsbArgs {
    /// a b c d e f ro ba wh scan, cxl-update cxl-read cxl-scan, or rw:PCT with PCT percent of reads
    #[arg(long, default_value = "a", value_parser = str::parse::<Mix>)]
    pub workload: Mix,
    /// Records loaded before the measurement
    #[arg(long, default_value_t = 100_000, value_parser = units::whole::<u64>(1..=1 << 40))]
    pub records: u64,
    /// Bytes per value [default: 1000, or 64 with cxl-*]
    #[arg(long, value_parser = value_size)]
    pub value_size: Option<usize>,
    /// Make each value of COUNT fields of BYTES bytes, such as 10x100
    #[arg(long, value_name = "COUNTxBYTES", value_parser = str::parse::<Fields>, conflicts_with = "value_size")]
    pub fields: Option<Fields>,
    /// How much of a value reads and updates touch. Engines without calls for a part read and write
    /// the whole value for one field
    #[arg(long, value_enum, default_value_t, requires = "fields")]
    pub touch: Touch,
    /// Pass each value read to a closure, as the engine's interface allows, instead of a new vector
    #[arg(long, conflicts_with = "touch")]
    pub visit: bool,
    /// zipfian:THETA with 0 < THETA < 2, or uniform
    #[arg(long, default_value = "zipfian:0.99", value_parser = str::parse::<Distribution>)]
    pub distribution: Distribution,
    /// Client threads
    #[arg(long, default_value_t = 1, value_parser = threads())]
    pub threads: u16,
    /// Duration of the measurement, such as 10 or 500ms [default: 10]
    #[arg(long, value_parser = positive_time, conflicts_with = "operations")]
    pub seconds: Option<Duration>,
    /// Measure this many operations instead of a duration
    #[arg(long, value_parser = units::whole::<u64>(1..=u64::MAX))]
    pub operations: Option<u64>,
    /// Duration of the warm-up
    #[arg(long, default_value = "0", value_parser = units::duration)]
    pub warmup: Duration,
    /// Open loop: OP=N requests of kind OP per second, or all=N of all kinds, without waiting for
    /// answers; latencies count from the scheduled time
    #[arg(long, value_name = "OP=N", value_parser = str::parse::<Rate>)]
    pub rate: Option<Rate>,
    /// Continue after --seconds until the log has wrapped N times, at most ten times as long
    #[arg(long, value_name = "N", conflicts_with_all = ["operations", "compare"],
          value_parser = units::whole::<u32>(1..=u64::from(u32::MAX)))]
    pub log_cycles: Option<u32>,
    /// The database directory, whose table ycsb is replaced [default: main memory only]
    #[arg(long, value_name = "PATH")]
    pub store: Option<PathBuf>,
    /// Engine to measure: terrace, redb, fjall, lmdb, sqlite or btreemap; in some builds also
    /// rocksdb or raw-frames
    #[arg(long, value_name = "NAME", default_value = peers::TERRACE, value_parser = peers::parse)]
    pub engine: String,
    /// Compare these engines, each in its own process within the same memory; temporary databases
    /// go below --store
    #[arg(long, value_name = "ENGINE,...", value_delimiter = ',', value_parser = peers::parse, conflicts_with = "engine")]
    pub compare: Vec<String>,
    /// Measurements per engine of a comparison; every other round runs in reverse order
    #[arg(long, value_name = "N", default_value_t = 3, requires = "compare", value_parser = units::whole::<u16>(1..=1000))]
    pub rounds: u16,
    /// Measure hierarchies of equal cost, by the prices of the profiles, one after the other:
    /// dram-store (local-store), middle-store (far-store) and three-tiers. BASE has the sizes
    /// --dram and --middle, which set the price; a tier that BASE lacks has its size in three-tiers
    #[arg(long, value_name = "BASE", value_parser = str::parse::<Shape>, requires = "middle", conflicts_with_all = ["compare", "engine"])]
    pub equal_cost: Option<Shape>,
    /// Set the flags of a design that HyMem compares, and print them; sizes are those given
    #[arg(long, value_name = "NAME", conflicts_with_all = ["compare", "equal_cost"])]
    pub design: Option<Design>,
    /// Also write an HTML report with charts to this file; a run shorter than its charts goes on
    #[arg(long, value_name = "FILE", conflicts_with = "compare")]
    pub report: Option<PathBuf>,
    /// Do not limit each process of a comparison to --dram plus 32 MiB, page cache included
    #[arg(long, requires = "compare")]
    pub unconfined: bool,
    #[command(flatten)]
    pub tiers: TierArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Run as one process of a comparison: directory for temporary files
    #[arg(long, value_name = "PATH", hide = true)]
    pub scratch: Option<PathBuf>,
    /// Run as one process of a comparison: control group to join
    #[arg(long, value_name = "PATH", hide = true)]
    pub group: Option<PathBuf>,
}

impl YcsbArgs {
    /// Bytes per value.
    pub fn value_bytes(&self) -> usize {
        let of_fields = self.fields.map(Fields::value_bytes);
        of_fields.or(self.value_size).unwrap_or(self.workload.value_bytes())
    }
}

/// `terrace bench tpcc`
#[derive(Args, Clone, Debug)]
pub struct TpccArgs {
    /// Warehouses; one is the home of each thread, by turns
    #[arg(long, default_value_t = 2, value_parser = units::whole::<u32>(1..=1_000_000))]
    pub warehouses: u32,
    /// Items, and rows of stock in each warehouse
    #[arg(long, default_value_t = 100_000, value_parser = units::whole::<u32>(1..=100_000_000))]
    pub items: u32,
    /// Customers of each district, and its orders at first
    #[arg(long, default_value_t = 3000, value_parser = units::whole::<u32>(1..=1_000_000))]
    pub customers: u32,
    /// Percent of new orders, payments, order statuses, deliveries and stock levels
    #[arg(long, value_name = "PERCENT,...", default_value_t, value_parser = str::parse::<tpcc::Mix>)]
    pub mix: tpcc::Mix,
    /// Client threads
    #[arg(long, default_value_t = 1, value_parser = threads())]
    pub threads: u16,
    /// Duration of the measurement, such as 10 or 500ms [default: 10]
    #[arg(long, value_parser = positive_time, conflicts_with = "transactions")]
    pub seconds: Option<Duration>,
    /// Run this many transactions instead of a duration, without a warm-up
    #[arg(long, value_name = "N", value_parser = units::whole::<u64>(1..=u64::MAX))]
    pub transactions: Option<u64>,
    /// Duration of the warm-up
    #[arg(long, default_value = "0", value_parser = units::duration)]
    pub warmup: Duration,
    /// The database directory, whose tables tpcc.* are replaced [default: main memory only]
    #[arg(long, value_name = "PATH")]
    pub store: Option<PathBuf>,
    /// Engine to measure: terrace, lmdb or sqlite; in some builds also rocksdb
    #[arg(long, value_name = "NAME", default_value = peers::TERRACE, value_parser = peers::business::parse)]
    pub engine: String,
    /// Go on with the business of an earlier run, of the same size
    #[arg(long, requires = "store")]
    pub loaded: bool,
    /// Only check the consistency conditions of the business of an earlier run
    #[arg(long, requires = "store")]
    pub check: bool,
    #[command(flatten)]
    pub tiers: TierArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Say each committed new order on standard error, for a test that kills the process
    #[arg(long, hide = true)]
    pub acknowledge: bool,
}

/// `terrace bench get-many`
#[derive(Args, Clone, Debug)]
pub struct GetManyArgs {
    /// Records loaded before the measurement; their size should be many times --dram
    #[arg(long, default_value_t = 500_000, value_parser = units::whole::<u64>(1..=1 << 40))]
    pub records: u64,
    /// Bytes per value
    #[arg(long, default_value = "1000", value_parser = value_size)]
    pub value_size: usize,
    /// Keys per batch
    #[arg(long, default_value_t = 64, value_parser = units::whole::<u16>(1..=4096))]
    pub keys: u16,
    /// Keys that each method reads per round
    #[arg(long, default_value_t = 2048, value_parser = units::whole::<u32>(1..=u64::from(u32::MAX)))]
    pub round_keys: u32,
    /// Measurements per method; every other round runs in reverse order
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = units::whole::<u16>(1..=10_000))]
    pub rounds: u16,
    /// The database directory, whose benchmark table is replaced
    #[arg(long, value_name = "PATH")]
    pub store: PathBuf,
    /// Reuse the records loaded by an earlier run
    #[arg(long)]
    pub loaded: bool,
    #[command(flatten)]
    pub tiers: TierArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `terrace bench column`; `terrace bench pages` shares these flags
#[derive(Args, Clone, Debug)]
pub struct StructureArgs {
    /// Total bytes of all pages
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = units::size)]
    pub data: u64,
    /// Total memory budget for the pages, such as 64MiB
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub dram: Option<u64>,
    /// How pages are kept in memory: frames or mapped [default: frames, or $TERRACE_BACKEND]
    #[arg(long, value_name = "NAME")]
    pub backend: Option<Backend>,
    /// Page size: a power of two from 4KiB to 2MiB [default: pages 4KiB, column 64KiB]
    #[arg(long, value_name = "SIZE", value_parser = value_page_size)]
    pub page_size: Option<u64>,
    /// Reader threads
    #[arg(long, default_value_t = 2, value_parser = threads())]
    pub threads: u16,
    /// Number of rounds; every other round runs in reverse order
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = units::whole::<u16>(1..=10_000))]
    pub rounds: u16,
    /// Directory for the temporary page file
    #[arg(long, value_name = "PATH")]
    pub store: PathBuf,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `terrace bench pages`
#[derive(Args, Clone, Debug)]
pub struct PagesArgs {
    #[command(flatten)]
    pub of: StructureArgs,
    /// Duration of all rounds together, such as 10 or 500ms
    #[arg(long, default_value = "10", value_parser = positive_time)]
    pub seconds: Duration,
    /// Percent of a page's cache lines to read
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = units::whole::<u8>(0..=100))]
    pub touch: u8,
    /// Seed for all random choices
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// `terrace bench restart`
#[derive(Args, Clone, Debug)]
pub struct RestartArgs {
    /// a b c d e f ro ba wh scan, or rw:PCT with PCT percent of reads
    #[arg(long, default_value = "c", value_parser = str::parse::<Mix>)]
    pub workload: Mix,
    /// Records loaded before the first life
    #[arg(long, default_value_t = 500_000, value_parser = units::whole::<u64>(1..=1 << 40))]
    pub records: u64,
    /// Bytes per value
    #[arg(long, default_value = "1000", value_parser = value_size)]
    pub value_size: usize,
    /// zipfian:THETA with 0 < THETA < 2, or uniform
    #[arg(long, default_value = "zipfian:0.99", value_parser = str::parse::<Distribution>)]
    pub distribution: Distribution,
    /// Client threads
    #[arg(long, default_value_t = 2, value_parser = threads())]
    pub threads: u16,
    /// Duration of a life; its last quarter gives the rate that the next life must reach
    #[arg(long, default_value = "20", value_parser = positive_time)]
    pub seconds: Duration,
    /// Width of a step of the curve
    #[arg(long, default_value = "100ms", value_parser = positive_time)]
    pub tick: Duration,
    /// Percent of the rate before that counts as reached
    #[arg(long, value_name = "PERCENT", default_value_t = 90, value_parser = units::whole::<u8>(1..=100))]
    pub reach: u8,
    /// Pairs of a warm and a cold restart
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = units::whole::<u16>(1..=100))]
    pub rounds: u16,
    /// Close the database at the end of a life, instead of killing the process
    #[arg(long)]
    pub close: bool,
    /// The database directory, whose benchmark table is replaced
    #[arg(long, value_name = "PATH")]
    pub store: PathBuf,
    /// File removed before a cold restart: that of the middle tier, or of the block cache
    #[arg(long, value_name = "PATH")]
    pub warmth: PathBuf,
    #[command(flatten)]
    pub tiers: TierArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Run as one life: "first" loads the records
    #[arg(long, value_name = "NAME", hide = true)]
    pub life: Option<String>,
}

/// Parses a duration above zero.
fn positive_time(text: &str) -> Result<Duration, String> {
    match units::duration(text)? {
        Duration::ZERO => Err("nothing can be measured in no time; give for example 10 or 500ms".to_owned()),
        time => Ok(time),
    }
}

fn value_size(text: &str) -> Result<usize, String> {
    let bytes = units::size(text)?;
    match usize::try_from(bytes) {
        Ok(bytes) if bytes <= terrace::MAX_VALUE_BYTES => Ok(bytes),
        _ => Err(format!("{bytes} bytes is too large, at most {} are allowed", terrace::MAX_VALUE_BYTES)),
    }
}

/// A command line of the lab alone.
#[cfg(test)]
#[derive(clap::Parser, Debug)]
#[command(args_override_self = true)]
pub enum Line {
    #[command(subcommand)]
    Bench(BenchCommand),
}

#[cfg(test)]
impl Line {
    /// Parses `bench ycsb` with these flags.
    pub fn ycsb(flags: &str) -> Result<YcsbArgs, clap::Error> {
        match Line::parse("ycsb", flags)? {
            BenchCommand::Ycsb(args) => Ok(*args),
            other => panic!("{other:?}"),
        }
    }

    fn parse(benchmark: &str, flags: &str) -> Result<BenchCommand, clap::Error> {
        let line = ["terrace", "bench", benchmark].into_iter().chain(flags.split_whitespace());
        let Line::Bench(command) = <Line as clap::Parser>::try_parse_from(line)?;
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ycsb(flags: &str) -> Result<YcsbArgs, clap::Error> {
        Line::ycsb(flags)
    }

    #[test]
    fn bench_flags_of_the_interface() {
        let args = ycsb(
            "--workload rw:80 --records 5 --value-size 100 --distribution zipfian:0.3 --threads 2 --seconds 1500ms \
             --warmup 1 --store /x --seed 9 --json",
        )
        .unwrap();
        assert_eq!((args.records, args.value_bytes(), args.threads), (5, 100, 2));
        assert_eq!(args.seconds, Some(Duration::from_millis(1500)));
        assert_eq!(args.warmup, Duration::from_secs(1));
        assert_eq!((args.store, args.tiers.seed), (Some("/x".into()), 9));
        assert!(args.output.json);
    }

    #[test]
    fn fields_set_the_size_of_a_value() {
        let args = ycsb("--fields 10x100 --touch one").unwrap();
        assert_eq!((args.value_bytes(), args.touch), (1000, Touch::One));
        assert_eq!(ycsb("--fields 3x7").unwrap().touch, Touch::All);
        assert!(ycsb("--touch one").unwrap_err().to_string().contains("--fields"));
        assert!(ycsb("--fields 10x100 --value-size 1000").unwrap_err().to_string().contains("--value-size"));
    }

    #[test]
    fn a_duration_and_an_amount_exclude_each_other() {
        for (benchmark, amount) in [("ycsb", "--operations"), ("tpcc", "--transactions")] {
            for flags in [format!("{amount} 7 --seconds 3"), format!("--seconds 10 {amount} 7")] {
                let error = Line::parse(benchmark, &flags).unwrap_err();
                let told = error.to_string();
                assert!(told.contains(amount) && told.contains("--seconds"), "{flags}: {told}");
            }
            Line::parse(benchmark, &format!("{amount} 7")).unwrap();
        }
        assert_eq!(ycsb("--threads 1 --threads 2").unwrap().threads, 2);
    }

    #[test]
    fn nothing_is_measured_in_no_time() {
        for (benchmark, flags) in [
            ("ycsb", "--seconds 0"),
            ("ycsb", "--seconds 0ms"),
            ("tpcc", "--seconds 0"),
            ("pages", "--store x --seconds 0"),
            ("restart", "--store x --warmth y --seconds 0"),
            ("restart", "--store x --warmth y --tick 0"),
        ] {
            let told = Line::parse(benchmark, flags).unwrap_err().to_string();
            assert!(told.contains("no time"), "{flags}: {told}");
        }
        assert_eq!(ycsb("--warmup 0").unwrap().warmup, Duration::ZERO);
    }

    #[test]
    fn nonsense_is_refused_by_flag() {
        for (flags, named) in [
            ("--workload z", "--workload"),
            ("--distribution zipfian:2", "--distribution"),
            ("--records 0", "--records"),
            ("--threads 0", "--threads"),
            ("--value-size 2GiB", "--value-size"),
            ("--workload rw:101", "--workload"),
            ("--fields 10", "--fields"),
            ("--fields 10x100 --touch two", "--touch"),
            ("--rate update", "--rate"),
            ("--dram 64MB", "--dram"),
        ] {
            let error = ycsb(flags).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(named), "{flags}: {error}");
            assert!(!error.to_string().contains("bad setting"), "{flags}: {error}");
        }
    }
}
