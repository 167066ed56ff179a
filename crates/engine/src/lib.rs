//! Terrace: an embedded, transactional, ordered key-value engine for data larger than memory.
//!
//! ```
//! use terrace::Db;
//!
//! let place = tempfile::tempdir().unwrap();
//! let db = Db::builder().dram(8 << 20).open(place.path().join("db"))?;
//! let cities = db.open_or_create_table("cities")?;
//! cities.put("Lima", "10 million")?;
//! db.update(|transaction| {
//!     let lima = transaction.get(&cities, "Lima")?.unwrap_or_default();
//!     transaction.put(&cities, "Callao", lima)
//! })?;
//! for entry in cities.range("C"..) {
//!     let (city, people) = entry?;
//!     println!("{}: {}", String::from_utf8_lossy(&city), String::from_utf8_lossy(&people));
//! }
//! db.close()?;
//! # Ok::<(), terrace::Error>(())
//! ```
//!
//! | module             | contents                                                   |
//! |--------------------|------------------------------------------------------------|
//! | `db`               | public handles: databases, tables, transactions, snapshots |
//! | [`pages`]          | pages, guards and a column for other data structures       |
//! | `txn`              | commit: locks, clock, old versions, garbage                |
//! | `index`            | the B+-tree                                                |
//! | `recovery`         | analysis, redo, undo, and salvage of damaged files         |
//! | `backup`           | online backup, and its restore                             |
//! | `maintenance`      | write-back, checkpoint, cleaner, compaction                |
//! | `pool`             | the buffer pool: frames, latches, eviction, tiers          |
//! | [`migration`]      | policies that choose the tier of a page                    |
//! | `wal`              | the log                                                    |
//! | `store`            | page images and the space of the page file                 |
//! | `cache`            | the block cache under the page file                        |
//! | `config`           | settings, and the split of the memory budget               |
//! | `stats`            | statistics                                                 |
//! | `threads`          | thread numbers and padded counters                         |
//! | `crash`, `planted` | crash tests, and the planted bugs that they catch          |

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ReadMe;

/// Compiles the example of the package's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct PackageReadMe;

mod backend;
mod backup;
mod cache;
mod compression;
mod concurrency;
mod config;
#[cfg(test)]
mod crash;
mod db;
mod error;
#[cfg(doctest)]
mod guide;
mod ids;
mod index;
mod log_memory;
mod maintenance;
mod middle;
mod page_table;
pub mod pages;
mod planted;
mod pool;
#[cfg(all(test, loom))]
mod reached;
mod recovery;
mod replacement;
mod stats;
mod store;
mod threads;
mod txn;
mod wal;

pub use backend::Backend;
pub use cache::{Cache, CacheKind};
pub use compression::Compression;
pub use concurrency::Concurrency;
pub use config::{Builder, MIN_DRAM_BYTES, MIN_LOG_BYTES};
pub use db::Db;
pub use db::backup::{Backup, BackupReport};
pub use db::batch::WriteBatch;
pub use db::compact::Compaction;
pub use db::lookup::Lookup;
pub use db::options::TableOptions;
pub use db::range::TransactionRange;
#[cfg(feature = "raw-frames")]
pub use db::raw::RawFrames;
pub use db::repair::report::{RepairReport, RepairedTable};
pub use db::snapshot::{Range, Snapshot};
pub use db::swap::Swap;
pub use db::table::Table;
pub use db::transaction::{Savepoint, Transaction};
pub use db::typed::keys::{AsKey, Key, KeyPrefix, Misfit};
#[cfg(feature = "serde")]
pub use db::typed::values::Postcard;
pub use db::typed::values::{AsValue, Value};
pub use db::typed::views::{TypedSnapshot, TypedTransaction};
pub use db::typed::{TypedRange, TypedTable};
pub use error::{Error, Result};
pub use ids::{Lsn, MAX_KEY_BYTES, MAX_VALUE_BYTES, PageId, SizeClass, TableId, Timestamp};
pub use log_memory::{LogMemory, LogMemoryKind};
pub use middle::{Middle, MiddleKind};
pub use page_table::PageTableKind;
pub use pool::{Mode, RecordCache, migration};
pub use replacement::Replacement;
pub use stats::{
    Bucket, Bypasses, CacheBypasses, CacheStats, CachedRecords, Damage, DramCacheStats, FrameClass, GivenUp,
    Latency, LineWrites, MemoryMoves, MiddleClass, MiddleStats, MiddleWrites, Migrations, PersistentStats,
    Retries, Stalls, Stats, Sweeps, TableStats, Tuning, VerifyReport, WriteBacks,
};
pub use terrace_cache::CacheTrust;
pub use terrace_io::{
    Directory, FileDirectory, MemoryDirectory, Migrate, NodeSet, Profile, SimulatedDisk, Time, VirtualTime,
};
pub use txn::durability::Durability;
pub use txn::named::NamedSnapshot;

/// File format version of this build; see `docs/format.md`.
pub const FORMAT_VERSION: u32 = store::superblock::FORMAT_VERSION;
