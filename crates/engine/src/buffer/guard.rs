//! Guards of pages.

use super::frames::Header;
use super::latch::Word;
use super::pool::{Pool, Stop};
use super::records::Source;
use super::stripe::is_middle;
use super::table::{Entry, Location};
use super::view::{Racy, View};
use crate::ids::{Lsn, PageId};
use crate::planted::{Bug, planted};
use crate::store::page;

/// An optimistic look at a page. It holds nothing; what was read through it counts only after `validate`.
pub(crate) struct ReadGuard<'p> {
    pool: &'p Pool,
    id: PageId,
    entry: Entry<'p>,
    seen: Word,
    frame: u32,
}

impl<'p> ReadGuard<'p> {
    #[inline]
    pub(super) fn new(pool: &'p Pool, id: PageId, entry: Entry<'p>, seen: Word, frame: u32) -> Self {
        Self { pool, id, entry, seen, frame }
    }

    pub(crate) fn id(&self) -> PageId {
        self.id
    }

    pub(super) fn entry(&self) -> Entry<'p> {
        self.entry
    }

    pub(super) fn seen(&self) -> Word {
        self.seen
    }

    pub(super) fn frame(&self) -> u32 {
        self.frame
    }

    /// Whether what is looked at is in the middle tier. A comparison of what is at hand: all that a hit in DRAM has to do with tiers.
    #[inline(always)]
    pub(crate) fn is_in_middle(&self) -> bool {
        is_middle(self.frame)
    }

    /// So many bytes were copied out of the page.
    #[inline]
    pub(crate) fn copied(&self, bytes: usize) {
        if self.is_in_middle() {
            self.pool.charge_copied(self.frame, bytes);
        }
    }

    /// The version this guard vouches for.
    pub(crate) fn version(&self) -> u64 {
        self.seen.version()
    }

    /// The page's bytes, which may be changing.
    #[inline(always)]
    pub(crate) fn view(&self) -> Racy<'p> {
        self.pool.frames.view(self.id, self.frame)
    }

    /// Tells the sweep that the page is in use. Written only when the mark is clear: a hit on a hot page writes nothing.
    #[inline]
    pub(crate) fn mark(&self) {
        #[cfg(test)]
        super::replacement_tests::touch(self.id);
        self.pool.touch(self.entry, self.seen, self.frame);
    }

    /// Whether everything read so far belongs to one version of the page.
    #[inline]
    pub(crate) fn validate(&self) -> Result<(), Stop> {
        if self.entry.latch().validate(self.seen) { Ok(()) } else { Err(self.pool.changed()) }
    }

    /// The image in the store that holds what was read, if there is one: the page is at the version seen, and clean. Under
    /// the latch for a moment, so that neither can change.
    pub(super) fn source(&self) -> Option<Source> {
        let latch = self.entry.latch();
        if !latch.try_exclusive(self.seen) {
            return None;
        }
        let (now, mapped) = (latch.load(), self.pool.frames.header(self.frame).mapped());
        let is_image = !now.is_dirty() && !now.is_claimed() && mapped.has_image();
        let source = is_image.then(|| self.pool.source(self.id, mapped));
        latch.release_unchanged();
        source
    }

    /// Latches the page exclusively, if it is still at the version seen. A page that a record has freed is missing, though
    /// it keeps its content until that record is durable: it must be neither changed nor freed once more.
    pub(crate) fn upgrade(self) -> Result<WriteGuard<'p>, Stop> {
        if self.seen.is_freed() {
            return Err(Stop::Missing(self.id));
        }
        if self.entry.latch().try_exclusive(self.seen) {
            Ok(WriteGuard::new(self.pool, self.id, self.entry, self.frame))
        } else {
            self.pool.stats.refused.raise();
            Err(Stop::Restart)
        }
    }
}

/// The exclusive latch of a resident page. Dropping it unlatches, with a new version if the content changed.
pub(crate) struct WriteGuard<'p> {
    pool: &'p Pool,
    id: PageId,
    entry: Entry<'p>,
    frame: u32,
    changed: bool,
}

impl<'p> WriteGuard<'p> {
    pub(super) fn new(pool: &'p Pool, id: PageId, entry: Entry<'p>, frame: u32) -> Self {
        debug_assert_eq!(entry.location(), Location::Frame(frame));
        Self { pool, id, entry, frame, changed: false }
    }

    pub(crate) fn id(&self) -> PageId {
        self.id
    }

    /// The page's bytes; nobody else changes them.
    pub(crate) fn view(&self) -> Racy<'p> {
        self.pool.frames.view(self.id, self.frame)
    }

    /// Copies the whole page into `to`, to be edited there and handed to `Pool::change`.
    pub(crate) fn copy(&self, to: &mut Vec<u8>) {
        let words = self.pool.frames.words(self.id, self.frame);
        to.resize(size_of_val(words), 0);
        self.view().copy_to(0, to);
    }

    pub(super) fn header(&self) -> Header<'p> {
        self.pool.frames.header(self.frame)
    }

    pub(super) fn entry(&self) -> Entry<'p> {
        self.entry
    }

    /// Publishes new content; `Pool::change` and redo are the callers.
    pub(super) fn store(&mut self, content: &[u8]) {
        self.changed = true;
        if is_middle(self.frame) {
            return self.pool.change_in_middle(self.id, self.frame, 0, content);
        }
        self.pool.frames.store(self.id, self.frame, content);
    }
}

impl WriteGuard<'_> {
    /// Publishes new content of a part; `Pool::change` is the caller.
    pub(super) fn patch(&mut self, at: usize, content: &[u8], lsn: Lsn) {
        debug_assert!(at >= page::HEADER_BYTES && at.is_multiple_of(8) && content.len().is_multiple_of(8));
        self.changed = true;
        if is_middle(self.frame) {
            self.pool.change_in_middle(self.id, self.frame, at / 8, content);
            return self.pool.change_in_middle(self.id, self.frame, page::LSN_AT / 8, &lsn.0.to_le_bytes());
        }
        self.view().set_bytes(at / 8, content);
        self.view().set_word(page::LSN_AT / 8, lsn.0);
    }

    /// Unlatches a page that has been freed: readers that still hold its old version must notice.
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
            self.pool.unlocked(self.id, self.entry, self.frame);
        } else {
            self.entry.latch().release_unchanged();
        }
    }
}
