//! `.pgt`: page accesses below PostgreSQL's buffers, with relations and queries.
//!
//! Lines of text with fields separated by blanks:
//!
//! - `R relation name kind`: a relation of kind `r` table, `i` index, `t` large values, `f` map;
//! - `Q time query process template relation,relation,...`: a query arrives, with its relations;
//! - `r|w time relation page query`: a page is read or written; query -1 is none;
//! - `#` begins a comment.
//!
//! Times are in microseconds, relations and queries below 2^31, pages below 2^32. A block has the
//! relation in its upper half and the page in its lower half.

use super::event::{Event, Query, Relation, Request};
use super::parse::{ParseError, Parsed, Span, fields, malformed, number, shown, small};

pub(super) fn parse(line: &[u8]) -> Result<Parsed, ParseError> {
    let mut fields = fields(line);
    let Some(kind) = fields.next() else { return Ok(Parsed::Nothing) };
    let parsed = match kind {
        b"r" | b"w" => request(kind == b"w", &mut fields).map(Parsed::Span)?,
        b"R" => Parsed::Event(Event::Relation(Box::new(relation(&mut fields)?))),
        b"Q" => Parsed::Event(Event::Query(Box::new(query(&mut fields)?))),
        [b'#', ..] => return Ok(Parsed::Nothing),
        other => return Err(malformed(format!("begins with {}; r, w, R, Q or # do", shown(other)))),
    };
    match fields.next() {
        None => Ok(parsed),
        Some(field) => Err(malformed(format!("{} follows the last field", shown(field)))),
    }
}

fn request<'a>(write: bool, fields: &mut impl Iterator<Item = &'a [u8]>) -> Result<Span, ParseError> {
    let time_us = number("the time", fields.next())?;
    let relation = small("the relation", fields.next())?;
    let page = number("the page", fields.next())?;
    let query = match fields.next() {
        Some(b"-1") => None,
        field => Some(small("the query", field)?),
    };
    if page >> 32 != 0 {
        return Err(malformed(format!("the page is {page}, which is not below 2^32")));
    }
    let block = u64::from(relation) << 32 | page;
    let (relation, time_us) = (Some(relation), Some(time_us));
    let request = Request { block, write, relation, query, time_us, continues: false };
    Ok(Span { request, blocks: 1 })
}

fn relation<'a>(fields: &mut impl Iterator<Item = &'a [u8]>) -> Result<Relation, ParseError> {
    Ok(Relation {
        number: small("the relation", fields.next())?,
        name: text("the relation's name", fields.next())?,
        kind: text("the relation's kind", fields.next())?,
    })
}

fn query<'a>(fields: &mut impl Iterator<Item = &'a [u8]>) -> Result<Query, ParseError> {
    let time_us = number("the time", fields.next())?;
    let query = small("the query", fields.next())?;
    let process = number("the process", fields.next())?;
    let template = text("the template", fields.next())?;
    // A query without relations has no list.
    let list = fields.next().into_iter().flat_map(|list| list.split(|byte| *byte == b','));
    let relations =
        list.map(|field| small("a relation of the query", Some(field))).collect::<Result<_, _>>()?;
    Ok(Query { number: query, time_us, process, template, relations })
}

fn text(what: &str, field: Option<&[u8]>) -> Result<String, ParseError> {
    let field = field.ok_or_else(|| malformed(format!("{what} is missing")))?;
    match std::str::from_utf8(field) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(malformed(format!("{what} is {}, which is not UTF-8", shown(field)))),
    }
}
