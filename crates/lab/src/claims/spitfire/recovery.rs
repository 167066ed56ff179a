//! S13: recovery with the newest log and changed pages in NVM (section 5.2).
//!
//! The paper gives the protocol and no figures. So this is a test, in four parts:
//!
//! * commits are acknowledged when the log's ring in Optane has them, before the log's file;
//! * the process is killed several times under load, and recovers from Optane and SSD;
//! * the power fails at many calls, with lines of Optane and sectors of the files lost;
//! * pages of the middle tier are not written for the log's sake.
//!
//! Then it says what persistence costs, in the mixes that write.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrace::migration::{Choice, Policy};
use terrace::{Durability, SimulatedDisk, Stats};
use terrace_common::failure::{Failure, Outcome};
use terrace_common::values;
use terrace_io::{Pattern, Profile, SimulatedMemory, Time, VirtualTime};
use tracing::subscriber::{NoSubscriber, with_default};

use super::setup::{FRAMES_LEAST, LONG_LOG_BYTES, PAGE_BYTES, RECORDS_PER_PAGE, experiment};
use crate::claims::claim::{Measured, Setting, Verdict};
use crate::hierarchy::{End, Experiment, Hierarchy, Logging, Running, on_new_thread, run_all, side_by_side};
use crate::workload::ycsb::{Kind, Stream};

const RING_BYTES: u64 = 1 << 20;
const OPERATIONS: u64 = 20_000;
/// Kills, and operations before each.
const KILLS: usize = 4;
const LIFE: u64 = 15_000;
/// Power cuts, evenly over the calls of a run, and survivors of each.
const CUTS: u64 = 24;
const SURVIVORS: u64 = 2;
/// Pages of data, frames of Optane and operations of a run that is cut off.
const CUT_PAGES: u64 = 120;
const CUT_FRAMES: u64 = 64;
const CUT_OPERATIONS: u64 = 1_500;
/// Mixes that write, and our limit for unsealing in percent of the time.
const WRITING: [&str; 2] = ["ba", "wh"];
const UNSEALING_MAX: f64 = 3.0;

/// What crashes left.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Crashes {
    recoveries: u64,
    /// Values that are not those of the last acknowledged commit, or of the one in flight.
    wrong: u64,
    /// Bytes of the log that only Optane had.
    unfiled_bytes: u64,
    adopted: u64,
    redone: u64,
}

/// Results of the parts.
#[derive(Clone, Debug, Default)]
struct Parts {
    /// Durable commits a second with the log in Optane, and on the SSD.
    commits: [f64; 2],
    /// Records that the log's file got, in writes, for each commit with the ring.
    writes_per_commit: f64,
    kills: Crashes,
    cuts: Crashes,
    /// Whether opening without the ring was refused after each kill.
    refused: bool,
    /// Milliseconds and store reads of the last recovery, and of one without the tier.
    recovery: [(f64, u64); 2],
    /// Images written from the middle tier for each operation, with the log of 8 MiB and the long
    /// one.
    flushes: [f64; 2],
    costs: Vec<Cost>,
}

/// What persistence costs, in percent of the time without.
#[derive(Clone, Debug, Default)]
struct Cost {
    name: String,
    unsealing: f64,
    all: f64,
}

fn optane() -> Outcome<Profile> {
    Profile::named("optane").map_err(|error| Failure::Work(error.to_string()))
}

/// WH with durable commits; the log on the SSD, or its ring in Optane before.
fn durable(with_ring: bool, capacity_bytes: u64) -> Outcome<Experiment> {
    let run = experiment(8, 32, 64, "wh", 1)?;
    let log = Logging {
        durability: Durability::Sync,
        capacity_bytes,
        device: Some(run.hierarchy.store.clone()),
        memory: if with_ring { Some((optane()?, RING_BYTES)) } else { None },
        versions: false,
    };
    // The runs count their operations from the load on.
    Ok(Experiment { log, filling: 0, warmup: 0, ..run.under(Choice::Lazy) })
}

