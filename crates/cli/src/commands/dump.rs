//! `terrace dump`: a table as lines that `load` reads back.

use std::io::{BufWriter, Write};
use std::ops::ControlFlow;

use super::with_table;
use crate::args::{DumpArgs, DumpFormat};
use crate::failure::{Failure, Outcome};
use crate::progress::Progress;
use crate::rows;
use crate::store::Opener;

/// Writes a table to standard output.
pub fn run(args: &DumpArgs, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    if args.from.at.output.json {
        let message = "dump writes one object a line, --json promises a single one; leave --json out";
        return Err(Failure::Usage(message.to_owned()));
    }
    let DumpFormat::Jsonl = args.format;
    with_table(opener, &args.from.at.read(), &args.from, |store| {
        let progress = Progress::endless("dump");
        let mut output = BufWriter::with_capacity(1 << 16, output);
        let mut outcome = Ok(());
        store.scan(b"", &mut |key, value| {
            progress.add(1);
            outcome = rows::write(&mut output, key, value);
            if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        outcome.and_then(|()| output.flush().map_err(Failure::output))
    })
}
