//! How many pages a tree has, without reading its leaves.

use super::edit::damaged_page;
use super::node::Node;
use super::tree::{Tree, checked_level, child, copy, level_below, retry};
use crate::buffer::{Pool, Stop};
use crate::error::Result;
use crate::ids::PageId;

impl Tree {
    /// Pages of the tree, those of long values left out. Others may change it meanwhile: what splits and merges while it
    /// is counted may be missed or counted twice.
    ///
    /// # Errors
    /// Damage that is met, and more nodes than there are pages: a damaged tree may lead to the same ones again and again.
    pub(crate) fn count_pages(&self, pool: &Pool) -> Result<u64> {
        retry(self.root, || {
            let guard = pool.read(self.root)?;
            let page = copy(&guard)?;
            checked_level(&Node::new(&page[..]), &guard, None)?;
            Walk { pool, root: self.root, met: 0, met_max: 0 }.count(self.root, &page)
        })
    }
}

struct Walk<'p> {
    pool: &'p Pool,
    root: PageId,
    /// Nodes so far, and how many may be.
    met: u64,
    met_max: u64,
}

impl Walk<'_> {
    /// Pages from the node `id` down, of which `page` is a copy.
    fn count(&mut self, id: PageId, page: &[u8]) -> Result<u64, Stop> {
        let node = Node::new(page);
        self.met += 1;
        if self.met > self.met_max {
            // What splits and merges meanwhile may be met twice.
            self.met_max = 2 * self.pool.page_ids_used();
            if self.met > self.met_max {
                return Err(damaged_page(self.root, "more nodes are below it than there are pages").into());
            }
        }
        match node.level() {
            0 => Ok(1),
            1 => Ok(2 + node.count() as u64),
            _ => (0..=node.count()).try_fold(1, |pages, index| {
                let (child, below) = (node.child_at(index), self.below(id, &node, index)?);
                Ok(pages + self.count(child, &below)?)
            }),
        }
    }

    /// A copy of the child of the node `id` at `index`.
    fn below(&self, id: PageId, node: &Node<&[u8]>, index: usize) -> Result<Vec<u8>, Stop> {
        let child_id = node.child_at(index);
        match self.pool.read(child_id) {
            Ok(guard) => {
                let page = copy(&guard)?;
                if level_below(&Node::new(&page[..]), Some(node.level())).is_some() {
                    return Ok(page);
                }
            }
            Err(Stop::Missing(_)) => {}
            Err(stop) => return Err(stop),
        }
        // Moved since its parent was read, or damage. Asked of the parent as it is now: others may have had it leave its frame
        // while its children were counted, and that is no reason to begin the whole count again.
        let parent = self.pool.read(id).map_err(|stop| match stop {
            Stop::Missing(_) => self.pool.changed(),
            other => other,
        })?;
        let now = copy(&parent)?;
        let now = Node::new(&now[..]);
        let still = now.level() == node.level() && (0..=now.count()).any(|at| now.child_at(at) == child_id);
        if still {
            let guard = child(self.pool, &parent, child_id)?;
            checked_level(&Node::new(guard.view()), &guard, Some(node.level()))?;
        }
        Err(self.pool.changed())
    }
}
