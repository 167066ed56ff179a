//! `terrace bench ycsb --compare`: one measurement for several engines.
//!
//! Each measurement is a process: this program with `--engine`. Engines take turns over several
//! rounds, every other round in reverse order, so that drift of the machine affects all alike.
//! Figures are medians over the rounds. Ratios are medians of per-round ratios, because runs of one
//! round are closer in time. A run is void if it failed, or if other processes used over five
//! percent of the CPUs. Void runs count only for engines without valid ones.
//!
//! With files on a disk and a budget, a control group limits each process to the budget plus 32
//! MiB, page cache included ([`crate::confine`]). Without `--store` the files are in memory
//! themselves, so only the caches are limited.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Map, Value, json};
use terrace_common::failure::{Failure, Outcome};
use terrace_common::interrupt::Leftover;
use terrace_common::output::{print, print_json};
use terrace_common::tiers::{MemoryArgs, TierArgs, durability_name};
use terrace_common::units::{counted, show_count, show_size};
use terrace_common::values::KEY_BYTES;

use super::child;
use crate::args::YcsbArgs;
use crate::bystanders::SHARE_MAX;
use crate::confine::{Ground, OVERHEAD_BYTES};
use crate::peers::{self, BUDGET_DEFAULT, TERRACE};
use crate::workload::fields::{self, Touch};

/// Output of one process.
type Run = Map<String, Value>;

struct Setting<'a> {
    args: &'a YcsbArgs,
    budget_bytes: u64,
    ground: Option<Ground>,
    /// Parent of each run's directory.
    folder: Folder,
}

/// Directory for the runs' databases, removed on drop.
struct Folder {
    path: PathBuf,
    stored: bool,
    _leftover: Leftover,
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.path));
    }
}

/// Compares the engines in `args`.
pub fn run(args: &YcsbArgs, output: &mut dyn Write) -> Outcome {
    let mut engines: Vec<&str> = Vec::new();
    for name in &args.compare {
        if !engines.contains(&name.as_str()) {
            engines.push(name);
        }
    }
    if engines.contains(&"btreemap") && args.store.is_some() {
        return Err(Failure::Usage("--compare with btreemap has no files; leave out --store".to_owned()));
    }
    let setting = Setting::of(args)?;
    let mut rounds: Vec<Vec<Run>> = Vec::new();
    for round in 0..args.rounds {
        let mut runs: Vec<(usize, Run)> = Vec::new();
        let mut order: Vec<usize> = (0..engines.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            runs.push((at, setting.measure(engines[at], round)?));
        }
        runs.sort_by_key(|(at, _)| *at);
        rounds.push(runs.into_iter().map(|(_, run)| run).collect());
    }
    let runs: Vec<Run> = (0..engines.len()).map(|at| sum_up(&engines, &rounds, at)).collect();
    match args.output.json {
        true => print_json(output, &json!({ "runs": runs, "confined_to_bytes": setting.limit_bytes() }))?,
        false => show(&setting, &runs, output)?,
    }
    verdict(&rounds)
}

