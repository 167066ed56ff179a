//! Why a cache could not be opened. Once it is open, nothing that goes wrong with the fast device is an error: it only
//! makes reads slower, is counted and is told in a warning. Errors of the slow device are passed on as they are.

use std::io;

use crate::policy::UnknownPolicy;

/// Why a cache could not be opened, or closed.
///
/// ```
/// use terrace_block::{CacheConfig, CacheError};
///
/// let error = CacheConfig::new(1000).block_bytes(1000).check().unwrap_err();
/// assert!(matches!(error, CacheError::Config(_)));
/// assert!(error.to_string().contains("power of two"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// A setting is outside of its range, or does not fit the devices.
    #[error("the cache cannot be set up so: {0}")]
    Config(String),
    /// No policy has that name.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// The fast device holds something that is not a cache.
    #[error("{device} holds something that is not a cache; it is left as it is")]
    Foreign {
        /// Its name.
        device: String,
    },
    /// The fast device holds a cache of another version of the format.
    #[error("{device} holds a cache of version {version} of the format, which this version cannot read")]
    OtherVersion {
        /// Its name.
        device: String,
        /// The version found.
        version: u32,
    },
    /// Another cache, in this process or another, has the file.
    #[error("{file} is in use{}", .owner_process.map(|process| format!(" by process {process}")).unwrap_or_default())]
    Busy {
        /// Its name.
        file: String,
        /// The process, if it has named itself.
        owner_process: Option<u32>,
    },
    /// The cache's file could not be locked, made or set aside.
    #[error("the cache's file {file}: {source}")]
    Directory {
        /// Its directory and name.
        file: String,
        /// What was reported.
        source: io::Error,
    },
    /// Blocks of the slow device are in the cache only, which was to write them back, and the cache cannot be used. Nothing is
    /// served, because what is on the slow device is older than what was synced. The cache's file has to be brought back, or, if it is
    /// lost, the guard removed: then the slow device is used as it was at an earlier sync.
    #[error("the slow device {device} is not complete without its cache: {reason}")]
    Incomplete {
        /// Its name.
        device: String,
        /// Why the cache cannot be used.
        reason: String,
    },
    /// The slow device reported an error.
    #[error("the slow device {device}: {source}")]
    Slow {
        /// Its name.
        device: String,
        /// What it reported.
        source: io::Error,
    },
}
