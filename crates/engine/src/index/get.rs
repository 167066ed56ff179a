//! Point reads: one descent, one search, one copy of the value.

use super::node::edit::damaged_page;
use super::node::leaf;
use super::node::overflow::Reference;
use super::node::{Entry, Node};
use super::part::{Wanted, Whole};
use super::tree::{Detour, Seek, Tree, charge_search, fetch, level_below, retry};
use crate::error::Result;
use crate::ids::{PageId, Timestamp};
use crate::planted::{Bug, planted};
use crate::pool::partial::Lined;
use crate::pool::view::View;
use crate::pool::{Leaf, Looked, PartialGuard, Pool, ReadGuard, Record, Retry, Unread, access_leaf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) timestamp: Timestamp,
    pub(crate) value: Stored,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Inline(Vec<u8>),
    Overflow(Reference),
}

/// A record whose inline value, or the wanted part of it, is in the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copied {
    pub(crate) timestamp: Timestamp,
    pub(crate) held: Held,
}

/// What a record holds of the wanted bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// All, in the buffer.
    Inline,
    /// The value is inline, has this many bytes, and they are not among them.
    Outside(usize),
    Overflow(Reference),
}

impl Copied {
    /// The record `found`, whose inline value is cut to `value`.
    fn of(found: Found, wanted: impl Wanted, value: &mut Vec<u8>) -> Copied {
        let Found { timestamp, value: stored } = found;
        let held = match stored {
            Stored::Inline(bytes) => match wanted.of(bytes.len()) {
                Some(part) => {
                    value.clear();
                    value.extend_from_slice(&bytes[part]);
                    Held::Inline
                }
                None => Held::Outside(bytes.len()),
            },
            Stored::Overflow(reference) => Held::Overflow(reference),
        };
        Copied { timestamp, held }
    }
}

impl Tree {
    /// The record of `key`. The record cache may answer if the leaf is not in DRAM, and takes a
    /// record read from elsewhere.
    pub(crate) fn get(&self, pool: &Pool, key: &[u8]) -> Result<Option<Found>> {
        let mut aside = Aside::new(pool, key, false);
        retry(self.root, || {
            let leaf = match self.leaf_by(pool, Seek::At(key), &mut aside) {
                Ok(leaf) => leaf,
                Err(Away::Recorded(found)) => return Ok(found),
                Err(Away::Partial(leaf)) => return record_of_partial(pool, &leaf.open(), key, aside.missed),
                Err(Away::Retry(stop)) => return Err(stop),
            };
            let found = record(&leaf, key)?;
            if aside.missed {
                insert(pool, &leaf, key, found.as_ref());
            }
            Ok(found)
        })
    }

    /// [`Tree::get`] of the wanted bytes into a buffer, whose content counts only if they are
    /// inline. Reads no others of a leaf, unless the whole record goes into the record cache.
    pub(crate) fn copy_to<W: Wanted>(
        &self,
        pool: &Pool,
        key: &[u8],
        wanted: W,
        value: &mut Vec<u8>,
    ) -> Result<Option<Copied>> {
        let mut aside = Aside::new(pool, key, false);
        retry(self.root, || {
            let leaf = match self.leaf_by(pool, Seek::At(key), &mut aside) {
                Ok(leaf) => leaf,
                Err(Away::Recorded(found)) => return Ok(found.map(|found| Copied::of(found, wanted, value))),
                Err(Away::Partial(leaf)) => {
                    return copy_of_partial(pool, &leaf.open(), key, wanted, value, aside.missed);
                }
                Err(Away::Retry(stop)) => return Err(stop),
            };
            if aside.missed {
                copy_and_insert(pool, &leaf, key, wanted, value)
            } else {
                copy(&leaf, key, wanted, value)
            }
        })
    }

