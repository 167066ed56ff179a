//! `.u32le`: block numbers of four bytes, little-endian, all reads.

use super::input::Input;
use super::parse::{ParseError, Parsed, Span};

pub(super) fn parse(input: &mut Input) -> Result<Parsed, ParseError> {
    match input.record::<4>()? {
        Some(record) => Span::new(u64::from(u32::from_le_bytes(record)), 1).map(Parsed::Span),
        None => Ok(Parsed::End),
    }
}
