//! `.oracleGeneral`: libCacheSim's binary format, records of 24 bytes without a header, all numbers little-endian.
//!
//! | bytes | what                                                                             |
//! |-------|----------------------------------------------------------------------------------|
//! | 0..4  | time in seconds                                                                  |
//! | 4..12 | the object, taken as a block                                                     |
//! | 12..16 | its size in bytes, not used: a block is a block                                 |
//! | 16..24 | the request that asks for it next, not used: a simulation looks ahead by itself |
//!
//! All of them are reads: the format does not tell.

use super::input::Input;
use super::{ParseError, Parsed, Span};

pub(super) fn parse(input: &mut Input) -> Result<Parsed, ParseError> {
    let Some(record) = input.record::<24>()? else { return Ok(Parsed::End) };
    let (time, rest) = record.split_at(4);
    let seconds = time.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    let object = rest[..8].iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    // The last number there is stays: a span must end somewhere.
    let span = Span::new(object.min(u64::MAX - 1), 1)?;
    Ok(Parsed::Span(span.at(Some(seconds * 1_000_000))))
}
