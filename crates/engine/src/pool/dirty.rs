//! Dirty pages: ahead of the sweep, or holding the cut back.

use super::frames::partition::Partition;
use super::frames::{Header, Queue};
use super::replacement::queues;
use super::tiers::Tiers;
use crate::ids::{Lsn, PageId};
use crate::planted::{Bug, planted};

/// Share of the frames ahead of the sweep, as a divisor.
const AHEAD_SHARE: u32 = 8;
const AHEAD_MIN: u32 = 64;

impl Tiers {
    /// The dirty pages to write ahead of the sweep of `partition`: all of the dirty queue, then up
    /// to whole batches from the fronts of the other queues, or from all of them if `urgent`.
    /// Otherwise none while more frames are idle: no sweep is near, and the walk would push the
    /// readers' data out of the processor's cache.
    pub(crate) fn dirty_ahead(
        &self,
        partition: Partition,
        urgent: bool,
        accept_marked: bool,
        batch: usize,
    ) -> Vec<PageId> {
        let count = self.page_frames(partition);
        let reach = |share: u32| if urgent { count } else { share.max(AHEAD_MIN).min(count) };
        let (first, waiting) = {
            let free = self.replacer.free(partition).lock();
            if !urgent && free.idle(&self.frames) > u64::from(reach(count / AHEAD_SHARE)) {
                return Vec::new();
            }
            let first = [Queue::Dirty, Queue::Probation, Queue::Main].map(|queue| free.queues.first(queue));
            (first, free.queues.len(Queue::Dirty))
        };
        let most = (waiting as usize).max(1).next_multiple_of(batch);
        let dirty_queue = queues::walk(&self.frames, first[0], count);
        let probation = queues::walk(&self.frames, first[1], reach(queues::probation_goal(count) / 2));
        let main = queues::walk(&self.frames, first[2], reach(count / AHEAD_SHARE));
        let main = main.filter(|&frame| urgent || self.frames.header(frame).links.count() <= 1);
        let mut pages = Vec::new();
        for frame in dirty_queue.chain(probation).chain(main) {
            let id = self.frames.header(frame).page();
            let Some(entry) = self.table.entry(id).filter(|_| !id.is_none()) else { continue };
            let now = entry.latch().load();
            // The dirty copy may be in DRAM, and its middle copy here.
            let is_here = entry.location().frame() == Some(frame);
            if is_here && now.is_dirty() && (accept_marked || !now.is_marked()) {
                pages.push(id);
                if pages.len() >= most {
                    break;
                }
            }
        }
        pages
    }

    /// Pages dirty since before `target`, in id order.
    pub(crate) fn pages_dirty_before(&self, target: Lsn) -> Vec<PageId> {
        // A page that moved between frames meanwhile would be missed.
        let moving = self.middle.as_ref().map(|middle| middle.moving.write());
        let mut due: Vec<PageId> = Vec::new();
        let mut note = |header: Header<'_>| {
            let is_due = !header.rec_lsn().is_none() && header.rec_lsn() < target;
            due.extend(Some(header.page()).filter(|page| is_due && !page.is_none()));
        };
        self.frames.all().for_each(|frame| note(self.frames.header(frame)));
        self.frames.for_each_mini(note);
        drop(moving);
        due.sort_unstable();
        due
    }

    /// The lowest recLSN of all frames and mini pages.
    pub(crate) fn oldest_rec_lsn(&self) -> Option<Lsn> {
        // As in `pages_dirty_before`.
        let moving = self.middle.as_ref().map(|middle| middle.moving.write());
        let recoveries = self.frames.all().map(|frame| self.frames.header(frame).rec_lsn());
        let mut oldest = recoveries.filter(|recovery| !recovery.is_none()).min();
        if !planted(Bug::CutForgetsMini) {
            self.frames.for_each_mini(|header| {
                let recovery = Some(header.rec_lsn()).filter(|recovery| !recovery.is_none());
                oldest = oldest.into_iter().chain(recovery).min();
            });
        }
        drop(moving);
        oldest
    }
}
