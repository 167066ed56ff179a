//! Finding frames: the free list, and the sweep that refills it. Each class of pages has its own, with a lock of their own, so
//! that faults on pages of two classes do not meet; a fault takes one of them, that of its page.
//!
//! The sweep looks at the frames in the order of their queues (`queues.rs`). A page whose mark is set loses the mark and
//! stays; an unmarked clean one is evicted, unless it was marked in several rounds; a dirty one is left to the
//! write-back, which is rung for when there are many, so that a fault never waits for another page's write unless nothing else is left.
//! Pages are loaded unmarked: a page that is read once goes the next time it is looked at; the time after that if a batch read
//! it for who has not come to it yet (`batch.rs`).

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::{Mutex, MutexGuard};

use super::batch::Purpose;
use super::fifo::{Entry as InLine, Fifo};
use super::frames::{class_of, frame_of, index_of};
use super::latch::Word;
use super::pool::{Pool, class_of_page};
use super::queues::{Queue, Queues, probation_goal};
use super::residency::Housed;
use super::table::{Entry, Location};
use crate::error::{Error, Result};
use crate::ids::{PageId, SizeClass};
use crate::planted::{Bug, planted};
use crate::replacement::Replacement;

/// Frames evicted at a time, so that the lock is taken once for many.
const BATCH: usize = 32;
/// Rounds of upkeep a fault waits for before it gives up.
const ROUNDS_MAX: u32 = 2000;
/// Rounds after which frames are not only dirty, but in the hands of others who wait for more of them: then other classes
/// give some up.
const STARVED_ROUNDS: u32 = 4;
/// Times that one sweep looks at each frame, at most: as often as a page is spared, and once more to take it.
const LOOKS_MAX: u64 = 5;

/// Frames of one class that hold nothing, and the order in which the others are looked at.
#[derive(Debug)]
pub(crate) struct FreeFrames {
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
    /// For the pages of `class`, of which there are no frames yet. The ghost is to know `ghost_least` pages at least.
    pub(super) fn none(class: SizeClass, ghost_least: u32, replacement: Replacement) -> FreeFrames {
        let queues = Queues::new(class, ghost_least, replacement);
        FreeFrames { list: Vec::new(), queues, limit: 0, parked: Vec::new(), leaving: 0 }
    }

