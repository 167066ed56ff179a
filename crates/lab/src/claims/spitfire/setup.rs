//! Spitfire's experiments, scaled down.

use terrace::Replacement;
use terrace::migration::{Choice, Policy};
use terrace_common::failure::{Failure, Outcome};
use terrace_io::{OPERATION_NS, Profile};

use crate::claims::claim::Measured;
use crate::hierarchy::{Experiment, Hierarchy, LoadOrder, Logging};
use crate::workload::tpcc::Scale;
use crate::workload::ycsb::Distribution;

/// Bytes of a page.
pub(super) const PAGE_BYTES: u64 = 16 << 10;
/// Records per page: 1000 bytes of value, 24 of key, and metadata.
pub(super) const RECORDS_PER_PAGE: u64 = 15;
/// The engine's minimum of DRAM frames.
pub(super) const FRAMES_LEAST: u64 = 24;
/// The paper's mixes of YCSB, reads first.
pub(super) const MIXES: [&str; 3] = ["ro", "ba", "wh"];
/// The paper's workloads, YCSB first.
pub(super) const WORKLOADS: [&str; 4] = [MIXES[0], MIXES[1], MIXES[2], TPCC];
pub(super) const TPCC: &str = "tpc-c";
/// A log so long that nothing is written to cut it.
pub(super) const LONG_LOG_BYTES: u64 = 256 << 20;
/// How TPC-C runs.
pub(super) const TPCC_NOTE: &str = "TPC-C: warehouses of 1 MiB, each transaction at another, serializable; a worker's transaction does not \
     meet others, so nothing conflicts.";
/// About how many pages a transaction of TPC-C touches; an operation of YCSB touches one.
const PAGES_OF_TRANSACTION: u64 = 20;

/// An experiment at the paper's ratios with one of [`WORKLOADS`], sizes in MiB. A warehouse has 1
/// MiB at first, and a transaction of TPC-C counts as one operation.
pub(super) fn experiment(
    dram: u64,
    middle: u64,
    data: u64,
    workload: &str,
    workers: usize,
) -> Outcome<Experiment> {
    let named = |name: &str| Profile::named(name).map_err(|error| Failure::Work(error.to_string()));
    let frames = (dram << 20) / PAGE_BYTES;
    let business = (workload == TPCC).then(|| Scale::small(data as u32));
    // Of YCSB, whatever the workload.
    let mix = if workload == TPCC { MIXES[0] } else { workload };
    let run = Experiment {
        hierarchy: Hierarchy {
            dram_bytes: dram << 20,
            middle: Some((named("optane")?.with_counted_lines(true), middle << 20)),
            store: named("nvme-optane")?,
            cache: None,
        },
        log: Logging::default(),
        migration: Choice::Eager.into(),
        replacement: Replacement::Mark,
        lines: 0,
        mini_pages: false,
        business,
        page_bytes: PAGE_BYTES,
        records: (data << 20) / PAGE_BYTES * RECORDS_PER_PAGE,
        load_order: LoadOrder::Ascending,
        value_bytes: 1000,
        fields: None,
        mix: mix.parse().map_err(Failure::Work)?,
        distribution: Distribution::Zipfian(0.3),
        workers,
        operation_ns: OPERATION_NS,
        filling: FILLING_MAX * frames,
        warmup: 20 * frames,
        operations: 40 * frames,
        seed: 20_210_620,
    };
    let pages = run.pages_of_operation();
    let [filling, warmup, operations] =
        [run.filling, run.warmup, run.operations].map(|operations| operations / pages);
    Ok(Experiment { filling, warmup, operations, ..run })
}

/// Limits on filling operations per DRAM frame.
const FILLING_MIN: u64 = 40;
const FILLING_MAX: u64 = 200;

impl Experiment {
    /// About how many pages an operation touches.
    pub(super) fn pages_of_operation(&self) -> u64 {
        self.business.map_or(1, |_| PAGES_OF_TRANSACTION)
    }

    /// Uses `d` for both promotion probabilities and `n` for both admission probabilities.
    pub(super) fn lockstep(self, d: f64, n: f64) -> Outcome<Experiment> {
        let policy = Policy::new(d, d, n, n).map(Choice::Fixed).map_err(Failure::Work)?;
        let filled = self.under(policy);
        if n > 0.0 {
            return Ok(filled);
        }
        // The paper's middle tier starts empty here: with N = 0 it has a sixth of the room (section
        // 6.3).
        Ok(Experiment { filling: 0, warmup: filled.warmup + filled.filling, ..filled })
    }

    /// Uses `policy`, after enough operations to fill DRAM twice: one access in `1 / D_r` promotes
    /// a page.
    pub(super) fn under(self, policy: Choice) -> Experiment {
        let dr = policy.policy().dr();
        let looks = if dr > 0.0 { (2.0 / dr) as u64 } else { 0 };
        // A business grows, so all policies have to fill with as many transactions.
        let least = if self.business.is_some() { FILLING_MAX } else { FILLING_MIN };
        let looks = looks.clamp(least, FILLING_MAX) * self.hierarchy.dram_frames(self.page_bytes);
        Experiment { migration: policy.into(), filling: looks / self.pages_of_operation(), ..self }
    }

    pub(super) fn with(self, replacement: Replacement) -> Experiment {
        Experiment { replacement, ..self }
    }
}

/// Measures with the paper's replacement, which decides the verdict, and with ours.
pub(super) fn with_both(measure: impl Fn(Replacement) -> Outcome<Measured>) -> Outcome<Measured> {
    let titled = |replacement, whose| -> Outcome<Measured> {
        let mut measured = measure(replacement)?;
        measured.figures.iter_mut().for_each(|lines| lines.title = format!("{}, {whose}", lines.title));
        Ok(measured)
    };
    let (mut paper, mut ours) =
        (titled(Replacement::ClockPaper, "CLOCK")?, titled(Replacement::Mark, "ours")?);
    paper.measured = format!(
        "with the paper's CLOCKs: {}. With our replacement ({}): {}",
        paper.measured,
        ours.verdict.name(),
        ours.measured
    );
    paper.figures.append(&mut ours.figures);
    Ok(paper)
}

/// A ratio as a percent change.
pub(super) fn percent(ratio: f64) -> String {
    format!("{:+.0} %", (ratio - 1.0) * 100.0)
}