/// Commits a second, writes of the log's file a commit, and images of the middle tier an operation.
fn commits(run: &Experiment) -> Outcome<(f64, f64, f64)> {
    run.begin(|running| {
        running.go_on(LIFE)?;
        let before = running.stats();
        let found = running.measure(OPERATIONS)?;
        let after = running.stats();
        let writes = (after.log_flushes - before.log_flushes) as f64;
        let share = (after.commits - before.commits).max(1) as f64;
        let flushes = found.middle()?.middle_flushes as f64 / OPERATIONS as f64;
        Ok((found.ops_per_second * share / OPERATIONS as f64, writes / share, flushes))
    })
}

/// Notes the writes of the next `operations` of `stream`.
fn acknowledge(stream: &mut Stream, operations: u64, acknowledged: &mut BTreeMap<u64, u64>) {
    for _ in 0..operations {
        let operation = stream.next_operation();
        if operation.kind != Kind::Read {
            acknowledged.insert(operation.number, operation.version);
        }
    }
}

fn is_version(number: u64, version: u64, bytes: usize, value: Option<&[u8]>) -> bool {
    let mut expected = Vec::new();
    values::fill(number, version, bytes, &mut expected);
    value == Some(&expected)
}

fn adopted(stats: &Stats) -> u64 {
    stats.middle.as_ref().and_then(|middle| middle.persistent).map_or(0, |persistent| persistent.adopted)
}

/// Kills under load. Adds to `parts`.
fn kill(parts: &mut Parts) -> Outcome {
    let run = durable(true, Logging::default().capacity_bytes)?;
    let (kills, refused, recovery) = run.begin(|running| {
        let (mut stream, mut acknowledged) = (run.streams().remove(0), BTreeMap::new());
        let (mut kills, mut refused, mut recovery) = (Crashes::default(), true, [(0.0, 0); 2]);
        for _ in 0..KILLS {
            running.go_on(LIFE)?;
            acknowledge(&mut stream, LIFE, &mut acknowledged);
            let stats = running.stats();
            kills.unfiled_bytes += stats.log_persistent - stats.log_filed;
            let ringless = Experiment { log: Logging { memory: None, ..run.log.clone() }, ..run.clone() };
            refused &= running.recover(&ringless, true).is_err();
            for (keeps_tier, recovery) in [true, false].into_iter().zip(&mut recovery) {
                let (nanoseconds, stats) = running.recover(&run, keeps_tier)?;
                *recovery = (nanoseconds as f64 / 1e6, stats.faults);
            }
            running.restart(&run, End { is_closed: false, keeps_tier: true })?;
            kills.recoveries += 1;
            kills.adopted += adopted(&running.stats());
            kills.redone += running.stats().changes_redone;
            kills.wrong += wrong(running, &acknowledged, run.value_bytes)?;
        }
        Ok((kills, refused, recovery))
    })?;
    (parts.kills, parts.refused, parts.recovery) = (kills, refused, recovery);
    Ok(())
}

fn wrong(running: &Running, acknowledged: &BTreeMap<u64, u64>, bytes: usize) -> Outcome<u64> {
    let mut wrong = 0;
    for (&number, &version) in acknowledged {
        let value = running.value(number)?;
        wrong += u64::from(!is_version(number, version, bytes, value.as_deref()));
    }
    Ok(wrong)
}

/// A small database on a disk whose power fails.
struct Cut {
    run: Experiment,
    time: Arc<VirtualTime>,
    budget: u64,
}

/// What a run had acknowledged when the power failed.
#[derive(Default)]
struct Acknowledged {
    versions: BTreeMap<u64, u64>,
    in_flight: Option<(u64, u64)>,
    unfiled_bytes: u64,
}

