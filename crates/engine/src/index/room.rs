//! Splits before a transaction of several changes.
//!
//! After its first log record, a transaction needs undo to give up, and it holds back the log cut.
//! Its bytes do not bound its splits: small entries into many full leaves split them all. So system
//! records split crowded leaves first if there are more than a few; those splits survive an abort.
//! Only leaves that take more than about half a page split later, which the commit counts by bytes.

use super::node::edit::damaged_page;
use super::node::leaf;
use super::node::{LEAF, Node, SLOT, align8, entry_header};
use super::smo::{SPLITS_MAX, make_room};
use super::tree::{Seek, Tree, retry};
use crate::error::Result;
use crate::pool::Pool;
use crate::pool::view::View;

/// Crowded leaves, over all trees, left to split within the transaction. An ascending load fills
/// its last leaf that way.
pub(crate) const CROWDED_MAX: usize = 2;

/// Key, and bytes of its value in the leaf.
pub(crate) type Put<'a> = (&'a [u8], usize);

/// The puts of a list that go to one leaf.
struct Share {
    puts: usize,
    /// A value length for the first put that stands for all.
    wanted: usize,
    crowded: bool,
}

/// Counts the leaves that `puts`, in key order, would crowd, up to `enough`.
pub(crate) fn crowded(tree: Tree, pool: &Pool, puts: &[Put<'_>], enough: usize) -> Result<usize> {
    let (mut rest, mut crowded) = (puts, 0);
    while !rest.is_empty() && crowded < enough {
        let share = share_of(tree, pool, rest)?;
        crowded += usize::from(share.crowded);
        rest = &rest[share.puts..];
    }
    Ok(crowded)
}

/// Splits the leaves that `puts`, in key order, would crowd.
pub(crate) fn make_room_for(tree: Tree, pool: &Pool, puts: &[Put<'_>]) -> Result<()> {
    let (mut rest, mut splits) = (puts, 0);
    while let Some((key, _)) = rest.first() {
        let share = share_of(tree, pool, rest)?;
        if !share.crowded {
            (rest, splits) = (&rest[share.puts..], 0);
        } else if splits < SPLITS_MAX {
            make_room(tree, pool, &mut None, &mut None, 0, key, share.wanted)?;
            splits += 1;
        } else {
            return Err(damaged_page(tree.root, "splits below it make no room"));
        }
    }
    Ok(())
}

fn share_of(tree: Tree, pool: &Pool, puts: &[Put<'_>]) -> Result<Share> {
    retry(tree.root, || {
        let leaf = tree.leaf(pool, Seek::At(puts[0].0))?;
        let share = share(&Node::new(leaf.view()), puts);
        leaf.validate()?;
        Ok(share)
    })
}

fn share<V: View>(node: &Node<V>, puts: &[Put<'_>]) -> Share {
    let upper = node.fences().upper;
    let inside = |&&(key, _): &&Put<'_>| upper.as_deref().is_none_or(|upper| key < upper);
    let here = puts.iter().take_while(inside).count().max(1);
    let gained = |&(key, length): &Put<'_>| {
        let bytes = |length| align8(entry_header(LEAF) + key.len() + length);
        match leaf::find(node, key) {
            Some(old) => bytes(length).saturating_sub(bytes(old.value_length)),
            None => bytes(length) + SLOT,
        }
    };
    let (first, length) = puts[0];
    let all = length + puts[1..here].iter().map(gained).sum::<usize>();
    // Puts beyond the room of one leaf are counted by their bytes.
    let wanted = if all <= leaf::max_inline_value(node.page_bytes(), first.len()) { all } else { length };
    let old = leaf::find(node, first);
    Share { puts: here, wanted, crowded: !leaf::has_room_beside(node, old.as_ref(), first, wanted) }
}
