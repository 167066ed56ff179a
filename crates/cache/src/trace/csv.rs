//! `.csv`: comma-separated lines with a header, without quotes.
//!
//! Columns are in any order; unknown ones are skipped. One must give the position:
//!
//! | column                           | meaning                                                  |
//! |----------------------------------|----------------------------------------------------------|
//! | `block`, `page`, `obj_id`, `key` | block number                                             |
//! | `lbn`, `lba`, `sector`           | position in sectors of 512 bytes                         |
//! | `offset`                         | position in bytes                                        |
//! | `size`                           | bytes, for positions in sectors or bytes; else one block |
//! | `op`, `rw`                       | `r`, `read`, SCSI's READ (default); `w`, `write`, WRITE  |
//! | `time`, `time_us`                | microseconds; a fraction is ignored                      |
//!
//! SCSI's READ is `08`, `28`, `a8` or `88` (6, 10, 12, 16), WRITE `0a`, `2a`, `aa` or `8a`. This
//! includes the CloudPhysics traces in libCacheSim: `version,time,op,size,lbn`. If the first line
//! begins with a digit, there is no header, and lines are `block` or `block,op`. A byte-order mark
//! is skipped.

use super::parse::{ParseError, Parsed, SECTOR_BYTES, Span, malformed, number, shown};

/// The meaning of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Block,
    Sector,
    Offset,
    Size,
    Operation,
    Time,
    Other,
}

const COLUMNS_MAX: usize = 256;

pub(super) struct Csv {
    block_bytes: u64,
    columns: Vec<Column>,
    is_begun: bool,
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

impl Csv {
    pub(super) fn new(block_bytes: u64) -> Csv {
        Csv { block_bytes, columns: Vec::new(), is_begun: false }
    }

    pub(super) fn parse(&mut self, line: &[u8]) -> Result<Parsed, ParseError> {
        let line = match std::mem::replace(&mut self.is_begun, true) {
            true => line,
            false => line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line),
        };
        let line = line.trim_ascii();
        if line.is_empty() {
            return Ok(Parsed::Nothing);
        }
        if self.columns.is_empty() {
            if !line[0].is_ascii_digit() {
                self.columns = header(line)?;
                return Ok(Parsed::Nothing);
            }
            self.columns = vec![Column::Block];
            if line.contains(&b',') {
                self.columns.push(Column::Operation);
            }
        }
        self.request(line).map(Parsed::Span)
    }

    fn request(&self, line: &[u8]) -> Result<Span, ParseError> {
        let (mut block, mut start, mut size, mut time_us, mut write) = (None, None, 1, None, false);
        let mut fields = line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        for column in &self.columns {
            let Some(field) = fields.next() else {
                return Err(malformed(format!("fewer than the {} fields of the header", self.columns.len())));
            };
            match column {
                Column::Block => block = Some(number("the block", Some(field))?),
                Column::Sector => {
                    let sector = number("the sector", Some(field))?;
                    let bytes = sector.checked_mul(SECTOR_BYTES);
                    start =
                        Some(bytes.ok_or_else(|| malformed(format!("sector {sector} is beyond 16 EiB")))?);
                }
                Column::Offset => start = Some(number("the offset", Some(field))?),
                Column::Size => size = number("the size", Some(field))?,
                Column::Operation => write = is_write(field)?,
                Column::Time => time_us = Some(whole("the time", field)?),
                Column::Other => {}
            }
        }
        if fields.next().is_some() {
            return Err(malformed(format!("more than the {} fields of the header", self.columns.len())));
        }
        let span = match (block, start) {
            (Some(block), _) => Span::new(block, 1)?,
            (None, Some(start)) => Span::of_bytes(start, size, self.block_bytes)?,
            (None, None) => unreachable!("a header says where"),
        };
        Ok(span.written(write).at(time_us))
    }
}

/// The integer part of a number, whose fraction must be digits too.
fn whole(what: &str, field: &[u8]) -> Result<u64, ParseError> {
    let mut parts = field.splitn(2, |byte| *byte == b'.');
    let whole = number(what, parts.next())?;
    match parts.next() {
        Some(fraction) if fraction.is_empty() || !fraction.iter().all(u8::is_ascii_digit) => {
            Err(malformed(format!("{what} is {}, which is no number", shown(field))))
        }
        _ => Ok(whole),
    }
}

fn header(line: &[u8]) -> Result<Vec<Column>, ParseError> {
    let columns: Vec<Column> = line.split(|byte| *byte == b',').take(COLUMNS_MAX + 1).map(column).collect();
    if columns.len() > COLUMNS_MAX {
        return Err(malformed(format!("a header of more than {COLUMNS_MAX} columns")));
    }
    let count = |wanted: Column| columns.iter().filter(|column| **column == wanted).count();
    let addresses = count(Column::Block) + count(Column::Sector) + count(Column::Offset);
    if addresses != 1 {
        return Err(malformed(format!(
            "the header {} has {addresses} columns that say where; one of block, lbn or offset must be there",
            shown(line)
        )));
    }
    let twice = [Column::Size, Column::Operation, Column::Time].into_iter().any(|column| count(column) > 1);
    match twice {
        true => Err(malformed(format!("the header {} has two columns that say the same", shown(line)))),
        false => Ok(columns),
    }
}

fn column(name: &[u8]) -> Column {
    match name.trim_ascii().to_ascii_lowercase().as_slice() {
        b"block" | b"page" | b"obj_id" | b"key" => Column::Block,
        b"lbn" | b"lba" | b"sector" => Column::Sector,
        b"offset" => Column::Offset,
        b"size" => Column::Size,
        b"op" | b"rw" => Column::Operation,
        b"time" | b"time_us" => Column::Time,
        _ => Column::Other,
    }
}

fn is_write(field: &[u8]) -> Result<bool, ParseError> {
    match field.to_ascii_lowercase().as_slice() {
        b"r" | b"read" | b"08" | b"28" | b"a8" | b"88" => Ok(false),
        b"w" | b"write" | b"0a" | b"2a" | b"aa" | b"8a" => Ok(true),
        _ => Err(malformed(format!(
            "the operation is {}; r, read and w, write are known, and SCSI's 08, 28, a8, 88 and 0a, 2a, aa, 8a",
            shown(field)
        ))),
    }
}
