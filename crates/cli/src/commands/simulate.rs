//! `terrace simulate`: replays a block trace through cache policies.
//!
//! Every policy at every size is one cache; a shard takes every N-th cache and curve. All caches
//! run over one pass of the trace, on all cores (see `terrace_cache::sim`). Output is text, one
//! JSON object, and a report.

use std::cell::Cell;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use terrace_cache::policy::Name;
use terrace_cache::sim::{Devices, SimError, Simulation, Size, Step};
use terrace_cache::trace::{Columns, Format, Trace, TraceError};
use terrace_common::escape;
use terrace_common::failure::{Failure, Outcome};
use terrace_common::output::{print, print_json};
use terrace_common::progress::Progress;
use terrace_common::report;
use terrace_common::units::show_size;

use crate::args::{Policies, SimulateArgs};
use crate::simulation::{self, Found};

/// Default cache sizes.
const SIZES: [&str; 4] = ["1%", "5%", "10%", "20%"];

/// Standard input on the command line.
const INPUT: &str = "-";

/// Simulates, or merges the outputs of shards.
pub fn run(args: &SimulateArgs, output: &mut dyn Write) -> Outcome {
    if let Some(path) = &args.report {
        report::check(path)?;
    }
    let found = match args.merge {
        true => simulation::merge(&args.traces)?,
        false => simulate(args)?,
    };
    if let Some(path) = &args.report {
        simulation::report(&found).write(path)?;
    }
    match args.output.json {
        true => print_json(output, &found),
        false => print(output, format_args!("{}", escape::text(&simulation::table(&found)))),
    }
}

fn simulate(args: &SimulateArgs) -> Outcome<Found> {
    let [path] = args.traces.as_slice() else {
        return Err(Failure::Usage(
            "simulate takes one trace; to join outputs of shards, add --merge".to_owned(),
        ));
    };
    let source = Source::new(path, args)?;
    warn_of_sample(args, &names(&args.policy, true));
    let began = Instant::now();
    let (mut policies, mut sizes) = (names(&args.policy, true), sizes(args));
    warn_of_pages(args, &source, &sizes);
    let fits = |size: &Size, footprint| size.blocks(footprint, source.block_bytes).is_ok();
    let found = loop {
        match simulate_policies(args, &source, &policies, &sizes) {
            // The trace is too long for an implied bound: run the others without it.
            Err(SimError::TooLong { what, needs, max })
                if is_left_out(args, &what) && source.can_reopen() =>
            {
                eprintln!(
                    "terrace: {what} is skipped: it needs {needs}, and {} has more than {max} requests",
                    escape::text(&source.name)
                );
                policies = names(&args.policy, false);
            }
            // The trace is too small for a default size: run the others without it.
            Err(SimError::NoBlocks { footprint, .. } | SimError::NoBlocksInSample { footprint, .. })
                if are_sizes_left_out(args)
                    && sizes != default_sizes(args, footprint, source.block_bytes)
                    && source.can_reopen() =>
            {
                sizes = default_sizes(args, footprint, source.block_bytes);
                let sizes: Vec<String> = sizes.iter().map(Size::words).collect();
                eprintln!(
                    "terrace: {} has a footprint of {}; of the default sizes, {}, those below one block{} are skipped; simulated: {}",
                    escape::text(&source.name),
                    Size::Blocks(footprint).words(),
                    SIZES.join(", "),
                    if args.sample.is_some() { " of the sample" } else { "" },
                    sizes.join(", ")
                );
            }
            // All policies are equal there: run the others without it.
            Err(SimError::BeyondFootprint { footprint, .. } | SimError::NoBlocks { footprint, .. })
                if sizes.iter().any(|size| fits(size, footprint))
                    && args.shard.is_none()
                    && source.can_reopen() =>
            {
                for size in sizes.extract_if(.., |size| !fits(size, footprint)) {
                    let why = size.blocks(footprint, source.block_bytes).expect_err("it does not fit");
                    eprintln!("terrace: warning: skipped for {}: {why}", escape::text(&source.name));
                }
            }
            found => break found,
        }
    };
    let found = found.map_err(|error| failure(error, args, &source.name))?;
    let seconds = began.elapsed().as_secs_f64();
    warn_of_small(args, &found);
    Ok(Found { seconds, sample: args.sample, ..found.part(args.shard) })
}

