//! `terrace bench ycsb`: loads a table, runs a mix of operations and reports the figures.
//!
//! | module          | contents                                                     |
//! |-----------------|--------------------------------------------------------------|
//! | `object.rs`     | the object of `--json`                                       |
//! | `html.rs`       | the report with charts                                       |
//! | `equal_cost.rs` | `--equal-cost`: hierarchies of equal cost, one after another |

mod equal_cost;
mod html;
mod object;

use std::io::Write;
use std::time::Duration;

use terrace::CacheStats;
use terrace_common::escape;
use terrace_common::failure::{Failure, Outcome};
use terrace_common::latency::Summary;
use terrace_common::output::{print, print_json, print_settings};
use terrace_common::report;
use terrace_common::store::{Opener, Settings, with_database};
use terrace_common::units::{counted, show_count, show_size};

use super::{compare, ground};
use crate::args::YcsbArgs;
use crate::bystanders::Watch;
use crate::design::Design;
use crate::workload::driver::{self, Length, Measured, Plan};
use crate::workload::fields::{self, Touch};
use crate::{confine, peers};
use object::{BenchReport, Surroundings};

/// The loaded table, replaced if it exists.
const TABLE: &str = "ycsb";
/// Default duration.
const SECONDS: Duration = Duration::from_secs(10);

/// Runs the benchmark for one engine or several.
pub fn run(args: &YcsbArgs, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    if let Some(path) = &args.report {
        report::check(path)?;
    }
    if let Some(base) = args.equal_cost {
        return equal_cost::run(args, base, output);
    }
    if !args.compare.is_empty() {
        return compare::run(args, output);
    }
    let mut args = args.clone();
    let has_store = args.store.is_some();
    let set = |design: Design| design.apply(&mut args.engine, &mut args.tiers, has_store);
    let design = args.design.map(set).transpose()?;
    let args = &args;
    if peers::tiers(&args.engine, &args.tiers) != args.tiers {
        return Err(Failure::Usage(format!(
            "--engine {} has no tiers; of the flags for them it takes --dram, --durability and --seed",
            args.engine
        )));
    }
    match peers::opener(&args.engine) {
        Some(peer) => measure(args, design, &*peer, output),
        None => measure(args, design, opener, output),
    }
}

/// `design`: what a preset has set.
fn measure(args: &YcsbArgs, design: Option<String>, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    if let Some(group) = &args.group {
        confine::join(group).map_err(|error| Failure::file("joining the control group", group, error))?;
    }
    let settings = Settings {
        create: true,
        scratch: args.scratch.clone(),
        threads: args.threads.into(),
        records: args.records,
        value_bytes: args.value_bytes() as u64,
        ..Settings::new(&args.tiers, args.store.clone())
    };
    let plan = plan(args)?;
    ground::take(args.store.as_deref())?;
    let group = args.group.as_deref();
    let dirty_before = match (&args.store, group) {
        (None, _) => None,
        (Some(_), Some(_)) => Some(0),
        (Some(_), None) => confine::dirty_bytes(None),
    };
    let (measured, around) = with_database(opener, &settings, |database| {
        database.drop_table(TABLE)?;
        let table = database.table(TABLE, true)?;
        if args.log_cycles.is_some() && table.counters().log_position.is_none() {
            return Err(Failure::Usage(format!(
                "--log-cycles: {} does not report its log's fill level",
                args.engine
            )));
        }
        let load = driver::load(&*table, &plan)?;
        let mut watch = Watch::default();
        let measured = driver::run(&*table, &plan, &mut || watch = Watch::start())?;
        let others_cpu = watch.share();
        let dirty_bytes =
            confine::dirty_bytes(group).zip(dirty_before).map(|(now, was)| now.saturating_sub(was));
        let (engine, mut settings) = (args.engine.clone(), database.settings());
        if args.touch == Touch::One {
            let way = if table.has_ranges() { "own calls" } else { "whole values are read and written" };
            settings.insert("one_field", way.to_owned());
        }
        settings.extend(design.clone().map(|set| ("design", set)));
        let (middle, is_on_disk) = (args.tiers.middle.middle.clone(), args.store.is_some());
        let cache = args.tiers.cache.cache.clone();
        let around =
            Surroundings { engine, settings, middle, cache, is_on_disk, load, dirty_bytes, others_cpu };
        Ok((measured, around))
    })?;
    let report = BenchReport::new(&plan, args.rate.as_ref(), around, &measured)?;
    if let Some(path) = &args.report {
        html::report(&report).write(path)?;
    }
    match args.output.json {
        true => print_json(output, &report)?,
        false => show(&report, output)?,
    }
    verdict(&measured)
}

