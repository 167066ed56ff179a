//! A commit that changes one entry: one log record, without undo data.
//!
//! Unlike [`super::apply`], a callback draws the timestamp under the leaf's latch, so that
//! `visible` soon passes it. All that may wait comes before the latch: descent, splits, log space.
//! Under it the commit draws, appends and stores: words of the entry if its size is unchanged
//! ([`super::in_place`]), else the changed copy of the leaf.
//!
//! A change of a part of a value reads and writes no other part of it, so that a line-grained page
//! loads and dirties few lines.

use super::change::describe_op;
use super::get::{access_child, node_of_partial, partial};
use super::in_place::InPlace;
use super::node::edit::damaged_page;
use super::node::leaf;
use super::node::op::NodeOp;
use super::node::split;
use super::node::{Entry, Node};
use super::smo::{SPLITS_MAX, make_room};
use super::tree::{Detour, Scratch, Seek, Tree, fetch, looked_in_middle, retry_write, with_scratch};
use crate::error::Result;
use crate::ids::{Lsn, PageId, Timestamp};
use crate::planted::{Bug, planted};
use crate::pool::partial::Lined;
use crate::pool::view::{Racy, View};
use crate::pool::{self, Edit, PartialGuard, Pool, ReadGuard, Retry, Unread, WriteGuard};
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
    /// short. It sees the bytes there, or the whole value if `sees_all`.
    Part { at: usize, bytes: &'a [u8], sees_all: bool },
    /// No entry.
    Nothing,
}

impl<'a> New<'a> {
    /// A value, or nothing.
    pub(crate) fn value_or_nothing(value: Option<&'a [u8]>) -> New<'a> {
        value.map_or(New::Nothing, New::Value)
    }

    /// Bytes of a whole new value, 0 if there is none.
    fn length(&self) -> usize {
        if let New::Value(value) = self { value.len() } else { 0 }
    }
}

impl<'a> Single<'a> {
    /// The leaf's change. `part`: the only bytes of a new value that change it, and their offset.
    fn op(&self, part: Option<(usize, &'a [u8])>, timestamp: Timestamp) -> NodeOp<'a> {
        let key = self.key;
        match (self.new, part) {
            (New::Nothing, _) => NodeOp::LeafRemove { key },
            (New::Value(value), None) => NodeOp::LeafPut { key, timestamp, flags: 0, value },
            (New::Value(_), Some((at, bytes))) | (New::Part { at, bytes, .. }, _) => {
                NodeOp::LeafPatch { key, timestamp, at, bytes }
            }
        }
    }
}

/// The entry that a change replaces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before<'a> {
    pub(crate) timestamp: Timestamp,
    /// Bytes of its value.
    pub(crate) length: usize,
    /// Offset of `value` in it.
    pub(crate) at: usize,
    /// The value, or the part that changes.
    pub(crate) value: &'a [u8],
}

impl<'a> Before<'a> {
    fn of(entry: &Entry, at: usize, value: &'a [u8]) -> Before<'a> {
        Before { timestamp: entry.timestamp, length: entry.value_length, at, value }
    }
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
trait Leaf<'p> {
    type View<'a>: View
    where
        Self: 'a;

    fn id(&self) -> PageId;
    fn node(&self) -> Result<Node<Self::View<'_>>, Retry>;
    /// Charges the copy of `bytes` bytes at `at` of the entry of `key`.
    fn charge_copy(&self, key: &[u8], at: usize, bytes: usize);
    fn validate(&self) -> Result<(), Retry>;
    /// Makes sure that the leaf has the bytes that a change needs.
    fn load(&self, pool: &Pool, in_place: Option<InPlace>) -> Result<(), Retry>;
    fn upgrade(self) -> Result<WriteGuard<'p>, Retry>;
}

impl<'p> Leaf<'p> for ReadGuard<'p> {
    type View<'a>
        = Racy<'p>
    where
        Self: 'a;

    fn id(&self) -> PageId {
        self.id()
    }

    #[inline(always)]
    fn node(&self) -> Result<Node<Racy<'p>>, Retry> {
        Ok(Node::new(self.view()))
    }

