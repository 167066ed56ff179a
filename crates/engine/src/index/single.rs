//! A commit that changes one entry: one log record, without undo data.
//!
//! Unlike [`super::apply`], a callback draws the timestamp under the leaf's latch, so that
//! `visible` soon passes it. All that may wait comes before the latch: descent, splits, log space.
//! Under it the commit draws, appends and stores: the entry's own words if its size is unchanged,
//! else the changed copy of the leaf.

use super::change::describe_op;
use super::get::{access_child, node_of_partial, partial};
use super::node::edit::damaged_page;
use super::node::leaf;
use super::node::op::NodeOp;
use super::node::split;
use super::node::{Body, Entry, LEAF, Node, SLOT, align8, entry_header, slots_at};
use super::smo::{SPLITS_MAX, make_room};
use super::tree::{Detour, Scratch, Seek, Tree, fetch, looked_in_middle, retry_write, with_scratch};
use crate::error::Result;
use crate::ids::{Lsn, PageId, Timestamp};
use crate::pool::view::View;
use crate::pool::{self, Edit, PartialGuard, Pool, ReadGuard, Retry, Unread};
use crate::wal::Kind;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Single<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) new: New<'a>,
}

/// What becomes of the entry.
#[derive(Clone, Copy, Debug)]
pub(crate) enum New<'a> {
    /// A value, which fits into a leaf.
    Value(&'a [u8]),
    /// The old value with other `bytes` from `at` on. The caller's `begin` refuses one that is too
    /// short.
    Part { at: usize, bytes: &'a [u8] },
    /// No entry.
    Nothing,
}

impl<'a> New<'a> {
    /// A value, or nothing.
    pub(crate) fn value_or_nothing(value: Option<&'a [u8]>) -> New<'a> {
        value.map_or(New::Nothing, New::Value)
    }

    /// Bytes of the new value, which replaces that of `old`.
    fn length(&self, old: Option<Entry>) -> Option<usize> {
        match self {
            New::Value(value) => Some(value.len()),
            New::Part { .. } => old.map(|old| old.value_length),
            New::Nothing => None,
        }
    }
}

impl<'a> Single<'a> {
    /// The leaf's change, without a timestamp; `None` if there is none. `old` is the entry's value.
    fn op(&self, old: Option<&[u8]>) -> Option<NodeOp<'a>> {
        let (key, timestamp) = (self.key, Timestamp::NONE);
        Some(match self.new {
            New::Value(value) => match old.and_then(|old| leaf::difference(old, value)) {
                Some((at, bytes)) => NodeOp::LeafPatch { key, timestamp, at, bytes },
                None => NodeOp::LeafPut { key, timestamp, flags: 0, value },
            },
            New::Part { .. } | New::Nothing if old.is_none() => return None,
            New::Part { at, bytes } => NodeOp::LeafPatch { key, timestamp, at, bytes },
            New::Nothing => NodeOp::LeafRemove { key },
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Before<'a> {
    pub(crate) timestamp: Timestamp,
    pub(crate) value: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SingleOutcome {
    Done {
        end: Lsn,
        existed: bool,
        /// Whether [`tidy`](super::tidy) may find work.
        underfull: bool,
    },
    /// There was nothing to remove; nothing was logged.
    Absent,
    /// The entry refers to a long value, which needs several records. Nothing was done.
    Large,
    /// The callback had no timestamp. Nothing was done.
    NoTimestamp,
}

enum Attempt {
    Over(SingleOutcome),
    NoRoom,
}

/// The leaf to change.
enum Leaf<'p> {
    Whole(ReadGuard<'p>),
    /// For a change that keeps the entry's size.
    Partial(PartialGuard<'p>),
}

impl Leaf<'_> {
    fn id(&self) -> PageId {
        match self {
            Leaf::Whole(leaf) => leaf.id(),
            Leaf::Partial(leaf) => leaf.unread().id(),
        }
    }

    fn validate(&self) -> Result<(), Retry> {
        match self {
            Leaf::Whole(leaf) => leaf.validate(),
            Leaf::Partial(leaf) => leaf.validate(),
        }
    }
}

/// What a change does to the leaf seen.
enum Plan<'a> {
    Over(SingleOutcome),
    NoRoom,
    Change { op: NodeOp<'a>, old: Option<Entry>, value_slot: Option<ValueSlot> },
}

/// Why a descent does not reach a whole leaf.
enum Away<'p> {
    Partial(Unread<'p>),
    Retry(Retry),
}

impl From<Retry> for Away<'_> {
    fn from(stop: Retry) -> Self {
        Away::Retry(stop)
    }
}

/// Descends to the leaf of a key, which may be partial.
struct ToChange<'p, 'k> {
    pool: &'p Pool,
    key: &'k [u8],
}

impl<'p> Detour<'p> for ToChange<'p, '_> {
    type End = Away<'p>;

    #[cold]
    #[inline(never)]
    fn away(&mut self, parent: &ReadGuard<'p>, level: u8, id: PageId) -> Result<bool, Away<'p>> {
        match partial(self.pool, parent, level, id)? {
            Some(leaf) => Err(Away::Partial(leaf)),
            None => Ok(fetch(self.pool, parent, id)?),
        }
    }

    #[cold]
    #[inline(never)]
    fn in_middle(
        &mut self,
        child: ReadGuard<'p>,
        level: u8,
        loaded: bool,
    ) -> Result<ReadGuard<'p>, Away<'p>> {
        let child = match access_child(self.pool, child, level, loaded)? {
            pool::Leaf::Whole(child) => child,
            pool::Leaf::Partial(leaf) => return Err(Away::Partial(leaf)),
        };
        looked_in_middle(self.pool, &child, Some((Seek::At(self.key), 0)));
        Ok(child)
    }
}

/// Makes the change. Calls `begin` once, under the leaf's latch, with the current entry; it draws
/// the timestamp and keeps the old version, without waiting. After a timestamp, an error means that
/// nothing changed, except if the log failed.
pub(crate) fn apply_single(
    tree: Tree,
    pool: &Pool,
    single: Single<'_>,
    mut begin: impl FnMut(Option<Before<'_>>) -> Result<Option<Timestamp>>,
) -> Result<SingleOutcome> {
    for _ in 0..SPLITS_MAX {
        let attempt = || with_scratch(|scratch| try_single(tree, pool, single, &mut begin, scratch));
        match retry_write(tree.root, attempt)? {
            Attempt::Over(outcome) => return Ok(outcome),
            Attempt::NoRoom => {
                make_room(
                    tree,
                    pool,
                    &mut None,
                    &mut None,
                    0,
                    single.key,
                    single.new.length(None).unwrap_or(0),
                )?;
            }
        }
    }
    Err(damaged_page(tree.root, "splits below it make no room"))
}

fn try_single(
    tree: Tree,
    pool: &Pool,
    single: Single<'_>,
    begin: &mut impl FnMut(Option<Before<'_>>) -> Result<Option<Timestamp>>,
    scratch: &mut Scratch,
) -> Result<Attempt, Retry> {
    let leaf = match tree.leaf_by(pool, Seek::At(single.key), &mut ToChange { pool, key: single.key }) {
        Ok(leaf) => Leaf::Whole(leaf),
        Err(Away::Partial(leaf)) => Leaf::Partial(leaf.open()),
        Err(Away::Retry(stop)) => return Err(stop),
    };
    let plan = match &leaf {
        Leaf::Whole(leaf) => plan(&Node::new(leaf.view()), single, &mut scratch.old, || {
            leaf.copied_lines(|view, lines| {
                let found = leaf::find(&Node::new(view), single.key);
                found.iter().for_each(|entry| lines.add(entry.value_at, entry.value_length));
            });
        }),
        Leaf::Partial(leaf) => plan(&node_of_partial(leaf)?, single, &mut scratch.old, || {}),
    };
    let (op, old, value_slot) = match plan {
        Plan::Over(outcome) => return leaf.validate().map(|()| Attempt::Over(outcome)),
        Plan::NoRoom => return leaf.validate().map(|()| Attempt::NoRoom),
        Plan::Change { op, old, value_slot } => (op, old, value_slot),
    };
    if let Leaf::Partial(leaf) = &leaf {
        load_for_change(pool, leaf, value_slot)?;
    }
    let record = scratch.record.restart(Kind::Pages, Timestamp::NONE, Lsn::NONE).set_commit();
    describe_op(record, leaf.id(), &op);
    let mut reservation = pool.reserve_log(record.len() as u64)?;

    pool.meanwhile();
    // The upgrade proves that all reads saw this version.
    let mut leaf = match leaf {
        Leaf::Whole(leaf) => leaf.upgrade()?,
        Leaf::Partial(leaf) => leaf.upgrade()?,
    };
    let before = old.map(|old| Before { timestamp: old.timestamp, value: &scratch.old });
    let Some(timestamp) = begin(before)? else {
        return Ok(Attempt::Over(SingleOutcome::NoTimestamp));
    };
    let (op, existed) = (op.of(timestamp), old.is_some());
    let record = scratch.record.set_transaction(timestamp);
    op.stamp(record.only_payload_mut(), timestamp);
    let mut underfull = false;
    let appended = match value_slot {
        Some(slot) => {
            slot.write(op, &scratch.old, &mut scratch.entry);
            pool.change(record, Some(&mut reservation), [Edit::Patch(&mut leaf, slot.at, &scratch.entry)])?
        }
        None => {
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

/// Loads what a change of a partial leaf needs: the lines of an entry that keeps its size, else all
/// lines, and then the change restarts.
#[cold]
#[inline(never)]
fn load_for_change(pool: &Pool, leaf: &PartialGuard<'_>, slot: Option<ValueSlot>) -> Result<(), Retry> {
    if let Some(slot) = slot {
        leaf.load_for_change(slot.at, slot.bytes);
        return Ok(());
    }
    leaf.validate()?;
    match pool.fetch(leaf.unread().id()) {
        // A page that was freed meanwhile has left the tree.
        Ok(_) | Err(Retry::Missing(_)) => Err(Retry::Restart),
        Err(stop) => Err(stop),
    }
}

/// Looks for the key in the leaf, and copies its value to `old_value`. Calls `copied` after that.
fn plan<'a, V: View>(
    node: &Node<V>,
    single: Single<'a>,
    old_value: &mut Vec<u8>,
    copied: impl FnOnce(),
) -> Plan<'a> {
    let Single { key, new } = single;
    let (index, found) = node.lower_bound(key);
    let old = found.then(|| node.entry(index));
    if old.is_some_and(|old| old.is_overflow()) {
        return Plan::Over(SingleOutcome::Large);
    }
    old_value.clear();
    if let Some(old) = &old {
        node.append_value(old, old_value);
        copied();
    }
    if let New::Value(value) = new
        && !leaf::has_room_beside(node, old.as_ref(), key, value.len())
    {
        return Plan::NoRoom;
    }
    let Some(op) = single.op(old.map(|_| &old_value[..])) else {
        return Plan::Over(SingleOutcome::Absent);
    };
    let value_slot =
        old.zip(new.length(old)).and_then(|(old, length)| in_place(node, index, &old, key, length));
    Plan::Change { op, old, value_slot }
}

/// The position of an entry that keeps its size.
#[derive(Clone, Copy)]
struct ValueSlot {
    /// In the page.
    at: usize,
    /// In the key.
    suffix_at: usize,
    bytes: usize,
}

impl ValueSlot {
    /// Writes the entry to `to` as `op` makes it of `old`.
    fn write(&self, op: NodeOp<'_>, old: &[u8], to: &mut Vec<u8>) {
        to.resize(self.bytes, 0);
        match op {
            NodeOp::LeafPut { key, timestamp, flags, value } => {
                Body::Leaf { timestamp, flags, value }.write(&key[self.suffix_at..], to);
            }
            NodeOp::LeafPatch { key, timestamp, at, bytes } => {
                let suffix = &key[self.suffix_at..];
                Body::Leaf { timestamp, flags: 0, value: old }.write(suffix, to);
                let at = entry_header(LEAF) + suffix.len() + at;
                to[at..at + bytes.len()].copy_from_slice(bytes);
            }
            other => unreachable!("{other:?} leaves no value in its place"),
        }
    }
}

/// Where a value of `length` bytes can overwrite the entry at `index`, if possible.
fn in_place<V: View>(
    node: &Node<V>,
    index: usize,
    old: &Entry,
    key: &[u8],
    length: usize,
) -> Option<ValueSlot> {
    let (at, suffix_at) = (node.slot(index).at(), node.prefix());
    // A changing or damaged page may say anything; the general path reports damage.
    let suffix_length = key.len().checked_sub(suffix_at)?;
    let bytes = |value_length| align8(entry_header(LEAF) + suffix_length + value_length);
    let (now, before) = (bytes(length), bytes(old.value_length));
    let heap = node.heap_start().max(slots_at(LEAF) + node.count() * SLOT);
    let inside = at >= heap && at + now <= node.page_bytes();
    (now == before && inside).then_some(ValueSlot { at, suffix_at, bytes: now })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame reused between descent and read may show this.
    #[test]
    fn a_key_shorter_than_the_prefix_is_not_in_place() {
        let mut page = vec![0; 4096];
        let prefix = [b'p'; 40];
        leaf::init(&mut page, PageId(9), &prefix, Some(&[&prefix[..], b"x"].concat()));
        leaf::put(&mut page, &prefix, Timestamp(1), 0, b"value").unwrap();
        let node = Node::new(&page[..]);
        let (index, found) = node.lower_bound(b"k");
        assert!(found, "the entry without a suffix passes for the key's");
        assert!(in_place(&node, index, &node.entry(index), b"k", 5).is_none());
        assert!(in_place(&node, index, &node.entry(index), &prefix, 5).is_some());
    }
}
