//! One file per command. Each `run` takes the parsed flags and, for a database, an [`Opener`].

mod backup;
mod compact;
mod demo;
mod devices;
mod dump;
mod entries;
mod load;
#[cfg(feature = "mount")]
mod mount;
mod repair;
mod restore;
mod shell;
mod simulate;
mod stat;
mod table;
mod verify;

use std::io::{self, Write};

use terrace_common::failure::Outcome;
use terrace_common::interrupt;
use terrace_common::store::Opener;

use crate::args::Command;
use crate::signals;

/// Runs a command.
pub fn run(command: Command, opener: &dyn Opener) -> Outcome {
    if let Command::Demo(args) = &command
        && args.victim
    {
        // The victim's threads write to standard output themselves, so it stays unlocked here.
        return demo::victim(args, opener);
    }
    signals::end_in_order()?;
    dispatch(command, opener, &mut io::stdout().lock())
}

fn dispatch(command: Command, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    match command {
        Command::Demo(args) => demo::run(&args, opener, output),
        #[cfg(feature = "lab")]
        Command::Bench(command) => terrace_lab::bench(command, opener, output),
        Command::Load(args) => load::run(&args, opener, output),
        Command::Dump(args) => dump::run(&args, opener, output),
        Command::Get(args) => entries::get(&args, opener, output),
        Command::Put(args) => entries::put(&args, opener, output),
        Command::Delete(args) => entries::delete(&args, opener, output),
        Command::Scan(args) => entries::scan(&args, opener, output),
        Command::Stat(args) => stat::run(&args, opener, output),
        Command::Verify(args) => verify::run(&args, opener, output),
        Command::Backup(args) => backup::run(&args, opener, output),
        Command::Repair(args) => repair::run(&args, output),
        Command::Restore(args) => restore::run(&args, opener, output),
        Command::Compact(args) => compact::run(&args, opener, output),
        #[cfg(feature = "lab")]
        Command::Reproduce(args) => terrace_lab::reproduce(&args, output),
        #[cfg(feature = "mount")]
        Command::Mount(args) => mount::run(&args, output),
        Command::Simulate(args) => interrupt::at_once(|| simulate::run(&args, output)),
        Command::Devices(args) => interrupt::at_once(|| devices::run(&args, output)),
        Command::Completions(args) => shell::completions(&args, output),
        Command::Man(args) => shell::man(&args, output),
        #[cfg(not(feature = "lab"))]
        Command::Bench(_) => Err(without_lab("bench")),
        #[cfg(not(feature = "lab"))]
        Command::Reproduce(_) => Err(without_lab("reproduce")),
    }
}

/// The error of a build without the lab.
#[cfg(not(feature = "lab"))]
fn without_lab(command: &str) -> terrace_common::failure::Failure {
    terrace_common::failure::Failure::Usage(format!("this build has no {command}; build with --features lab"))
}

#[cfg(test)]
mod tests;
