//! The `terrace` command.
//!
//! | module | what it does |
//! |---|---|
//! | `args`, `config`, `units` | the command line and `--config` files, turned into plain numbers |
//! | `commands` | one file per command |
//! | `store`, `engine` | the seam to an engine: a table as an ordered map; and Terrace behind it |
//! | `peers` | other engines behind the same seam, to be measured against |
//! | `confine`, `bystanders` | what makes a comparison fair: a bound on memory, and who else used the processor |
//! | `workload` | load to measure with: YCSB and its parts |
//! | `demo` | real records, a workload whose commits are accounted for, and the account |
//! | `reproduce` | the papers' claims, a function for each |
//! | `simulation` | what `simulate` found, as JSON, text and HTML, and shards of it joined |
//! | `rows` | records in CSV and JSON-lines files |
//! | `devices`, `memory` | what this machine has, and what a process takes of it |
//! | `report` | HTML reports with charts |
//! | `hierarchy` | workloads over simulated tiers, in virtual time |
//! | `cost` | what hierarchies cost, and which cost the same |
//! | `progress`, `escape`, `failure`, `log`, `signals` | bars, printable text, exit codes, warnings, limits as errors |

mod args;
mod bystanders;
mod commands;
mod config;
mod confine;
mod cost;
mod demo;
mod devices;
mod engine;
mod escape;
mod failure;
mod hierarchy;
mod log;
mod memory;
mod peers;
mod progress;
mod report;
mod reproduce;
mod rows;
mod signals;
mod simulation;
mod store;
mod units;
mod workload;

use std::env;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

fn main() -> ExitCode {
    signals::take_file_limits_as_errors();
    log::show_warnings();
    let done = config::expand(&args::Cli::command(), env::args_os().collect())
        // A wrong command line, and a request for help, end the process inside the parser.
        .map(args::Cli::parse_from)
        .and_then(|cli| commands::run(cli.command, &engine::Engine));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
