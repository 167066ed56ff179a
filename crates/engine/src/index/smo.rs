//! Structure modifications: splits and merges.
//!
//! Each is one log record of the system, redone as a whole and never undone, so that recovery finds a tree whatever
//! became of the transaction that needed it. The order, which keeps waiting and latching apart:
//! 1. set log space aside, take new pages: both may wait;
//! 2. descend, copy the pages concerned, compute what they become, put the record together: nothing is latched;
//! 3. latch all of them at the versions copied, without waiting; if one moved, go back to 2;
//! 4. append and store.
//!
//! The parent of a node that is split needs room for a separator. If it has none the parent is split first, in a
//! record of its own, and the caller looks again; so no record ever touches more than three pages.

use super::apply::{describe_image, describe_op};
use super::edit::damaged_page;
use super::node::Node;
use super::op::NodeOp;
use super::tree::{Seek, Tree, checked_level, child, copy, distinct, reserve_system, retry, with_scratch};
use super::{inner, leaf, split};
use crate::buffer::backoff::Backoff;
use crate::buffer::operation;
use crate::buffer::{Edit, Grant, NewPage, Pool, ReadGuard, Stop};
use crate::error::Result;
use crate::ids::{ByClass, Lsn, SizeClass, Timestamp};
use crate::wal::{ALLOCATES, Class, Kind, Reservation, change_kind};

/// Attempts at a merge, which nobody needs, before it is left to the next removal.
const MERGE_ATTEMPTS: u32 = 4;

/// What is wrong with a node whose id is of another class than the root's.
pub(super) const OTHER_SIZE: &str = "a node of another size than its tree's root";

/// Frames for new pages that a structure modification has in hand at once, at most.
pub(crate) const SPLIT_FRAMES: u32 = 2;

/// Log space that any structure modification needs at most: the entries of one page, spread over up to three
/// images, each with its header and fences, and a separator.
fn record_bytes_max(tree: &Tree) -> u64 {
    tree.page_bytes() as u64 + 8 * 1024
}

/// The entry that room is made for.
#[derive(Clone, Copy)]
struct Room<'a> {
    key: &'a [u8],
    value_length: usize,
}

/// A page as it was copied, and the version of it that the copy is of.
type Seen<'p> = (ReadGuard<'p>, Vec<u8>);

/// How an attempt at a split ended that met nothing in its way.
enum Split {
    /// There is more room now, or was already.
    Done,
    /// The parent has no room for this separator.
    ParentFull(Vec<u8>),
    /// There is less log space set aside than this.
    NeedsLog(u64),
}

