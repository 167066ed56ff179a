//! `terrace compact`: makes the page file as short as what is in it allows.

use std::io::Write;

use super::{print, print_json, with_database};
use crate::args::DatabaseArgs;
use crate::failure::Outcome;
use crate::progress::Progress;
use crate::store::Opener;
use crate::units::{show_count, show_size};

/// Compacts a database.
pub fn run(args: &DatabaseArgs, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    let bar = Progress::endless("compacting");
    let done = with_database(opener, &args.write(), |database| {
        database.compact(&mut |so_far| bar.set(so_far.pages_moved))
    })?;
    drop(bar);
    if args.output.json {
        return print_json(output, &done);
    }
    let (before, after) = (show_size(done.file_bytes_before), show_size(done.file_bytes_after));
    let pages = show_count(done.pages_moved);
    print(output, format_args!("page file {before} before, {after} now; {pages} pages moved\n"))
}