    /// There are these frames of `class` too from now on, behind the ones there were.
    pub(super) fn gain(&mut self, class: SizeClass, indexes: Range<u32>) {
        self.limit = indexes.end;
        self.queues.resize(indexes.end);
        self.list.extend(indexes.rev().map(|index| frame_of(class, index)));
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
    /// The free frames for pages of `class`. Nobody holds those of two classes at once.
    pub(super) fn free(&self, class: SizeClass) -> &Mutex<FreeFrames> {
        &self.free[class.index()]
    }

    /// A frame that holds nothing, for a page of `class`: for `id`, or for one that has no id yet. Evicts, and waits for
    /// write-back, as need be; the caller holds no latch.
    pub(super) fn take_frame(&self, class: SizeClass, id: PageId) -> Result<u32> {
        if self.works_inline() {
            self.balance()?;
        }
        for round in 0..ROUNDS_MAX {
            if class == self.class() {
                // Before any page goes for it.
                self.records.give_back(self);
            }
            let (found, dirty, short) = {
                let mut free = self.free(class).lock();
                let (mut dirty, mut short) = (0, false);
                if free.list.is_empty() {
                    self.refill(class, &mut free, 1);
                    dirty = free.queues.len(Queue::Laundry);
                    // With one clean frame among dirty ones, whoever needs two pages would evict each for the other
                    // for ever.
                    short = dirty > 0 && free.list.len() < self.sweep_goal(class);
                    if short || dirty > BATCH as u32 {
                        self.ring_for_frames(class, short);
                    }
                }
                let found = free.list.pop();
                if let Some(frame) = found
                    && free.queues.enter(&self.frames, frame, id)
                {
                    self.missed(class);
                }
                (found, dirty, short)
            };
            if let Some(frame) = found {
                self.stats.frames_taken[class.index()].fetch_add(1, Relaxed);
                if dirty > 0 && self.works_inline() {
                    match self.upkeep_for_frames(class, short) {
                        Ok(()) | Err(Error::Full { .. }) => {}
                        Err(error) => {
                            self.give_frame(frame);
                            return Err(error);
                        }
                    }
                }
                return Ok(frame);
            }
            self.stats.frame_waits.fetch_add(1, Relaxed);
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
        let (count, bytes) = (self.frames.count(class), class.page_bytes());
        Err(Error::OutOfFrames {
            what: format!("all {count} frames of {bytes} bytes of the DRAM tier are in use at once"),
        })
    }

    /// A page of `class` was missed that was evicted lately. The frames that the record cache might give back for it are of
    /// its own class; what another class lacks, the one has to give up to it (`balance.rs`).
    pub(super) fn missed(&self, class: SizeClass) {
        if class == self.class() {
            self.records.page_missed(self.frames.count(class));
        }
    }

    /// Takes frames for pages of `class` into `taken` until there are `wanted`, if the free list or one sweep has any; whether
    /// it did. Waits for nobody.
    pub(super) fn try_take_frames(&self, class: SizeClass, wanted: usize, taken: &mut Vec<u32>) -> bool {
        let before = taken.len();
        let mut free = self.free(class).lock();
        let mut dirty = 0;
        if free.list.is_empty() {
            self.refill(class, &mut free, wanted - before);
            dirty = free.queues.len(Queue::Laundry);
        }
        let from = free.list.len().saturating_sub(wanted - before);
        taken.extend(free.list.drain(from..).rev());
        drop(free);
        if dirty > BATCH as u32 {
            self.ring_for_frames(class, false);
        }
        self.stats.frames_taken[class.index()].fetch_add((taken.len() - before) as u64, Relaxed);
        taken.len() > before
    }

    /// Frames that one sweep tries to find.
    fn sweep_goal(&self, class: SizeClass) -> usize {
        BATCH.min(self.page_frames(class) as usize / 4 + 1)
    }

    /// Gives a frame back that holds nothing.
    pub(super) fn give_frame(&self, frame: u32) {
        self.frames.header(frame).set_page(PageId::NONE);
        let mut free = self.free(class_of(frame)).lock();
        free.queues.remove(&self.frames, frame);
        free.give(frame);
    }

    /// Evicts a batch of pages of `class`, if there are some to evict: as many as make one with those that others are evicting,
    /// or as are `needed`, so that who needs many does not have them leave one by one.
    fn refill(&self, class: SizeClass, free: &mut MutexGuard<'_, FreeFrames>, needed: usize) {
        let most = self.sweep_goal(class);
        // What is on its way out will do for others too: several threads that evicted a whole batch each would, where there
        // are few frames, evict all there is.
        let goal = most.saturating_sub(free.leaving).max(needed.min(most));
        let mut leaving = Vec::with_capacity(goal);
        self.sweep(class, free, goal, &mut leaving);
        if leaving.is_empty() {
            return;
        }
        // Pages that leave are latched and in no queue, so others may look for frames meanwhile.
        free.leaving += leaving.len();
        MutexGuard::unlocked(free, || {
            #[cfg(test)]
            super::residency::tests::while_leaving(self);
            self.leave(&leaving);
        });
        free.leaving -= leaving.len();
        leaving.iter().for_each(|page| free.give(page.frame));
    }

    /// Takes the memory of evicted pages away, and unlatches them.
    fn leave(&self, leaving: &[Leaving<'_>]) {
        let pages: Vec<Housed> = leaving.iter().map(|page| (page.id, page.frame)).collect();
        let unlatch = || leaving.iter().for_each(|page| page.entry.latch().release_changed());
        if planted(Bug::DiscardAfterUnlatching) {
            unlatch();
            self.meanwhile();
            return self.evacuate(&pages);
        }
        self.evacuate(&pages);
        unlatch();
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
        let mut free = self.free(class_of(frame)).lock();
        // From the laundry it comes back into line, marked as it is; in both it would be looked at twice a round.
        if !free.queues.is_laundry(&self.frames, frame) {
            self.line_up(&mut free.queues, id, version);
        }
    }

    fn line_up(&self, queues: &mut Queues, page: PageId, version: u64) {
        let fifo = queues.fifo.as_mut().expect("pages stand in line where it says which go");
        let frames = self.frames.count(class_of_page(page));
        fifo.push(InLine { page, version }, frames, |other| self.stands(other).is_some());
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
            self.line_up(queues, id, entry.latch().load().version());
        }
    }

    /// Looks at frames until `goal` of them are `leaving`, or each was looked at as often as it may be spared.
    fn sweep<'p>(
        &'p self,
        class: SizeClass,
        free: &mut FreeFrames,
        goal: usize,
        leaving: &mut Vec<Leaving<'p>>,
    ) {
        let records = if class == self.class() { self.records.held() } else { 0 };
        let probation_goal = probation_goal(free.limit.saturating_sub(records));
        let (mut washed, mut passed) = (true, 0);
        for _ in 0..u64::from(self.frames.count(class)) * LOOKS_MAX {
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
            if free.queues.fifo.is_some() && !matches!(look, Look::Evicted(_)) {
                self.back_into_line(&mut free.queues, frame);
            }
            match look {
                Look::Evicted(page) => {
                    leaving.push(page);
                    if leaving.len() >= goal {
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
            let Some(frame) = first.filter(|_| leaving.is_empty()) else { break };
            if let Look::Evicted(page) = self.look_at(&mut free.queues, frame, Queue::Probation) {
                leaving.push(page);
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
        match self.try_evict(id, entry, seen, frame) {
            Evicted::Yes => {
                queues.evicted(&self.frames, frame, id);
                Look::Evicted(Leaving { id, entry, frame })
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
            leaving.extend(self.expel(frame_of(class, index)));
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
        match self.try_evict(id, entry, entry.latch().load(), frame) {
            Evicted::Yes => Some(Leaving { id, entry, frame }),
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
            free.queues.driven_out(&self.frames, page.frame, page.id);
            free.give(page.frame);
        }
    }

    /// Evicts the page `id` from `frame` if it is clean, unlatched, and at the version seen. It stays latched: [`Pool::leave`]
    /// is next.
    fn try_evict(&self, id: PageId, entry: Entry<'_>, seen: Word, frame: u32) -> Evicted {
        let (header, latch) = (self.frames.header(frame), entry.latch());
        if seen.is_latched() {
            self.stats.swept_busy.fetch_add(1, Relaxed);
            return Evicted::No;
        }
        if (seen.is_dirty() || seen.is_claimed()) && !planted(Bug::LoseEvictionWrite) {
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
        let clean = !now.is_dirty() && !now.is_claimed();
        if header.page() != id || entry.location() != Location::Frame(frame) || !(clean || lost) {
            latch.release_unchanged();
            self.stats.swept_busy.fetch_add(1, Relaxed);
            return Evicted::No;
        }
        latch.set_dirty(false);
        entry.set_location(Location::Store(header.mapped()));
        header.set_page(PageId::NONE);
        if header.take_purpose() == Some(Purpose::Ahead) {
            self.stats.ahead_unused.fetch_add(1, Relaxed);
        }
        self.stats.evictions.fetch_add(1, Relaxed);
        Evicted::Yes
    }
}

/// What became of a frame that was looked at.
enum Look<'p> {
    /// It is free as soon as its page has left.
    Evicted(Leaving<'p>),
    /// Its page was touched, or is dirty: it stands elsewhere now.
    Moved,
    /// Its page cannot go now.
    Passed,
}

/// A page that is evicted, still latched, and the frame it was in.
struct Leaving<'p> {
    id: PageId,
    entry: Entry<'p>,
    frame: u32,
}

/// What became of an attempt to empty a frame.
enum Evicted {
    /// It holds nothing now, and its page is latched.
    Yes,
    /// Its page must be written first.
    Dirty,
    /// It holds nothing yet, or a page that is latched.
    No,
}
