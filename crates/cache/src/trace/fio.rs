//! `.fio`: the log of requests that fio writes with `write_iolog` and reads with `read_iolog`.
//!
//! The first line is `fio version 2 iolog` or `fio version 3 iolog`. The others are `file action`
//! or `file action offset length`, in bytes; in version 3, a time in microseconds comes first.
//! Files are devices. Actions other than `read` and `write` are checked and skipped.

use super::devices::Devices;
use super::parse::{ParseError, Parsed, Span, fields, malformed, number, shown};

pub(super) struct Fio {
    block_bytes: u64,
    devices: Devices,
    /// Whether lines begin with a time; known after the first line.
    has_times: Option<bool>,
}

impl Fio {
    pub(super) fn new(block_bytes: u64) -> Fio {
        Fio { block_bytes, devices: Devices::default(), has_times: None }
    }

    pub(super) fn parse(&mut self, line: &[u8]) -> Result<Parsed, ParseError> {
        let mut fields = fields(line).peekable();
        if fields.peek().is_none() {
            return Ok(Parsed::Nothing);
        }
        let Some(has_times) = self.has_times else {
            self.has_times = Some(has_times(line)?);
            return Ok(Parsed::Nothing);
        };
        let time_us = has_times.then(|| number("the time", fields.next())).transpose()?;
        let file = fields.next().ok_or_else(|| malformed("the file is missing"))?;
        let action = fields.next().ok_or_else(|| malformed("the action is missing"))?;
        let moves_data = match action {
            b"read" | b"write" => true,
            b"sync" | b"datasync" | b"trim" | b"wait" => false,
            b"add" | b"open" | b"close" => return Ok(Parsed::Nothing),
            other => {
                return Err(malformed(format!("the action is {}, which fio does not have", shown(other))));
            }
        };
        let offset = number("the offset", fields.next())?;
        let length = number("the length", fields.next())?;
        if let Some(field) = fields.next() {
            return Err(malformed(format!("{} follows the last field", shown(field))));
        }
        if !moves_data || length == 0 {
            return Ok(Parsed::Nothing);
        }
        let span = Span::of_bytes(offset, length, self.block_bytes)?;
        let span = span.on(self.devices.number(file)?)?;
        Ok(Parsed::Span(span.written(action == b"write").at(time_us)))
    }
}

fn has_times(line: &[u8]) -> Result<bool, ParseError> {
    match line.trim_ascii() {
        b"fio version 2 iolog" => Ok(false),
        b"fio version 3 iolog" => Ok(true),
        other => Err(malformed(format!(
            "begins with {}; `fio version 2 iolog` or `fio version 3 iolog` does",
            shown(other)
        ))),
    }
}
