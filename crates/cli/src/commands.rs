//! One file per command. Each has a `run` that takes the parsed flags and, where it needs a database, an [`Opener`].

mod backup;
mod bench;
mod column;
mod compact;
mod compare;
mod demo;
mod devices;
mod dump;
mod entries;
mod get_many;
mod load;
mod pages;
mod repair;
mod reproduce;
mod restore;
mod simulate;
mod stat;
mod verify;

use std::io::{self, Write};

use serde::Serialize;

use crate::args::{BenchCommand, Command, TableArgs};
use crate::failure::{Failure, Outcome};
use crate::store::{Database, Opener, Settings, Store};

/// Runs a command.
pub fn run(command: Command, opener: &dyn Opener) -> Outcome {
    if let Command::Demo(args) = &command
        && args.victim
    {
        // Its threads write to standard output themselves, so it must not be locked here.
        return demo::victim(args, opener);
    }
    dispatch(command, opener, &mut io::stdout().lock())
}

fn dispatch(command: Command, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    match command {
        Command::Demo(args) => demo::run(&args, opener, output),
        Command::Bench(BenchCommand::Ycsb(args)) => bench::run(&args, opener, output),
        Command::Bench(BenchCommand::GetMany(args)) => get_many::run(&args, opener, output),
        Command::Bench(BenchCommand::Pages(args)) => pages::run(&args, output),
        Command::Bench(BenchCommand::Column(args)) => column::run(&args, output),
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
        Command::Reproduce(args) => reproduce::run(&args, output),
        Command::Simulate(args) => simulate::run(&args, output),
        Command::Devices(args) => devices::run(&args, output),
    }
}

/// Writes the one JSON object of `--json`.
fn print_json(output: &mut dyn Write, object: &impl Serialize) -> Outcome {
    let mut text = serde_json::to_string(object).map_err(|error| Failure::Work(error.to_string()))?;
    text.push('\n');
    print(output, format_args!("{text}"))
}

/// Writes to standard output.
fn print(output: &mut dyn Write, text: std::fmt::Arguments<'_>) -> Outcome {
    output.write_fmt(text).and_then(|()| output.flush()).map_err(Failure::output)
}

/// Opens a table, hands it to `work` and closes the database, also after a failure.
fn with_table<T>(
    opener: &dyn Opener,
    settings: &Settings,
    args: &TableArgs,
    work: impl FnOnce(&dyn Store) -> Outcome<T>,
) -> Outcome<T> {
    with_database(opener, settings, |database| {
        let table = database.table(&args.table, settings.create)?;
        work(&*table)
    })
}

/// Opens a database, hands it to `work` and closes it, also after a failure.
fn with_database<T>(
    opener: &dyn Opener,
    settings: &Settings,
    work: impl FnOnce(&dyn Database) -> Outcome<T>,
) -> Outcome<T> {
    let database = opener.open(settings)?;
    let worked = work(&*database);
    let closed = database.close();
    // The first failure is the one to tell; a failed close matters when there was none.
    worked.and_then(|value| closed.map(|()| value))
}

#[cfg(test)]
mod tests;
