//! Addresses of the cache: whose they are, and which nobody uses any more.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_cache::policy::Relation;
use terrace_cache::{Cached, RelationStats};

use crate::relations::{Part, RelationTable};

/// Blocks that are freed at a time, since other accesses wait meanwhile.
const FREE_BLOCKS: u64 = 4096;

/// The addresses of all files.
#[derive(Debug)]
pub(crate) struct Space {
    pub relations: RelationTable,
    block_bytes: u64,
    /// Unused addresses in which there may be blocks.
    unused: Mutex<Vec<(u64, u64)>>,
}

impl Space {
    pub fn new(block_bytes: u64, unused: Vec<(u64, u64)>) -> Space {
        Space { relations: RelationTable::new(block_bytes), block_bytes, unused: Mutex::new(unused) }
    }

    /// Counts the file `path` of `length` bytes to its relation, and tells the cache how long that
    /// is.
    pub fn take_part(&self, cached: &Cached, path: &Path, length: u64) -> Part {
        let (part, blocks) = self.relations.take(path, length, || cached.relation_stats());
        if let Some(blocks) = blocks {
            cached.relation_size(part.relation, blocks);
        }
        part
    }

    /// The relation of `path`, if it has a number.
    pub fn relation_of(&self, path: &Path) -> Option<Relation> {
        self.relations.number_of(path)
    }

    /// The file has no more cached blocks, or is of another relation.
    pub fn let_go(&self, part: Part) {
        self.relations.let_go(part.relation);
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
        }
    }

    /// The events of each relation, with its name.
    pub fn relation_stats(&self, cached: &Cached) -> Vec<(Arc<str>, RelationStats)> {
        self.relations.by_name(cached.relation_stats())
    }
}
