//! `.csv`: comma-separated lines, of which some fields may be in quotes.
//!
//! The columns come from the caller ([`Columns`]), from the header, whose names `columns` lists, or
//! from the first line, if it can only be of one collection of traces (`known`). Without any of
//! these, lines are `block` or `block,op`. Other files are refused.
//!
//! SCSI's READ is `08`, `28`, `a8` or `88` (6, 10, 12, 16), WRITE `0a`, `2a`, `aa` or `8a`. This
//! includes the CloudPhysics traces in libCacheSim: `version,time,op,size,lbn`.

use std::cmp::Ordering;

use super::columns::{self, Columns, Measure, Role, Ticks};
use super::devices::Devices;
use super::fields::Fields;
use super::known::{self, Known};
use super::parse::{ParseError, Parsed, Span, malformed, number, scsi_writes, sector_bytes, shown};

/// Why a header's size is not used.
const OF_OBJECT: &str = "a size beside block numbers is taken for the block's own; if requests have several blocks, name the columns, \
     such as --columns block,size";

/// The source of the columns.
pub(super) enum Layout {
    /// The header, or the shape of the first line.
    Found,
    Given(Columns),
    Known(&'static Known),
}

pub(super) struct Csv {
    block_bytes: u64,
    layout: Layout,
    roles: Vec<Role>,
    fields: Fields,
    devices: Devices,
    /// The name of a request's device.
    device: Vec<u8>,
    is_begun: bool,
    notes: Vec<String>,
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Names of columns in one message.
const SHOWN_MAX: usize = 20;
/// Between the fields that name a device.
const SEPARATOR: u8 = 0x1f;

impl Csv {
    pub(super) fn new(block_bytes: u64, layout: Layout) -> Csv {
        Csv {
            block_bytes,
            layout,
            roles: Vec::new(),
            fields: Fields::new(),
            devices: Devices::default(),
            device: Vec::new(),
            is_begun: false,
            notes: Vec::new(),
        }
    }

    pub(super) fn give(&mut self, columns: Columns) {
        self.layout = Layout::Given(columns);
    }

    /// Sentences about the columns, after the first line.
    pub(super) fn notes(&self) -> &[String] {
        &self.notes
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
        self.fields.split(line)?;
        if self.roles.is_empty() && self.is_header()? {
            return Ok(Parsed::Nothing);
        }
        self.request()
    }

    /// Learns the columns from the first line, and whether it is a header.
    fn is_header(&mut self) -> Result<bool, ParseError> {
        let begins_with_digit = |field: &[u8]| field.first().is_some_and(u8::is_ascii_digit);
        if let Layout::Given(given) = &self.layout {
            let fields: Vec<Vec<u8>> = self.fields.iter().map(<[u8]>::to_vec).collect();
            let roles = given.roles(&fields);
            let has_names = given.has_names();
            self.roles = roles.map_err(|reason| self.refusal(&reason))?;
            let start = self.roles.iter().position(|role| matches!(role, Role::Start(_)));
            let start = start.expect("columns have a position");
            return Ok(has_names || !begins_with_digit(self.fields.get(start)));
        }
        let known = match &self.layout {
            Layout::Known(known) => Some(*known),
            _ => Known::of(&self.fields),
        };
        if let Some(known) = known {
            self.roles = known.roles.to_vec();
            let is_header = known.is_header(&self.fields);
            if !is_header && matches!(self.layout, Layout::Found) {
                self.notes.push(format!("read as {}, by the form of its first line", known.name));
            }
            return Ok(is_header);
        }
        if begins_with_digit(self.fields.get(0)) {
            self.roles = match self.fields.count() {
                1 => vec![Role::Start(Measure::Blocks)],
                2 => vec![Role::Start(Measure::Blocks), Role::Operation],
                _ => return Err(self.refusal(known::unnamed(&self.fields))),
            };
            return Ok(false);
        }
        self.header()?;
        Ok(true)
    }

    fn header(&mut self) -> Result<(), ParseError> {
        let mut roles: Vec<Role> = self.fields.iter().map(columns::role).collect();
        columns::check(&roles).map_err(|reason| self.refusal(&reason))?;
        // The size of a numbered block, such as an object, is no number of blocks.
        let is_numbered = roles.contains(&Role::Start(Measure::Blocks));
        let is_of_object =
            |role: &Role| is_numbered && matches!(role, Role::Length(Measure::Bytes | Measure::Sectors));
        let has_object_size = roles.iter().any(is_of_object);
        if has_object_size {
            roles.iter_mut().filter(|role| is_of_object(role)).for_each(|role| *role = Role::Unused);
        }
        let unused = (0..roles.len()).filter(|index| roles[*index] == Role::Unused);
        let unused = names(unused.map(|index| self.fields.get(index)));
        if !unused.is_empty() {
            self.notes.push(format!("columns that are not used: {unused}"));
        }
        self.notes.extend(has_object_size.then(|| OF_OBJECT.to_owned()));
        if !roles.iter().any(|role| matches!(role, Role::Operation | Role::Write)) {
            self.notes.push("no column tells reads from writes, so all requests count as reads".to_owned());
        }
        self.roles = roles;
        Ok(())
    }

    fn refusal(&self, reason: &str) -> ParseError {
        let columns = names(self.fields.iter());
        if matches!(self.layout, Layout::Given(_)) {
            return malformed(format!("{reason}; the columns are {columns}"));
        }
        let first = self.fields.get(0);
        if self.fields.count() == 1 && first.iter().any(|byte| b";|\t".contains(byte)) {
            return malformed(format!(
                "{reason}; the columns are {columns}; columns are separated by commas"
            ));
        }
        malformed(format!(
            "{reason}; the columns are {columns}; name them with --columns, such as --columns time,device,op,offset,size, \
             or a known format with --format"
        ))
    }

