//! `terrace load`: records from a file or standard input into a table.
//!
//! Each batch is atomic. A malformed line stops the load with its line number. Earlier records
//! stay, and reloading overwrites them with the same values.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use serde::Serialize;
use terrace_common::failure::{Failure, Outcome};
use terrace_common::output::{print, print_json};
use terrace_common::progress::Progress;
use terrace_common::store::{Opener, Store};
use terrace_common::units::{show_count, show_size};

use super::table::with_table;
use crate::args::LoadArgs;
use crate::rows;

/// Bytes of keys and values per batch.
const BATCH_BYTES: usize = 1 << 20;
/// Records per batch.
const BATCH_RECORDS: usize = 4096;

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Loaded {
    table: String,
    records: u64,
    bytes: u64,
}

/// Loads a file.
pub fn run(args: &LoadArgs, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    let (input, name, length) = open(&args.file)?;
    let progress = match length {
        Some(length) => Progress::bytes("load", length),
        None => Progress::endless("load"),
    };
    let mut read =
        rows::read(Counted { input, progress: &progress }, &name, args.format, args.key.as_deref())?;
    let mut loaded =
        with_table(opener, &args.to.at.create(), &args.to, |store| store_all(store, &mut *read, &name))?;
    drop(read);
    drop(progress);
    loaded.table.clone_from(&args.to.table);
    if args.to.at.output.json {
        return print_json(output, &loaded);
    }
    let (records, size) = (show_count(loaded.records), show_size(loaded.bytes));
    let table = terrace_common::escape::bytes(loaded.table.as_bytes());
    print(output, format_args!("loaded {records} records ({size}) into {table}\n"))
}

fn open(path: &Path) -> Outcome<(Box<dyn Read>, String, Option<u64>)> {
    if path.as_os_str() == "-" {
        return Ok((Box::new(io::stdin().lock()), "standard input".to_owned(), None));
    }
    let failed = |error| Failure::file("reading", path, error);
    let file = File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if found.is_dir() {
        return Err(failed(io::Error::other("it is a directory; name a file")));
    }
    let length = found.is_file().then_some(found.len());
    Ok((Box::new(file), terrace_common::escape::path(path), length))
}

fn store_all(
    store: &dyn Store,
    records: &mut dyn Iterator<Item = Outcome<rows::Record>>,
    name: &str,
) -> Outcome<Loaded> {
    let mut loaded = Loaded::default();
    let mut batch = Vec::new();
    let mut batch_bytes = 0;
    for record in records {
        // Write the records before a malformed line, so that a load can resume at that line.
        let (key, value) = match record {
            Ok(record) => record,
            Err(error) => {
                write_batch(store, &batch)?;
                return Err(error);
            }
        };
        if key.len() > terrace::MAX_KEY_BYTES {
            write_batch(store, &batch)?;
            let record = loaded.records + batch.len() as u64 + 1;
            return Err(Failure::Work(format!(
                "{name}, record {record}: key of {} bytes is too large, at most {} are allowed",
                key.len(),
                terrace::MAX_KEY_BYTES
            )));
        }
        batch_bytes += key.len() + value.len();
        batch.push((key, value));
        if batch_bytes >= BATCH_BYTES || batch.len() >= BATCH_RECORDS {
            write(store, &mut batch, &mut batch_bytes, &mut loaded)?;
        }
    }
    write(store, &mut batch, &mut batch_bytes, &mut loaded)?;
    Ok(loaded)
}

fn write(
    store: &dyn Store,
    batch: &mut Vec<rows::Record>,
    bytes: &mut usize,
    loaded: &mut Loaded,
) -> Outcome {
    write_batch(store, batch)?;
    loaded.records += batch.len() as u64;
    loaded.bytes += *bytes as u64;
    batch.clear();
    *bytes = 0;
    Ok(())
}

/// Writes a batch, split if it exceeds the database's log. Log use per record depends on existing
/// data.
fn write_batch(store: &dyn Store, batch: &[rows::Record]) -> Outcome {
    match store.write(batch) {
        Err(Failure::Engine(terrace::Error::TransactionTooLarge { .. })) if batch.len() > 1 => {
            let (first, rest) = batch.split_at(batch.len() / 2);
            write_batch(store, first)?;
            write_batch(store, rest)
        }
        outcome => outcome,
    }
}

/// Advances a progress bar as it is read.
struct Counted<'a, R> {
    input: R,
    progress: &'a Progress,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.progress.add(read as u64);
        Ok(read)
    }
}
