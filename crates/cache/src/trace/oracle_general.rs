//! `.oracleGeneral`: libCacheSim's records of 24 bytes, little-endian, without a header.
//!
//! | bytes | content                                              |
//! |-------|------------------------------------------------------|
//! | 0..4  | time in seconds                                      |
//! | 4..12 | the object, used as a block                          |
//! | 12..16 | size in bytes, ignored                              |
//! | 16..24 | the next request for it, ignored                    |
//!
//! All are reads: the format does not tell.

use super::input::Input;
use super::parse::{ParseError, Parsed, Span};

pub(super) fn parse(input: &mut Input) -> Result<Parsed, ParseError> {
    let Some(record) = input.record::<24>()? else { return Ok(Parsed::End) };
    let (time, rest) = record.split_at(4);
    let seconds = time.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    let object = rest[..8].iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    // The largest number is excluded: a span needs an end.
    let span = Span::new(object.min(u64::MAX - 1), 1)?;
    Ok(Parsed::Span(span.at(Some(seconds * 1_000_000))))
}
