//! The `terrace` command.
//!
//! | module | what it does |
//! |---|---|
//! | `args`, `config`, `units` | the command line and `--config` files, turned into plain numbers |
//! | `store` | the seam to an engine: a table as an ordered map |
//! | `workload` | load to measure with: YCSB and its parts |
//! | `progress`, `escape`, `failure` | bars, printable text, exit codes |
#![allow(dead_code)]

mod args;
mod config;
mod demo;
mod devices;
mod escape;
mod failure;
mod progress;
mod report;
mod rows;
mod store;
mod units;
mod workload;

fn main() {}
