//! S12: hierarchies of equal cost by database size.
//!
//! The paper's 20 GB of DRAM and 60 GB of Optane become 8 and 24 MiB. Equal cost gives 18.8 MiB of
//! DRAM, or 40.8 MiB of Optane with the engine's minimum of DRAM (24 pages); the paper has 46 and
//! 104 GB. The SSD is common and omitted. Pages are whole; the paper's three tiers also load lines
//! and mini pages.
//!
//! Our own goals for reads with three tiers are also checked. One is at least .95 of the better of
//! the other two, at twenty sizes up to both tiers together. The other is twice DRAM-store at 1.75
//! to 2.2 times its pool.

mod business;
mod curve;

use std::ops::RangeInclusive;
use std::sync::Arc;

use terrace::migration::{Choice, Policy, Tuner};
use terrace::{Middle, MiddleKind};
use terrace_common::failure::{Failure, Outcome};
use terrace_io::{Direction, OPERATION_NS, PAGE_NS, Pattern, Profile, SimulatedMemory, Time, VirtualTime};

use self::business::Business;
use self::curve::{Curve, at, chart};
use super::inputs::{Input, Inputs};
use super::setup::{FRAMES_LEAST, PAGE_BYTES, RECORDS_PER_PAGE, TPCC, TPCC_NOTE, experiment};
use crate::claims::claim::{Measured, Setting, Verdict};
use crate::cost::{EqualCost, Shape, Sizes};
use crate::hierarchy::{Experiment, run_all, side_by_side};
use crate::workload::tpcc::Scale;

/// MiB of DRAM and of Optane.
const DRAM: u64 = 8;
const MIDDLE: u64 = 24;
/// Number of data sizes that fit both tiers.
const STEPS: u32 = 20;
/// Larger sizes, in MiB.
const BEYOND: [f64; 5] = [33.0, 35.0, 37.0, 39.0, 41.0];
/// Sizes for writing mixes and for policies with fewer points, in MiB.
const FEW: [f64; 3] = [20.8, 28.8, 37.0];
/// Measured operations, and warm-up operations per page.
const OPERATIONS: u64 = 20_000;
const WARMUP_PER_PAGE: u64 = 4;
/// Operations between checks whether a policy search has ended.
const SEARCH_OPERATIONS: u64 = 100_000;
/// Multiples of DRAM-store's pool.
const LARGE: RangeInclusive<f64> = 1.75..=2.2;
/// Required share of the paper's gain.
const SHARE: f64 = 0.7;

/// A configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runner {
    DramStore,
    MiddleStore,
    Lazy,
    Eager,
    HyMem,
    Adaptive,
}

impl Runner {
    fn name(self) -> &'static str {
        match self {
            Runner::DramStore => "DRAM-store",
            Runner::MiddleStore => "middle-store",
            Runner::Lazy => "three tiers, lazy",
            Runner::Eager => "three tiers, eager",
            Runner::HyMem => "three tiers, HyMem",
            Runner::Adaptive => "three tiers, adaptive",
        }
    }

    fn shape(self) -> Shape {
        match self {
            Runner::DramStore => Shape::DramStore,
            Runner::MiddleStore => Shape::MiddleStore,
            _ => Shape::ThreeTiers,
        }
    }

    fn policy(self) -> Outcome<Choice> {
        Ok(match self {
            // Unused without a middle tier.
            Runner::DramStore | Runner::Eager => Choice::Eager,
            Runner::MiddleStore => {
                Policy::new(0.0, 0.0, 1.0, 1.0).map(Choice::Fixed).map_err(Failure::Work)?
            }
            Runner::Lazy => Choice::Lazy,
            Runner::HyMem => Choice::HyMem,
            Runner::Adaptive => Choice::Adaptive,
        })
    }
}

/// Sizes of the three shapes.
fn shapes() -> Outcome<[Sizes; 3]> {
    let kind: MiddleKind = "simulated:optane".parse().map_err(Failure::Work)?;
    let middle = Middle::new(kind, MIDDLE << 20);
    let least_dram_bytes = FRAMES_LEAST * PAGE_BYTES;
    EqualCost { base: Shape::ThreeTiers, dram_bytes: DRAM << 20, middle, least_dram_bytes }.sizes()
}

