//! H11: throughput after a clean restart (figure 17, sections 4.4 and A.5).
//!
//! Uniform lookups of 8-byte values, which fit the DRAM pool of every design. Designs:
//!
//! * **SSD BM**: DRAM over an SSD.
//! * **Basic NVM BM**: DRAM over a page file in Optane, loaded page by page.
//! * **3 Tier BM**: DRAM, Optane and SSD, with lines and mini pages. The open finds the pages of
//!   Optane by their headers.
//! * The same with whole pages, and with its Optane lost, which the paper does not have.
//!
//! NVM Direct has no page table, and FPTree no pages: both are missing. What the open spends on
//! frames is measured with three tiers over a store as fast as DRAM.

use terrace::Replacement;
use terrace::migration::Choice;
use terrace_common::failure::{Failure, Outcome};
use terrace_common::report::Lines;
use terrace_io::{OPERATION_NS, PAGE_NS, Profile};

use crate::claims::claim::{Measured, Setting, Verdict};
use crate::hierarchy::{End, Experiment, Hierarchy, LoadOrder, Logging, side_by_side};
use crate::workload::ycsb::Distribution;

const PAGE_BYTES: u64 = 16 << 10;
/// The paper's pool and data by 1/80: its tree of 2.5 GB has 152,588 pages.
const POOL_BYTES: u64 = 40 << 20;
const RECORDS: u64 = 500_000;
const VALUE_BYTES: usize = 8;
/// The paper's pages, seconds to rebuild the table, and seconds to read the ids alone of 100 GB.
const PAPER_PAGES: f64 = 2.5e9 / PAGE_BYTES as f64;
const PAPER_REBUILD_S: f64 = 0.2;
const PAPER_100_GB_S: f64 = 1.0;
/// Operations of the first points of the curve; of later ones a twentieth of those before.
const STEP: u64 = 500;
const STEPS_MAX: usize = 400;
/// Lookups before the restart for each page: all lines of each are in DRAM then.
const WARMUP_PER_PAGE: u64 = 1000;
/// The share of the rate before the restart that counts as the peak.
const PEAK: f64 = 0.9;
/// Required share of the paper's ratios.
const SHARE: f64 = 0.7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Design {
    Ssd,
    Basic,
    ThreeTier,
    Pages,
    Cold,
    Frames,
}

const DESIGNS: [Design; 6] =
    [Design::Ssd, Design::Basic, Design::ThreeTier, Design::Pages, Design::Cold, Design::Frames];

impl Design {
    fn name(self) -> &'static str {
        match self {
            Design::Ssd => "SSD BM",
            Design::Basic => "basic NVM BM",
            Design::ThreeTier => "3 tier BM",
            Design::Pages => "3 tiers, whole pages",
            Design::Cold => "3 tiers, Optane lost",
            Design::Frames => "3 tiers over DRAM",
        }
    }

    fn experiment(self) -> Outcome<Experiment> {
        let named = |name: &str| Profile::named(name).map_err(|error| Failure::Work(error.to_string()));
        let middle = !matches!(self, Design::Ssd | Design::Basic);
        let lines = matches!(self, Design::ThreeTier | Design::Cold);
        Ok(Experiment {
            hierarchy: Hierarchy {
                dram_bytes: POOL_BYTES,
                middle: if middle {
                    Some((named("optane")?.with_counted_lines(true), POOL_BYTES))
                } else {
                    None
                },
                store: named(match self {
                    Design::Basic => "optane",
                    Design::Frames => "dram",
                    _ => "nvme-flash",
                })?,
                cache: None,
            },
            log: Logging::default(),
            migration: Choice::Eager.into(),
            replacement: Replacement::default(),
            lines: if lines { 64 } else { 0 },
            mini_pages: lines,
            business: None,
            page_bytes: PAGE_BYTES,
            records: RECORDS,
            load_order: LoadOrder::Ascending,
            value_bytes: VALUE_BYTES,
            fields: None,
            mix: "ro".parse().map_err(Failure::Work)?,
            distribution: Distribution::Uniform,
            workers: 1,
            operation_ns: OPERATION_NS,
            filling: 0,
            warmup: WARMUP_PER_PAGE * POOL_BYTES / PAGE_BYTES,
            operations: 20 * STEP,
            seed: 20_180_610,
        })
    }
}

/// One design's restart.
#[derive(Clone, Debug, Default, PartialEq)]
struct Restart {
    /// Operations a second before.
    peak: f64,
    open_ms: f64,
    /// Frames adopted at the open.
    adopted: u64,
    /// Milliseconds after the restart, and operations a second of the step that ended then.
    curve: Vec<(f64, f64)>,
}

