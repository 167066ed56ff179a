//! `terrace bench restart`: how soon a restarted database is as fast as before.
//!
//! Lives alternate, each a process of its own: it opens the database, runs the workload, reports
//! its curve, and is killed under load. Before a cold restart the file with the warm pages is
//! removed. The last quarter of a life gives the rate that the next must reach, so warm and cold
//! follow equally long lives. Time counts from the start of opening, recovery included.
//!
//! The engine reads with direct I/O, so the system's page cache does not warm a cold life.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use terrace_common::failure::{Failure, Outcome};
use terrace_common::interrupt;
use terrace_common::output::{print, print_json};
use terrace_common::store::{Opener, Settings, with_database};
use terrace_common::units::show_count;

use super::ground;
use crate::args::RestartArgs;
use crate::workload::driver::{self, Length, Measured, Plan};
use crate::workload::fields::Touch;

/// The loaded table, replaced if it exists.
const TABLE: &str = "restart";
/// Steps whose mean must reach the rate, so that one lucky step does not count.
const STEPS: usize = 5;
/// Share of a life, from its end, that gives its rate.
const LAST: f64 = 0.25;

/// What one life reports, as a line of JSON.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Life {
    /// Seconds until the database was open.
    open_seconds: f64,
    /// Seconds since the start of opening, and operations of the step that ended then.
    curve: Vec<(f64, u64)>,
}

/// The object of `--json`.
#[derive(Debug, Default, Serialize)]
struct RestartReport {
    records: u64,
    value_bytes: usize,
    threads: u16,
    /// How lives end: "killed" or "closed".
    end: &'static str,
    reach_percent: u8,
    warm: Vec<Restart>,
    cold: Vec<Restart>,
    /// Median seconds of cold restarts divided by that of warm ones; null if a life was too short.
    times_sooner: Option<f64>,
}

/// One restart.
#[derive(Debug, Default, Serialize)]
struct Restart {
    /// Operations per second before.
    rate_before: f64,
    open_seconds: f64,
    /// Seconds from the start of opening until the rate; null if never in this life.
    seconds: Option<f64>,
    curve: Vec<(f64, u64)>,
}

/// Runs the benchmark.
pub fn run(args: &RestartArgs, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    match &args.life {
        Some(life) => live(args, life == "first", opener, output),
        None => {
            ground::take(Some(&args.store))?;
            let report = restarts(args)?;
            match args.output.json {
                true => print_json(output, &report),
                false => show(&report, output),
            }
        }
    }
}

/// One life; unless it is to close, it works until the parent kills it.
fn live(args: &RestartArgs, is_first: bool, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    let settings = Settings {
        create: is_first,
        threads: args.threads.into(),
        records: args.records,
        value_bytes: args.value_size as u64,
        ..Settings::new(&args.tiers, Some(args.store.clone()))
    };
    let began = Instant::now();
    with_database(opener, &settings, |database| {
        let open_seconds = began.elapsed().as_secs_f64();
        let plan = plan(args);
        if is_first {
            database.drop_table(TABLE)?;
            driver::load(&*database.table(TABLE, true)?, &plan)?;
        }
        let table = database.table(TABLE, false)?;
        let mut ran_at = 0.0;
        let measured = driver::run(&*table, &plan, &mut || ran_at = began.elapsed().as_secs_f64())?;
        check(&measured)?;
        let curve = measured.over_time.iter().map(|&(at, count)| (ran_at + at, count)).collect();
        print_json(output, &Life { open_seconds, curve })?;
        if args.close {
            return Ok(());
        }
        loop {
            check(&driver::run(&*table, &plan, &mut || ())?)?;
        }
    })
}

fn check(measured: &Measured) -> Outcome {
    match (measured.wrong, &measured.first_error) {
        (0, None) => Ok(()),
        (0, Some(error)) => Err(Failure::Work(format!("{} operations failed: {error}", measured.errors))),
        (wrong, _) => Err(Failure::Damaged(format!("{wrong} values were wrong or missing"))),
    }
}

fn plan(args: &RestartArgs) -> Plan {
    Plan {
        mix: args.workload.clone(),
        distribution: args.distribution,
        records: args.records,
        value_bytes: args.value_size,
        fields: None,
        touch: Touch::All,
        visit: false,
        threads: args.threads.into(),
        rate: None,
        length: Length::Time { least: args.seconds, log_cycles: 0 },
        warmup: Duration::ZERO,
        seed: args.tiers.seed,
        tick: args.tick,
    }
}

fn restarts(args: &RestartArgs) -> Outcome<RestartReport> {
    let mut before = life(args, "first")?;
    let (mut warm, mut cold) = (Vec::new(), Vec::new());
    for round in 0..args.rounds * 2 {
        let is_warm = round % 2 == 0;
        if !is_warm {
            fs::remove_file(&args.warmth)
                .map_err(|error| Failure::file("removing the warm pages", &args.warmth, error))?;
        }
        let after = life(args, "again")?;
        let rate_before = before.last_rate();
        let seconds = after.reaches(rate_before * f64::from(args.reach) / 100.0);
        let restart =
            Restart { rate_before, open_seconds: after.open_seconds, seconds, curve: after.curve.clone() };
        if is_warm { &mut warm } else { &mut cold }.push(restart);
        before = after;
    }
    Ok(RestartReport {
        records: args.records,
        value_bytes: args.value_size,
        threads: args.threads,
        end: if args.close { "closed" } else { "killed" },
        reach_percent: args.reach,
        times_sooner: median_seconds(&cold).zip(median_seconds(&warm)).map(|(cold, warm)| cold / warm),
        warm,
        cold,
    })
}