/// Blocks of a cache in the sample below which an estimate is rough: a few blocks weigh too much.
const ROUGH_BLOCKS: usize = 100;

/// Warns of sizes that are too small for the sample.
fn warn_of_small(args: &SimulateArgs, found: &Found) {
    let Some(share) = args.sample else { return };
    let of_sample = |blocks: usize| Simulation::new().sample(share).sampled(blocks);
    let mut sizes: Vec<&str> = Vec::new();
    for result in found.results.iter().filter(|result| of_sample(result.cache_blocks) < ROUGH_BLOCKS) {
        if !sizes.contains(&result.size.as_str()) {
            sizes.push(&result.size);
        }
    }
    if !sizes.is_empty() {
        eprintln!(
            "terrace: warning: caches of fewer than {ROUGH_BLOCKS} blocks of the sample are estimated roughly: {}; \
             give a larger --sample or --size",
            sizes.join(", ")
        );
    }
}

/// Warns that bytes are counted in PostgreSQL's pages, which those of the trace may not be.
fn warn_of_pages(args: &SimulateArgs, source: &Source<'_>, sizes: &[Size]) {
    let is_assumed = args.block_size.is_none() && source.format.is_of_pages();
    if is_assumed && sizes.iter().any(|size| matches!(size, Size::Bytes(_))) {
        eprintln!(
            "terrace: warning: the pages of {} are taken for {}, as PostgreSQL has; if they differ, as SQLite's do, give \
             their --block-size",
            escape::text(&source.name),
            show_size(source.block_bytes.into())
        );
    }
}

/// Warns of policies whose errors in a sample have no bound.
fn warn_of_sample(args: &SimulateArgs, policies: &[Name]) {
    let names: Vec<String> =
        policies.iter().filter(|policy| policy.needs_runs()).map(Name::to_string).collect();
    if args.sample.is_some() && !names.is_empty() {
        eprintln!(
            "terrace: warning: a sample tears runs of blocks apart, so its errors have no bound for {}",
            names.join(", ")
        );
    }
}

/// Whether `policy` was only implied by `all`. Shards never drop one, since all shards must agree
/// on the policies.
fn is_left_out(args: &SimulateArgs, policy: &str) -> bool {
    let is_named = |named: &Policies| matches!(named, Policies::One(name) if name.to_string() == policy);
    let bounds = names(&args.policy, true).into_iter().filter(Name::needs_future);
    args.shard.is_none()
        && args.policy.contains(&Policies::All)
        && bounds.map(|name| name.to_string()).any(|name| name == policy)
        && !args.policy.iter().any(is_named)
}

fn has_default_sizes(args: &SimulateArgs) -> bool {
    args.size.is_empty() && !args.curve
}

fn sizes(args: &SimulateArgs) -> Vec<Size> {
    match has_default_sizes(args) {
        true => SIZES.iter().map(|size| size.parse().expect("a constant")).collect(),
        false => args.size.clone(),
    }
}

/// Whether default sizes below one block are left out. Shards never leave one out, since all
/// shards must agree on the sizes.
fn are_sizes_left_out(args: &SimulateArgs) -> bool {
    has_default_sizes(args) && args.shard.is_none()
}

/// The default sizes with at least one block of a small trace, or of its sample. If there are none,
/// the smallest size with one.
fn default_sizes(args: &SimulateArgs, footprint: usize, block_bytes: u32) -> Vec<Size> {
    let of_sample = |blocks: usize| match args.sample {
        Some(share) => Simulation::new().sample(share).sampled(blocks),
        None => blocks,
    };
    let fits = |size: &Size| size.blocks(footprint, block_bytes).is_ok_and(|blocks| of_sample(blocks) > 0);
    let sizes = SIZES.iter().map(|size| size.parse::<Size>().expect("a constant"));
    let sizes: Vec<Size> = sizes.filter(fits).collect();
    let least = || (1..footprint).find(|blocks| of_sample(*blocks) > 0).unwrap_or(footprint.max(1));
    if sizes.is_empty() { vec![Size::Blocks(least())] } else { sizes }
}

