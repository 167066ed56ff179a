//! Block traces: the requests to a disk, or to a cache above one.
//!
//! A [`Trace`] reads a file in constant memory and yields [`Event`]s: a [`Request`] for each block,
//! and relations and queries if the format has them. Requests of many blocks become one event per
//! block, in ascending order.
//!
//! | module           | ending           | content                                         |
//! |------------------|------------------|-------------------------------------------------|
//! | `lis`            | `.lis`           | lines `start count ignored request` (ARC paper) |
//! | `u32le`          | `.u32le`         | block numbers of four bytes, little-endian      |
//! | `csv`            | `.csv`           | comma-separated lines with named columns        |
//! | `known`          | `.msr` and more  | collections of traces with known columns        |
//! | `pgt`            | `.pgt`           | PostgreSQL pages, with relations and queries    |
//! | `oracle_general` | `.oracleGeneral` | libCacheSim's records of 24 bytes               |
//! | `blktrace`       | `.blktrace`      | the text output of `blkparse`                   |
//! | `vscsi`          | `.vscsi`         | VMware's records of virtual SCSI commands       |
//! | `fio`            | `.fio`, `.iolog` | fio's log of requests, versions 2 and 3         |
//! | `columns`, `fields`, `devices` |    | parts of these parsers                          |
//! | `parse`          |                  | common parts of the parsers                     |
//! | `write`          | `.pgt`, `.csv`   | writes these two                                |
//! | `input`          | `.zst`, `.gz` after any | lines and records, perhaps compressed    |
//!
//! Files are untrusted: no content makes a reader panic, hang, or take more memory than a line
//! ([`LINE_BYTES_MAX`]) and a compression window (128 MiB). Invalid content ends the trace with
//! [`TraceError::Malformed`], which names file, line or record, and reason.

mod blktrace;
mod columns;
mod csv;
mod devices;
mod event;
mod fields;
mod fio;
mod format;
mod input;
mod known;
mod lis;
mod oracle_general;
mod parse;
mod pgt;
mod u32le;
mod vscsi;
mod write;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

pub use columns::Columns;
pub use event::{BLOCK_BYTES, Event, LINE_BYTES_MAX, Query, REQUEST_BLOCKS_MAX, Relation, Request};
pub use format::{Format, UnknownFormat};
pub use write::TraceWriter;

use input::Input;
use parse::{ParseError, Parsed, Span};

/// An error that ends a trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// An error of the operating system.
    #[error("reading the trace {file} failed: {source}")]
    Io {
        /// The trace.
        file: String,
        /// The reason.
        source: io::Error,
    },
    /// Content that violates the format.
    #[error("the trace {file} is malformed in {unit} {number}: {reason}")]
    Malformed {
        /// The trace.
        file: String,
        /// The format's unit: `line` or `record`.
        unit: &'static str,
        /// The unit's number, from 1 on.
        number: u64,
        /// The reason.
        reason: String,
    },
    /// Neither the file's ending nor the caller tells the format.
    #[error("{0}")]
    Format(#[from] UnknownFormat),
}

/// An open trace: an iterator over its events, which ends after an error.
///
/// ```
/// use terrace_cache::trace::{Event, Format, Trace};
///
/// let text = b"10 2 0 0\n7 1 0 1\n";
/// let format: Format = "lis".parse().unwrap();
/// let blocks: Vec<u64> = Trace::new("sample.lis", &text[..], format, 4096)
///     .map(|event| match event.unwrap() {
///         Event::Request(request) => request.block,
///         other => panic!("{other:?}"),
///     })
///     .collect();
/// assert_eq!(blocks, [10, 11, 7]);
/// ```
pub struct Trace {
    name: String,
    parser: Parser,
    input: Input,
    /// The rest of a multi-block request.
    span: Span,
    bytes_read: Arc<AtomicU64>,
    /// Read before its turn.
    ahead: Option<Result<Event, TraceError>>,
    ended: bool,
}

impl Trace {
    /// Opens a file in `format`, or in that of its ending, which may also tell the compression.
    ///
    /// `block_bytes` is the block size for formats with positions in bytes or sectors; others
    /// number blocks themselves.
    pub fn open(path: &Path, format: Option<Format>, block_bytes: u32) -> Result<Trace, TraceError> {
        let format = match format {
            Some(format) => format.for_file(path),
            None => Format::of(path)?,
        };
        let name = path.display().to_string();
        let file = File::open(path).map_err(|source| TraceError::Io { file: name.clone(), source })?;
        Ok(Trace::new(&name, file, format, block_bytes))
    }

