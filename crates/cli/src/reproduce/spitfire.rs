//! S: Spitfire, "A Three-Tier Buffer Manager for Volatile and Non-Volatile Memory" (SIGMOD 2021), sections 3 and 6.
//!
//! The paper's 12.5 GB of DRAM, 50 GB of Optane and 100 GB of data become 8, 32 and 64 MiB, with its pages of 16 KiB, records of
//! 1000 bytes and skew of .3 over scattered keys; shares of hits depend on the ratios alone. Time is virtual, tiers are simulated by
//! the paper's Table 1, and its SSD is the profile `nvme-optane`. What differs: a look at a page casts a die once, and again only for
//! another operation; reads leave pages clean, where the paper's multi-version concurrency control writes to what it reads; the log
//! costs nothing.
//!
//! Each is measured twice: with a CLOCK for each tier that knows nothing of the other, which is the paper's replacement
//! ([`Replacement::ClockPaper`]) and decides the verdict, and with ours, which lets a copy in the middle tier go first that has
//! another in DRAM. What becomes of a claim with that is said beside it.
//!
//! | file             | claims                                    |
//! |------------------|-------------------------------------------|
//! | `inclusivity.rs` | S2: how much is in both tiers             |
//! | `lazy.rs`        | S3, S4, S6, S14: which probability is best |
//! | `adaptive.rs`    | S7: finding it                            |
//! | `size.rs`        | S12: hierarchies of equal cost, by size of the data |

mod adaptive;
mod inclusivity;
mod lazy;
mod size;

use terrace::Replacement;
use terrace::migration::{Choice, Policy};
use terrace_block::{OPERATION_NS, Profile};

use super::{Claim, Measured, Mode, Run, not_here};
use crate::failure::{Failure, Outcome};
use crate::hierarchy::{Experiment, Hierarchy};
use crate::workload::ycsb::Distribution;

/// Why what needs more than a middle tier for pages is not.
const LATER: &str = "not measured yet: what it needs is not built";

/// Bytes of a page.
const PAGE_BYTES: u64 = 16 << 10;
/// Records of a page: 1000 bytes, a key of 24, and what the page says of them.
const RECORDS_PER_PAGE: u64 = 15;
/// The mixes of the paper, reads first.
const MIXES: [&str; 3] = ["ro", "ba", "wh"];

/// One of the paper's experiments, at its ratios: so many MiB of DRAM, Optane and data.
fn experiment(dram: u64, middle: u64, data: u64, mix: &str, workers: usize) -> Outcome<Experiment> {
    let named = |name: &str| Profile::named(name).map_err(|error| Failure::Work(error.to_string()));
    let frames = (dram << 20) / PAGE_BYTES;
    Ok(Experiment {
        hierarchy: Hierarchy {
            dram_bytes: dram << 20,
            middle: Some((named("optane")?, middle << 20)),
            store: named("nvme-optane")?,
            cache: None,
        },
        policy: Choice::Eager,
        clean_victims: None,
        replacement: Replacement::Mark,
        page_bytes: PAGE_BYTES,
        records: (data << 20) / PAGE_BYTES * RECORDS_PER_PAGE,
        value_bytes: 1000,
        mix: mix.parse().map_err(Failure::Work)?,
        distribution: Distribution::Zipfian(0.3),
        workers,
        operation_ns: OPERATION_NS,
        filling: FILLING_MAX * frames,
        warmup: 20 * frames,
        operations: 40 * frames,
        seed: 20_210_620,
    })
}

/// Operations that fill the tiers, for each frame of DRAM, at least and at most.
const FILLING_MIN: u64 = 40;
const FILLING_MAX: u64 = 200;

impl Experiment {
    /// With `d` for both probabilities of going up, and `n` for both of going to the middle tier.
    fn lockstep(self, d: f64, n: f64) -> Outcome<Experiment> {
        let policy = Policy::new(d, d, n, n).map(Choice::Fixed).map_err(Failure::Work)?;
        let filled = self.under(policy);
        if n > 0.0 {
            return Ok(filled);
        }
        // The paper's middle tier is empty then: its N = 0 has a sixth of the room (section 6.3).
        Ok(Experiment { filling: 0, warmup: filled.warmup + filled.filling, ..filled })
    }

    /// With this policy, after as many operations as fill DRAM twice with it: a page goes up at one look in `1 / D_r`.
    fn under(self, policy: Choice) -> Experiment {
        let dr = policy.policy().dr();
        let looks = if dr > 0.0 { (2.0 / dr) as u64 } else { 0 };
        let filling = looks.clamp(FILLING_MIN, FILLING_MAX) * self.hierarchy.dram_frames(self.page_bytes);
        Experiment { policy, filling, ..self }
    }

