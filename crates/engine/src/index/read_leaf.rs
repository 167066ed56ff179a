//! Scans read the tree a leaf at a time: one validated copy, whose rows are then looked at in peace.
//!
//! There are no links between leaves. A scan goes on at the upper fence of the leaf it has, a reverse one before
//! the lower fence; both are exact, so nothing is seen twice and nothing is skipped, whatever is split or merged in
//! between. A leaf may be empty.

use super::edit::damaged_page;
use super::node::{HEAP, Node, SLOT, slots_at};
use super::tree::{Seek, Tree, retry};
use crate::buffer::view::View;
use crate::buffer::{Pool, Stop};
use crate::error::Result;
use crate::ids::{PageId, Timestamp};

/// The rows of one leaf, at one version of it. Its memory is used again by the next [`Tree::read_leaf`].
#[derive(Clone, Debug, Default)]
pub(crate) struct LeafRows {
    /// The leaf.
    pub(crate) leaf: PageId,
    /// The version these rows are of; see [`Tree::leaf_version_is`].
    pub(crate) version: u64,
    /// Every key of the leaf is at or above this.
    pub(crate) lower: Vec<u8>,
    /// Every key of the leaf is below this; `None` in the last leaf.
    pub(crate) upper: Option<Vec<u8>>,
    page: Vec<u8>,
    keys: Vec<u8>,
    rows: Vec<Row>,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    key_end: u32,
    value_at: u32,
    value_length: u32,
    flags: u8,
    timestamp: Timestamp,
}

impl LeafRows {
    /// No rows, of no leaf.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// How many rows there are.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Key of row `index`; the rows are sorted by it.
    pub(crate) fn key(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.rows[before].key_end);
        &self.keys[start as usize..self.rows[index].key_end as usize]
    }

    /// The commit that wrote row `index`.
    pub(crate) fn timestamp(&self, index: usize) -> Timestamp {
        self.rows[index].timestamp
    }

    /// [`OVERFLOW`](super::node::OVERFLOW) or nothing.
    pub(crate) fn flags(&self, index: usize) -> u8 {
        self.rows[index].flags
    }

    /// The value of row `index`, or the reference to it.
    pub(crate) fn value(&self, index: usize) -> &[u8] {
        let row = &self.rows[index];
        let start = row.value_at as usize;
        self.page.get(start..start + row.value_length as usize).unwrap_or_default()
    }

    /// The first row whose key is at or above `key`.
    pub(crate) fn lower_bound(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.key(middle) < key { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Whether this is the leaf that `seek` asks for, by its fences.
    fn answers(&self, seek: Seek<'_>) -> bool {
        let (lower, upper) = (self.lower.as_slice(), self.upper.as_deref());
        match seek {
            Seek::First => lower.is_empty(),
            Seek::Last => upper.is_none(),
            Seek::At(key) => lower <= key && upper.is_none_or(|upper| key < upper),
            Seek::Before(key) => lower < key && upper.is_none_or(|upper| key <= upper),
        }
    }

    /// Takes the rows out of the copy in `page`.
    fn index(&mut self) {
        let node = Node::new(&self.page[..]);
        self.keys.clear();
        self.rows.clear();
        for index in 0..node.count() {
            node.append_key(index, &mut self.keys);
            let entry = node.entry(index);
            self.rows.push(Row {
                key_end: self.keys.len() as u32,
                value_at: entry.value_at as u32,
                value_length: entry.value_length as u32,
                flags: entry.flags,
                timestamp: entry.timestamp,
            });
        }
        node.copy_fences(&mut self.lower, &mut self.upper);
    }
}

impl Tree {
    /// Fills `rows` with those of one leaf.
    pub(crate) fn read_leaf(&self, pool: &Pool, seek: Seek<'_>, rows: &mut LeafRows) -> Result<()> {
        retry(self.root, || {
            let leaf = self.leaf(pool, seek)?;
            let view = leaf.view();
            let node = Node::new(view);
            // The gap between slots and heap is not worth copying.
            let page_bytes = pool.page_bytes();
            rows.page.resize(page_bytes, 0);
            let slots_end = (slots_at(node.kind()) + node.count() * SLOT).min(page_bytes);
            let heap = (usize::from(view.u16(HEAP)) * 8).clamp(slots_end, page_bytes);
            view.copy_to(0, &mut rows.page[..slots_end]);
            view.copy_to(heap, &mut rows.page[heap..]);
            leaf.validate()?;
            rows.leaf = leaf.id();
            rows.version = leaf.version();
            Ok::<_, Stop>(())
        })?;
        rows.index();
        if rows.answers(seek) {
            return Ok(());
        }
        // Whoever goes from leaf to leaf by the fences would go round for ever.
        Err(damaged_page(rows.leaf, "its fences contradict the nodes above it"))
    }

    /// Whether a leaf read before is still resident and has not moved since: nothing was added to it or taken away.
    pub(crate) fn leaf_version_is(&self, pool: &Pool, leaf: PageId, version: u64) -> bool {
        pool.version_is(leaf, version)
    }
}
