//! Point reads: one descent, one search, one copy of the value.

use super::node::edit::damaged_page;
use super::node::leaf;
use super::node::overflow::Reference;
use super::node::{Entry, Node};
use super::tree::{Seek, Tree, fetch, retry};
use crate::error::Result;
use crate::ids::{PageId, Timestamp};
use crate::planted::{Bug, planted};
use crate::pool::view::View;
use crate::pool::{Pool, ReadGuard, Retry};

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

/// A record whose inline value is in the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copied {
    pub(crate) timestamp: Timestamp,
    /// None: the value is inline.
    pub(crate) overflow: Option<Reference>,
}

impl Tree {
    /// The record of `key`. The record cache may answer if the leaf is not in a frame; a record
    /// read from the store enters that cache.
    pub(crate) fn get(&self, pool: &Pool, key: &[u8]) -> Result<Option<Found>> {
        let mut missed = false;
        retry(self.root, || {
            let leaf = match self.leaf_or(pool, Seek::At(key), |parent, level, id| {
                away(pool, parent, level, id, key, &mut missed)
            }) {
                Ok(leaf) => leaf,
                Err(Away::Recorded(found)) => return Ok(found),
                Err(Away::Retry(stop)) => return Err(stop),
            };
            let found = record(&leaf, key)?;
            if missed {
                insert(pool, &leaf, key, found.as_ref());
            }
            Ok(found)
        })
    }

    /// [`Tree::get`] into a buffer, whose content counts only if the record's value is inline.
    pub(crate) fn copy_to(&self, pool: &Pool, key: &[u8], value: &mut Vec<u8>) -> Result<Option<Copied>> {
        let mut missed = false;
        retry(self.root, || {
            let leaf = match self.leaf_or(pool, Seek::At(key), |parent, level, id| {
                away(pool, parent, level, id, key, &mut missed)
            }) {
                Ok(leaf) => leaf,
                Err(Away::Recorded(None)) => return Ok(None),
                Err(Away::Recorded(Some(Found { timestamp, value: stored }))) => {
                    let overflow = match stored {
                        Stored::Inline(bytes) => {
                            value.clear();
                            value.extend_from_slice(&bytes);
                            None
                        }
                        Stored::Overflow(reference) => Some(reference),
                    };
                    return Ok(Some(Copied { timestamp, overflow }));
                }
                Err(Away::Retry(stop)) => return Err(stop),
            };
            value.clear();
            let node = Node::new(leaf.view());
            let copied = match leaf::find(&node, key) {
                Some(entry) => Some(copy_entry(&node, &entry, value, || leaf.validate())?),
                None => {
                    leaf.validate()?;
                    None
                }
            };
            let inline = copied.filter(|copied| copied.overflow.is_none());
            if inline.is_some() {
                leaf.copied(value.len());
            }
            match (missed, inline, copied) {
                (true, Some(Copied { timestamp, .. }), _) => pool.insert(&leaf, key, timestamp, Some(value)),
                (true, None, None) => pool.insert(&leaf, key, Timestamp::NONE, None),
                _ => {}
            }
            Ok(copied)
        })
    }

    /// Copies the leaf's value of `key` into `value`; returns its commit and flags.
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
            leaf.copied(value.len());
            Ok(found)
        })
    }
}

/// Why a get does not reach a leaf.
enum Away {
    Recorded(Option<Found>),
    Retry(Retry),
}

impl From<Retry> for Away {
    fn from(stop: Retry) -> Self {
        Away::Retry(stop)
    }
}

/// Handles a child that is not in a frame: looks up the record cache for a leaf, else fetches the
/// child. Sets `missed` if it read the leaf.
#[cold]
#[inline(never)]
fn away(
    pool: &Pool,
    parent: &ReadGuard<'_>,
    level: u8,
    id: PageId,
    key: &[u8],
    missed: &mut bool,
) -> Result<bool, Away> {
    if level == 1
        && let Some(found) = lookup(pool, parent, id, key)?
    {
        return Err(Away::Recorded(found));
    }
    let loaded = fetch(pool, parent, id)?;
    *missed |= loaded && level == 1;
    Ok(loaded)
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
    // Proves that the page belonged to this parent, and to no other tree, during the lookup.
    if !planted(Bug::RecordOfLeftPage) {
        parent.validate()?;
    }
    let found = |value| Found { timestamp: record.timestamp, value: Stored::Inline(value) };
    Ok(Some(record.value.map(found)))
}

/// Inserts a leaf's answer into the record cache, unless the value is long.
#[cold]
pub(super) fn insert(pool: &Pool, leaf: &ReadGuard<'_>, key: &[u8], found: Option<&Found>) {
    let (timestamp, value) = match found {
        None => (Timestamp::NONE, None),
        Some(Found { timestamp, value: Stored::Inline(value) }) => (*timestamp, Some(&value[..])),
        Some(Found { value: Stored::Overflow(_), .. }) => return,
    };
    pool.insert(leaf, key, timestamp, value);
}

/// The record of `key` in its leaf, validated.
#[inline]
pub(super) fn record(leaf: &ReadGuard<'_>, key: &[u8]) -> Result<Option<Found>, Retry> {
    let found = record_in(&Node::new(leaf.view()), key, || leaf.validate())?;
    if let Some(Found { value: Stored::Inline(value), .. }) = &found {
        leaf.copied(value.len());
    }
    Ok(found)
}

/// The record of `key` in its leaf; `validate` confirms that the reads saw one version.
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
    let Copied { timestamp, overflow } = copy_entry(node, &entry, &mut value, validate)?;
    Ok(Some(Found { timestamp, value: overflow.map_or(Stored::Inline(value), Stored::Overflow) }))
}

/// Copies an entry, validated, into the empty buffer `value`.
#[inline]
fn copy_entry<V: View>(
    node: &Node<V>,
    entry: &Entry,
    value: &mut Vec<u8>,
    validate: impl Fn() -> Result<(), Retry>,
) -> Result<Copied, Retry> {
    node.append_value(entry, value);
    validate()?;
    let overflow = if entry.is_overflow() {
        let malformed = || Retry::from(damaged_page(node.page(), "a malformed reference to a long value"));
        Some(Reference::decode(value).ok_or_else(malformed)?)
    } else {
        None
    };
    Ok(Copied { timestamp: entry.timestamp, overflow })
}