fn plan(args: &YcsbArgs) -> Outcome<Plan> {
    let length = match (args.operations, args.seconds) {
        (Some(operations), _) => Length::Operations(operations),
        (None, seconds) => {
            Length::Time { least: seconds.unwrap_or(SECONDS), log_cycles: args.log_cycles.unwrap_or(0) }
        }
    };
    let rate = args.rate.map(|rate| rate.of_mix(&args.workload)).transpose().map_err(Failure::Usage)?;
    Ok(Plan {
        mix: args.workload.clone(),
        distribution: args.distribution,
        records: args.records,
        value_bytes: args.value_bytes(),
        fields: args.fields,
        touch: args.touch,
        visit: args.visit,
        threads: args.threads.into(),
        rate,
        length,
        warmup: args.warmup,
        seed: args.tiers.seed,
        tick: Duration::from_secs(1),
    })
}

/// Wrong answers are damage, failed operations a failure; both are reported after the figures.
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

fn show(report: &BenchReport, output: &mut dyn Write) -> Outcome {
    let BenchReport { workload, threads, value_bytes, distribution, .. } = report;
    let (records, threads) = (counted(report.records, "record"), counted(*threads, "thread"));
    let fields = fields::told(report.fields.as_deref(), report.touch);
    print(
        output,
        format_args!(
            "ycsb {workload}, {records} of {value_bytes} B{fields}, {distribution}, {threads}, {}\n",
            report.engine
        ),
    )?;
    if let Some(design) = report.settings.get("design") {
        print(output, format_args!("design {design}\n"))?;
    }
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
                "slowest second: {:.0} % of the median; log wrapped {cycles:.1} times\n",
                slowest * 100.0
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
    let (load, verified) = (report.load_seconds, counted(report.verified, "value"));
    print(
        output,
        format_args!("load {load:.2} s, memory {rss} of process, budget {budget}, {verified} verified\n"),
    )?;
    if let Some(cache) = &report.cache {
        print(output, format_args!("{}\n", cache_line(cache)))?;
    }
    if let (Some(dollars), prices) = (report.cost, &report.prices) {
        let (dram, middle, store) = (prices.dram.dollars, prices.middle.dollars, prices.store.dollars);
        let cache = prices.cache.dollars;
        print(
            output,
            format_args!(
                "cost {dollars:.4} dollars: DRAM {dram:.4}, middle tier {middle:.4}, block cache {cache:.4}, files {store:.4}\n"
            ),
        )?;
    }
    print_settings(output, &report.settings)
}

fn cache_line(cache: &CacheStats) -> String {
    let count = show_count;
    let mut line = format!(
        "cache {}: {} of {}, {}, {} ({:.1} % hits), {} came in, {} left",
        cache.policy,
        show_size(cache.resident_bytes),
        show_size(cache.capacity_bytes),
        counted(cache.hits + cache.below, "hit"),
        counted(cache.misses, "miss"),
        cache.hit_ratio() * 100.0,
        count(cache.admissions),
        count(cache.evictions),
    );
    if cache.below > 0 {
        line += &format!("; {} of the hits were read from the page file, being sooner", count(cache.below));
    }
    if cache.is_aside {
        line += "; stepped aside, its device being the slower one";
    }
    if let Some(reason) = &cache.cold {
        line += &format!("; began cold: {reason}");
    }
    if let Some(reason) = &cache.out_of_service {
        line += &format!("; out of service: {reason}");
    }
    escape::text(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_says_how_it_was_and_what_went_wrong() {
        let mut cache = CacheStats::default();
        (cache.policy, cache.resident_bytes, cache.capacity_bytes) = ("sieve".into(), 1 << 20, 4 << 20);
        (cache.hits, cache.misses, cache.admissions) = (3, 1, 2);
        let line = cache_line(&cache);
        assert_eq!(line, "cache sieve: 1 MiB of 4 MiB, 3 hits, 1 miss (75.0 % hits), 2 came in, 0 left");
        (cache.below, cache.is_aside) = (1, true);
        cache.cold = Some("another's".into());
        cache.out_of_service = Some("read: no\u{1b}".into());
        let line = cache_line(&cache);
        for told in
            ["4 hits", "1 of the hits", "stepped aside", "cold: another's", "out of service: read: no\\u{1b}"]
        {
            assert!(line.contains(told), "{told}: {line}");
        }
    }
}