    #[inline(always)]
    fn charge_copy(&self, key: &[u8], at: usize, bytes: usize) {
        self.copied_lines(|view, lines| {
            leaf::find(&Node::new(view), key);
            lines.add(at, bytes);
        });
    }

    #[inline(always)]
    fn validate(&self) -> Result<(), Retry> {
        self.validate()
    }

    #[inline(always)]
    fn load(&self, _: &Pool, _: Option<InPlace>) -> Result<(), Retry> {
        Ok(())
    }

    #[inline(always)]
    fn upgrade(self) -> Result<WriteGuard<'p>, Retry> {
        self.upgrade()
    }
}

/// For a change that keeps the entry's size.
impl<'p> Leaf<'p> for PartialGuard<'p> {
    type View<'a>
        = Lined<'a>
    where
        Self: 'a;

    fn id(&self) -> PageId {
        self.unread().id()
    }

    fn node(&self) -> Result<Node<Lined<'_>>, Retry> {
        node_of_partial(self)
    }

    /// The lines were charged as they were loaded.
    fn charge_copy(&self, _: &[u8], _: usize, _: usize) {}

    fn validate(&self) -> Result<(), Retry> {
        self.validate()
    }

    /// The lines of words changed in place, else all lines, and then the change restarts.
    fn load(&self, pool: &Pool, in_place: Option<InPlace>) -> Result<(), Retry> {
        if let Some(in_place) = in_place {
            in_place.load(self);
            return Ok(());
        }
        self.validate()?;
        match pool.fetch(self.unread().id()) {
            // A page that was freed meanwhile has left the tree.
            Ok(_) | Err(Retry::Missing(_)) => Err(Retry::Restart),
            Err(stop) => Err(stop),
        }
    }

    fn upgrade(self) -> Result<WriteGuard<'p>, Retry> {
        self.upgrade()
    }
}