impl Cut {
    fn new() -> Outcome<Cut> {
        let run = durable(true, Logging::default().capacity_bytes)?;
        let dram_bytes = FRAMES_LEAST * PAGE_BYTES;
        let middle = run.hierarchy.middle.clone().map(|(profile, _)| (profile, CUT_FRAMES * PAGE_BYTES));
        let hierarchy = Hierarchy { dram_bytes, middle, ..run.hierarchy.clone() };
        let run = Experiment { hierarchy, records: CUT_PAGES * RECORDS_PER_PAGE, ..run };
        Ok(Cut { run, time: Arc::new(VirtualTime::new(1)), budget: dram_bytes + (8 << 20) })
    }

    fn open(&self, disk: &SimulatedDisk) -> terrace::Result<terrace::Db> {
        self.run.builder(Arc::new(disk.clone()), &self.time, self.budget).open("")
    }

    /// Loads and runs until the end, or the power fails. Returns the calls until the load was done,
    /// and until the end.
    fn run(&self, disk: &SimulatedDisk, done: &mut Acknowledged) -> terrace::Result<(u64, u64)> {
        let db = self.open(disk)?;
        let table = db.create_table("records")?;
        let bytes = self.run.value_bytes;
        let mut put = |number: u64, version: u64| {
            let mut value = Vec::new();
            values::fill(number, version, bytes, &mut value);
            done.in_flight = Some((number, version));
            table.put(values::key(number), &value)?;
            done.in_flight = None;
            done.versions.insert(number, version);
            let stats = db.stats();
            done.unfiled_bytes = stats.log_persistent - stats.log_filed;
            terrace::Result::Ok(())
        };
        (0..self.run.records).try_for_each(|record| put(values::loaded(record), 0))?;
        let loaded = disk.calls();
        let mut stream = self.run.streams().remove(0);
        for _ in 0..CUT_OPERATIONS {
            let operation = stream.next_operation();
            match operation.kind {
                Kind::Read => _ = table.get(values::key(operation.number))?,
                _ => put(operation.number, operation.version)?,
            }
        }
        Ok((loaded, disk.calls()))
    }

    /// Cuts the power at `call`, and recovers.
    fn at(&self, call: u64) -> Outcome<Crashes> {
        let (disk, mut done) = (SimulatedDisk::new(call), Acknowledged::default());
        disk.crash_at(call);
        // A close after it would report each failure as an error.
        let ended = with_default(NoSubscriber::default(), || self.run(&disk, &mut done));
        if ended.is_ok() || disk.crashed().is_none() {
            return Err(Failure::Work(format!("the power did not fail at call {call}")));
        }
        let mut crashes = Crashes { unfiled_bytes: done.unfiled_bytes, ..Crashes::default() };
        for seed in 0..SURVIVORS {
            let db = self.open(&disk.survivor(seed))?;
            let table = db.open_table("records")?;
            crashes.recoveries += 1;
            crashes.adopted += adopted(&db.stats());
            crashes.redone += db.stats().changes_redone;
            for (&number, &version) in &done.versions {
                let value = table.get(values::key(number))?;
                let is = |version| is_version(number, version, self.run.value_bytes, value.as_deref());
                let in_flight = done.in_flight.filter(|(key, _)| *key == number);
                crashes.wrong +=
                    u64::from(!is(version) && !in_flight.is_some_and(|(_, version)| is(version)));
            }
        }
        Ok(crashes)
    }
}

/// Cuts the power at many calls.
fn cut() -> Outcome<Crashes> {
    let (disk, mut done) = (SimulatedDisk::new(0), Acknowledged::default());
    let small = Cut::new()?;
    let (loaded, end) = on_new_thread(|| small.run(&disk, &mut done))?;
    let calls: Vec<u64> = (0..CUTS).map(|cut| loaded + (end - loaded) * (2 * cut + 1) / (2 * CUTS)).collect();
    let found = side_by_side(&calls, |&call| on_new_thread(|| Cut::new()?.at(call)))?;
    Ok(found.into_iter().fold(Crashes::default(), |all, one| Crashes {
        recoveries: all.recoveries + one.recoveries,
        wrong: all.wrong + one.wrong,
        unfiled_bytes: all.unfiled_bytes + one.unfiled_bytes,
        adopted: all.adopted + one.adopted,
        redone: all.redone + one.redone,
    }))
}