/// `runner` over `data` MiB.
fn experiment_of(runner: Runner, mix: &str, data: f64, inputs: Inputs) -> Outcome<Experiment> {
    let mut run = experiment(DRAM, MIDDLE, 1, mix, 1)?;
    let pages = (data * f64::from(1 << 20)) as u64 / PAGE_BYTES;
    let at = Shape::ALL.iter().position(|shape| *shape == runner.shape()).unwrap_or(0);
    let sizes = shapes()?[at];
    run.hierarchy.dram_bytes = sizes.dram_bytes;
    run.hierarchy.middle = run.hierarchy.middle.map(|(profile, _)| (profile, sizes.middle_bytes));
    if runner == Runner::DramStore {
        run.hierarchy.middle = None;
    }
    let three = runner.shape() == Shape::ThreeTiers;
    let filling = if three { run.filling } else { 0 };
    let (each, business) = (run.pages_of_operation(), run.business.map(|_| Scale::small(data as u32)));
    // A business grows, so all have to run as many transactions.
    let instead = if business.is_some() { run.filling - filling } else { 0 };
    Ok(inputs.of(Experiment {
        business,
        migration: runner.policy()?.into(),
        records: pages * RECORDS_PER_PAGE,
        filling,
        // Repeats the filling, because pages admitted twice leave the middle tier one after the
        // other.
        warmup: WARMUP_PER_PAGE * pages / each + filling + instead,
        operations: OPERATIONS / each,
        ..run
    }))
}

/// Operations per second after the policy search.
fn adapted(run: &Experiment) -> Outcome<f64> {
    run.begin(|running| {
        let mut epochs = 0;
        // A search is bounded. Without middle-tier accesses no epoch counts and there is nothing to
        // search.
        for _ in 0..4 * Tuner::SEARCH_EPOCHS_MAX {
            let found = running.measure(SEARCH_OPERATIONS)?;
            let tuning = found.middle()?.tuning.unwrap_or_default();
            if tuning.is_holding || tuning.epochs == epochs {
                break;
            }
            epochs = tuning.epochs;
        }
        Ok(running.measure(OPERATIONS)?.ops_per_second)
    })
}

/// Time to copy a page from Optane to DRAM: the longer of memory time and core time.
fn seconds_up() -> Outcome<f64> {
    let optane = Profile::named("optane").map_err(|error| Failure::Work(error.to_string()))?;
    let time = Arc::new(VirtualTime::new(1));
    time.enter(0);
    let memory = SimulatedMemory::new(optane, Time::Virtual(Arc::clone(&time)));
    let charge = memory.begin(Direction::Read, 0, PAGE_BYTES, Pattern::Sequential);
    memory.copy(PAGE_BYTES);
    drop(charge);
    Ok(time.elapsed_ns() as f64 / 1e9)
}

/// The curves of `runners`, in order.
fn curves<const N: usize>(
    runners: [Runner; N],
    mix: &str,
    sizes: &[f64],
    inputs: Inputs,
) -> Outcome<[Curve; N]> {
    let of = |runner: Runner| sizes.iter().map(move |data| experiment_of(runner, mix, *data, inputs));
    let all = runners.into_iter().flat_map(of);
    let found = run_all(&all.collect::<Outcome<Vec<Experiment>>>()?)?;
    let mut found = found.into_iter().map(|found| found.ops_per_second);
    Ok(runners.map(|_| sizes.iter().copied().zip(found.by_ref()).collect()))
}

fn business() -> Outcome<Business> {
    const ALL: [Runner; 5] =
        [Runner::DramStore, Runner::MiddleStore, Runner::Lazy, Runner::Eager, Runner::HyMem];
    let [dram, middle, lazy, eager, hymem] = curves(ALL, TPCC, &business::SIZES, Inputs::NONE)?;
    Ok(Business { dram, middle, lazy, eager, hymem })
}

/// The runners of YCSB at every size.
const ALL: [Runner; 4] = [Runner::DramStore, Runner::MiddleStore, Runner::Lazy, Runner::Eager];

