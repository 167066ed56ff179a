//! The flags of `terrace reproduce`.

use std::path::PathBuf;

use clap::Args;

use terrace_common::tiers::OutputArgs;
use terrace_common::units;

/// `terrace reproduce`
#[derive(Args, Clone, Debug)]
pub struct ReproduceArgs {
    /// Claim ids, such as U1; or all; or list. A claim takes seconds, or up to a quarter of an hour
    /// (N7). The exit code is 0 whatever the verdict: a claim that fails is a finding
    #[arg(value_name = "list|ID...|all", required = true, num_args = 1..)]
    pub claims: Vec<String>,
    /// Directory for a report (reproduce.html), which replaces the one there, and the figures
    #[arg(long, visible_alias = "report", value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Directory of the shared traces [default: $TERRACE_TRACES, or shared/traces in this directory
    /// or a parent]
    #[arg(long, value_name = "DIR")]
    pub traces: Option<PathBuf>,
    /// Profile of Optane memory for NVCache's claims, N1 to N11 [default: optane-2, as on the
    /// paper's machine]
    #[arg(long, value_name = "PROFILE")]
    pub optane: Option<String>,
    /// Profile of the disk for NVCache's claims, N3 to N11 [default: nvme-optane]
    #[arg(long, value_name = "PROFILE")]
    pub disk: Option<String>,
    /// Nanoseconds of computation per operation in NVCache's claims, excluding page accesses
    /// [default: 240, measured here]
    #[arg(long, value_name = "NS", value_parser = units::whole::<u64>(0..=999_999_999))]
    pub operation_ns: Option<u64>,
    /// NVCache's claims without the operating system's page cache, which had half of the DRAM of
    /// the paper's machine
    #[arg(long)]
    pub no_page_cache: bool,
    /// NVCache's claims over a page file of four times the data, which is hardly cleaned: the
    /// paper's engine reuses freed blocks
    #[arg(long)]
    pub no_cleaning: bool,
    /// Size of the claims on PostgreSQL, relative to their own. TPC-H takes whole numbers, and .4
    /// for all below 1 [default: 1]
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    pub postgresql_scale: Option<f64>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(factor) if (0.01..=100.0).contains(&factor) => Ok(factor),
        _ => Err("a factor is a number from 0.01 to 100, such as 0.1".to_owned()),
    }
}
