//! Compaction: what is live at the end of the page file moves to free places ahead, and the end is cut off.
//!
//! It goes in steps, each under the upkeep lock, with reads, commits and other rounds of upkeep in between:
//!
//! 1. The last segment in use is emptied, as the cleaner does it: its images are written ahead, synced, the mapping
//!    records logged and durable, and only then its places are free (durability, rule 5). Where there is no room ahead,
//!    a segment there is cleaned first.
//! 2. Now and then, and at the end, the free segments at the end of the file are given up: no place in them is handed out
//!    any more. The superblock that counts the segments that are left is written, to both slots, and synced. Only then
//!    is the file made shorter: nothing durable names a place behind the cut. A chunk or an older mapping record may,
//!    but a later record, which is durable and which recovery reads, says otherwise for each page in it.
//!
//! Nobody reads a place that is cut off. Who loads a page has its latch, and no place is freed while its page is latched;
//! everybody else who reads images, a backup above all, does so under the upkeep lock. A verification reads without
//! either, and asks again under that lock before it calls anything damage.
//!
//! A crash between the two leaves a file that is longer than its superblock says, which recovery takes as it finds it.
//! Stopped after any step it leaves what was done, and can be begun again.

use std::ops::ControlFlow;
use std::time::Duration;

use parking_lot::MutexGuard;

use super::pool::Pool;
use super::upkeep::Upkeep;
use crate::error::Result;
use crate::planted::{Bug, planted};

/// Segments emptied between two cuts.
const SEGMENTS_PER_CUT: u32 = 32;
/// Visits to a last segment that leave something live in it, before it is left alone.
const TRIES_MAX: u32 = 100;
/// How long it waits for a backup to let go of the log before it looks again.
const PAUSE: Duration = Duration::from_millis(1);

impl Pool {
    /// Makes the page file as short as leaves the cleaner room to work, unless `progress` breaks, which is told the pages
    /// moved so far and the bytes up to the last segment in use. Returns the pages moved.
    pub(crate) fn compact(&self, progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Result<u64> {
        let (mut moved, mut since_cut) = (0, 0);
        let mut stuck = (u64::MAX, 0);
        // Others fill segments meanwhile; this does not follow them for ever.
        let mut visits = self.space.segments() * 3;
        while visits > 0 {
            let mut upkeep = self.upkeep.lock();
            self.check()?;
            self.wal.flush_to(self.wal.tail())?;
            self.absorb(&mut upkeep);
            self.checkpoint_step(&mut upkeep)?;
            if self.log_is_held() {
                drop(upkeep);
                if self.works_inline() {
                    break;
                }
                let (last, _) = self.space.end_in_use().unwrap_or_default();
                if progress(moved, self.space.geometry().file_bytes(last + 1)).is_break() {
                    break;
                }
                std::thread::sleep(PAUSE);
                continue;
            }
            visits -= 1;
            let Some((last, free_ahead)) = self.space.end_in_use() else { break };
            let pages = match self.space_ahead(last, free_ahead) {
                Some(victim) => self.empty(&mut upkeep, victim)?.moved,
                None => break,
            };
            moved += pages;
            since_cut += 1;
            if since_cut == SEGMENTS_PER_CUT {
                self.cut_end(&mut upkeep)?;
                since_cut = 0;
            }
            // The upkeep thread must not wait for as long as this comes again and again.
            MutexGuard::unlock_fair(upkeep);
            // Pages that are latched stay where they are; whoever has them is given a moment.
            stuck = if stuck.0 == last { (last, stuck.1 + 1) } else { (last, 0) };
            if progress(moved, self.space.geometry().file_bytes(last + 1)).is_break() || stuck.1 > TRIES_MAX {
                break;
            }
            std::thread::yield_now();
        }
        self.cut_end(&mut self.upkeep.lock())?;
        Ok(moved)
    }

    /// Whether the log is nearly full and a checkpoint does not change that: a backup is being ended that needs it. What
    /// moving pages would log is not worth giving that up, as the cleaner does.
    fn log_is_held(&self) -> bool {
        self.wal.tail().0 - self.wal.cut().0 > self.log_capacity / 4 * 3
    }

    /// What to empty next, so that segment `last` can be given up: itself, or one ahead of it if there is no room.
    fn space_ahead(&self, last: u64, free_ahead: u64) -> Option<u64> {
        // One for the images, one for the chunks that name them.
        if free_ahead >= 2 {
            return Some(last);
        }
        let live_max = self.space.geometry().segment_places - 1;
        self.space.victim(live_max, |segment, _| segment < last).map(|(segment, _)| segment)
    }

    /// Cuts the free segments at the end off the file.
    fn cut_end(&self, upkeep: &mut Upkeep) -> Result<()> {
        // The file may still have what was retired before: it refused to be cut then.
        if !self.space.retire_end() && !self.space.has_retired() {
            return Ok(());
        }
        let segments = self.space.segments();
        upkeep.left_alone.cut(segments);
        if planted(Bug::TruncateBeforeSuperblock) {
            self.space.truncate()?;
        }
        for _ in 0..2 {
            let cut = self.cut(upkeep);
            self.put_superblock(upkeep, cut)?;
        }
        self.meanwhile();
        self.space.truncate()?;
        self.sync_store()
    }
}
