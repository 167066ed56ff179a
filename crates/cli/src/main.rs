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

use std::any::TypeId;
use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Command, CommandFactory, FromArgMatches};
use terrace_common::engine;

fn main() -> ExitCode {
    signals::take_file_limits_as_errors();
    log::show_warnings();
    let line = taking_hyphens(args::Cli::command());
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

/// Lets options of numbers and names have values that begin with a hyphen, so that their own
/// parsers refuse them: `-3MiB` is no flag. Options of any text would take the next flag for a
/// value.
fn taking_hyphens(command: Command) -> Command {
    let texts = [TypeId::of::<String>(), TypeId::of::<OsString>(), TypeId::of::<PathBuf>()];
    let command = command.mut_args(|arg| {
        let is_option = arg.get_long().is_some() && arg.get_action().takes_values();
        let is_text = texts.iter().any(|text| arg.get_value_parser().type_id() == *text);
        match (is_option, is_text) {
            (false, _) => arg,
            (true, true) => arg.allow_negative_numbers(true),
            (true, false) => arg.allow_hyphen_values(true),
        }
    });
    command.mut_subcommands(taking_hyphens)
}
