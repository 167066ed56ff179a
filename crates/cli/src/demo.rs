//! The parts of `terrace demo`: real records, an audited workload, and its ledger.
//!
//! | module | contents |
//! |---|---|
//! | `corpus` | records from files of this machine, or generated ones |
//! | `keys` | the keys of the table |
//! | `stamp` | values with a version and a checksum |
//! | `ledger` | announcements of a killed process, and the audit afterwards |
//! | `serve` | the workload of the killed process |
//! | `summary` | results as JSON, text and report |

pub mod corpus;
pub mod keys;
pub mod ledger;
pub mod serve;
pub mod stamp;
pub mod summary;
