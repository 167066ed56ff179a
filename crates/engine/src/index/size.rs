//! How many pages a tree has, without reading its leaves.

use super::node::Node;
use super::tree::{Tree, copy, retry};
use crate::buffer::{Pool, Stop};
use crate::error::Result;
use crate::ids::PageId;

impl Tree {
    /// Pages of the tree, those of long values left out. Others may change it meanwhile: what splits and merges while it
    /// is counted may be missed or counted twice.
    pub(crate) fn count_pages(&self, pool: &Pool) -> Result<u64> {
        retry(self.root, || count(pool, self.root, None))
    }
}

/// Pages from the node `id` down, which is at `level` where that is known.
fn count(pool: &Pool, id: PageId, level: Option<u8>) -> Result<u64, Stop> {
    let guard = match pool.read(id) {
        // Freed since its parent was read. A reference that stays dangling ends the attempts with an error.
        Err(Stop::Missing(_)) if level.is_some() => return Err(Stop::Restart),
        other => other?,
    };
    let page = copy(&guard)?;
    let node = Node::new(&page[..]);
    if level.is_some_and(|level| level != node.level()) {
        return Err(Stop::Restart);
    }
    match node.level() {
        0 => Ok(1),
        1 => Ok(2 + node.count() as u64),
        above => (0..=node.count())
            .try_fold(1, |pages, index| Ok(pages + count(pool, node.child_at(index), Some(above - 1))?)),
    }
}
