//! Finding frames: the free list, and the sweep that refills it. Each class of pages has its own in each tier, with a lock of their
//! own, so that faults on pages of two classes do not meet; a fault takes one of them, that of its page.
//!
//! The sweep looks at the frames in the order of their queues (`queues.rs`). A page whose mark is set loses the mark and
//! stays; an unmarked clean one is evicted, unless it was marked in several rounds (`evict.rs`); a dirty one goes to the middle tier
//! if it is in DRAM and there is one that takes it, or else is left to the write-back, which is rung for when there are many, so that a fault never waits for another page's write unless nothing else is left.
//! Pages are loaded unmarked: a page that is read once goes the next time it is looked at; the time after that if a batch read
//! it for who has not come to it yet (`batch.rs`).

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::{Mutex, MutexGuard};

use super::evict::{Evicted, Leaving, To};
use super::fifo::{Entry as InLine, Fifo};
use super::patience::Patience;
use super::pool::Pool;
use super::queues::{Queue, Queues, probation_goal};
use super::stripe::{Stripe, Tier, index_of, is_middle, stripe_of};
use super::table::{Entry, Location};
use crate::error::{Error, Result};
use crate::ids::{PageId, SizeClass};
use crate::replacement::Replacement;

/// Frames evicted at a time, so that the lock is taken once for many.
const BATCH: usize = 32;
/// And where they take their memory to other nodes, which costs the system as much for one as for many.
const BATCH_OF_MEMORY: usize = 128;
/// Rounds after which frames are not only dirty, but in the hands of others who wait for more of them: then other classes
/// give some up.
const STARVED_ROUNDS: u32 = 4;
/// Times that one sweep looks at each frame, at most: as often as a page is spared, and once more to take it.
const LOOKS_MAX: u64 = 5;

/// Frames of one stripe that hold nothing, and the order in which the others are looked at.
#[derive(Debug)]
pub(crate) struct FreeFrames {
    stripe: Stripe,
    pub(super) list: Vec<u32>,
    pub(super) queues: Queues,
    /// Frames with indexes from here on are not given out: they are about to go (`resize.rs`). As a rule, the number of
    /// frames.
    pub(super) limit: u32,
    /// Those of them that hold nothing any more.
    pub(super) parked: Vec<u32>,
    /// Frames in neither list whose pages are leaving them, without the lock.
    leaving: usize,
}

impl FreeFrames {
    /// For a stripe of which there are no frames yet. The ghost is to know `ghost_least` pages at least.
    pub(super) fn none(stripe: Stripe, ghost_least: u32, replacement: Replacement) -> FreeFrames {
        let queues = Queues::new(stripe.class, ghost_least, replacement);
        FreeFrames { stripe, list: Vec::new(), queues, limit: 0, parked: Vec::new(), leaving: 0 }
    }

    /// There are these frames too from now on, behind the ones there were.
    pub(super) fn gain(&mut self, indexes: Range<u32>) {
        self.limit = indexes.end;
        self.queues.resize(indexes.end);
        let stripe = self.stripe;
        self.list.extend(indexes.rev().map(|index| stripe.frame(index)));
    }

    /// From now on only frames below `limit` are given out.
    pub(super) fn keep_back(&mut self, limit: u32) {
        self.limit = limit;
        self.parked = self.list.extract_if(.., |frame| index_of(*frame) >= limit).collect();
        self.list.shrink_to_fit();
    }

    /// Gives out all `count` frames again.
    pub(super) fn keep_nothing_back(&mut self, count: u32) {
        self.limit = count;
        let parked = std::mem::take(&mut self.parked);
        self.list.extend(parked);
    }

    fn give(&mut self, frame: u32) {
        if index_of(frame) < self.limit { self.list.push(frame) } else { self.parked.push(frame) }
    }
}

impl Pool {
    /// The free frames of a stripe. Nobody holds those of two stripes at once.
    pub(super) fn free(&self, stripe: impl Into<Stripe>) -> &Mutex<FreeFrames> {
        &self.free[stripe.into().index()]
    }

