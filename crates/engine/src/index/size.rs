//! Counts a tree's pages and levels without reading its leaves.

use super::node::Node;
use super::node::edit::damaged_page;
use super::tree::{Tree, checked_level, child, copy, level_below, retry};
use crate::error::Result;
use crate::ids::PageId;
use crate::pool::{Pool, Retry};

/// The tree's pages, long values excluded. Concurrent splits and merges may be missed or counted
/// twice.
///
/// # Errors
/// Damage, and more nodes than pages exist: a damaged tree may repeat nodes for ever.
pub(crate) fn count_pages(tree: Tree, pool: &Pool) -> Result<u64> {
    retry(tree.root, || {
        let guard = pool.read(tree.root)?;
        let page = copy(&guard)?;
        checked_level(&Node::new(&page[..]), &guard, None)?;
        Walk { pool, root: tree.root, met: 0, met_max: 0 }.count(tree.root, &page)
    })
}

/// The tree's levels: pages that a get looks at.
///
/// # Errors
/// Those of a read of the root.
pub(crate) fn count_levels(tree: Tree, pool: &Pool) -> Result<u64> {
    retry(tree.root, || {
        let root = pool.read(tree.root)?;
        let level = checked_level(&Node::new(root.view()), &root, None)?;
        root.validate()?;
        Ok(u64::from(level) + 1)
    })
}

struct Walk<'p> {
    pool: &'p Pool,
    root: PageId,
    /// Nodes counted, and their limit.
    met: u64,
    met_max: u64,
}

impl Walk<'_> {
    /// `page` is the copy of `id`.
    fn count(&mut self, id: PageId, page: &[u8]) -> Result<u64, Retry> {
        let node = Node::new(page);
        self.met += 1;
        if self.met > self.met_max {
            // Concurrent splits and merges may be counted twice.
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

    fn below(&self, id: PageId, node: &Node<&[u8]>, index: usize) -> Result<Vec<u8>, Retry> {
        let child_id = node.child_at(index);
        match self.pool.read(child_id) {
            Ok(guard) => {
                let page = copy(&guard)?;
                if level_below(&Node::new(&page[..]), Some(node.level())).is_some() {
                    return Ok(page);
                }
            }
            Err(Retry::Missing(_)) => {}
            Err(stop) => return Err(stop),
        }
        // The child moved, or this is damage. The current parent decides: it may have been evicted
        // meanwhile, and that is no reason to restart the whole count.
        let parent = self.pool.read(id).map_err(|stop| match stop {
            Retry::Missing(_) => self.pool.count_restart(),
            other => other,
        })?;
        let now = copy(&parent)?;
        let now = Node::new(&now[..]);
        let still = now.level() == node.level() && (0..=now.count()).any(|at| now.child_at(at) == child_id);
        if still {
            let guard = child(self.pool, &parent, child_id)?;
            checked_level(&Node::new(guard.view()), &guard, Some(node.level()))?;
        }
        Err(self.pool.count_restart())
    }
}
