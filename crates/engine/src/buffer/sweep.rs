//! Finding frames: the free list, and the second-chance sweep that refills it.
//!
//! The hand walks the frames in a circle. A page whose mark is set loses the mark and stays; an unmarked clean page
//! is evicted; a dirty one is left to the write-back, which is rung for, so that a fault never waits for another
//! page's write unless nothing else is left. Pages are loaded unmarked: a page that is read once goes at the
//! hand's next visit, one that is read again stays for another round.

use std::sync::atomic::Ordering::Relaxed;

use super::pool::Pool;
use super::table::Location;
use crate::error::{Error, Result};
use crate::ids::PageId;
use crate::planted::{Bug, planted};

/// Frames evicted at a time, so that the lock is taken once for many.
const BATCH: usize = 32;
/// Rounds of upkeep a fault waits for before it gives up.
const ROUNDS_MAX: u32 = 2000;

/// Frames that hold nothing, and the hand.
#[derive(Debug)]
pub(crate) struct FreeFrames {
    pub(super) list: Vec<u32>,
    pub(super) hand: u32,
    /// Frames from here on are not given out: they are about to go (`resize.rs`). As a rule, the number of frames.
    pub(super) limit: u32,
    /// Those of them that hold nothing any more.
    pub(super) parked: Vec<u32>,
}

impl FreeFrames {
    /// `count` frames, all of them free.
    pub(super) fn all(count: u32) -> FreeFrames {
        FreeFrames { list: (0..count).rev().collect(), hand: 0, limit: count, parked: Vec::new() }
    }

    /// From now on only frames below `limit` are given out.
    pub(super) fn keep_back(&mut self, limit: u32) {
        self.limit = limit;
        self.parked = self.list.extract_if(.., |frame| *frame >= limit).collect();
        self.list.shrink_to_fit();
    }

    /// Gives out all `count` frames again.
    pub(super) fn keep_nothing_back(&mut self, count: u32) {
        self.limit = count;
        let parked = std::mem::take(&mut self.parked);
        self.list.extend(parked);
    }

    fn give(&mut self, frame: u32) {
        if frame < self.limit { self.list.push(frame) } else { self.parked.push(frame) }
    }
}

impl Pool {
    /// A frame that holds nothing. Evicts, and waits for write-back, as need be; the caller holds no latch.
    pub(super) fn take_frame(&self) -> Result<u32> {
        for round in 0..ROUNDS_MAX {
            let (found, short) = {
                let mut free = self.free.lock();
                let mut short = false;
                if free.list.is_empty() {
                    let dirty = self.sweep(&mut free);
                    // With one clean frame among dirty ones, whoever needs two pages would evict each for the other
                    // for ever.
                    short = dirty > 0 && free.list.len() < self.sweep_goal();
                    if short || dirty > BATCH as u32 {
                        self.ring(short);
                    }
                }
                (free.list.pop(), short)
            };
            if let Some(frame) = found {
                self.stats.frames_taken.fetch_add(1, Relaxed);
                if short && self.works_inline() {
                    match self.upkeep_for_frames() {
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
            if self.works_inline() {
                self.upkeep_for_frames()?;
            } else {
                self.wait_for_round()?;
            }
            if round > 10 {
                std::thread::yield_now();
            }
        }
        Err(Error::OutOfFrames {
            what: format!("all {} frames of the DRAM tier are in use at once", self.frames.count()),
        })
    }

    /// Frames that one sweep tries to find.
    fn sweep_goal(&self) -> usize {
        BATCH.min(self.frames.count() as usize / 4 + 1)
    }

    /// Gives a frame back that holds nothing.
    pub(super) fn give_frame(&self, frame: u32) {
        self.frames.header(frame).set_page(PageId::NONE);
        self.free.lock().give(frame);
    }

    /// Moves the hand until a batch of frames is free or every frame was seen twice. Returns how many dirty pages
    /// were passed over.
    fn sweep(&self, free: &mut FreeFrames) -> u32 {
        let count = free.limit;
        let mut dirty = 0;
        for _ in 0..count as u64 * 2 {
            let frame = free.hand % count;
            free.hand = (frame + 1) % count;
            match self.try_evict(frame, false) {
                Evicted::Yes => {
                    free.list.push(frame);
                    if free.list.len() >= self.sweep_goal() {
                        break;
                    }
                }
                Evicted::Dirty => dirty += 1,
                Evicted::No => {}
            }
        }
        dirty
    }

    /// Takes the page out of a frame, if it can be taken now; one that is marked only if `marked_too`. The frame is the
    /// caller's then.
    pub(super) fn try_evict(&self, frame: u32, marked_too: bool) -> Evicted {
        let header = self.frames.header(frame);
        let id = header.page();
        if id.is_none() {
            return Evicted::No;
        }
        let entry = self.table.entry(id).expect("pages in frames are in the table");
        let latch = entry.latch();
        let seen = latch.load();
        if seen.is_latched() {
            self.stats.swept_busy.fetch_add(1, Relaxed);
            return Evicted::No;
        }
        if seen.is_marked() && !marked_too {
            latch.unmark();
            self.stats.swept_used.fetch_add(1, Relaxed);
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
        let lost = planted(Bug::LoseEvictionWrite) && header.mapped().place().is_some();
        let clean = !now.is_dirty() && !now.is_claimed();
        if entry.location() != Location::Frame(frame) || !(clean || lost) {
            latch.release_unchanged();
            self.stats.swept_busy.fetch_add(1, Relaxed);
            return Evicted::No;
        }
        latch.set_dirty(false);
        entry.set_location(Location::Store(header.mapped()));
        header.set_page(PageId::NONE);
        latch.release_changed();
        self.stats.evictions.fetch_add(1, Relaxed);
        Evicted::Yes
    }
}

/// What became of an attempt to empty a frame.
pub(super) enum Evicted {
    /// It holds nothing now.
    Yes,
    /// Its page must be written first.
    Dirty,
    /// It holds nothing yet, or a page that is latched or in use.
    No,
}
