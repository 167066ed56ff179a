//! In which order frames are looked at when one is needed: three queues, and a memory of what left the first.
//!
//! ```text
//!   fault ──> probation ──marked──> main <─┐ marked, or counted
//!                 │                   │ └──┘
//!              unmarked            unmarked          dirty ones of both ──> laundry ──marked──> main
//!                 v                   v                                        │
//!              evicted ··> ghost   evicted                                  written
//!                                                                              v
//!   a fault on a page that the ghost knows goes to main                     evicted
//! ```
//!
//! This is S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023) with the one mark a hit
//! may set in place of its counter. What the mark cannot say the sweep adds up: each time it finds a page of the main
//! queue marked it counts that, to [`COUNT_MAX`], and each time unmarked it counts down. So a page that was read in
//! three rounds of the queue outlives one that was read a thousand times in one round, and a hit still writes one word
//! at most, if the mark is clear.
//!
//! A page read once, by a scan for instance, goes through probation, a sixteenth of the frames, and displaces nothing
//! else. The ghost keeps the ids of half as many pages as there are frames, four bytes each, in buckets of eight that
//! are queues of their own; it forgets about as it should, and nothing has to be looked for.
//!
//! A dirty page whose turn it is goes to the laundry, which the write-back empties first, so that no page is written long
//! before its frame is needed, and none is looked at in vain again and again.
//!
//! Pages of each class have queues and a ghost of their own, since a frame takes pages of one size only. How often the ghost
//! of a class knew a page says what more frames of that class would save (`balance.rs`), so it knows at least as many pages
//! as a few frames more would hold, however few there are.
//!
//! The frames of the middle tier have queues and a ghost like those in DRAM. A copy that has another in DRAM above it stands where it
//! was put, and goes when it comes to the front, whatever is done to the page meanwhile: all it saves is a copy down.
//!
//! **To compare with** ([`Replacement::ClockPaper`]): a CLOCK, which is the main queue alone, without counts: a marked page loses its mark
//! and goes to the end, an unmarked one leaves. There is one for each tier, and each has marks of its own, as in Spitfire: a copy
//! below another is marked by the look that brought the page up, and has its turns like any other.
//!
//! Everything here changes under the lock of the stripe's free frames. The links are in the frames' headers, so that taking a
//! frame out of its queue is not a search.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::fifo::Fifo;
use super::frames::Frames;
use crate::ids::{PageId, SizeClass};
use crate::replacement::Replacement;

/// Probation is held at one part in this many of the frames.
const PROBATION_SHARE: u32 = 16;
/// Frames of probation, at least; but not more than one part in four.
const PROBATION_MIN: u32 = 8;
/// Rounds of the main queue that a page is given for having been marked in so many.
const COUNT_MAX: u32 = 3;
/// The ghost knows as many pages as one part in this many of the frames.
const GHOST_SHARE: u32 = 2;
/// Bytes of the ghost for each frame.
pub(super) const GHOST_BYTES: u64 = size_of::<u32>() as u64 / GHOST_SHARE as u64;
const BUCKET: usize = 8;
/// A ghost that is wrong by less than one part in so many is left as it is.
const RESIZE_SHARE: usize = 8;

/// Where a frame stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// Pages that came in and were not seen again yet.
    Probation = 0,
    /// Pages that were.
    Main = 1,
    /// Pages that were to be evicted and must be written first.
    Laundry = 2,
}

/// A frame's part of the queues, all zeros for a frame that stands in none: frames and queues are kept as their number
/// plus one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links<'a> {
    pub(super) before: &'a AtomicU64,
    pub(super) behind: &'a AtomicU64,
    /// The queue in the low half, the count in the upper.
    pub(super) standing: &'a AtomicU64,
}

impl Links<'_> {
    /// Rounds of the main queue that the page still has to go.
    pub(super) fn count(&self) -> u32 {
        (self.standing.load(Relaxed) >> 32) as u32
    }

    fn queue(&self) -> Option<Queue> {
        match self.standing.load(Relaxed) as u32 {
            0 => None,
            1 => Some(Queue::Probation),
            2 => Some(Queue::Main),
            _ => Some(Queue::Laundry),
        }
    }

    fn stand(&self, queue: Option<Queue>, count: u32) {
        let queue = queue.map_or(0, |queue| queue as u64 + 1);
        self.standing.store(u64::from(count) << 32 | queue, Relaxed);
    }

    fn behind(&self) -> Option<u32> {
        (self.behind.load(Relaxed) as u32).checked_sub(1)
    }
}

