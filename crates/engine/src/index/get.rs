//! Point reads: one descent, one search, one copy of the value.

use super::edit::damaged_page;
use super::leaf;
use super::node::Node;
use super::overflow::Reference;
use super::tree::{Seek, Tree, fetch, retry};
use crate::buffer::view::View;
use crate::buffer::{Pool, ReadGuard, Stop};
use crate::error::Result;
use crate::ids::{PageId, Timestamp};
use crate::planted::{Bug, planted};

/// A record that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The commit that wrote it.
    pub(crate) timestamp: Timestamp,
    /// Its value.
    pub(crate) value: Stored,
}

/// A value as its leaf has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// The value.
    Inline(Vec<u8>),
    /// Where the value is.
    Overflow(Reference),
}

impl Tree {
    /// The record of `key`. One whose page is away may be answered from the record cache, and one that was read from the
    /// store is taken into it.
    pub(crate) fn get(&self, pool: &Pool, key: &[u8]) -> Result<Option<Found>> {
        let mut missed = false;
        retry(self.root, || {
            let leaf = match self.leaf_or(pool, Seek::At(key), |parent, level, id| {
                away(pool, parent, level, id, key, &mut missed)
            }) {
                Ok(leaf) => leaf,
                Err(Away::Recalled(found)) => return Ok(found),
                Err(Away::Stop(stop)) => return Err(stop),
            };
            let found = record(&leaf, key)?;
            if missed {
                remember(pool, &leaf, key, found.as_ref());
            }
            Ok(found)
        })
    }

    /// Puts the value of `key` as the leaf has it into `value`, and returns who wrote it and its flags.
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

/// Why a get does not come to a leaf.
enum Away {
    /// It need not: this is the answer.
    Recalled(Option<Found>),
    Stop(Stop),
}

impl From<Stop> for Away {
    fn from(stop: Stop) -> Self {
        Away::Stop(stop)
    }
}

/// A get has come to a child that is not in a frame: looks into the record cache if it is a leaf, or has it fetched.
/// `missed` says then that the leaf was read for this.
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
        && let Some(found) = recall(pool, parent, id, key)?
    {
        return Err(Away::Recalled(found));
    }
    let loaded = fetch(pool, parent, id)?;
    *missed |= loaded && level == 1;
    Ok(loaded)
}

/// What the record cache knows of `key`, whose leaf is `id`, a child of `parent` that is away.
pub(super) fn recall(
    pool: &Pool,
    parent: &ReadGuard<'_>,
    id: PageId,
    key: &[u8],
) -> Result<Option<Option<Found>>, Stop> {
    // What is read of a parent that is changing may lead anywhere.
    parent.validate()?;
    let Some(record) = pool.recall(id, key) else { return Ok(None) };
    // The page was this parent's all the time, and no other tree's.
    if !planted(Bug::RecordOfLeftPage) {
        parent.validate()?;
    }
    let found = |value| Found { timestamp: record.timestamp, value: Stored::Inline(value) };
    Ok(Some(record.value.map(found)))
}

/// Takes what was found in a leaf into the record cache, unless it is long, and elsewhere.
#[cold]
pub(super) fn remember(pool: &Pool, leaf: &ReadGuard<'_>, key: &[u8], found: Option<&Found>) {
    let (timestamp, value) = match found {
        None => (Timestamp::NONE, None),
        Some(Found { timestamp, value: Stored::Inline(value) }) => (*timestamp, Some(&value[..])),
        Some(Found { value: Stored::Overflow(_), .. }) => return,
    };
    pool.remember(leaf, key, timestamp, value);
}

/// The record of `key` in its leaf, validated.
#[inline]
pub(super) fn record(leaf: &ReadGuard<'_>, key: &[u8]) -> Result<Option<Found>, Stop> {
    let found = record_in(&Node::new(leaf.view()), key, || leaf.validate())?;
    if let Some(Found { value: Stored::Inline(value), .. }) = &found {
        leaf.copied(value.len());
    }
    Ok(found)
}

/// The record of `key` in its leaf, if `validate` says that what was read is one version of it.
#[inline]
pub(super) fn record_in<V: View>(
    node: &Node<V>,
    key: &[u8],
    validate: impl Fn() -> Result<(), Stop>,
) -> Result<Option<Found>, Stop> {
    let Some(entry) = leaf::find(node, key) else {
        validate()?;
        return Ok(None);
    };
    let mut value = Vec::with_capacity(entry.value_length);
    node.append_value(&entry, &mut value);
    validate()?;
    let value = if entry.is_overflow() {
        let malformed = || Stop::from(damaged_page(node.page(), "a malformed reference to a long value"));
        Stored::Overflow(Reference::decode(&value).ok_or_else(malformed)?)
    } else {
        Stored::Inline(value)
    };
    Ok(Some(Found { timestamp: entry.timestamp, value }))
}