impl Restart {
    fn of(design: Design) -> Outcome<Restart> {
        let run = design.experiment()?;
        run.begin(|running| {
            let before = running.measure(run.operations)?;
            if before.misses > 0.0 {
                return Err(Failure::Work(format!("{}: the data do not fit the pool", design.name())));
            }
            let end = End { is_closed: true, keeps_tier: design != Design::Cold };
            let open_ms = running.restart(&run, end)? as f64 / 1e6;
            let persistent = running.stats().middle.and_then(|middle| middle.persistent);
            let adopted = persistent.map_or(0, |persistent| persistent.adopted);
            let (peak, mut curve, mut done, mut at) = (before.ops_per_second, Vec::new(), 0, open_ms);
            while curve.len() < STEPS_MAX && curve.last().is_none_or(|&(_, rate)| rate < PEAK * peak) {
                let step = STEP.max(done / 20);
                let rate = running.measure(step)?.ops_per_second;
                (done, at) = (done + step, at + step as f64 / rate * 1e3);
                curve.push((at, rate));
            }
            Ok(Restart { peak, open_ms, adopted, curve })
        })
    }

    /// Milliseconds until the peak; infinite if never.
    fn reached_ms(&self) -> f64 {
        let reached = self.curve.iter().find(|&&(_, rate)| rate >= PEAK * self.peak);
        reached.map_or(f64::INFINITY, |&(at, _)| at)
    }
}

/// Runs the experiment.
pub fn measure(_: &Setting) -> Outcome<Measured> {
    Ok(judge(&side_by_side(&DESIGNS, |&design| Restart::of(design))?))
}

/// `found` is in the order of [`DESIGNS`].
fn judge(found: &[Restart]) -> Measured {
    let [ssd, basic, three, pages, cold, frames] = found else { unreachable!("each design has its restart") };
    let frame_us = frames.open_ms * 1e3 / frames.adopted.max(1) as f64;
    let paper_us = PAPER_REBUILD_S * 1e6 / PAPER_PAGES;
    let hundred_s = 1e11 / PAGE_BYTES as f64 * frame_us / 1e6;
    let behind = three.reached_ms() / basic.reached_ms();
    let slowest = ssd.reached_ms() / three.reached_ms().max(basic.reached_ms());
    let verdict = match (slowest > 1.0, behind) {
        (true, behind)
            if (1.0..=1.0 / SHARE).contains(&behind) && frame_us <= paper_us / SHARE && three.adopted > 0 =>
        {
            Verdict::Holds
        }
        (true, behind) if behind >= 1.0 && three.adopted > 0 => Verdict::Sign,
        _ => Verdict::Fails,
    };
    let told: Vec<String> = DESIGNS
        .iter()
        .zip(found)
        .take(5)
        .map(|(design, restart)| {
            format!("{} {:.2} ms (open {:.3})", design.name(), restart.reached_ms(), restart.open_ms)
        })
        .collect();
    let lines = Lines::new("Throughput after a restart", "ms after the restart", "operations/s");
    let lines = DESIGNS
        .iter()
        .zip(found)
        .fold(lines, |lines, (design, restart)| lines.line(design.name(), restart.curve.clone()));
    Measured {
        measured: format!(
            "{PEAK} of the rate before is reached after: {}. Three tiers take {behind:.2} times as long as basic, with whole pages {:.2}. \
             The SSD takes {slowest:.1} times as long as the slower of both, three tiers without their Optane {:.1} times as with. The open adopts {} frames in {frame_us:.2} us each (paper \
             {paper_us:.2}), so 100 GB in {hundred_s:.2} s (paper: the ids alone below {PAPER_100_GB_S})",
            told.join(", "),
            pages.reached_ms() / basic.reached_ms(),
            cold.reached_ms() / three.reached_ms(),
            three.adopted,
        ),
        verdict,
        note: format!(
            "{RECORDS} records, uniform lookups, a pool of {} MiB in DRAM and as much in Optane. The open is charged for headers and, as we assume, {PAGE_NS} ns of computation a frame. Holds: the \
             SSD is slowest, three tiers reach the peak later than basic and by at most 1 / {SHARE} of its time, frames are adopted at \
             the paper's pace or 1 / {SHARE} of that; sign: the order. The first access of an adopted page reads and checks all of it. NVM Direct \
             and FPTree are not here.",
            POOL_BYTES >> 20
        ),
        figures: vec![lines],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restart(reached_ms: f64, open_ms: f64) -> Restart {
        Restart { peak: 100.0, open_ms, adopted: 1000, curve: vec![(1.0, 10.0), (reached_ms, 95.0)] }
    }

    #[test]
    fn the_papers_order_holds_and_others_do_not() {
        let judged = |three: f64, open: f64, ssd: f64| {
            let [ssd, three] = [restart(ssd, 1.0), restart(three, open)];
            judge(&[ssd.clone(), restart(10.0, 1.0), three.clone(), three.clone(), ssd, three]).verdict
        };
        assert_eq!(judged(11.0, 1.1, 100.0), Verdict::Holds);
        assert_eq!(judged(11.0, 5.0, 100.0), Verdict::Sign, "4 us a frame");
        assert_eq!(judged(30.0, 1.1, 100.0), Verdict::Sign);
        assert_eq!(judged(9.0, 1.1, 100.0), Verdict::Fails, "before basic");
        assert_eq!(judged(11.0, 1.1, 10.5), Verdict::Fails, "the SSD before three tiers");
    }
}
