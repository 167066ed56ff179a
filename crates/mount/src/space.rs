//! Addresses of the cache: whose they are, and which nobody uses any more.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_cache::{Cached, RelationStats};

use crate::extents::Extents;
use crate::relations::RelationTable;

/// Blocks that are freed at a time, since other accesses wait meanwhile.
const FREE_BLOCKS: u64 = 4096;

/// The addresses of all files.
#[derive(Debug)]
pub(crate) struct Space {
    relations: Arc<RelationTable>,
    block_bytes: u64,
    /// Unused addresses in which there may be blocks.
    unused: Mutex<Vec<(u64, u64)>>,
}

impl Space {
    pub fn new(relations: Arc<RelationTable>, block_bytes: u64, unused: Vec<(u64, u64)>) -> Space {
        Space { relations, block_bytes, unused: Mutex::new(unused) }
    }

    /// Notes that these extents are of the file `path`, and tells the cache how long its relation
    /// is.
    pub fn assign(&self, cached: &Cached, path: &Path, extents: &Extents, length: u64) {
        if let Some((relation, blocks)) = self.relations.put(path, extents, length) {
            cached.relation_size(relation, blocks);
        }
    }

    /// Nobody uses these ranges any more, and nobody will.
    pub fn give_back(&self, ranges: impl IntoIterator<Item = (u64, u64)>) {
        self.unused.lock().extend(ranges);
    }

    /// Frees the blocks of unused addresses.
    pub fn free_unused(&self, cached: &Cached) {
        loop {
            let Some((address, bytes)) = self.unused.lock().pop() else { return };
            let step = FREE_BLOCKS * self.block_bytes;
            let slots = cached.stats().capacity_blocks();
            if bytes / self.block_bytes > slots {
                cached.free(address, bytes);
            } else {
                let mut done = 0;
                while done < bytes {
                    cached.free(address + done, step.min(bytes - done));
                    done += step;
                }
            }
            self.relations.remove(address);
        }
    }

    /// The events of each relation, with its name.
    pub fn relation_stats(&self, cached: &Cached) -> Vec<(Arc<str>, RelationStats)> {
        let known = cached.relation_stats().into_iter();
        known.filter_map(|stats| Some((self.relations.name(stats.relation?)?, stats))).collect()
    }
}
