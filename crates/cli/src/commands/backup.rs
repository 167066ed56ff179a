//! `terrace backup`: copies a database.
//!
//! A process that has a database open makes its backups itself, with `Db::backup`; this is for the others.

use std::io::Write;

use super::{print, print_json, with_database};
use crate::args::BackupArgs;
use crate::failure::Outcome;
use crate::progress::Progress;
use crate::store::Opener;
use crate::units::{show_count, show_size};

/// Copies a database to a directory.
pub fn run(args: &BackupArgs, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    let copied = with_database(opener, &args.from.read(), |database| {
        let _progress = Progress::endless("backup");
        database.backup(&args.destination)
    })?;
    if args.from.output.json {
        return print_json(output, &copied);
    }
    let (pages, file, log) =
        (show_count(copied.pages), show_size(copied.page_file_bytes), show_size(copied.log_bytes));
    let destination = crate::escape::path(&args.destination);
    print(output, format_args!("{destination}: {pages} pages in {file}, and {log} of log\n"))
}
