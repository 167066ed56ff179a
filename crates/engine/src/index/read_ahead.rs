//! Read-ahead: fetches the leaves that a scan reaches next.
//!
//! Leaves have no links; their parent names them. A scan about to read a leaf fetches that leaf and
//! the parent's next children in one batch. This is only advice: the scan still descends to each
//! leaf, and that descent reports any error.
//!
//! It skips the first leaf, unless the entry count is known: many scans end there. It also skips
//! while nothing misses. It begins with two leaves and doubles up to a batch whenever the scan uses
//! them up. It never passes the range or the parent's last child.

use std::cell::Cell;

use super::node::Node;
use super::tree::{Seek, Tree};
use crate::ids::PageId;
use crate::pool::{Pool, ReadReason, Retry, batch_pages, fault_many};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Toward {
    Up,
    Down,
}

thread_local! {
    /// Pages missed by any thread, as of this thread's last check.
    static MISSES_SEEN: Cell<u64> = const { Cell::new(0) };
}

/// Read-ahead state of one end of a scan.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// Leaves reached.
    leaves: u64,
    /// Size of the last batch.
    window: usize,
    /// Leaves of that batch not reached yet.
    left: usize,
    expected: Option<usize>,
}

impl Ahead {
    pub(crate) fn expect(&mut self, entries: usize) {
        self.expected = Some(entries);
    }

    /// Whether the scan probably continues behind a leaf of `rows` rows.
    pub(crate) fn wants_more_than(&self, rows: usize) -> bool {
        self.expected.map_or(self.leaves > 1, |entries| entries > rows)
    }

    /// Runs before a scan reads the leaf at `seek`; the leaf before had `rows_before` rows.
    /// `within` tells whether a leaf bounded by this separator is in the range.
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
        // A scan that exceeds its expected count becomes an ordinary scan.
        self.expected = self.expected.and_then(|entries| entries.checked_sub(rows_before));
        if self.left > 0 {
            self.left -= 1;
            return;
        }
        let misses = pool.misses();
        if self.leaves == 1 || MISSES_SEEN.replace(misses) == misses {
            return;
        }
        let most = batch_pages(pool, tree.class());
        let wanted = match self.expected {
            Some(entries) => entries.div_ceil(rows_before.max(1)),
            None => self.window * 2,
        };
        if wanted < 2 && self.expected.is_some() {
            return;
        }
        self.window = wanted.max(2).min(most);
        let asked = read_ahead(tree, pool, seek, toward, self.window, within);
        self.left = asked.saturating_sub(1);
    }
}

/// Fetches the leaf at `seek` and the next ones, `most` in all; returns how many.
fn read_ahead(
    tree: Tree,
    pool: &Pool,
    seek: Seek<'_>,
    toward: Toward,
    most: usize,
    within: &dyn Fn(&[u8]) -> bool,
) -> usize {
    let mut leaves = Vec::with_capacity(most);
    let found = leaves_from(tree, pool, seek, toward, most, within, &mut leaves);
    if found.is_err() || leaves.len() < 2 {
        return 0;
    }
    // The descent reports a missing frame or an unreadable page.
    let _ = fault_many(pool, &leaves, ReadReason::Ahead, &mut |_, _| {});
    leaves.len()
}

/// The leaf at `seek` and its next siblings, at one parent version.
fn leaves_from(
    tree: Tree,
    pool: &Pool,
    seek: Seek<'_>,
    toward: Toward,
    most: usize,
    within: &dyn Fn(&[u8]) -> bool,
    leaves: &mut Vec<PageId>,
) -> Result<(), Retry> {
    let Some((_, parent)) = tree.descend(pool, seek, 1)? else { return Ok(()) };
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
