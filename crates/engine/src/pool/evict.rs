//! Eviction of pages from their frames, step by step.
//!
//! 1. **Candidate**: the sweep names a frame (`replacement/sweep.rs`). A marked page loses its mark
//!    and stays.
//! 2. **Latch**: try to latch the page exclusively at the version seen.
//! 3. **Path**: demote a page that has a middle copy or that the policy admits. Drop another clean
//!    page, and put a dirty one into the dirty queue (`tier/migration/path.rs`).
//! 4. **Vacate**: move demoted pages to middle frames (`tier/demote.rs`); discard the memory of the
//!    others.
//! 5. **Finish**: unlatch with a new version, and free the frames.
//!
//! Steps 1 to 3 run under the lock of the free frames, steps 4 and 5 without it for a batch. The
//! batch is latched and in no queue, so other threads may search meanwhile.
//!
//! Lock order: free frames of one partition, page latches (only tried). Without the former: page
//! latches, free frames of the middle tier.

use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::MutexGuard;

use super::emptying::{Emptying, Minis};
use super::frames::partition::{PageFrame, Partition, Tier, is_middle, partition_of};
use super::frames::{MiniPages, Queue, ReadReason};
use super::latch::Word;
use super::page_table::{Entry, Location};
use super::replacement::queues::Queues;
use super::replacement::victim::{Evicted, Leaving, Look, To, Wanted};
use super::replacement::{BATCH, FreeFrames, Sweep};
use super::resident::class_of_page;
use super::tier::migration::Path;
use super::tiers::Tiers;
use crate::ids::{Lsn, PageId};
use crate::planted::{Bug, planted};

#[derive(Clone, Copy, Debug)]
pub(super) struct FoundFrame {
    /// The frame, and whether the ghost knew the page.
    pub(super) frame: Option<(u32, bool)>,
    /// Pages in the dirty queue after a sweep.
    pub(super) dirty: u32,
    /// Whether clean frames are few.
    pub(super) short: bool,
}

/// What a sweep found. The rest of the work is done without the lock.
#[derive(Default)]
struct Swept<'p> {
    leaving: Vec<Leaving<'p>>,
    wanted: Vec<Wanted<'p>>,
    minis: Vec<Emptying<'p>>,
}

impl Swept<'_> {
    fn is_empty(&self) -> bool {
        self.leaving.is_empty() && self.wanted.is_empty() && self.minis.is_empty()
    }
}

impl Tiers {
    /// Takes a frame from the free list or one sweep. Requests write-back if clean frames are few.
    pub(super) fn find(&self, partition: Partition, id: PageId) -> FoundFrame {
        let mut free = self.replacer.free(partition).lock();
        let (mut dirty, mut short) = (0, false);
        if free.list.is_empty() {
            self.replacer.wait_for_chunk(&mut free);
        }
        if !self.has_free(&mut free) {
            self.refill(partition, &mut free, 1, false);
            dirty = free.queues.len(Queue::Dirty);
            // With one clean frame among dirty ones, a thread that needs two pages would evict each
            // for the other forever.
            short = dirty > 0 && free.list.len() < self.replacer.sweep_goal(&self.resident, partition);
            if short || dirty > BATCH as u32 {
                self.request_frames(partition, short);
            }
        }
        let frame = free.list.pop().map(|frame| (frame, free.queues.enter(&self.frames, frame, id)));
        let is_low = free.is_low(&self.frames);
        drop(free);
        if is_low {
            self.request_memory(partition);
        }
        self.stats.frames_taken[partition.index()].fetch_add(u64::from(frame.is_some()), Relaxed);
        FoundFrame { frame, dirty, short }
    }

