//! `terrace simulate`: what policies of a block cache would have done with a trace.
//!
//! Policies times sizes are the caches; a shard takes every N-th of them, and of the curves. The trace is read once and all
//! caches run over it on all cores (`terrace_block::sim` says how, and what memory it takes). What was found goes to
//! standard output, as text or as one object, and to a report.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use terrace_block::policy::Name;
use terrace_block::sim::{Devices, SimError, Simulation, Size, Step};
use terrace_block::trace::{Format, Trace, TraceError};

use super::{print, print_json};
use crate::args::{Policies, SimulateArgs};
use crate::failure::{Failure, Outcome};
use crate::progress::Progress;
use crate::simulation::{self, Found};

/// The sizes of caches unless the command line says otherwise.
const SIZES: [&str; 4] = ["1%", "5%", "10%", "20%"];

/// Standard input, as the command line names it.
const INPUT: &str = "-";

/// Simulates, or joins what shards have simulated.
pub fn run(args: &SimulateArgs, output: &mut dyn Write) -> Outcome {
    let found = match args.merge {
        true => simulation::merge(&args.traces)?,
        false => simulate(args)?,
    };
    if let Some(path) = &args.report {
        simulation::report(&found).write(path)?;
    }
    match args.output.json {
        true => print_json(output, &found),
        false => print(output, format_args!("{}", crate::escape::text(&simulation::table(&found)))),
    }
}

fn simulate(args: &SimulateArgs) -> Outcome<Found> {
    let [path] = args.traces.as_slice() else {
        return Err(Failure::Usage("simulate takes one trace at a time; several are for --merge".to_owned()));
    };
    let source = Source::new(path, args)?;
    let began = Instant::now();
    let found = match simulate_policies(args, &source, &names(&args.policy, true)) {
        // The bound is one of all, and the trace is too long for it: the others are left.
        Err(SimError::TooLong { what, needs, max }) if is_left_out(args, &what) && source.can_reopen() => {
            eprintln!(
                "terrace: {what} is left out: it needs {needs}, and {} has more than {max} requests",
                crate::escape::text(&source.name)
            );
            simulate_policies(args, &source, &names(&args.policy, false))
        }
        found => found,
    };
    let found = found.map_err(|error| failure(error, &source.name))?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(Found { seconds, sample: args.sample, ..found.part(args.shard) })
}

/// Whether the policy is there only because all are. Shards must agree on the policies, and some have none that is too long
/// for the trace, so with them nothing is left out.
fn is_left_out(args: &SimulateArgs, policy: &str) -> bool {
    let is_named = |named: &Policies| matches!(named, Policies::One(name) if name.to_string() == policy);
    let bounds = names(&args.policy, true).into_iter().filter(Name::needs_future);
    args.shard.is_none()
        && args.policy.contains(&Policies::All)
        && bounds.map(|name| name.to_string()).any(|name| name == policy)
        && !args.policy.iter().any(is_named)
}

fn simulate_policies(args: &SimulateArgs, source: &Source<'_>, policies: &[Name]) -> Result<Found, SimError> {
    let sizes: Vec<Size> = match args.size.is_empty() && !args.curve {
        true => SIZES.iter().map(|size| size.parse().expect("a constant")).collect(),
        false => args.size.clone(),
    };
    let caches = policies.iter().flat_map(|policy| sizes.iter().map(move |size| (policy.clone(), *size)));
    let curves = policies.iter().filter(|_| args.curve).cloned();
    let (cache_indices, caches) = part(args, caches);
    let (curve_indices, curves) = part(args, curves);

    let mut simulation = Simulation::new().parts(args.per_query, args.per_relation);
    if let Some(threads) = args.threads {
        simulation = simulation.threads(threads.into());
    }
    if let Some(share) = args.sample {
        simulation = simulation.sample(share);
    }
    simulation = caches.into_iter().fold(simulation, |all, (policy, size)| all.cache(policy, size));
    simulation = curves.into_iter().fold(simulation, Simulation::curve);

    let bar = Bar::new(source.bytes);
    let mut open = || {
        let trace = source.open()?;
        bar.begin(trace.bytes_read());
        Ok(trace)
    };
    let report = simulation.run(&mut open, source.can_reopen(), &|step| bar.step(step));
    drop(bar);
    let report = report?;
    let mut found =
        Found::new(source.name.clone(), source.block_bytes, &report, [&cache_indices, &curve_indices]);
    if let Some((cache, store)) = &args.profile {
        let devices =
            Devices::new(cache.clone(), store.clone(), source.block_bytes.into(), args.workers.into());
        found = found.priced(&report, &devices);
    }
    Ok(found)
}

/// Each policy once, in the order in which they were named; `all` with bounds that need the future, or without.
fn names(policies: &[Policies], with_bounds: bool) -> Vec<Name> {
    let mut names: Vec<Name> = Vec::new();
    for name in policies.iter().flat_map(Policies::names) {
        if !names.contains(&name) && (with_bounds || !name.needs_future()) {
            names.push(name);
        }
    }
    names
}

/// The part of the work that is this shard's, and where in the whole each of it comes.
fn part<T>(args: &SimulateArgs, all: impl Iterator<Item = T>) -> (Vec<usize>, Vec<T>) {
    all.enumerate().filter(|(index, _)| args.shard.is_none_or(|shard| shard.has(*index))).unzip()
}

