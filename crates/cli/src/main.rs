//! The `terrace` command.
//!
//! | module | contents |
//! |---|---|
//! | `args`, `config` | the command line and `--config` files |
//! | `commands` | one file per command |
//! | `demo` | real records, an audited workload, and its ledger |
//! | `simulation` | results of `simulate` as JSON, text and HTML, and merging of shards |
//! | `rows` | records in CSV and JSON-lines files |
//! | `devices` | hardware of this machine |
//! | `log`, `signals` | warnings; file size limits, the end by a signal |
//!
//! `bench` and `reproduce` are in `terrace-lab`, an optional dependency.

mod args;
mod commands;
mod config;
mod demo;
mod devices;
mod log;
mod rows;
mod signals;
mod simulation;

use std::env;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use terrace_common::engine;

fn main() -> ExitCode {
    signals::take_file_limits_as_errors();
    log::show_warnings();
    let done = config::expand(&args::Cli::command(), env::args_os().collect())
        // The parser exits by itself on a wrong command line or a request for help.
        .map(args::Cli::parse_from)
        .and_then(|cli| commands::run(cli.command, &engine::Engine));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
