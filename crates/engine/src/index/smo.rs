//! Structure modifications: splits and merges.
//!
//! Each is one system log record, redone as a whole and never undone, so recovery always finds a
//! valid tree. The order separates waiting from latching:
//! 1. reserve log space and new pages: both may wait;
//! 2. descend, copy the pages, compute their new content, build the record, all without latches;
//! 3. latch all pages at the copied versions, without waiting; if one moved, go back to 2;
//! 4. append and store.
//!
//! If the parent has no room for a separator, a record of its own splits the parent first, and the
//! caller tries again. So a record touches at most three pages.

use super::change::{describe_image, describe_op};
use super::node::Node;
use super::node::edit::damaged_page;
use super::node::op::NodeOp;
use super::node::{inner, leaf, split};
use super::tree::{
    Seek, Tree, checked_level, child, copy, distinct, reserve_for_structure, retry, with_scratch,
};
use crate::error::Result;
use crate::ids::{ByClass, Lsn, SizeClass, Timestamp};
use crate::pool::backoff::Backoff;
use crate::pool::operation;
use crate::pool::{Edit, Grant, NewPage, Pool, ReadGuard, Retry};
use crate::wal::{ALLOCATES, Class, Kind, Reservation, change_kind};

/// Splits that one entry may need. Each moves part of a node away, so a sound tree needs few.
pub(super) const SPLITS_MAX: u32 = 1000;

/// Attempts at a merge, which is optional, before a later removal retries it.
const MERGE_ATTEMPTS: u32 = 4;

pub(super) const OTHER_SIZE: &str = "a node of another size than its tree's root";

/// Most frames for new pages that a structure modification holds.
pub(crate) const SPLIT_FRAMES: u32 = 2;

/// Most log space for a structure modification: one page's entries over three images, and a
/// separator.
fn record_bytes_max(tree: Tree) -> u64 {
    tree.page_bytes() as u64 + 8 * 1024
}

/// The entry that needs room.
#[derive(Clone, Copy)]
struct Room<'a> {
    key: &'a [u8],
    value_length: usize,
}

/// A page version and its copy.
type Seen<'p> = (ReadGuard<'p>, Vec<u8>);

enum Split {
    Done,
    /// The parent has no room for this separator.
    ParentFull(Vec<u8>),
    /// The reservation is smaller than this.
    NeedsLog(u64),
}

/// Splits the node at `level` that covers `key`, to make room. In a leaf, for a value of
/// `value_length` bytes. The caller tries again, since one split may not suffice.
pub(super) fn make_room<'p>(
    tree: Tree,
    pool: &'p Pool,
    grant: &mut Option<&mut Grant<'p>>,
    reserved: &mut Option<&mut Reservation<'p>>,
    level: u8,
    key: &[u8],
    value_length: usize,
) -> Result<()> {
    let mut spare = Vec::new();
    // The caller's reservation covers one split after another. Frames come before log space.
    let has_frames = grant.as_ref().is_some_and(|grant| grant.frames(tree.class()) >= SPLIT_FRAMES);
    let frames = if has_frames { None } else { Some(pool.reserve_frames(split_frames(tree.class()))?) };
    // Uses the commit's reservation while it lasts.
    let mut own = match reserved {
        Some(_) => None,
        None => Some(reserve_for_structure(pool, record_bytes_max(tree))?),
    };
    loop {
        let split = retry(tree.root, || {
            // Concurrent merges may have lowered the tree; then there is room below.
            let Some((parent, node)) = tree.descend(pool, Seek::At(key), level)? else {
                return Ok(Split::Done);
            };
            let has_room = match level {
                0 => leaf::has_room(node.view(), key, value_length),
                _ => inner::has_room(node.view(), key.len()),
            };
            node.validate()?;
            if has_room {
                return Ok(Split::Done);
            }
            let page = copied(tree, &node)?;
            while spare.len() < if parent.is_some() { 1 } else { 2 } {
                spare.push(pool.new_page(tree.class(), grant.as_deref_mut())?);
            }
            let room = Room { key, value_length };
            let reservation = own.as_mut().or(reserved.as_deref_mut()).expect("there is one of them");
            match parent {
                Some(parent) => {
                    let parent_page = copied(tree, &parent)?;
                    split_node(pool, reservation, room, (parent, parent_page), (node, page), &mut spare)
                }
                None => grow_root(pool, reservation, room, (node, page), &mut spare),
            }
        })?;
        match split {
            Split::Done => return Ok(()),
            Split::NeedsLog(bytes) => {
                own = Some(reserve_for_structure(pool, bytes.max(record_bytes_max(tree)))?);
            }
            Split::ParentFull(separator) => {
                drop((own, spare, frames));
                return make_room(tree, pool, grant, reserved, level + 1, &separator, 0);
            }
        }
    }
}

