//! H: HyMem, "Managing Non-Volatile Memory in Database Systems" (SIGMOD 2018). Only the restart
//! (H11) is measured: the others load lines or mini pages.

mod restart;

use super::claim::{Claim, Mode, Run, not_here};

/// The reason.
const WHY: &str =
    "not measured yet: HyMem loads cache lines and mini pages, which the middle tier here does not have yet";

/// The claims.
pub const CLAIMS: &[Claim] = &[
    not_here(
        "H1",
        Mode::Virtual,
        "No cliffs, YCSB-RO",
        "3 tiers: 4.3 times the SSD buffer manager at 15 GB (Fig. 8)",
        WHY,
    ),
    not_here(
        "H2",
        Mode::Virtual,
        "No cliffs, TPC-C",
        "3 tiers: 2.8 times the SSD buffer manager (Fig. 9)",
        WHY,
    ),
    not_here(
        "H3",
        Mode::Virtual,
        "Lines loaded, step by step",
        "652.5 M to 11.8 M by cache lines to 5.6 M by mini pages (Fig. 10)",
        WHY,
    ),
    not_here("H4", Mode::Virtual, "Overhead on scans", "at most about 10 % (table in section 5.4.2)", WHY),
    not_here("H5", Mode::Virtual, "Against FPTree", "+30 % at 50 % DRAM with zipf 1 (Fig. 11)", WHY),
    not_here("H6", Mode::Virtual, "NVM latency", "cross-over with NVM Direct at about 300 ns (Fig. 12)", WHY),
    not_here(
        "H7",
        Mode::Virtual,
        "Share of DRAM",
        "beats Direct from about 7 % on, Basic from about 80 % (Fig. 13)",
        WHY,
    ),
    not_here("H8", Mode::Virtual, "Large data", "Direct falls to half, 3 tiers less (Fig. 14)", WHY),
    not_here("H9", Mode::Virtual, "Updates", "Basic at 100 % writes is half of read-only (Fig. 15)", WHY),
    not_here(
        "H10",
        Mode::Virtual,
        "Wear",
        "25 M to 4.7 M NVM line writes; the hottest line from 60 K to 3 (Fig. 16)",
        WHY,
    ),
    Claim {
        id: "H11",
        claim: "Restart",
        paper: "page table rebuilt in about 200 ms (Fig. 17, section 4.4)",
        mode: Mode::Virtual,
        run: Run::Here(restart::measure),
    },
];