/// How a link to `frame` is kept.
fn link(frame: Option<u32>) -> u64 {
    frame.map_or(0, |frame| u64::from(frame) + 1)
}

#[derive(Debug, Default)]
struct Ends {
    first: Option<u32>,
    last: Option<u32>,
    length: u32,
}

/// The queues and the ghost.
#[derive(Debug)]
pub(super) struct Queues {
    ends: [Ends; 3],
    ghost: Ghost,
    /// Pages the ghost knows at least.
    ghost_least: u32,
    /// Pages that came in and that the ghost knew, since [`Queues::forget_hits`].
    hits: u64,
    replacement: Replacement,
    /// Where this is what says which pages go: then they all stand in the main queue, but for dirty ones.
    pub(super) fifo: Option<Fifo>,
}

impl Queues {
    /// The queues of no frames yet, for pages of `class`, with a ghost that is to know `ghost_least` pages at least.
    pub(super) fn new(class: SizeClass, ghost_least: u32, replacement: Replacement) -> Queues {
        let fifo = (replacement == Replacement::FifoPaper).then(Fifo::default);
        let ghost = Ghost::new(class, 0);
        Queues { ends: Default::default(), ghost, ghost_least, hits: 0, replacement, fifo }
    }

    /// There are `frames` frames now. The ghost becomes larger or smaller with them, though not at every small change, and
    /// knows what it knew, or as much of that as it has room for.
    pub(super) fn resize(&mut self, frames: u32) {
        self.ghost.resize((frames / GHOST_SHARE).max(self.ghost_least));
    }

    /// Pages that came in and that the ghost knew, and how many it knows.
    pub(super) fn hits(&self) -> (u64, u64) {
        (self.hits, self.ghost.entries())
    }

    /// Remembers only one in `share` of these hits, or none.
    pub(super) fn forget_hits(&mut self, share: Option<u64>) {
        self.hits = share.map_or(0, |share| self.hits / share);
    }

    /// Frames in `queue`.
    pub(super) fn len(&self, queue: Queue) -> u32 {
        self.ends[queue as usize].length
    }

    /// The frame that has stood in `queue` the longest.
    pub(super) fn first(&self, queue: Queue) -> Option<u32> {
        self.ends[queue as usize].first
    }

    /// The frame for `id`, which is about to be loaded or made, goes to the end of the queue the page belongs in, from
    /// whatever queue it stood in before. Whether the ghost knew it.
    pub(super) fn enter(&mut self, frames: &Frames, frame: u32, id: PageId) -> bool {
        let known = self.ghost.forget(id);
        self.hits += u64::from(known);
        if self.is_clock() && frames.header(frame).links.queue() == Some(Queue::Main) {
            // The copy that another above it left behind, where the hand will find it.
            return known;
        }
        let queue =
            if known || self.replacement != Replacement::Mark { Queue::Main } else { Queue::Probation };
        self.remove(frames, frame);
        frames.header(frame).links.stand(None, 0);
        self.push(frames, frame, queue);
        known
    }

    /// The page in `frame` was touched since it was last looked at.
    pub(super) fn touched(&mut self, frames: &Frames, frame: u32, queue: Queue) {
        let links = frames.header(frame).links;
        let is_counted = queue == Queue::Main && !self.is_clock();
        let count = if is_counted { (links.count() + 1).min(COUNT_MAX) } else { 0 };
        self.remove(frames, frame);
        links.stand(None, count);
        self.push(frames, frame, Queue::Main);
    }

    /// The page in `frame` was not touched: whether it has another round nevertheless.
    pub(super) fn spare(&mut self, frames: &Frames, frame: u32) -> bool {
        let links = frames.header(frame).links;
        let count = links.count().saturating_sub(1);
        links.stand(links.queue(), count);
        if count > 0 {
            self.requeue(frames, frame);
        }
        count > 0
    }

    /// Whether pages leave by CLOCK.
    pub(super) fn is_clock(&self) -> bool {
        self.replacement == Replacement::ClockPaper
    }

    /// Whether the page in `frame` is to be written.
    pub(super) fn is_laundry(&self, frames: &Frames, frame: u32) -> bool {
        frames.header(frame).links.queue() == Some(Queue::Laundry)
    }

    /// The page in `frame` is to be written.
    pub(super) fn launder(&mut self, frames: &Frames, frame: u32) {
        self.remove(frames, frame);
        self.push(frames, frame, Queue::Laundry);
    }

    /// Moves a frame that cannot be taken now to the end of its queue.
    pub(super) fn requeue(&mut self, frames: &Frames, frame: u32) {
        if let Some(queue) = self.remove(frames, frame) {
            self.push(frames, frame, queue);
        }
    }

