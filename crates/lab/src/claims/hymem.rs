//! H: HyMem, "Managing Non-Volatile Memory in Database Systems" (SIGMOD 2018).

mod curves;
mod fptree;
mod hashed;
mod hybrid;
mod line_writes;
mod loaded;
mod restart;
mod scans;
mod setup;
mod tpcc;

use super::claim::{Claim, Mode};

/// The claims.
pub const CLAIMS: &[Claim] = &[
    Claim {
        id: "H1",
        claim: "No cliffs, YCSB-RO",
        paper: "3 tiers: 4.3 times the SSD buffer manager at 15 GB (Fig. 8)",
        mode: Mode::Virtual,
        measure: curves::no_cliffs,
    },
    Claim {
        id: "H2",
        claim: "No cliffs, TPC-C",
        paper: "3 tiers: 2.8 times the SSD buffer manager at 15 GB; their drop comes after 10 GB (Fig. 9)",
        mode: Mode::Virtual,
        measure: tpcc::measure,
    },
    Claim {
        id: "H3",
        claim: "Lines loaded, step by step",
        paper: "652.5 M to 11.8 M by cache lines to 5.6 M by mini pages (Fig. 10)",
        mode: Mode::Virtual,
        measure: loaded::measure,
    },
    Claim {
        id: "H4",
        claim: "Overhead on scans",
        paper: "at most about 10 % (table in section 5.4.2)",
        mode: Mode::Virtual,
        measure: scans::measure,
    },
    Claim {
        id: "H5",
        claim: "Against FPTree",
        paper: "+30 % at 50 % DRAM with zipf 1 (Fig. 11)",
        mode: Mode::Virtual,
        measure: hybrid::measure,
    },
    Claim {
        id: "H6",
        claim: "NVM latency",
        paper: "cross-over with NVM Direct at about 300 ns (Fig. 12)",
        mode: Mode::Virtual,
        measure: curves::latency,
    },
    Claim {
        id: "H7",
        claim: "Share of DRAM",
        paper: "beats Direct from about 7 % on, Basic from about 80 % (Fig. 13)",
        mode: Mode::Virtual,
        measure: curves::share_of_dram,
    },
    Claim {
        id: "H8",
        claim: "Large data",
        paper: "Direct falls to half, 3 tiers less (Fig. 14)",
        mode: Mode::Virtual,
        measure: curves::large_data,
    },
    Claim {
        id: "H9",
        claim: "Updates",
        paper: "Basic at 100 % writes is half of read-only (Fig. 15)",
        mode: Mode::Virtual,
        measure: curves::updates,
    },
    Claim {
        id: "H10",
        claim: "Wear",
        paper: "25 M to 4.7 M NVM line writes; the hottest line from 60 K to 3 (Fig. 16)",
        mode: Mode::Virtual,
        measure: line_writes::measure,
    },
    Claim {
        id: "H11",
        claim: "Restart",
        paper: "page table rebuilt in about 200 ms (Fig. 17, section 4.4)",
        mode: Mode::Virtual,
        measure: restart::measure,
    },
];
