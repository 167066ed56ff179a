//! `terrace verify`: checks everything; exit code 3 on damage.
//!
//! Damage that prevents opening the database is a finding too, reported alone.

use std::io::Write;

use terrace::{Damage, Error, VerifyReport};
use terrace_common::engine;
use terrace_common::failure::{Failure, Outcome};
use terrace_common::interrupt;
use terrace_common::output::{print, print_json};
use terrace_common::store::{Opener, with_database};
use terrace_common::units::{counted, show_count, show_size};

use crate::args::VerifyArgs;

/// Checks a database or a backup.
pub fn run(args: &VerifyArgs, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    let checked = interrupt::at_once(|| match engine::check_backup(&args.of.database)? {
        None => with_database(opener, &args.of.read(), |database| database.verify()),
        Some(found) => Ok(found),
    });
    let found = match checked {
        Err(Failure::Engine(Error::Corrupt { file, page, what })) => {
            let mut found = VerifyReport::default();
            found.errors.push(Damage { file, page, what });
            found
        }
        checked => checked?,
    };
    let (pages, entries) = (counted(found.pages_checked, "page"), counted(found.entries_checked, "entry"));
    if args.output.json {
        print_json(output, &found)?;
    } else {
        list(&found, output)?;
        if found.errors.is_empty() {
            let log = match found.log_bytes_checked {
                0 => String::new(),
                bytes => format!(", and {} of log, whose entries are not counted", show_size(bytes)),
            };
            print(output, format_args!("sound: {pages} and {entries} checked{log}\n"))?;
        }
    }
    match found.error_count() {
        0 => Ok(()),
        count => Err(Failure::Damaged(format!(
            "{} is damaged in {} ({pages} checked); restore a backup, or save the rest with `terrace repair`",
            terrace_common::escape::path(&args.of.database),
            counted(count, "place")
        ))),
    }
}

/// Prints one line per finding.
fn list(found: &VerifyReport, output: &mut dyn Write) -> Outcome {
    for damage in &found.errors {
        let page = damage.page.map(|page| format!(", page {page}")).unwrap_or_default();
        let (file, what) =
            (terrace_common::escape::text(&damage.file), terrace_common::escape::text(&damage.what));
        print(output, format_args!("{file}{page}: {what}\n"))?;
    }
    if found.more_errors > 0 {
        let more = show_count(found.more_errors);
        print(output, format_args!("and {more} more, which are not listed\n"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_listed_is_counted() {
        let damage = Damage { file: "pages".into(), page: Some(7), what: "bad".into() };
        let mut found = VerifyReport::default();
        (found.errors, found.more_errors) = (vec![damage], 12_345);
        let mut text = Vec::new();
        list(&found, &mut text).unwrap();
        let expected = format!("pages, page 7: bad\nand {} more, which are not listed\n", show_count(12_345));
        assert_eq!((String::from_utf8(text).unwrap(), found.error_count()), (expected, 12_346));
    }
}