impl Tree {
    /// Splits the node at `level` responsible for `key`, so that there is more room for an entry of this key: in a
    /// leaf one with a value of `value_length` bytes. The caller tries again; it may need more than one split.
    pub(super) fn make_room<'p>(
        &self,
        pool: &'p Pool,
        grant: &mut Option<&mut Grant<'p>>,
        reserved: &mut Option<&mut Reservation<'p>>,
        level: u8,
        key: &[u8],
        value_length: usize,
    ) -> Result<()> {
        let mut spare = Vec::new();
        // What the caller has reserved is enough for one split after the other. Frames come before log space.
        let has_frames = grant.as_ref().is_some_and(|grant| grant.frames(self.class()) >= SPLIT_FRAMES);
        let frames = if has_frames { None } else { Some(pool.reserve_frames(split_frames(self.class()))?) };
        // Out of what the commit has set aside, as long as that lasts.
        let mut own = match reserved {
            Some(_) => None,
            None => Some(reserve_system(pool, record_bytes_max(self))?),
        };
        loop {
            let split = retry(self.root, || {
                // Others may have made the tree lower than it was when a separator did not fit: then there is room below.
                let Some((parent, node)) = self.descend(pool, Seek::At(key), level)? else {
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
                let page = self.copy_node(&node)?;
                while spare.len() < if parent.is_some() { 1 } else { 2 } {
                    spare.push(pool.new_page(self.class(), grant.as_deref_mut())?);
                }
                let room = Room { key, value_length };
                let reservation = own.as_mut().or(reserved.as_deref_mut()).expect("there is one of them");
                match parent {
                    Some(parent) => {
                        let parent_page = self.copy_node(&parent)?;
                        split_node(pool, reservation, room, (parent, parent_page), (node, page), &mut spare)
                    }
                    None => grow_root(pool, reservation, room, (node, page), &mut spare),
                }
            })?;
            match split {
                Split::Done => return Ok(()),
                Split::NeedsLog(bytes) => {
                    own = Some(reserve_system(pool, bytes.max(record_bytes_max(self)))?);
                }
                Split::ParentFull(separator) => {
                    drop((own, spare, frames));
                    return self.make_room(pool, grant, reserved, level + 1, &separator, 0);
                }
            }
        }
    }

    /// A copy of a node that is to be split or merged. All are as long as the root: what one of another size holds would not be
    /// what fits the pages it is to go to.
    fn copy_node(&self, node: &ReadGuard<'_>) -> Result<Vec<u8>, Stop> {
        let page = copy(node)?;
        match page.len() == self.page_bytes() {
            true => Ok(page),
            false => Err(damaged_page(node.id(), OTHER_SIZE).into()),
        }
    }

    /// The same for the neighbour of `node`, both at `level`. A damaged parent may have the same page twice.
    fn copy_neighbour(
        &self,
        neighbour: &ReadGuard<'_>,
        node: &ReadGuard<'_>,
        level: u8,
    ) -> Result<Vec<u8>, Stop> {
        distinct(neighbour.id(), [neighbour.id(), node.id()])?;
        let page = self.copy_node(neighbour)?;
        checked_level(&Node::new(&page[..]), neighbour, Some(level + 1))?;
        Ok(page)
    }

    /// After a removal at `key`: merges the leaf, and then the nodes above it, with a neighbour, as long as they are
    /// nearly empty and one fits. Best effort: what fails is left to later removals, and a failure of the log will be
    /// met by the next change.
    pub(super) fn merge_upwards(&self, pool: &Pool, key: &[u8]) {
        let mut level = 0;
        while let Ok(true) = self.merge(pool, level, key) {
            level += 1;
        }
    }

    fn merge(&self, pool: &Pool, level: u8, key: &[u8]) -> Result<bool, Stop> {
        let mut backoff = Backoff::new();
        for _ in 0..MERGE_ATTEMPTS {
            match self.try_merge(pool, level, key) {
                Err(Stop::Restart) => {
                    operation::again();
                    backoff.wait();
                }
                other => return other,
            }
        }
        Ok(false)
    }

    /// Merges the node at `level` responsible for `key` with a neighbour under the same parent.
    fn try_merge(&self, pool: &Pool, level: u8, key: &[u8]) -> Result<bool, Stop> {
        let Some((Some(parent), node)) = self.descend(pool, Seek::At(key), level)? else { return Ok(false) };
        let page = self.copy_node(&node)?;
        if !split::is_underfull(&page) {
            return Ok(false);
        }
        let parent_page = self.copy_node(&parent)?;
        let above = Node::new(&parent_page[..]);
        let index = above.child_index(key);
        if index < above.count() {
            let right = child(pool, &parent, above.child_at(index + 1))?;
            let right_page = self.copy_neighbour(&right, &node, level)?;
            let separator = above.key(index);
            if split::can_merge(&page, &right_page, &separator) {
                let (left, right) = ((node, page), (right, right_page));
                return self.publish_merge(pool, &separator, (parent, parent_page), left, right);
            }
        }
        if let Some(before) = index.checked_sub(1) {
            let left = child(pool, &parent, above.child_at(before))?;
            let left_page = self.copy_neighbour(&left, &node, level)?;
            let separator = above.key(before);
            if split::can_merge(&left_page, &page, &separator) {
                let (left, right) = ((left, left_page), (node, page));
                return self.publish_merge(pool, &separator, (parent, parent_page), left, right);
            }
        }
        Ok(false)
    }

    fn publish_merge<'p>(
        &self,
        pool: &'p Pool,
        separator: &[u8],
        (parent, mut parent_page): Seen<'p>,
        (left, mut left_page): Seen<'p>,
        (right, right_page): Seen<'p>,
    ) -> Result<bool, Stop> {
        let Some(mut reservation) = pool.wal().reserve(record_bytes_max(self), Class::Structure) else {
            return Ok(false);
        };
        split::merge(&mut left_page, &right_page, separator)?;
        let remove = NodeOp::InnerRemove { separator };
        remove.apply(&mut parent_page)?;
        let only_child = parent.id() == self.root && Node::new(&parent_page[..]).count() == 0;
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
}

/// The frames for new pages of `class` that one split has in hand.
fn split_frames(class: SizeClass) -> ByClass<u32> {
    let mut frames = [0; SizeClass::COUNT];
    frames[class.index()] = SPLIT_FRAMES;
    frames
}

/// Splits `node` into itself and a new right neighbour, one of `spare`.
fn split_node<'p>(
    pool: &'p Pool,
    reservation: &mut Reservation<'_>,
    room: Room<'_>,
    (parent, mut parent_page): Seen<'p>,
    (node, mut page): Seen<'p>,
    spare: &mut Vec<NewPage<'p>>,
) -> Result<Split, Stop> {
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

/// Moves the root's content to two new pages, both of `spare`, and makes the root their parent.
fn grow_root<'p>(
    pool: &'p Pool,
    reservation: &mut Reservation<'_>,
    room: Room<'_>,
    (root, mut root_page): Seen<'p>,
    spare: &mut Vec<NewPage<'p>>,
) -> Result<Split, Stop> {
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
