//! Demotion of pages from DRAM to the middle tier.
//!
//! **Two copies.** The DRAM header is authoritative and links to the middle copy, whose header has
//! the version at which both were equal. If the page still has that version at demotion, the middle
//! copy only takes over the header, dirtiness included. Otherwise the page is copied. While a DRAM
//! copy exists, the middle copy is never written and may be dropped.
//!
//! **Demotion.** The sweep decides under the page's latch. It moves the page after releasing its
//! own lock ([`MiddleTier::demote`]). Without a free frame, a clean page is dropped and a dirty one
//! stays.
//!
//! **The log cut** scans all headers, and could miss a dirty page that moves behind it. So the
//! mover holds `moving` shared, without waiting, and the cut holds it exclusively. A move keeps the
//! page's durable state. A search for that state retries if the page moved
//! (`TableImage::durable_state`).
//!
//! Lock order: page latches, `moving`, free frames in DRAM, those of the middle tier, the admission
//! queue.

use std::sync::atomic::{Ordering::Relaxed, Ordering::Release, fence};

use super::middle::MiddleTier;
use super::partial::demote_lines;
use crate::ids::{Lsn, PageId};
use crate::planted::{Bug, planted};
use crate::pool::frames::partition::{Tier, is_middle, partition_of};
use crate::pool::latch::Word;
use crate::pool::page_table::{Entry, Location};
use crate::pool::replacement::Replacer;
use crate::pool::replacement::victim::{Leaving, To};
use crate::pool::resident::Resident;

