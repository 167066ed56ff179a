//! An open cache and the file behind it, as connections and statistics use it.

use std::sync::Arc;

use terrace_cache::Cached;
use terrace_io::BlockDevice;

use crate::slow::SlowFile;

/// A cache that is open.
#[derive(Clone)]
pub(crate) struct InUse {
    pub cached: Arc<Cached>,
    pub slow: Arc<SlowFile>,
    pub page_bytes: usize,
}

impl InUse {
    /// Whether the cache is out of service for good.
    pub fn is_given_up(&self) -> bool {
        self.cached.stats().out_of_service.is_some()
    }

    /// Whether the known length of the file includes this page.
    pub fn holds(&self, offset: i64) -> bool {
        u64::try_from(offset).is_ok_and(|start| start + self.page_bytes as u64 <= self.slow.len())
    }
}
