//! Writes traces that the readers beside it read: `.pgt`, which has relations and queries, and `.csv`, which has not.
//!
//! In a `.pgt` file fields are separated by blanks, so blanks in names, control characters, and what is left of an empty name become
//! underscores.

use std::io::{self, Write};

use super::format::Kind;
use super::{Format, Query, Relation, Request};

/// The first line of a `.csv` trace.
const CSV_HEADER: &[u8] = b"time_us,block,op\n";

/// A trace that is being written.
///
/// ```
/// use terrace_block::trace::{Event, Format, Request, Trace, TraceWriter};
///
/// let format: Format = "csv".parse().unwrap();
/// let mut writer = TraceWriter::new(Vec::new(), format)?;
/// let request =
///     Request { block: 7, write: true, relation: None, query: None, time_us: Some(5), continues: false };
/// writer.request(&request)?;
/// let written = writer.finish()?;
/// let events: Vec<_> = Trace::new("7.csv", std::io::Cursor::new(written), format, 4096).map(Result::unwrap).collect();
/// assert_eq!(events, [Event::Request(request)]);
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct TraceWriter<W> {
    writer: W,
    has_relations: bool,
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// `InvalidInput` for any format but `.pgt` and `.csv`, uncompressed; those of `writer`.
    pub fn new(mut writer: W, format: Format) -> io::Result<Self> {
        let has_relations = match format {
            Format { kind: Kind::Pgt, compressed: false } => true,
            Format { kind: Kind::Csv, compressed: false } => false,
            _ => {
                let what = "traces are written as .pgt or .csv, uncompressed";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
        };
        if !has_relations {
            writer.write_all(CSV_HEADER)?;
        }
        Ok(Self { writer, has_relations })
    }

    /// Whether the format knows relations and queries. Where it does not, they are left out, and a block is all of its number;
    /// where it does, a request must have its relation, whose number is the upper half of the block's.
    pub fn has_relations(&self) -> bool {
        self.has_relations
    }

    /// Names a relation, before the requests to it.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn relation(&mut self, relation: &Relation) -> io::Result<()> {
        if !self.has_relations {
            return Ok(());
        }
        writeln!(self.writer, "R {} {} {}", relation.number, word(&relation.name), word(&relation.kind))
    }

    /// A query arrives, before its requests.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn query(&mut self, query: &Query) -> io::Result<()> {
        if !self.has_relations {
            return Ok(());
        }
        let relations: Vec<_> = query.relations.iter().map(u32::to_string).collect();
        let Query { number, time_us, process, template, .. } = query;
        writeln!(self.writer, "Q {time_us} {number} {process} {} {}", word(template), relations.join(","))
    }

    /// A block is read or written.
    ///
    /// # Errors
    /// `InvalidInput` when it lacks the relation that the format needs; those of the writer.
    pub fn request(&mut self, request: &Request) -> io::Result<()> {
        let operation = if request.write { 'w' } else { 'r' };
        let time_us = request.time_us.unwrap_or(0);
        if !self.has_relations {
            return writeln!(self.writer, "{time_us},{},{operation}", request.block);
        }
        let relation = request.relation.filter(|relation| request.block >> 32 == u64::from(*relation));
        let Some(relation) = relation else {
            let what = format!("block {} is not of relation {:?}", request.block, request.relation);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        };
        let query = request.query.map_or(-1, i64::from);
        writeln!(
            self.writer,
            "{operation} {time_us} {relation} {} {query}",
            request.block & u64::from(u32::MAX)
        )
    }

    /// Hands on what was written so far.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }

    /// Ends the trace.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn finish(mut self) -> io::Result<W> {
        self.writer.flush()?;
        Ok(self.writer)
    }
}

/// A name as one field.
fn word(name: &str) -> String {
    match name {
        "" => "_".to_owned(),
        _ => name.replace(|letter: char| letter.is_whitespace() || letter.is_control(), "_"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Event, Trace};

    #[test]
    fn what_is_written_is_read() {
        let format: Format = "pgt".parse().expect("a format");
        let relation = Relation { number: 3, name: "big\ttable".to_owned(), kind: "i".to_owned() };
        let query =
            Query { number: 9, time_us: 1, process: 4, template: String::new(), relations: vec![3, 5] };
        let mut requests = Vec::new();
        for page in 0..4u32 {
            let block = 3 << 32 | u64::from(page);
            let query = (page % 2 == 0).then_some(9);
            requests.push(Request {
                continues: false,
                block,
                write: page > 1,
                relation: Some(3),
                query,
                time_us: Some(page.into()),
            });
        }
        let mut writer = TraceWriter::new(Vec::new(), format).expect("a format that is written");
        writer.relation(&relation).expect("memory");
        writer.query(&query).expect("memory");
        for request in &requests {
            writer.request(request).expect("memory");
        }
        let stray = Request { relation: Some(4), ..requests[0] };
        assert_eq!(
            writer.request(&stray).expect_err("another relation's block").kind(),
            io::ErrorKind::InvalidInput
        );
        let written = io::Cursor::new(writer.finish().expect("memory"));
        let mut events =
            Trace::new("t.pgt", written, format, 8192).map(|event| event.expect("it is well formed"));
        let named = Relation { name: "big_table".to_owned(), ..relation };
        assert_eq!(events.next(), Some(Event::Relation(Box::new(named))));
        assert_eq!(events.next(), Some(Event::Query(Box::new(Query { template: "_".to_owned(), ..query }))));
        assert_eq!(events.collect::<Vec<_>>(), requests.into_iter().map(Event::Request).collect::<Vec<_>>());
    }

    #[test]
    fn other_formats_are_refused() {
        for name in ["lis", "u32le", "oracleGeneral", "blktrace"] {
            let format: Format = name.parse().expect("a format");
            assert!(TraceWriter::new(Vec::new(), format).is_err(), "{name}");
        }
    }
}
