//! `terrace bench ycsb`: loads a table, runs a mix of operations over it, and says how fast it was and why.
//!
//! The JSON object has the keys that all engines and tiers share; those of a middle tier are zero where there is
//! none, so that runs with two and three tiers can be laid side by side.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use serde::Serialize;

use super::{compare, print, print_json, with_database};
use terrace::{MemoryMoves, MiddleStats};

use crate::args::YcsbArgs;
use crate::bystanders::Watch;
use crate::failure::{Failure, Outcome};
use crate::store::{Counters, Opener, Settings};
use crate::units::{show_count, show_size};
use crate::workload::driver::{self, Length, Measured, Plan};
use crate::workload::latency::Summary;
use crate::{confine, memory, peers};

/// The table that is loaded, and replaced when it is there already.
const TABLE: &str = "ycsb";
/// Length of a measurement when neither time nor operations are given.
const SECONDS: Duration = Duration::from_secs(10);

/// One run, with the keys of the command's interface.
#[derive(Debug, Default, Serialize)]
pub struct BenchReport {
    engine: String,
    /// What the engine was told, in its own words.
    settings: BTreeMap<&'static str, String>,
    workload: String,
    distribution: String,
    records: u64,
    value_bytes: usize,
    threads: u64,
    /// What was asked for with `--rate`; then latencies count from when requests were due.
    rate: Option<String>,
    /// Requests that were due and had not been made at the end; with a rate only.
    overdue: Option<u64>,
    seconds: f64,
    operations: u64,
    ops_per_second: f64,
    latency_us: Summary,
    errors: u64,
    aborts: u64,
    verified: u64,
    load_seconds: f64,
    rss_bytes: u64,
    budget_bytes: u64,
    tiers: Tiers,
    migrations: Migrations,
    /// Memory that went from the nodes of one tier to those of the other, in pages of the database's.
    memory_moves: MemoryMoves,
    /// Pages of the system's, 4 KiB each, that came to the middle tier and are on other nodes than its own.
    misplaced_pages: u64,
    inclusivity: f64,
    middle_line_writes: LineWrites,
    log_bytes: u64,
    /// How often the log was filled from end to end in the measured time.
    log_cycles: Option<f64>,
    /// Bytes read from and written to the page file and the log, by operations.
    store_bytes_per_operation: f64,
    policy: Policy,
    in_place: InPlace,
    middle_writes_by_cause: MiddleWrites,
    dram_flushes: u64,
    cost: f64,
    by_operation: BTreeMap<&'static str, ByOperation>,
    /// Seconds since the beginning, and operations completed in the second that ended then.
    over_time: Vec<(f64, u64)>,
    /// The rate of the slowest second, of those the median one has.
    slowest_second: Option<f64>,
    stalls: BTreeMap<String, u64>,
    /// Bytes of files that were written and had not reached the disk when the measurement ended: this process's where it has a
    /// control group, else the whole machine's, less what there was before. Null without files on a disk.
    dirty_bytes: Option<u64>,
    /// Share of the machine's processors that other processes used during the measurement.
    others_cpu: Option<f64>,
    void: Option<String>,
}

#[derive(Debug, Default, Serialize)]
struct Tiers {
    dram: Tier,
    middle: Tier,
    store: Tier,
}

#[derive(Debug, Default, Serialize)]
struct Tier {
    simulated: bool,
    capacity_bytes: u64,
    /// Page accesses answered from here; null where they are not counted: a hit in memory writes nothing.
    hits: Option<u64>,
    read_bytes: u64,
    written_bytes: u64,
}

#[derive(Debug, Default, Serialize)]
struct Migrations {
    store_to_dram: u64,
    store_to_middle: u64,
    middle_to_dram: u64,
    dram_to_middle: u64,
    dram_to_store: u64,
    middle_to_store: u64,
}

#[derive(Debug, Default, Serialize)]
struct LineWrites {
    total: u64,
    max: u64,
}

