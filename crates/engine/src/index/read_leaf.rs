//! Scans read one leaf at a time, as a validated copy.
//!
//! Leaves have no links. A scan continues at the upper fence of its leaf, a reverse scan before the
//! lower fence. Both are exact, so concurrent splits and merges hide or repeat nothing. A leaf may
//! be empty.
//!
//! A scan rarely descends from the root. The rows remember the parent, its version and the child
//! index. While the parent keeps that version, its neighbouring child is the leaf at the fence. The
//! parent also lets the scan prefetch the next leaf ([`Tree::prefetch_beside`]).

use std::cell::Cell;

use super::node::edit::damaged_page;
use super::node::{HEAP, Node, SLOT, slots_at};
use super::read_ahead::Toward;
use super::tree::{Seek, Tree, checked_level, child, retry};
use crate::error::Result;
use crate::ids::{PageId, Timestamp};
use crate::pool::migration::Access;
use crate::pool::operation;
use crate::pool::view::View;
use crate::pool::{Pool, ReadGuard, Retry};
use crate::threads::KEPT_BYTES_MAX;

/// The rows of one leaf version, in memory that [`Tree::read_leaf`] reuses.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeafRows {
    pub(crate) leaf: PageId,
    /// The version of these rows; see [`Tree::leaf_version_is`].
    pub(crate) version: u64,
    /// Inclusive.
    pub(crate) lower: Vec<u8>,
    /// Exclusive; `None` in the last leaf.
    pub(crate) upper: Option<Vec<u8>>,
    /// The leaf's entry in its parent; none for a root.
    parent_slot: Option<ParentSlot>,
    newest: Timestamp,
    /// The flags of all rows, combined.
    flags: u8,
    page: Vec<u8>,
    keys: Vec<u8>,
    rows: Vec<Row>,
}

/// A child index at one version of its parent.
#[derive(Clone, Copy, Debug)]
struct ParentSlot {
    parent: PageId,
    version: u64,
    index: usize,
}

impl ParentSlot {
    /// The index of the sibling in direction `toward`, if `parent` has one.
    fn beside<V: View>(&self, parent: &Node<V>, toward: Toward) -> Option<usize> {
        match toward {
            Toward::Up => Some(self.index + 1).filter(|index| *index <= parent.count()),
            Toward::Down => self.index.checked_sub(1),
        }
    }