    /// A frame in DRAM that holds nothing, for a page of `class`: for `id`, or for one that has no id yet. Evicts, and waits for
    /// write-back, as need be; the caller holds no latch.
    pub(super) fn take_frame(&self, class: SizeClass, id: PageId) -> Result<u32> {
        if self.works_inline() {
            self.balance()?;
        }
        let mut patience = Patience::new(self.works_inline());
        for round in 0u32.. {
            if class == self.class() {
                // Before any page goes for it.
                self.records.give_back(self);
            }
            if let Some(frame) = self.find_frame(class.into(), id)? {
                return Ok(frame);
            }
            self.stats.frame_waits.fetch_add(1, Relaxed);
            if !patience.lasts(self.frame_progress(class)) {
                break;
            }
            if round >= STARVED_ROUNDS {
                self.note_starving(class);
            }
            if self.works_inline() {
                self.upkeep_for_frames(class, true)?;
                self.balance()?;
            } else {
                self.note_wanting(class);
                self.wait_for_round()?;
            }
            if round > 10 {
                std::thread::yield_now();
            }
        }
        Err(self.out_of_frames(class))
    }

    /// How far those have come who need frames of `class` in DRAM, and those who make pages in them clean.
    fn frame_progress(&self, class: SizeClass) -> (u64, u64, u32) {
        let images = self.stats.images_written.load(Relaxed);
        (self.stats.taken(class), images, self.frames.count(class))
    }

