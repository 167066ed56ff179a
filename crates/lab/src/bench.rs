//! `terrace bench`: one file per benchmark.

mod child;
mod column;
mod compare;
mod get_many;
mod ground;
mod pages;
mod restart;
mod tpcc;
mod ycsb;

use std::io::Write;

use terrace_common::failure::Outcome;
use terrace_common::store::Opener;

use crate::args::BenchCommand;

/// Runs a benchmark.
pub fn run(command: BenchCommand, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    match command {
        BenchCommand::Ycsb(args) => ycsb::run(&args, opener, output),
        BenchCommand::Tpcc(args) => tpcc::run(&args, output),
        BenchCommand::GetMany(args) => get_many::run(&args, opener, output),
        BenchCommand::Pages(args) => pages::run(&args, output),
        BenchCommand::Column(args) => column::run(&args, output),
        BenchCommand::Restart(args) => restart::run(&args, opener, output),
    }
}

#[cfg(test)]
mod tests;
