//! The files of a database.

use std::sync::Arc;

use terrace_cache::Cached;
use terrace_io::BlockDevice;

use super::ring::RingMemory;
use super::superblock::{Slots, Superblock};
use crate::error::Result;

/// The two files a pool lives on.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) pages: Arc<dyn BlockDevice>,
    pub(crate) log: Arc<dyn BlockDevice>,
    pub(crate) cache: Option<Arc<Cached>>,
    /// Persistent memory for the log's ring.
    pub(crate) ring: Option<Arc<RingMemory>>,
    /// Random number of the next life; `None` counts on from the last one.
    pub(crate) life: Option<u64>,
}

impl Files {
    pub(crate) fn new(pages: Arc<dyn BlockDevice>, log: Arc<dyn BlockDevice>) -> Files {
        Files { pages, log, cache: None, ring: None, life: None }
    }

    pub(crate) fn with_cache(self, cache: Arc<Cached>) -> Files {
        Files { pages: Arc::clone(&cache) as Arc<dyn BlockDevice>, cache: Some(cache), ..self }
    }

    pub(crate) fn with_ring(self, ring: Option<Arc<RingMemory>>) -> Files {
        Files { ring, ..self }
    }

    pub(crate) fn with_life(self, life: u64) -> Files {
        Files { life: Some(life), ..self }
    }

    /// The superblocks of the page file and the newest of them.
    pub(crate) fn superblocks(&self) -> Result<(Slots, Superblock)> {
        match &self.cache {
            Some(cache) => Slots::open_below(cache),
            None => Slots::open(self.pages.clone()),
        }
    }
}
