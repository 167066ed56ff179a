//! Optimistic and exclusive guards of pages.

use std::sync::atomic::{Ordering::Acquire, fence};

use terrace_io::Pattern;

use super::frames::Header;
use super::frames::partition::is_middle;
#[cfg(test)]
use super::frames::partition::is_mini;
use super::latch::Word;
use super::lines::{LineSet, Noting};
use super::page_table::{Entry, Location};
use super::retry::Retry;
use super::tier::{Seen, partial};
use super::tiers::Tiers;
use super::view::{Piece, Racy, View};
use crate::ids::{Lsn, PageId};
use crate::planted::{Bug, planted};
use crate::store::mapping_word::MappingWord;
use crate::store::page;

/// Optimistic access; holds nothing. Reads count only after `validate`, which fails while a copy is
/// upgraded.
#[derive(Clone, Copy)]
pub(crate) struct ReadGuard<'p> {
    tiers: &'p Tiers,
    id: PageId,
    entry: Entry<'p>,
    seen: Word,
    frame: u32,
}

impl<'p> ReadGuard<'p> {
    #[inline]
    pub(super) fn new(tiers: &'p Tiers, id: PageId, entry: Entry<'p>, seen: Word, frame: u32) -> Self {
        Self { tiers, id, entry, seen, frame }
    }

    pub(crate) fn id(&self) -> PageId {
        self.id
    }

    pub(super) fn tiers(&self) -> &'p Tiers {
        self.tiers
    }

    /// Whether the page is in the middle tier. Tiers cost a hit in DRAM nothing else.
    #[inline(always)]
    pub(crate) fn is_in_middle(&self) -> bool {
        is_middle(self.frame)
    }

    /// Charges `bytes` of copying to simulated memory. If it counts lines, they are those that
    /// `which` adds. What that looks at was charged with the search.
    #[inline]
    pub(crate) fn copied(&self, bytes: usize, which: impl FnOnce(Noting<'_, Racy<'p>>, &LineSet)) {
        if self.is_in_middle() && !self.charge_copied_lines(which) {
            self.tiers.middle_of_frame().charge_copied(self.frame, bytes);
        }
    }

    /// [`ReadGuard::copied`], free if the memory does not count lines.
    #[inline]
    pub(crate) fn copied_lines(&self, which: impl FnOnce(Noting<'_, Racy<'p>>, &LineSet)) {
        if self.is_in_middle() {
            self.charge_copied_lines(which);
        }
    }

    #[cold]
    fn charge_copied_lines(&self, which: impl FnOnce(Noting<'_, Racy<'p>>, &LineSet)) -> bool {
        let middle = self.tiers.middle_of_frame();
        let counts = middle.counts_lines();
        if counts {
            let (copied, searched) = (LineSet::default(), LineSet::default());
            which(Noting::new(self.view(), &searched), &copied);
            copied.subtract(&searched);
            middle.charge_lines(self.frame, &copied, Pattern::Sequential);
        }
        counts
    }

    /// Charges the lines of a look at the page, if it is in memory that counts them.
    #[cold]
    pub(crate) fn looked(&self, look: impl FnOnce(Noting<'_, Racy<'p>>)) {
        if self.is_in_middle() && self.tiers.middle_of_frame().counts_lines() {
            let lines = LineSet::default();
            look(Noting::new(self.view(), &lines));
            self.tiers.middle_of_frame().charge_lines(self.frame, &lines, Pattern::Random);
        }
    }

    pub(crate) fn version(&self) -> u64 {
        self.seen.version()
    }

    /// The page's bytes, which may be changing.
    #[inline(always)]
    pub(crate) fn view(&self) -> Racy<'p> {
        self.tiers.frames.view(self.id, self.frame)
    }

    /// Marks the page for the sweep. Writes only an unset mark: a hit on a hot page writes nothing.
    #[inline]
    pub(crate) fn mark(&self) {
        #[cfg(test)]
        super::replacement_tests::touch(self.id);
        self.tiers.touch(self.entry, self.seen, self.frame);
    }

    /// Checks that all reads so far saw one version. Changes, eviction and moves between tiers make
    /// a new one.
    #[inline]
    pub(crate) fn validate(&self) -> Result<(), Retry> {
        if self.entry.latch().validate(self.seen) { Ok(()) } else { Err(self.tiers.count_restart()) }
    }

    /// Passes `with` the mapping word of an image equal to the page. None if there is none. The
    /// latch is held meanwhile, so it stays equal.
    pub(super) fn with_image<T>(&self, with: impl FnOnce(MappingWord) -> T) -> Option<T> {
        let latch = self.entry.latch();
        if !latch.try_exclusive(self.seen) {
            return None;
        }
        let (now, mapped) = (latch.load(), self.tiers.frames.header(self.frame).mapped());
        let is_image = !now.is_dirty() && !now.is_claimed() && mapped.has_image();
        let result = is_image.then(|| with(mapped));
        latch.release_unchanged();
        result
    }

    /// The mapping word of an image equal to the page as seen. None if it was dirty or latched. It
    /// counts only if the guard validates later.
    pub(super) fn image_seen(&self) -> Option<MappingWord> {
        let is_clean = !self.seen.is_dirty() && !self.seen.is_claimed() && !self.seen.is_latched();
        let mapped = self.tiers.frames.header(self.frame).mapped();
        // What the caller loads about the image is no older.
        fence(Acquire);
        (is_clean && mapped.has_image()).then_some(mapped)
    }

    pub(super) fn page(&self) -> Seen<'p> {
        Seen { id: self.id, entry: self.entry, word: self.seen, frame: self.frame }
    }

    /// Latches the page exclusively at the version seen. A page freed by a record is missing,
    /// though it keeps its content until the record is durable. It must not change or be freed
    /// again.
    pub(crate) fn upgrade(self) -> Result<WriteGuard<'p>, Retry> {
        if self.seen.is_freed() {
            return Err(Retry::Missing(self.id));
        }
        if self.entry.latch().try_exclusive(self.seen) {
            Ok(WriteGuard::new(self.tiers, self.id, self.entry, self.frame))
        } else {
            self.tiers.stats.refused.raise();
            Err(Retry::Restart)
        }
    }
}

