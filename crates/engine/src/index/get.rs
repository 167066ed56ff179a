//! Point reads: one descent, one search, one copy of the value.

use super::edit::damaged_page;
use super::leaf;
use super::node::Node;
use super::overflow::Reference;
use super::tree::{Seek, Tree, retry};
use crate::buffer::view::View;
use crate::buffer::{Pool, ReadGuard, Stop};
use crate::error::Result;
use crate::ids::Timestamp;

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
    /// The record of `key`.
    pub(crate) fn get(&self, pool: &Pool, key: &[u8]) -> Result<Option<Found>> {
        retry(self.root, || {
            let leaf = self.leaf(pool, Seek::At(key))?;
            record(&leaf, key)
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
            Ok(found)
        })
    }
}

/// The record of `key` in its leaf, validated.
#[inline]
pub(super) fn record(leaf: &ReadGuard<'_>, key: &[u8]) -> Result<Option<Found>, Stop> {
    record_in(&Node::new(leaf.view()), key, || leaf.validate())
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
