//! A randomized model of the durability rules (`docs/durability.md`).
//!
//! A database of four pages and four keys does as the engine does, in steps: commits, splits,
//! checkpoints, demotes, seals, files, cuts. Steps come at random or from a script. Between any two
//! steps the process may be killed or the power cut. Then any subset of what was not synced
//! persists. After recovery, the state must be that after some of the first transactions, and after
//! all that were acknowledged.
//!
//! A [`flags::Flag`] leaves one rule out. The model must lose data then, or the rule is not needed.

pub mod actions;
mod backup;
pub mod cell;
pub mod commits;
pub mod disk;
pub mod flags;
pub mod generator;
mod history;
mod images;
mod log;
mod recovery;
mod redo;
pub mod scripts;
pub mod search;
mod tier;
mod transactions;
pub mod world;
