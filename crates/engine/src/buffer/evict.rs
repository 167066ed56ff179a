//! Pages that leave their frames.
//!
//! The sweep finds them, one by one, under the lock of the free frames ([`Pool::try_evict`]); what takes longer is done for all of them
//! when it has let go of that lock ([`Pool::leave`]): the memory of mapped pages is taken away, and pages that go from DRAM to
//! the middle tier are copied (`migrate.rs`). Until then they stay latched, and their frames stand in no queue.

use std::sync::atomic::Ordering::Relaxed;

use super::batch::Purpose;
use super::latch::Word;
use super::migration::Path;
use super::pool::{Pool, class_of_page};
use super::residency::Housed;
use super::stripe::is_middle;
use super::table::{Entry, Location};
use crate::ids::PageId;
use crate::planted::{Bug, planted};

/// A page that is to leave its frame, still latched.
pub(super) struct Leaving<'p> {
    pub(super) id: PageId,
    pub(super) entry: Entry<'p>,
    pub(super) frame: u32,
    pub(super) to: To,
}

/// Where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum To {
    /// Out of memory; its image in the store is as new.
    Store,
    /// To the middle tier.
    Middle,
    /// Nowhere: it must be written first.
    Stays,
    /// It has left, and is unlatched.
    Gone,
}

/// What became of an attempt to empty a frame.
pub(super) enum Evicted {
    /// Its page is latched, and on its way.
    Yes(To),
    /// Its page must be written first.
    Dirty,
    /// It holds nothing yet, or a page that is latched.
    No,
}

impl Pool {
    /// Latches the page `id` to be evicted from `frame`, if it is unlatched and at the version seen, and if it is clean or may go to
    /// the middle tier. [`Pool::leave`] is next. `offered`: the middle tier may have it even if it has no copy of it now; a page that
    /// has one keeps its place there.
    pub(super) fn try_evict(
        &self,
        id: PageId,
        entry: Entry<'_>,
        seen: Word,
        frame: u32,
        offered: bool,
    ) -> Evicted {
        let (header, latch) = (self.frames.header(frame), entry.latch());
        if seen.is_latched() {
            self.stats.swept_busy.fetch_add(1, Relaxed);
            return Evicted::No;
        }
        let middle = if is_middle(frame) { None } else { self.middle_for(class_of_page(id)) };
        let unwritten = seen.is_dirty() && middle.is_none_or(|_| !offered) || seen.is_claimed();
        if unwritten && !planted(Bug::LoseEvictionWrite) {
            self.stats.swept_dirty.fetch_add(1, Relaxed);
            return Evicted::Dirty;
        }
        if !latch.try_exclusive(seen) {
            self.stats.swept_busy.fetch_add(1, Relaxed);
            return Evicted::No;
        }
        // Dirty and claimed can have been set since `seen` without a new version; the latch has settled that now.
        let now = latch.load();
        let lost = planted(Bug::LoseEvictionWrite) && header.mapped().has_image();
        if header.page() != id || entry.location() != Location::Frame(frame) || now.is_claimed() && !lost {
            latch.release_unchanged();
            self.stats.swept_busy.fetch_add(1, Relaxed);
            return Evicted::No;
        }
        let dirty = now.is_dirty() && !lost;
        let has_copy = header.below().is_some();
        let path = match middle {
            Some(middle) if offered || has_copy => middle.path_of_victim(id, now.version(), dirty, has_copy),
            _ if dirty => Path::DramToStore,
            _ => Path::Drop,
        };
        if path != Path::DramToMiddle && dirty {
            latch.release_unchanged();
            self.stats.swept_dirty.fetch_add(1, Relaxed);
            return Evicted::Dirty;
        }
        if header.take_purpose() == Some(Purpose::Ahead) {
            self.stats.ahead_unused.fetch_add(1, Relaxed);
        }
        Evicted::Yes(if path == Path::DramToMiddle { To::Middle } else { To::Store })
    }

    /// Has latched pages leave their frames and unlatches them, but for those that must be written first: they stay, latched, since
    /// their frames are in no queue, and whoever took such a page out of its frame would have the frame in his hands when the caller
    /// puts it into one.
    pub(super) fn leave(&self, leaving: &mut [Leaving<'_>]) {
        if leaving.iter().any(|page| page.to == To::Middle) {
            self.go_down(leaving);
        }
        let to_store = |page: &&Leaving<'_>| page.to == To::Store;
        let pages: Vec<Housed> = leaving.iter().filter(to_store).map(|page| (page.id, page.frame)).collect();
        leaving.iter().filter(to_store).for_each(|page| self.forget(page));
        let unlatch = || {
            leaving.iter().filter(to_store).for_each(|page| _ = page.entry.latch().release_changed());
        };
        if planted(Bug::DiscardAfterUnlatching) {
            unlatch();
            self.meanwhile();
            self.evacuate(&pages);
        } else {
            self.evacuate(&pages);
            unlatch();
        }
        for page in leaving.iter_mut() {
            if page.to != To::Stays {
                page.to = To::Gone;
                self.stats.evictions.fetch_add(1, Relaxed);
            }
        }
    }

    /// Ends the copy in memory of a page that goes to the store, which has it as it is. It has no other: a page with a copy in the
    /// middle tier goes there.
    fn forget(&self, page: &Leaving<'_>) {
        let header = self.frames.header(page.frame);
        debug_assert_eq!(header.below(), None);
        page.entry.latch().set_dirty(false);
        page.entry.set_location(Location::Store(header.mapped()));
        header.set_page(PageId::NONE);
        if let Some(middle) = &self.middle {
            let counts = &middle.counts;
            let count = if is_middle(page.frame) { &counts.middle_to_store } else { &counts.dram_to_store };
            count.fetch_add(1, Relaxed);
        }
    }
}
