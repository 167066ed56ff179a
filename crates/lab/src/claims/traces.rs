//! Finds the shared traces and simulates over them.

use std::env;
use std::path::{Path, PathBuf};

use terrace_cache::policy::Name;
use terrace_cache::sim::{Report, Simulation, Size};
use terrace_cache::trace::Trace;
use terrace_common::failure::{Failure, Outcome};

use super::claim::Setting;

/// Environment variable with their directory.
const VARIABLE: &str = "TERRACE_TRACES";

/// Default directory, here or in a parent.
const FOLDER: &str = "shared/traces";

/// The file of a trace, if found.
pub fn find(setting: &Setting, file: &str) -> Option<PathBuf> {
    let named = setting.traces.clone().or_else(|| env::var_os(VARIABLE).map(PathBuf::from));
    let path = match named {
        Some(folder) => folder.join(file),
        None => {
            let here = env::current_dir().ok()?;
            let found = here.ancestors().map(|folder| folder.join(FOLDER)).find(|folder| folder.is_dir());
            found?.join(file)
        }
    };
    path.is_file().then_some(path)
}

/// The message for a missing trace.
pub fn missing(file: &str) -> String {
    format!("the trace {file} is not here; say where the shared traces are with --traces or {VARIABLE}")
}

/// Runs policies at sizes over a trace; results are by policy, then size.
pub fn simulate(path: &Path, policies: &[Name], sizes: &[Size], by_query: bool) -> Outcome<Report> {
    let caches = policies.iter().flat_map(|policy| sizes.iter().map(move |size| (policy, *size)));
    let simulation = Simulation::new().parts(by_query, false);
    let simulation = caches.fold(simulation, |all, (policy, size)| all.cache(policy.clone(), size));
    let mut open = || Trace::open(path, None, 8192);
    simulation.run(&mut open, true, &|_| {}).map_err(|error| Failure::Work(error.to_string()))
}