/// Copies a node to split or merge. Its size must equal the root's, or its content might not fit.
fn copied(tree: Tree, node: &ReadGuard<'_>) -> Result<Vec<u8>, Retry> {
    let page = copy(node)?;
    match page.len() == tree.page_bytes() {
        true => Ok(page),
        false => Err(damaged_page(node.id(), OTHER_SIZE).into()),
    }
}

/// Copies the neighbour of `node`, both at `level`. A damaged parent may name one page twice.
fn copy_neighbour(
    tree: Tree,
    neighbour: &ReadGuard<'_>,
    node: &ReadGuard<'_>,
    level: u8,
) -> Result<Vec<u8>, Retry> {
    distinct(neighbour.id(), [neighbour.id(), node.id()])?;
    let page = copied(tree, neighbour)?;
    checked_level(&Node::new(&page[..]), neighbour, Some(level + 1))?;
    Ok(page)
}

/// After a removal at `key`, merges the leaf and then its ancestors. It stops at a node that is not
/// nearly empty or fits no sibling. Best effort: later removals retry.
pub(crate) fn tidy(tree: Tree, pool: &Pool, key: &[u8]) {
    let mut level = 0;
    while let Ok(true) = merge(tree, pool, level, key) {
        level += 1;
    }
}

fn merge(tree: Tree, pool: &Pool, level: u8, key: &[u8]) -> Result<bool, Retry> {
    let mut backoff = Backoff::new();
    for _ in 0..MERGE_ATTEMPTS {
        match try_merge(tree, pool, level, key) {
            Err(Retry::Restart) => {
                operation::again();
                backoff.wait();
            }
            other => return other,
        }
    }
    Ok(false)
}

fn try_merge(tree: Tree, pool: &Pool, level: u8, key: &[u8]) -> Result<bool, Retry> {
    let Some((Some(parent), node)) = tree.descend(pool, Seek::At(key), level)? else { return Ok(false) };
    let page = copied(tree, &node)?;
    if !split::is_underfull(&page) {
        return Ok(false);
    }
    let parent_page = copied(tree, &parent)?;
    let above = Node::new(&parent_page[..]);
    let index = above.child_index(key);
    if index < above.count() {
        let right = child(pool, &parent, above.child_at(index + 1))?;
        let right_page = copy_neighbour(tree, &right, &node, level)?;
        let separator = above.key(index);
        if split::can_merge(&page, &right_page, &separator) {
            let (left, right) = ((node, page), (right, right_page));
            return publish_merge(tree, pool, &separator, (parent, parent_page), left, right);
        }
    }
    if let Some(before) = index.checked_sub(1) {
        let left = child(pool, &parent, above.child_at(before))?;
        let left_page = copy_neighbour(tree, &left, &node, level)?;
        let separator = above.key(before);
        if split::can_merge(&left_page, &page, &separator) {
            let (left, right) = ((left, left_page), (node, page));
            return publish_merge(tree, pool, &separator, (parent, parent_page), left, right);
        }
    }
    Ok(false)
}

