//! Images that do not hold: is it the page file that is damaged, or a copy of it in the block cache?
//!
//! The cache's device may change a byte of what it keeps. Every image has checks of its own, so the cache does not compare what it
//! serves again ([`CacheConfig::verify_hits`](terrace_block::CacheConfig)), and no image is called damaged before the page
//! file itself was asked, past the cache. Everything that reads images through the cache comes here: faults, batches, reading
//! ahead, and the parts of the page table in recovery. The cleaner, backups and verification read past the cache anyway.

use terrace_block::Cached;

use super::pool::Pool;
use crate::error::{Error, Result};
use crate::ids::PageId;
use crate::planted::{Bug, planted};
use crate::store::page;
use crate::store::place::Mapped;

/// The image at `offset` of `file`, which was read into `image` through `cache` if there is one, does not hold. Reads it from
/// the page file; says whether `holds` says so now. The cache then drops its copy, and counts and tells that.
///
/// # Errors
/// Those of the page file; and of the cache's, if that has the only copy.
pub(super) fn reread(
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

impl Pool {
    /// Holds an image that was read through the cache against everything that vouches for it. A copy that does not hold is replaced
    /// in `image` by that of the page file, if that does.
    pub(super) fn vouch(&self, id: PageId, mapped: Mapped, image: &mut [u8]) -> Result<()> {
        match page::vouch(image, id, mapped) {
            Ok(_) => Ok(()),
            Err(what) => self.vouch_past_cache(id, mapped, image, what),
        }
    }

    #[cold]
    fn vouch_past_cache(&self, id: PageId, mapped: Mapped, image: &mut [u8], what: &str) -> Result<()> {
        let offset = mapped.extent().map_or(0, |extent| extent.offset());
        let holds = |image: &[u8]| page::vouch(image, id, mapped).is_ok();
        match reread(self.cache.as_deref(), self.device.name(), offset, image, holds)? {
            true => Ok(()),
            false => Err(self.damaged(id, mapped, page::vouch(image, id, mapped).err().unwrap_or(what))),
        }
    }
}