    fn request(&mut self) -> Result<Parsed, ParseError> {
        let count = self.roles.len();
        let amount = match self.fields.count().cmp(&count) {
            Ordering::Less => Some("fewer"),
            Ordering::Greater => Some("more"),
            Ordering::Equal => None,
        };
        if let Some(amount) = amount {
            let whose = match &self.layout {
                Layout::Known(known) => known.name,
                _ => "the first line",
            };
            return Err(malformed(format!("{amount} than the {count} fields of {whose}")));
        }
        let (mut start, mut length, mut time_us, mut write) = (None, None, None, false);
        self.device.clear();
        for (role, field) in self.roles.iter().zip(self.fields.iter()) {
            match role {
                Role::Start(measure) => start = Some((*measure, number(role.what(), Some(field))?)),
                Role::Length(measure) => length = Some((*measure, number(role.what(), Some(field))?)),
                Role::Operation => write = is_write(field)?,
                Role::OperationIfKnown if field.is_empty() => return Ok(Parsed::Nothing),
                Role::OperationIfKnown => write = is_write(field)?,
                Role::Write => write = is_one(field)?,
                Role::Time(ticks) => time_us = Some(microseconds(*ticks, field)?),
                Role::Device => {
                    self.device.extend_from_slice(field);
                    self.device.push(SEPARATOR);
                }
                Role::Unused => {}
            }
        }
        let span = self.span(start.expect("columns have a position"), length)?;
        let span = match self.device.is_empty() {
            true => span,
            false => span.on(self.devices.number(&self.device)?)?,
        };
        Ok(Parsed::Span(span.written(write).at(time_us)))
    }

    fn span(&self, start: (Measure, u64), length: Option<(Measure, u64)>) -> Result<Span, ParseError> {
        match (start, length) {
            ((Measure::Blocks, block), None) => Span::new(block, 1),
            ((Measure::Blocks, block), Some((Measure::Blocks, blocks))) => Span::new(block, blocks.max(1)),
            _ => {
                let (start, length) =
                    (self.bytes(start)?, length.map(|length| self.bytes(length)).transpose()?);
                Span::of_bytes(start, length.unwrap_or(1), self.block_bytes)
            }
        }
    }

    fn bytes(&self, (measure, value): (Measure, u64)) -> Result<u64, ParseError> {
        match measure {
            Measure::Bytes => Ok(value),
            Measure::Sectors => sector_bytes(value),
            Measure::Blocks => {
                let bytes = value.checked_mul(self.block_bytes);
                bytes.ok_or_else(|| malformed(format!("block {value} is beyond 16 EiB")))
            }
        }
    }
}

/// Names for a message.
fn names<'a>(fields: impl Iterator<Item = &'a [u8]>) -> String {
    let mut shortened: Vec<String> = fields.map(shown).take(SHOWN_MAX + 1).collect();
    if shortened.len() > SHOWN_MAX {
        shortened[SHOWN_MAX] = "...".to_owned();
    }
    shortened.join(", ")
}

/// A time with any fraction, in microseconds, rounded down.
fn microseconds(ticks: Ticks, field: &[u8]) -> Result<u64, ParseError> {
    let (scale, divisor) = match ticks {
        Ticks::Seconds => (1_000_000, 1),
        Ticks::Milliseconds => (1_000, 1),
        Ticks::Microseconds => (1, 1),
        Ticks::Nanoseconds => (1, 1_000),
        Ticks::WindowsFileTime => (1, 10),
    };
    let mut parts = field.splitn(2, |byte| *byte == b'.');
    let whole = number("the time", parts.next())?;
    let mut millionths = 0;
    if let Some(fraction) = parts.next() {
        if fraction.is_empty() || !fraction.iter().all(u8::is_ascii_digit) {
            return Err(malformed(format!("the time is {}, which is no number", shown(field))));
        }
        let digits = fraction.iter().map(|digit| u64::from(digit - b'0')).chain(std::iter::repeat(0));
        millionths = digits.take(6).fold(0, |value, digit| value * 10 + digit);
    }
    let time = whole.checked_mul(scale).and_then(|time| time.checked_add(millionths * scale / 1_000_000));
    let time = time.ok_or_else(|| malformed(format!("the time is {}, which is too long", shown(field))))?;
    Ok(time / divisor)
}

fn is_write(field: &[u8]) -> Result<bool, ParseError> {
    let is = |words: [&str; 4]| words.iter().any(|word| field.eq_ignore_ascii_case(word.as_bytes()));
    let command = || {
        let digits = field.strip_prefix(b"0x").unwrap_or(field);
        let digits = std::str::from_utf8(digits).ok()?;
        let is_command = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        scsi_writes(u64::from_str_radix(digits, 16).ok().filter(|_| is_command)?)
    };
    let write = if is(["r", "read", "rd", "rs"]) {
        Some(false)
    } else if is(["w", "write", "wr", "ws"]) {
        Some(true)
    } else {
        command()
    };
    write.ok_or_else(|| {
        malformed(format!(
            "the operation is {}; r, read and w, write are known, and SCSI's 08, 28, a8, 88 and 0a, 2a, aa, 8a; \
             in a .csv, a column of which 1 means a write is given as --columns write=N,...",
            shown(field)
        ))
    })
}

fn is_one(field: &[u8]) -> Result<bool, ParseError> {
    match field.to_ascii_lowercase().as_slice() {
        b"0" | b"false" => Ok(false),
        b"1" | b"true" => Ok(true),
        _ => Err(malformed(format!("whether it is a write is {}; 0 and 1 are known", shown(field)))),
    }
}
