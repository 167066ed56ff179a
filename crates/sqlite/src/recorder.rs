//! Records page requests and statements for `terrace simulate`.
//!
//! Requests are buffered until there are thousands or a change of the file is complete. By then the
//! parent of a new page, which names its relation, has been written. Pages of unknown relation get
//! 0.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

use terrace_cache::trace::{Format, Query, Relation, Request, TraceWriter};

use crate::relations::RelationMap;

/// Limit of buffered requests.
const WAITING_MAX: usize = 4096;

enum Waiting {
    Page { page: u32, write: bool, query: Option<u32>, time_us: u64 },
    Query(Query),
}

/// A trace being written; the first error ends it.
pub(crate) struct Recorder {
    writer: Option<TraceWriter<BufWriter<File>>>,
    waiting: Vec<Waiting>,
    named: BTreeSet<u32>,
    begun: Instant,
    error: Option<io::Error>,
}

impl Recorder {
    pub fn create(path: &Path) -> io::Result<Recorder> {
        let format = Format::of(path).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        // Checks the format first, so that an unsupported one leaves no file.
        TraceWriter::new(io::sink(), format)?;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let writer = TraceWriter::new(BufWriter::new(file), format)?;
        Ok(Recorder {
            writer: Some(writer),
            waiting: Vec::new(),
            named: BTreeSet::new(),
            begun: Instant::now(),
            error: None,
        })
    }

    /// Notes a read or write of `page`.
    pub fn note(&mut self, page: u32, write: bool, query: Option<u32>, relations: &RelationMap) {
        let time_us = self.now_us();
        self.wait(Waiting::Page { page, write, query, time_us });
        if self.waiting.len() >= WAITING_MAX {
            self.write_out(relations);
        }
    }

    pub fn note_query(&mut self, number: u32, process: u64, template: String, relations: Vec<u32>) {
        let time_us = self.now_us();
        self.wait(Waiting::Query(Query { number, time_us, process, template, relations }));
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn wait(&mut self, waiting: Waiting) {
        if self.writer.is_some() {
            self.waiting.push(waiting);
        }
    }

    /// Writes the buffered requests.
    pub fn write_out(&mut self, relations: &RelationMap) {
        let waiting = std::mem::take(&mut self.waiting);
        if let Err(error) = self.write_all(&waiting, relations) {
            self.writer = None;
            self.error = Some(error);
        }
    }

    /// Takes the error that ended the trace.
    pub fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    fn write_all(&mut self, waiting: &[Waiting], relations: &RelationMap) -> io::Result<()> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        for waiting in waiting {
            let (page, write, query, time_us) = match waiting {
                Waiting::Page { page, write, query, time_us } => (*page, *write, *query, *time_us),
                Waiting::Query(query) => {
                    writer.query(query)?;
                    continue;
                }
            };
            let relation = relations.relation(page).unwrap_or(0);
            if self.named.insert(relation) {
                let root = relations.name(relation);
                let kind = if root.as_ref().is_some_and(|root| root.is_index) { "i" } else { "r" };
                let name = root.map_or_else(|| format!("relation_{relation}"), |root| root.name);
                writer.relation(&Relation { number: relation, name, kind: kind.to_owned() })?;
            }
            let upper = if writer.has_relations() { u64::from(relation) << 32 } else { 0 };
            let block = upper | u64::from(page);
            writer.request(&Request {
                continues: false,
                block,
                write,
                relation: Some(relation),
                query,
                time_us: Some(time_us),
            })?;
        }
        writer.flush()
    }
}
