//! The change of one entry by a commit that changes nothing else: one log record without an inverse, for it is there
//! with its commit or not at all.
//!
//! It differs from [`super::apply`] in when the commit's timestamp is drawn: under the leaf's latch, by a callback, so
//! that a timestamp is undecided for as short as can be and nobody waits long for `visible` to pass it. All that may
//! wait comes before: descent, splits, log space. Under the latch remain: draw, append, and store the entry's own
//! words if it keeps its size, or else the changed copy of the leaf.

use super::apply::{SPLITS_MAX, describe_op};
use super::edit::damaged_page;
use super::leaf;
use super::node::{Body, Entry, LEAF, Node, SLOT, align8, entry_header, slots_at};
use super::op::NodeOp;
use super::split;
use super::tree::{Scratch, Seek, Tree, retry_write, with_scratch};
use crate::buffer::view::View;
use crate::buffer::{Edit, Pool, Stop};
use crate::error::Result;
use crate::ids::{Lsn, Timestamp};
use crate::wal::Kind;

/// The change of one entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Single<'a> {
    pub(crate) key: &'a [u8],
    /// The new value, which fits into a leaf; none = the entry goes.
    pub(crate) value: Option<&'a [u8]>,
}

/// An entry as it was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before<'a> {
    pub(crate) timestamp: Timestamp,
    pub(crate) value: &'a [u8],
}

/// What became of a single change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SingleOutcome {
    /// Logged and stored.
    Done {
        /// The end of its record.
        end: Lsn,
        /// Whether the entry was there.
        existed: bool,
        /// Whether [`Tree::tidy`] may find something to do.
        underfull: bool,
    },
    /// There is nothing to remove. Nothing was logged.
    Absent,
    /// The entry refers to a large value, which is more than one record's work. Nothing was done.
    Large,
    /// The callback had no timestamp. Nothing was done.
    NoTimestamp,
}

enum Attempt {
    Over(SingleOutcome),
    NoRoom,
}

