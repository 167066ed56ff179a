//! Freeing a whole tree that nobody uses any more, a few pages at a time.
//!
//! Every step is one record, after which what is left is reached from the root as before. Pages go from the end:
//! the last leaves of the last node above them; a node left without children, with the only children between; at
//! last everything below the root, which becomes an empty leaf. Long values of the last leaf go first.
//!
//! The fences of what stays are not mended, as nobody looks for a key in it: the last nodes of the levels may end
//! below where their parents do. [`Tree::verify_released`] allows that.

use super::apply::describe_image;
use super::chain::{FreeStep, free_step};
use super::edit;
use super::inner;
use super::node::{Entry, LEVEL, Node, OVERFLOW};
use super::overflow::Reference;
use super::tree::{
    Change, Seek, Tree, Write, child, copy_node, distinct, reserve_system, retry, with_scratch,
};
use crate::buffer::{Edit, Pool, ReadGuard, Stop};
use crate::error::Result;
use crate::ids::{Lsn, Timestamp};
use crate::store::image::wants_compression;
use crate::wal::{Kind, change_kind};

/// What to do next.
enum Step {
    /// Free pages of the long value of this key.
    Value(Vec<u8>),
    /// Some nodes were freed.
    Freed,
    /// Only the root is left, an empty leaf.
    Empty,
}

impl Tree {
    /// Frees about `pages_max` pages of a tree that nobody reads or changes any more. `true` when only the root is
    /// left, an empty leaf.
    pub(crate) fn release_step(&self, pool: &Pool, pages_max: usize) -> Result<bool> {
        let pages_max = pages_max.max(2);
        match retry(self.root, || self.try_release(pool, pages_max))? {
            Step::Freed => Ok(false),
            Step::Empty => Ok(true),
            Step::Value(key) => self.release_value(pool, &key, pages_max).map(|()| false),
        }
    }

    fn try_release(&self, pool: &Pool, pages_max: usize) -> Result<Step, Stop> {
        let mut path = self.last_path(pool)?;
        let (_, leaf_page) = path.last().expect("a root at least");
        let leaf = Node::new(&leaf_page[..]);
        if let Some(index) = long_value(&leaf) {
            return Ok(Step::Value(leaf.key(index)));
        }
        let above = &path[..path.len() - 1];
        let Some(at) = above.iter().rposition(|(_, page)| Node::new(&page[..]).count() > 0) else {
            if above.is_empty() && leaf.count() == 0 {
                return Ok(Step::Empty);
            }
            let below = path.drain(1..).map(|(guard, _)| guard).collect();
            let (root, page) = path.pop().expect("the root");
            let compress = wants_compression(page[LEVEL]);
            publish(pool, root, Tree::init_root(self.root, compress), below)?;
            return Ok(Step::Empty);
        };
        let is_above_leaves = at + 2 == path.len();
        let mut freed: Vec<_> = path.drain(at + 1..).map(|(guard, _)| guard).collect();
        let (parent, mut page) = path.pop().expect("the node found");
        let old = page.clone();
        let node = Node::new(&old[..]);
        let mut left = node.count() - 1;
        while is_above_leaves && left > 0 && freed.len() < pages_max {
            let next = child(pool, &parent, node.child_at(left))?;
            let next_page = copy_node(&next, Some(1))?;
            if long_value(&Node::new(&next_page[..])).is_some() {
                break;
            }
            freed.push(next);
            left -= 1;
        }
        for index in (left..node.count()).rev() {
            inner::remove(&mut page, &node.key(index))?;
        }
        edit::compact(&mut page, None)?;
        publish(pool, parent, page, freed)?;
        Ok(Step::Freed)
    }

    /// Copies of the nodes from the root to the last leaf, at versions at which they belonged together. Each is at the level
    /// below the one before, so a circle of references is no endless way.
    fn last_path<'p>(&self, pool: &'p Pool) -> Result<Vec<(ReadGuard<'p>, Vec<u8>)>, Stop> {
        let mut path: Vec<(ReadGuard<'p>, Vec<u8>)> = Vec::new();
        let (mut guard, mut above) = (pool.read(self.root)?, None);
        loop {
            let page = copy_node(&guard, above)?;
            let node = Node::new(&page[..]);
            if node.is_leaf() {
                path.push((guard, page));
                return Ok(path);
            }
            let next = child(pool, &guard, node.child_at(Seek::Last.child_index(&node)))?;
            above = Some(node.level());
            path.push((guard, page));
            guard = next;
        }
    }

    fn release_value(&self, pool: &Pool, key: &[u8], pages_max: usize) -> Result<()> {
        // The last leaf has it, and nobody else changes the tree: what says otherwise would do so each time.
        let mut value = Vec::new();
        let found = self.get_into(pool, key, &mut value)?.filter(|(_, flags)| flags & OVERFLOW != 0);
        let reference = found.and_then(|_| Reference::decode(&value));
        let what = "a long value in its last leaf is not found by its key";
        let reference = reference.ok_or_else(|| edit::damaged_page(self.root, what))?;
        match free_step(pool, reference.head, pages_max)? {
            FreeStep::Again => Ok(()),
            FreeStep::Last(free) => {
                let mut write = Write { free, ..Write::default() };
                self.apply(pool, &mut write, Change::Remove { key }).map(|_| ())
            }
        }
    }
}

/// The first record of a leaf whose value is in overflow pages.
fn long_value(leaf: &Node<&[u8]>) -> Option<usize> {
    (0..leaf.count()).find(|&index| Entry::is_overflow(&leaf.entry(index)))
}

/// One record: `node` gets `content`, and the pages in `freed` go.
fn publish(
    pool: &Pool,
    node: ReadGuard<'_>,
    mut content: Vec<u8>,
    freed: Vec<ReadGuard<'_>>,
) -> Result<(), Stop> {
    distinct(node.id(), freed.iter().map(ReadGuard::id).chain([node.id()]))?;
    with_scratch(|scratch| {
        let record = scratch.record.restart(Kind::Pages, Timestamp::NONE, Lsn::NONE);
        describe_image(record, node.id(), 0, &content);
        for guard in &freed {
            record.change(guard.id(), change_kind::FREE, 0, &[]);
        }
        let mut reservation = reserve_system(pool, record.len() as u64)?;
        let mut node = node.upgrade()?;
        let freed = freed.into_iter().map(ReadGuard::upgrade).collect::<Result<Vec<_>, _>>()?;
        let edits =
            std::iter::once(Edit::Update(&mut node, &mut content)).chain(freed.into_iter().map(Edit::Free));
        pool.change(record, Some(&mut reservation), edits)?;
        Ok(())
    })
}