    /// Fills `taken` up to `wanted` frames without waiting; whether it took any.
    pub(super) fn try_take_frames(
        &self,
        partition: impl Into<Partition>,
        wanted: usize,
        taken: &mut Vec<u32>,
    ) -> bool {
        let (partition, before) = (partition.into(), taken.len());
        let mut free = self.replacer.free(partition).lock();
        let mut dirty = 0;
        // While another thread has memory put behind frames, pages need not go for them.
        if !self.has_free(&mut free) && !free.is_backing {
            self.refill(partition, &mut free, wanted - before, false);
            dirty = free.queues.len(Queue::Dirty);
        }
        let from = free.list.len().saturating_sub(wanted - before);
        taken.extend(free.list.drain(from..).rev());
        drop(free);
        // No thread waits for middle frames, so only this reports dirty pages in the way.
        let in_vain = taken.len() == before && dirty > 0 && partition.tier == Tier::Middle;
        if in_vain || dirty > BATCH as u32 {
            self.request_frames(partition, in_vain);
        }
        self.stats.frames_taken[partition.index()].fetch_add((taken.len() - before) as u64, Relaxed);
        taken.len() > before
    }

    /// Whether a frame is free, maybe one that gets memory now.
    fn has_free(&self, free: &mut MutexGuard<'_, FreeFrames>) -> bool {
        if free.list.is_empty()
            && let Err(error) = self.replacer.back_more(&self.frames, free)
        {
            self.note_refused(&error);
        }
        !free.list.is_empty()
    }

    /// Pages are evicted instead, as if the budget were smaller.
    fn note_refused(&self, error: &io::Error) {
        if self.stats.frames_refused.fetch_add(1, Relaxed) == 0 {
            tracing::warn!(%error, "the system refuses memory within the budget");
        }
    }

    /// Has the maintenance thread put memory behind frames, unless the system refused it before.
    #[cold]
    fn request_memory(&self, partition: Partition) {
        let is_of_use = !self.requests.works_inline() && self.stats.frames_refused.load(Relaxed) == 0;
        if is_of_use && self.replacer.note_low(partition) {
            self.requests.wake_up.request(false);
        }
    }

    /// Puts memory behind frames that threads will soon take.
    pub(crate) fn back_ahead(&self) {
        if let Err(error) = self.replacer.back_ahead(&self.frames) {
            self.note_refused(&error);
        }
    }

    /// Makes `frame` hold mini pages.
    pub(super) fn hold_minis(&self, frame: u32) {
        let Some(minis) = self.frames.minis.as_ref().filter(|minis| minis.may_hold(frame)) else {
            return self.give_frame(frame);
        };
        let (header, mut free) = (self.frames.header(frame), self.replacer.free(minis.class()).lock());
        free.queues.enter_main(&self.frames, frame, 0);
        header.set_rec_lsn(Lsn::NONE);
        header.set_read_reason(None);
        header.set_page(PageId::MINI_PAGES);
        minis.begin(frame);
    }

    /// Evicts pages until a mini page or a frame is free; whether it is a mini page.
    pub(super) fn free_minis(&self, partition: Partition) -> bool {
        let mut free = self.replacer.free(partition).lock();
        if !self.has_free(&mut free) {
            self.refill(partition, &mut free, 1, true);
        }
        self.frames.minis.as_ref().is_some_and(|minis| minis.free_slots() > 0)
    }