/// Probabilities that an access moves a page: to DRAM on a read and a write, to the middle tier on either.
#[derive(Debug, Serialize)]
struct Policy {
    dr: f64,
    dw: f64,
    nr: f64,
    nw: f64,
}

impl Default for Policy {
    /// Two tiers know one way only: every page accessed goes to DRAM.
    fn default() -> Self {
        Policy { dr: 1.0, dw: 1.0, nr: 0.0, nw: 0.0 }
    }
}

#[derive(Debug, Default, Serialize)]
struct InPlace {
    reads: u64,
    writes: u64,
}

#[derive(Debug, Default, Serialize)]
struct MiddleWrites {
    in_place: u64,
    from_dram: u64,
    from_store: u64,
    log: u64,
}

#[derive(Debug, Serialize)]
struct ByOperation {
    operations: u64,
    latency_us: Summary,
}

/// What was found around a measurement.
struct Surroundings {
    engine: String,
    settings: BTreeMap<&'static str, String>,
    load: Duration,
    dirty_bytes: Option<u64>,
    others_cpu: Option<f64>,
}

/// Runs the benchmark, of several engines when they are to be compared.
pub fn run(args: &YcsbArgs, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    if !args.compare.is_empty() {
        return compare::run(args, output);
    }
    match peers::opener(&args.engine) {
        Some(peer) => measure(args, &*peer, output),
        None => measure(args, opener, output),
    }
}

fn measure(args: &YcsbArgs, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    if let Some(group) = &args.group {
        confine::join(group).map_err(|error| Failure::file("joining the control group", group, error))?;
    }
    let settings = Settings {
        create: true,
        scratch: args.scratch.clone(),
        threads: args.threads.into(),
        records: args.records,
        value_bytes: args.value_bytes() as u64,
        ..args.tiers.settings(args.store.clone())
    };
    let length = match (args.operations, args.seconds) {
        (Some(operations), _) => Length::Operations(operations),
        (None, seconds) => {
            Length::Time { least: seconds.unwrap_or(SECONDS), log_cycles: args.log_cycles.unwrap_or(0) }
        }
    };
    let rate = args.rate.map(|rate| rate.of_mix(&args.workload)).transpose().map_err(Failure::Usage)?;
    let plan = Plan {
        mix: args.workload.clone(),
        distribution: args.distribution,
        records: args.records,
        value_bytes: args.value_bytes(),
        threads: args.threads.into(),
        rate,
        length,
        warmup: args.warmup,
        seed: args.tiers.seed,
        tick: Duration::from_secs(1),
    };
    let group = args.group.as_deref();
    let dirty_before = match (&args.store, group) {
        (None, _) => None,
        (Some(_), Some(_)) => Some(0),
        (Some(_), None) => confine::dirty_bytes(None),
    };
    let (measured, around) = with_database(opener, &settings, |database| {
        database.drop_table(TABLE)?;
        let table = database.table(TABLE, true)?;
        if args.log_cycles.is_some() && table.counters().log_cycles.is_none() {
            return Err(Failure::Usage(format!(
                "--log-cycles: {} does not tell how full its log is",
                args.engine
            )));
        }
        let load = driver::load(&*table, &plan)?;
        let mut watch = Watch::default();
        let measured = driver::run(&*table, &plan, &mut || watch = Watch::start())?;
        let others_cpu = watch.share();
        let dirty_bytes =
            confine::dirty_bytes(group).zip(dirty_before).map(|(now, was)| now.saturating_sub(was));
        let (engine, settings) = (args.engine.clone(), database.settings());
        Ok((measured, Surroundings { engine, settings, load, dirty_bytes, others_cpu }))
    })?;
    let report =
        BenchReport { rate: args.rate.map(|rate| rate.to_string()), ..report(&plan, around, &measured) };
    match args.output.json {
        true => print_json(output, &report)?,
        false => show(&report, output)?,
    }
    verdict(&measured)
}

