//! `.u32le`: nothing but block numbers, four bytes each, little-endian. All of them are reads.

use super::input::Input;
use super::{ParseError, Parsed, Span};

pub(super) fn parse(input: &mut Input) -> Result<Parsed, ParseError> {
    match input.record::<4>()? {
        Some(record) => Span::new(u64::from(u32::from_le_bytes(record)), 1).map(Parsed::Span),
        None => Ok(Parsed::End),
    }
}