    /// A frame of `stripe` that holds nothing, if one can be had without waiting, as [`Pool::take_frame`] gives one. Without a thread
    /// dirty pages are written for it, so the caller holds no latch.
    pub(super) fn take_frame_now(&self, stripe: Stripe, id: PageId) -> Result<Option<u32>> {
        let found = self.find_frame(stripe, id)?;
        if found.is_some() || !self.works_inline() {
            return Ok(found);
        }
        match self.upkeep_for_frames(stripe, true) {
            Ok(()) => self.find_frame(stripe, id),
            Err(Error::Full { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A frame of `stripe` that holds nothing, if the free list or one sweep has any. Has more pages written if few are clean.
    fn find_frame(&self, stripe: Stripe, id: PageId) -> Result<Option<u32>> {
        let (found, dirty, short) = {
            let mut free = self.free(stripe).lock();
            let (mut dirty, mut short) = (0, false);
            if free.list.is_empty() {
                self.refill(stripe, &mut free, 1);
                dirty = free.queues.len(Queue::Laundry);
                // With one clean frame among dirty ones, whoever needs two pages would evict each for the other
                // for ever.
                short = dirty > 0 && free.list.len() < self.sweep_goal(stripe);
                if short || dirty > BATCH as u32 {
                    self.ring_for_frames(stripe, short);
                }
            }
            let found = free.list.pop();
            if let Some(frame) = found
                && free.queues.enter(&self.frames, frame, id)
            {
                self.missed(stripe.class);
            }
            (found, dirty, short)
        };
        let Some(frame) = found else { return Ok(None) };
        self.stats.frames_taken[stripe.index()].fetch_add(1, Relaxed);
        if dirty > 0 && self.works_inline() {
            match self.upkeep_for_frames(stripe, short) {
                Ok(()) | Err(Error::Full { .. }) => {}
                Err(error) => {
                    self.give_frame(frame);
                    return Err(error);
                }
            }
        }
        self.wash_middle().inspect_err(|_| self.give_frame(frame))?;
        Ok(Some(frame))
    }

    /// Without a thread: writes what is dirty in the middle tier, if it had no frame for pages that were to go down there.
    fn wash_middle(&self) -> Result<()> {
        let Some(middle) = self.middle.as_ref().filter(|_| self.works_inline()) else { return Ok(()) };
        let stripe = Stripe::middle(middle.class);
        if !self.take_wanting(stripe) {
            return Ok(());
        }
        match self.upkeep_for_frames(stripe, true) {
            Err(Error::Full { .. }) => Ok(()),
            other => other,
        }
    }

    /// A page of `class` was missed that was evicted lately. The frames that the record cache might give back for it are of
    /// its own class; what another class lacks, the one has to give up to it (`balance.rs`).
    pub(super) fn missed(&self, class: SizeClass) {
        if class == self.class() {
            self.records.page_missed(self.frames.count(class));
        }
    }

    /// Takes frames of a stripe into `taken` until there are `wanted`, if the free list or one sweep has any; whether
    /// it did. Waits for nobody.
    pub(super) fn try_take_frames(
        &self,
        stripe: impl Into<Stripe>,
        wanted: usize,
        taken: &mut Vec<u32>,
    ) -> bool {
        let (stripe, before) = (stripe.into(), taken.len());
        let mut free = self.free(stripe).lock();
        let mut dirty = 0;
        if free.list.is_empty() {
            self.refill(stripe, &mut free, wanted - before);
            dirty = free.queues.len(Queue::Laundry);
        }
        let from = free.list.len().saturating_sub(wanted - before);
        taken.extend(free.list.drain(from..).rev());
        drop(free);
        // For frames of the middle tier nobody waits, so nobody else says that what is dirty there is in the way.
        let in_vain = taken.len() == before && dirty > 0 && stripe.tier == Tier::Middle;
        if in_vain || dirty > BATCH as u32 {
            self.ring_for_frames(stripe, in_vain);
        }
        self.stats.frames_taken[stripe.index()].fetch_add((taken.len() - before) as u64, Relaxed);
        taken.len() > before
    }

    /// Frames that one sweep tries to find.
    fn sweep_goal(&self, stripe: Stripe) -> usize {
        BATCH.min(self.batch_max(stripe))
    }

    /// Pages that leave together at the most.
    fn leave_goal(&self, stripe: Stripe) -> usize {
        let moves = self.frames.moves_memory() && self.middle_for(stripe.class).is_some();
        let batch = if moves { BATCH_OF_MEMORY } else { BATCH };
        batch.min(self.batch_max(stripe))
    }

    fn batch_max(&self, stripe: Stripe) -> usize {
        self.page_frames(stripe) as usize / 4 + 1
    }

    /// Gives a frame back that holds nothing.
    pub(super) fn give_frame(&self, frame: u32) {
        let header = self.frames.header(frame);
        debug_assert_eq!(header.below(), None);
        header.set_page(PageId::NONE);
        let mut free = self.free(stripe_of(frame)).lock();
        free.queues.remove(&self.frames, frame);
        free.give(frame);
    }

    /// Evicts a batch of pages from `stripe`, if there are some to evict: as many as make one with those that others are evicting,
    /// or as are `needed`, so that who needs many does not have them leave one by one.
    fn refill(&self, stripe: Stripe, free: &mut MutexGuard<'_, FreeFrames>, needed: usize) {
        let most = self.leave_goal(stripe);
        // What is on its way out will do for others too: several threads that evicted a whole batch each would, where there
        // are few frames, evict all there is.
        let goal = most.saturating_sub(free.leaving).max(needed.min(most));
        let mut leaving = Vec::with_capacity(goal);
        self.sweep(free, goal, &mut leaving);
        if leaving.is_empty() {
            return;
        }
        // Pages that leave are latched and in no queue, so others may look for frames meanwhile.
        free.leaving += leaving.len();
        MutexGuard::unlocked(free, || {
            #[cfg(test)]
            super::residency::tests::while_leaving(self);
            self.leave(&mut leaving);
        });
        free.leaving -= leaving.len();
        for page in leaving {
            match page.to {
                To::Stays => {
                    free.queues.launder(&self.frames, page.frame);
                    self.release_unmoved(page.entry);
                }
                _ => free.give(page.frame),
            }
        }
    }

    /// The page `id` in `frame` was loaded or changed, and its latch given back.
    #[inline]
    pub(super) fn unlocked(&self, id: PageId, entry: Entry<'_>, frame: u32) {
        if self.replacement == Replacement::FifoPaper {
            self.put_in_line(id, entry, frame);
        }
    }

    #[cold]
    fn put_in_line(&self, id: PageId, entry: Entry<'_>, frame: u32) {
        entry.latch().mark();
        let version = entry.latch().load().version();
        let mut free = self.free(stripe_of(frame)).lock();
        // From the laundry it comes back into line, marked as it is; in both it would be looked at twice a round.
        if !free.queues.is_laundry(&self.frames, frame) {
            self.line_up(&mut free.queues, frame, InLine { page: id, version });
        }
    }

    fn line_up(&self, queues: &mut Queues, frame: u32, in_line: InLine) {
        let fifo = queues.fifo.as_mut().expect("pages stand in line where it says which go");
        let frames = self.frames.count(stripe_of(frame));
        fifo.push(in_line, frames, |other| self.stands(other).is_some());
    }

    /// The frame of the page that stood in line, if it is at the version at which it did.
    fn stands(&self, in_line: InLine) -> Option<u32> {
        let entry = self.table.entry(in_line.page).expect("pages in line are in the table");
        match entry.location() {
            Location::Frame(frame) if entry.latch().load().version() == in_line.version => Some(frame),
            _ => None,
        }
    }

    /// The frame of the page that has stood in line the longest.
    fn first_in_line(&self, fifo: &mut Fifo) -> Option<u32> {
        std::iter::from_fn(|| fifo.pop()).find_map(|in_line| self.stands(in_line))
    }

    /// The page in `frame` stays: it stands in line again, unless it must be written first.
    fn back_into_line(&self, queues: &mut Queues, frame: u32) {
        let id = self.frames.header(frame).page();
        if let Some(entry) = self.table.entry(id).filter(|_| !id.is_none())
            && !queues.is_laundry(&self.frames, frame)
        {
            let version = entry.latch().load().version();
            self.line_up(queues, frame, InLine { page: id, version });
        }
    }

    /// Looks at frames until `goal` of them are `leaving`, or each was looked at as often as it may be spared.
    fn sweep<'p>(&'p self, free: &mut FreeFrames, goal: usize, leaving: &mut Vec<Leaving<'p>>) {
        let stripe = free.stripe;
        let records = if stripe == self.class().into() { self.records.held() } else { 0 };
        let mut dropped = 0;
        let probation_goal = probation_goal(free.limit.saturating_sub(records));
        let (mut washed, mut passed) = (true, 0);
        for _ in 0..u64::from(self.frames.count(stripe)) * LOOKS_MAX {
            let queues = &free.queues;
            let queue = if washed && queues.len(Queue::Laundry) > 0 {
                Queue::Laundry
            } else if passed < queues.len(Queue::Probation)
                && (queues.len(Queue::Probation) > probation_goal || queues.len(Queue::Main) == 0)
            {
                Queue::Probation
            } else {
                Queue::Main
            };
            let next = match free.queues.fifo.as_mut().filter(|_| queue != Queue::Laundry) {
                Some(fifo) => self.first_in_line(fifo),
                None => free.queues.first(queue),
            };
            let Some(frame) = next else { break };
            let look = self.look_at(&mut free.queues, frame, queue);
            if free.queues.fifo.is_some() && !matches!(look, Look::Evicted(_) | Look::Dropped) {
                self.back_into_line(&mut free.queues, frame);
            }
            match look {
                Look::Evicted(page) => {
                    leaving.push(page);
                    if leaving.len() + dropped >= goal {
                        return;
                    }
                }
                Look::Dropped => {
                    free.give(frame);
                    dropped += 1;
                    if leaving.len() + dropped >= goal {
                        return;
                    }
                }
                Look::Moved => {}
                Look::Passed if queue == Queue::Laundry => washed = false,
                Look::Passed => passed += u32::from(queue == Queue::Probation),
            }
        }
        // The main queue gives nothing; whoever is on probation must go.
        for _ in 0..free.queues.len(Queue::Probation) {
            let first = free.queues.first(Queue::Probation);
            let Some(frame) = first.filter(|_| leaving.len() + dropped == 0) else { break };
            match self.look_at(&mut free.queues, frame, Queue::Probation) {
                Look::Evicted(page) => leaving.push(page),
                Look::Dropped => {
                    free.give(frame);
                    dropped += 1;
                }
                Look::Moved | Look::Passed => {}
            }
        }
    }

    /// Evicts the page in `frame`, the first of `queue`, or puts it where it belongs now.
    fn look_at<'p>(&'p self, queues: &mut Queues, frame: u32, queue: Queue) -> Look<'p> {
        let id = self.frames.header(frame).page();
        if id.is_none() {
            // Taken for a page that is being read.
            queues.requeue(&self.frames, frame);
            return Look::Passed;
        }
        let entry = self.table.entry(id).expect("pages in frames are in the table");
        let seen = entry.latch().load();
        if is_middle(frame)
            && let Location::Frame(above) = entry.location()
            && above != frame
        {
            if queues.is_clock() && self.frames.header(frame).unmark_below() {
                queues.touched(&self.frames, frame, queue);
                return Look::Moved;
            }
            if self.drop_below(id, entry, seen, above, frame) {
                queues.remove(&self.frames, frame);
                self.count_copy_dropped();
                return Look::Dropped;
            }
            queues.requeue(&self.frames, frame);
            return Look::Passed;
        }
        if seen.is_marked() && !seen.is_latched() {
            entry.latch().unmark();
            self.stats.swept_used.fetch_add(1, Relaxed);
            queues.touched(&self.frames, frame, queue);
            return Look::Moved;
        }
        if queue == Queue::Main && queues.fifo.is_none() && queues.spare(&self.frames, frame) {
            self.stats.swept_used.fetch_add(1, Relaxed);
            return Look::Moved;
        }
        if queue == Queue::Probation && self.frames.header(frame).is_waited_for() {
            queues.requeue(&self.frames, frame);
            return Look::Passed;
        }
        // What was sent to be written is not offered to the middle tier again when it has been.
        match self.try_evict(id, entry, seen, frame, queue != Queue::Laundry) {
            Evicted::Yes(to) => {
                queues.evicted(&self.frames, frame, id);
                Look::Evicted(Leaving { id, entry, frame, to })
            }
            Evicted::Dirty if queue == Queue::Laundry => Look::Passed,
            Evicted::Dirty => {
                queues.launder(&self.frames, frame);
                Look::Moved
            }
            Evicted::No => {
                queues.requeue(&self.frames, frame);
                Look::Passed
            }
        }
    }

    /// Takes the pages out of the frames of `class` with these indexes, which are to go, marked or not, and gives the frames
    /// back whose pages are clean and not latched. The ghost knows the pages from then on.
    pub(super) fn drive_out(&self, class: SizeClass, indexes: Range<u32>) {
        let mut leaving = Vec::with_capacity(BATCH);
        for index in indexes {
            leaving.extend(self.expel(Stripe::from(class).frame(index)));
            if leaving.len() == BATCH {
                self.part_with(class, &mut leaving);
            }
        }
        self.part_with(class, &mut leaving);
    }

    /// Evicts the page in `frame`, if there is one that can go now.
    fn expel(&self, frame: u32) -> Option<Leaving<'_>> {
        let id = self.frames.header(frame).page();
        let entry = self.table.entry(id).filter(|_| !id.is_none())?;
        match self.try_evict(id, entry, entry.latch().load(), frame, false) {
            Evicted::Yes(to) => Some(Leaving { id, entry, frame, to }),
            Evicted::Dirty | Evicted::No => None,
        }
    }

    /// Gives the frames of driven out pages of `class` back.
    fn part_with(&self, class: SizeClass, leaving: &mut Vec<Leaving<'_>>) {
        if leaving.is_empty() {
            return;
        }
        self.leave(leaving);
        let mut free = self.free(class).lock();
        for page in leaving.drain(..) {
            if page.to == To::Stays {
                page.entry.latch().release_unchanged();
                continue;
            }
            free.queues.driven_out(&self.frames, page.frame, page.id);
            free.give(page.frame);
        }
    }
}

/// What became of a frame that was looked at.
enum Look<'p> {
    /// It is free as soon as its page has left.
    Evicted(Leaving<'p>),
    /// It held a copy of a page that has another in DRAM, and is free.
    Dropped,
    /// Its page was touched, or is dirty: it stands elsewhere now.
    Moved,
    /// Its page cannot go now.
    Passed,
}