fn publish_merge<'p>(
    tree: Tree,
    pool: &'p Pool,
    separator: &[u8],
    (parent, mut parent_page): Seen<'p>,
    (left, mut left_page): Seen<'p>,
    (right, right_page): Seen<'p>,
) -> Result<bool, Retry> {
    let Some(mut reservation) = pool.wal().reserve(record_bytes_max(tree), Class::Structure) else {
        return Ok(false);
    };
    split::merge(&mut left_page, &right_page, separator)?;
    let remove = NodeOp::InnerRemove { separator };
    remove.apply(&mut parent_page)?;
    let only_child = parent.id() == tree.root && Node::new(&parent_page[..]).count() == 0;
    if only_child {
        split::shrink_root(&mut parent_page, &left_page)?;
    }
    with_scratch(|scratch| {
        let record = scratch.record.restart(Kind::Pages, Timestamp::NONE, Lsn::NONE);
        if only_child {
            describe_image(record, parent.id(), 0, &parent_page);
            record.change(left.id(), change_kind::FREE, 0, &[]);
        } else {
            describe_op(record, parent.id(), &remove);
            describe_image(record, left.id(), 0, &left_page);
        }
        record.change(right.id(), change_kind::FREE, 0, &[]);
        let (mut parent, mut left, right) = (parent.upgrade()?, left.upgrade()?, right.upgrade()?);
        let parent_edit = Edit::Update(&mut parent, &mut parent_page);
        if only_child {
            let edits = [parent_edit, Edit::Free(left), Edit::Free(right)];
            pool.change(record, Some(&mut reservation), edits)?;
        } else {
            let left_edit = Edit::Update(&mut left, &mut left_page);
            pool.change(record, Some(&mut reservation), [parent_edit, left_edit, Edit::Free(right)])?;
        }
        Ok(true)
    })
}

fn split_frames(class: SizeClass) -> ByClass<u32> {
    let mut frames = [0; SizeClass::COUNT];
    frames[class.index()] = SPLIT_FRAMES;
    frames
}

/// Splits `node` into itself and a new right sibling from `spare`.
fn split_node<'p>(
    pool: &'p Pool,
    reservation: &mut Reservation<'_>,
    room: Room<'_>,
    (parent, mut parent_page): Seen<'p>,
    (node, mut page): Seen<'p>,
    spare: &mut Vec<NewPage<'p>>,
) -> Result<Split, Retry> {
    let right_id = spare.last().expect("one was taken").id();
    let mut right_page = vec![0; page.len()];
    let separator = split::split(&page, room.key, room.value_length, right_id, &mut right_page)?;
    let insert = NodeOp::InnerInsert { separator: &separator, child: right_id };
    if !insert.apply(&mut parent_page)? {
        return Ok(Split::ParentFull(separator));
    }
    let truncate = NodeOp::Truncate { separator: &separator };
    truncate.apply(&mut page)?;
    with_scratch(|scratch| {
        let record = scratch.record.restart(Kind::Pages, Timestamp::NONE, Lsn::NONE);
        describe_image(record, right_id, ALLOCATES, &right_page);
        describe_op(record, node.id(), &truncate);
        describe_op(record, parent.id(), &insert);
        if reservation.left() < record.len() as u64 {
            return Ok(Split::NeedsLog(record.len() as u64));
        }
        let (mut parent, mut node) = (parent.upgrade()?, node.upgrade()?);
        let right = spare.pop().expect("one was taken");
        let edits = [
            Edit::Create(right, &mut right_page),
            Edit::Update(&mut node, &mut page),
            Edit::Update(&mut parent, &mut parent_page),
        ];
        pool.change(record, Some(reservation), edits)?;
        Ok(Split::Done)
    })
}

/// Moves the root's content to two pages of `spare`; the root becomes their parent.
fn grow_root<'p>(
    pool: &'p Pool,
    reservation: &mut Reservation<'_>,
    room: Room<'_>,
    (root, mut root_page): Seen<'p>,
    spare: &mut Vec<NewPage<'p>>,
) -> Result<Split, Retry> {
    let (mut left_page, mut right_page) = (vec![0; root_page.len()], vec![0; root_page.len()]);
    let (left_id, right_id) = (spare[0].id(), spare[1].id());
    let (left, right) = ((left_id, &mut left_page[..]), (right_id, &mut right_page[..]));
    split::grow_root(&mut root_page, room.key, room.value_length, left, right)?;
    with_scratch(|scratch| {
        let record = scratch.record.restart(Kind::Pages, Timestamp::NONE, Lsn::NONE);
        describe_image(record, left_id, ALLOCATES, &left_page);
        describe_image(record, right_id, ALLOCATES, &right_page);
        describe_image(record, root.id(), 0, &root_page);
        if reservation.left() < record.len() as u64 {
            return Ok(Split::NeedsLog(record.len() as u64));
        }
        let mut root = root.upgrade()?;
        let right = spare.pop().expect("two were taken");
        let left = spare.pop().expect("two were taken");
        let edits = [
            Edit::Create(left, &mut left_page),
            Edit::Create(right, &mut right_page),
            Edit::Update(&mut root, &mut root_page),
        ];
        pool.change(record, Some(reservation), edits)?;
        Ok(Split::Done)
    })
}
