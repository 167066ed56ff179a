//! Load that is put on a store to measure it: which keys, which operations, and whether the answers were right.
//!
//! | module | what it holds |
//! |---|---|
//! | `zipf` | how often which rank is asked for |
//! | `values` | keys, and values that can be checked against key and version |
//! | `ycsb` | the mixes of operations, and one thread's endless stream of them |
//! | `driver` | loads a store, runs the threads, measures |
//! | `rate` | when requests are due at a given rate, whatever becomes of them |
//! | `latency` | histograms of how long operations took |

pub mod driver;
pub mod latency;
pub mod rate;
pub mod values;
pub mod ycsb;
pub mod zipf;
