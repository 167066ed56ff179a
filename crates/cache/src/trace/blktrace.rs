//! `.blktrace`: the default text output of `blkparse`.
//!
//! ```text
//!   8,0    3       11     0.009507758   697  Q   W 223490 + 56 [kjournald]
//! ```
//!
//! The fields: device, processor, sequence number, seconds, process, action, operation (`R` read,
//! `W` write, with modifiers), first sector, `+`, number of sectors, and process name. Only queued
//! requests (`Q`) count: the original ones, before the kernel merges and splits. Requests without
//! data (flushes, discards) are skipped, as is the final summary. With several devices, the upper
//! 16 bits of a block number are the device (`devices`).

use super::devices::Devices;
use super::parse::{ParseError, Parsed, Span, fields, malformed, number, sector_bytes, shown};

/// First words of the summary's lines.
const SUMMARY: [&[u8]; 4] = [b"CPU", b"Total", b"Throughput", b"Events"];

pub(super) struct BlkTrace {
    block_bytes: u64,
    devices: Devices,
    in_summary: bool,
    has_queued: bool,
    /// Skipped actions other than queueing.
    others: u64,
}

impl BlkTrace {
    pub(super) fn new(block_bytes: u64) -> BlkTrace {
        BlkTrace { block_bytes, devices: Devices::default(), in_summary: false, has_queued: false, others: 0 }
    }

    pub(super) fn parse(&mut self, line: &[u8]) -> Result<Parsed, ParseError> {
        let text = line.trim_ascii();
        self.in_summary |= SUMMARY.iter().any(|start| text.starts_with(start));
        if text.is_empty() || self.in_summary {
            return Ok(Parsed::Nothing);
        }
        let mut fields = fields(text);
        let device = self.device(fields.next().unwrap_or_default())?;
        number("the processor", fields.next())?;
        number("the sequence number", fields.next())?;
        let time_us = microseconds(fields.next())?;
        number("the process", fields.next())?;
        let action = fields.next().ok_or_else(|| malformed("the action is missing"))?;
        if action != b"Q" {
            self.others += 1;
            return Ok(Parsed::Nothing);
        }
        self.has_queued = true;
        let what = fields.next().ok_or_else(|| malformed("what the request does is missing"))?;
        let moves_data = !what.contains(&b'D') && (what.contains(&b'R') || what.contains(&b'W'));
        if !moves_data {
            return Ok(Parsed::Nothing);
        }
        let sector = match fields.next() {
            // A flush, written `FWS`, has its process here and no sectors.
            Some([b'[', ..]) if what.contains(&b'F') => return Ok(Parsed::Nothing),
            field => number("the first sector", field)?,
        };
        if fields.next() != Some(b"+") {
            return Err(malformed("no `+` between the first sector and the count"));
        }
        let sectors = number("the count of sectors", fields.next())?;
        if sectors == 0 {
            return Ok(Parsed::Nothing);
        }
        let span =
            Span::of_bytes(sector_bytes(sector)?, sector_bytes(sectors)?, self.block_bytes)?.on(device)?;
        Ok(Parsed::Span(span.written(what.contains(&b'W')).at(Some(time_us))))
    }

    /// Checks the end of the trace.
    ///
    /// # Errors
    /// If there are actions but none is a queued request: the recording left them out.
    pub(super) fn end(&self) -> Result<Parsed, ParseError> {
        match self.others {
            others if others > 0 && !self.has_queued => Err(malformed(format!(
                "the end, and no queued (Q) requests before it, only {others} other actions; record with the action queue"
            ))),
            _ => Ok(Parsed::End),
        }
    }

    fn device(&mut self, field: &[u8]) -> Result<u64, ParseError> {
        if let Some(number) = self.devices.find(field) {
            return Ok(number);
        }
        let mut parts = field.split(|byte| *byte == b',');
        let (major, minor, more) = (parts.next(), parts.next(), parts.next());
        let is_device = more.is_none() && number("", major).is_ok() && number("", minor).is_ok();
        if !is_device || field.len() > 32 {
            let found = shown(field);
            return Err(malformed(format!("begins with {found}; a device, such as 8,0, does")));
        }
        self.devices.number(field)
    }
}

/// Seconds with any fraction, in microseconds.
fn microseconds(field: Option<&[u8]>) -> Result<u64, ParseError> {
    let field = field.ok_or_else(|| malformed("the time is missing"))?;
    let mut parts = field.splitn(2, |byte| *byte == b'.');
    let seconds = number("the time", parts.next())?;
    let mut micros = 0;
    if let Some(fraction) = parts.next() {
        number("the fraction of the time", Some(fraction))?;
        let digits = fraction.iter().map(|digit| u64::from(digit - b'0')).chain(std::iter::repeat(0));
        micros = digits.take(6).fold(0, |value, digit| value * 10 + digit);
    }
    let time = seconds.checked_mul(1_000_000).and_then(|time| time.checked_add(micros));
    time.ok_or_else(|| malformed(format!("the time is {}, which is too long", shown(field))))
}
