//! Partial pages: some lines of a page in DRAM, above a middle copy that has all.
//!
//! A point read that promotes a leaf gives it a DRAM frame and loads no line (HyMem, section 3.1).
//! [`Lined`] loads the lines that a look touches. A change that keeps an entry's size changes those
//! lines. All other accesses make the page whole first: `try_read` finds no partial page, and
//! `Pool::fetch` calls [`make_whole`].
//!
//! A line is loaded under the exclusive latch taken at the version seen, which is released
//! unchanged: no byte changes that a reader may have read. Its bit is set after its bytes, and
//! tested before a look at them. A look that gets no latch reads zeros, and does not validate.

use std::cell::Cell;
use std::cmp::Ordering;
use std::ops::Range;

use super::frames::LineMasks;
use super::guard::{ReadGuard, WriteGuard};
use super::latch::Word;
use super::line_fault::fault;
use super::page_table::{Entry, Location};
use super::retry::Retry;
use super::tier::{Seen, partial};
use super::tiers::Tiers;
use super::view::{Racy, View, count_below};
use crate::ids::PageId;

/// Optimistic access to a partial page. Reads count only after `validate`.
pub(crate) struct PartialGuard<'p> {
    tiers: &'p Tiers,
    page: Seen<'p>,
    guard: ReadGuard<'p>,
    /// A look was refused a line.
    refused: Cell<bool>,
}

/// A partial page of which no byte was read yet. A descent that may end at one returns no more than
/// for a whole page: a larger result made cached gets 5 % slower.
pub(crate) struct Unread<'p>(ReadGuard<'p>);

impl<'p> Unread<'p> {
    pub(crate) fn open(self) -> PartialGuard<'p> {
        PartialGuard::new(self.0.tiers(), self.0)
    }
}

impl<'p> PartialGuard<'p> {
    /// `guard` is that of a partial page.
    pub(super) fn new(tiers: &'p Tiers, guard: ReadGuard<'p>) -> Self {
        PartialGuard { tiers, page: guard.page(), guard, refused: Cell::new(false) }
    }

    /// Starts an optimistic read if `id`, which may be garbage, is partial.
    ///
    /// # Errors
    /// [`Retry::Restart`] if it is latched, mostly for the load of a line.
    pub(crate) fn try_read(tiers: &'p Tiers, id: PageId) -> Result<Option<Self>, Retry> {
        let Some(entry) = tiers.table.entry(id).filter(|_| tiers.frames.lines.is_some()) else {
            return Ok(None);
        };
        let word = entry.latch().load();
        match entry.location() {
            Location::Partial(_) if word.is_exclusive() => Err(tiers.count_restart()),
            Location::Partial(frame) => {
                Ok(Some(PartialGuard::new(tiers, ReadGuard::new(tiers, id, entry, word, frame))))
            }
            _ => Ok(None),
        }
    }

    /// For an end of a descent; no look came before.
    pub(crate) fn into_unread(self) -> Unread<'p> {
        debug_assert!(!self.refused.get());
        Unread(self.guard)
    }

    /// For calls that read no byte of the page: its frame has some lines only.
    pub(crate) fn unread(&self) -> &ReadGuard<'p> {
        &self.guard
    }

    /// Marks the page for the sweep; the reference to it was valid.
    pub(crate) fn mark(&self) {
        self.guard.mark();
    }

    /// Checks that all reads so far saw one version, and lacked no line.
    pub(crate) fn validate(&self) -> Result<(), Retry> {
        if self.refused.get() { Err(self.tiers.count_restart()) } else { self.guard.validate() }
    }

    /// Latches the page exclusively at the version seen, for a change of lines that it has.
    pub(crate) fn upgrade(self) -> Result<WriteGuard<'p>, Retry> {
        if self.refused.get() { Err(self.tiers.count_restart()) } else { self.guard.upgrade() }
    }

    /// The page's bytes, which are loaded as a look needs them.
    pub(crate) fn view(&self) -> Lined<'_> {
        let Seen { id, frame, .. } = self.page;
        let lines = self.tiers.frames.lines.as_ref().expect("partial pages have lines");
        Lined { bytes: self.tiers.frames.view(id, frame), lines, guard: self }
    }

    #[cold]
    fn load(&self, lines: Range<usize>) -> bool {
        let Seen { id, entry, word, frame } = self.page;
        let is_partial = || entry.location() == Location::Partial(frame);
        fault(entry.latch(), word, is_partial, || {
            partial::load(self.tiers.middle_of_frame(), &self.tiers.resident, id, frame, lines);
        })
    }
}

/// A view of a partial page.
#[derive(Clone, Copy)]
pub(crate) struct Lined<'a> {
    bytes: Racy<'a>,
    lines: &'a LineMasks,
    guard: &'a PartialGuard<'a>,
}

impl Lined<'_> {
    /// Whether the bytes may be read, which may load them.
    #[inline]
    fn has(&self, at: usize, bytes: usize) -> bool {
        let (frame, lines) = (self.guard.page.frame, self.lines.of(at, bytes));
        let has = lines.clone().all(|line| self.lines.has(frame, line)) || self.guard.load(lines);
        if !has {
            self.guard.refused.set(true);
        }
        has
    }
}

impl View for Lined<'_> {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn u64(&self, at: usize) -> u64 {
        if self.has(at, 8) { self.bytes.u64(at) } else { 0 }
    }

    fn copy_to(&self, at: usize, to: &mut [u8]) {
        if self.has(at, to.len()) {
            self.bytes.copy_to(at, to);
        } else {
            to.fill(0);
        }
    }

    fn compare(&self, at: usize, length: usize, other: &[u8]) -> Ordering {
        if self.has(at, length.min(other.len())) {
            self.bytes.compare(at, length, other)
        } else {
            Ordering::Equal
        }
    }

    fn count_below(&self, at: usize, count: usize, bound: u64) -> usize {
        let words = self.len().saturating_sub(at) / 8;
        count_below(count.min(words), bound, |index| self.u64(at + index * 8))
    }
}

/// Loads all lines that page `id`, seen partial, lacks. False if it is latched or has changed.
pub(super) fn make_whole(tiers: &Tiers, id: PageId, entry: Entry<'_>, seen: Word) -> bool {
    let latch = entry.latch();
    if !latch.try_exclusive(seen) {
        return false;
    }
    partial::make_whole(tiers.middle_of_frame(), &tiers.resident, id, entry);
    latch.release_unchanged();
    true
}
