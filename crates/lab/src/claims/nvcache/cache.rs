//! N3 to N6, N9 and N10: a block cache on Optane memory below a database, in virtual time.
//!
//! `setup.rs` describes the machine. The cache has 180 GB. The engine has table 2's part of the
//! DRAM, 32 GB, and workloads use table 2's mixes. WiredTiger, like this engine, writes pages to
//! new locations and frees the old ones, which removes their blocks from the cache.

use std::collections::BTreeMap;

use terrace_common::failure::Outcome;
use terrace_common::report::Lines;

use super::setup::{ADMIT_ALL, Dram, Machine, NVCACHE, Nvm, Work, written_gb_s};
use crate::claims::claim::{Measured, Setting, Verdict};
use crate::hierarchy::Found;
use crate::workload::ycsb::Distribution;

pub(super) const CACHE_GB: u64 = 180;
const DRAM_GB: u64 = 32;
/// Operations of a run, after as many that are not counted.
const OPERATIONS: u64 = 60_000;

/// A workload: name, threads, GB of data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workload {
    name: &'static str,
    pub(super) threads: usize,
    pub(super) data_gb: u64,
    pub(super) dram: Dram,
}

/// A workload of table 2, whose engine has this many GB.
const fn workload(name: &'static str, threads: usize, data_gb: u64, engine_gb: u64) -> Workload {
    let dram = Dram { engine_gb, page_cache_gb: DRAM_GB - engine_gb, alone_gb: engine_gb };
    Workload { name, threads, data_gb, dram }
}

/// Mostly reads, then a fifth writes, then mostly writes.
const LARGE: [Workload; 8] = [
    workload("evict-btree-large", 16, 120, 28),
    workload("medium-btree-large", 16, 120, 28),
    workload("evict-btree-scan", 430, 250, 28),
    workload("evict-btree-stress-multi", 100, 250, 1),
    workload("500m-btree-50r50u", 20, 163, 28),
    workload("overflow-130k", 20, 253, 21),
    workload("chkpt-stress", 6, 134, 28),
    workload("update-delta-mix1", 6, 125, 20),
];
/// Number of mostly-read workloads in [`LARGE`].
const READ: usize = 3;
/// Index of the workload with a fifth of writes.
const MIXED: usize = 3;

/// Data that fit 16 GB of DRAM. "Even if the DRAM cache is configured to be much smaller than the
/// dataset size, the OS buffer cache would comfortably fit blocks" (section 3.2.2).
const fn small_data(name: &'static str, threads: usize) -> Workload {
    Workload { name, threads, data_gb: 10, dram: Dram { engine_gb: 4, page_cache_gb: 12, alone_gb: 16 } }
}

const SMALL: [Workload; 3] = [
    small_data("evict-btree-stress-multi", 100),
    small_data("500m-btree-50r50u", 20),
    small_data("update-delta-mix1", 6),
];

impl Workload {
    fn work(&self, operations: u64) -> Work {
        Work {
            mix: self.name,
            threads: self.threads,
            data_gb: self.data_gb,
            // As in wtperf.
            distribution: Distribution::Uniform,
            warmup: operations,
            operations,
        }
    }
}

