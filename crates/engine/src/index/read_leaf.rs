//! Scans read the tree a leaf at a time: one validated copy, whose rows are then looked at in peace.
//!
//! There are no links between leaves. A scan goes on at the upper fence of the leaf it has, a reverse one before
//! the lower fence; both are exact, so nothing is seen twice and nothing is skipped, whatever is split or merged in
//! between. A leaf may be empty.
//!
//! Nor is each leaf looked for from the root. The rows remember where their leaf hung: the parent, its version, and the
//! place among its children. As long as the parent is at that version, the child beside is the leaf at the fence, and
//! going there is the last step of a descent. And while the rows of one leaf are looked at, the processor can be
//! fetching the next one ([`Tree::prefetch_beside`]), which the parent names too.

use std::cell::Cell;

use super::edit::damaged_page;
use super::node::{HEAP, Node, SLOT, slots_at};
use super::read_ahead::Toward;
use super::tree::{Seek, Tree, checked_level, child, retry};
use crate::buffer::migration::Access;
use crate::buffer::operation;
use crate::buffer::view::View;
use crate::buffer::{Pool, ReadGuard, Stop};
use crate::error::Result;
use crate::ids::{PageId, Timestamp};
use crate::threads::KEPT_BYTES_MAX;

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
    /// Where the leaf hung; none for a root.
    place: Option<Place>,
    /// The latest commit that wrote one of the rows.
    newest: Timestamp,
    /// The flags of all rows together.
    flags: u8,
    page: Vec<u8>,
    keys: Vec<u8>,
    rows: Vec<Row>,
}

/// A child of a node at one version of the node.
#[derive(Clone, Copy, Debug)]
struct Place {
    parent: PageId,
    version: u64,
    /// Which of the children, from 0 on.
    index: usize,
}

impl Place {
    /// The child beside it, going `toward`, if `parent` has one.
    fn beside<V: View>(&self, parent: &Node<V>, toward: Toward) -> Option<usize> {
        match toward {
            Toward::Up => Some(self.index + 1).filter(|index| *index <= parent.count()),
            Toward::Down => self.index.checked_sub(1),
        }
    }

    /// The parent, if it is still at the version.
    fn parent<'p>(&self, pool: &'p Pool) -> Option<ReadGuard<'p>> {
        pool.glance(self.parent).filter(|parent| parent.version() == self.version)
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
    /// No rows, of no leaf.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// No rows, in memory that [`LeafRows::give_back`] has left to this thread, if it has.
    pub(crate) fn lent() -> Self {
        // A thread's own memory may be gone before what else it keeps, such as a scan, is dropped.
        let spare = SPARE.try_with(Cell::take).ok().flatten();
        spare.map_or_else(Self::default, |mut rows| {
            (rows.place, rows.upper) = (None, None);
            rows.lower.clear();
            rows.rows.clear();
            *rows
        })
    }

    /// Leaves the memory to the thread, if it is not too much to keep beside the budget.
    pub(crate) fn give_back(self) {
        if !self.page.is_empty() && self.size_bytes() <= KEPT_BYTES_MAX {
            // The thread may be ending, and have given up its own memory before this scan.
            let _ = SPARE.try_with(|spare| spare.set(Some(Box::new(self))));
        }
    }

    /// Bytes of memory taken.
    fn size_bytes(&self) -> usize {
        let bounds = self.lower.capacity() + self.upper.as_ref().map_or(0, Vec::capacity);
        let rows = self.rows.capacity() * size_of::<Row>();
        self.page.capacity() + self.keys.capacity() + rows + bounds
    }

    /// Whether every row was written by `at` and has its value here.
    #[inline]
    pub(crate) fn are_all_of(&self, at: Timestamp) -> bool {
        self.newest <= at && self.flags == 0
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

    /// Copies `leaf`, the child at `place`. The gap between slots and heap is not worth copying.
    fn copy(&mut self, leaf: &ReadGuard<'_>, place: Option<Place>) -> Result<(), Stop> {
        let view = leaf.view();
        let node = Node::new(view);
        let page_bytes = leaf.id().page_bytes();
        self.page.resize(page_bytes, 0);
        let slots_end = (slots_at(node.kind()) + node.count() * SLOT).min(page_bytes);
        let heap = (usize::from(view.u16(HEAP)) * 8).clamp(slots_end, page_bytes);
        view.copy_to(0, &mut self.page[..slots_end]);
        view.copy_to(heap, &mut self.page[heap..]);
        leaf.validate()?;
        leaf.copied(slots_end + page_bytes - heap);
        (self.leaf, self.version, self.place) = (leaf.id(), leaf.version(), place);
        Ok(())
    }
}