fn reads(sizes: &[f64], inputs: Inputs) -> Outcome<Reads> {
    let pool = shapes()?[0].dram_bytes as f64 / f64::from(1 << 20);
    let [dram, middle, lazy, eager] = curves(ALL, "ro", sizes, inputs)?;
    Ok(Reads { pool, dram, middle, lazy, eager })
}

/// The order of the runners at the largest of [`FEW`], by the last points of their curves.
fn order(mix: &str, curves: &[Curve]) -> String {
    let last = |curve: &Curve| curve.last().map_or(0.0, |point| point.1);
    let mut last: Vec<(Runner, f64)> = ALL.into_iter().zip(curves.iter().map(last)).collect();
    last.sort_by(|a, b| b.1.total_cmp(&a.1));
    let order: Vec<String> =
        last.iter().map(|(runner, rate)| format!("{} {:.0}", runner.name(), rate / 1e3)).collect();
    format!("{} at {} MiB: {} thousand/s", mix.to_uppercase(), FEW[FEW.len() - 1], order.join(", "))
}

/// Results for reads.
struct Reads {
    /// Size of DRAM-store's pool in MiB.
    pool: f64,
    dram: Curve,
    middle: Curve,
    lazy: Curve,
    eager: Curve,
}

/// The smallest ratio and its size.
fn least(ratios: impl Iterator<Item = (f64, f64)>) -> (f64, f64) {
    ratios.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0.0, 0.0))
}

impl Reads {
    fn sizes(&self) -> impl Iterator<Item = f64> + '_ {
        self.dram.iter().map(|(size, _)| *size)
    }

    fn three(&self, data: f64) -> f64 {
        at(&self.lazy, data).max(at(&self.eager, data))
    }

    /// Three tiers relative to the better of the others, at sizes accepted by `is_meant` that fit
    /// both tiers.
    fn of_better(&self, is_meant: impl Fn(f64) -> bool) -> (f64, f64) {
        let room = (DRAM + MIDDLE) as f64;
        let sizes = self.sizes().filter(|data| *data <= room && is_meant(*data));
        least(sizes.map(|data| (data, self.three(data) / at(&self.dram, data).max(at(&self.middle, data)))))
    }

    /// Whether the data fit DRAM-store's pool but not the DRAM of three tiers.
    fn is_between(&self, data: f64) -> bool {
        data > DRAM as f64 && data <= self.pool
    }

    fn of_dram(&self) -> (f64, f64) {
        let large = self.sizes().filter(|data| LARGE.contains(&(data / self.pool)));
        least(large.map(|data| (data, self.three(data) / at(&self.dram, data))))
    }

    fn of_middle(&self) -> (f64, f64) {
        let beyond = self.sizes().filter(|data| *data > (DRAM + MIDDLE) as f64);
        least(beyond.map(|data| (data, self.three(data) / at(&self.middle, data))))
    }

    /// Upper bound of [`Reads::of_better`] at `data`, if only copies of pages outside DRAM cost
    /// time. Assumes [`Reads::is_between`].
    fn bound(&self, data: f64) -> Outcome<f64> {
        Ok(1.0 / (1.0 + (1.0 - DRAM as f64 / data) * seconds_up()? * at(&self.dram, data)))
    }

    /// Throughput of the others relative to middle-store where the data fit DRAM.
    fn cached(&self) -> f64 {
        let cached = self.sizes().filter(|data| *data <= DRAM as f64);
        let ratios = cached.map(|data| at(&self.dram, data) / at(&self.middle, data));
        ratios.fold(0.0, f64::max)
    }

    /// At how many sizes beyond DRAM lazy is as fast as eager, and how many there are.
    fn lazy_ahead(&self) -> (usize, usize) {
        let is_ahead = |data: &f64| at(&self.lazy, *data) >= 0.98 * at(&self.eager, *data);
        let compared = || self.sizes().filter(|data| *data > DRAM as f64);
        (compared().filter(is_ahead).count(), compared().count())
    }

    fn judge(&self) -> Verdict {
        let beyond = 1.0 / self.of_middle().1;
        let (ahead, sizes) = self.lazy_ahead();
        match (self.cached(), beyond) {
            (cached, beyond)
                if (1.0..=1.33 / SHARE).contains(&cached)
                    && beyond >= 2.5 * SHARE
                    && ahead * 5 >= sizes * 4 =>
            {
                Verdict::Holds
            }
            (cached, beyond) if cached > 1.0 && beyond > 1.0 && self.is_best_where_cached() => Verdict::Sign,
            _ => Verdict::Fails,
        }
    }

    /// Whether DRAM-store is fastest exactly while its pool holds the data.
    fn is_best_where_cached(&self) -> bool {
        self.sizes().all(|data| {
            let others = self.three(data).max(at(&self.middle, data));
            (at(&self.dram, data) >= 0.99 * others) == (data <= self.pool)
        })
    }
}

