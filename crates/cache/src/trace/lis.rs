//! `.lis`: lines `start count ignored request`, as in the ARC paper (Megiddo and Modha, FAST 2003).
//!
//! A line requests `count` blocks from `start` on. The third field and the fourth, the request's
//! number, are parsed and ignored. Empty lines are skipped.

use super::parse::{ParseError, Parsed, Span, fields, malformed, number};

pub(super) fn parse(line: &[u8]) -> Result<Parsed, ParseError> {
    let mut fields = fields(line).peekable();
    if fields.peek().is_none() {
        return Ok(Parsed::Nothing);
    }
    let start = number("the first block", fields.next())?;
    let count = number("the count of blocks", fields.next())?;
    number("the third field", fields.next())?;
    number("the number of the request", fields.next())?;
    if fields.next().is_some() {
        return Err(malformed("more than the four fields `start count ignored request`"));
    }
    if count == 0 {
        return Err(malformed("a request for no blocks"));
    }
    Span::new(start, count).map(Parsed::Span)
}
