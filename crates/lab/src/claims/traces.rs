//! Finds the shared traces and simulates over them.

use std::env;
use std::io::Cursor;
use std::path::PathBuf;
use std::sync::Arc;

use terrace_cache::policy::Name;
use terrace_cache::sim::{Report, Simulation, Size};
use terrace_cache::trace::{Event, Query, Request, Trace, TraceError, TraceWriter};
use terrace_common::failure::{Failure, Outcome};

use super::claim::Setting;

/// Environment variable with their directory.
const VARIABLE: &str = "TERRACE_TRACES";

/// Default directory, here or in a parent.
const FOLDER: &str = "shared/traces";

/// A trace, if found.
pub fn find(setting: &Setting, file: &str) -> Option<Source> {
    let named = setting.traces.clone().or_else(|| env::var_os(VARIABLE).map(PathBuf::from));
    let path = match named {
        Some(folder) => folder.join(file),
        None => {
            let here = env::current_dir().ok()?;
            let found = here.ancestors().map(|folder| folder.join(FOLDER)).find(|folder| folder.is_dir());
            found?.join(file)
        }
    };
    path.is_file().then_some(Source::File(path))
}

/// The message for a missing trace.
pub fn missing(file: &str) -> String {
    format!("the trace {file} is not here; say where the shared traces are with --traces or {VARIABLE}")
}

/// A trace, read again for each simulation.
#[derive(Clone)]
pub enum Source {
    File(PathBuf),
    /// Bytes of a `.pgt` file.
    Memory(Arc<[u8]>),
}

impl Source {
    fn open(&self) -> Result<Trace, TraceError> {
        match self {
            Source::File(path) => Trace::open(path, None, 8192),
            Source::Memory(bytes) => {
                let format = "pgt".parse().expect("a format");
                Ok(Trace::new("memory", Cursor::new(Arc::clone(bytes)), format, 8192))
            }
        }
    }

    /// The same accesses, each in a query of its own that uses its relation.
    pub fn with_queries(&self) -> Outcome<Source> {
        let format = "pgt".parse().expect("a format");
        let mut writer = TraceWriter::new(Vec::new(), format).map_err(failed)?;
        let mut queries = 0;
        for event in self.open().map_err(failed)? {
            match event.map_err(failed)? {
                Event::Relation(relation) => writer.relation(&relation),
                Event::Query(_) => Ok(()),
                Event::Request(request) => {
                    queries += 1;
                    let query = Query {
                        number: queries,
                        time_us: request.time_us.unwrap_or(0),
                        process: 0,
                        template: "transaction".to_owned(),
                        relations: request.relation.into_iter().collect(),
                    };
                    let request = Request { query: Some(queries), ..request };
                    writer.query(&query).and_then(|()| writer.request(&request))
                }
            }
            .map_err(failed)?;
        }
        Ok(Source::Memory(writer.finish().map_err(failed)?.into()))
    }

    /// Runs policies at sizes over the trace; results are by policy, then size. `band` is the most
    /// that sequential runs skip, if not the policies' own.
    pub fn simulate(
        &self,
        policies: &[Name],
        sizes: &[Size],
        by_query: bool,
        band: Option<u64>,
    ) -> Outcome<Report> {
        let caches = policies.iter().flat_map(|policy| sizes.iter().map(move |size| (policy, *size)));
        let simulation = Simulation::new().parts(by_query, false);
        let simulation = band.into_iter().fold(simulation, Simulation::band);
        let simulation = caches.fold(simulation, |all, (policy, size)| all.cache(policy.clone(), size));
        simulation.run(&mut || self.open(), true, &|_| {}).map_err(failed)
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Work(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_access_gets_a_query_with_its_relation() {
        let text = "R 1 a r\nR 2 b i\nr 5 1 7 -1\nw 6 2 8 -1\n";
        let source = Source::Memory(text.as_bytes().into()).with_queries().unwrap();
        let Source::Memory(bytes) = source else { panic!("in memory") };
        let expected =
            "R 1 a r\nR 2 b i\nQ 5 1 0 transaction 1\nr 5 1 7 1\nQ 6 2 0 transaction 2\nw 6 2 8 2\n";
        assert_eq!(String::from_utf8_lossy(&bytes), expected);
    }

    /// Every second block of a scan: a run for a band of 2, not of 1.
    #[test]
    fn the_band_decides_what_is_a_run() {
        let text: String = (0..100).map(|step| format!("r {step} 1 {} -1\n", 2 * step)).collect();
        let source = Source::Memory(format!("R 1 a r\n{text}").into_bytes().into());
        let admissions = |band| {
            let policies = ["tac", "heuristicdb-paper"].map(|name| name.parse().unwrap());
            let found = source.simulate(&policies, &["50".parse().unwrap()], false, band).unwrap();
            found.results.iter().map(|result| result.counts.admissions).collect::<Vec<_>>()
        };
        let [own, narrow] = [None, Some(1)].map(admissions);
        assert!(own.iter().zip(&narrow).all(|(own, narrow)| own < narrow), "{own:?} {narrow:?}");
    }
}
