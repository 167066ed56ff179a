//! Frees an unused tree, a few pages at a time.
//!
//! Every step is one log record, after which the root still leads to the rest. Long values of the
//! last leaf go first, then the last leaves of the last node above them. A node goes with its only
//! children, and finally everything below the root, which becomes an empty leaf.
//!
//! The remaining fences stay as they are, since no thread searches this tree. So the last node of a
//! level may end below its parent's fence; [`verify_released`] allows that.

use super::chain::{FreeStep, free_step};
use super::change::describe_image;
use super::change::{Change, Write};
use super::node::edit;
use super::node::inner;
use super::node::overflow::Reference;
use super::node::{Entry, LEVEL, Node, OVERFLOW};
use super::tree::{Seek, Tree, child, copy_node, distinct, reserve_for_structure, retry, with_scratch};
use crate::error::Result;
use crate::ids::{Lsn, Timestamp};
use crate::pool::{Edit, Pool, ReadGuard, Retry};
use crate::store::image::wants_compression;
use crate::wal::{Kind, change_kind};

enum Step {
    /// Free pages of this key's long value.
    Value(Vec<u8>),
    /// Some nodes were freed.
    Freed,
    /// Only an empty root leaf is left.
    Empty,
}

/// Frees about `pages_max` pages of a tree without readers or writers. `true` when only an empty
/// root leaf is left.
pub(crate) fn release_step(tree: Tree, pool: &Pool, pages_max: usize) -> Result<bool> {
    let pages_max = pages_max.max(2);
    match retry(tree.root, || try_release(tree, pool, pages_max))? {
        Step::Freed => Ok(false),
        Step::Empty => Ok(true),
        Step::Value(key) => release_value(tree, pool, &key, pages_max).map(|()| false),
    }
}

fn try_release(tree: Tree, pool: &Pool, pages_max: usize) -> Result<Step, Retry> {
    let mut path = last_path(tree, pool)?;
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
        publish(pool, root, Tree::init_root(tree.root, compress), below)?;
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

/// Copies the path from the root to the last leaf, at consistent versions. Each node is one level
/// lower, so circular references cannot loop.
fn last_path<'p>(tree: Tree, pool: &'p Pool) -> Result<Vec<(ReadGuard<'p>, Vec<u8>)>, Retry> {
    let mut path: Vec<(ReadGuard<'p>, Vec<u8>)> = Vec::new();
    let (mut guard, mut above) = (pool.read(tree.root)?, None);
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

fn release_value(tree: Tree, pool: &Pool, key: &[u8], pages_max: usize) -> Result<()> {
    // The last leaf holds the key and nothing else changes the tree, so any other answer would
    // repeat: damage.
    let mut value = Vec::new();
    let found = tree.get_into(pool, key, &mut value)?.filter(|(_, flags)| flags & OVERFLOW != 0);
    let reference = found.and_then(|_| Reference::decode(&value));
    let what = "a long value in its last leaf is not found by its key";
    let reference = reference.ok_or_else(|| edit::damaged_page(tree.root, what))?;
    match free_step(pool, reference.head, pages_max)? {
        FreeStep::Again => Ok(()),
        FreeStep::Last(free) => {
            let mut write = Write { free, ..Write::default() };
            tree.apply(pool, &mut write, Change::Remove { key }).map(|_| ())
        }
    }
}

/// The first record of a leaf with a long value.
fn long_value(leaf: &Node<&[u8]>) -> Option<usize> {
    (0..leaf.count()).find(|&index| Entry::is_overflow(&leaf.entry(index)))
}

/// Logs and stores one step: `node` gets `content`, and the pages in `freed` go.
fn publish(
    pool: &Pool,
    node: ReadGuard<'_>,
    mut content: Vec<u8>,
    freed: Vec<ReadGuard<'_>>,
) -> Result<(), Retry> {
    distinct(node.id(), freed.iter().map(ReadGuard::id).chain([node.id()]))?;
    with_scratch(|scratch| {
        let record = scratch.record.restart(Kind::Pages, Timestamp::NONE, Lsn::NONE);
        describe_image(record, node.id(), 0, &content);
        for guard in &freed {
            record.change(guard.id(), change_kind::FREE, 0, &[]);
        }
        let mut reservation = reserve_for_structure(pool, record.len() as u64)?;
        let mut node = node.upgrade()?;
        let freed = freed.into_iter().map(ReadGuard::upgrade).collect::<Result<Vec<_>, _>>()?;
        let edits =
            std::iter::once(Edit::Update(&mut node, &mut content)).chain(freed.into_iter().map(Edit::Free));
        pool.change(record, Some(&mut reservation), edits)?;
        Ok(())
    })
}