impl Tree {
    /// Fills `rows` with those of one leaf.
    pub(crate) fn read_leaf(&self, pool: &Pool, seek: Seek<'_>, rows: &mut LeafRows) -> Result<()> {
        retry(self.root, || {
            // Level 0 is in every tree.
            let (parent, leaf) = self.descend(pool, seek, 0)?.ok_or_else(|| pool.changed())?;
            let place = match parent {
                None => None,
                Some(parent) => {
                    let index = seek.child_index(&Node::new(parent.view()));
                    parent.validate()?;
                    Some(Place { parent: parent.id(), version: parent.version(), index })
                }
            };
            rows.copy(&leaf, place)
        })?;
        rows.index();
        if rows.answers(seek) {
            return Ok(());
        }
        // Whoever goes from leaf to leaf by the fences would go round for ever.
        Err(damaged_page(rows.leaf, "its fences contradict the nodes above it"))
    }

    /// Fills `rows`, which are of the leaf beside it, with those of the leaf at `seek`: the fence on the side that the
    /// scan goes `toward`.
    pub(crate) fn read_beside(
        &self,
        pool: &Pool,
        seek: Seek<'_>,
        toward: Toward,
        rows: &mut LeafRows,
    ) -> Result<()> {
        operation::begin(Access::Read);
        // Whatever goes wrong here, the descent meets it again if it is still so.
        if let Some(Ok(())) = step_beside(pool, toward, rows) {
            rows.index();
            if rows.answers(seek) {
                return Ok(());
            }
        }
        self.read_leaf(pool, seek, rows)
    }

    /// Asks for the memory with the leaf beside that of `rows`, and for what says where the one behind it is. Advice, by
    /// what the parent says.
    pub(crate) fn prefetch_beside(&self, pool: &Pool, toward: Toward, rows: &LeafRows) {
        let Some(place) = rows.place else { return };
        let Some(parent) = place.parent(pool) else { return };
        let node = Node::new(parent.view());
        let Some(next) = place.beside(&node, toward) else { return };
        // Leaves that lie beside each other tend to be filled alike.
        let heap = usize::from(View::u16(&&rows.page[..], HEAP)) * 8;
        let slots = slots_at(node.kind()) + rows.len() * SLOT;
        pool.prefetch_page(node.child_at(next), [0..slots.next_multiple_of(8), heap..self.page_bytes()]);
        if let Some(behind) = (Place { index: next, ..place }).beside(&node, toward) {
            pool.prefetch_entry(node.child_at(behind));
        }
    }

    /// Whether a leaf read before is still resident and has not moved since: nothing was added to it or taken away.
    pub(crate) fn leaf_version_is(&self, pool: &Pool, leaf: PageId, version: u64) -> bool {
        pool.version_is(leaf, version)
    }
}

/// Copies the leaf beside that of `rows`, if its parent is as it was.
fn step_beside(pool: &Pool, toward: Toward, rows: &mut LeafRows) -> Option<Result<(), Stop>> {
    let place = rows.place?;
    let parent = place.parent(pool)?;
    let node = Node::new(parent.view());
    let index = place.beside(&node, toward)?;
    let leaf = child(pool, &parent, node.child_at(index)).and_then(|leaf| {
        checked_level(&Node::new(leaf.view()), &leaf, Some(1))?;
        Ok(leaf)
    });
    Some(leaf.and_then(|leaf| {
        parent.mark();
        rows.copy(&leaf, Some(Place { index, ..place }))
    }))
}

thread_local! {
    /// Memory for rows that nobody needs just now.
    static SPARE: Cell<Option<Box<LeafRows>>> = const { Cell::new(None) };
}

/// Bytes of rows that the calling thread keeps.
#[cfg(test)]
pub(crate) fn rows_bytes_kept() -> usize {
    SPARE.with(|kept| {
        let rows = kept.take();
        let bytes = rows.as_ref().map_or(0, |rows| rows.size_bytes());
        kept.set(rows);
        bytes
    })
}
