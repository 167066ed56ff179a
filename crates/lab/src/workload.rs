//! Workloads that measure a store.
//!
//! | module | contents |
//! |---|---|
//! | `ycsb` | mixes of operations, and a thread's endless stream of them |
//! | `driver` | loads a store, runs the threads, measures |
//! | `fields` | values made of fields, and how much of one is touched |
//! | `tpcc` | TPC-C: an order-entry business in thirteen tables |
//! | `rate` | schedule of requests at a given rate |

pub mod driver;
pub mod fields;
pub mod rate;
pub mod tpcc;
pub mod ycsb;