impl<'a> Setting<'a> {
    fn of(args: &'a YcsbArgs) -> Outcome<Setting<'a>> {
        let budget_bytes = args.tiers.memory.dram.unwrap_or(BUDGET_DEFAULT);
        let data_bytes = args.records.saturating_mul((args.value_bytes() + KEY_BYTES) as u64);
        let is_bounded = args.tiers.memory.dram.is_some() || data_bytes > budget_bytes;
        let ground = match args.store.is_some() && is_bounded && !args.unconfined {
            true => Some(Ground::find()?),
            false => None,
        };
        let near = args.store.clone().unwrap_or_else(|| peers::memory_files().0);
        let path = near.join(format!("terrace-compare-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|error| Failure::file("making the directory", &path, error))?;
        let _leftover = Leftover::tree(&path);
        let folder = Folder { path, stored: args.store.is_some(), _leftover };
        Ok(Setting { args, budget_bytes, ground, folder })
    }

    fn limit_bytes(&self) -> Option<u64> {
        self.ground.as_ref().map(|_| self.budget_bytes + OVERHEAD_BYTES)
    }

    fn tiers(&self) -> TierArgs {
        let given = self.args.tiers.clone();
        let memory = MemoryArgs { dram: Some(self.budget_bytes), ..given.memory };
        TierArgs { memory, ..given }
    }

    fn measure(&self, engine: &str, round: u16) -> Outcome<Run> {
        let database = self.folder.path.join(format!("{engine}-{round}"));
        let group = match (&self.ground, self.limit_bytes()) {
            (Some(ground), Some(limit)) => Some(ground.group("terrace-compare", limit).map_err(|error| {
                Failure::Work(format!("making the control group for {engine} failed: {error}"))
            })?),
            _ => None,
        };
        let program = std::env::current_exe()
            .map_err(|error| Failure::Work(format!("finding this program's file failed: {error}")))?;
        let mut command = Command::new(program);
        command
            .args(["bench", "ycsb", "--json", "--engine", engine])
            .args(flags(self.args, &peers::tiers(engine, &self.tiers())));
        command.arg(if self.folder.stored { "--store" } else { "--scratch" }).arg(&database);
        if let Some(group) = &group {
            command.arg("--group").arg(group.path());
        }
        let done = child::output(engine, &mut command)?;
        drop(fs::remove_dir_all(&database));
        let mut run = match serde_json::from_slice(&done.stdout) {
            Ok(Value::Object(run)) => run,
            _ => Run::from_iter([("engine".to_owned(), engine.into()), ("void".to_owned(), Value::Null)]),
        };
        let void = match done.status.code() {
            _ if group.as_ref().is_some_and(|group| group.was_short()) => {
                Some("ended by the kernel: it wanted more memory than the control group allows".to_owned())
            }
            Some(0) => crowded(&run),
            Some(code) => run["void"].as_str().map(str::to_owned).or(Some(format!("exit code {code}"))),
            None => Some(format!("the process was ended: {}", done.status)),
        };
        run.insert("void".to_owned(), void.into());
        run.insert("exit_code".to_owned(), done.status.code().into());
        Ok(run)
    }
}

/// The flags of this process's measurement, with `tiers` replaced.
pub(super) fn flags(args: &YcsbArgs, tiers: &TierArgs) -> Vec<String> {
    let YcsbArgs { workload, records, distribution, threads, .. } = args;
    let mut flags = vec![
        format!("--workload={workload}"),
        format!("--records={records}"),
        format!("--distribution={distribution}"),
        format!("--threads={threads}"),
        format!("--warmup={}", milliseconds(args.warmup)),
    ];
    match args.fields {
        None => flags.push(format!("--value-size={}", args.value_bytes())),
        Some(fields) => flags.push(format!("--fields={fields}")),
    }
    if args.touch == Touch::One {
        flags.push("--touch=one".to_owned());
    }
    flags.extend(args.visit.then(|| "--visit".to_owned()));
    flags.extend(args.seconds.map(|time| format!("--seconds={}", milliseconds(time))));
    flags.extend(args.rate.map(|rate| format!("--rate={rate}")));
    flags.extend(args.operations.map(|count| format!("--operations={count}")));
    flags.extend(tiers.flags());
    flags
}

fn milliseconds(time: Duration) -> String {
    format!("{}.{:06}ms", time.as_millis(), time.as_nanos() % 1_000_000)
}

/// Why a successful run is void, if others used the CPUs.
fn crowded(run: &Run) -> Option<String> {
    let share = run.get("others_cpu")?.as_f64().filter(|share| *share > SHARE_MAX)?;
    Some(format!("others took {:.0} % of the processors meanwhile", share * 100.0))
}

/// The representative run of an engine, with statistics over all rounds.
fn sum_up(engines: &[&str], rounds: &[Vec<Run>], at: usize) -> Run {
    let counts = |run: &&Run| run["void"].is_null();
    let all: Vec<&Run> = rounds.iter().map(|runs| &runs[at]).collect();
    let mut ranked: Vec<&Run> = all.iter().copied().filter(counts).collect();
    if ranked.is_empty() {
        ranked = all.iter().copied().filter(|run| run.contains_key("ops_per_second")).collect();
    }
    ranked.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
    // With an even count, the lower of the middle two: a run that really happened.
    let mut run = ranked.get(ranked.len().saturating_sub(1) / 2).copied().unwrap_or(all[0]).clone();

    let terrace = engines.iter().position(|name| *name == TERRACE);
    let ratios = |only_sound: bool| -> Vec<f64> {
        let Some(terrace) = terrace else { return Vec::new() };
        let pairs = rounds.iter().map(|runs| (&runs[terrace], &runs[at]));
        let fit = pairs.filter(|(ours, theirs)| !only_sound || counts(ours) && counts(theirs));
        let ratios = fit.map(|(ours, theirs)| rate(ours) / rate(theirs));
        ratios.filter(|ratio| ratio.is_finite() && *ratio > 0.0).collect()
    };
    let sound = ratios(true);
    let ratio = median(if sound.is_empty() { ratios(false) } else { sound });
    run.insert("terrace_ratio".to_owned(), ratio.into());
    let of_round = |run: &&Run| {
        let keys = ["ops_per_second", "latency_us", "load_seconds", "others_cpu", "dirty_bytes", "void"];
        let kept = keys.iter().filter_map(|key| Some(((*key).to_owned(), run.get(*key)?.clone())));
        Value::Object(kept.collect())
    };
    run.insert("rounds".to_owned(), all.iter().map(of_round).collect());
    run
}

fn rate(run: &Run) -> f64 {
    run.get("ops_per_second").and_then(Value::as_f64).unwrap_or(0.0)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        even if even % 2 == 0 => Some((values[middle - 1] + values[middle]) / 2.0),
        _ => Some(values[middle]),
    }
}

/// Wrong answers are damage and failed engines a failure, reported after the figures.
fn verdict(rounds: &[Vec<Run>]) -> Outcome {
    let runs = || rounds.iter().flatten();
    let told = |run: &Run| {
        let engine = run["engine"].as_str().unwrap_or_default();
        format!("{engine}: {}", run["void"].as_str().unwrap_or_default())
    };
    if let Some(run) = runs().find(|run| run["exit_code"] == 3) {
        return Err(Failure::Damaged(told(run)));
    }
    match runs().find(|run| run["exit_code"] != 0) {
        Some(run) => Err(Failure::Work(told(run))),
        None => Ok(()),
    }
}

fn show(setting: &Setting<'_>, runs: &[Run], output: &mut dyn Write) -> Outcome {
    let args = setting.args;
    let (records, threads) = (counted(args.records, "record"), counted(args.threads.into(), "thread"));
    let rounds = counted(args.rounds.into(), "round");
    print(
        output,
        format_args!(
            "ycsb {}, {records} of {} B{}, {}, {threads}, durability {}, {rounds}\n",
            args.workload,
            args.value_bytes(),
            fields::told(args.fields.map(|fields| fields.to_string()).as_deref(), args.touch),
            args.distribution,
            durability_name(args.tiers.commits.durability)
        ),
    )?;
    print(output, format_args!("budget {}, {}\n\n", show_size(setting.budget_bytes), bounds(setting)))?;
    print(
        output,
        format_args!(
            "{:<9} {:>12} {:>14} {:>9} {:>9} {:>12} {:>9} {:>10}  void\n",
            "engine", "operations/s", "terrace / this", "p50 us", "p99 us", "B/operation", "load s", "dirty"
        ),
    )?;
    runs.iter().try_for_each(|run| print(output, format_args!("{}\n", line(run))))?;
    print(output, format_args!("\nsettings\n"))?;
    for run in runs {
        let settings = run.get("settings").and_then(Value::as_object);
        let told = settings.into_iter().flatten().map(|(name, value)| match value.as_str() {
            Some(value) => format!("{name} {value}"),
            None => format!("{name} {value}"),
        });
        let told = told.collect::<Vec<_>>().join(", ");
        print(output, format_args!("{:<9} {told}\n", run["engine"].as_str().unwrap_or_default()))?;
    }
    Ok(())
}

fn bounds(setting: &Setting<'_>) -> String {
    match (setting.limit_bytes(), setting.folder.stored) {
        (Some(limit), _) => format!("each process held to {}, page cache included", show_size(limit)),
        (None, true) => "processes not confined: what the page cache holds is beyond the budget".to_owned(),
        (None, false) => format!(
            "main memory only, processes not confined; peers' files are in {}",
            near(&setting.folder.path)
        ),
    }
}

fn near(path: &Path) -> String {
    path.parent().unwrap_or(path).display().to_string()
}

/// One row of the table.
fn line(run: &Run) -> String {
    let number = |value: Option<&Value>| value.and_then(Value::as_f64);
    let at = |key: &str, digits: usize| match number(run.get(key)) {
        Some(value) => format!("{value:.digits$}"),
        None => "-".to_owned(),
    };
    let latency = |key: &str| match number(run.get("latency_us").and_then(|summary| summary.get(key))) {
        Some(value) => format!("{value:.1}"),
        None => "-".to_owned(),
    };
    let dirty = number(run.get("dirty_bytes")).map_or("-".to_owned(), |bytes| show_size(bytes as u64));
    let row = format!(
        "{:<9} {:>12} {:>14} {:>9} {:>9} {:>12} {:>9} {:>10}  {}",
        run["engine"].as_str().unwrap_or_default(),
        show_count(rate(run) as u64),
        at("terrace_ratio", 2),
        latency("p50"),
        latency("p99"),
        at("store_bytes_per_operation", 0),
        at("load_seconds", 2),
        dirty,
        run["void"].as_str().unwrap_or_default()
    );
    row.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Line;

    fn run(engine: &str, rate: f64, void: Option<&str>) -> Run {
        let object = json!({ "engine": engine, "ops_per_second": rate, "void": void, "exit_code": 0 });
        object.as_object().unwrap().clone()
    }

    #[test]
    fn a_ratio_is_the_median_of_the_rounds_ratios() {
        let engines = ["terrace", "redb"];
        let round = |ours, theirs| vec![run("terrace", ours, None), run("redb", theirs, None)];
        // The ratio of the medians would be 200 / 120.
        let rounds = [round(100.0, 50.0), round(200.0, 160.0), round(300.0, 120.0)];
        let redb = sum_up(&engines, &rounds, 1);
        assert_eq!((rate(&redb), &redb["terrace_ratio"]), (120.0, &json!(2.0)));
        assert_eq!(redb["rounds"].as_array().unwrap().len(), 3);
        assert_eq!(sum_up(&engines, &rounds, 0)["terrace_ratio"], json!(1.0));
        assert_eq!(sum_up(&["redb"], &[vec![run("redb", 1.0, None)]], 0)["terrace_ratio"], Value::Null);
    }

    #[test]
    fn void_runs_count_only_where_there_are_no_others() {
        let engines = ["terrace", "redb"];
        let rounds = [
            vec![run("terrace", 100.0, None), run("redb", 1.0, Some("others"))],
            vec![run("terrace", 100.0, None), run("redb", 50.0, None)],
        ];
        let redb = sum_up(&engines, &rounds, 1);
        assert_eq!((rate(&redb), &redb["void"], &redb["terrace_ratio"]), (50.0, &Value::Null, &json!(2.0)));
        let redb = sum_up(&engines, &rounds[..1], 1);
        assert_eq!((rate(&redb), &redb["void"]), (1.0, &json!("others")));
        assert_eq!(redb["terrace_ratio"], json!(100.0));
    }

    #[test]
    fn others_void_a_run_and_failures_are_told() {
        let mut crowd = run("redb", 1.0, None);
        crowd.insert("others_cpu".to_owned(), json!(0.04));
        assert_eq!(crowded(&crowd), None);
        crowd.insert("others_cpu".to_owned(), json!(0.12));
        assert!(crowded(&crowd).unwrap().contains("12 %"));
        let mut failed = run("fjall", 0.0, Some("exit code 1"));
        failed.insert("exit_code".to_owned(), json!(1));
        assert!(verdict(&[vec![crowd.clone()]]).is_ok());
        assert_eq!(verdict(&[vec![crowd.clone(), failed.clone()]]).unwrap_err().code(), 1);
        failed.insert("exit_code".to_owned(), json!(3));
        assert_eq!(verdict(&[vec![crowd, failed]]).unwrap_err().code(), 3);
    }

    #[test]
    fn fields_are_handed_on() {
        for given in ["--fields 10x100 --touch one", "--fields 10x100", "--value-size 50 --visit"] {
            let args = Line::ycsb(given).unwrap();
            let handed = flags(&args, &args.tiers).join(" ");
            let again = Line::ycsb(&handed).unwrap();
            assert_eq!(
                (again.fields, again.touch, again.visit, again.value_bytes()),
                (args.fields, args.touch, args.visit, args.value_bytes())
            );
        }
    }

    #[test]
    fn durations_are_handed_on_exactly() {
        for time in [Duration::ZERO, Duration::from_micros(1500), Duration::from_secs(90)] {
            assert_eq!(terrace_common::units::duration(&milliseconds(time)), Ok(time));
        }
    }
}
