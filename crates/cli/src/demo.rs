//! The parts of `terrace demo`: real records, a workload whose every commit is accounted for, and the account.
//!
//! | module | what it holds |
//! |---|---|
//! | `corpus` | records made of the files on this machine, or generated ones where there are too few |
//! | `stamp` | values that carry their version and prove themselves |
//! | `ledger` | what a process announced before it was killed, and what must be found afterwards |
//! | `serve` | the workload that the killed process runs |
//! | `summary` | what was found, as JSON, text and report |

pub mod corpus;
pub mod ledger;
pub mod serve;
pub mod stamp;
pub mod summary;
