//! The laboratory of the `terrace` command: `bench` and `reproduce`. Internal: no promise of
//! stability.
//!
//! | module | contents |
//! |---|---|
//! | `args` | flags of both commands |
//! | `bench` | benchmarks and comparisons |
//! | `reproduce`, `claims` | the papers' claims: the command, and a function for each |
//! | `design` | HyMem's designs as presets |
//! | `hierarchy` | workloads over simulated tiers, in virtual time |
//! | `cost` | prices of hierarchies, and hierarchies of equal cost |
//! | `peers` | other engines behind Terrace's interface |
//! | `workload` | YCSB: operations, rates, threads |
//! | `confine`, `bystanders` | memory limits, and CPU use by others |

mod args;
mod bench;
mod bystanders;
mod claims;
mod confine;
mod cost;
mod design;
mod hierarchy;
mod peers;
mod reproduce;
mod workload;

pub use args::{BenchCommand, ReproduceArgs};
pub use bench::run as bench;
pub use reproduce::run as reproduce;
