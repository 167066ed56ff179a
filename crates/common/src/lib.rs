//! Code shared by the `terrace` command and its lab. Internal: no promise of stability.
//!
//! | module | contents |
//! |---|---|
//! | `escape`, `failure` | printable text, errors with exit codes |
//! | `units`, `output`, `progress`, `report` | sizes, standard output, progress bars, HTML reports |
//! | `store`, `engine` | an engine as an ordered map; Terrace behind that interface |
//! | `tiers` | tier flags and output flags |
//! | `interrupt` | orderly end of long work after a signal |
//! | `memory` | memory of a process, from the kernel |
//! | `latency`, `values`, `zipf` | workload parts: histograms, verifiable values, skewed ranks |

pub mod engine;
pub mod escape;
pub mod failure;
pub mod interrupt;
pub mod latency;
pub mod memory;
pub mod output;
pub mod progress;
pub mod report;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tiers;
pub mod units;
pub mod values;
pub mod zipf;