/// Virtual nanoseconds to unseal a frame: a line, its write-back and a fence.
fn unseal_ns() -> Outcome<f64> {
    let memory = SimulatedMemory::new(optane()?, Time::Virtual(Arc::new(VirtualTime::new(1))));
    Ok((memory.write(0, 64, Pattern::Random) + memory.write_back(0, 64) + memory.fence()) as f64)
}

/// What persistence costs `run`, against the same memory without it.
fn costs(names: Vec<String>, runs: Vec<Experiment>) -> Outcome<Vec<Cost>> {
    let mut both = Vec::new();
    for run in &runs {
        let mut hierarchy = run.hierarchy.clone();
        hierarchy.middle = hierarchy.middle.map(|(profile, bytes)| (profile.with_persistent(false), bytes));
        both.extend([run.clone(), Experiment { hierarchy, ..run.clone() }]);
    }
    let found = run_all(&both)?;
    let unseal_ns = unseal_ns()?;
    let pairs = names.into_iter().zip(&runs).zip(found.as_chunks::<2>().0);
    pairs
        .map(|((name, run), [on, off])| {
            let unseals = on.middle()?.persistent.map_or(0, |persistent| persistent.unseals) as f64;
            let operation_ns = 1e9 / on.ops_per_second * run.workers as f64;
            Ok(Cost {
                name,
                unsealing: 100.0 * unseals * unseal_ns / (run.operations as f64 * operation_ns),
                all: 100.0 * (off.ops_per_second / on.ops_per_second - 1.0),
            })
        })
        .collect()
}

/// The mixes that write, eager and lazy, as in S3.
fn all_costs() -> Outcome<Vec<Cost>> {
    let (mut names, mut runs) = (Vec::new(), Vec::new());
    for mix in WRITING {
        for (name, policy) in [("eager", Choice::Fixed(Policy::EAGER)), ("lazy", Choice::Lazy)] {
            names.push(format!("{} {name}", mix.to_uppercase()));
            runs.push(experiment(8, 32, 64, mix, 1)?.under(policy));
        }
    }
    costs(names, runs)
}

/// Runs the parts.
pub fn measure(_: &Setting) -> Outcome<Measured> {
    let short = Logging::default().capacity_bytes;
    let logs = [(true, short), (false, short), (true, LONG_LOG_BYTES)];
    let found = side_by_side(&logs, |&(with_ring, bytes)| commits(&durable(with_ring, bytes)?))?;
    let mut parts = Parts {
        commits: [found[0].0, found[1].0],
        writes_per_commit: found[0].1,
        flushes: [found[0].2, found[2].2],
        cuts: cut()?,
        costs: all_costs()?,
        ..Parts::default()
    };
    kill(&mut parts)?;
    Ok(judge(&parts))
}

