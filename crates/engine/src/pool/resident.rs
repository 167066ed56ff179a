//! Resident pages: page table, frames and counters.
//!
//! The lowest layer of the pool: replacement, middle tier and record cache get it by reference.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use terrace_io::prefetch;

use super::backoff::Backoff;
use super::cost::frame_cost;
use super::frames::partition::PageFrame;
use super::frames::{Frames, ReadReason};
use super::latch::Word;
use super::page_table::{Entry, Location, PageTable};
use super::retry::Retry;
use super::stats::PoolStats;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, SizeClass};
use crate::store::mapping_word::MappingWord;

pub(crate) fn class_of_page(id: PageId) -> SizeClass {
    id.class().expect("pages of the page table are of classes there are")
}

/// Blocks granted to page `id` while it has no image.
pub(crate) fn blocks_granted(id: PageId) -> u64 {
    class_of_page(id).blocks()
}

#[derive(Debug)]
pub(crate) struct Resident {
    pub(crate) table: PageTable,
    pub(crate) frames: Frames,
    pub(crate) stats: PoolStats,
}

impl Resident {
    pub(crate) fn backend(&self) -> Backend {
        self.frames.backend()
    }

    /// Whether `id` is marked; `None` if it is in no frame.
    #[cfg(test)]
    pub(crate) fn is_marked(&self, id: PageId) -> Option<bool> {
        let entry = self.table.entry(id)?;
        entry.location().frame().map(|_| entry.latch().load().is_marked())
    }

    #[cfg(test)]
    pub(crate) fn is_latched(&self, id: PageId) -> bool {
        self.table.entry(id).is_some_and(|entry| entry.latch().load().is_latched())
    }

    /// Blocks of the longest possible image.
    pub(crate) fn image_blocks_max(&self) -> u64 {
        self.frames.largest().blocks()
    }

    /// Prefetches the entry of `id`, which may be garbage.
    #[inline]
    pub(crate) fn prefetch_entry(&self, id: PageId) {
        if let Some(entry) = self.table.entry(id) {
            entry.prefetch();
        }
    }

    /// Prefetches parts of a resident page. Id and parts may be garbage.
    #[inline]
    pub(crate) fn prefetch_page(&self, id: PageId, parts: [Range<usize>; 2]) {
        let Some(entry) = self.table.entry(id) else { return };
        let Location::Frame(frame) = entry.location() else { return };
        let words = self.frames.words(id, frame);
        for part in parts {
            prefetch(words.get(part.start / 8..part.end / 8).unwrap_or_default());
        }
    }

    /// Whether `id` is in a frame at `version` and not being changed.
    pub(crate) fn version_is(&self, id: PageId, version: u64) -> bool {
        self.table.entry(id).is_some_and(|entry| {
            let now = entry.latch().load();
            !now.is_exclusive() && now.version() == version && entry.location().frame().is_some()
        })
    }

    pub(crate) fn exists(&self, id: PageId) -> bool {
        self.table.entry(id).is_some_and(|entry| entry.location() != Location::Nowhere)
    }

    pub(crate) fn uses(&self, class: SizeClass) -> bool {
        self.frames.count(class) > 0
    }

    /// Bytes of all frames, with their overhead.
    pub(crate) fn bytes_of_frames(&self) -> u64 {
        self.frames.classes().map(|class| u64::from(self.frames.count(class)) * frame_cost(class)).sum()
    }

    /// The page whose bytes include `word`, which is pinned.
    pub(crate) fn page_at(&self, word: &AtomicU64) -> Option<PageId> {
        self.frames.page_at(std::ptr::from_ref(word).addr())
    }

    /// Counts an optimistic read that failed validation.
    #[cold]
    pub(crate) fn count_restart(&self) -> Retry {
        self.stats.changed.raise();
        Retry::Restart
    }

    /// Pages loaded from the store. Only misses change it.
    pub(crate) fn misses(&self) -> u64 {
        self.stats.faults.load(Relaxed)
    }

