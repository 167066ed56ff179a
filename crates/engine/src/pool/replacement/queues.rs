//! Replacement queues: probation, main and dirty, and a ghost.
//!
//! ```text
//!   fault ──> probation ──marked──> main <─┐ marked, or counted
//!                 │                   │ └──┘
//!              unmarked            unmarked          dirty ones of both ──> dirty ──marked──> main
//!                 v                   v                                       │
//!              evicted ··> ghost   evicted                                 written
//!                                                                             v
//!   a fault on a page that the ghost knows goes to main                    evicted
//! ```
//!
//! This is S3-FIFO (Yang et al., SOSP 2023) with one mark in place of its counter. The sweep counts
//! marked rounds up, to [`COUNT_MAX`], and unmarked rounds down. So recurring reads outlive a
//! burst, and a hit writes at most one word. Ghost hits show how much more frames would save
//! (`balance.rs`). Write-back empties the dirty queue first, so no page is written long before its
//! frame is needed.
//!
//! **Baseline** (`Replacement::ClockPaper`): CLOCK, as in Spitfire. It is the main queue without
//! counts, one per tier with its own marks. The promoting access marks the middle copy.
//!
//! The lock of the partition's free frames protects everything here.

use std::sync::atomic::Ordering::Relaxed;

use super::fifo::Fifo;
use crate::ids::{PageId, SizeClass};
use crate::pool::frames::{Frames, Queue, link};
use crate::replacement::Replacement;

/// Probation's share of the frames, as a divisor.
const PROBATION_SHARE: u32 = 16;
/// Minimum frames of probation, but at most a quarter.
const PROBATION_MIN: u32 = 8;
/// Upper limit of the rounds that spare a page.
pub(in crate::pool) const COUNT_MAX: u32 = 3;
/// Frames per page in the ghost.
const GHOST_SHARE: u32 = 2;
pub(crate) const GHOST_BYTES: u64 = size_of::<u32>() as u64 / GHOST_SHARE as u64;
const BUCKET: usize = 8;
/// Relative size error of the ghost that causes a resize (divisor).
const RESIZE_SHARE: usize = 8;

#[derive(Debug, Default)]
struct Ends {
    first: Option<u32>,
    last: Option<u32>,
    length: u32,
}

#[derive(Debug)]
pub(crate) struct Queues {
    ends: [Ends; 3],
    ghost: Ghost,
    ghost_least: u32,
    /// Ghost hits since [`Queues::forget_hits`].
    hits: u64,
    replacement: Replacement,
    /// The baseline's queue. Clean pages are then in the main queue too.
    pub(in crate::pool) fifo: Option<Fifo>,
}

impl Queues {
    pub(crate) fn new(class: SizeClass, ghost_least: u32, replacement: Replacement) -> Queues {
        let fifo = replacement.is_fifo_paper().then(Fifo::default);
        let ghost = Ghost::new(class, 0);
        Queues { ends: Default::default(), ghost, ghost_least, hits: 0, replacement, fifo }
    }

    /// Whether the ghost knows the page.
    pub(crate) fn knows(&mut self, id: PageId) -> bool {
        self.ghost.position(id).is_some()
    }

    /// Adapts the ghost to `frames` frames, ignoring small changes.
    pub(crate) fn resize(&mut self, frames: u32) {
        self.ghost.resize((frames / GHOST_SHARE).max(self.ghost_least));
    }

    pub(crate) fn hits(&self) -> (u64, u64) {
        (self.hits, self.ghost.entries())
    }

    /// Keeps one in `share` ghost hits, or none.
    pub(crate) fn forget_hits(&mut self, share: Option<u64>) {
        self.hits = share.map_or(0, |share| self.hits / share);
    }

    pub(crate) fn len(&self, queue: Queue) -> u32 {
        self.ends[queue as usize].length
    }

    pub(crate) fn first(&self, queue: Queue) -> Option<u32> {
        self.ends[queue as usize].first
    }

    /// Appends `frame`, which page `id` enters, to the right queue.
    ///
    /// Returns whether the ghost knew the page.
    pub(crate) fn enter(&mut self, frames: &Frames, frame: u32, id: PageId) -> bool {
        let known = self.ghost.forget(id);
        self.hits += u64::from(known);
        if self.is_clock() && frames.header(frame).links.queue() == Some(Queue::Main) {
            // A middle copy keeps its position when its DRAM copy leaves.
            return known;
        }
        let queue =
            if known || self.replacement != Replacement::Mark { Queue::Main } else { Queue::Probation };
        self.remove(frames, frame);
        frames.header(frame).links.stand(None, 0);
        self.push(frames, frame, queue);
        known
    }

    /// Appends a frame that was adopted with its page, to the main queue.
    pub(crate) fn adopt(&mut self, frames: &Frames, frame: u32) {
        frames.header(frame).links.stand(None, 0);
        self.push(frames, frame, Queue::Main);
    }