    fn with(self, replacement: Replacement) -> Experiment {
        Experiment { replacement, ..self }
    }
}

/// The same measured with the paper's replacement, whose verdict it is, and with ours.
fn with_both(measure: impl Fn(Replacement) -> Outcome<Measured>) -> Outcome<Measured> {
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

/// A ratio as a change in percent.
fn percent(ratio: f64) -> String {
    format!("{:+.0} %", (ratio - 1.0) * 100.0)
}

/// The claims.
pub const CLAIMS: &[Claim] = &[
    not_here(
        "S1",
        Mode::Virtual,
        "Application-direct NVM and SSD against memory mode and SSD, at equal cost",
        "cachable: memory mode up to 1.12 times; not cachable: NVM-SSD up to 6 times (RO), 2.28 times (BA, TPC-C) (Fig. 5)",
        LATER,
    ),
    Claim {
        id: "S2",
        claim: "Inclusivity of the DRAM and NVM buffers",
        paper: "RO at D = 0, .01, .1, 1: 0, .064, .159, .170; N: 0, .122, .125, .171 (Table 2)",
        mode: Mode::Virtual,
        run: Run::Here(inclusivity::measure),
    },
    Claim {
        id: "S3",
        claim: "Lazy migration to DRAM",
        paper: "best at D = .01: RO +58 %, BA +22 %, WH +13 %, TPC-C +35 % over D = 1 (Fig. 6)",
        mode: Mode::Virtual,
        run: Run::Here(lazy::to_dram),
    },
    Claim {
        id: "S4",
        claim: "Lazy migration to NVM",
        paper: "best at N = .01: RO 1.25 times N = 1; N = 0 is 25 % worse (Fig. 7)",
        mode: Mode::Virtual,
        run: Run::Here(lazy::to_middle),
    },
    not_here(
        "S5",
        Mode::Virtual,
        "Writes to NVM",
        "N = .1 against N = 1: RO 91.8 times fewer, BA 1.58, WH 1.45, TPC-C 1.31 (Fig. 8)",
        LATER,
    ),
    Claim {
        id: "S6",
        claim: "The shape of the hierarchy decides the policy",
        paper: "DRAM to NVM 1:8: best D = 0; 1:4 and 1:2: best D = .01 (Fig. 9)",
        mode: Mode::Virtual,
        run: Run::Here(lazy::by_shape),
    },
    Claim {
        id: "S7",
        claim: "Adaptive migration by simulated annealing",
        paper: "from D = N = 1 to a lazy policy; RO +52 % (Fig. 10)",
        mode: Mode::Virtual,
        run: Run::Here(adaptive::measure),
    },
    not_here(
        "S8",
        Mode::Virtual,
        "Loading granularity",
        "64 B is 1.1 times slower than 256 B; best at 256 B (Fig. 11)",
        LATER,
    ),
    not_here(
        "S9",
        Mode::Virtual,
        "Ablation",
        "fine-grained loading +18 % (HyMem), +37 % (eager), 0 (lazy); mini pages +6 % (Fig. 12)",
        LATER,
    ),
    not_here(
        "S10",
        Mode::Virtual,
        "Writes to NVM, lazy against HyMem",
        "lazy 1.05 to 1.4 times more (Fig. 13)",
        LATER,
    ),
    not_here(
        "S11",
        Mode::Virtual,
        "Which hierarchy to buy",
        "RO: 4 GB DRAM and 80 GB NVM; BA: 8 and 80; WH: NVM and SSD (Fig. 14)",
        LATER,
    ),
    Claim {
        id: "S12",
        claim: "Size of the database",
        paper: "DRAM-cachable: NVM-SSD up to 1.33 times lower; beyond 80 GB up to 2.5 times better (Fig. 15)",
        mode: Mode::Virtual,
        run: Run::Here(size::measure),
    },
    not_here(
        "S13",
        Mode::Wall,
        "Recovery",
        "the log in NVM is the commit point, pages in NVM are not flushed (section 5.2)",
        LATER,
    ),
    Claim {
        id: "S14",
        claim: "Eager is right when the working set fits DRAM",
        paper: "D_r above .7 at least as good as lazy (section 3.1)",
        mode: Mode::Virtual,
        run: Run::Here(lazy::cached),
    },
    not_here(
        "S15",
        Mode::Virtual,
        "Chance of being in DRAM after n reads",
        "1 - (1 - D_r)^n (section 3.5)",
        LATER,
    ),
];
