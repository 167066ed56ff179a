//! S: Spitfire, "A Three-Tier Buffer Manager for Volatile and Non-Volatile Memory" (SIGMOD 2021). None of its claims is measured yet.

use super::{Claim, Mode, not_here};

/// Why none is.
const WHY: &str = "not measured yet: the middle tier it is about is being built";

/// The claims.
pub const CLAIMS: &[Claim] = &[
    not_here(
        "S1",
        Mode::Virtual,
        "Application-direct NVM and SSD against memory mode and SSD, at equal cost",
        "cachable: memory mode up to 1.12 times; not cachable: NVM-SSD up to 6 times (RO), 2.28 times (BA, TPC-C) (Fig. 5)",
        WHY,
    ),
    not_here(
        "S2",
        Mode::Virtual,
        "Inclusivity of the DRAM and NVM buffers",
        "RO at D = 0, .01, .1, 1: 0, .064, .159, .170; N: 0, .122, .125, .171 (Table 2)",
        WHY,
    ),
    not_here(
        "S3",
        Mode::Virtual,
        "Lazy migration to DRAM",
        "best at D = .01: RO +58 %, BA +22 %, WH +13 %, TPC-C +35 % over D = 1 (Fig. 6)",
        WHY,
    ),
    not_here(
        "S4",
        Mode::Virtual,
        "Lazy migration to NVM",
        "best at N = .01: RO 1.25 times N = 1; N = 0 is 25 % worse (Fig. 7)",
        WHY,
    ),
    not_here(
        "S5",
        Mode::Virtual,
        "Writes to NVM",
        "N = .1 against N = 1: RO 91.8 times fewer, BA 1.58, WH 1.45, TPC-C 1.31 (Fig. 8)",
        WHY,
    ),
    not_here(
        "S6",
        Mode::Virtual,
        "The shape of the hierarchy decides the policy",
        "DRAM to NVM 1:8: best D = 0; 1:4 and 1:2: best D = .01 (Fig. 9)",
        WHY,
    ),
    not_here(
        "S7",
        Mode::Virtual,
        "Adaptive migration by simulated annealing",
        "from D = N = 1 to a lazy policy; RO +52 % (Fig. 10)",
        WHY,
    ),
    not_here(
        "S8",
        Mode::Virtual,
        "Loading granularity",
        "64 B is 1.1 times slower than 256 B; best at 256 B (Fig. 11)",
        WHY,
    ),
    not_here(
        "S9",
        Mode::Virtual,
        "Ablation",
        "fine-grained loading +18 % (HyMem), +37 % (eager), 0 (lazy); mini pages +6 % (Fig. 12)",
        WHY,
    ),
    not_here(
        "S10",
        Mode::Virtual,
        "Writes to NVM, lazy against HyMem",
        "lazy 1.05 to 1.4 times more (Fig. 13)",
        WHY,
    ),
    not_here(
        "S11",
        Mode::Virtual,
        "Which hierarchy to buy",
        "RO: 4 GB DRAM and 80 GB NVM; BA: 8 and 80; WH: NVM and SSD (Fig. 14)",
        WHY,
    ),
    not_here(
        "S12",
        Mode::Virtual,
        "Size of the database",
        "DRAM-cachable: NVM-SSD up to 1.33 times lower; beyond 80 GB up to 2.5 times better (Fig. 15)",
        WHY,
    ),
    not_here(
        "S13",
        Mode::Wall,
        "Recovery",
        "the log in NVM is the commit point, pages in NVM are not flushed (section 5.2)",
        WHY,
    ),
    not_here(
        "S14",
        Mode::Virtual,
        "Eager is right when the working set fits DRAM",
        "D_r above .7 at least as good as lazy (section 3.1)",
        WHY,
    ),
    not_here(
        "S15",
        Mode::Virtual,
        "Chance of being in DRAM after n reads",
        "1 - (1 - D_r)^n (section 3.5)",
        WHY,
    ),
];