    /// Moves `frame` to the end of the main queue, as counted before.
    pub(crate) fn enter_main(&mut self, frames: &Frames, frame: u32, count: u32) {
        self.remove(frames, frame);
        frames.header(frame).links.stand(None, count);
        self.push(frames, frame, Queue::Main);
    }

    pub(crate) fn touched(&mut self, frames: &Frames, frame: u32, queue: Queue) {
        let links = frames.header(frame).links;
        let is_counted = queue == Queue::Main && !self.is_clock();
        let count = if is_counted { (links.count() + 1).min(COUNT_MAX) } else { 0 };
        self.remove(frames, frame);
        links.stand(None, count);
        self.push(frames, frame, Queue::Main);
    }

    /// Notes a round without access; returns whether the page stays.
    pub(crate) fn spare(&mut self, frames: &Frames, frame: u32) -> bool {
        let links = frames.header(frame).links;
        let count = links.count().saturating_sub(1);
        links.stand(links.queue(), count);
        if count > 0 {
            self.requeue(frames, frame);
        }
        count > 0
    }

    pub(crate) fn is_clock(&self) -> bool {
        self.replacement.is_clock_paper()
    }

    pub(crate) fn is_dirty_queue(&self, frames: &Frames, frame: u32) -> bool {
        frames.header(frame).links.queue() == Some(Queue::Dirty)
    }

    pub(crate) fn enter_dirty_queue(&mut self, frames: &Frames, frame: u32) {
        self.remove(frames, frame);
        self.push(frames, frame, Queue::Dirty);
    }

    pub(crate) fn requeue(&mut self, frames: &Frames, frame: u32) {
        if let Some(queue) = self.remove(frames, frame) {
            self.push(frames, frame, queue);
        }
    }

    pub(crate) fn evicted(&mut self, frames: &Frames, frame: u32, id: PageId) {
        if self.remove(frames, frame) == Some(Queue::Probation) {
            self.ghost.insert(id);
        }
    }

    /// Page `id` had to leave because `frame` is removed.
    pub(crate) fn driven_out(&mut self, frames: &Frames, frame: u32, id: PageId) {
        self.remove(frames, frame);
        self.ghost.insert(id);
    }

    pub(crate) fn remove(&mut self, frames: &Frames, frame: u32) -> Option<Queue> {
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

pub(crate) fn probation_goal(frames: u32) -> u32 {
    (frames / PROBATION_SHARE).max(PROBATION_MIN).min(frames / 4)
}

/// At most `most` frames from `first` on, in queue order.
///
/// Only a hint: without the lock, a frame that moves leads elsewhere or to the end.
pub(crate) fn walk(frames: &Frames, first: Option<u32>, most: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(first, |&frame| frames.header(frame).links.behind()).take(most as usize)
}

#[derive(Debug)]
struct Ghost {
    class: SizeClass,
    /// Lower halves of ids: no class has more pages.
    buckets: Vec<[u32; BUCKET]>,
}

impl Ghost {
    fn new(class: SizeClass, pages: u32) -> Ghost {
        Ghost { class, buckets: vec![[0; BUCKET]; pages as usize / BUCKET + 1] }
    }

    fn entries(&self) -> u64 {
        (self.buckets.len() * BUCKET) as u64
    }

    fn resize(&mut self, pages: u32) {
        let (have, want) = (self.buckets.len(), pages as usize / BUCKET + 1);
        if have.abs_diff(want) * RESIZE_SHARE <= want {
            return;
        }
        let old = std::mem::replace(self, Ghost::new(self.class, pages));
        // Oldest first, so that the newest end up in front. Buckets keep their order, so both
        // tables are walked sequentially.
        for at in (0..BUCKET).rev() {
            for known in old.buckets.iter().map(|bucket| bucket[at]).filter(|&known| known != 0) {
                self.insert(PageId::new(self.class, u64::from(known)));
            }
        }
    }

    fn bucket(&mut self, id: PageId) -> &mut [u32; BUCKET] {
        let mixed = id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The upper half of the product is uniform and needs no division.
        let at = (u128::from(mixed) * self.buckets.len() as u128) >> 64;
        &mut self.buckets[at as usize]
    }

    fn insert(&mut self, id: PageId) {
        let bucket = self.bucket(id);
        bucket.rotate_right(1);
        bucket[0] = id.0 as u32;
    }

    fn position(&mut self, id: PageId) -> Option<usize> {
        self.bucket(id).iter().position(|&known| known == id.0 as u32 && !id.is_none())
    }

    fn forget(&mut self, id: PageId) -> bool {
        let at = self.position(id);
        if let Some(at) = at {
            let bucket = self.bucket(id);
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
        let frames = Frames::reserve(1 << 20, &[0; _], Backend::default(), 1 << 10).unwrap();
        frames.grow_backed(SizeClass::SMALLEST, count).unwrap();
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
        (1..=3000).for_each(|id| ghost.insert(PageId(id)));
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
            (1..=3000).for_each(|index| ghost.insert(id(index)));
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