impl MiddleTier {
    pub(in crate::pool) fn frames_wanted(&self, resident: &Resident, leaving: &[Leaving<'_>]) -> usize {
        let lacks_frame =
            |page: &&Leaving<'_>| page.to == To::Middle && middle_copy(resident, page).is_none();
        leaving.iter().filter(lacks_frame).count()
    }

    /// Demotes latched pages to their middle copies or to `frames`.
    ///
    /// All are of one size. Unlatches those that moved, and gives the others another destination.
    /// Frees unused frames.
    pub(in crate::pool) fn demote(
        &self,
        resident: &Resident,
        replacer: &Replacer,
        leaving: &mut [Leaving<'_>],
        mut frames: Vec<u32>,
    ) {
        // The frames were taken after the latches. As with a latch, a reader of a frame's previous
        // page that sees new content also sees that the page left.
        fence(Release);
        let moving = self.moving.try_read();
        let mut going = Vec::with_capacity(leaving.len());
        for page in leaving.iter_mut().filter(|page| page.to == To::Middle) {
            let dirty = page.entry.latch().load().is_dirty();
            let may_move = !dirty || moving.is_some();
            let frame = may_move.then(|| middle_copy(resident, page).or_else(|| frames.pop())).flatten();
            going.push((page, frame, dirty));
        }
        // Memory first: a page whose memory stays does not move.
        let moves = || going.iter().filter(|(_, frame, _)| frame.is_some());
        let ids: Vec<PageId> = moves().map(|(page, ..)| page.id).collect();
        let mut there = resident.frames.migrate(&ids, Tier::Middle).into_iter();
        let mut gone = Vec::with_capacity(ids.len());
        for (page, frame, dirty) in going {
            match frame.filter(|_| there.next() == Some(true)) {
                Some(frame) => {
                    self.demote_page(resident, (page.id, page.entry), page.frame, frame);
                    gone.push((frame, page.id, page.entry));
                    page.to = To::Gone;
                }
                None => {
                    // Not a middle copy: pages with two copies have no memory to migrate.
                    frames.extend(frame);
                    self.counts.down_refused.fetch_add(1, Relaxed);
                    page.to = if dirty { To::Stays } else { To::Dropped };
                }
            }
        }
        drop(moving);
        frames.into_iter().for_each(|frame| replacer.give_frame(resident, frame));
        if gone.is_empty() {
            return;
        }
        // Before unlatching: then other threads may evict these pages.
        let mut free = replacer.free(partition_of(gone[0].0)).lock();
        gone.iter().for_each(|&(frame, id, _)| _ = free.queues.enter(&resident.frames, frame, id));
        drop(free);
        for (frame, id, entry) in gone {
            entry.latch().release_changed();
            replacer.unlocked(resident, id, entry, frame);
        }
    }

    /// Makes `frame` that of a latched page in DRAM frame `above`, which it vacates.
    fn demote_page(&self, resident: &Resident, (id, entry): (PageId, Entry<'_>), above: u32, frame: u32) {
        let (upper, lower) = (resident.frames.header(above), resident.frames.header(frame));
        let now = entry.latch().load();
        let is_equal = upper.middle_copy() == Some(frame) && lower.equal_at() == now.version();
        if is_equal || (planted(Bug::StaleMiddleCopy) && upper.middle_copy() == Some(frame)) {
            self.counts.down_current.fetch_add(1, Relaxed);
        } else if entry.location() == Location::Partial(above) {
            demote_lines(self, resident, id, above);
            self.counts.down_current.fetch_add(1, Relaxed);
        } else {
            self.copy_page(resident, id, above, frame);
            let count = if now.is_dirty() { &self.counts.down_dirty } else { &self.counts.down_clean };
            count.fetch_add(1, Relaxed);
        }
        lower.set_mapped(upper.mapped());
        if !planted(Bug::DemoteWithoutRecLsn) {
            lower.set_rec_lsn(upper.rec_lsn());
        }
        if upper.middle_copy() == Some(frame) && lower.is_copy_marked() {
            entry.latch().mark();
        }
        lower.set_next_rec_lsn(Lsn::NONE);
        lower.set_read_reason(None);
        lower.set_page(id);
        entry.set_location(Location::Frame(frame));
        upper.set_rec_lsn(Lsn::NONE);
        self.detach_copy(&upper);
        resident.frames.vacate(above);
    }

    /// Demotes a partial page to its middle copy in `frame`, which must not be dropped below it.
    ///
    /// Leaves DRAM frame `above` empty, for the caller to free. Requires the page unlatched and at
    /// the version seen, and no image of it in flight.
    pub(in crate::pool) fn demote_partial(
        &self,
        resident: &Resident,
        (id, entry, seen): (PageId, Entry<'_>, Word),
        above: u32,
        frame: u32,
    ) -> bool {
        let (latch, moving) = (entry.latch(), self.moving.try_read());
        if moving.is_none() || !latch.try_exclusive(seen) {
            resident.stats.swept_busy.fetch_add(1, Relaxed);
            return false;
        }
        let is_below = entry.location() == Location::Partial(above)
            && resident.frames.header(above).middle_copy() == Some(frame)
            && !latch.load().is_claimed();
        if is_below {
            self.demote_page(resident, (id, entry), above, frame);
            resident.stats.evictions.fetch_add(1, Relaxed);
            latch.release_changed();
        } else {
            latch.release_unchanged();
        }
        is_below
    }

    /// Drops the middle copy of page `id` in `frame`.
    ///
    /// The DRAM copy is in `above`. Requires the page unlatched and at the version seen. Changes
    /// neither version nor mark.
    pub(in crate::pool) fn drop_below(
        &self,
        resident: &Resident,
        id: PageId,
        entry: Entry<'_>,
        seen: Word,
        above: u32,
        frame: u32,
    ) -> bool {
        debug_assert!(is_middle(frame));
        let latch = entry.latch();
        if !latch.try_exclusive(seen) {
            resident.stats.swept_busy.fetch_add(1, Relaxed);
            return false;
        }
        let (upper, lower) = (resident.frames.header(above), resident.frames.header(frame));
        let is_whole = matches!(entry.location(), Location::Frame(_)) || planted(Bug::DropBelowPartial);
        let is_below = is_whole
            && entry.location().frame() == Some(above)
            && upper.page() == id
            && upper.middle_copy() == Some(frame)
            && lower.page() == id;
        if is_below {
            self.detach_copy(&upper);
            resident.frames.vacate(frame);
        }
        latch.release_unchanged();
        is_below
    }
}

fn middle_copy(resident: &Resident, page: &Leaving<'_>) -> Option<u32> {
    resident.frames.header(page.frame).middle_copy()
}