/// The exclusive latch of a resident page. Dropping it unlatches, with a new version after a
/// change.
///
/// Its holder faults no page, reserves neither frames nor log space, and only tries to latch other
/// pages (`docs/latching.md`).
pub(crate) struct WriteGuard<'p> {
    tiers: &'p Tiers,
    id: PageId,
    entry: Entry<'p>,
    frame: u32,
    changed: bool,
}

impl<'p> WriteGuard<'p> {
    pub(super) fn new(tiers: &'p Tiers, id: PageId, entry: Entry<'p>, frame: u32) -> Self {
        debug_assert_eq!(entry.location().frame(), Some(frame));
        Self { tiers, id, entry, frame, changed: false }
    }

    pub(crate) fn id(&self) -> PageId {
        self.id
    }

    /// The page's bytes; no other thread changes them.
    pub(crate) fn view(&self) -> Racy<'p> {
        self.make_whole();
        self.tiers.frames.view(self.id, self.frame)
    }

    /// To be edited for `Pool::change`.
    pub(crate) fn copy(&self, to: &mut Vec<u8>) {
        to.resize(self.id.page_bytes(), 0);
        self.view().copy_to(0, to);
        if is_middle(self.frame) && self.tiers.middle_of_frame().counts_lines() {
            let lines = LineSet::default();
            lines.add(0, to.len());
            self.tiers.middle_of_frame().charge_lines(self.frame, &lines, Pattern::Sequential);
        }
    }

    /// Loads the lines that a partial page lacks.
    fn make_whole(&self) {
        if self.is_partial() {
            let (middle, resident) = (self.tiers.middle_of_frame(), &self.tiers.resident);
            partial::make_whole(middle, resident, self.id, self.entry);
        }
    }

    fn is_partial(&self) -> bool {
        self.tiers.frames.lines.is_some() && self.entry.location() == Location::Partial(self.frame)
    }

    pub(super) fn header(&self) -> Header<'p> {
        self.tiers.frames.header(self.frame)
    }

    /// Publishes new content, for `Pool::change` and redo.
    pub(crate) fn store(&mut self, content: &[u8]) {
        self.changed = true;
        if is_middle(self.frame) {
            return self.tiers.middle_of_frame().change_in_place(
                &self.tiers.resident,
                self.id,
                self.frame,
                &[Piece { at: 0, bytes: content }],
            );
        }
        self.make_whole();
        self.tiers.frames.store(self.id, self.frame, content);
    }
}

