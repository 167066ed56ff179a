//! C1: local and CXL memory by number of threads.

use std::thread::available_parallelism;
use std::time::Duration;

use terrace::Durability;
use terrace::migration::{Choice, Policy};
use terrace::{Middle, MiddleKind};
use terrace_common::engine::Engine;
use terrace_common::failure::{Failure, Outcome};
use terrace_common::report::Lines;
use terrace_common::store::{Opener, Settings};
use terrace_common::tiers::{CommitArgs, MemoryArgs, MiddleArgs, MigrationArgs, TierArgs};
use terrace_io::Profile;

use super::policies::MIXES;
use crate::claims::claim::{Measured, Setting, Verdict};
use crate::workload::driver::{self, Length, Plan};
use crate::workload::fields::Touch;
use crate::workload::ycsb::Distribution;

/// Largest thread count in the paper.
const THREADS_MAX: u64 = 48;
const RECORDS: u64 = 150_000;
const BUDGET_BYTES: u64 = 64 << 20;
const ROUNDS: usize = 5;
/// Time per measurement; the medians of per-round ratios count.
const LENGTH: Duration = Duration::from_millis(400);

fn settings(far: bool) -> Outcome<Settings> {
    let profile = Profile::named("cxl-prototype").map_err(|error| Failure::Work(error.to_string()))?;
    // Pages stay where they were created.
    let policy = Policy::new(0.0, 0.0, 1.0, 1.0).map_err(Failure::Work)?;
    let tiers = TierArgs {
        memory: MemoryArgs { dram: Some(BUDGET_BYTES), ..MemoryArgs::default() },
        record_cache: Some(0),
        middle: MiddleArgs { middle: far.then(|| Middle::new(MiddleKind::Simulated(profile), BUDGET_BYTES)) },
        migration: if far { Choice::Fixed(policy).into() } else { MigrationArgs::default() },
        commits: CommitArgs { durability: Durability::Buffered },
        ..TierArgs::default()
    };
    Ok(Settings {
        create: true,
        threads: THREADS_MAX,
        records: RECORDS,
        value_bytes: 64,
        ..Settings::new(&tiers, None)
    })
}

/// Operations per second of a mix, local and far, by thread count: medians of the rounds.
fn rates(mix: &str, threads: &[u64]) -> Outcome<[Vec<f64>; 2]> {
    let plan = Plan {
        mix: mix.parse().map_err(Failure::Work)?,
        distribution: Distribution::Zipfian(0.99),
        records: RECORDS,
        value_bytes: 64,
        fields: None,
        touch: Touch::All,
        threads: 1,
        rate: None,
        length: Length::Time { least: LENGTH, log_cycles: 0 },
        warmup: Duration::from_millis(100),
        seed: 1,
        tick: Duration::from_secs(1),
    };
    let mut databases = Vec::new();
    for far in [false, true] {
        let database = Engine.open(&settings(far)?)?;
        let table = database.table("tuples", true)?;
        driver::load(&*table, &plan)?;
        databases.push((database, table));
    }
    let mut found = [vec![Vec::new(); threads.len()], vec![Vec::new(); threads.len()]];
    for _ in 0..ROUNDS {
        for (at, &threads) in threads.iter().enumerate() {
            for ((_, table), rates) in databases.iter().zip(&mut found) {
                let measured = driver::run(&**table, &Plan { threads, ..plan.clone() }, &mut || ())?;
                if measured.wrong + measured.errors > 0 {
                    return Err(Failure::Damaged(format!("{mix}: wrong values, or operations that failed")));
                }
                rates[at].push(measured.operations as f64 / measured.seconds);
            }
        }
    }
    let median = |rates: &mut Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    let medians = found.map(|mut by_threads| by_threads.iter_mut().map(median).collect());
    for (database, table) in databases {
        drop(table);
        database.close()?;
    }
    Ok(medians)
}

/// Measures up to one thread per CPU.
pub fn measure(_: &Setting) -> Outcome<Measured> {
    let processors = available_parallelism().map_or(1, |count| count.get() as u64).min(THREADS_MAX);
    let threads: Vec<u64> = (0..).map(|power| 1 << power).take_while(|&count| count <= processors).collect();
    let mut told = Vec::new();
    let mut figures = Vec::new();
    let mut scan = 0.0;
    for mix in MIXES {
        let [local, far] = rates(mix, &threads)?;
        let share = |at: usize| local[at] / far[at];
        let last = threads.len() - 1;
        if mix == "cxl-scan" {
            scan = share(0);
        }
        told.push(format!(
            "{mix}: local {:.2} times CXL with 1 thread, {:.2} with {}; {} threads {:.2} times one (local), {:.2} (CXL)",
            share(0),
            share(last),
            threads[last],
            threads[last],
            local[last] / local[0],
            far[last] / far[0]
        ));
        let points = |rates: &[f64]| {
            threads.iter().zip(rates).map(|(threads, rate)| (*threads as f64, *rate)).collect()
        };
        figures.push(
            Lines::new(format!("Local and CXL memory, {mix}"), "threads", "operations/s")
                .line("local", points(&local))
                .line("CXL (simulated)", points(&far)),
        );
    }
    // Claims about more than ten threads need as many CPUs.
    let verdict = match scan {
        scan if (1.3..=2.6).contains(&scan) && processors > 10 => Verdict::Holds,
        scan if scan > 1.0 => Verdict::Sign,
        _ => Verdict::Fails,
    };
    Ok(Measured {
        measured: told.join("; "),
        verdict,
        note: format!(
            "All data in one tier, the CXL prototype simulated by waiting; medians of {ROUNDS} rounds in turn, up to {} threads, for there \
             are {processors} processors: what the paper says of more than ten cannot hold here, in sign at best. Sign: scans are \
             faster in local memory with one thread. The authors call the loss beyond ten threads a defect of theirs, states of \
             eight pages in one line and one queue: no hit here writes to either.",
            threads.last().unwrap_or(&1)
        ),
        figures,
    })
}
