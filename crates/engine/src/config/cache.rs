//! Settings of the block cache.

use std::sync::Arc;

use terrace_block::Directory;

use super::Builder;
use crate::cache::Cache;

impl Builder {
    /// Keeps blocks of the page file on a faster device ([`Cache`]). Who opens the database to read only goes past it. What is
    /// known of its blocks is part of the budget, about 40 bytes for 4 KiB. Default: none.
    pub fn cache(mut self, cache: Cache) -> Self {
        self.cache = Some(cache);
        self
    }

    /// Where the file of the cache is, instead of a directory of the file system.
    pub fn cache_directory(mut self, directory: Arc<dyn Directory>) -> Self {
        self.cache_directory = Some(directory);
        self
    }
}
