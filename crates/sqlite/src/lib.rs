//! A SQLite VFS with a block cache for database files on slow disks.
//!
//! The VFS `terrace` wraps the system's VFS, which keeps the locks, shared memory, journals and
//! logs. All journal modes work, and other programs may use the same database at the same time,
//! with this VFS or without. The database file alone is always complete, so the cache may be
//! deleted at any time.
//!
//! ```text
//! sqlite3 :memory: '.load ./libterrace_sqlite' '.open file:x.db?vfs=terrace&block_cache=/fast/x' 'select count(*) from t'
//! ```
//!
//! A Rust program that links SQLite calls [`register`] once instead:
//!
//! ```
//! use rusqlite::Connection;
//!
//! terrace_sqlite::register(false)?;
//! let place = tempfile::tempdir()?;
//! let path = place.path().display();
//! let db = Connection::open(format!(
//!     "file:{path}/x.db?vfs=terrace&block_cache={path}/cache&block_cache_size=16MiB"
//! ))?;
//! db.execute_batch("create table t(a); insert into t values (1), (2)")?;
//! assert_eq!(db.query_row("select sum(a) from t", [], |row| row.get::<_, i64>(0))?, 3);
//! let stats: String = db.query_row("pragma terrace_stats", [], |row| row.get(0))?;
//! assert!(stats.contains("hit_ratio"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `docs/sqlite.md` lists the URI parameters. A read goes down these files:
//!
//! | file | what it does |
//! |---|---|
//! | `vfs.rs`, `options.rs` | opens a file, with the parameters of its URI |
//! | `file.rs` | is called by SQLite, and turns errors into its codes |
//! | `connection.rs` | knows the locks, and asks the cache under them |
//! | `database.rs` | has the rule that keeps the cache fresh |
//! | `header.rs`, `fingerprint.rs`, `origin.rs` | compare cache and database file |
//! | `in_use.rs`, `storage.rs` | hold the open cache and its directory |
//! | `slow.rs`, `below.rs` | read the database file through the system's VFS |
//!
//! `log_file.rs` and `log.rs` keep the write-ahead log's pages. `relations.rs`, `btree.rs`,
//! `statements.rs` and `queries.rs` name tables and statements to policies. `gates.rs` simulates
//! slow disks, `recorder.rs` writes traces, and `stats.rs` is the pragma.
#![deny(unsafe_code)]

// Lets `tests/common`, which unit tests share, name the crate.
#[cfg(test)]
extern crate self as terrace_sqlite;

mod api;
mod below;
mod btree;
mod code;
mod connection;
mod database;
mod extension;
mod file;
mod fingerprint;
mod gates;
mod header;
mod in_use;
mod log;
mod log_file;
mod options;
mod origin;
#[cfg(test)]
mod others_tests;
mod planted;
mod queries;
mod recorder;
mod registration;
mod relations;
mod slow;
mod statements;
mod stats;
mod storage;
#[cfg(feature = "tpch")]
pub mod tpch;
mod vfs;

pub use registration::{NAME, RegisterError};

/// Registers the VFS with the linked SQLite, as the default if `make_default`.
///
/// Does nothing if a VFS of that name is registered.
///
/// # Errors
/// [`RegisterError`] if SQLite refuses the VFS.
pub fn register(make_default: bool) -> Result<(), RegisterError> {
    vfs::register(api::Api::linked(), make_default)
}
