//! Block traces: what a disk, or a cache above one, was asked for, request by request.
//!
//! A [`Trace`] reads a file from its beginning to its end, in memory that does not grow with it, and yields
//! [`Event`]s: one [`Request`] for each block, and, where the format has them, the relations and queries of the
//! database that asked. Requests of many blocks come as one event for each, in ascending order.
//!
//! | module            | ending           | what it reads                                                              |
//! |-------------------|------------------|----------------------------------------------------------------------------|
//! | `lis`             | `.lis`           | lines `start count ignored request`, the traces of the ARC paper            |
//! | `u32le`           | `.u32le`         | block numbers of four bytes, little-endian                                  |
//! | `csv`             | `.csv`           | comma-separated lines with a header that names the columns                  |
//! | `pgt`             | `.pgt`           | pages of a PostgreSQL database, with relations and queries                  |
//! | `oracle_general`  | `.oracleGeneral` | libCacheSim's records of 24 bytes                                           |
//! | `blktrace`        | `.blktrace`      | the text that `blkparse` prints                                             |
//! | `write`           | `.pgt`, `.csv`   | writes these two                                                           |
//! | `input`           | `.zst` after any | lines and records of a file, compressed with Zstandard or not               |
//!
//! Files are hostile: nothing a file says makes a reader panic, wait for ever, or take more memory than a line
//! ([`LINE_BYTES_MAX`]) and a window of the compression (128 MiB). What is not as the format says ends the trace with
//! [`TraceError::Malformed`], which names the file, the line or record, and the reason.

mod blktrace;
mod csv;
mod format;
mod input;
mod lis;
mod oracle_general;
mod pgt;
mod u32le;
mod write;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use format::{Format, UnknownFormat};
pub use write::TraceWriter;

use input::Input;

/// The longest line of a trace that is text, in bytes.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// The most blocks that one request of a trace may ask for.
pub const REQUEST_BLOCKS_MAX: u64 = 1 << 20;

/// The size of a block in bytes where the format gives places in bytes or sectors and nobody says otherwise.
pub const BLOCK_BYTES: u32 = 4096;

/// The size of a sector in bytes, in which some formats count.
const SECTOR_BYTES: u64 = 512;

/// One access to one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The block. Neighbours on the device have neighbouring numbers. Where the trace knows relations, the upper half is
    /// the relation and the lower half the page in it.
    pub block: u64,
    /// The block is written, not read.
    pub write: bool,
    /// The table or index that the block belongs to.
    pub relation: Option<u32>,
    /// The query that asked; `None` also for the work of no query, such as a checkpoint.
    pub query: Option<u32>,
    /// When, in microseconds since the trace's own beginning of time.
    pub time_us: Option<u64>,
    /// It is of the same request of several blocks as the one before it.
    pub continues: bool,
}

/// A table, an index or another file of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    /// The number by which requests name it.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// What it is: `r` a table, `i` an index, `t` a table of large values, `f` a map of free or visible pages.
    pub kind: String,
}

/// A query arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The number by which requests name it.
    pub number: u32,
    /// When, in microseconds since the trace's own beginning of time.
    pub time_us: u64,
    /// The process that runs it.
    pub process: u64,
    /// What kind of query it is, such as `q6`.
    pub template: String,
    /// The relations that it will touch.
    pub relations: Vec<u32>,
}

/// What a trace yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A block is read or written.
    Request(Request),
    /// A relation is named; it comes before the requests to it.
    Relation(Box<Relation>),
    /// A query arrives; it comes before its requests.
    Query(Box<Query>),
}

/// Why a trace cannot be read on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The operating system says so.
    #[error("reading the trace {file} failed: {source}")]
    Io {
        /// The trace.
        file: String,
        /// The reason.
        source: io::Error,
    },
    /// The file is not what its format says.
    #[error("the trace {file} is malformed in {unit} {number}: {reason}")]
    Malformed {
        /// The trace.
        file: String,
        /// What the format counts: `line` or `record`.
        unit: &'static str,
        /// Which, from 1 on.
        number: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// Neither the ending of the file nor its user says what is in it.
    #[error("{0}")]
    Format(#[from] UnknownFormat),
}

/// A trace that is being read. An iterator over its events, which ends after an error.
///
/// ```
/// use terrace_block::trace::{Event, Format, Trace};
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
    /// What is left of a request for several blocks.
    span: Span,
    bytes_read: Arc<AtomicU64>,
    ended: bool,
}

impl Trace {
    /// Opens a file whose ending tells its format, unless `format` does.
    ///
    /// Blocks have `block_bytes` bytes where the format gives places in bytes or sectors; the other formats number
    /// blocks themselves.
    pub fn open(path: &Path, format: Option<Format>, block_bytes: u32) -> Result<Trace, TraceError> {
        let format = match format {
            Some(format) => format,
            None => Format::of(path)?,
        };
        let name = path.display().to_string();
        let file = File::open(path).map_err(|source| TraceError::Io { file: name.clone(), source })?;
        Ok(Trace::new(&name, file, format, block_bytes))
    }

    /// Reads from `reader`, whose data errors call `name`.
    pub fn new(name: &str, reader: impl Read + Send + 'static, format: Format, block_bytes: u32) -> Trace {
        let bytes_read = Arc::new(AtomicU64::new(0));
        Trace {
            name: name.to_owned(),
            parser: Parser::new(format, block_bytes.max(1)),
            input: Input::new(reader, format.compressed, Arc::clone(&bytes_read)),
            span: Span::EMPTY,
            bytes_read,
            ended: false,
        }
    }

    /// A counter of the bytes read of the file so far, as they are in the file, for whoever shows progress.
    pub fn bytes_read(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.bytes_read)
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
        if self.ended {
            return None;
        }
        let event = self.read().transpose();
        self.ended = !matches!(event, Some(Ok(_)));
        event
    }
}

