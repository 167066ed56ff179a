//! C: three-tier buffer management with CXL memory (HardBD & Active 2024). None of its claims is measured yet.

use super::{Claim, Mode, not_here};

/// Why none is.
const WHY: &str = "not measured yet: the middle tier it is about is being built";

/// The claims.
pub const CLAIMS: &[Claim] = &[
    not_here(
        "C1",
        Mode::Wall,
        "Scalability",
        "equal above 10 threads, scans up to 2 times slower at few (Fig. 3)",
        WHY,
    ),
    not_here(
        "C2",
        Mode::Virtual,
        "Migration policy",
        "three tiers with lazy migration best in most; eager falls earlier (Fig. 4)",
        WHY,
    ),
    not_here(
        "C3",
        Mode::Virtual,
        "Devices",
        "local 125.5 ns and 224.3 GB/s, CXL 557 ns and 9.4 GB/s (section IV)",
        WHY,
    ),
    not_here(
        "C4",
        Mode::Wall,
        "Faster migration",
        "mbind with MPOL_MF_MOVE about 2 times move_pages (section V)",
        WHY,
    ),
];
