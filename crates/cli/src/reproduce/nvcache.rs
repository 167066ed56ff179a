//! N: NVCache, "Writes Hurt: Lessons in Cache Design for Optane NVRAM" (FAST 2022). What it held against
//! others' caches needs models of those, or its machine.

mod cache;
mod device;

use super::{Claim, Mode, Run, not_here};

/// Why N7, N8 and N11 are not measured.
const WHY: &str = "not measured: there is no Optane memory here to run Memory Mode and OpenCAS on, and no model of either under a database";

/// The claims.
pub const CLAIMS: &[Claim] = &[
    Claim {
        id: "N1",
        claim: "Optane writes do not scale",
        paper: "throughput falls as threads are added (Fig. 1)",
        mode: Mode::Virtual,
        run: Run::Here(device::writes),
    },
    Claim {
        id: "N2",
        claim: "Writes hurt reads",
        paper: "8 readers: 12 to 3.4 GB/s with 1 writer, .8 GB/s with 8 (Fig. 2)",
        mode: Mode::Virtual,
        run: Run::Here(device::reads),
    },
    Claim {
        id: "N3",
        claim: "The penalty of admitting everything, small data",
        paper: "up to -91 %; small-bypass and OBP about 0 % (Fig. 4)",
        mode: Mode::Virtual,
        run: Run::Here(cache::small),
    },
    Claim {
        id: "N4",
        claim: "Dead admissions",
        paper: "share of admitted blocks freed as outdated (Fig. 5)",
        mode: Mode::Virtual,
        run: Run::Here(cache::dead),
    },
    Claim {
        id: "N5",
        claim: "Appetite for eviction",
        paper: "without eviction 2.6, 1.4 and 2.7 times the throughput of eager eviction, at hit ratios of 44, 36 and 44 against 48, 45 and 48 % (Table 1)",
        mode: Mode::Virtual,
        run: Run::Here(cache::appetite),
    },
    Claim {
        id: "N6",
        claim: "Large workloads",
        paper: "reads more than 3 times, 80/20 +12 %, write-heavy about 0 (Fig. 6, Table 2)",
        mode: Mode::Virtual,
        run: Run::Here(cache::large),
    },
    not_here(
        "N7",
        Mode::Virtual,
        "Against Memory Mode and OpenCAS",
        "at 64 GB NVM +30 % (B) to +169 % (C) over Memory Mode (Fig. 7, Table 3)",
        WHY,
    ),
    not_here(
        "N8",
        Mode::Virtual,
        "Performance per dollar",
        "costs 1, .90, .79, .69, .59 at 0, 16, 32, 48, 64 of 96 GB in NVM (Fig. 8, Table 4)",
        WHY,
    ),
    Claim {
        id: "N9",
        claim: "OBP targets from 5 to 30 %",
        paper: "all acceptable (section 3.2.3)",
        mode: Mode::Virtual,
        run: Run::Here(cache::targets),
    },
    Claim {
        id: "N10",
        claim: "OBP beats no-write-allocate",
        paper: "sign (section 3.2.3)",
        mode: Mode::Virtual,
        run: Run::Here(cache::no_write_allocate),
    },
    not_here(
        "N11",
        Mode::Virtual,
        "Memory Mode mixed with NVCache is worse than either",
        "sign (section 4.1.3)",
        WHY,
    ),
];