impl Life {
    fn last_rate(&self) -> f64 {
        let end = self.curve.last().map_or(0.0, |step| step.0);
        let from = end - (end - self.open_seconds) * LAST;
        let first = self.curve.partition_point(|step| step.0 <= from);
        let since = first.checked_sub(1).map_or(self.open_seconds, |before| self.curve[before].0);
        let count: u64 = self.curve[first..].iter().map(|step| step.1).sum();
        count as f64 / (end - since)
    }

    /// When the mean of some steps first reaches `rate`, in seconds since the start of opening.
    fn reaches(&self, rate: f64) -> Option<f64> {
        let reached = self.curve.windows(STEPS + 1).find(|steps| {
            let count: u64 = steps[1..].iter().map(|step| step.1).sum();
            count as f64 >= rate * (steps[STEPS].0 - steps[0].0)
        })?;
        Some(reached[1].0)
    }
}

/// The median over restarts; none if one of them never reached the rate.
fn median_seconds(restarts: &[Restart]) -> Option<f64> {
    let mut seconds: Vec<f64> = restarts.iter().map(|restart| restart.seconds).collect::<Option<_>>()?;
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied()
}

/// A process, killed on drop.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may already be dead.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn life(args: &RestartArgs, name: &str) -> Outcome<Life> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::Work(format!("finding this program's file failed: {error}")))?;
    let failed = |error| Failure::Work(format!("running a life of the database failed: {error}"));
    let child = Command::new(program)
        .args(["bench", "restart", "--life", name])
        .args(flags(args))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut child = Killed(child);
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().expect("it was piped")).read_line(&mut line).map_err(failed)?;
    interrupt::check()?;
    if args.close || line.is_empty() {
        let status = child.0.wait().map_err(failed)?;
        if !status.success() {
            return Err(Failure::Work(format!("a life of the database ended early: {status}")));
        }
    }
    serde_json::from_str(&line)
        .map_err(|error| Failure::Work(format!("a life of the database reported no curve: {error}")))
}

fn flags(args: &RestartArgs) -> Vec<String> {
    let milliseconds = |time: Duration| format!("{}ms", time.as_millis().max(1));
    let mut flags = vec![
        format!("--workload={}", args.workload),
        format!("--records={}", args.records),
        format!("--value-size={}", args.value_size),
        format!("--distribution={}", args.distribution),
        format!("--threads={}", args.threads),
        format!("--seconds={}", milliseconds(args.seconds)),
        format!("--tick={}", milliseconds(args.tick)),
        format!("--store={}", args.store.display()),
        format!("--warmth={}", args.warmth.display()),
    ];
    flags.extend(args.close.then(|| "--close".to_owned()));
    flags.extend(args.tiers.flags());
    flags
}

fn show(report: &RestartReport, output: &mut dyn Write) -> Outcome {
    let life = |name: &str, restart: &Restart| {
        let reached = match restart.seconds {
            Some(seconds) => format!("{seconds:.2} s"),
            None => "not in this life".to_owned(),
        };
        format!(
            "{name}: open after {:.2} s; {} % of {} operations/s after {reached}\n",
            restart.open_seconds,
            report.reach_percent,
            show_count(restart.rate_before as u64),
        )
    };
    let mut text = String::new();
    for (warm, cold) in report.warm.iter().zip(&report.cold) {
        text += &life("warm", warm);
        text += &life("cold", cold);
    }
    if let Some(times) = report.times_sooner {
        text += &format!("warm {times:.1} times as soon as cold, lives {}\n", report.end);
    }
    print(output, format_args!("{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(open_seconds: f64, rates: &[u64]) -> Life {
        let step = |(at, &count): (usize, &u64)| (open_seconds + (at + 1) as f64 * 0.1, count);
        Life { open_seconds, curve: rates.iter().enumerate().map(step).collect() }
    }

    #[test]
    fn the_last_quarter_gives_the_rate() {
        let mut rates = vec![1; 30];
        rates.extend([100; 10]);
        let rate = life(2.0, &rates).last_rate();
        assert!((rate - 1000.0).abs() < 1e-6, "{rate}");
    }

    #[test]
    fn a_rate_is_reached_by_several_steps_together() {
        let life = life(1.0, &[0, 90, 0, 0, 50, 100, 100, 100, 100, 100, 100]);
        let reached = life.reaches(900.0).expect("five steps of 90 operations");
        assert!((reached - 1.5).abs() < 1e-6, "the steps from 1.4 s to 1.9 s: {reached}");
        assert_eq!(life.reaches(1001.0), None);
        assert_eq!(super::tests::life(1.0, &[100; 3]).reaches(1.0), None, "too short");
    }

    #[test]
    fn a_restart_that_never_got_there_has_no_median() {
        let restart = |seconds| Restart { seconds, ..Restart::default() };
        assert_eq!(median_seconds(&[restart(Some(3.0)), restart(Some(1.0)), restart(Some(2.0))]), Some(2.0));
        assert_eq!(median_seconds(&[restart(Some(3.0)), restart(None)]), None);
        assert_eq!(median_seconds(&[]), None);
    }
}
