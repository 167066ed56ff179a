//! `terrace compact`: shrinks the page file to fit its contents.

use std::io::Write;
use std::ops::ControlFlow;

use terrace_common::failure::Outcome;
use terrace_common::interrupt;
use terrace_common::output::{print, print_json};
use terrace_common::progress::Progress;
use terrace_common::store::{Opener, with_database};
use terrace_common::units::{counted, show_size};

use crate::args::CompactArgs;

/// Compacts a database.
pub fn run(args: &CompactArgs, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    let bar = Progress::counting("compacting", "pages moved");
    let done = with_database(opener, &args.settings(), |database| {
        let done = database.compact(&mut |so_far| {
            bar.set(so_far.pages_moved);
            if interrupt::check().is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        interrupt::check().map(|()| done)
    })?;
    drop(bar);
    if args.output.json {
        return print_json(output, &done);
    }
    let (before, after) = (show_size(done.file_bytes_before), show_size(done.file_bytes_after));
    let pages = counted(done.pages_moved, "page");
    print(output, format_args!("page file {before} before, {after} now; {pages} moved\n"))
}
