//! `terrace backup`: copies a database.
//!
//! A process that has the database open calls `Db::backup` instead.

use std::io::Write;

use terrace_common::failure::Outcome;
use terrace_common::interrupt::{self, Leftover};
use terrace_common::output::{print, print_json};
use terrace_common::progress::Progress;
use terrace_common::store::{Opener, with_database};
use terrace_common::units::{counted, show_size};

use crate::args::BackupArgs;

/// Copies a database to a directory.
pub fn run(args: &BackupArgs, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    let copied = with_database(opener, &args.from.read(), |database| {
        let _progress = Progress::endless("backup");
        let _leftover = Leftover::files(&args.destination);
        interrupt::at_once(|| database.backup(&args.destination))
    })?;
    if args.output.json {
        return print_json(output, &copied);
    }
    let (pages, file, log) =
        (counted(copied.pages, "page"), show_size(copied.page_file_bytes), show_size(copied.log_bytes));
    let destination = terrace_common::escape::path(&args.destination);
    print(output, format_args!("{destination}: {pages} in {file}, and {log} of log\n"))
}
