//! `terrace get`, `put`, `delete` and `scan`: commands on single entries.

use std::ffi::OsString;
use std::io::{self, BufWriter, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;

use serde::Serialize;
use terrace_common::escape::{self, Bytes};
use terrace_common::failure::{Failure, Outcome};
use terrace_common::interrupt;
use terrace_common::output::{print, print_json};
use terrace_common::store::Opener;

use super::table::with_table;
use crate::args::{DeleteArgs, GetArgs, PutArgs, ScanArgs};

#[derive(Serialize)]
struct Entry<'a> {
    key: Bytes<'a>,
    value: Option<Bytes<'a>>,
}

/// Prints one value.
pub fn get(args: &GetArgs, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    let key = args.key.as_bytes();
    let value = with_table(opener, &args.from.at.read(), &args.from, |store| store.get(key))?;
    if args.output.json {
        print_json(output, &Entry { key: key.into(), value: value.as_deref().map(Into::into) })?;
    }
    let value = value.ok_or_else(|| no_key(key, &args.from.table))?;
    match (args.output.json, args.raw) {
        (true, _) => Ok(()),
        (false, true) => output.write_all(&value).and_then(|()| output.flush()).map_err(Failure::output),
        (false, false) => print(output, format_args!("{}\n", escape::bytes(&value))),
    }
}

/// Sets one key.
pub fn put(args: &PutArgs, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    let key = args.key.as_bytes();
    let mut value = args.value.as_bytes().to_vec();
    if value == b"-" {
        value.clear();
        let most = terrace::MAX_VALUE_BYTES as u64 + 1;
        interrupt::at_once(|| {
            let read = io::stdin().lock().take(most).read_to_end(&mut value);
            read.map_err(|error| Failure::Work(format!("reading standard input failed: {error}")))
        })?;
    }
    with_table(opener, &args.settings(), &args.to, |store| store.put(key, &value))?;
    #[derive(Serialize)]
    struct Put<'a> {
        key: Bytes<'a>,
        value_bytes: usize,
    }
    match args.output.json {
        true => print_json(output, &Put { key: key.into(), value_bytes: value.len() }),
        false => Ok(()),
    }
}

/// Removes one key.
pub fn delete(args: &DeleteArgs, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    let key = args.key.as_bytes();
    let deleted = with_table(opener, &args.settings(), &args.from, |store| store.delete(key))?;
    if args.output.json {
        #[derive(Serialize)]
        struct Deleted<'a> {
            key: Bytes<'a>,
            deleted: bool,
        }
        print_json(output, &Deleted { key: key.into(), deleted })?;
    }
    if deleted { Ok(()) } else { Err(no_key(key, &args.from.table)) }
}

/// Prints entries in key order.
pub fn scan(args: &ScanArgs, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    let bytes = |text: &Option<OsString>| text.as_ref().map(|text| text.as_bytes().to_vec());
    let prefix = bytes(&args.prefix).unwrap_or_default();
    let from = bytes(&args.from).unwrap_or_default().max(prefix.clone());
    let to = bytes(&args.to);
    let limit = args.limit.unwrap_or(u64::MAX);
    let json = args.output.json;
    with_table(opener, &args.of.at.read(), &args.of, |store| {
        let mut output = BufWriter::new(output);
        let mut count = 0u64;
        let mut stopped = Ok(());
        let mut written = if json { output.write_all(b"{\"entries\":[") } else { Ok(()) };
        if limit > 0 && written.is_ok() {
            store.scan(&from, &mut |key, value| {
                stopped = interrupt::check();
                if stopped.is_err()
                    || !key.starts_with(&prefix)
                    || to.as_ref().is_some_and(|to| key >= to.as_slice())
                {
                    return ControlFlow::Break(());
                }
                written = match json {
                    true => write_object(&mut output, count, key, value),
                    false => writeln!(output, "{}\t{}", escape::bytes(key), escape::bytes(value)),
                };
                count += 1;
                if written.is_ok() && count < limit {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })?;
        }
        stopped?;
        written
            .and_then(|()| if json { writeln!(output, "],\"count\":{count}}}") } else { Ok(()) })
            .and_then(|()| output.flush())
            .map_err(Failure::output)
    })
}

fn write_object(output: &mut impl Write, before: u64, key: &[u8], value: &[u8]) -> io::Result<()> {
    if before > 0 {
        output.write_all(b",")?;
    }
    Ok(serde_json::to_writer(output, &Entry { key: key.into(), value: Some(value.into()) })?)
}

fn no_key(key: &[u8], table: &str) -> Failure {
    Failure::Work(format!("table {table:?} has no key {}", escape::bytes(key)))
}
