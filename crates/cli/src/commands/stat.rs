//! `terrace stat`: contents of a database and its space.

use std::io::Write;

use terrace::{Compression, MiddleClass};
use terrace_common::failure::Outcome;
use terrace_common::output::{print, print_json};
use terrace_common::store::{Opener, with_database};
use terrace_common::units::{counted, show_count, show_size};

use crate::args::StatArgs;

/// Shows a database's statistics.
pub fn run(args: &StatArgs, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    let stat = with_database(opener, &args.settings(), |database| database.stat())?;
    if args.output.json {
        return print_json(output, &stat);
    }
    if args.prometheus {
        return print(output, format_args!("{}", stat.prometheus));
    }
    let (pages, free) = (counted(stat.pages, "page"), show_count(stat.free_pages));
    let page = show_size(stat.page_bytes);
    print(output, format_args!("format {}, {pages} in use, room for {free} more of {page}\n", stat.format))?;
    let (file, log) = (show_size(stat.file_bytes), show_size(stat.log_bytes));
    let (checkpoint, budget) = (stat.last_checkpoint_lsn, show_size(stat.budget_bytes));
    print(
        output,
        format_args!("page file {file}, log {log} (last checkpoint at {checkpoint}), memory {budget}\n"),
    )?;
    for class in stat.frames.iter().filter(|_| stat.frames.len() > 1) {
        let (frames, page, bytes) =
            (counted(class.frames, "frame"), show_size(class.page_bytes), show_size(class.bytes));
        print(output, format_args!("{frames} for pages of {page}, {bytes}\n"))?;
    }
    if let Some(middle) = &stat.middle {
        let of_class = |class: &MiddleClass| {
            format!("{} for pages of {}", counted(class.frames, "frame"), show_size(class.page_bytes))
        };
        let (bytes, frames) = (show_size(middle.bytes), middle.classes.iter().map(of_class));
        let frames = frames.collect::<Vec<_>>().join(", ");
        print(output, format_args!("middle tier {bytes}, {frames}\n"))?;
        if !middle.other_page_bytes.is_empty() {
            let others: Vec<String> = middle.other_page_bytes.iter().copied().map(show_size).collect();
            let others = others.join(", ");
            print(output, format_args!("pages of {others} do not go to the middle tier\n"))?;
        }
    }
    for table in &stat.tables {
        let name = terrace_common::escape::bytes(table.name.as_bytes());
        let entries = counted(table.entries, "entry");
        let page = show_size(table.page_bytes);
        let pages = match table.pages {
            Some(pages) => format!(" in {} of {page}", counted(pages, "page")),
            None => format!(" in pages of {page}"),
        };
        let values = match table.value_page_bytes_max {
            most if most > table.page_bytes => format!(", values in pages up to {}", show_size(most)),
            _ => String::new(),
        };
        // The saved number plus the changes since, which lacks those that recovery redid.
        let about = match table.entries_exact {
            true => "",
            false => " by a count that a crash left incomplete (terrace verify counts all)",
        };
        let how = match table.compression {
            Compression::None => String::new(),
            compression => format!(", {compression}"),
        };
        print(output, format_args!("table {name}: {entries}{about}{pages}{values}{how}\n"))?;
    }
    Ok(())
}