/// A run with wrong answers is damage, one with failed operations a failure; both are told after the figures.
fn verdict(measured: &Measured) -> Outcome {
    match (measured.wrong, measured.errors) {
        (0, 0) => Ok(()),
        (0, errors) => Err(Failure::Work(format!(
            "{errors} operations failed, the first with: {}",
            measured.first_error.as_deref().unwrap_or("no message")
        ))),
        (wrong, _) => Err(Failure::Damaged(format!("{wrong} values read back were wrong or missing"))),
    }
}

fn report(plan: &Plan, around: Surroundings, measured: &Measured) -> BenchReport {
    let counters: &Counters = &measured.counters;
    let store_bytes = counters.store_read_bytes + counters.store_written_bytes + counters.log_bytes;
    let void = match (measured.wrong, measured.errors) {
        (0, 0) => None,
        (0, errors) => Some(format!("{errors} operations failed")),
        (wrong, _) => Some(format!("{wrong} values read back were wrong or missing")),
    };
    BenchReport {
        engine: around.engine,
        settings: around.settings,
        workload: plan.mix.to_string(),
        distribution: plan.distribution.to_string(),
        records: plan.records,
        value_bytes: plan.value_bytes,
        threads: plan.threads,
        overdue: plan.rate.map(|_| measured.overdue),
        seconds: measured.seconds,
        operations: measured.operations,
        ops_per_second: measured.operations as f64 / measured.seconds.max(1e-9),
        latency_us: measured.latencies.summary(),
        errors: measured.errors,
        aborts: counters.aborts.max(measured.reruns),
        verified: measured.verified,
        load_seconds: around.load.as_secs_f64(),
        rss_bytes: memory::peak_resident_bytes(),
        budget_bytes: counters.budget_bytes,
        tiers: Tiers {
            dram: Tier { capacity_bytes: counters.dram_capacity_bytes, hits: None, ..Tier::default() },
            middle: counters.middle.as_ref().map(middle_tier).unwrap_or_default(),
            store: Tier {
                simulated: false,
                capacity_bytes: counters.store_capacity_bytes,
                hits: Some(counters.store_hits),
                read_bytes: counters.store_read_bytes,
                written_bytes: counters.store_written_bytes,
            },
        },
        migrations: migrations(counters),
        memory_moves: counters.middle.as_ref().map(|middle| middle.memory_moves).unwrap_or_default(),
        misplaced_pages: counters.middle.as_ref().map_or(0, |middle| middle.misplaced_pages),
        inclusivity: counters.middle.as_ref().map_or(0.0, MiddleStats::inclusivity),
        middle_line_writes: LineWrites {
            total: counters.middle.as_ref().map_or(0, |middle| middle.lines_written),
            ..LineWrites::default()
        },
        policy: counters.middle.as_ref().map(|middle| middle.policy.into()).unwrap_or_default(),
        in_place: counters.middle.as_ref().map_or(InPlace::default(), |middle| InPlace {
            reads: middle.reads_in_place,
            writes: middle.writes_in_place,
        }),
        middle_writes_by_cause: counters.middle.as_ref().map_or(MiddleWrites::default(), |middle| {
            let terrace::MiddleWrites { in_place, from_dram, from_dram_clean, from_store, created, .. } =
                middle.writes;
            MiddleWrites {
                in_place,
                from_dram: from_dram + from_dram_clean,
                from_store: from_store + created,
                log: 0,
            }
        }),
        dram_flushes: counters.dram_to_store,
        log_bytes: counters.log_bytes,
        log_cycles: counters.log_cycles,
        store_bytes_per_operation: store_bytes as f64 / measured.operations.max(1) as f64,
        by_operation: measured
            .by_kind
            .iter()
            .map(|(kind, found)| {
                (kind.name(), ByOperation { operations: found.count(), latency_us: found.summary() })
            })
            .collect(),
        over_time: measured.over_time.clone(),
        slowest_second: measured.slowest_tick(plan.tick),
        stalls: counters.stalls.iter().cloned().collect(),
        dirty_bytes: around.dirty_bytes,
        others_cpu: around.others_cpu,
        void,
        ..BenchReport::default()
    }
}