/// A size that does not fit the trace is a matter of the command line, the rest of the trace.
fn failure(error: SimError, trace: &str) -> Failure {
    match error {
        SimError::Trace(TraceError::Format(_)) | SimError::TooLong { .. } => {
            Failure::Usage(format!("{trace}: {error}"))
        }
        SimError::EmptySample { .. } | SimError::NoBlocksInSample { .. } => {
            Failure::Usage(format!("--sample for {trace}: {error}"))
        }
        SimError::NoBlocks { .. } | SimError::BeyondFootprint { .. } => {
            Failure::Usage(format!("--size for {trace}: {error}"))
        }
        SimError::Trace(_) => Failure::Work(error.to_string()),
        _ => Failure::Work(format!("{trace}: {error}")),
    }
}

/// Where the trace comes from.
struct Source<'a> {
    path: &'a Path,
    name: String,
    format: Format,
    block_bytes: u32,
    /// The file's length, where there is one.
    bytes: Option<u64>,
}

impl<'a> Source<'a> {
    fn new(path: &'a Path, args: &SimulateArgs) -> Outcome<Source<'a>> {
        let is_input = path == Path::new(INPUT);
        let format = match args.format {
            Some(format) => format,
            None if is_input => {
                return Err(Failure::Usage("--format must say what comes from standard input".to_owned()));
            }
            None => Format::of(path).map_err(|error| Failure::Usage(error.to_string()))?,
        };
        let metadata = (!is_input).then(|| fs::metadata(path)).transpose();
        let metadata = metadata.map_err(|error| Failure::file("opening the trace", path, error))?;
        let is_file = metadata.as_ref().is_some_and(fs::Metadata::is_file);
        Ok(Source {
            path,
            name: if is_input { "standard input".to_owned() } else { path.display().to_string() },
            format,
            block_bytes: args.block_size.unwrap_or(format.block_bytes()),
            bytes: metadata.filter(|_| is_file).map(|metadata| metadata.len()),
        })
    }

    fn can_reopen(&self) -> bool {
        self.bytes.is_some()
    }

    fn open(&self) -> Result<Trace, TraceError> {
        match self.path == Path::new(INPUT) {
            true => Ok(Trace::new(&self.name, io::stdin(), self.format, self.block_bytes)),
            false => Trace::open(self.path, Some(self.format), self.block_bytes),
        }
    }
}

/// A bar over the bytes of the trace while it is read, and then over the requests of all caches.
struct Bar {
    bytes: Option<u64>,
    shown: Mutex<(Progress, Arc<AtomicU64>)>,
}

impl Bar {
    fn new(bytes: Option<u64>) -> Bar {
        Bar { bytes, shown: Mutex::new((Bar::reading(bytes), Arc::default())) }
    }

    fn reading(bytes: Option<u64>) -> Progress {
        match bytes {
            Some(bytes) => Progress::bytes("reading", bytes),
            None => Progress::endless("reading"),
        }
    }

    /// The trace is read from its beginning, and this counts its bytes.
    fn begin(&self, bytes_read: Arc<AtomicU64>) {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = (Bar::reading(self.bytes), bytes_read);
    }

    fn step(&self, step: Step) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        match step {
            // Relaxed: only shown.
            Step::Read if Arc::strong_count(&shown.1) > 1 => shown.0.set(shown.1.load(Ordering::Relaxed)),
            Step::Total(requests) => *shown = (Progress::new("simulating", requests), Arc::default()),
            Step::Taken(requests) if Arc::strong_count(&shown.1) == 1 => shown.0.add(requests),
            Step::Read | Step::Taken(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::run;
    use crate::args::SimulateArgs;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: SimulateArgs,
    }

    /// What `simulate` prints for a trace of 17 times 2^20 requests, which is too long for the bound.
    fn printed(options: &[&str]) -> Result<serde_json::Value, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long.lis");
        std::fs::write(&path, "0 1048576 0 0\n".repeat(17)).unwrap();
        let line = ["simulate", path.to_str().unwrap(), "--json", "--sample", "0.001", "--size", "100000"];
        let line = Line::try_parse_from(line.iter().chain(options)).map_err(|error| error.to_string())?;
        let mut output = Vec::new();
        run(&line.args, &mut output).map_err(|error| error.to_string())?;
        Ok(serde_json::from_slice(&output).unwrap())
    }

    #[test]
    fn all_policies_of_a_long_trace_are_all_but_the_bound() {
        let found = printed(&["--policy", "all"]).unwrap();
        let policies: Vec<&str> = found["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|result| result["policy"].as_str().unwrap())
            .collect();
        assert!(policies.contains(&"lru") && policies.contains(&"auto"), "{policies:?}");
        assert!(!policies.contains(&"belady"), "{policies:?}");
        for named in
            [&["--policy", "all,belady"][..], &["--policy", "belady"], &["--policy", "all", "--shard", "1/1"]]
        {
            let error = printed(named).unwrap_err();
            assert!(error.contains("belady needs the whole trace in memory"), "{named:?}: {error}");
        }
    }
}
