//! Compaction: moves live images to the front of the page file, and cuts its end.
//!
//! Each step takes the maintenance lock; reads, commits and rounds run in between.
//!
//! 1. Empty the last used segment with the cleaner's code, which makes mapping records durable
//!    before it frees old extents (docs/durability.md, rule 5). Without room ahead, clean a segment
//!    there first.
//! 2. At times, and at the end, retire the free segments at the end. Write the superblock with the
//!    new count to both slots and sync it. Only then cut the file. Only a chunk or mapping record
//!    that a later durable record corrects can name an extent behind the cut.
//!
//! No reader uses a cut extent: a page load holds the latch, a backup the maintenance lock.
//! Verification repeats a failed read under that lock. After a crash recovery accepts a longer
//! file.

use std::ops::ControlFlow;
use std::time::Duration;

use parking_lot::MutexGuard;

use super::rounds::Maintenance;
use super::state::RoundState;
use crate::error::Result;
use crate::planted::{Bug, planted};
use crate::pool::patience::Patience;

/// Segments emptied between two cuts.
const SEGMENTS_PER_CUT: u32 = 32;
/// Visits to a last segment with live images, before compaction ends.
const TRIES_MAX: u32 = 100;
const PAUSE: Duration = Duration::from_millis(1);

struct Compaction<'m> {
    maintenance: &'m Maintenance,
}

/// Shortens the page file as far as the cleaner allows, or until `progress` breaks. `progress` gets
/// moved pages and bytes in use.
pub(crate) fn compact(
    maintenance: &Maintenance,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<u64> {
    Compaction { maintenance }.run(progress)
}

impl Compaction<'_> {
    fn run(&self, progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Result<u64> {
        let (mut moved, mut since_cut) = (0, 0);
        let mut stuck = (u64::MAX, 0);
        let mut patience = Patience::new(self.maintenance.requests.works_inline());
        // Other threads fill segments meanwhile, so the visits are bounded.
        let mut visits = self.maintenance.space.segments() * 3;
        while visits > 0 {
            let mut round_state = self.maintenance.round_state.lock();
            self.maintenance.pool.check()?;
            self.maintenance.wal.flush_to(self.maintenance.wal.tail())?;
            self.maintenance.absorb(&mut round_state);
            self.maintenance.checkpoint_step(&mut round_state)?;
            if self.log_is_nearly_full() {
                drop(round_state);
                if self.maintenance.requests.works_inline() {
                    break;
                }
                let (last, _) = self.maintenance.space.end_in_use().unwrap_or_default();
                if progress(moved, self.maintenance.space.geometry().file_bytes(last + 1)).is_break() {
                    break;
                }
                if !patience.lasts(self.maintenance.pool.log_progress()) {
                    tracing::warn!("compaction ends early: the log has been nearly full for long");
                    break;
                }
                std::thread::sleep(PAUSE);
                continue;
            }
            visits -= 1;
            let Some((last, free_ahead)) = self.maintenance.space.end_in_use() else { break };
            let pages = match self.space_ahead(last, free_ahead) {
                Some(victim) => self.maintenance.empty(&mut round_state, victim)?.moved,
                None => break,
            };
            moved += pages;
            since_cut += 1;
            if since_cut == SEGMENTS_PER_CUT {
                self.cut_end(&mut round_state)?;
                since_cut = 0;
            }
            MutexGuard::unlock_fair(round_state);
            // Give the threads with latches a moment.
            stuck = if stuck.0 == last { (last, stuck.1 + 1) } else { (last, 0) };
            if progress(moved, self.maintenance.space.geometry().file_bytes(last + 1)).is_break()
                || stuck.1 > TRIES_MAX
            {
                break;
            }
            std::thread::yield_now();
        }
        self.cut_end(&mut self.maintenance.round_state.lock())?;
        Ok(moved)
    }

    /// Whether the log is nearly full, as when a backup holds it. Compaction then waits, but ends
    /// if nothing moves for long.
    fn log_is_nearly_full(&self) -> bool {
        self.maintenance.wal.tail().0 - self.maintenance.wal.cut().0 > self.maintenance.wal.capacity() / 4 * 3
    }

    fn space_ahead(&self, last: u64, free_ahead: u64) -> Option<u64> {
        // One for the images, one for the chunks that name them.
        if free_ahead >= 2 {
            return Some(last);
        }
        let live_max = self.maintenance.space.geometry().segment_blocks - 1;
        self.maintenance.space.victim(live_max, |segment, _| segment < last).map(|(segment, _)| segment)
    }

    fn cut_end(&self, round_state: &mut RoundState) -> Result<()> {
        // After a failed cut the file still has segments retired before.
        if !self.maintenance.space.retire_end() && !self.maintenance.space.has_retired() {
            return Ok(());
        }
        let segments = self.maintenance.space.segments();
        round_state.left_alone.cut(segments);
        if planted(Bug::TruncateBeforeSuperblock) {
            self.maintenance.space.truncate()?;
        }
        for _ in 0..2 {
            let cut = self.maintenance.cut(round_state);
            self.maintenance.put_superblock(round_state, cut)?;
        }
        self.maintenance.pool.meanwhile();
        self.maintenance.space.truncate()?;
        self.maintenance.file.sync_store()
    }
}
