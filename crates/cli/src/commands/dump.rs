//! `terrace dump`: writes a table as lines that `load` reads back.

use std::io::{BufWriter, Write};
use std::ops::ControlFlow;

use terrace_common::failure::{Failure, Outcome};
use terrace_common::interrupt;
use terrace_common::progress::Progress;
use terrace_common::store::Opener;

use super::table::with_table;
use crate::args::{DumpArgs, DumpFormat};
use crate::rows;

/// Writes a table to standard output.
pub fn run(args: &DumpArgs, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    let DumpFormat::Jsonl = args.format;
    with_table(opener, &args.from.at.read(), &args.from, |store| {
        let progress = Progress::counting("dump", "entries");
        let mut output = BufWriter::with_capacity(1 << 16, output);
        let mut outcome = Ok(());
        store.scan(b"", &mut |key, value| {
            progress.add(1);
            outcome = interrupt::check().and_then(|()| rows::write(&mut output, key, value));
            if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        outcome.and_then(|()| output.flush().map_err(Failure::output))
    })
}
