//! Reading ahead: the leaves that a scan comes to next, fetched together.
//!
//! There are no links between leaves; their parent names them. A scan that is about to go to a leaf has the parent's next
//! children brought in by one batch, that leaf among them, and then reads leaf after leaf as always. It is advice and
//! nothing more: what was brought in counts only when it is read, by a descent of its own, and what goes wrong here
//! (a page is damaged, moved, latched; no frame is free) is left to that read to meet, if it ever comes.
//!
//! When, and how many:
//! - not for the first leaf, unless it is known how many entries will be taken: many scans end there;
//! - not while nothing is missed: everything is in memory then, and looking for what is not would be in vain;
//! - two leaves, then twice as many each time those asked for are used up, up to what a batch takes;
//! - never beyond the range, and not beyond the last child of the parent.

use std::cell::Cell;

use super::node::Node;
use super::tree::{Seek, Tree};
use crate::buffer::{Pool, Purpose, Stop};
use crate::ids::PageId;

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Toward {
    /// To higher keys.
    Up,
    /// To lower keys.
    Down,
}

thread_local! {
    /// How many pages had been missed, by anybody, when this thread last asked.
    static MISSES_SEEN: Cell<u64> = const { Cell::new(0) };
}

/// What one end of a scan has asked for.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// Leaves come to.
    leaves: u64,
    /// Leaves asked for at the last time.
    window: usize,
    /// Those of them that the scan has not come to.
    left: usize,
    /// Entries that will be taken, where the caller said so.
    expected: Option<usize>,
}

impl Ahead {
    /// Notes that about this many more entries will be taken.
    pub(crate) fn expect(&mut self, entries: usize) {
        self.expected = Some(entries);
    }

    /// Whether the scan, which has come to a leaf of `rows` rows, is likely to go on behind it.
    pub(crate) fn wants_more_than(&self, rows: usize) -> bool {
        self.expected.map_or(self.leaves > 1, |entries| entries > rows)
    }

    /// To be called before a scan reads the leaf at `seek`; the one before it had `rows_before` rows. `within` says
    /// whether a leaf that ends at this separator, on the side that the scan comes to first, is in the range.
    pub(crate) fn before_leaf(
        &mut self,
        pool: &Pool,
        tree: Tree,
        seek: Seek<'_>,
        toward: Toward,
        rows_before: usize,
        within: &dyn Fn(&[u8]) -> bool,
    ) {
        self.leaves += 1;
        // Whoever goes on beyond what he expected scans like anybody else.
        self.expected = self.expected.and_then(|entries| entries.checked_sub(rows_before));
        if self.left > 0 {
            self.left -= 1;
            return;
        }
        let misses = pool.misses();
        if self.leaves == 1 || MISSES_SEEN.replace(misses) == misses {
            return;
        }
        let most = pool.batch_pages(tree.class());
        let wanted = match self.expected {
            Some(entries) => entries.div_ceil(rows_before.max(1)),
            None => self.window * 2,
        };
        if wanted < 2 && self.expected.is_some() {
            return;
        }
        self.window = wanted.max(2).min(most);
        let asked = tree.read_ahead(pool, seek, toward, self.window, within);
        self.left = asked.saturating_sub(1);
    }
}

impl Tree {
    /// Has the leaf at `seek` and the next ones brought into memory, `most` in all; how many that is.
    fn read_ahead(
        &self,
        pool: &Pool,
        seek: Seek<'_>,
        toward: Toward,
        most: usize,
        within: &dyn Fn(&[u8]) -> bool,
    ) -> usize {
        let mut leaves = Vec::with_capacity(most);
        let found = self.leaves_from(pool, seek, toward, most, within, &mut leaves);
        if found.is_err() || leaves.len() < 2 {
            return 0;
        }
        // No frame to be had, or a page that cannot be read: whoever comes to it will see.
        let _ = pool.fault_many(&leaves, Purpose::Ahead, &mut |_, _| {});
        leaves.len()
    }

    /// The leaf at `seek` and those beside it under the same parent, at a version of the parent.
    fn leaves_from(
        &self,
        pool: &Pool,
        seek: Seek<'_>,
        toward: Toward,
        most: usize,
        within: &dyn Fn(&[u8]) -> bool,
        leaves: &mut Vec<PageId>,
    ) -> Result<(), Stop> {
        let Some((_, parent)) = self.descend(pool, seek, 1)? else { return Ok(()) };
        let node = Node::new(parent.view());
        let first = seek.child_index(&node);
        let mut separator = Vec::new();
        for step in 0..most {
            let index = match toward {
                Toward::Up => first + step,
                Toward::Down => match first.checked_sub(step) {
                    Some(index) => index,
                    None => break,
                },
            };
            if index > node.count() {
                break;
            }
            if step > 0 {
                separator.clear();
                node.append_key(if toward == Toward::Up { index - 1 } else { index }, &mut separator);
                if !within(&separator) {
                    break;
                }
            }
            leaves.push(node.child_at(index));
        }
        parent.validate()
    }
}