    /// The page `id` in `frame` is evicted.
    pub(super) fn evicted(&mut self, frames: &Frames, frame: u32, id: PageId) {
        if self.remove(frames, frame) == Some(Queue::Probation) {
            self.ghost.remember(id);
        }
    }

    /// The page `id` had to leave `frame`, which is about to go, whether or not it was the page's turn.
    pub(super) fn driven_out(&mut self, frames: &Frames, frame: u32, id: PageId) {
        self.remove(frames, frame);
        self.ghost.remember(id);
    }

    /// Takes a frame out of its queue, if it is in one, and says which.
    pub(super) fn remove(&mut self, frames: &Frames, frame: u32) -> Option<Queue> {
        let links = frames.header(frame).links;
        let queue = links.queue()?;
        links.stand(None, links.count());
        let (before, behind) = ((links.before.load(Relaxed) as u32).checked_sub(1), links.behind());
        let ends = &mut self.ends[queue as usize];
        match before {
            None => ends.first = behind,
            Some(before) => frames.header(before).links.behind.store(link(behind), Relaxed),
        }
        match behind {
            None => ends.last = before,
            Some(behind) => frames.header(behind).links.before.store(link(before), Relaxed),
        }
        ends.length -= 1;
        Some(queue)
    }

    fn push(&mut self, frames: &Frames, frame: u32, queue: Queue) {
        let ends = &mut self.ends[queue as usize];
        let links = frames.header(frame).links;
        links.stand(Some(queue), links.count());
        links.before.store(link(ends.last), Relaxed);
        links.behind.store(link(None), Relaxed);
        match ends.last {
            None => ends.first = Some(frame),
            Some(last) => frames.header(last).links.behind.store(link(Some(frame)), Relaxed),
        }
        ends.last = Some(frame);
        ends.length += 1;
    }
}

/// Frames that probation is held at, of `frames`.
pub(super) fn probation_goal(frames: u32) -> u32 {
    (frames / PROBATION_SHARE).max(PROBATION_MIN).min(frames / 4)
}

/// The frames from `first` on, at most `most`, in the order of their queue. Walks without the lock: a frame that is
/// moved meanwhile leads to another part of the queues, or to their end, so this is a hint and no more.
pub(super) fn walk(frames: &Frames, first: Option<u32>, most: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(first, |&frame| frames.header(frame).links.behind()).take(most as usize)
}

/// The ids of pages that left probation lately, 0 for none.
#[derive(Debug)]
struct Ghost {
    class: SizeClass,
    /// The lower half of an index is all of it: there are not that many pages of one class.
    buckets: Vec<[u32; BUCKET]>,
}

impl Ghost {
    /// One that knows about `pages` pages.
    fn new(class: SizeClass, pages: u32) -> Ghost {
        Ghost { class, buckets: vec![[0; BUCKET]; pages as usize / BUCKET + 1] }
    }

    /// How many it knows at most.
    fn entries(&self) -> u64 {
        (self.buckets.len() * BUCKET) as u64
    }

    /// Makes it one that knows about `pages` pages, if it is not nearly that already.
    fn resize(&mut self, pages: u32) {
        let (have, want) = (self.buckets.len(), pages as usize / BUCKET + 1);
        if have.abs_diff(want) * RESIZE_SHARE <= want {
            return;
        }
        let old = std::mem::replace(self, Ghost::new(self.class, pages));
        // Those remembered last come last. Buckets stay in their order, so this goes through both from start to end.
        for at in (0..BUCKET).rev() {
            for known in old.buckets.iter().map(|bucket| bucket[at]).filter(|&known| known != 0) {
                self.remember(PageId::new(self.class, u64::from(known)));
            }
        }
    }

    fn bucket(&mut self, id: PageId) -> &mut [u32; BUCKET] {
        let mixed = id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The upper half of a product is as even as its factor is random, and needs no division.
        let at = (u128::from(mixed) * self.buckets.len() as u128) >> 64;
        &mut self.buckets[at as usize]
    }

    fn remember(&mut self, id: PageId) {
        let bucket = self.bucket(id);
        bucket.rotate_right(1);
        bucket[0] = id.0 as u32;
    }

