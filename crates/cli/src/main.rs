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

use clap::{Command, CommandFactory, FromArgMatches};
use terrace_common::engine;

fn main() -> ExitCode {
    signals::take_file_limits_as_errors();
    log::show_warnings();
    let line = taking_negative_numbers(args::Cli::command());
    let done = config::expand(&line, env::args_os().collect())
        // The parser exits by itself on a wrong command line or a request for help.
        .map(|arguments| {
            let matches = line.clone().get_matches_from(arguments);
            args::Cli::from_arg_matches(&matches)
                .unwrap_or_else(|error| error.format(&mut line.clone()).exit())
        })
        .and_then(|cli| commands::run(cli.command, &engine::Engine));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Lets options have negative numbers, so that their own parsers refuse them: `-3` is no flag.
fn taking_negative_numbers(command: Command) -> Command {
    let command = command.mut_args(|arg| match arg.get_long().is_some() && arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    });
    command.mut_subcommands(taking_negative_numbers)
}