    /// Returns the commit and flags of `key`.
    pub(crate) fn get_into(
        &self,
        pool: &Pool,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<Option<(Timestamp, u8)>> {
        retry(self.root, || {
            let leaf = self.leaf(pool, Seek::At(key))?;
            let node = Node::new(leaf.view());
            value.clear();
            let found = leaf::find(&node, key).map(|entry| {
                node.append_value(&entry, value);
                (entry.timestamp, entry.flags)
            });
            leaf.validate()?;
            leaf.copied(value.len(), |view, lines| lines.add(part_at(view, key, Whole), value.len()));
            Ok(found)
        })
    }
}

/// Why a get does not reach a whole leaf.
pub(super) enum Away<'p> {
    Recorded(Option<Found>),
    Partial(Unread<'p>),
    Retry(Retry),
}

impl From<Retry> for Away<'_> {
    fn from(stop: Retry) -> Self {
        Away::Retry(stop)
    }
}

/// The detour to the record cache if a leaf is not in DRAM.
pub(super) struct Aside<'p, 'k> {
    pool: &'p Pool,
    key: &'k [u8],
    /// Whether the record that was read goes into the record cache.
    pub(super) missed: bool,
}

impl<'p, 'k> Aside<'p, 'k> {
    pub(super) fn new(pool: &'p Pool, key: &'k [u8], missed: bool) -> Self {
        Aside { pool, key, missed }
    }
}

impl<'p> Detour<'p> for Aside<'p, '_> {
    type End = Away<'p>;

    #[cold]
    #[inline(never)]
    fn away(&mut self, parent: &ReadGuard<'p>, level: u8, id: PageId) -> Result<bool, Away<'p>> {
        if let Some(leaf) = partial(self.pool, parent, level, id)? {
            return Err(Away::Partial(leaf));
        }
        if level == 1
            && let Some(found) = lookup(self.pool, parent, id, self.key)?
        {
            return Err(Away::Recorded(found));
        }
        let loaded = fetch(self.pool, parent, id)?;
        self.missed |= loaded && level == 1;
        Ok(loaded)
    }

    /// A get that the record cache answers is no access of the page: no die, no mark, no charge.
    #[cold]
    #[inline(never)]
    fn in_middle(
        &mut self,
        child: ReadGuard<'p>,
        level: u8,
        loaded: bool,
    ) -> Result<ReadGuard<'p>, Away<'p>> {
        let mut outdated = false;
        if level == 1 && !loaded {
            match self.pool.lookup_in_middle(&child, self.key)? {
                Looked::Found(record) => return Err(Away::Recorded(found(record))),
                looked => outdated = looked == Looked::Stale,
            }
        }
        let child = match access_child(self.pool, child, level, loaded)? {
            Leaf::Whole(child) => child,
            Leaf::Partial(leaf) => {
                self.missed = true;
                return Err(Away::Partial(leaf));
            }
        };
        charge_search(&child, (Seek::At(self.key), 0));
        // A load and a promotion take locks anyway, and an outdated record was hot before.
        self.missed |= level == 1
            && (!child.is_in_middle()
                || self.pool.records.get_in_place(&self.pool.tiers, child.id())
                || outdated);
        Ok(child)
    }
}

fn found(record: Record) -> Option<Found> {
    let Record { timestamp, value } = record;
    value.map(|value| Found { timestamp, value: Stored::Inline(value) })
}

/// The child `id` of `parent`, at `level`, if it is a partial leaf.
pub(super) fn partial<'p>(
    pool: &'p Pool,
    parent: &ReadGuard<'_>,
    level: u8,
    id: PageId,
) -> Result<Option<Unread<'p>>, Retry> {
    if level != 1 {
        return Ok(None);
    }
    let Some(leaf) = Unread::try_read(&pool.tiers, id)? else { return Ok(None) };
    parent.validate()?;
    leaf.mark();
    Ok(Some(leaf))
}