    /// Whether `id` is known; it is not any more then.
    fn forget(&mut self, id: PageId) -> bool {
        let bucket = self.bucket(id);
        let at = bucket.iter().position(|&known| known == id.0 as u32 && !id.is_none());
        if let Some(at) = at {
            bucket[at..].rotate_left(1);
            bucket[BUCKET - 1] = 0;
        }
        at.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Backend;

    fn order(queues: &Queues, frames: &Frames, queue: Queue) -> Vec<u32> {
        std::iter::successors(queues.first(queue), |&frame| frames.header(frame).links.behind()).collect()
    }

    fn frames(count: u32) -> (Frames, Queues) {
        let frames = Frames::reserve(1 << 20, None, Backend::default(), 1 << 10).unwrap();
        frames.grow(SizeClass::SMALLEST, count).unwrap();
        let mut queues = Queues::new(SizeClass::SMALLEST, 0, Replacement::Mark);
        queues.resize(count);
        (frames, queues)
    }

    #[test]
    fn frames_leave_in_the_order_they_came() {
        let (frames, mut queues) = frames(8);
        for frame in 0..5 {
            queues.enter(&frames, frame, PageId(u64::from(frame) + 100));
        }
        assert_eq!(order(&queues, &frames, Queue::Probation), [0, 1, 2, 3, 4]);
        queues.requeue(&frames, 0);
        queues.remove(&frames, 3);
        assert_eq!(queues.remove(&frames, 3), None, "it is in none any more");
        queues.touched(&frames, 2, Queue::Probation);
        assert_eq!(order(&queues, &frames, Queue::Probation), [1, 4, 0]);
        assert_eq!(order(&queues, &frames, Queue::Main), [2]);
        queues.evicted(&frames, 1, PageId(101));
        queues.enter(&frames, 1, PageId(101));
        assert_eq!(order(&queues, &frames, Queue::Main), [2, 1], "the ghost knew it");
        assert_eq!((queues.len(Queue::Probation), queues.len(Queue::Main)), (2, 2));
    }

    #[test]
    fn a_page_stays_for_each_round_it_was_touched_in() {
        let (frames, mut queues) = frames(4);
        queues.enter(&frames, 0, PageId(1));
        for rounds in [1, 2, 3, 7] {
            queues.touched(&frames, 0, Queue::Probation);
            (0..rounds).for_each(|_| queues.touched(&frames, 0, Queue::Main));
            let spared = (0..20).take_while(|_| queues.spare(&frames, 0)).count() as u32;
            assert_eq!(spared, rounds.min(COUNT_MAX) - 1, "the last look evicts it");
        }
    }

    #[test]
    fn the_ghost_forgets_about_as_many_as_it_was_made_for() {
        let mut ghost = Ghost::new(SizeClass::SMALLEST, 1000);
        (1..=3000).for_each(|id| ghost.remember(PageId(id)));
        assert!((2600..=3000).filter(|&id| ghost.forget(PageId(id))).count() > 370);
        assert!((1..=1000).filter(|&id| ghost.forget(PageId(id))).count() < 50);
        assert!(!ghost.forget(PageId(2990)), "what was asked for once is forgotten");
        assert!(!ghost.forget(PageId::NONE));
    }

    #[test]
    fn the_ghost_of_another_size_knows_what_it_knew() {
        let class = SizeClass::LARGEST;
        let id = |index: u64| PageId::new(class, index);
        let known = |ghost: &mut Ghost, range: std::ops::RangeInclusive<u64>| {
            range.filter(|&index| ghost.forget(id(index))).count()
        };
        for (pages, entries, least) in [(4000, 4008, 370), (1050, 1008, 370), (200, 208, 150)] {
            let mut ghost = Ghost::new(class, 1000);
            (1..=3000).for_each(|index| ghost.remember(id(index)));
            ghost.resize(pages);
            assert_eq!(ghost.entries(), entries, "{pages}");
            let late = known(&mut ghost, 2601..=3000);
            assert!(late >= least, "{pages}: {late}");
            assert!(known(&mut ghost, 1..=1000) < 50, "{pages}");
        }
    }

    #[test]
    fn pages_that_are_driven_out_are_known_wherever_they_stood() {
        let (frames, mut queues) = frames(4);
        queues.resize(64);
        for frame in 0..2 {
            queues.enter(&frames, frame, PageId(u64::from(frame) + 1));
        }
        queues.touched(&frames, 1, Queue::Probation);
        assert_eq!(queues.hits().0, 0);
        for frame in 0..2 {
            queues.driven_out(&frames, frame, PageId(u64::from(frame) + 1));
            assert!(queues.enter(&frames, frame, PageId(u64::from(frame) + 1)));
        }
        assert_eq!((queues.hits().0, queues.len(Queue::Main)), (2, 2));
        queues.forget_hits(Some(2));
        assert_eq!(queues.hits().0, 1);
        queues.forget_hits(None);
        assert_eq!(queues.hits().0, 0);
    }
}
