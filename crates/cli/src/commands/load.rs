//! `terrace load`: records from a file or standard input into a table.
//!
//! Each batch is atomic. A malformed line stops the load with its line number. Earlier records
//! stay, and reloading overwrites them with the same values.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use terrace_common::failure::{Failure, Outcome};
use terrace_common::interrupt;
use terrace_common::output::{print, print_json};
use terrace_common::progress::Progress;
use terrace_common::store::{Opener, Store};
use terrace_common::units::{counted, show_size};

use super::table::with_table;
use crate::args::LoadArgs;
use crate::rows;

const BATCH_BYTES: usize = 1 << 20;
/// Records per batch.
const BATCH_RECORDS: usize = 4096;
/// Bytes per read of standard input.
const CHUNK_BYTES: usize = 64 << 10;
/// Interval of looking for a signal while standard input has nothing.
const WAIT: Duration = Duration::from_millis(50);

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
    let read = rows::read(Counted { input, progress: &progress }, &name, args.format, args.key.as_deref());
    interrupt::check()?;
    let mut read = read?;
    let mut loaded =
        with_table(opener, &args.settings(), &args.to, |store| store_all(store, &mut *read, &name))?;
    drop(read);
    drop(progress);
    loaded.table.clone_from(&args.to.table);
    if args.output.json {
        return print_json(output, &loaded);
    }
    let (records, size) = (counted(loaded.records, "record"), show_size(loaded.bytes));
    let table = terrace_common::escape::bytes(loaded.table.as_bytes());
    print(output, format_args!("loaded {records} ({size}) into {table}\n"))
}

fn open(path: &Path) -> Outcome<(Box<dyn Read>, String, Option<u64>)> {
    if path.as_os_str() == "-" {
        return Ok((Box::new(Input::start()), "standard input".to_owned(), None));
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
        interrupt::check()?;
        // Write the records before a malformed line, so that a load can resume at that line.
        let (key, value) = match record {
            Ok(record) => record,
            Err(error) => {
                write_batch(store, &batch)?;
                interrupt::check()?;
                let stored = loaded.records + batch.len() as u64;
                return Err(match error {
                    Failure::Work(what) if stored > 0 => {
                        Failure::Work(format!("{what}; loaded before it: {}", counted(stored, "record")))
                    }
                    error => error,
                });
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

/// Standard input, read by a thread, so that a signal can end a wait for it.
struct Input {
    chunks: Receiver<io::Result<Vec<u8>>>,
    chunk: io::Cursor<Vec<u8>>,
}

impl Input {
    fn start() -> Input {
        let (sender, chunks) = mpsc::sync_channel(2);
        thread::spawn(move || {
            let mut input = io::stdin().lock();
            loop {
                let mut chunk = vec![0; CHUNK_BYTES];
                let read = input.read(&mut chunk).map(|bytes| {
                    chunk.truncate(bytes);
                    chunk
                });
                let is_last = read.as_ref().map_or(true, Vec::is_empty);
                if sender.send(read).is_err() || is_last {
                    return;
                }
            }
        });
        Input { chunks, chunk: io::Cursor::default() }
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.chunk.position() == self.chunk.get_ref().len() as u64 {
            interrupt::check().map_err(io::Error::other)?;
            match self.chunks.recv_timeout(WAIT) {
                Ok(chunk) => self.chunk = io::Cursor::new(chunk?),
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Ok(0),
            }
            if self.chunk.get_ref().is_empty() {
                return Ok(0);
            }
        }
        self.chunk.read(buffer)
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