    /// Evicts pages to complete a batch, or at least `needed` ones. `for_mini`: a mini page does.
    fn refill(
        &self,
        partition: Partition,
        free: &mut MutexGuard<'_, FreeFrames>,
        needed: usize,
        for_mini: bool,
    ) {
        let moves_memory = self.frames.moves_memory() && self.middle_for(partition.class).is_some();
        let most = self.replacer.leave_goal(&self.resident, partition, moves_memory);
        // Evictions by other threads count. Otherwise a batch each would empty a small partition.
        let goal = most.saturating_sub(free.leaving).max(needed.min(most));
        let mut swept = Swept { leaving: Vec::with_capacity(goal), ..Swept::default() };
        self.sweep(free, (goal, for_mini), &mut swept);
        if swept.is_empty() {
            return;
        }
        let frames = swept.leaving.len() + swept.minis.len();
        free.leaving += frames;
        MutexGuard::unlocked(free, || {
            #[cfg(test)]
            super::frames::residency_tests::while_leaving();
            let gone = swept.wanted.iter().filter_map(|page| self.evict_wanted(page));
            swept.leaving.extend(gone);
            swept.minis.iter().for_each(|minis| minis.empty(self));
            self.finish_evictions(&mut swept.leaving);
        });
        free.leaving -= frames;
        swept.minis.into_iter().for_each(|minis| minis.end(self, free));
        swept.wanted.iter().for_each(|page| self.requeue_dirty(&mut free.queues, page));
        for page in swept.leaving {
            match page.to {
                To::Stays => {
                    free.queues.enter_dirty_queue(&self.frames, page.frame);
                    self.release_unmoved(page.entry);
                }
                _ => {
                    // That of a partial page is still there.
                    free.queues.evicted(&self.frames, page.frame, page.id);
                    self.replacer.give(free, page.frame);
                }
            }
        }
    }