/// Consecutive blocks of one request.
#[derive(Clone, Copy, Debug)]
struct Span {
    request: Request,
    blocks: u64,
}

impl Span {
    const EMPTY: Span = Span {
        request: Request {
            block: 0,
            write: false,
            relation: None,
            query: None,
            time_us: None,
            continues: false,
        },
        blocks: 0,
    };

    /// `blocks` blocks from `first` on.
    fn new(first: u64, blocks: u64) -> Result<Span, ParseError> {
        if blocks > REQUEST_BLOCKS_MAX {
            return Err(malformed(format!(
                "one request for {blocks} blocks; at most {REQUEST_BLOCKS_MAX} are read"
            )));
        }
        if first.checked_add(blocks).is_none() {
            return Err(malformed(format!(
                "{blocks} blocks from {first} on go beyond the last there can be"
            )));
        }
        Ok(Span { request: Request { block: first, ..Span::EMPTY.request }, blocks })
    }

    /// The blocks of `block_bytes` that hold any of `bytes` bytes at `start`; the block there is if there are none.
    fn of_bytes(start: u64, bytes: u64, block_bytes: u64) -> Result<Span, ParseError> {
        let last = start.checked_add(bytes.max(1) - 1);
        let last = last.ok_or_else(|| malformed(format!("{bytes} bytes at {start} go beyond 16 EiB")))?;
        Span::new(start / block_bytes, last / block_bytes - start / block_bytes + 1)
    }

    /// The same blocks, written.
    fn written(mut self, write: bool) -> Span {
        self.request.write = write;
        self
    }

    /// The same blocks at another time.
    fn at(mut self, time_us: Option<u64>) -> Span {
        self.request.time_us = time_us;
        self
    }

    #[inline]
    fn next(&mut self) -> Option<Request> {
        self.blocks = self.blocks.checked_sub(1)?;
        let request = self.request;
        self.request.block = self.request.block.wrapping_add(1);
        self.request.continues = true;
        Some(request)
    }
}

/// What a parser makes of a line or a record.
enum Parsed {
    Span(Span),
    Event(Event),
    Nothing,
    End,
}

/// Why a line or record is none, without its place.
enum ParseError {
    Io(io::Error),
    Malformed(String),
}

impl From<io::Error> for ParseError {
    fn from(error: io::Error) -> ParseError {
        match error.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                ParseError::Malformed(error.to_string())
            }
            _ => ParseError::Io(error),
        }
    }
}

fn malformed(reason: impl Into<String>) -> ParseError {
    ParseError::Malformed(reason.into())
}

/// A parser with what it remembers from line to line.
enum Parser {
    Lis,
    U32Le,
    Csv(csv::Csv),
    Pgt,
    OracleGeneral,
    BlkTrace(blktrace::BlkTrace),
}

impl Parser {
    fn new(format: Format, block_bytes: u32) -> Parser {
        let block_bytes = u64::from(block_bytes);
        match format.kind {
            format::Kind::Lis => Parser::Lis,
            format::Kind::U32Le => Parser::U32Le,
            format::Kind::Csv => Parser::Csv(csv::Csv::new(block_bytes)),
            format::Kind::Pgt => Parser::Pgt,
            format::Kind::OracleGeneral => Parser::OracleGeneral,
            format::Kind::BlkTrace => Parser::BlkTrace(blktrace::BlkTrace::new(block_bytes)),
        }
    }

    fn unit(&self) -> &'static str {
        match self {
            Parser::U32Le | Parser::OracleGeneral => "record",
            _ => "line",
        }
    }

    fn parse(&mut self, input: &mut Input) -> Result<Parsed, ParseError> {
        match self {
            Parser::U32Le => return u32le::parse(input),
            Parser::OracleGeneral => return oracle_general::parse(input),
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
            Parser::U32Le | Parser::OracleGeneral => unreachable!("records were read above"),
        }
    }
}

/// The fields of a line, which any number of blanks and tabs separate.
fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| byte.is_ascii_whitespace()).filter(|field| !field.is_empty())
}

/// A whole number in decimal; `what` names it in the error.
fn number(what: &str, field: Option<&[u8]>) -> Result<u64, ParseError> {
    let field = field.ok_or_else(|| malformed(format!("{what} is missing")))?;
    let digits = field.iter().try_fold(0u64, |value, byte| {
        let digit = char::from(*byte).to_digit(10)?;
        value.checked_mul(10)?.checked_add(u64::from(digit))
    });
    match digits {
        Some(value) if !field.is_empty() => Ok(value),
        _ => Err(malformed(format!("{what} is {}, which is no whole number below 2^64", shown(field)))),
    }
}

/// A number of at most 31 bits, as those of relations and queries are.
fn small(what: &str, field: Option<&[u8]>) -> Result<u32, ParseError> {
    match number(what, field)? {
        value if value < 1 << 31 => Ok(value as u32),
        value => Err(malformed(format!("{what} is {value}, which is not below 2^31"))),
    }
}

/// A field as an error shows it: cut short, and in quotes.
fn shown(field: &[u8]) -> String {
    const BYTES_MAX: usize = 40;
    let cut = &field[..field.len().min(BYTES_MAX)];
    let more = if field.len() > BYTES_MAX { "..." } else { "" };
    format!("{:?}{more}", String::from_utf8_lossy(cut))
}

/// How far into its file a trace is, by the counter of [`Trace::bytes_read`].
fn advance(counter: &AtomicU64, bytes: usize) {
    // Relaxed: read only to be shown.
    counter.fetch_add(bytes as u64, Ordering::Relaxed);
}