/// Accesses a child in the middle tier, whose parent is at `level`. A leaf may get partial by that.
pub(super) fn access_child<'p>(
    pool: &'p Pool,
    child: ReadGuard<'p>,
    level: u8,
    loaded: bool,
) -> Result<Leaf<'p>, Retry> {
    match level {
        1 => access_leaf(pool, child, loaded),
        _ => pool.access_in_middle(child, loaded).map(Leaf::Whole),
    }
}

pub(super) fn node_of_partial<'g>(leaf: &'g PartialGuard<'_>) -> Result<Node<Lined<'g>>, Retry> {
    let node = Node::new(leaf.view());
    if level_below(&node, Some(1)).is_none() {
        leaf.validate()?;
        return Err(damaged_page(leaf.unread().id(), "not the node its parent says it is").into());
    }
    Ok(node)
}

/// [`record`] of a partial leaf. `missed`: it also goes into the record cache.
#[cold]
pub(super) fn record_of_partial(
    pool: &Pool,
    leaf: &PartialGuard<'_>,
    key: &[u8],
    missed: bool,
) -> Result<Option<Found>, Retry> {
    let found = record_in(&node_of_partial(leaf)?, key, || leaf.validate())?;
    if missed {
        insert(pool, leaf.unread(), key, found.as_ref());
    }
    Ok(found)
}

/// [`copy`] of a partial leaf. `missed`: the record also goes into the record cache, unless that
/// takes more lines.
#[cold]
fn copy_of_partial(
    pool: &Pool,
    leaf: &PartialGuard<'_>,
    key: &[u8],
    wanted: impl Wanted,
    value: &mut Vec<u8>,
    missed: bool,
) -> Result<Option<Copied>, Retry> {
    value.clear();
    let copied = copy_in(&node_of_partial(leaf)?, key, wanted, value, || leaf.validate())?;
    match copied {
        Some(Copied { timestamp, held: Held::Inline }) if missed && wanted.is_all() => {
            pool.insert(leaf.unread(), key, timestamp, Some(value));
        }
        None if missed => pool.insert(leaf.unread(), key, Timestamp::NONE, None),
        _ => {}
    }
    Ok(copied)
}

/// Looks `key` up in the record cache; its leaf `id`, a child of `parent`, is not in a frame.
pub(super) fn lookup(
    pool: &Pool,
    parent: &ReadGuard<'_>,
    id: PageId,
    key: &[u8],
) -> Result<Option<Option<Found>>, Retry> {
    // A child id from a changing parent may be garbage.
    parent.validate()?;
    let Some(record) = pool.lookup(id, key) else { return Ok(None) };
    // Proves that the page belonged to this parent, and no other tree, during the lookup.
    if !planted(Bug::RecordOfLeftPage) {
        parent.validate()?;
    }
    Ok(Some(found(record)))
}

/// Inserts a leaf's answer, unless the value is long.
#[cold]
pub(super) fn insert(pool: &Pool, leaf: &ReadGuard<'_>, key: &[u8], found: Option<&Found>) {
    let (timestamp, value) = match found {
        None => (Timestamp::NONE, None),
        Some(Found { timestamp, value: Stored::Inline(value) }) => (*timestamp, Some(&value[..])),
        Some(Found { value: Stored::Overflow(_), .. }) => return,
    };
    pool.insert(leaf, key, timestamp, value);
}

/// [`copy`] of a record that also goes into the record cache.
#[cold]
fn copy_and_insert(
    pool: &Pool,
    leaf: &ReadGuard<'_>,
    key: &[u8],
    wanted: impl Wanted,
    value: &mut Vec<u8>,
) -> Result<Option<Copied>, Retry> {
    let copied = copy(leaf, key, Whole, value)?;
    match copied {
        Some(Copied { timestamp, held: Held::Inline }) => pool.insert(leaf, key, timestamp, Some(value)),
        None => pool.insert(leaf, key, Timestamp::NONE, None),
        Some(_) => {}
    }
    Ok(copied.map(|copied| match (copied.held, wanted.of(value.len())) {
        (Held::Inline, Some(part)) => {
            value.truncate(part.end);
            value.drain(..part.start);
            copied
        }
        (Held::Inline, None) => Copied { held: Held::Outside(value.len()), ..copied },
        _ => copied,
    }))
}