    #[cold]
    pub(crate) fn wait_latched(&self, backoff: &mut Backoff) {
        if backoff.is_first() {
            self.stats.latch_waits.raise();
        }
        backoff.wait();
    }

    /// Marks an accessed page. Hits on a marked page write nothing. The first access after a batch
    /// read sets no mark, since the page was read for it.
    #[inline]
    pub(crate) fn touch(&self, entry: Entry<'_>, seen: Word, frame: u32) {
        if !seen.is_marked() && !self.first_look(frame) {
            entry.latch().mark();
        }
    }

    /// Clears the read reason of a page; whether there was one.
    #[inline(never)]
    pub(crate) fn first_look(&self, frame: u32) -> bool {
        let read_reason = self.frames.header(frame).take_read_reason();
        if read_reason == Some(ReadReason::Ahead) {
            self.stats.ahead_used.fetch_add(1, Relaxed);
        }
        read_reason.is_some()
    }

    /// Takes the shared latch; the caller holds none.
    pub(crate) fn share_entry(&self, entry: Entry<'_>) {
        let mut backoff = Backoff::new();
        while !entry.latch().try_share() {
            backoff.wait();
        }
    }

    /// Takes the exclusive latch at any location. The caller holds none, or the page is new.
    pub(crate) fn lock_entry(&self, entry: Entry<'_>) {
        let mut backoff = Backoff::new();
        while !entry.latch().try_exclusive(entry.latch().load()) {
            backoff.wait();
        }
    }

    /// Puts memory behind pages before they are filled, under exclusive latches.
    ///
    /// # Errors
    /// [`Error::Memory`]; then none of the pages has memory.
    pub(crate) fn populate(&self, pages: &[PageFrame]) -> Result<()> {
        self.frames.populate(pages).map_err(|source| {
            self.discard(pages);
            let bytes = pages.iter().map(|(id, _)| id.page_bytes() as u64).sum();
            Error::Memory { bytes, what: "pages that are brought in", source }
        })
    }

    /// Takes memory from pages that lose their frames, under exclusive latches.
    pub(crate) fn discard(&self, pages: &[PageFrame]) {
        if let Err(error) = self.frames.discard(pages) {
            // A reload does not depend on it, but the budget does.
            self.stats.not_discarded.fetch_add(pages.len() as u64, Relaxed);
            tracing::warn!(%error, pages = pages.len(), "the memory of pages that left could not be given back");
        }
    }

    /// Takes memory from frames without pages before they are given back.
    pub(crate) fn discard_own(&self, frames: &[u32]) {
        if let Err(error) = self.frames.discard_own(frames) {
            self.stats.not_discarded.fetch_add(frames.len() as u64, Relaxed);
            tracing::warn!(%error, frames = frames.len(), "the memory of frames could not be given back");
        }
    }

    /// Ties a clean page to a frame, under its exclusive latch.
    pub(crate) fn bind_to_frame(&self, id: PageId, entry: Entry<'_>, frame: u32, mapped: MappingWord) {
        let header = self.frames.header(frame);
        header.set_mapped(mapped);
        header.set_rec_lsn(Lsn::NONE);
        header.set_next_rec_lsn(Lsn::NONE);
        header.set_read_reason(None);
        header.set_middle_copy(None);
        header.set_page(id);
        entry.set_location(Location::Frame(frame));
        if let Some(frames) = self.frames.fixed() {
            self.table.note_hint(id, frames.hint(frame));
        }
    }

    /// Releases the exclusive latch of a page that did not migrate. If its bytes were away, readers
    /// may have seen zeros. Then the version changes, and this returns true.
    pub(crate) fn release_unmoved(&self, entry: Entry<'_>) -> bool {
        let were_away = self.frames.takes_bytes_away();
        if were_away {
            entry.latch().release_changed();
        } else {
            entry.latch().release_unchanged();
        }
        were_away
    }
}
