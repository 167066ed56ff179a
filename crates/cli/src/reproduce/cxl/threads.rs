//! C1: local memory beside CXL memory, by number of threads.

use std::thread::available_parallelism;
use std::time::Duration;

use terrace::migration::{Choice, Policy};
use terrace::{Middle, MiddleKind};
use terrace_block::Profile;

use super::super::{Measured, Setting, Verdict};
use super::MIXES;
use crate::engine::Engine;
use crate::failure::{Failure, Outcome};
use crate::report::Lines;
use crate::store::{Compression, Durability, Opener, Settings};
use crate::workload::driver::{self, Length, Plan};
use crate::workload::ycsb::Distribution;

/// The paper's most threads.
const THREADS_MAX: u64 = 48;
const RECORDS: u64 = 150_000;
const BUDGET_BYTES: u64 = 64 << 20;
const ROUNDS: usize = 5;
/// Where each thing is measured in turn, and the median of the rounds' ratios counts.
const LENGTH: Duration = Duration::from_millis(400);

fn settings(far: bool) -> Outcome<Settings> {
    let profile = Profile::named("cxl-prototype").map_err(|error| Failure::Work(error.to_string()))?;
    // Everything stays where it came into being.
    let policy = Policy::new(0.0, 0.0, 1.0, 1.0).map_err(Failure::Work)?;
    Ok(Settings {
        store: None,
        dram_bytes: Some(BUDGET_BYTES),
        page_bytes: None,
        value_page_bytes_max: None,
        compression: Compression::None,
        log_bytes_max: None,
        record_cache_percent: Some(0),
        backend: None,
        replacement: None,
        cache: None,
        middle: far.then(|| Middle::new(MiddleKind::Simulated(profile), BUDGET_BYTES)),
        policy: far.then_some(Choice::Fixed(policy)),
        admission_queue_pages: None,
        clean_victims: None,
        dram_nodes: None,
        migrate: None,
        durability: Durability::Buffered,
        seed: 1,
        create: true,
        read_only: false,
        scratch: None,
        threads: THREADS_MAX,
        records: RECORDS,
        value_bytes: 64,
    })
}

/// Operations a second of a mix, local and far, by number of threads: medians of the rounds.
fn rates(mix: &str, threads: &[u64]) -> Outcome<[Vec<f64>; 2]> {
    let plan = Plan {
        mix: mix.parse().map_err(Failure::Work)?,
        distribution: Distribution::Zipfian(0.99),
        records: RECORDS,
        value_bytes: 64,
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

/// Measures as many threads as there are processors for.
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
    // What is claimed of more than ten threads is not judged where there are fewer processors.
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
