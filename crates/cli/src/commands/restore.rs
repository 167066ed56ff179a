//! `terrace restore`: makes a database of a backup, opens it, which replays its log, and checks all of it.

use std::io::Write;

use serde::Serialize;

use super::{print, print_json, with_database};
use crate::args::RestoreArgs;
use crate::engine;
use crate::failure::{Failure, Outcome};
use crate::progress::Progress;
use crate::store::{Copied, Opener, Verification};
use crate::units::{show_count, show_size};

/// What was restored, and what it turned out to be.
#[derive(Serialize)]
struct Restored {
    #[serde(flatten)]
    copied: Copied,
    #[serde(flatten)]
    found: Verification,
}

/// Restores a backup.
pub fn run(args: &RestoreArgs, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    let progress = Progress::endless("restore");
    let copied = engine::restore(&args.source, &args.to.database)?;
    drop(progress);
    let found = with_database(opener, &args.to.write(), |database| {
        let _progress = Progress::endless("verify");
        database.verify()
    })?;
    let (database, damaged) = (crate::escape::path(&args.to.database), found.error_count());
    let restored = Restored { copied, found };
    if args.to.output.json {
        print_json(output, &restored)?;
    } else if damaged == 0 {
        let (pages, log) = (show_count(restored.copied.pages), show_size(restored.copied.log_bytes));
        let entries = show_count(restored.found.entries_checked);
        print(
            output,
            format_args!(
                "{database}: {pages} pages restored, {log} of log replayed; sound, {entries} entries\n"
            ),
        )?;
    }
    match damaged {
        0 => Ok(()),
        count => Err(Failure::Damaged(format!(
            "{database} is damaged in {count} places, and so was what was backed up; `terrace verify` names them"
        ))),
    }
}
