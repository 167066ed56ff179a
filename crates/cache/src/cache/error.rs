//! Errors of opening and closing.
//!
//! Afterwards, failures of the fast device only make reads slower; they are counted and logged.
//! Errors of the slow device are passed on.

use std::io;

use crate::policy::UnknownPolicy;

/// Why a cache could not be opened or closed.
///
/// ```
/// use terrace_cache::{CacheConfig, CacheError};
///
/// let error = CacheConfig::new(1000).block_bytes(1000).check().unwrap_err();
/// assert!(matches!(error, CacheError::Config(_)));
/// assert!(error.to_string().contains("power of two"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// A setting is out of range or does not fit the devices.
    #[error("the cache cannot be set up so: {0}")]
    Config(String),
    /// No policy has that name.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// The fast device holds something that is not a cache.
    #[error("{device} holds something that is not a cache; it is left as it is: remove it or name another")]
    Foreign {
        /// Name of the device.
        device: String,
    },
    /// The fast device holds a cache of another format version.
    #[error("{device} holds a cache of version {version} of the format, which this version cannot read")]
    OtherVersion {
        /// Name of the device.
        device: String,
        /// The version found.
        version: u32,
    },
    /// Another cache, in this process or another, has the file.
    #[error("{file} is in use{}", .owner_process.map(|process| format!(" by process {process}")).unwrap_or_default())]
    Busy {
        /// Name of the file.
        file: String,
        /// The process, if known.
        owner_process: Option<u32>,
    },
    /// The cache's file could not be locked, made or set aside.
    #[error("the cache's file {file}: {source}")]
    Directory {
        /// Directory and name.
        file: String,
        /// The reported error.
        source: io::Error,
    },
    /// Dirty blocks are only in the cache, which is unusable.
    ///
    /// Nothing is served, because the slow device is older than its last sync. Bring the cache's
    /// file back. If it is lost, remove the guard: the slow device then has the state of an earlier
    /// sync.
    #[error("the slow device {device} is not complete without its cache: {reason}")]
    Incomplete {
        /// Name of the device.
        device: String,
        /// Why the cache is unusable.
        reason: String,
    },
    /// The slow device reported an error.
    #[error("the slow device {device}: {source}")]
    Slow {
        /// Name of the device.
        device: String,
        /// The reported error.
        source: io::Error,
    },
}