/// Where the wanted bytes of a value begin in its leaf, for [`ReadGuard::copied`].
fn part_at(leaf: impl View, key: &[u8], wanted: impl Wanted) -> usize {
    let found = leaf::find(&Node::new(leaf), key);
    found.map_or(0, |entry| entry.value_at + wanted.of(entry.value_length).map_or(0, |part| part.start))
}

/// Copies the wanted bytes of the record of `key` in its leaf, validated.
#[inline]
fn copy(
    leaf: &ReadGuard<'_>,
    key: &[u8],
    wanted: impl Wanted,
    value: &mut Vec<u8>,
) -> Result<Option<Copied>, Retry> {
    value.clear();
    let copied = copy_in(&Node::new(leaf.view()), key, wanted, value, || leaf.validate())?;
    if let Some(Copied { held: Held::Inline, .. }) = copied {
        leaf.copied(value.len(), |view, lines| lines.add(part_at(view, key, wanted), value.len()));
    }
    Ok(copied)
}

/// The record of `key` in its leaf, validated.
#[inline]
pub(super) fn record(leaf: &ReadGuard<'_>, key: &[u8]) -> Result<Option<Found>, Retry> {
    let found = record_in(&Node::new(leaf.view()), key, || leaf.validate())?;
    if let Some(Found { value: Stored::Inline(value), .. }) = &found {
        leaf.copied(value.len(), |view, lines| lines.add(part_at(view, key, Whole), value.len()));
    }
    Ok(found)
}

/// `validate` confirms that the reads saw one version.
#[inline]
pub(super) fn record_in<V: View>(
    node: &Node<V>,
    key: &[u8],
    validate: impl Fn() -> Result<(), Retry>,
) -> Result<Option<Found>, Retry> {
    let Some(entry) = leaf::find(node, key) else {
        validate()?;
        return Ok(None);
    };
    let mut value = Vec::with_capacity(entry.value_length);
    let Copied { timestamp, held } = copy_entry(node, &entry, Whole, &mut value, validate)?;
    let value = if let Held::Overflow(reference) = held {
        Stored::Overflow(reference)
    } else {
        Stored::Inline(value)
    };
    Ok(Some(Found { timestamp, value }))
}

/// [`record_in`], of which the wanted bytes go into the empty buffer `value`.
#[inline]
pub(super) fn copy_in<V: View>(
    node: &Node<V>,
    key: &[u8],
    wanted: impl Wanted,
    value: &mut Vec<u8>,
    validate: impl Fn() -> Result<(), Retry>,
) -> Result<Option<Copied>, Retry> {
    match leaf::find(node, key) {
        Some(entry) => copy_entry(node, &entry, wanted, value, validate).map(Some),
        None => validate().map(|()| None),
    }
}

/// Copies the wanted bytes of an entry, validated, into the empty buffer `value`.
#[inline]
fn copy_entry<V: View>(
    node: &Node<V>,
    entry: &Entry,
    wanted: impl Wanted,
    value: &mut Vec<u8>,
    validate: impl Fn() -> Result<(), Retry>,
) -> Result<Copied, Retry> {
    let timestamp = entry.timestamp;
    let length = entry.value_length;
    let Some(part) = (if entry.is_overflow() { Some(0..length) } else { wanted.of(length) }) else {
        return validate().map(|()| Copied { timestamp, held: Held::Outside(length) });
    };
    node.append_part(entry, part, value);
    validate()?;
    let held = if entry.is_overflow() {
        let malformed = || Retry::from(damaged_page(node.page(), "a malformed reference to a long value"));
        Held::Overflow(Reference::decode(value).ok_or_else(malformed)?)
    } else {
        Held::Inline
    };
    Ok(Copied { timestamp, held })
}
