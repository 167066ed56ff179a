//! Inner nodes: children and the separators between them.
//!
//! Child 0 has the keys below the first separator, child i + 1 those from separator i on. A
//! separator and the child to its right form one entry: a split inserts both, a merge removes both.
//!
//! Every inner node has room for three separators of the longest key, whatever its fences. So a
//! full node has at least three, and a split leaves at least one on either side.

use super::edit::{self, damaged};
use super::layout::{Body, INNER, Node, SLOT, align8, entry_header};
use crate::error::Result;
use crate::ids::MAX_KEY_BYTES;
use crate::ids::PageId;
use crate::pool::view::View;

pub(crate) fn init(
    page: &mut [u8],
    level: u8,
    id: PageId,
    lower: &[u8],
    upper: Option<&[u8]>,
    leftmost: PageId,
) {
    edit::init(page, INNER, level, id, lower, upper, leftmost);
}

pub(crate) fn has_room<V: View>(view: V, separator_length: usize) -> bool {
    let node = Node::new(view);
    let suffix_length = separator_length.saturating_sub(node.prefix());
    SLOT + align8(entry_header(INNER) + suffix_length) <= node.free_bytes()
}

/// Inserts a separator and its right child. `false`: no room, and nothing changed.
pub(crate) fn insert(page: &mut [u8], separator: &[u8], child: PageId) -> Result<bool> {
    let (index, found) = search(page, separator)?;
    if found || child.is_none() || separator.is_empty() || separator.len() > MAX_KEY_BYTES {
        return Err(damaged(page, "a separator that is there already or cannot be one"));
    }
    edit::insert(page, index, separator, &Body::Inner { child })
}

/// Removes a separator and its right child; `false` if it is absent.
pub(crate) fn remove(page: &mut [u8], separator: &[u8]) -> Result<bool> {
    let (index, found) = search(page, separator)?;
    if found {
        edit::remove(page, index)?;
    }
    Ok(found)
}

fn search(page: &[u8], separator: &[u8]) -> Result<(usize, bool)> {
    edit::Shape::of(page)?;
    let node = Node::new(page);
    if node.is_leaf() {
        return Err(damaged(page, "a separator for a page that is not an inner node"));
    }
    if !node.contains(separator) {
        return Err(damaged(page, "a separator outside the fences of its node"));
    }
    Ok(node.lower_bound(separator))
}
