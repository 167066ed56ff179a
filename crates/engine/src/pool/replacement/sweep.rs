//! The order in which a sweep visits a partition's frames.
//!
//! First the dirty queue, until it meets a page that is still dirty. Then probation while above
//! its goal, then the main queue. If that found no frame, all of probation.
//!
//! A marked page loses its mark and stays. A clean unmarked page is evicted, unless it was marked
//! in several rounds. A dirty one goes to the middle tier or to the dirty queue. So a fault waits
//! for another page's write only as a last resort. A page read for a waiting thread gets one look
//! more (`batch.rs`).

use super::queues::probation_goal;
use super::replacer::{FreeFrames, back_into_line, first_in_line};
use crate::pool::frames::Queue;
use crate::pool::resident::Resident;

/// Looks per frame in a sweep: all that spare it, plus one.
const LOOKS_MAX: u64 = 5;

pub(in crate::pool) struct Sweep {
    /// Looks left before the last resort.
    looks: u64,
    /// Looks left at probation as the last resort; none before.
    last_looks: Option<u32>,
    probation_goal: u32,
    /// Whether the dirty queue may have clean pages.
    may_hold_clean: bool,
    /// Frames on probation that could not be evicted.
    passed: u32,
}

impl Sweep {
    pub(in crate::pool) fn begin(resident: &Resident, free: &FreeFrames, lent: u32) -> Sweep {
        Sweep {
            looks: u64::from(resident.frames.count(free.partition)) * LOOKS_MAX,
            last_looks: None,
            probation_goal: probation_goal(free.limit.saturating_sub(lent)),
            may_hold_clean: true,
            passed: 0,
        }
    }

    /// The next candidate and its queue, or none at the end.
    ///
    /// `found`: the sweep already found a frame.
    pub(in crate::pool) fn next(
        &mut self,
        resident: &Resident,
        free: &mut FreeFrames,
        found: bool,
    ) -> Option<(u32, Queue)> {
        if self.last_looks.is_none() {
            if let Some(candidate) = self.next_in_turn(resident, free) {
                return Some(candidate);
            }
            self.last_looks = Some(free.queues.len(Queue::Probation));
        }
        let looks = self.last_looks.as_mut().filter(|looks| **looks > 0 && !found)?;
        *looks -= 1;
        free.queues.first(Queue::Probation).map(|frame| (frame, Queue::Probation))
    }

    fn next_in_turn(&mut self, resident: &Resident, free: &mut FreeFrames) -> Option<(u32, Queue)> {
        self.looks = self.looks.checked_sub(1)?;
        let queues = &free.queues;
        let queue = if self.may_hold_clean && queues.len(Queue::Dirty) > 0 {
            Queue::Dirty
        } else if self.passed < queues.len(Queue::Probation)
            && (queues.len(Queue::Probation) > self.probation_goal || queues.len(Queue::Main) == 0)
        {
            Queue::Probation
        } else {
            Queue::Main
        };
        let next = match free.queues.fifo.as_mut().filter(|_| queue != Queue::Dirty) {
            Some(fifo) => first_in_line(resident, fifo),
            None => free.queues.first(queue),
        };
        next.map(|frame| (frame, queue))
    }

    /// The candidate stays in its frame: the CLOCK and FIFO baselines put it into line again.
    pub(in crate::pool) fn stays(&self, resident: &Resident, free: &mut FreeFrames, frame: u32) {
        if free.queues.fifo.is_some() && self.last_looks.is_none() {
            back_into_line(resident, &mut free.queues, frame);
        }
    }

    /// The candidate of `queue` cannot be evicted now.
    pub(in crate::pool) fn passed(&mut self, queue: Queue) {
        match queue {
            Queue::Dirty => self.may_hold_clean = false,
            Queue::Probation => self.passed += 1,
            Queue::Main => {}
        }
    }
}
