//! Writes traces: `.pgt`, with relations and queries, and `.csv`, without.
//!
//! In `.pgt` names, blanks and control characters become underscores, as does an empty name.

use std::io::{self, Write};

use super::event::{Query, Relation, Request};
use super::format::{Compression, Format, Kind};

const CSV_HEADER: &[u8] = b"time_us,block,op\n";

/// A trace under construction.
///
/// ```
/// use terrace_cache::trace::{Event, Format, Request, Trace, TraceWriter};
///
/// let format: Format = "csv".parse().unwrap();
/// let mut writer = TraceWriter::new(Vec::new(), format)?;
/// let time_us = Some(5);
/// let request =
///     Request { block: 7, write: true, relation: None, query: None, time_us, continues: false };
/// writer.request(&request)?;
/// let written = writer.finish()?;
/// let trace = Trace::new("7.csv", std::io::Cursor::new(written), format, 4096);
/// let events: Vec<_> = trace.map(Result::unwrap).collect();
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
            Format { kind: Kind::Pgt, compression: Compression::None } => true,
            Format { kind: Kind::Csv, compression: Compression::None } => false,
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

    /// Whether the format has relations and queries. If not, they are dropped, and a block is its
    /// whole number. If so, a request needs its relation, the upper half of its block.
    pub fn has_relations(&self) -> bool {
        self.has_relations
    }

    /// Writes a relation, before its requests.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn relation(&mut self, relation: &Relation) -> io::Result<()> {
        if !self.has_relations {
            return Ok(());
        }
        writeln!(self.writer, "R {} {} {}", relation.number, word(&relation.name), word(&relation.kind))
    }

    /// Writes a query, before its requests.
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

    /// Writes a request.
    ///
    /// # Errors
    /// `InvalidInput` if a required relation is missing; those of the writer.
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

    /// Flushes the writer.
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
