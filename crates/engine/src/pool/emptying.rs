//! Frames of mini pages that a sweep empties.
//!
//! 1. With the lock of the free frames: close the frame, choose the pages that leave, and take it
//!    out of its queue. So no other sweep meets it.
//! 2. Without the lock: copy dirty lines down, and the pages that stay to other frames.
//! 3. With the lock: free the frame, or put it back with the pages that are left.

use std::sync::atomic::Ordering::Relaxed;

use super::frames::partition::index_of;
use super::page_table::Location;
use super::replacement::FreeFrames;
use super::replacement::queues::COUNT_MAX;
use super::tier::{Seen, partial};
use super::tiers::Tiers;

/// A frame in no queue, which takes no mini page meanwhile.
pub(super) struct Emptying<'p> {
    frame: u32,
    leaving: Vec<Seen<'p>>,
    /// Mini pages that move to other frames.
    moving: Vec<u32>,
    is_whole: bool,
}

/// What a sweep does with a frame of mini pages.
pub(super) enum Minis<'p> {
    Leave(Emptying<'p>),
    /// All stay, in the frame that was requeued. It has this number of free slots for others.
    Stay(usize),
}

impl<'p> Emptying<'p> {
    /// Step 1. `all` pages leave, marked or not. With `moving`, those that stay move to other
    /// frames, if those have room for all beside this number of others that move.
    #[cold]
    pub(super) fn begin(
        tiers: &'p Tiers,
        free: &mut FreeFrames,
        frame: u32,
        all: bool,
        moving: Option<usize>,
    ) -> Minis<'p> {
        let minis = tiers.frames.minis.as_ref().expect("the frame holds mini pages");
        let (mut leaving, mut staying) = (Vec::new(), Vec::new());
        for mini in minis.close(frame) {
            match victim(tiers, mini, all) {
                Some(page) => leaving.push(page),
                None => staying.push(mini),
            }
        }
        let is_whole =
            staying.is_empty() || moving.is_some_and(|others| staying.len() + others <= minis.free_slots());
        if leaving.is_empty() && !is_whole {
            let slots = if index_of(frame) < free.limit { minis.open(frame) } else { 0 };
            free.queues.requeue(&tiers.frames, frame);
            return Minis::Stay(slots);
        }
        if !is_whole {
            staying.clear();
        }
        free.queues.remove(&tiers.frames, frame);
        Minis::Leave(Emptying { frame, leaving, moving: staying, is_whole })
    }

    /// Pages that leave, unless another thread is at them.
    pub(super) fn pages(&self) -> usize {
        self.leaving.len()
    }

    /// Pages that move to other frames.
    pub(super) fn moving(&self) -> usize {
        self.moving.len()
    }

    /// Whether the frame becomes free if all goes well.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Step 2. The caller does not hold the lock of the free frames.
    pub(super) fn empty(&self, tiers: &Tiers) {
        for page in &self.leaving {
            partial::demote_mini(tiers.middle_of_frame(), &tiers.resident, *page);
        }
        self.moving.iter().for_each(|&mini| move_on(tiers, mini));
    }

    /// Step 3.
    pub(super) fn end(self, tiers: &Tiers, free: &mut FreeFrames) {
        let minis = tiers.frames.minis.as_ref().expect("the frame holds mini pages");
        if minis.end(self.frame) {
            tiers.frames.vacate(self.frame);
            return tiers.replacer.give(free, self.frame);
        }
        if index_of(self.frame) < free.limit {
            minis.open(self.frame);
        }
        free.queues.enter_main(&tiers.frames, self.frame, 0);
    }
}

/// The page of a mini page, as seen.
pub(super) fn page_of(tiers: &Tiers, mini: u32) -> Option<Seen<'_>> {
    let id = tiers.frames.header(mini).page();
    let entry = tiers.table.entry(id).filter(|_| !id.is_none())?;
    let word = entry.latch().load();
    let is_here = entry.location() == Location::Partial(mini) && !word.is_latched();
    is_here.then_some(Seen { id, entry, word, frame: mini })
}

/// The page of a mini page, unless it is spared as a frame of the main queue would be. `forced`:
/// none is. The caller holds the lock of the free frames.
fn victim(tiers: &Tiers, mini: u32, forced: bool) -> Option<Seen<'_>> {
    let Some(page) = page_of(tiers, mini) else {
        tiers.stats.swept_busy.fetch_add(1, Relaxed);
        return None;
    };
    let (is_marked, is_clock) = (page.word.is_marked(), tiers.replacer.kind().is_clock_paper());
    let rounds = tiers.frames.mini_page(mini).rounds();
    let left = if is_marked && !is_clock { (rounds + 1).min(COUNT_MAX) } else { rounds.saturating_sub(1) };
    if forced || !is_marked && left == 0 {
        return Some(page);
    }
    tiers.frames.mini_page(mini).set_rounds(left);
    page.entry.latch().unmark();
    tiers.stats.swept_used.fetch_add(1, Relaxed);
    None
}

/// Moves a mini page to another frame that holds some, if possible.
fn move_on(tiers: &Tiers, mini: u32) {
    if let Some(page) = page_of(tiers, mini)
        && let Some(to) = tiers.frames.take_mini()
        && !partial::move_mini(tiers.middle_of_frame(), &tiers.resident, page, to)
    {
        tiers.frames.give_mini(to);
    }
}