/// Measures the figure.
pub fn measure(_: &Setting) -> Outcome<Measured> {
    let room = (DRAM + MIDDLE) as f64;
    let mut sizes: Vec<f64> = (1..=STEPS).map(|step| room * f64::from(step) / f64::from(STEPS)).collect();
    sizes.extend(BEYOND);
    let none = Inputs::NONE;
    let reads = reads(&sizes, none)?;
    let pool = reads.pool;
    let [hymem] = curves([Runner::HyMem], "ro", &FEW, none)?;
    let adaptive: Curve = side_by_side(&FEW, |&data| {
        Ok((data, adapted(&experiment_of(Runner::Adaptive, "ro", data, none)?)?))
    })?;
    let mut figures = vec![
        [
            (Runner::DramStore, &reads.dram),
            (Runner::MiddleStore, &reads.middle),
            (Runner::Lazy, &reads.lazy),
            (Runner::Eager, &reads.eager),
            (Runner::HyMem, &hymem),
            (Runner::Adaptive, &adaptive),
        ]
        .into_iter()
        .fold(chart("RO"), |lines, (runner, curve)| lines.line(runner.name(), curve.clone())),
    ];
    let mut written = Vec::new();
    for mix in ["ba", "wh"] {
        let curves = curves(ALL, mix, &FEW, none)?;
        written.push(order(mix, &curves));
        let lines = ALL
            .into_iter()
            .zip(curves)
            .fold(chart(&mix.to_uppercase()), |lines, (runner, curve)| lines.line(runner.name(), curve));
        figures.push(lines);
    }
    let business = business()?;
    figures.push(business.figure());
    Ok(Measured {
        measured: format!(
            "{}. {}. {}. {}",
            reads.tell()?,
            tell_adaptive(&reads, &adaptive),
            written.join("; "),
            business.tell()
        ),
        verdict: reads.judge().min(business.judge()),
        note: format!(
            "{DRAM} MiB of DRAM and {MIDDLE} of Optane, {pool:.1} of DRAM, or {FRAMES_LEAST} pages of DRAM and the rest in Optane cost the same. \
             Holds: where all is in DRAM middle-store is at most 1.33 / {SHARE} times slower, beyond {DRAM} + {MIDDLE} MiB {SHARE} of 2.5 times \
             faster than three tiers, and lazy as fast as eager at four sizes in five; sign: DRAM-store is the fastest as long as it holds \
             all and no longer, and middle-store beyond. With TPC-C it holds if DRAM-store is the fastest up to 65 GB, middle-store after 80, and \
             lazy as fast as other policies; sign: at 20 and 140 GB. The worse verdict counts. An operation computes {} ns here, several times as fast as the paper's, so what Optane \
             adds weighs more; and a page comes to DRAM in {:.1} us, less than its lines cost in place, which is in favour of eager while \
             Optane holds all. Whole pages are moved. {TPCC_NOTE} With an input of the paper, at fewer sizes. {}.",
            OPERATION_NS + 3 * PAGE_NS,
            seconds_up()? * 1e6,
            tell_switched()?
        ),
        figures,
    })
}

/// MiB of data for reads with operations of the paper's length.
const SWITCHED: [f64; 7] = [4.8, 8.0, 16.0, 24.0, 32.0, 37.0, 41.0];

/// Reads whose operations compute as long as the paper's.
fn tell_switched() -> Outcome<String> {
    let reads = reads(&SWITCHED, Inputs::on(&[Input::Operation]))?;
    let (ahead, compared) = reads.lazy_ahead();
    Ok(format!(
        "RO, {} ({}): all in DRAM middle-store {:.2} times lower, beyond both tiers {:.2} times the best of three, lazy as fast as eager at \
         {ahead} of {compared} sizes",
        Input::Operation.name(),
        reads.judge().name(),
        reads.cached(),
        1.0 / reads.of_middle().1,
    ))
}

