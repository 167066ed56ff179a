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
//! | module   | what is in it                                                              |
//! |----------|----------------------------------------------------------------------------|
//! | `db`     | the public interface: databases, tables, transactions, snapshots, cursors   |
//! | [`pages`] | the public interface for other structures: pages, guards, a column          |
//! | `txn`    | the parts of a commit: locks, clock, old versions, read and write sets      |
//! | `index`  | the B+-tree                                                                 |
//! | `buffer` | the buffer pool: pages in frames, replacement, checkpoint, recovery         |
//! | [`migration`] | policies that say which tier a page goes to                        |
//! | `wal`    | the log                                                                     |
//! | `store`  | images of pages, and the space of the page file                             |
//! | `threads` | lines and numbers of their own for threads                                |

/// The read-me's example, so that it is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ReadMe;

mod backend;
mod buffer;
mod cache;
mod config;
#[cfg(test)]
mod crash;
mod db;
mod error;
#[cfg(doctest)]
mod guide;
mod ids;
mod index;
mod middle;
pub mod pages;
mod planted;
mod replacement;
mod stats;
mod store;
mod threads;
mod txn;
mod wal;

pub use backend::Backend;
pub use buffer::{Mode, RecordCache, migration};
pub use cache::{Cache, CacheKind};
pub use config::{Builder, Durability, MIN_DRAM_BYTES, MIN_LOG_BYTES};
pub use db::Db;
pub use db::backup::{Backup, BackupReport};
pub use db::batch::WriteBatch;
pub use db::compact::Compaction;
pub use db::lookup::Lookup;
pub use db::named::NamedSnapshot;
pub use db::options::{Compression, TableOptions};
pub use db::range::TransactionRange;
#[cfg(feature = "raw-frames")]
pub use db::raw::RawFrames;
pub use db::repair::{RepairReport, RepairedTable};
pub use db::snapshot::{Range, Snapshot};
pub use db::swap::Swap;
pub use db::table::Table;
pub use db::transaction::{Savepoint, Transaction};
pub use error::{Error, Result};
pub use ids::{Lsn, PageId, SizeClass, TableId, Timestamp};
pub use middle::{Middle, MiddleKind};
pub use replacement::Replacement;
pub use stats::{
    Bucket, Bypasses, CacheBypasses, CacheStats, CachedRecords, Damage, DramCacheStats, FrameClass, GivenUp,
    Latency, LineWrites, MemoryMoves, MiddleStats, MiddleWrites, Migrations, Retries, Stalls, Stats, Sweeps,
    TableStats, Tuning, VerifyReport, WriteBacks,
};
pub use terrace_block::CacheTrust;
pub use terrace_block::{
    Directory, FileDirectory, MemoryDirectory, Migrate, NodeSet, Profile, SimulatedDisk, Time, VirtualTime,
};

/// The version of the file format that this build reads and writes; `docs/format.md` says what it promises.
pub const FORMAT_VERSION: u32 = store::superblock::FORMAT_VERSION;
/// The longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 1024;
/// The longest value, in bytes.
pub const MAX_VALUE_BYTES: usize = 1 << 30;
