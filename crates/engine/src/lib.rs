//! Terrace: an embedded, transactional, ordered key-value engine for data larger than memory.

mod buffer;
#[cfg(test)]
mod crash;
mod error;
mod ids;
mod index;
pub mod planted;
mod store;
mod txn;
mod wal;

pub use error::{Error, Result};
pub use ids::{Lsn, PageId, TableId, Timestamp};

/// The longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 1024;
/// The longest value, in bytes.
pub const MAX_VALUE_BYTES: usize = 1 << 30;
