//! S: Spitfire, "A Three-Tier Buffer Manager for Volatile and Non-Volatile Memory" (SIGMOD 2021),
//! sections 3 and 6.
//!
//! The paper's 12.5 GB of DRAM, 50 GB of Optane and 100 GB of data become 8, 32 and 64 MiB. Pages
//! of 16 KiB, records of 1000 bytes and a skew of .3 over scattered keys are the paper's; hit
//! ratios depend only on ratios. Time is virtual. Tiers follow the paper's Table 1, its SSD is the
//! profile `nvme-optane`. Differences: an access to a page draws one random number per operation;
//! reads leave pages clean, while the paper's multi-version concurrency control writes on reads;
//! the log is free, but in S13.
//!
//! Each claim is measured with two replacements. The paper's has independent CLOCKs per tier
//! ([`terrace::Replacement::ClockPaper`]) and decides the verdict. Ours evicts middle copies first
//! if DRAM has a copy; its result is reported beside.
//!
//! | file             | claims                                              |
//! |------------------|-----------------------------------------------------|
//! | `inclusivity.rs` | S2: pages in both tiers                             |
//! | `lazy.rs`        | S3, S4, S6, S14: the best probability               |
//! | `adaptive.rs`    | S7: finding it                                      |
//! | `lines.rs`       | S8, S9, S10: lines instead of whole pages           |
//! | `writes.rs`      | S5: bytes written to the middle tier                |
//! | `inputs.rs`      | inputs of the paper that these lack, by switch      |
//! | `promotion.rs`   | S15: the chance of being in DRAM                    |
//! | `recovery.rs`    | S13: log and pages in persistent memory             |
//! | `mode.rs`        | S1: memory mode                                     |
//! | `grid.rs`        | S11: hierarchies by price                           |
//! | `setup.rs`       | one experiment of the paper                         |
//! | `size.rs`        | S12: hierarchies of equal cost by data size         |

mod adaptive;
mod grid;
mod inclusivity;
mod inputs;
mod lazy;
mod lines;
mod mode;
mod promotion;
mod recovery;
mod setup;
mod size;
mod writes;

use super::claim::{Claim, Mode};

/// The claims.
pub const CLAIMS: &[Claim] = &[
    Claim {
        id: "S1",
        claim: "Application-direct NVM and SSD against memory mode and SSD, at equal cost",
        paper: "cachable: memory mode up to 1.12 times; not cachable: NVM-SSD up to 6 times (RO), 2.28 times (BA, TPC-C) (Fig. 5)",
        mode: Mode::Virtual,
        measure: mode::measure,
    },
    Claim {
        id: "S2",
        claim: "Inclusivity of the DRAM and NVM buffers",
        paper: "at D = 0, .01, .1, 1 RO 0, .064, .159, .170, TPC-C 0, .188, .237, .248; N: 0, .122, .125, .171 and 0, .194, .196, .248 (Table 2)",
        mode: Mode::Virtual,
        measure: inclusivity::measure,
    },
    Claim {
        id: "S3",
        claim: "Lazy migration to DRAM",
        paper: "best at D = .01: RO +58 %, BA +22 %, WH +13 %, TPC-C +35 % over D = 1 (Fig. 6)",
        mode: Mode::Virtual,
        measure: lazy::to_dram,
    },
    Claim {
        id: "S4",
        claim: "Lazy migration to NVM",
        paper: "best at N = .01: RO 1.25 times N = 1; N = 0 is 25 % worse (Fig. 7)",
        mode: Mode::Virtual,
        measure: lazy::to_middle,
    },
    Claim {
        id: "S5",
        claim: "Writes to NVM",
        paper: "N = .1 against N = 1: RO 91.8 times fewer, BA 1.58, WH 1.45, TPC-C 1.31 (Fig. 8)",
        mode: Mode::Virtual,
        measure: writes::measure,
    },
    Claim {
        id: "S6",
        claim: "The shape of the hierarchy decides the policy",
        paper: "DRAM to NVM 1:8: best D = 0; 1:4 and 1:2: best D = .01 (Fig. 9)",
        mode: Mode::Virtual,
        measure: lazy::by_shape,
    },
    Claim {
        id: "S7",
        claim: "Adaptive migration by simulated annealing",
        paper: "from D = N = 1 to a lazy policy; RO +52 % (Fig. 10)",
        mode: Mode::Virtual,
        measure: adaptive::measure,
    },
    Claim {
        id: "S8",
        claim: "Loading granularity",
        paper: "64 B is 1.1 times slower than 256 B; best at 256 B (Fig. 11)",
        mode: Mode::Virtual,
        measure: lines::granularity,
    },
    Claim {
        id: "S9",
        claim: "Ablation",
        paper: "fine-grained loading +18 % (HyMem), +37 % (eager), 0 (lazy), TPC-C +7, +9 %; mini pages +6 % (Fig. 12)",
        mode: Mode::Virtual,
        measure: lines::ablation,
    },
    Claim {
        id: "S10",
        claim: "Writes to NVM, lazy against HyMem",
        paper: "lazy 1.05 to 1.4 times more (Fig. 13)",
        mode: Mode::Virtual,
        measure: lines::writes,
    },
    Claim {
        id: "S11",
        claim: "Which hierarchy to buy",
        paper: "RO: 4 GB DRAM and 80 GB NVM; BA: 8 and 80; WH: NVM and SSD (Fig. 14)",
        mode: Mode::Virtual,
        measure: grid::measure,
    },
    Claim {
        id: "S12",
        claim: "Size of the database",
        paper: "DRAM-cachable: NVM-SSD up to 1.33 times lower; beyond 80 GB up to 2.5 times better; TPC-C: DRAM-SSD best up to 65 GB, NVM-SSD after 80 (Fig. 15)",
        mode: Mode::Virtual,
        measure: size::measure,
    },
    Claim {
        id: "S13",
        claim: "Recovery",
        paper: "the log in NVM is the commit point, pages in NVM are not flushed (section 5.2)",
        mode: Mode::Virtual,
        measure: recovery::measure,
    },
    Claim {
        id: "S14",
        claim: "Eager is right when the working set fits DRAM",
        paper: "D_r above .7 at least as good as lazy (section 3.1)",
        mode: Mode::Virtual,
        measure: lazy::cached,
    },
    Claim {
        id: "S15",
        claim: "Chance of being in DRAM after n reads",
        paper: "1 - (1 - D_r)^n (section 3.1)",
        mode: Mode::Virtual,
        measure: promotion::measure,
    },
];