fn judge(parts: &Parts) -> Measured {
    let Parts { commits, kills, cuts, recovery, flushes, .. } = parts;
    let each = |crashes: &Crashes, count: u64| count / crashes.recoveries.max(1);
    let recovers = [kills, cuts].iter().all(|crashes| {
        crashes.wrong == 0 && crashes.recoveries > 0 && crashes.adopted > 0 && crashes.redone > 0
    });
    let commits_first = kills.unfiled_bytes > 0 && parts.writes_per_commit < 1.0 && parts.refused;
    let are_kept = flushes[0] <= 1.01 * flushes[1];
    let costs: Vec<String> = parts
        .costs
        .iter()
        .map(|cost| format!("{} {:.2} % ({:.2})", cost.name, cost.unsealing, cost.all))
        .collect();
    Measured {
        measured: format!(
            "{} kills and {} recoveries from power cuts: {} wrong values. A kill leaves {} KiB of log in Optane alone; the file gets {:.3} \
             writes a commit, and without Optane the open is refused: {}. A recovery after a kill adopts {} frames and redoes {} changes in \
             {:.2} ms with {} store reads; without the tier {:.2} ms with {}. Durable commits a second: {:.0} thousand, log on the SSD {:.0}. \
             The middle tier writes {:.3} images an operation, with a log that is not cut {:.3}. Unsealing (all of persistence) costs {}",
            kills.recoveries,
            cuts.recoveries,
            kills.wrong + cuts.wrong,
            each(kills, kills.unfiled_bytes) / 1024,
            parts.writes_per_commit,
            parts.refused,
            each(kills, kills.adopted),
            each(kills, kills.redone),
            recovery[0].0,
            recovery[0].1,
            recovery[1].0,
            recovery[1].1,
            commits[0] / 1e3,
            commits[1] / 1e3,
            flushes[0],
            flushes[1],
            costs.join(", ")
        ),
        verdict: match (recovers && commits_first, are_kept) {
            (true, true) => Verdict::Holds,
            (true, false) => Verdict::Sign,
            _ => Verdict::Fails,
        },
        note: format!(
            "WH, one worker, policy lazy, a ring of 1 MiB in Optane before the log's file. Power cuts on {CUT_PAGES} pages, with {CUT_FRAMES} \
             frames of Optane. Holds: no acknowledged commit is lost, commits precede the log's file, frames are found by a scan of headers, \
             and pages of the middle tier are not written to cut the log; sign: all but the last. Here the cut writes them too, so that a lost \
             tier loses no data; a long log shows the paper's case. Our limit for unsealing is {UNSEALING_MAX} %. The worker pays for filing the log."
        ),
        figures: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> Parts {
        let crashes = Crashes { recoveries: 4, wrong: 0, unfiled_bytes: 4096, adopted: 9, redone: 5 };
        Parts { kills: crashes, cuts: crashes, refused: true, flushes: [0.1, 0.1], ..Parts::default() }
    }

    #[test]
    fn a_lost_commit_fails_and_a_flush_for_the_log_leaves_the_sign() {
        assert_eq!(judge(&parts()).verdict, Verdict::Holds);
        assert_eq!(judge(&Parts { flushes: [0.2, 0.1], ..parts() }).verdict, Verdict::Sign);
        assert_eq!(judge(&Parts { refused: false, ..parts() }).verdict, Verdict::Fails);
        assert_eq!(judge(&Parts { writes_per_commit: 1.0, ..parts() }).verdict, Verdict::Fails);
        let lost = Crashes { wrong: 1, ..parts().cuts };
        assert_eq!(judge(&Parts { cuts: lost, ..parts() }).verdict, Verdict::Fails);
        let cold = Crashes { adopted: 0, ..parts().kills };
        assert_eq!(judge(&Parts { kills: cold, ..parts() }).verdict, Verdict::Fails);
    }

    /// The power fails once, early.
    #[test]
    fn a_power_cut_loses_nothing_acknowledged() {
        let cut = Cut::new().unwrap();
        let (disk, mut done) = (SimulatedDisk::new(0), Acknowledged::default());
        let (loaded, _) = on_new_thread(|| cut.run(&disk, &mut done)).unwrap();
        let found = on_new_thread(|| cut.at(loaded + 200)).unwrap();
        assert_eq!((found.wrong, found.recoveries), (0, SURVIVORS));
        assert!(found.unfiled_bytes > 0 && found.redone > 0, "{found:?}");
    }

    /// At an eighth of the claim's size.
    #[test]
    fn unsealing_costs_at_most_three_percent_of_mixes_with_writes() {
        let runs =
            WRITING.map(|mix| experiment(1, 4, 8, mix, 1).unwrap().under(Choice::Fixed(Policy::EAGER)));
        let found = costs(WRITING.map(str::to_owned).to_vec(), runs.to_vec()).unwrap();
        for cost in found {
            assert!(cost.unsealing > 0.0 && cost.unsealing <= UNSEALING_MAX, "{cost:?}");
        }
    }
}