impl WriteGuard<'_> {
    /// Publishes part of the content, for `Pool::change`.
    pub(super) fn patch(&mut self, pieces: &[Piece<'_>], lsn: Lsn) {
        self.changed = true;
        let are_words = |piece: &Piece<'_>| piece.at.is_multiple_of(8) && piece.bytes.len().is_multiple_of(8);
        debug_assert!(pieces.iter().all(|piece| piece.at >= page::HEADER_BYTES && are_words(piece)));
        let is_middle = is_middle(self.frame);
        if is_middle || self.is_partial() {
            let (middle, resident) = (self.tiers.middle_of_frame(), &self.tiers.resident);
            let stamp = lsn.0.to_le_bytes();
            let stamp = [Piece { at: page::LSN_AT, bytes: &stamp }];
            if is_middle {
                middle.change_in_place(resident, self.id, self.frame, pieces);
                middle.change_in_place(resident, self.id, self.frame, &stamp);
            } else {
                let pieces = pieces.iter().chain(&stamp);
                pieces.for_each(|piece| partial::change(middle, resident, self.id, self.frame, piece));
            }
            return;
        }
        let view = self.view();
        pieces.iter().for_each(|piece| view.set_bytes(piece.at / 8, piece.bytes));
        view.set_word(page::LSN_AT / 8, lsn.0);
    }

    /// Notes a change by the record at `lsn`.
    pub(crate) fn note_change(&self, lsn: Lsn) {
        let (header, latch) = (self.header(), self.entry.latch());
        if header.rec_lsn().is_none() {
            header.set_rec_lsn(lsn);
        }
        let now = latch.load();
        if now.is_claimed() && header.next_rec_lsn().is_none() {
            header.set_next_rec_lsn(lsn);
        }
        if !now.is_dirty() {
            latch.set_dirty(true);
        }
    }

    /// Unlatches a freed page with a new version, so that readers notice.
    pub(super) fn give_back_freed(mut self) {
        if !planted(Bug::FreedUnmarked) {
            self.entry.latch().set_freed(true);
        }
        self.changed = true;
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        if self.changed {
            self.entry.latch().release_changed();
            self.tiers.unlocked(self.id, self.entry, self.frame);
        } else {
            self.entry.latch().release_unchanged();
        }
    }
}

impl Tiers {
    /// Starts an optimistic read if `id` is resident and not changing. Writes nothing, since `id`
    /// may be garbage; a valid access calls [`ReadGuard::mark`].
    #[inline(always)]
    pub(crate) fn try_read(&self, id: PageId) -> Option<ReadGuard<'_>> {
        self.try_read_at(id, self.table.entry(id)?)
    }

    /// [`Tiers::try_read`]; `None` if the page table is not an array. Prefetches a leaf by its
    /// hint.
    #[inline(always)]
    pub(crate) fn try_read_in_array(&self, id: PageId, is_leaf: bool) -> Option<ReadGuard<'_>> {
        let number = self.table.number_in_array(id)?;
        if is_leaf && let Some(hint) = self.table.hint_numbered(number) {
            self.prefetch(hint);
            if planted(Bug::BelieveHint) {
                // Of the smallest pages, hints are numbers of frames.
                let entry = self.table.entry_numbered(number);
                return Some(ReadGuard::new(self, id, entry, entry.latch().load(), hint));
            }
        }
        self.try_read_at(id, self.table.entry_numbered(number))
    }

    #[inline(always)]
    fn prefetch(&self, hint: u32) {
        if let Some(frames) = self.frames.fixed() {
            frames.prefetch(hint);
        }
    }

    /// [`Tiers::try_read`] of a root.
    #[inline(always)]
    pub(crate) fn try_read_root(&self, id: PageId) -> Option<ReadGuard<'_>> {
        self.try_read_at(id, self.table.entry_of_root(id)?)
    }

    /// [`Tiers::try_read`] of the `index`th child of `parent`.
    #[inline(always)]
    pub(crate) fn try_read_child(
        &self,
        parent: &ReadGuard<'_>,
        index: usize,
        id: PageId,
        is_leaf: bool,
    ) -> Option<ReadGuard<'_>> {
        let prefetch = |hint| {
            if is_leaf {
                self.prefetch(hint);
            }
        };
        self.try_read_at(id, self.table.entry_of_child(parent.frame, index, id, prefetch)?)
    }

    #[inline(always)]
    fn try_read_at<'p>(&'p self, id: PageId, entry: Entry<'p>) -> Option<ReadGuard<'p>> {
        let seen = entry.latch().load();
        match entry.location() {
            Location::Frame(frame) if !seen.is_exclusive() => {
                Some(ReadGuard::new(self, id, entry, seen, frame))
            }
            _ => None,
        }
    }

    /// Latches `id` if unlatched in a frame, whole or partial. The caller may hold latches.
    #[cfg(test)]
    pub(crate) fn try_latch(&self, id: PageId) -> Option<WriteGuard<'_>> {
        let entry = self.table.entry(id)?;
        let seen = entry.latch().load();
        let frame = entry.location().frame().filter(|&frame| !is_mini(frame))?;
        entry.latch().try_exclusive(seen).then(|| WriteGuard::new(self, id, entry, frame))
    }
}
