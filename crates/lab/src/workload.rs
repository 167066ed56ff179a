//! Workloads that measure a store.
//!
//! | module | contents |
//! |---|---|
//! | `ycsb` | mixes of operations, and a thread's endless stream of them |
//! | `driver` | loads a store, runs the threads, measures |
//! | `rate` | schedule of requests at a given rate |

pub mod driver;
pub mod rate;
pub mod ycsb;