/// What was done to the middle tier. Its bytes are those of whole pages; what is read and changed in place is counted in looks.
fn middle_tier(middle: &MiddleStats) -> Tier {
    let (moved, writes) = (&middle.migrations, &middle.writes);
    let looks = middle.reads_in_place + middle.writes_in_place + moved.middle_to_dram;
    let pages_read = moved.middle_to_dram + middle.middle_flushes;
    let pages_written = writes.from_dram + writes.from_dram_clean + writes.from_store + writes.created;
    Tier {
        simulated: middle.simulated,
        capacity_bytes: middle.capacity_bytes,
        // The first look at a page that came from the store is the store's.
        hits: Some(looks.saturating_sub(moved.store_to_middle)),
        read_bytes: pages_read * middle.page_bytes,
        written_bytes: pages_written * middle.page_bytes,
    }
}

/// Pages that went from tier to tier. Those that leave DRAM for the store count as they are written, as with two tiers.
fn migrations(counters: &Counters) -> Migrations {
    let two = Migrations {
        store_to_dram: counters.store_to_dram,
        dram_to_store: counters.dram_to_store,
        ..Migrations::default()
    };
    counters.middle.as_ref().map_or(two, |middle| Migrations {
        store_to_dram: counters.store_to_dram,
        dram_to_store: counters.dram_to_store,
        store_to_middle: middle.migrations.store_to_middle,
        middle_to_dram: middle.migrations.middle_to_dram,
        dram_to_middle: middle.migrations.dram_to_middle,
        middle_to_store: middle.middle_flushes,
    })
}

impl From<terrace::migration::Policy> for Policy {
    fn from(policy: terrace::migration::Policy) -> Policy {
        Policy { dr: policy.dr(), dw: policy.dw(), nr: policy.nr(), nw: policy.nw() }
    }
}

fn show(report: &BenchReport, output: &mut dyn Write) -> Outcome {
    let BenchReport { workload, threads, value_bytes, distribution, .. } = report;
    let records = show_count(report.records);
    print(
        output,
        format_args!(
            "ycsb {workload}, {records} records of {value_bytes} B, {distribution}, {threads} threads, {}\n",
            report.engine
        ),
    )?;
    let rate = show_count(report.ops_per_second as u64);
    let operations = show_count(report.operations);
    print(output, format_args!("{rate} operations/s ({operations} in {:.2} s)\n", report.seconds))?;
    if let (Some(rate), Some(overdue)) = (&report.rate, report.overdue) {
        let overdue = show_count(overdue);
        print(
            output,
            format_args!("asked for {rate} a second; {overdue} requests were overdue at the end\n"),
        )?;
    }
    if let (Some(slowest), Some(cycles)) = (report.slowest_second, report.log_cycles) {
        print(
            output,
            format_args!(
                "slowest second {slowest:.2} of the median one; the log was filled {cycles:.1} times\n"
            ),
        )?;
    }
    for (kind, found) in &report.by_operation {
        let Summary { p50, p99, p999, max, .. } = found.latency_us;
        print(
            output,
            format_args!("{kind:>18}: p50 {p50:.1} us, p99 {p99:.1}, p99.9 {p999:.1}, max {max:.0}\n"),
        )?;
    }
    let (rss, budget) = (show_size(report.rss_bytes), show_size(report.budget_bytes));
    let (load, verified) = (report.load_seconds, show_count(report.verified));
    print(
        output,
        format_args!(
            "load {load:.2} s, memory {rss} of process, budget {budget}, {verified} values verified\n"
        ),
    )?;
    if !report.settings.is_empty() {
        let told: Vec<_> = report.settings.iter().map(|(name, value)| format!("{name} {value}")).collect();
        print(output, format_args!("settings: {}\n", told.join(", ")))?;
    }
    Ok(())
}