    /// Reads from `reader`, called `name` in errors.
    pub fn new(name: &str, reader: impl Read + Send + 'static, format: Format, block_bytes: u32) -> Trace {
        let bytes_read = Arc::new(AtomicU64::new(0));
        Trace {
            name: name.to_owned(),
            parser: Parser::new(format, block_bytes.max(1)),
            input: Input::new(reader, format, Arc::clone(&bytes_read)),
            span: Span::EMPTY,
            bytes_read,
            ahead: None,
            ended: false,
        }
    }

    /// A counter of the file's bytes read so far, for progress.
    pub fn bytes_read(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.bytes_read)
    }

    /// Reads a `.csv` trace by these columns instead of the names in its header. Of no effect on
    /// other formats; see [`Format::has_columns`].
    pub fn columns(mut self, columns: Columns) -> Trace {
        if let Parser::Csv(csv) = &mut self.parser {
            csv.give(columns);
        }
        self
    }

    /// Sentences about how the trace is read, such as columns that are not used. Reads up to the
    /// first event, which the iterator still returns.
    pub fn notes(&mut self) -> Vec<String> {
        if self.ahead.is_none() {
            self.ahead = self.next();
        }
        match &self.parser {
            Parser::Csv(csv) => csv.notes().to_vec(),
            _ => Vec::new(),
        }
    }

    fn read(&mut self) -> Result<Option<Event>, TraceError> {
        loop {
            if let Some(request) = self.span.next() {
                return Ok(Some(Event::Request(request)));
            }
            match self.parser.parse(&mut self.input) {
                Ok(Parsed::Span(span)) => self.span = span,
                Ok(Parsed::Event(event)) => return Ok(Some(event)),
                Ok(Parsed::Nothing) => {}
                Ok(Parsed::End) => return Ok(None),
                Err(error) => return Err(self.error(error)),
            }
        }
    }

    fn error(&self, error: ParseError) -> TraceError {
        let file = self.name.clone();
        match error {
            ParseError::Io(source) => TraceError::Io { file, source },
            ParseError::Malformed(reason) => {
                TraceError::Malformed { file, unit: self.parser.unit(), number: self.input.number(), reason }
            }
        }
    }
}

impl Iterator for Trace {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ahead.is_some() {
            return self.ahead.take();
        }
        if self.ended {
            return None;
        }
        let event = self.read().transpose();
        self.ended = !matches!(event, Some(Ok(_)));
        event
    }
}

/// A parser with its state between lines.
enum Parser {
    Lis,
    U32Le,
    Csv(Box<csv::Csv>),
    Pgt,
    OracleGeneral,
    BlkTrace(blktrace::BlkTrace),
    Vscsi(vscsi::Vscsi),
    Fio(fio::Fio),
}

impl Parser {
    fn new(format: Format, block_bytes: u32) -> Parser {
        let block_bytes = u64::from(block_bytes);
        match format.kind {
            format::Kind::Lis => Parser::Lis,
            format::Kind::U32Le => Parser::U32Le,
            format::Kind::Csv => Parser::csv(block_bytes, csv::Layout::Found),
            format::Kind::Known(known) => Parser::csv(block_bytes, csv::Layout::Known(known)),
            format::Kind::Pgt => Parser::Pgt,
            format::Kind::OracleGeneral => Parser::OracleGeneral,
            format::Kind::BlkTrace => Parser::BlkTrace(blktrace::BlkTrace::new(block_bytes)),
            format::Kind::Vscsi => Parser::Vscsi(vscsi::Vscsi::new(block_bytes)),
            format::Kind::Fio => Parser::Fio(fio::Fio::new(block_bytes)),
        }
    }

    fn csv(block_bytes: u64, layout: csv::Layout) -> Parser {
        Parser::Csv(Box::new(csv::Csv::new(block_bytes, layout)))
    }

    fn unit(&self) -> &'static str {
        match self {
            Parser::U32Le | Parser::OracleGeneral | Parser::Vscsi(_) => "record",
            _ => "line",
        }
    }

    fn parse(&mut self, input: &mut Input) -> Result<Parsed, ParseError> {
        match self {
            Parser::U32Le => return u32le::parse(input),
            Parser::OracleGeneral => return oracle_general::parse(input),
            Parser::Vscsi(vscsi) => return vscsi.parse(input),
            _ => {}
        }
        let Some(line) = input.line()? else {
            return match self {
                Parser::BlkTrace(blktrace) => blktrace.end(),
                _ => Ok(Parsed::End),
            };
        };
        match self {
            Parser::Lis => lis::parse(line),
            Parser::Csv(csv) => csv.parse(line),
            Parser::Pgt => pgt::parse(line),
            Parser::BlkTrace(blktrace) => blktrace.parse(line),
            Parser::Fio(fio) => fio.parse(line),
            Parser::U32Le | Parser::OracleGeneral | Parser::Vscsi(_) => {
                unreachable!("records were read above")
            }
        }
    }
}
