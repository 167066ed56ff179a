//! `.csv`: comma-separated lines whose first names the columns. Quotes are not known: all fields are numbers and words.
//!
//! Columns may come in any order; those that have no meaning here are passed over. There must be one that says where:
//!
//! | column                           | means                                                                     |
//! |----------------------------------|---------------------------------------------------------------------------|
//! | `block`, `page`, `obj_id`, `key` | a block by its number                                                     |
//! | `lbn`, `lba`, `sector`           | a place in sectors of 512 bytes                                           |
//! | `offset`                         | a place in bytes                                                          |
//! | `size`                           | bytes, with a place in sectors or bytes; one block if there is none       |
//! | `op`, `rw`                       | `r`, `read`, or SCSI's READ (6, 10, 12, 16: `08`, `28`, `a8`, `88`); `w`, `write`, or WRITE (`0a`, `2a`, `aa`, `8a`); a read if there is none |
//! | `time`, `time_us`                | microseconds; what is behind a point is passed over                       |
//!
//! So the dialect of the CloudPhysics traces in libCacheSim, `version,time,op,size,lbn`, is one of these. A file whose
//! first line begins with a digit has no header: its lines are `block` or `block,op`. The byte-order mark that some programs put
//! before everything is passed over.

use super::{ParseError, Parsed, SECTOR_BYTES, Span, malformed, number, shown};

/// What a column says.
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

/// The most columns that a header may have.
const COLUMNS_MAX: usize = 256;

/// Reads the lines.
pub(super) struct Csv {
    block_bytes: u64,
    columns: Vec<Column>,
    is_begun: bool,
}

/// What some programs put before the first character of a file.
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

/// The whole part of a number, of which the rest has to be digits too.
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
    let places = count(Column::Block) + count(Column::Sector) + count(Column::Offset);
    if places != 1 {
        return Err(malformed(format!(
            "the header {} has {places} columns that say where; one of block, lbn or offset must be there",
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
