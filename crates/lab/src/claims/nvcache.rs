//! N: NVCache, "Writes Hurt: Lessons in Cache Design for Optane NVRAM" (FAST 2022), on simulated
//! memory. `setup.rs` describes the machine.

mod cache;
mod device;
mod others;
mod postgresql;
mod price;
mod replay;
mod setup;

use super::claim::{Claim, Mode};

/// The claims.
pub const CLAIMS: &[Claim] = &[
    Claim {
        id: "N1",
        claim: "Optane writes do not scale",
        paper: "throughput falls as threads are added (Fig. 1)",
        mode: Mode::Virtual,
        measure: device::writes,
    },
    Claim {
        id: "N2",
        claim: "Writes hurt reads",
        paper: "8 readers: 12 to 3.4 GB/s with 1 writer, .8 GB/s with 8 (Fig. 2)",
        mode: Mode::Virtual,
        measure: device::reads,
    },
    Claim {
        id: "N3",
        claim: "The penalty of admitting everything, small data",
        paper: "up to -91 %; small-bypass and OBP about 0 % (Fig. 4)",
        mode: Mode::Virtual,
        measure: cache::small,
    },
    Claim {
        id: "N4",
        claim: "Dead admissions",
        paper: "share of admitted blocks freed as outdated (Fig. 5)",
        mode: Mode::Virtual,
        measure: cache::dead,
    },
    Claim {
        id: "N5",
        claim: "Appetite for eviction",
        paper: "without eviction 2.6, 1.4 and 2.7 times the throughput of eager eviction, at hit ratios of 44, 36 and 44 against 48, 45 and 48 % (Table 1)",
        mode: Mode::Virtual,
        measure: cache::appetite,
    },
    Claim {
        id: "N6",
        claim: "Large workloads",
        paper: "reads more than 3 times, 80/20 +12 %, write-heavy about 0 (Fig. 6, Table 2)",
        mode: Mode::Virtual,
        measure: cache::large,
    },
    Claim {
        id: "N6-postgresql",
        claim: "Large workloads, on PostgreSQL",
        paper: "on WiredTiger reads more than 3 times, 80/20 +12 %, write-heavy about 0 (Fig. 6, Table 2)",
        mode: Mode::Wall,
        measure: postgresql::large,
    },
    Claim {
        id: "N7",
        claim: "Against Memory Mode and OpenCAS",
        paper: "OpenCAS gains nothing and writes 100 times as much; at 252 GB NVM Memory Mode is ahead, but -30 % (A); at 64 GB NVCache is, +30 % (B) to \
                +169 % (C), Memory Mode -18 % (A); hits +20 % from 64 to 128 GB, then +5 % (Fig. 7, Table 3)",
        mode: Mode::Virtual,
        measure: others::against,
    },
    Claim {
        id: "N8",
        claim: "Performance per dollar",
        paper: "costs 1, .90, .79, .69, .59 at 0, 16, 32, 48, 64 of 96 GB in NVM; who mostly reads gains, A loses, C at 64 GB is faster than with DRAM alone \
                (Fig. 8, Table 4)",
        mode: Mode::Virtual,
        measure: price::per_dollar,
    },
    Claim {
        id: "N9",
        claim: "OBP targets from 5 to 30 %",
        paper: "all acceptable (section 3.2.3)",
        mode: Mode::Virtual,
        measure: cache::targets,
    },
    Claim {
        id: "N10",
        claim: "OBP beats no-write-allocate",
        paper: "sign (section 3.2.3)",
        mode: Mode::Virtual,
        measure: cache::no_write_allocate,
    },
    Claim {
        id: "N11",
        claim: "Memory mode mixed with NVCache is worse than either",
        paper: "orders of magnitude (section 4.1.3)",
        mode: Mode::Virtual,
        measure: others::mixed,
    },
];