fn simulate_policies(
    args: &SimulateArgs,
    source: &Source<'_>,
    policies: &[Name],
    sizes: &[Size],
) -> Result<Found, SimError> {
    let caches = policies.iter().flat_map(|policy| sizes.iter().map(move |size| (policy.clone(), *size)));
    let curves = policies.iter().filter(|_| args.curve).cloned();
    let (cache_indices, caches) = part(args, caches);
    let (curve_indices, curves) = part(args, curves);

    let mut simulation =
        Simulation::new().block_bytes(source.block_bytes).parts(args.per_query, args.per_relation);
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

/// Each policy once, in command-line order; `all` includes the offline bounds if `with_bounds`.
fn names(policies: &[Policies], with_bounds: bool) -> Vec<Name> {
    let mut names: Vec<Name> = Vec::new();
    for name in policies.iter().flat_map(Policies::names) {
        if !names.contains(&name) && (with_bounds || !name.needs_future()) {
            names.push(name);
        }
    }
    names
}

/// This shard's share of the work, with the index of each item in the whole.
fn part<T>(args: &SimulateArgs, all: impl Iterator<Item = T>) -> (Vec<usize>, Vec<T>) {
    all.enumerate().filter(|(index, _)| args.shard.is_none_or(|shard| shard.has(*index))).unzip()
}

/// An unfit size is a usage error; other errors concern the trace.
fn failure(error: SimError, args: &SimulateArgs, trace: &str) -> Failure {
    match error {
        // Standard input, which cannot be read again, or a shard.
        SimError::NoBlocks { .. } if has_default_sizes(args) => {
            Failure::Usage(format!("{trace} is too small for the default sizes: {error} with --size"))
        }
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

/// Source of the trace.
struct Source<'a> {
    path: &'a Path,
    name: String,
    format: Format,
    columns: Option<&'a Columns>,
    block_bytes: u32,
    /// Length of the file, if known.
    bytes: Option<u64>,
    /// Whether the warnings were shown.
    has_warned: Cell<bool>,
}

impl<'a> Source<'a> {
    fn new(path: &'a Path, args: &'a SimulateArgs) -> Outcome<Source<'a>> {
        let is_input = path == Path::new(INPUT);
        let metadata = (!is_input).then(|| fs::metadata(path)).transpose();
        let metadata = metadata.map_err(|error| Failure::file("opening the trace", path, error))?;
        let format = match args.format {
            Some(format) => format.for_file(path),
            None if is_input => {
                return Err(Failure::Usage("standard input needs --format".to_owned()));
            }
            None => Format::of(path).map_err(|error| Failure::Usage(error.to_string()))?,
        };
        if args.columns.is_some() && !format.has_columns() {
            return Err(Failure::Usage(format!(
                "--columns is for csv traces; {format} has columns of its own"
            )));
        }
        let is_file = metadata.as_ref().is_some_and(fs::Metadata::is_file);
        Ok(Source {
            path,
            name: if is_input { "standard input".to_owned() } else { path.display().to_string() },
            format,
            columns: args.columns.as_ref(),
            block_bytes: args.block_size.unwrap_or(format.block_bytes()),
            bytes: metadata.filter(|_| is_file).map(|metadata| metadata.len()),
            has_warned: Cell::new(false),
        })
    }

    fn can_reopen(&self) -> bool {
        self.bytes.is_some()
    }

    fn open(&self) -> Result<Trace, TraceError> {
        let mut trace = match self.path == Path::new(INPUT) {
            true => Trace::new(&self.name, io::stdin(), self.format, self.block_bytes),
            false => Trace::open(self.path, Some(self.format), self.block_bytes)?,
        };
        if let Some(columns) = self.columns {
            trace = trace.columns(columns.clone());
        }
        if !self.has_warned.replace(true) {
            for note in trace.notes() {
                eprintln!("terrace: warning: {}", escape::text(&format!("{}: {note}", self.name)));
            }
        }
        Ok(trace)
    }
}

/// Progress bar over the trace's bytes while reading, then over requests of all caches.
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

    /// Starts a pass over the trace with its byte counter.
    fn begin(&self, bytes_read: Arc<AtomicU64>) {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = (Bar::reading(self.bytes), bytes_read);
    }

    fn step(&self, step: Step) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        match step {
            // Relaxed: the value is only displayed.
            Step::Read if Arc::strong_count(&shown.1) > 1 => shown.0.set(shown.1.load(Ordering::Relaxed)),
            Step::Total(requests) => {
                *shown = (Progress::new("simulating", "requests", requests), Arc::default())
            }
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

    /// Output of `simulate` for 17 * 2^20 requests, too long for the bound.
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
