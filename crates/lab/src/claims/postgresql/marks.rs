//! Recordings of a mount, whose marks become queries.

use std::collections::BTreeMap;

use terrace_cache::trace::{Event, Query, Relation, Request, Trace, TraceError, TraceWriter};
use terrace_common::failure::{Failure, Outcome};

use super::server::NO_QUERY;

/// Files that each query reads, by its name.
pub type Uses = BTreeMap<String, Vec<String>>;

/// A file of the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
enum File {
    Mark(String),
    /// A table or index.
    Pages(String),
    /// State, spilled rows and others.
    Other,
}

impl File {
    fn of(name: &str) -> File {
        if let Some(mark) = name.strip_prefix("marks/") {
            return File::Mark(mark.to_owned());
        }
        let pages = name.strip_prefix("data/").filter(|path| {
            let (folder, file) = path.rsplit_once('/').unwrap_or_default();
            let number = file.split('_').next().unwrap_or_default();
            let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            (folder == "global" || folder.strip_prefix("base/").is_some_and(is_number)) && is_number(number)
        });
        pages.map_or(File::Other, |path| File::Pages(path.to_owned()))
    }
}

/// The recording that is written: relations are numbered as they come.
struct Written {
    writer: TraceWriter<Vec<u8>>,
    numbers: BTreeMap<String, u32>,
    queries: u32,
    /// Whether requests belong to a query now.
    is_query: bool,
}

impl Written {
    fn number(&mut self, path: &str) -> std::io::Result<u32> {
        if let Some(&number) = self.numbers.get(path) {
            return Ok(number);
        }
        let number = self.numbers.len() as u32;
        self.writer.relation(&Relation { number, name: path.to_owned(), kind: "r".to_owned() })?;
        self.numbers.insert(path.to_owned(), number);
        Ok(number)
    }

    fn mark(&mut self, name: &str, time_us: Option<u64>, uses: &Uses) -> std::io::Result<()> {
        self.is_query = name != NO_QUERY;
        if !self.is_query {
            return Ok(());
        }
        self.queries += 1;
        let files = uses.get(name).map_or(&[][..], Vec::as_slice);
        let relations = files.iter().map(|path| self.number(path)).collect::<Result<_, _>>()?;
        let (number, time_us, template) = (self.queries, time_us.unwrap_or(0), name.to_owned());
        self.writer.query(&Query { number, time_us, process: 0, template, relations })
    }

    fn request(&mut self, path: &str, request: &Request) -> std::io::Result<()> {
        if !self.is_query {
            return Ok(());
        }
        let number = self.number(path)?;
        let block = (u64::from(number) << 32) | (request.block & u64::from(u32::MAX));
        let (relation, query) = (Some(number), Some(self.queries));
        self.writer.request(&Request { block, relation, query, ..*request })
    }
}

/// The requests of tables and indexes between the first mark and the last, each in the query of the
/// mark before it.
pub fn queries_of(events: impl Iterator<Item = Result<Event, TraceError>>, uses: &Uses) -> Outcome<Vec<u8>> {
    let format = "pgt".parse().expect("a format");
    let writer = TraceWriter::new(Vec::new(), format).map_err(failed)?;
    let mut written = Written { writer, numbers: BTreeMap::new(), queries: 0, is_query: false };
    let mut files = BTreeMap::new();
    for event in events {
        match event.map_err(failed)? {
            Event::Relation(relation) => {
                files.insert(relation.number, File::of(&relation.name));
                Ok(())
            }
            Event::Query(_) => Ok(()),
            Event::Request(request) => match request.relation.and_then(|number| files.get(&number)) {
                Some(File::Mark(name)) => written.mark(name, request.time_us, uses),
                Some(File::Pages(path)) => written.request(path, &request),
                _ => Ok(()),
            },
        }
        .map_err(failed)?;
    }
    written.writer.finish().map_err(failed)
}

/// Reads the recording of a mount.
pub fn open(path: &std::path::Path) -> Outcome<Trace> {
    Trace::open(path, None, super::server::PAGE_BYTES as u32).map_err(failed)
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Work(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_indexes_and_marks_are_known_by_their_names() {
        for (name, path) in [
            ("data/base/5/16384", Some("base/5/16384")),
            ("data/base/5/16384_vm", Some("base/5/16384_vm")),
            ("data/global/1262", Some("global/1262")),
            ("data/global/pg_control", None),
            ("data/base/5/PG_VERSION", None),
            ("data/base/pgsql_tmp", None),
            ("data/pg_xact/0000", None),
            ("data/postmaster.pid", None),
        ] {
            assert_eq!(
                File::of(name),
                path.map_or(File::Other, |path| File::Pages(path.to_owned())),
                "{name}"
            );
        }
        assert_eq!(File::of("marks/q3_1"), File::Mark("q3_1".to_owned()));
    }

    #[test]
    fn requests_belong_to_the_query_of_the_mark_before() {
        let text = "R 0 data/base/5/7 r\nR 1 marks/q1 r\nR 2 data/pg_xact/0 r\nR 3 data/base/5/8 r\nR 4 marks/none r\n\
                    r 1 0 9 -1\nr 2 1 0 -1\nr 3 2 0 -1\nr 4 3 5 -1\nw 5 0 9 -1\nr 6 1 0 -1\nr 7 0 1 -1\n\
                    r 8 4 0 -1\nr 9 0 2 -1\n";
        let trace = Trace::new("t", text.as_bytes(), "pgt".parse().unwrap(), 8192);
        let uses = Uses::from([("q1".to_owned(), vec!["base/5/6".to_owned(), "base/5/7".to_owned()])]);
        let found = String::from_utf8(queries_of(trace, &uses).unwrap()).unwrap();
        let expected = "R 0 base/5/6 r\nR 1 base/5/7 r\nQ 2 1 0 q1 0,1\nR 2 base/5/8 r\nr 4 2 5 1\nw 5 1 9 1\n\
                        Q 6 2 0 q1 0,1\nr 7 1 1 2\n";
        assert_eq!(found, expected);
    }
}