/// Runs each workload with each cache policy or none; results are by workload.
fn run(
    machine: &Machine,
    workloads: &[Workload],
    policies: &[Option<&'static str>],
    cache_gb: u64,
    operations: u64,
) -> Outcome<Vec<Vec<Found>>> {
    let nvm =
        |policy: Option<&'static str>| policy.map_or(Nvm::None, |policy| Nvm::Cache { policy, gb: cache_gb });
    // DRAM differs per workload.
    let row = |workload: &Workload| {
        let work = workload.work(operations);
        policies.iter().map(|&policy| (work, workload.dram, nvm(policy))).collect()
    };
    machine.run(&workloads.iter().map(row).collect::<Vec<_>>())
}

/// Throughput relative to the first.
fn ratios(found: &[Found]) -> Vec<f64> {
    found.iter().map(|one| one.ops_per_second / found[0].ops_per_second).collect()
}

pub(super) fn bars(title: &str, workloads: &[Workload], names: &[&str], rows: &[Vec<f64>]) -> Lines {
    let lines = Lines::new(title, "workload, in the order of the table", "throughput against no cache");
    names.iter().enumerate().fold(lines, |lines, (at, name)| {
        let points = (1..=workloads.len()).zip(rows).map(|(number, row)| (number as f64, row[at])).collect();
        lines.line(*name, points)
    })
}

/// Measures figure 4: data that fit DRAM.
pub fn small(setting: &Setting) -> Outcome<Measured> {
    let machine = Machine::of(setting)?;
    let [bypass, nvcache] = machine.small_bypass();
    let policies = [None, Some(ADMIT_ALL), Some(bypass), Some(nvcache)];
    let found = run(&machine, &SMALL, &policies, CACHE_GB, OPERATIONS)?;
    let mut measured = judge_small(&found.iter().map(|row| ratios(row)).collect::<Vec<_>>(), &machine.told());
    let each = SMALL.iter().zip(&found).map(|(workload, row)| {
        let rates = row.iter().map(|found| {
            let [disk, optane] = written_gb_s(found, OPERATIONS);
            format!("{:.0} ({disk:.2}, {optane:.2})", found.ops_per_second / 1e3)
        });
        format!("{} {}", workload.name, rates.collect::<Vec<_>>().join(", "))
    });
    let each = each.collect::<Vec<_>>().join("; ");
    measured.measured += &format!(
        ". Thousand operations/s without a cache and with each (GB/s written to the disk, to Optane memory): {each}"
    );
    Ok(measured)
}

fn judge_small(rows: &[Vec<f64>], machine: &str) -> Measured {
    let worst = |at: usize| rows.iter().map(|row| row[at]).fold(f64::INFINITY, f64::min);
    let (all, bypass, nvcache) = (worst(1), worst(2), worst(3));
    let verdict = match (all < 0.5, nvcache >= 0.95) {
        (true, true) => Verdict::Holds,
        (false, true) if all < 0.95 => Verdict::Sign,
        _ => Verdict::Fails,
    };
    let names = ["no cache", "admit-all", "small-bypass", "small-bypass+obp"];
    Measured {
        measured: format!(
            "worst of {} workloads against no cache: admit-all {:+.0} %, small-bypass {:+.0} %, small-bypass+obp {:+.0} %",
            rows.len(),
            (all - 1.0) * 100.0,
            (bypass - 1.0) * 100.0,
            (nvcache - 1.0) * 100.0
        ),
        verdict,
        note: format!(
            "10 GB of data, 16 of DRAM, 12 of it the page cache's. Such data are read from memory; what is left are writes of changed pages, each \
             of which goes to the cache as well. The allocator's writes of metadata are not modelled. Holds: admit-all loses half somewhere, and \
             with both features nothing loses 5 %; sign: it loses 5 %. {machine}"
        ),
        figures: vec![bars("Small data, N3", &SMALL, &names, rows)],
    }
}

/// Measures figure 5: blocks admitted, and blocks freed as outdated.
pub fn dead(setting: &Setting) -> Outcome<Measured> {
    let machine = Machine::of(setting)?;
    let found = run(&machine, &SMALL, &[Some(ADMIT_ALL)], CACHE_GB, OPERATIONS)?;
    let mut shares = Vec::new();
    for row in &found {
        let cache = row[0].cache()?;
        shares.push(cache.invalidations as f64 / cache.admissions.max(1) as f64);
    }
    Ok(judge_dead(&shares, &machine.told()))
}

fn judge_dead(shares: &[f64], machine: &str) -> Measured {
    let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
    let each = SMALL.iter().zip(shares).map(|(workload, share)| format!("{} {share:.2}", workload.name));
    let line = (1..).zip(shares).map(|(number, &share)| (f64::from(number), share)).collect();
    Measured {
        measured: format!("freed for each admitted: {}", each.collect::<Vec<_>>().join(", ")),
        verdict: if least >= 0.5 { Verdict::Holds } else { Verdict::Fails },
        note: format!(
            "Admit-all, as N3. The paper's values are in its figure only. Holds: at least half of what was admitted is freed with each \
             workload that overwrites. {machine}"
        ),
        figures: vec![
            Lines::new("Dead admissions, N4", "workload, in the order of the table", "share")
                .line("freed", line),
        ],
    }
}

/// Admits only while a slot is free, so that nothing is evicted.
const NO_EVICTION: &str = "no-eviction+lru";

/// Measures table 1: a cache smaller than half of the data read.
pub fn appetite(setting: &Setting) -> Outcome<Measured> {
    let machine = Machine::of(setting)?;
    let found = run(&machine, &LARGE[..READ], &[Some(ADMIT_ALL), Some(NO_EVICTION)], 50, OPERATIONS)?;
    let mut rows = Vec::new();
    for row in &found {
        let hits = [row[0].cache()?.hit_ratio(), row[1].cache()?.hit_ratio()];
        rows.push((row[1].ops_per_second / row[0].ops_per_second, hits));
    }
    Ok(judge_appetite(&rows, &machine.told()))
}

fn judge_appetite(rows: &[(f64, [f64; 2])], machine: &str) -> Measured {
    let least = rows.iter().map(|(ratio, _)| *ratio).fold(f64::INFINITY, f64::min);
    let verdict = match least {
        1.4.. => Verdict::Holds,
        1.02.. => Verdict::Sign,
        _ => Verdict::Fails,
    };
    let each = LARGE.iter().zip(rows).map(|(workload, (ratio, [eager, none]))| {
        format!("{} {ratio:.2} times at hit ratios of {eager:.2} and {none:.2}", workload.name)
    });
    let line = (1..).zip(rows).map(|(number, (ratio, _))| (f64::from(number), *ratio)).collect();
    Measured {
        measured: format!("no eviction against eager: {}", each.collect::<Vec<_>>().join("; ")),
        verdict,
        note: format!(
            "A cache of 50 GB, so that it cannot hold the data. Eager is LRU with every block admitted; without eviction, blocks are admitted \
             while a slot is free. Holds: 1.4 times with each; sign: more than 1.02. {machine}"
        ),
        figures: vec![
            Lines::new(
                "Appetite for eviction, N5",
                "workload, in the order of the table",
                "throughput against eager",
            )
            .line("no eviction", line),
        ],
    }
}

/// Results of a cached run for N6.
#[derive(Clone, Copy, Debug)]
pub(super) struct Large {
    /// Throughput relative to no cache.
    pub(super) ratio: f64,
    pub(super) hit_ratio: f64,
    /// Blocks evicted per block admitted.
    pub(super) removed: f64,
    /// Bytes admitted per byte written to the page file.
    pub(super) admitted: f64,
    /// Throughput of admit-all relative to no cache.
    pub(super) admit_all: f64,
}

impl Large {
    /// The results of the workload `name`.
    pub(super) fn told(&self, name: &str) -> String {
        let Large { ratio, hit_ratio, removed, admitted, admit_all } = *self;
        let admitted = if admitted < 100.0 { format!("{admitted:.2}") } else { "all".to_owned() };
        format!(
            "{name} {ratio:.2} times (hits {hit_ratio:.2}, removed {removed:.2}, admitted {admitted} of what is written; admit-all {admit_all:.2})"
        )
    }
}

/// The verdict on workloads that mostly read, one with a fifth of writes, and those that mostly
/// write.
pub(super) fn large_verdict(reading: &[Large], mixed: &Large, writing: &[Large]) -> Verdict {
    let least = |rows: &[Large]| rows.iter().map(|row| row.ratio).fold(f64::INFINITY, f64::min);
    let (reads, writes) = (least(reading), least(writing));
    let best_read = reading.iter().map(|row| row.ratio).fold(0.0, f64::max);
    match (best_read >= 3.0, reads >= 1.2 && mixed.ratio >= 1.0, writes >= 0.97) {
        (true, true, true) => Verdict::Holds,
        (false, true, true) => Verdict::Sign,
        _ => Verdict::Fails,
    }
}

/// Measures figure 6 and table 2.
pub fn large(setting: &Setting) -> Outcome<Measured> {
    let machine = Machine::of(setting)?;
    let found = run(&machine, &LARGE, &[None, Some(NVCACHE), Some(ADMIT_ALL)], CACHE_GB, OPERATIONS)?;
    let mut rows = Vec::new();
    for row in &found {
        let (rates, cache) = (ratios(row), row[1].cache()?);
        let removed = cache.invalidations + cache.evictions;
        rows.push(Large {
            ratio: rates[1],
            hit_ratio: cache.hit_ratio(),
            removed: removed as f64 / cache.admissions.max(1) as f64,
            admitted: (cache.admissions * cache.block_bytes) as f64
                / row[1].store_written_bytes.max(1) as f64,
            admit_all: rates[2],
        });
    }
    Ok(judge_large(&rows, &machine.told()))
}

fn judge_large(rows: &[Large], machine: &str) -> Measured {
    let verdict = large_verdict(&rows[..READ], &rows[MIXED], &rows[MIXED + 1..]);
    let each = LARGE.iter().zip(rows).map(|(workload, row)| row.told(workload.name));
    let figure: Vec<Vec<f64>> = rows.iter().map(|row| vec![row.ratio, row.admit_all]).collect();
    Measured {
        measured: each.collect::<Vec<_>>().join("; "),
        verdict,
        note: format!(
            "Requests are uniform: wtperf's are. Holds: a read-mostly workload gains 3 times, all of them gain, the fifth of writes loses \
             nothing, and no write-heavy one 3 %; sign: without the 3 times. update-chkpt-btree and update-grow-stress, whose data grow, are \
             not run. {machine}"
        ),
        figures: vec![bars("Large data, N6", &LARGE, &["NVCache", "admit-all"], &figure)],
    }
}

/// Workloads of N9, one of each kind.
pub(super) const KINDS: [Workload; 3] = [LARGE[0], LARGE[MIXED], LARGE[4]];
/// Those of N10: the kinds first, then the others.
const ALL: [Workload; 11] = [
    LARGE[0],
    LARGE[MIXED],
    LARGE[4],
    LARGE[1],
    LARGE[2],
    LARGE[5],
    LARGE[6],
    LARGE[7],
    SMALL[0],
    SMALL[1],
    SMALL[2],
];

/// Throughput relative to no cache, by policy and workload.
type ByPolicy = BTreeMap<&'static str, Vec<f64>>;

fn by_policy(machine: &Machine, workloads: &[Workload], policies: &[&'static str]) -> Outcome<ByPolicy> {
    let all: Vec<Option<&str>> = std::iter::once(None).chain(policies.iter().copied().map(Some)).collect();
    let found = run(machine, workloads, &all, CACHE_GB, OPERATIONS)?;
    let rows: Vec<Vec<f64>> = found.iter().map(|row| ratios(row)).collect();
    let column = |at: usize| rows.iter().map(|row| row[at + 1]).collect();
    Ok(policies.iter().enumerate().map(|(at, &policy)| (policy, column(at))).collect())
}

fn policies_figure(title: &str, workloads: &[Workload], rows: &ByPolicy) -> Lines {
    let names: Vec<&str> = rows.keys().copied().collect();
    let by_workload: Vec<Vec<f64>> =
        (0..workloads.len()).map(|at| rows.values().map(|row| row[at]).collect()).collect();
    bars(title, workloads, &names, &by_workload)
}

fn told(rows: &ByPolicy) -> String {
    let row = |row: &Vec<f64>| row.iter().map(|ratio| format!("{ratio:.2}")).collect::<Vec<_>>().join(" ");
    rows.iter().map(|(name, ratios)| format!("{name}: {}", row(ratios))).collect::<Vec<_>>().join("; ")
}

/// Measures the effect of targets.
pub fn targets(setting: &Setting) -> Outcome<Measured> {
    let machine = Machine::of(setting)?;
    let rows = by_policy(&machine, &KINDS, &["obp:0.05+lfru", "obp:0.1+lfru", "obp:0.3+lfru"])?;
    Ok(judge_targets(&rows, &machine.told()))
}

fn judge_targets(rows: &ByPolicy, machine: &str) -> Measured {
    let spread = |at: usize| {
        let column = rows.values().map(|row| row[at]);
        column.clone().fold(0.0, f64::max) / column.fold(f64::INFINITY, f64::min)
    };
    let widest = (0..KINDS.len()).map(spread).fold(0.0, f64::max);
    let verdict = match widest {
        ..1.1 => Verdict::Holds,
        ..1.3 => Verdict::Sign,
        _ => Verdict::Fails,
    };
    Measured {
        measured: format!("{}; at most {widest:.2} times apart", told(rows)),
        verdict,
        note: format!(
            "Against no cache, for evict-btree-large, evict-btree-stress-multi and 500m-btree-50r50u. While Optane memory is not the bound, \
             more admission is more gain. Holds: within 1.1 of each other; sign: within 1.3. {machine}"
        ),
        figures: vec![policies_figure("Targets of the overhead bypass, N9", &KINDS, rows)],
    }
}

/// Measures the overhead bypass against no-write-allocate, and both combined.
pub fn no_write_allocate(setting: &Setting) -> Outcome<Measured> {
    let machine = Machine::of(setting)?;
    let rows = by_policy(&machine, &ALL, &[OBP, NO_WRITES, BOTH])?;
    Ok(judge_no_write_allocate(&rows, &machine.told()))
}

const OBP: &str = "obp+lfru";
const NO_WRITES: &str = "probability:0@writes+lfru";
const BOTH: &str = "probability:0@writes+obp+lfru";

fn judge_no_write_allocate(rows: &ByPolicy, machine: &str) -> Measured {
    let means = |first: usize, last: usize| {
        [OBP, NO_WRITES, BOTH].map(|name| {
            let row = &rows[name][first..last];
            (row.iter().map(|ratio| ratio.ln()).sum::<f64>() / row.len() as f64).exp()
        })
    };
    let text = |[obp, no_writes, both]: [f64; 3]| format!("{obp:.3}, {no_writes:.3}, {both:.3}");
    let large = ALL.len() - SMALL.len();
    let [obp, no_writes, both] = means(0, ALL.len());
    let verdict = match (obp >= no_writes * 1.005, obp >= both * 1.005) {
        (true, true) => Verdict::Holds,
        (true, false) | (false, true) => Verdict::Sign,
        _ => Verdict::Fails,
    };
    Measured {
        measured: format!(
            "{}; means of OBP, no-write-allocate, both: {}; of the large workloads {}, of the small {}, of N9's three {}",
            told(rows),
            text([obp, no_writes, both]),
            text(means(0, large)),
            text(means(large, ALL.len())),
            text(means(0, KINDS.len()))
        ),
        verdict,
        note: format!(
            "N9's workloads, the others of N6, and N3's; geometric means of throughput against no cache. Holds: the overhead bypass alone is ahead \
             of both others by half a percent in the mean of all; sign: of one. {machine}"
        ),
        figures: vec![policies_figure("Caching writes, N10", &ALL, rows)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_follow_the_ratios() {
        let small = |all: f64, nvcache: f64| judge_small(&[vec![1.0, all, 0.9, nvcache]], "").verdict;
        assert_eq!(small(0.2, 1.0), Verdict::Holds);
        assert_eq!(small(0.8, 1.0), Verdict::Sign);
        assert_eq!(small(0.2, 0.8), Verdict::Fails);
        assert_eq!(small(1.0, 1.0), Verdict::Fails);
        assert_eq!(judge_dead(&[0.9, 0.4], "").verdict, Verdict::Fails);
        let appetite = judge_appetite(&[(1.5, [0.5, 0.4]), (1.1, [0.5, 0.4])], "");
        assert_eq!(appetite.verdict, Verdict::Sign);
        let row = |ratio: f64| Large { ratio, hit_ratio: 0.9, removed: 0.0, admitted: 1.0, admit_all: 1.0 };
        let rows = |reads: f64, mixed: f64, writes: f64| {
            let rows: Vec<Large> = (0..8)
                .map(|at| {
                    row(if at < READ {
                        reads
                    } else if at == MIXED {
                        mixed
                    } else {
                        writes
                    })
                })
                .collect();
            judge_large(&rows, "").verdict
        };
        assert_eq!(rows(3.1, 1.1, 0.98), Verdict::Holds);
        assert_eq!(rows(2.0, 1.1, 0.98), Verdict::Sign);
        assert_eq!(rows(3.1, 1.1, 0.9), Verdict::Fails);
        let kinds = |values: [[f64; 3]; 3], others: [f64; 3]| {
            let rows = values
                .into_iter()
                .zip(others)
                .map(|(kinds, other)| kinds.into_iter().chain([other; ALL.len() - KINDS.len()]).collect());
            [OBP, NO_WRITES, BOTH].into_iter().zip(rows).collect::<ByPolicy>()
        };
        let allocate = |values, others| judge_no_write_allocate(&kinds(values, others), "").verdict;
        assert_eq!(allocate([[2.0; 3], [1.5; 3], [1.6; 3]], [1.0; 3]), Verdict::Holds);
        assert_eq!(allocate([[1.5; 3], [1.5; 3], [1.6; 3]], [1.0; 3]), Verdict::Fails);
        assert_eq!(allocate([[1.5; 3], [2.0; 3], [1.6; 3]], [1.0, 0.8, 0.7]), Verdict::Holds, "all count");
        let targets = |values| judge_targets(&kinds(values, [1.0; 3]), "").verdict;
        assert_eq!(targets([[2.0; 3], [2.1; 3], [2.0; 3]]), Verdict::Holds);
        assert_eq!(targets([[2.0; 3], [3.1; 3], [2.0; 3]]), Verdict::Fails);
    }

    fn machine(no_page_cache: bool, cleaning: bool) -> Machine {
        Machine::of(&Setting { no_page_cache, no_cleaning: !cleaning, ..Setting::default() }).unwrap()
    }

    /// The basis of the claims: a cache in virtual time serves reads and repeats its figures.
    #[test]
    fn a_cache_in_virtual_time_takes_reads_from_the_store() {
        let dram = Dram { engine_gb: 4, page_cache_gb: 1, alone_gb: 4 };
        let work = Workload { dram, ..workload("evict-btree-large", 4, 8, 4) }.work(2000);
        let with = (work, dram, Nvm::Cache { policy: ADMIT_ALL, gb: 12 });
        let rows = [vec![with, with, (work, dram, Nvm::None)]];
        for machine in [machine(false, false), machine(true, true)] {
            let found = machine.run(&rows).unwrap().remove(0);
            assert!(found[0].cache().unwrap().hit_ratio() > 0.8, "{:?}", found[0].cache().unwrap());
            assert_eq!(found[0].ops_per_second, found[1].ops_per_second);
            assert!(found[0].ops_per_second > 1.5 * found[2].ops_per_second);
        }
    }

    /// Reads of what DRAM holds beside the pool are copies.
    #[test]
    fn the_page_cache_serves_what_the_pool_does_not_hold() {
        let dram = Dram { engine_gb: 4, page_cache_gb: 12, alone_gb: 4 };
        let work = Workload { dram, ..workload("evict-btree-large", 4, 10, 4) }.work(2000);
        let rates = [false, true].map(|without| {
            let found = machine(without, true).run(&[vec![(work, dram, Nvm::None)]]).unwrap();
            found[0][0].ops_per_second
        });
        assert!(rates[0] > 3.0 * rates[1], "{rates:?}");
    }

    /// The cleaner reads; without it, updates are faster.
    #[test]
    fn a_page_file_with_room_is_hardly_cleaned() {
        let dram = Dram { engine_gb: 4, page_cache_gb: 0, alone_gb: 4 };
        let work = Workload { dram, ..workload("500m-btree-50r50u", 4, 16, 4) }.work(6000);
        let rates = [false, true].map(|cleaning| {
            let found = machine(true, cleaning).run(&[vec![(work, dram, Nvm::None)]]).unwrap();
            found[0][0].ops_per_second
        });
        assert!(rates[0] > 1.3 * rates[1], "{rates:?}");
    }
}
