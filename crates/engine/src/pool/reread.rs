//! Rereads failed images from the page file, past the block cache.
//!
//! The cache's device may corrupt a block. Every image has its own checks, so hits are not verified
//! ([`CacheConfig::verify_hits`](terrace_cache::CacheConfig)). An image counts as damaged only if
//! the page file's copy fails too. Cleaner, backups and verification bypass the cache.

use terrace_cache::Cached;

use crate::error::{Error, Result};
use crate::planted::{Bug, planted};

/// Rereads an image that `cache` served; whether `holds` now accepts it. The cache then drops and
/// reports its copy.
///
/// # Errors
/// Those of the page file, or of the cache if it has the only copy.
pub(crate) fn reread(
    cache: Option<&Cached>,
    file: &str,
    offset: u64,
    image: &mut [u8],
    holds: impl FnOnce(&[u8]) -> bool,
) -> Result<bool> {
    match cache.filter(|_| !planted(Bug::BelieveCache)) {
        Some(cache) => cache
            .read_again(offset, image, holds)
            .map_err(|source| Error::io("read", file, Some(offset), source)),
        None => Ok(false),
    }
}