impl Reads {
    /// The claim's numbers and our goals.
    fn tell(&self) -> Outcome<String> {
        let room = DRAM + MIDDLE;
        let (outside, between) =
            (self.of_better(|data| !self.is_between(data)), self.of_better(|data| self.is_between(data)));
        let (large, beyond) = (self.of_dram(), self.of_middle());
        Ok(format!(
            "RO: all in DRAM, middle-store {:.2} times lower; beyond {room} MiB up to {:.2} times the best of three tiers. Three tiers, the \
             better of lazy and eager, of the better of the others up to {room} MiB: {:.2} or more (at {} MiB), but {:.2} (at {}) between \
             {DRAM} and {:.1} MiB, where DRAM-store has all in DRAM and copies alone leave {:.2}; at 1.75 to 2.2 times its pool {:.2} \
             times DRAM-store or more",
            self.cached(),
            1.0 / beyond.1,
            outside.1,
            outside.0,
            between.1,
            between.0,
            self.pool,
            self.bound(between.0)?,
            large.1,
        ))
    }
}

fn tell_adaptive(reads: &Reads, adaptive: &Curve) -> String {
    let ratio = |&(data, rate): &(f64, f64)| format!("{:.2} at {data} MiB", rate / reads.three(data));
    format!("Adaptive, of that: {}", adaptive.iter().map(ratio).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DRAM-store drops at its pool size, three tiers when both tiers are full, middle-store never.
    fn reads(middle: f64, lazy: f64, eager: f64) -> Reads {
        let sizes = [4.0, 8.0, 16.0, 24.0, 32.0, 33.0, 41.0];
        let curve = |rate: &dyn Fn(f64) -> f64| sizes.iter().map(|&data| (data, rate(data))).collect();
        Reads {
            pool: 18.8,
            dram: curve(&|data| if data <= 18.8 { 1000.0 } else { 50.0 }),
            middle: curve(&|_| middle),
            lazy: curve(&|data| if data <= 32.0 { lazy } else { 120.0 }),
            eager: curve(&|data| if data <= 24.0 { eager } else { 100.0 }),
        }
    }

    #[test]
    fn the_papers_figure_holds_and_others_do_not() {
        let papers = reads(760.0, 960.0, 900.0);
        assert_eq!(papers.judge(), Verdict::Holds);
        assert_eq!(papers.of_better(|data| !papers.is_between(data)), (4.0, 0.96));
        assert!(papers.of_dram().1 > 2.0 && papers.of_middle().1 < 0.2);
        assert_eq!(reads(350.0, 700.0, 960.0).judge(), Verdict::Sign, "eager ahead, and Optane dear");
        assert_eq!(
            reads(1200.0, 960.0, 900.0).judge(),
            Verdict::Fails,
            "middle-store ahead where all is in DRAM"
        );
        assert_eq!(reads(100.0, 960.0, 900.0).judge(), Verdict::Fails, "middle-store behind beyond");
    }

    #[test]
    fn the_shapes_are_in_the_ratio_of_the_papers() {
        let [dram, middle, three] = shapes().unwrap();
        assert_eq!(three, Sizes { dram_bytes: DRAM << 20, middle_bytes: MIDDLE << 20 });
        let of_dram = |sizes: Sizes| (sizes.dram_bytes + sizes.middle_bytes) as f64 / f64::from(8 << 20);
        // 46 GB and 104 GB of 20.
        assert!((of_dram(dram) / (46.0 / 20.0) - 1.0).abs() < 0.03, "{}", of_dram(dram));
        assert!((of_dram(middle) / (104.0 / 20.0) - 1.0).abs() < 0.03, "{}", of_dram(middle));
    }

    #[test]
    fn copies_bound_what_three_tiers_can_do() {
        let reads = reads(760.0, 960.0, 900.0);
        // At a thousand operations per second the cost of copies vanishes.
        assert!((0.99..1.0).contains(&reads.bound(16.0).unwrap()));
    }
}
