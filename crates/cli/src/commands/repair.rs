//! `terrace repair`: salvages intact data from a damaged database; exit code 3 on loss.

use std::io::Write;

use serde::Serialize;
use terrace_common::engine;
use terrace_common::escape::{self, Bytes};
use terrace_common::failure::{Failure, Outcome};
use terrace_common::interrupt::{self, Leftover};
use terrace_common::output::{print, print_json};
use terrace_common::progress::Progress;
use terrace_common::units::counted;

use crate::args::RepairArgs;

/// The `--json` output.
#[derive(Serialize)]
struct Repaired<'a> {
    pages_checked: u64,
    entries: u64,
    consistent: bool,
    uncommitted: u64,
    lost_pages: Vec<LostPage<'a>>,
    tables: Vec<Table<'a>>,
    notes: &'a [String],
}

#[derive(Serialize)]
struct LostPage<'a> {
    page: u64,
    what: &'a str,
}

#[derive(Serialize)]
struct Table<'a> {
    name: &'a str,
    entries: u64,
    lost_ranges: Vec<LostRange<'a>>,
    lost_values: Vec<Bytes<'a>>,
}

#[derive(Serialize)]
struct LostRange<'a> {
    from: Bytes<'a>,
    to: Option<Bytes<'a>>,
}

impl<'a> From<&'a terrace::RepairReport> for Repaired<'a> {
    fn from(report: &'a terrace::RepairReport) -> Self {
        let range = |(from, to): &'a (Vec<u8>, Option<Vec<u8>>)| LostRange {
            from: Bytes::from(&from[..]),
            to: to.as_deref().map(Bytes::from),
        };
        let table = |table: &'a terrace::RepairedTable| Table {
            name: &table.name,
            entries: table.entries,
            lost_ranges: table.lost_ranges.iter().map(range).collect(),
            lost_values: table.lost_values.iter().map(|key| Bytes::from(&key[..])).collect(),
        };
        Repaired {
            pages_checked: report.pages_checked,
            entries: report.entries,
            consistent: report.consistent,
            uncommitted: report.uncommitted,
            lost_pages: report.lost_pages.iter().map(|(page, what)| LostPage { page: *page, what }).collect(),
            tables: report.tables.iter().map(table).collect(),
            notes: &report.notes,
        }
    }
}

/// Repairs a database into a new one.
pub fn run(args: &RepairArgs, output: &mut dyn Write) -> Outcome {
    let progress = Progress::endless("repair");
    let settings = args.settings();
    let leftover = Leftover::files(&args.destination);
    let report = interrupt::at_once(|| engine::repair(&settings, &args.from.database, &args.destination))?;
    drop((progress, leftover));
    if args.output.json {
        print_json(output, &Repaired::from(&report))?;
    } else {
        tell(&report, output)?;
    }
    if report.is_complete() {
        return Ok(());
    }
    Err(Failure::Damaged(format!(
        "{} was damaged; saved in {}: {}; others may be lost",
        escape::path(&args.from.database),
        escape::path(&args.destination),
        counted(report.entries, "entry")
    )))
}

fn tell(report: &terrace::RepairReport, output: &mut dyn Write) -> Outcome {
    for note in &report.notes {
        print(output, format_args!("{}\n", escape::text(note)))?;
    }
    if !report.consistent {
        let meaning = "values may be older ones, and deleted keys may be back";
        print(output, format_args!("page table or log is not whole: {meaning}\n"))?;
    }
    for (page, what) in &report.lost_pages {
        print(output, format_args!("lost: page {page}: {}\n", escape::text(what)))?;
    }
    if report.uncommitted > 0 {
        let count = counted(report.uncommitted, "entry");
        print(output, format_args!("lost: {count} changed by transactions that had not committed\n"))?;
    }
    for table in &report.tables {
        let name = escape::bytes(table.name.as_bytes());
        for (from, to) in &table.lost_ranges {
            let to = to.as_ref().map_or("the end".to_owned(), |to| escape::bytes(to));
            print(output, format_args!("lost: table {name}, keys from {} to {to}\n", escape::bytes(from)))?;
        }
        for key in &table.lost_values {
            print(output, format_args!("lost: table {name}, the value of {}\n", escape::bytes(key)))?;
        }
        print(output, format_args!("table {name}: {} saved\n", counted(table.entries, "entry")))?;
    }
    Ok(())
}