    /// The parent, if its version is unchanged.
    fn parent<'p>(&self, pool: &'p Pool) -> Option<ReadGuard<'p>> {
        pool.try_read(self.parent).filter(|parent| parent.version() == self.version)
    }
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
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Empty rows, in the memory that [`LeafRows::give_back`] left to this thread.
    pub(crate) fn lent() -> Self {
        // The thread-local may be gone before a scan in another one is dropped.
        let spare = SPARE.try_with(Cell::take).ok().flatten();
        spare.map_or_else(Self::default, |mut rows| {
            (rows.parent_slot, rows.upper) = (None, None);
            rows.lower.clear();
            rows.rows.clear();
            *rows
        })
    }

    /// Leaves the memory to the thread, if small: it is outside the budget.
    pub(crate) fn give_back(self) {
        if !self.page.is_empty() && self.size_bytes() <= KEPT_BYTES_MAX {
            // The ending thread may have dropped its thread-local already.
            let _ = SPARE.try_with(|spare| spare.set(Some(Box::new(self))));
        }
    }

    fn size_bytes(&self) -> usize {
        let bounds = self.lower.capacity() + self.upper.as_ref().map_or(0, Vec::capacity);
        let rows = self.rows.capacity() * size_of::<Row>();
        self.page.capacity() + self.keys.capacity() + rows + bounds
    }

    /// Whether every row was written by `at` and has its value inline.
    #[inline]
    pub(crate) fn are_all_of(&self, at: Timestamp) -> bool {
        self.newest <= at && self.flags == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Rows are sorted by key.
    pub(crate) fn key(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.rows[before].key_end);
        &self.keys[start as usize..self.rows[index].key_end as usize]
    }

    pub(crate) fn timestamp(&self, index: usize) -> Timestamp {
        self.rows[index].timestamp
    }

    /// [`OVERFLOW`](super::node::OVERFLOW) or 0.
    pub(crate) fn flags(&self, index: usize) -> u8 {
        self.rows[index].flags
    }

    /// The value of row `index`, or the reference to it.
    pub(crate) fn value(&self, index: usize) -> &[u8] {
        let row = &self.rows[index];
        let start = row.value_at as usize;
        self.page.get(start..start + row.value_length as usize).unwrap_or_default()
    }

    pub(crate) fn lower_bound(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.key(middle) < key { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Whether the fences match `seek`.
    fn answers(&self, seek: Seek<'_>) -> bool {
        let (lower, upper) = (self.lower.as_slice(), self.upper.as_deref());
        match seek {
            Seek::First => lower.is_empty(),
            Seek::Last => upper.is_none(),
            Seek::At(key) => lower <= key && upper.is_none_or(|upper| key < upper),
            Seek::Before(key) => lower < key && upper.is_none_or(|upper| key <= upper),
        }
    }

    /// Builds the rows from the copy in `page`.
    fn index(&mut self) {
        let node = Node::new(&self.page[..]);
        self.keys.clear();
        self.rows.clear();
        (self.newest, self.flags) = (Timestamp::NONE, 0);
        let prefix = node.prefix_bytes();
        for index in 0..node.count() {
            self.keys.extend_from_slice(prefix);
            self.keys.extend_from_slice(node.suffix(index));
            let entry = node.entry(index);
            self.newest = self.newest.max(entry.timestamp);
            self.flags |= entry.flags;
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

    /// Copies `leaf`, the child at `parent_slot`, without the gap between slots and heap.
    fn copy(&mut self, leaf: &ReadGuard<'_>, parent_slot: Option<ParentSlot>) -> Result<(), Retry> {
        let view = leaf.view();
        let node = Node::new(view);
        let page_bytes = leaf.id().page_bytes();
        self.page.resize(page_bytes, 0);
        let slots_end = (slots_at(node.kind()) + node.count() * SLOT).min(page_bytes);
        let heap = (usize::from(view.u16(HEAP)) * 8).clamp(slots_end, page_bytes);
        view.copy_to(0, &mut self.page[..slots_end]);
        view.copy_to(heap, &mut self.page[heap..]);
        leaf.validate()?;
        leaf.copied(slots_end + page_bytes - heap, |_, lines| {
            lines.add(0, slots_end);
            lines.add(heap, page_bytes - heap);
        });
        (self.leaf, self.version, self.parent_slot) = (leaf.id(), leaf.version(), parent_slot);
        Ok(())
    }
}

impl Tree {
    pub(crate) fn read_leaf(&self, pool: &Pool, seek: Seek<'_>, rows: &mut LeafRows) -> Result<()> {
        retry(self.root, || {
            // Every tree has level 0.
            let (parent, leaf) = self.descend(pool, seek, 0)?.ok_or_else(|| pool.count_restart())?;
            let parent_slot = match parent {
                None => None,
                Some(parent) => {
                    let index = seek.child_index(&Node::new(parent.view()));
                    parent.validate()?;
                    Some(ParentSlot { parent: parent.id(), version: parent.version(), index })
                }
            };
            rows.copy(&leaf, parent_slot)
        })?;
        rows.index();
        if rows.answers(seek) {
            return Ok(());
        }
        // A scan by fences would never end.
        Err(damaged_page(rows.leaf, "its fences contradict the nodes above it"))
    }

    /// Fills `rows`, which hold the sibling leaf, with the next leaf. `seek` is the fence in
    /// direction `toward`.
    pub(crate) fn read_beside(
        &self,
        pool: &Pool,
        seek: Seek<'_>,
        toward: Toward,
        rows: &mut LeafRows,
    ) -> Result<()> {
        operation::begin(Access::Read);
        // If the failure persists, the descent reports it.
        if let Some(Ok(())) = step_beside(pool, toward, rows) {
            rows.index();
            if rows.answers(seek) {
                return Ok(());
            }
        }
        self.read_leaf(pool, seek, rows)
    }

    /// Prefetches the leaf beside that of `rows`. Also the page-table entry of the one behind it.
    /// Advice only.
    pub(crate) fn prefetch_beside(&self, pool: &Pool, toward: Toward, rows: &LeafRows) {
        let Some(parent_slot) = rows.parent_slot else { return };
        let Some(parent) = parent_slot.parent(pool) else { return };
        let node = Node::new(parent.view());
        let Some(next) = parent_slot.beside(&node, toward) else { return };
        // Neighbouring leaves tend to be filled alike.
        let heap = usize::from(View::u16(&&rows.page[..], HEAP)) * 8;
        let slots = slots_at(node.kind()) + rows.len() * SLOT;
        pool.prefetch_page(node.child_at(next), [0..slots.next_multiple_of(8), heap..self.page_bytes()]);
        if let Some(behind) = (ParentSlot { index: next, ..parent_slot }).beside(&node, toward) {
            pool.prefetch_entry(node.child_at(behind));
        }
    }

    /// Whether a leaf read before is resident and unchanged.
    pub(crate) fn leaf_version_is(&self, pool: &Pool, leaf: PageId, version: u64) -> bool {
        pool.version_is(leaf, version)
    }
}

/// Copies the leaf beside that of `rows`, if its parent is unchanged.
fn step_beside(pool: &Pool, toward: Toward, rows: &mut LeafRows) -> Option<Result<(), Retry>> {
    let parent_slot = rows.parent_slot?;
    let parent = parent_slot.parent(pool)?;
    let node = Node::new(parent.view());
    let index = parent_slot.beside(&node, toward)?;
    let leaf = child(pool, &parent, node.child_at(index)).and_then(|leaf| {
        checked_level(&Node::new(leaf.view()), &leaf, Some(1))?;
        Ok(leaf)
    });
    Some(leaf.and_then(|leaf| {
        parent.mark();
        rows.copy(&leaf, Some(ParentSlot { index, ..parent_slot }))
    }))
}

thread_local! {
    static SPARE: Cell<Option<Box<LeafRows>>> = const { Cell::new(None) };
}

/// Bytes of spare rows that the calling thread keeps.
#[cfg(test)]
pub(crate) fn rows_bytes_kept() -> usize {
    SPARE.with(|kept| {
        let rows = kept.take();
        let bytes = rows.as_ref().map_or(0, |rows| rows.size_bytes());
        kept.set(rows);
        bytes
    })
}