/// What a change does to the leaf seen.
enum Plan<'a> {
    Over(SingleOutcome),
    NoRoom,
    Change {
        part: Option<(usize, &'a [u8])>,
        old: Option<Entry>,
        /// Offset of the bytes copied from the old value.
        copied_at: usize,
        in_place: Option<InPlace>,
    },
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
    mut begin: impl FnMut(Option<&Before<'_>>) -> Result<Option<Timestamp>>,
) -> Result<SingleOutcome> {
    for _ in 0..SPLITS_MAX {
        let attempt = || with_scratch(|scratch| try_single(tree, pool, single, &mut begin, scratch));
        match retry_write(tree.root, attempt)? {
            Attempt::Over(outcome) => return Ok(outcome),
            Attempt::NoRoom => {
                make_room(tree, pool, &mut None, &mut None, 0, single.key, single.new.length())?;
            }
        }
    }
    Err(damaged_page(tree.root, "splits below it make no room"))
}

fn try_single(
    tree: Tree,
    pool: &Pool,
    single: Single<'_>,
    begin: &mut impl FnMut(Option<&Before<'_>>) -> Result<Option<Timestamp>>,
    scratch: &mut Scratch,
) -> Result<Attempt, Retry> {
    match tree.leaf_by(pool, Seek::At(single.key), &mut ToChange { pool, key: single.key }) {
        Ok(leaf) => change_leaf(pool, leaf, single, begin, scratch),
        Err(Away::Partial(leaf)) => change_partial(pool, leaf.open(), single, begin, scratch),
        Err(Away::Retry(stop)) => Err(stop),
    }
}

#[inline(never)]
fn change_partial(
    pool: &Pool,
    leaf: PartialGuard<'_>,
    single: Single<'_>,
    begin: &mut impl FnMut(Option<&Before<'_>>) -> Result<Option<Timestamp>>,
    scratch: &mut Scratch,
) -> Result<Attempt, Retry> {
    change_leaf(pool, leaf, single, begin, scratch)
}

#[inline(always)]
fn change_leaf<'p>(
    pool: &'p Pool,
    leaf: impl Leaf<'p>,
    single: Single<'_>,
    begin: &mut impl FnMut(Option<&Before<'_>>) -> Result<Option<Timestamp>>,
    scratch: &mut Scratch,
) -> Result<Attempt, Retry> {
    let (part, old, copied_at, in_place) = match plan(&leaf, single, scratch)? {
        Plan::Over(outcome) => return leaf.validate().map(|()| Attempt::Over(outcome)),
        Plan::NoRoom => return leaf.validate().map(|()| Attempt::NoRoom),
        Plan::Change { part, old, copied_at, in_place } => (part, old, copied_at, in_place),
    };
    leaf.load(pool, in_place)?;
    let record = scratch.record.restart(Kind::Pages, Timestamp::NONE, Lsn::NONE).set_commit();
    describe_op(record, leaf.id(), &single.op(part, Timestamp::NONE));
    let mut reservation = pool.reserve_log(record.len() as u64)?;

    pool.meanwhile();
    // The upgrade proves that all reads saw this version.
    let mut leaf = leaf.upgrade()?;
    let before = old.map(|old| Before::of(&old, copied_at, &scratch.old));
    let Some(timestamp) = begin(before.as_ref())? else {
        return Ok(Attempt::Over(SingleOutcome::NoTimestamp));
    };
    let (op, existed) = (single.op(part, timestamp), old.is_some());
    let record = scratch.record.set_transaction(timestamp);
    op.stamp(record.only_payload_mut(), timestamp);
    let mut underfull = false;
    let appended = match in_place {
        Some(in_place) => {
            in_place.write(&op, &scratch.old, &mut scratch.entry);
            let stamp = timestamp.0.to_le_bytes();
            let pieces = in_place.pieces(&stamp, &scratch.entry);
            pool.change(record, Some(&mut reservation), [Edit::Patch(&mut leaf, &pieces)])?
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

/// Looks for the key in the leaf, and copies its value, or the part that changes, to `scratch.old`.
#[inline(always)]
fn plan<'a, 'p>(leaf: &impl Leaf<'p>, single: Single<'a>, scratch: &mut Scratch) -> Result<Plan<'a>, Retry> {
    let Single { key, new } = single;
    let node = leaf.node()?;
    let (index, found) = node.lower_bound(key);
    let old = found.then(|| node.entry(index));
    if old.is_some_and(|old| old.is_overflow()) {
        return Ok(Plan::Over(SingleOutcome::Large));
    }
    if old.is_none() && !matches!(new, New::Value(_)) {
        return Ok(Plan::Over(SingleOutcome::Absent));
    }
    scratch.old.clear();
    let (mut copied_at, mut in_place) = (0, None);
    if let Some(old) = &old {
        match new {
            New::Part { .. } => (copied_at, in_place) = copy_part(&node, index, old, single, scratch),
            New::Value(_) | New::Nothing => node.append_value(old, &mut scratch.old),
        }
        leaf.charge_copy(key, old.value_at + copied_at, scratch.old.len());
    }
    let part = match new {
        New::Value(value) => {
            if !leaf::has_room_beside(&node, old.as_ref(), key, value.len()) {
                return Ok(Plan::NoRoom);
            }
            in_place = old.as_ref().and_then(|old| InPlace::entry(&node, index, old, key, value.len()));
            old.and_then(|_| leaf::difference(&scratch.old, value))
        }
        New::Part { .. } | New::Nothing => None,
    };
    Ok(Plan::Change { part, old, copied_at, in_place })
}

/// Where a change of a part overwrites the value of `old`, if it can do so in place. Copies the
/// words there to `scratch.entry`.
///
/// Copies the old bytes to `scratch.old`, and returns their offset first: all of the value if
/// `begin` sees it all, or if the part is not in place.
#[inline(never)]
fn copy_part<V: View>(
    node: &Node<V>,
    index: usize,
    old: &Entry,
    single: Single<'_>,
    scratch: &mut Scratch,
) -> (usize, Option<InPlace>) {
    let New::Part { at, bytes, sees_all } = single.new else { unreachable!("a part changes") };
    let in_place = InPlace::part(node, index, old, single.key, (at, bytes.len()), &mut scratch.entry);
    match in_place {
        Some(InPlace::Part { from, .. }) if !sees_all => {
            scratch.old.extend_from_slice(&scratch.entry[from..from + bytes.len()]);
            (if planted(Bug::PartByPageOffset) { old.value_at + at } else { at }, in_place)
        }
        _ => {
            node.append_value(old, &mut scratch.old);
            (0, in_place)
        }
    }
}
