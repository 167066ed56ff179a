//! C: three-tier buffer management with CXL memory (HardBD & Active 2024), sections IV and V.
//!
//! Sizes are scaled to 8 MiB per GiB. So 2 GiB of local memory, 4 GiB of CXL memory and 1 to 8 GiB
//! of data become 16, 32 and 8 to 64 MiB, in 4 KiB pages. The paper's prototype is the profile
//! `cxl-prototype`, its disk `nvme-flash`. Its workloads are `cxl-update`, `cxl-read` and
//! `cxl-scan`. They run over tuples of a table; the paper has bare pages without an index.
//!
//! | file           | claims                                        |
//! |----------------|-----------------------------------------------|
//! | `threads.rs`   | C1: local and CXL memory by number of threads |
//! | `policies.rs`  | C2: policies by data size                     |
//! | `memory.rs`    | C3: latency and bandwidth of CXL memory        |
//! | `moves.rs`     | C4: ways to move pages                        |

mod memory;
mod moves;
mod policies;
mod threads;

use super::claim::{Claim, Mode};

/// The claims.
pub const CLAIMS: &[Claim] = &[
    Claim {
        id: "C1",
        claim: "Scalability",
        paper: "equal above 10 threads, scans up to 2 times slower at few (Fig. 3)",
        mode: Mode::Wall,
        measure: threads::measure,
    },
    Claim {
        id: "C2",
        claim: "Migration policy",
        paper: "three tiers with lazy migration best in most; eager falls earlier (Fig. 4)",
        mode: Mode::Virtual,
        measure: policies::measure,
    },
    Claim {
        id: "C3",
        claim: "Devices",
        paper: "local 125.5 ns and 224.3 GB/s, CXL 557 ns and 9.4 GB/s (section IV)",
        mode: Mode::Virtual,
        measure: memory::measure,
    },
    Claim {
        id: "C4",
        claim: "Faster migration",
        paper: "mbind with MPOL_MF_MOVE about 2 times move_pages (section V)",
        mode: Mode::Wall,
        measure: moves::measure,
    },
];
