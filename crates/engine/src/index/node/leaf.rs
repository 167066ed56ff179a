//! Leaves: keys, the commit that wrote each, and values.
//!
//! A value too long for its leaf is a reference to overflow pages. [`max_record`] limits key and
//! value together. A record of that size fits beside two fences of the longest key, so splitting
//! always makes room for it. In pages above 4 KiB two such records fit.

use super::edit::{self, damaged};
use super::layout::{Body, Entry, LEAF, Node, OVERFLOW, SLOT, align8, entry_header, slots_at};
use super::overflow::Reference;
use crate::error::Result;
use crate::ids::MAX_KEY_BYTES;
use crate::ids::{PageId, Timestamp};
use crate::pool::view::View;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    Inserted,
    Replaced,
    /// No room, and nothing changed: split the leaf.
    DoesNotFit,
}

/// The largest record, key plus value, that a leaf stores inline.
pub(crate) const fn max_record(page_bytes: usize) -> usize {
    let space = page_bytes - slots_at(LEAF) - 2 * align8(MAX_KEY_BYTES);
    let share = if page_bytes > 4096 { space / 2 } else { space };
    (share & !7) - SLOT - entry_header(LEAF)
}

/// The longest inline value under a key of this length.
pub(crate) const fn max_inline_value(page_bytes: usize, key_length: usize) -> usize {
    max_record(page_bytes).saturating_sub(key_length)
}

pub(crate) fn init(page: &mut [u8], id: PageId, lower: &[u8], upper: Option<&[u8]>) {
    edit::init(page, LEAF, 0, id, lower, upper, PageId::NONE);
}

#[inline]
pub(crate) fn find<V: View>(node: &Node<V>, key: &[u8]) -> Option<Entry> {
    let (index, found) = node.lower_bound(key);
    found.then(|| node.entry(index))
}

/// Whether a [`put`] would fit; asked before a page is copied.
pub(crate) fn has_room<V: View>(view: V, key: &[u8], value_length: usize) -> bool {
    let node = Node::new(view);
    has_room_beside(&node, find(&node, key).as_ref(), key, value_length)
}

/// [`has_room`], if the caller knows the entry to replace.
pub(in crate::index) fn has_room_beside<V: View>(
    node: &Node<V>,
    old: Option<&Entry>,
    key: &[u8],
    value_length: usize,
) -> bool {
    let suffix_length = key.len().saturating_sub(node.prefix());
    let size = align8(entry_header(LEAF) + suffix_length + value_length);
    match old {
        Some(old) => {
            size <= node.free_bytes() + align8(entry_header(LEAF) + suffix_length + old.value_length)
        }
        None => size + SLOT <= node.free_bytes(),
    }
}

/// Writes `key`; overwrites in place if the old value's room suffices.
pub(crate) fn put(page: &mut [u8], key: &[u8], timestamp: Timestamp, flags: u8, value: &[u8]) -> Result<Put> {
    let index = search(page, key)?;
    if key.len() > MAX_KEY_BYTES || key.len() + value.len() > max_record(page.len()) {
        return Err(damaged(page, "a record too long for a leaf"));
    }
    if flags & !OVERFLOW != 0 || (flags & OVERFLOW != 0 && value.len() != Reference::BYTES) {
        return Err(damaged(page, "a record with unknown flags or a malformed reference"));
    }
    let body = Body::Leaf { timestamp, flags, value };
    let (fits, done) = match index {
        (index, true) => (edit::replace(page, index, key, &body)?, Put::Replaced),
        (index, false) => (edit::insert(page, index, key, &body)?, Put::Inserted),
    };
    Ok(if fits { done } else { Put::DoesNotFit })
}

/// Overwrites the value of `key` from offset `at` on; its length stays.
pub(crate) fn patch(
    page: &mut [u8],
    key: &[u8],
    timestamp: Timestamp,
    at: usize,
    bytes: &[u8],
) -> Result<()> {
    match search(page, key)? {
        (index, true) => edit::patch(page, index, timestamp, at, bytes),
        _ => Err(damaged(page, "a value to be changed in part is not there")),
    }
}

/// Where `new` differs from `old`, as offset and bytes. None if that is all of it, or the lengths
/// differ. Compares words, so the part may begin or end with up to seven equal bytes.
#[inline]
pub(crate) fn difference<'a>(old: &[u8], new: &'a [u8]) -> Option<(usize, &'a [u8])> {
    let is_all = || old.first_chunk::<8>() != new.first_chunk() && old.last_chunk::<8>() != new.last_chunk();
    if old.len() != new.len() || is_all() { None } else { difference_inside(old, new) }
}

fn difference_inside<'a>(old: &[u8], new: &'a [u8]) -> Option<(usize, &'a [u8])> {
    let before = old.chunks_exact(8).zip(new.chunks_exact(8)).take_while(|(old, new)| old == new).count() * 8;
    let behind = old[before..].rchunks_exact(8).zip(new[before..].rchunks_exact(8));
    let end = new.len() - behind.take_while(|(old, new)| old == new).count() * 8;
    (end - before < new.len()).then(|| (before, &new[before..end]))
}

/// Removes `key`; `false` if it is absent.
pub(crate) fn remove(page: &mut [u8], key: &[u8]) -> Result<bool> {
    let (index, found) = search(page, key)?;
    if found {
        edit::remove(page, index)?;
    }
    Ok(found)
}

fn search(page: &[u8], key: &[u8]) -> Result<(usize, bool)> {
    edit::Shape::of(page)?;
    let node = Node::new(page);
    if !node.is_leaf() {
        return Err(damaged(page, "a record for a page that is not a leaf"));
    }
    if !node.contains(key) {
        return Err(damaged(page, "a key outside the fences of its leaf"));
    }
    Ok(node.lower_bound(key))
}