    fn sweep<'p>(&'p self, free: &mut FreeFrames, (goal, for_mini): (usize, bool), swept: &mut Swept<'p>) {
        let mut sweep = Sweep::begin(&self.resident, free, self.replacer.lent_of(free.partition));
        // Frames found, and mini pages of others.
        let (mut frames, mut minis) = (0, 0);
        let minis_of_frame = self.frames.minis.as_ref().map_or(1, MiniPages::slots);
        // The first middle frame whose partial page was spared. Behind it are only pages that this
        // sweep has looked at.
        let mut spared = None;
        while let Some((frame, queue)) = sweep.next(&self.resident, free, frames > 0) {
            if spared == Some(frame) {
                return;
            }
            if self.frames.header(frame).page() == PageId::MINI_PAGES {
                let moving = swept.minis.iter().map(Emptying::moving).sum();
                let has_slot = match Emptying::begin(self, free, frame, false, (!for_mini).then_some(moving))
                {
                    Minis::Stay(slots) => slots > 0,
                    Minis::Leave(emptying) => {
                        let (pages, is_whole) = (emptying.pages(), emptying.is_whole());
                        swept.minis.push(emptying);
                        (frames, minis) =
                            if is_whole { (frames + 1, minis) } else { (frames, minis + pages) };
                        !is_whole
                    }
                };
                if for_mini && has_slot {
                    return;
                }
            } else {
                match self.look_at(&mut free.queues, frame, queue) {
                    Look::Evicted(page) => {
                        swept.leaving.push(page);
                        frames += 1;
                    }
                    Look::Dropped => {
                        self.replacer.give(free, frame);
                        frames += 1;
                    }
                    Look::Moved => sweep.stays(&self.resident, free, frame),
                    Look::Wanted(page) => {
                        frames += usize::from(!page.seen.is_dirty());
                        swept.wanted.push(page);
                        sweep.stays(&self.resident, free, frame);
                    }
                    Look::Spared => {
                        spared.get_or_insert(frame);
                        sweep.stays(&self.resident, free, frame);
                    }
                    Look::Passed => {
                        sweep.stays(&self.resident, free, frame);
                        sweep.passed(queue);
                    }
                }
            }
            if frames > 0 && frames + minis / minis_of_frame >= goal || swept.wanted.len() >= goal {
                return;
            }
        }
    }

    /// Steps 1 to 3: evicts the first page of `queue`, or requeues it.
    fn look_at<'p>(&'p self, queues: &mut Queues, frame: u32, queue: Queue) -> Look<'p> {
        let id = self.frames.header(frame).page();
        if id.is_none() {
            // Taken for a page being loaded.
            queues.requeue(&self.frames, frame);
            return Look::Passed;
        }
        let entry = self.table.entry(id).expect("pages in frames are in the table");
        let seen = entry.latch().load();
        if is_middle(frame)
            && let Some(above) = entry.location().frame()
            && above != frame
        {
            return self.look_at_lower(queues, (id, entry, seen), above, frame, queue);
        }
        if self.is_used(queues, entry, seen, frame, queue) {
            return Look::Moved;
        }
        if queue == Queue::Probation && self.frames.header(frame).take_first_pass() {
            queues.requeue(&self.frames, frame);
            return Look::Passed;
        }
        // Pages of the dirty queue were offered to the middle tier before.
        match self.try_evict(id, entry, seen, frame, queue != Queue::Dirty) {
            Evicted::Yes(to) => {
                queues.evicted(&self.frames, frame, id);
                Look::Evicted(Leaving { id, entry, frame, to })
            }
            Evicted::Dirty if queue == Queue::Dirty => Look::Passed,
            Evicted::Dirty => {
                queues.enter_dirty_queue(&self.frames, frame);
                Look::Moved
            }
            Evicted::No => {
                queues.requeue(&self.frames, frame);
                Look::Passed
            }
        }
    }

    /// Spares a page that was accessed since the last look, or in earlier rounds.
    fn is_used(&self, queues: &mut Queues, entry: Entry<'_>, seen: Word, frame: u32, queue: Queue) -> bool {
        let is_marked = seen.is_marked() && !seen.is_latched();
        if is_marked {
            entry.latch().unmark();
            queues.touched(&self.frames, frame, queue);
        }
        let is_used =
            is_marked || queue == Queue::Main && queues.fifo.is_none() && queues.spare(&self.frames, frame);
        self.stats.swept_used.fetch_add(u64::from(is_used), Relaxed);
        is_used
    }

    /// Steps 1 to 3 for a middle copy; `above` is the page's DRAM frame.
    fn look_at_lower<'p>(
        &'p self,
        queues: &mut Queues,
        (id, entry, seen): (PageId, Entry<'p>, Word),
        above: u32,
        frame: u32,
        queue: Queue,
    ) -> Look<'p> {
        if queues.is_clock() && self.frames.header(frame).unmark_copy() {
            queues.touched(&self.frames, frame, queue);
            return Look::Moved;
        }
        let middle = self.middle_of_frame();
        if entry.location() == Location::Partial(above) && !planted(Bug::DropBelowPartial) {
            // It needs both frames, so each tier's sweep spares it as a page in use. The mark is
            // one, which the next access sets again.
            if self.is_used(queues, entry, seen, frame, queue) {
                return Look::Spared;
            }
            queues.requeue(&self.frames, frame);
            let wanted = Wanted { id, entry, seen, above, frame };
            return if seen.is_latched() { Look::Passed } else { Look::Wanted(wanted) };
        }
        if middle.drop_below(&self.resident, id, entry, seen, above, frame) {
            queues.remove(&self.frames, frame);
            middle.counts.copies_dropped.fetch_add(1, Relaxed);
            return Look::Dropped;
        }
        queues.requeue(&self.frames, frame);
        Look::Passed
    }

    /// Demotes a partial page to its middle frame, and latches it to leave that too if it is clean.
    fn evict_wanted<'p>(&'p self, page: &Wanted<'p>) -> Option<Leaving<'p>> {
        let &Wanted { id, entry, seen, above, frame } = page;
        if !self.middle_of_frame().demote_partial(&self.resident, (id, entry, seen), above, frame) {
            return None;
        }
        self.give_frame(above);
        let seen = entry.latch().load();
        match self.try_evict(id, entry, seen, frame, false) {
            Evicted::Yes(to) => Some(Leaving { id, entry, frame, to }),
            Evicted::Dirty | Evicted::No => None,
        }
    }

    /// Has a demoted page written soon if it is dirty.
    fn requeue_dirty(&self, queues: &mut Queues, page: &Wanted<'_>) {
        let &Wanted { id, entry, frame, .. } = page;
        // A frame that was given back meanwhile is in no queue.
        let is_there = entry.location() == Location::Frame(frame)
            && self.frames.header(frame).page() == id
            && self.frames.header(frame).links.queue().is_some();
        if is_there && entry.latch().load().is_dirty() {
            queues.enter_dirty_queue(&self.frames, frame);
        }
    }

    /// Steps 2 and 3; [`Tiers::finish_evictions`] follows. Latches `id` if it is unlatched, at the
    /// version seen, and clean or to be demoted. `offered`: the middle tier may take it without a
    /// middle copy. A page with one always returns to it.
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
        let is_dirty =
            |word: Word| word.is_dirty() && !(planted(Bug::LoseEvictionWrite) && header.mapped().has_image());
        if is_dirty(seen) && middle.is_none_or(|_| !offered) || seen.is_claimed() {
            self.stats.swept_dirty.fetch_add(1, Relaxed);
            return Evicted::Dirty;
        }
        if !latch.try_exclusive(seen) {
            self.stats.swept_busy.fetch_add(1, Relaxed);
            return Evicted::No;
        }
        // Dirty and claimed may have been set since `seen` without a new version. The latch stops
        // that.
        let now = latch.load();
        if header.page() != id || entry.location().frame() != Some(frame) || now.is_claimed() {
            latch.release_unchanged();
            self.stats.swept_busy.fetch_add(1, Relaxed);
            return Evicted::No;
        }
        // Step 3.
        let dirty = is_dirty(now);
        let has_copy = header.middle_copy().is_some();
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
        if header.take_read_reason() == Some(ReadReason::Ahead) {
            self.stats.ahead_unused.fetch_add(1, Relaxed);
        }
        Evicted::Yes(if path == Path::DramToMiddle { To::Middle } else { To::Dropped })
    }

    /// Steps 4 and 5: completes a batch of evictions. Pages that must be written first stay
    /// latched; the caller requeues them. Otherwise another thread could empty a frame before the
    /// caller queues it.
    pub(super) fn finish_evictions(&self, leaving: &mut [Leaving<'_>]) {
        if leaving.iter().any(|page| page.to == To::Middle) {
            self.demote(leaving);
        }
        let to_store = |page: &&Leaving<'_>| page.to == To::Dropped;
        let pages: Vec<PageFrame> =
            leaving.iter().filter(to_store).map(|page| (page.id, page.frame)).collect();
        leaving.iter().filter(to_store).for_each(|page| self.point_to_store(page));
        let unlatch = || {
            leaving.iter().filter(to_store).for_each(|page| _ = page.entry.latch().release_changed());
        };
        if planted(Bug::DiscardAfterUnlatching) {
            unlatch();
        }
        #[cfg(test)]
        super::frames::residency_tests::while_leaving();
        self.discard(&pages);
        if !planted(Bug::DiscardAfterUnlatching) {
            unlatch();
        }
        for page in leaving.iter_mut() {
            if page.to != To::Stays {
                page.to = To::Gone;
                self.stats.evictions.fetch_add(1, Relaxed);
            }
        }
    }

    /// Step 4 for pages to the middle tier, while it has frames.
    fn demote(&self, leaving: &mut [Leaving<'_>]) {
        let (Some(middle), Some(class)) = (&self.middle, leaving.first().map(|page| class_of_page(page.id)))
        else {
            return;
        };
        // All are of one DRAM partition.
        debug_assert!(leaving.iter().all(|page| class_of_page(page.id) == class));
        let wanted = middle.frames_wanted(&self.resident, leaving);
        let mut frames = Vec::with_capacity(wanted);
        if wanted > 0 {
            self.try_take_frames(Partition::middle(class), wanted, &mut frames);
        }
        middle.demote(&self.resident, &self.replacer, leaving, frames);
    }

    /// Step 4 for a page whose image is current. A page with a middle copy goes there instead.
    fn point_to_store(&self, page: &Leaving<'_>) {
        let header = self.frames.header(page.frame);
        debug_assert_eq!(header.middle_copy(), None);
        page.entry.latch().set_dirty(false);
        page.entry.set_location(Location::Store(header.mapped()));
        self.frames.vacate(page.frame);
        if let Some(middle) = &self.middle {
            let counts = &middle.counts;
            let count = if is_middle(page.frame) { &counts.middle_to_store } else { &counts.dram_to_store };
            count.fetch_add(1, Relaxed);
        }
    }

    /// Whether the page in `frame` cannot leave before a thread gives up its shared latch.
    pub(super) fn is_held(&self, frame: u32) -> bool {
        let id = self.frames.header(frame).page();
        let entry = self.table.entry(id).filter(|_| !id.is_none());
        entry.is_some_and(|entry| entry.latch().load().is_shared())
    }

    /// Evicts clean, unlatched pages, marked or not, from frames to be removed. The ghost remembers
    /// them.
    pub(super) fn drive_out(&self, partition: Partition, indexes: Range<u32>) {
        let mut leaving = Vec::with_capacity(BATCH);
        for index in indexes {
            leaving.extend(self.expel(partition.frame(index)));
            if leaving.len() == BATCH {
                self.finish_driven_out(partition, &mut leaving);
            }
        }
        self.finish_driven_out(partition, &mut leaving);
    }

    fn expel(&self, frame: u32) -> Option<Leaving<'_>> {
        let id = self.frames.header(frame).page();
        if id == PageId::MINI_PAGES {
            let mut free = self.replacer.free(partition_of(frame)).lock();
            // Unless another sweep has freed it, or empties it.
            let header = self.frames.header(frame);
            if header.page() == PageId::MINI_PAGES
                && header.links.queue().is_some()
                && let Minis::Leave(emptying) = Emptying::begin(self, &mut free, frame, true, None)
            {
                MutexGuard::unlocked(&mut free, || emptying.empty(self));
                emptying.end(self, &mut free);
            }
            return None;
        }
        let entry = self.table.entry(id).filter(|_| !id.is_none())?;
        let seen = entry.latch().load();
        if let Some(above) = entry.location().frame()
            && is_middle(frame)
            && above != frame
        {
            return self.expel_lower((id, entry, seen), above, frame);
        }
        match self.try_evict(id, entry, seen, frame, false) {
            Evicted::Yes(to) => Some(Leaving { id, entry, frame, to }),
            Evicted::Dirty | Evicted::No => None,
        }
    }

    /// Has a middle copy leave its frame. A page that needs both frames leaves with it.
    fn expel_lower<'p>(
        &'p self,
        (id, entry, seen): (PageId, Entry<'p>, Word),
        above: u32,
        frame: u32,
    ) -> Option<Leaving<'p>> {
        if seen.is_latched() {
            return None;
        }
        if entry.location() == Location::Partial(above) {
            return self.evict_wanted(&Wanted { id, entry, seen, above, frame });
        }
        let middle = self.middle_of_frame();
        if planted(Bug::KeepCopyInRemovedFrame)
            || middle.drop_below(&self.resident, id, entry, seen, above, frame)
        {
            middle.counts.copies_dropped.fetch_add(1, Relaxed);
            self.give_frame(frame);
        }
        None
    }

    /// Steps 4 and 5 for those frames.
    fn finish_driven_out(&self, partition: Partition, leaving: &mut Vec<Leaving<'_>>) {
        if leaving.is_empty() {
            return;
        }
        self.finish_evictions(leaving);
        let mut free = self.replacer.free(partition).lock();
        for page in leaving.drain(..) {
            if page.to == To::Stays {
                page.entry.latch().release_unchanged();
                continue;
            }
            free.queues.driven_out(&self.frames, page.frame, page.id);
            self.replacer.give(&mut free, page.frame);
        }
    }
}
