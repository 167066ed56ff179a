//! Common parts of the parsers: fields, numbers, block ranges, and errors.

use std::io;

use super::event::{Event, REQUEST_BLOCKS_MAX, Request};

const SECTOR_BYTES: u64 = 512;

#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) request: Request,
    pub(super) blocks: u64,
}

impl Span {
    pub(super) const EMPTY: Span = Span {
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

    pub(super) fn new(first: u64, blocks: u64) -> Result<Span, ParseError> {
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

    /// The blocks of `block_bytes` that contain `bytes` bytes at `start`, at least one.
    pub(super) fn of_bytes(start: u64, bytes: u64, block_bytes: u64) -> Result<Span, ParseError> {
        let last = start.checked_add(bytes.max(1) - 1);
        let last = last.ok_or_else(|| malformed(format!("{bytes} bytes at {start} go beyond 16 EiB")))?;
        Span::new(start / block_bytes, last / block_bytes - start / block_bytes + 1)
    }

    pub(super) fn written(mut self, write: bool) -> Span {
        self.request.write = write;
        self
    }

    pub(super) fn at(mut self, time_us: Option<u64>) -> Span {
        self.request.time_us = time_us;
        self
    }

    #[inline]
    pub(super) fn next(&mut self) -> Option<Request> {
        self.blocks = self.blocks.checked_sub(1)?;
        let request = self.request;
        self.request.block = self.request.block.wrapping_add(1);
        self.request.continues = true;
        Some(request)
    }
}

pub(super) enum Parsed {
    Span(Span),
    Event(Event),
    Nothing,
    End,
}

/// A parse error, without its position.
pub(super) enum ParseError {
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

pub(super) fn malformed(reason: impl Into<String>) -> ParseError {
    ParseError::Malformed(reason.into())
}

/// Splits a line at blanks and tabs.
pub(super) fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| byte.is_ascii_whitespace()).filter(|field| !field.is_empty())
}

/// `what` names it in errors.
pub(super) fn number(what: &str, field: Option<&[u8]>) -> Result<u64, ParseError> {
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

/// A number of at most 31 bits, as for relations and queries.
pub(super) fn small(what: &str, field: Option<&[u8]>) -> Result<u32, ParseError> {
    match number(what, field)? {
        value if value < 1 << 31 => Ok(value as u32),
        value => Err(malformed(format!("{what} is {value}, which is not below 2^31"))),
    }
}

/// A field for an error message, shortened and quoted.
pub(super) fn shown(field: &[u8]) -> String {
    const BYTES_MAX: usize = 40;
    let cut = &field[..field.len().min(BYTES_MAX)];
    let more = if field.len() > BYTES_MAX { "..." } else { "" };
    format!("{:?}{more}", String::from_utf8_lossy(cut))
}

/// Whether a SCSI command of 6, 10, 12 or 16 bytes writes blocks, or reads them; none for others.
pub(super) fn scsi_writes(command: u64) -> Option<bool> {
    match command {
        0x08 | 0x28 | 0xa8 | 0x88 => Some(false),
        0x0a | 0x2a | 0xaa | 0x8a => Some(true),
        _ => None,
    }
}

/// The bytes of `sectors` sectors.
pub(super) fn sector_bytes(sectors: u64) -> Result<u64, ParseError> {
    let bytes = sectors.checked_mul(SECTOR_BYTES);
    bytes.ok_or_else(|| malformed(format!("sector {sectors} is beyond 16 EiB")))
}
