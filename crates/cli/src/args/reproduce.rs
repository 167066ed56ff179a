//! The flags of `terrace reproduce`.

use std::path::PathBuf;

use clap::Args;

use super::OutputArgs;

/// `terrace reproduce`
#[derive(Args, Clone, Debug)]
pub struct ReproduceArgs {
    /// Claims by their ids, such as U1; all; or list
    #[arg(value_name = "list|ID...|all", required = true, num_args = 1..)]
    pub claims: Vec<String>,
    /// A report and the figures go to this directory
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Where the shared traces are [default: the variable TERRACE_TRACES, or shared/traces in this directory or one above it]
    #[arg(long, value_name = "DIR")]
    pub traces: Option<PathBuf>,
    /// In NVCache's claims, N1 to N11: the profile of Optane memory [default: optane-2, that of the paper's machine]
    #[arg(long, value_name = "PROFILE")]
    pub optane: Option<String>,
    /// In NVCache's claims: nanoseconds that an operation computes beside what its pages take [default: 240, measured here]
    #[arg(long, value_name = "NS", value_parser = clap::value_parser!(u64).range(..1_000_000_000))]
    pub operation_ns: Option<u64>,
    #[command(flatten)]
    pub output: OutputArgs,
}
