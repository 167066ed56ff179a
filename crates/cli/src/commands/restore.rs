//! `terrace restore`: makes a database from a backup, replays its log and verifies it.

use std::io::Write;

use serde::Serialize;
use terrace::{BackupReport, VerifyReport};
use terrace_common::engine;
use terrace_common::failure::{Failure, Outcome};
use terrace_common::interrupt::{self, Leftover};
use terrace_common::output::{print, print_json};
use terrace_common::progress::Progress;
use terrace_common::store::{Opener, with_database};
use terrace_common::tiers::TierArgs;
use terrace_common::units::{counted, show_size};

use crate::args::RestoreArgs;

/// What was restored, and its verification.
#[derive(Serialize)]
struct Restored {
    #[serde(flatten)]
    copied: BackupReport,
    #[serde(flatten)]
    found: VerifyReport,
}

/// Restores a backup.
pub fn run(args: &RestoreArgs, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    let progress = Progress::endless("restore");
    let leftover = Leftover::files(&args.to.database);
    let copied = interrupt::at_once(|| engine::restore(&args.source, &args.to.database))?;
    drop((progress, leftover));
    let found = with_database(opener, &args.to.open(TierArgs::default()), |database| {
        let _progress = Progress::endless("verify");
        interrupt::at_once(|| database.verify())
    })?;
    let (database, damaged) = (terrace_common::escape::path(&args.to.database), found.error_count());
    let restored = Restored { copied, found };
    if args.output.json {
        print_json(output, &restored)?;
    } else if damaged == 0 {
        let (pages, log) = (counted(restored.copied.pages, "page"), show_size(restored.copied.log_bytes));
        let entries = counted(restored.found.entries_checked, "entry");
        print(
            output,
            format_args!("{database}: {pages} restored, {log} of log replayed; sound, {entries}\n"),
        )?;
    }
    match damaged {
        0 => Ok(()),
        count => Err(Failure::Damaged(format!(
            "{database} is damaged in {count} places, as was its backup; `terrace verify` lists them"
        ))),
    }
}