impl Tree {
    /// Makes the change. `begin` is called once, under the leaf's latch, with the entry as it is: it draws the
    /// timestamp and keeps the old version, without waiting for anything. When it has returned a timestamp, an error
    /// means that nothing was changed all the same, but for a log that has failed.
    pub(crate) fn apply_single(
        &self,
        pool: &Pool,
        single: Single<'_>,
        mut begin: impl FnMut(Option<Before<'_>>) -> Result<Option<Timestamp>>,
    ) -> Result<SingleOutcome> {
        for _ in 0..SPLITS_MAX {
            let attempt = || with_scratch(|scratch| self.try_single(pool, single, &mut begin, scratch));
            match retry_write(self.root, attempt)? {
                Attempt::Over(outcome) => return Ok(outcome),
                Attempt::NoRoom => {
                    let length = single.value.map_or(0, <[u8]>::len);
                    self.make_room(pool, &mut None, &mut None, 0, single.key, length)?;
                }
            }
        }
        Err(damaged_page(self.root, "splits below it make no room"))
    }

    /// Merges what removals around `key` have left nearly empty.
    pub(crate) fn tidy(&self, pool: &Pool, key: &[u8]) {
        self.merge_upwards(pool, key);
    }

    fn try_single(
        &self,
        pool: &Pool,
        single: Single<'_>,
        begin: &mut impl FnMut(Option<Before<'_>>) -> Result<Option<Timestamp>>,
        scratch: &mut Scratch,
    ) -> Result<Attempt, Stop> {
        let Single { key, value } = single;
        let leaf = self.leaf(pool, Seek::At(key))?;
        let node = Node::new(leaf.view());
        let (index, found) = node.lower_bound(key);
        let old = found.then(|| node.entry(index));
        let over = |outcome| leaf.validate().map(|()| Attempt::Over(outcome));
        if old.is_some_and(|old| old.is_overflow()) {
            return over(SingleOutcome::Large);
        }
        let op = match value {
            Some(value) => {
                if !leaf::has_room_beside(&node, old.as_ref(), key, value.len()) {
                    return leaf.validate().map(|()| Attempt::NoRoom);
                }
                NodeOp::LeafPut { key, timestamp: Timestamp::NONE, flags: 0, value }
            }
            None if old.is_none() => return over(SingleOutcome::Absent),
            None => NodeOp::LeafRemove { key },
        };
        let record = scratch.record.restart(Kind::Pages, Timestamp::NONE, Lsn::NONE).set_commit();
        describe_op(record, leaf.id(), &op);
        let mut reservation = pool.reserve_log(record.len() as u64)?;
        scratch.old.clear();
        if let Some(old) = &old {
            node.append_value(old, &mut scratch.old);
        }
        let place = old.and_then(|old| in_place(&node, index, &old, key, value?));

        pool.meanwhile();
        // All that was read belongs to the version that is latched here.
        let mut leaf = leaf.upgrade()?;
        let before = old.map(|old| Before { timestamp: old.timestamp, value: &scratch.old });
        let Some(timestamp) = begin(before)? else {
            return Ok(Attempt::Over(SingleOutcome::NoTimestamp));
        };
        let (op, existed) = (op.of(timestamp), old.is_some());
        let record = scratch.record.set_transaction(timestamp);
        op.stamp(record.only_payload_mut(), timestamp);
        let mut underfull = false;
        let appended = match (place, op) {
            (Some(Place { at, suffix_at, bytes }), NodeOp::LeafPut { flags, value, .. }) => {
                scratch.entry.resize(bytes, 0);
                Body::Leaf { timestamp, flags, value }.write(&key[suffix_at..], &mut scratch.entry);
                pool.change(record, Some(&mut reservation), [Edit::Patch(&mut leaf, at, &scratch.entry)])?
            }
            _ => {
                leaf.copy(&mut scratch.page);
                if !op.apply(&mut scratch.page)? {
                    return Err(damaged_page(leaf.id(), "an entry that has room does not fit").into());
                }
                underfull = matches!(op, NodeOp::LeafRemove { .. }) && split::is_underfull(&scratch.page);
                let edit = Edit::Update(&mut leaf, &mut scratch.page);
                pool.change(record, Some(&mut reservation), [edit])?
            }
        };
        Ok(Attempt::Over(SingleOutcome::Done { end: appended.end, existed, underfull }))
    }
}

/// Where an entry is that keeps its size.
#[derive(Clone, Copy)]
struct Place {
    /// The byte of the page where it begins.
    at: usize,
    /// The byte of the key where its suffix begins.
    suffix_at: usize,
    bytes: usize,
}

/// Where the entry at `index` can be overwritten with `value`, if it can.
fn in_place<V: View>(node: &Node<V>, index: usize, old: &Entry, key: &[u8], value: &[u8]) -> Option<Place> {
    let (at, suffix_at) = (node.slot(index).at(), node.prefix());
    // A page that changes meanwhile may say anything, and so may a damaged one, which the general way reports.
    let suffix_length = key.len().checked_sub(suffix_at)?;
    let bytes = |value_length| align8(entry_header(LEAF) + suffix_length + value_length);
    let (now, before) = (bytes(value.len()), bytes(old.value_length));
    let heap = node.heap_start().max(slots_at(LEAF) + node.count() * SLOT);
    let inside = at >= heap && at + now <= node.page_bytes();
    (now == before && inside).then_some(Place { at, suffix_at, bytes: now })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PageId;

    /// What a frame that was given to another page between the descent and the look at the entry may show.
    #[test]
    fn a_key_shorter_than_the_prefix_is_not_in_place() {
        let mut page = vec![0; 4096];
        let prefix = [b'p'; 40];
        leaf::init(&mut page, PageId(9), &prefix, Some(&[&prefix[..], b"x"].concat()));
        leaf::put(&mut page, &prefix, Timestamp(1), 0, b"value").unwrap();
        let node = Node::new(&page[..]);
        let (index, found) = node.lower_bound(b"k");
        assert!(found, "the entry without a suffix passes for the key's");
        assert!(in_place(&node, index, &node.entry(index), b"k", b"other").is_none());
        assert!(in_place(&node, index, &node.entry(index), &prefix, b"other").is_some());
    }
}
