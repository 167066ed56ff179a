//! Engines to compare with, behind the same traits as Terrace.
//!
//! | module | engine |
//! |---|---|
//! | `redb`, `lmdb`, `sqlite` | B-trees: copy-on-write file, copy-on-write mapping, pages and a log |
//! | `fjall`, `rocksdb` | LSM trees; RocksDB only with the feature of that name |
//! | `btreemap` | the standard library's map behind a lock, as a baseline without storage |
//! | `raw_frames` | Terrace reading a copy without a page table; only with that feature |
//! | `folder` | database directories, and kernel statistics for them |
//! | `overlay` | transactions for engines without suitable ones |
//! | `business` | LMDB and SQLite under TPC-C |
//!
//! All engines follow the same rules. An operation is one transaction, and a read sees the newest
//! commit. Memory, caches and write buffers together are the budget. Durability maps to the same
//! class: `sync` survives a power cut, `buffered` may lose the last commits. Everything else
//! follows the engine's documentation for this use, never anything worse. Every changed setting is
//! reported with the result ([`terrace_common::store::Database::settings`]). Values are
//! incompressible, so compression has no effect.

mod btreemap;
pub mod business;
mod fjall;
mod folder;
mod lmdb;
mod overlay;
#[cfg(feature = "raw-frames")]
mod raw_frames;
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod sqlite;

use terrace_common::store::Opener;
use terrace_common::tiers::{MemoryArgs, TierArgs};

pub use folder::{BUDGET_DEFAULT, memory_files};

/// Name of this workspace's engine.
pub const TERRACE: &str = "terrace";

/// Names for `--engine` and `--compare` in this build.
pub const NAMES: &[&str] = &[
    TERRACE,
    "redb",
    "fjall",
    "lmdb",
    "sqlite",
    "btreemap",
    #[cfg(feature = "rocksdb")]
    "rocksdb",
    #[cfg(feature = "raw-frames")]
    "raw-frames",
];

/// Validates an engine name.
pub fn parse(name: &str) -> Result<String, String> {
    let known = NAMES.join(" ");
    match name {
        "rocksdb" | "raw-frames" if !NAMES.contains(&name) => {
            Err(format!("this build has no {name}; build with --features {name}, or use one of {known}"))
        }
        name if NAMES.contains(&name) => Ok(name.to_owned()),
        name => Err(format!("unknown engine {name:?}; use one of {known}")),
    }
}

/// The opener of a peer; `None` for Terrace and for names that [`parse`] rejects.
pub fn opener(name: &str) -> Option<Box<dyn Opener>> {
    Some(match name {
        "redb" => Box::new(redb::Engine),
        "fjall" => Box::new(fjall::Engine),
        "lmdb" => Box::new(lmdb::Engine),
        "sqlite" => Box::new(sqlite::Engine),
        "btreemap" => Box::new(btreemap::Engine),
        #[cfg(feature = "rocksdb")]
        "rocksdb" => Box::new(rocksdb::Engine),
        #[cfg(feature = "raw-frames")]
        "raw-frames" => Box::new(raw_frames::Engine),
        _ => return None,
    })
}

/// The part of `tiers` that an engine uses: all, or what every engine has.
pub fn tiers(name: &str, tiers: &TierArgs) -> TierArgs {
    match name {
        TERRACE | "raw-frames" => tiers.clone(),
        _ => TierArgs {
            memory: MemoryArgs { dram: tiers.memory.dram, ..MemoryArgs::default() },
            commits: tiers.commits.clone(),
            seed: tiers.seed,
            ..TierArgs::default()
        },
    }
}

#[cfg(test)]
mod tests;
