//! N: NVCache, "Writes Hurt: Lessons in Cache Design for Optane NVRAM" (FAST 2022). None of its claims is measured yet.

use super::{Claim, Mode, not_here};

/// Why none is.
const WHY: &str = "not measured yet: there is no block cache on a device, only its policies";

/// The claims.
pub const CLAIMS: &[Claim] = &[
    not_here(
        "N1",
        Mode::Virtual,
        "Optane writes do not scale",
        "throughput falls as threads are added (Fig. 1)",
        WHY,
    ),
    not_here(
        "N2",
        Mode::Virtual,
        "Writes hurt reads",
        "8 readers: 12 to 3.4 GB/s with 1 writer, .8 GB/s with 8 (Fig. 2)",
        WHY,
    ),
    not_here(
        "N3",
        Mode::Virtual,
        "The penalty of admitting everything, small data",
        "up to -91 %; small-bypass and OBP about 0 % (Fig. 4)",
        WHY,
    ),
    not_here(
        "N4",
        Mode::Virtual,
        "Dead admissions",
        "share of admitted blocks freed as outdated (Fig. 5)",
        WHY,
    ),
    not_here(
        "N5",
        Mode::Virtual,
        "Appetite for eviction",
        "eager against none: 2.6, 1.4 and 2.7 times fewer admissions at about the same hit ratio (Table 1)",
        WHY,
    ),
    not_here(
        "N6",
        Mode::Virtual,
        "Large workloads",
        "reads more than 3 times, 80/20 +12 %, write-heavy about 0 (Fig. 6, Table 2)",
        WHY,
    ),
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
    not_here("N9", Mode::Virtual, "OBP targets from 5 to 30 %", "all acceptable (section 3.2.3)", WHY),
    not_here("N10", Mode::Virtual, "OBP beats no-write-allocate", "sign (section 3.2.3)", WHY),
    not_here(
        "N11",
        Mode::Virtual,
        "Memory Mode mixed with NVCache is worse than either",
        "sign (section 4.1.3)",
        WHY,
    ),
];
