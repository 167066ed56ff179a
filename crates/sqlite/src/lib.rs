//! A VFS for SQLite that keeps a block cache of a database file on a faster device.
//!
//! The database may lie on a network disk or a hard disk; the cache is a directory on a local disk. The VFS `terrace` stands on
//! the system's: locks, shared memory, journals and logs are the system's own, in all journal modes, and other programs may use the
//! same database at the same time, with this VFS or without. The database file alone is always complete, and the cache may be
//! thrown away at any time.
//!
//! ```text
//! sqlite3 :memory: '.load ./libterrace_sqlite' '.open file:x.db?vfs=terrace&block_cache=/fast/x' 'select count(*) from t'
//! ```
//!
//! A program in Rust that is linked with SQLite calls [`register`] once instead:
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
//! The parameters of the URI are listed in `options.rs` and in `docs/sqlite.md`.
//!
//! | file             | what is in it                                                                               |
//! |------------------|---------------------------------------------------------------------------------------------|
//! | `database.rs`    | a database file as all connections share it: when the cache may be read, and when it is emptied |
//! | `connection.rs`  | a database file as one connection has it: its locks, its reads and writes                   |
//! | `storage.rs`     | the cache's directory; `origin.rs` what it was made from, `fingerprint.rs` and `header.rs` how that is recognised |
//! | `slow.rs`        | the file as the slow device below the cache                                                 |
//! | `log.rs`         | pages of the write-ahead log, in memory; `log_file.rs` the log as one connection has it     |
//! | `relations.rs`   | which table a page belongs to; `btree.rs` reads pages                                       |
//! | `recorder.rs`    | traces for `terrace simulate`                                                               |
//! | `options.rs`     | parameters of the URI; `gates.rs` the slow disks that they may ask for                     |
//! | `stats.rs`       | what `PRAGMA terrace_stats` says of a cache                                                 |
//! | `queries.rs`     | the statements that run, and what tables and indexes they use                               |
//! | `tpch.rs`        | a workload, with the feature of that name                                                    |
//! | `vfs.rs`, `file.rs`, `below.rs`, `api.rs`, `extension.rs`, `statements.rs` | what SQLite calls and what is called of it: all unsafe code |
#![deny(unsafe_code)]

// What tests of several programs share names the crate as they do.
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
mod log;
mod log_file;
mod options;
mod origin;
#[cfg(test)]
mod others_tests;
mod planted;
mod queries;
mod recorder;
mod relations;
mod slow;
mod statements;
mod stats;
mod storage;
#[cfg(feature = "tpch")]
pub mod tpch;
mod vfs;

use code::Code;

/// The name of the VFS.
pub const NAME: &str = "terrace";

/// Why the VFS could not be registered.
///
/// ```
/// assert!(terrace_sqlite::RegisterError::Version.to_string().contains("3.31"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// SQLite is too old.
    #[error("this SQLite is older than 3.31")]
    Version,
    /// SQLite has no VFS to stand on.
    #[error("this SQLite has no VFS of its own")]
    NoSystem,
    /// SQLite said no, with this result code.
    #[error("SQLite refused the VFS with code {0}")]
    Refused(i32),
}

impl RegisterError {
    fn code(&self) -> Code {
        match self {
            RegisterError::Version => Code(libsqlite3_sys::SQLITE_MISUSE),
            RegisterError::NoSystem => Code(libsqlite3_sys::SQLITE_ERROR),
            RegisterError::Refused(code) => Code(*code),
        }
    }
}

/// Registers the VFS with the SQLite that this program is linked with, as the default one if `make_default`. If one of its
/// name is registered already, nothing happens.
///
/// # Errors
/// [`RegisterError`], when SQLite does not take it.
pub fn register(make_default: bool) -> Result<(), RegisterError> {
    vfs::register(api::Api::linked(), make_default)
}
