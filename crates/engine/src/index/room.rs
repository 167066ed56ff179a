//! Splits before a transaction of several changes begins.
//!
//! Once its first record is in the log, a transaction can neither be given up without undoing it nor have the log cut
//! behind it. How many splits it needs cannot be told from its bytes: one small entry into each of many full leaves
//! splits all of them. So where more leaves than a few are crowded they are split before, by system records of their
//! own, which stay whatever becomes of the transaction. What remains are the splits of leaves that take more than
//! about half a page, which the commit counts by their bytes.

use super::apply::SPLITS_MAX;
use super::edit::damaged_page;
use super::leaf;
use super::node::{LEAF, Node, SLOT, align8, entry_header};
use super::tree::{Seek, Tree, retry};
use crate::buffer::Pool;
use crate::buffer::view::View;
use crate::error::Result;

/// Crowded leaves, of all trees together, that are left to be split within the transaction. An ascending load fills its last leaf that way.
pub(crate) const CROWDED_MAX: usize = 2;

/// A put to come: key, and bytes of the value as the leaf will have it.
pub(crate) type Put<'a> = (&'a [u8], usize);

/// What of a list of puts goes to the first one's leaf.
struct Share {
    puts: usize,
    /// The length of the first one's value if it were to take the room of all.
    wanted: usize,
    crowded: bool,
}

impl Tree {
    /// How many leaves `puts`, which are in key order, would crowd. Stops counting at `enough`.
    pub(crate) fn crowded(&self, pool: &Pool, puts: &[Put<'_>], enough: usize) -> Result<usize> {
        let (mut rest, mut crowded) = (puts, 0);
        while !rest.is_empty() && crowded < enough {
            let share = self.share(pool, rest)?;
            crowded += usize::from(share.crowded);
            rest = &rest[share.puts..];
        }
        Ok(crowded)
    }

    /// Splits the leaves that `puts`, which are in key order, would crowd.
    pub(crate) fn make_room_for(&self, pool: &Pool, puts: &[Put<'_>]) -> Result<()> {
        let (mut rest, mut splits) = (puts, 0);
        while let Some((key, _)) = rest.first() {
            let share = self.share(pool, rest)?;
            if !share.crowded {
                (rest, splits) = (&rest[share.puts..], 0);
            } else if splits < SPLITS_MAX {
                self.make_room(pool, &mut None, &mut None, 0, key, share.wanted)?;
                splits += 1;
            } else {
                return Err(damaged_page(self.root, "splits below it make no room"));
            }
        }
        Ok(())
    }

    fn share(&self, pool: &Pool, puts: &[Put<'_>]) -> Result<Share> {
        retry(self.root, || {
            let leaf = self.leaf(pool, Seek::At(puts[0].0))?;
            let share = share(&Node::new(leaf.view()), puts);
            leaf.validate()?;
            Ok(share)
        })
    }
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
    // More than one leaf can have room for is counted by its bytes.
    let wanted = if all <= leaf::max_inline_value(node.page_bytes(), first.len()) { all } else { length };
    let old = leaf::find(node, first);
    Share { puts: here, wanted, crowded: !leaf::has_room_beside(node, old.as_ref(), first, wanted) }
}
