//! The continuous checkpoint, which bounds the log.
//!
//! It writes old dirty pages, then chunks, directory and superblock. The cut is the lowest LSN that
//! recovery may need (docs/durability.md, rule 11): the oldest recLSN, the first LSN in flight, the
//! oldest record that a chunk or the directory lacks, and at most the durable end. Log space below
//! the cut is reused only after the superblock with that cut is synced.

use std::sync::atomic::Ordering::Relaxed;

use super::flush::SPARE_SEGMENTS;
use super::rounds::Maintenance;
use super::state::RoundState;
use crate::error::{Error, Result};
use crate::ids::Lsn;
use crate::planted::{Bug, planted};
use crate::pool::stats::Cause;

/// Largest share of the log in use, as a divisor.
const LOG_SHARE: u64 = 2;
/// The superblock is written when the cut has moved by this share of the log, as a divisor, or by
/// [`CUT_BYTES`].
const CUT_SHARE: u64 = 16;
const CUT_BYTES: u64 = 64 << 10;
/// The log grows if a checkpoint costs more than this fraction of the log that it frees.
const GROWTH_SHARE: u64 = 8;
/// Cost of a superblock with its syncs, as bytes written.
const SUPERBLOCK_COST_BYTES: u64 = 256 << 10;
/// Retries for latched pages.
const ATTEMPTS: u32 = 100;

impl Maintenance {
    /// Ends a backup's hold on the log before maintenance lacks room for its records.
    pub(super) fn keep_log_for_maintenance(&self, round_state: &mut RoundState) {
        if self.wal.tail().0 - self.wal.cut().0 > self.wal.capacity() / 16 * 13 {
            round_state.release_log();
        }
    }

    pub(crate) fn checkpoint_step(&self, round_state: &mut RoundState) -> Result<()> {
        let capacity = self.wal.capacity();
        let (tail, cut) = (self.wal.tail().0, self.wal.cut().0);
        if tail - cut <= capacity / LOG_SHARE {
            return Ok(());
        }
        // Below half, so that a step is worth its superblock.
        let keep = capacity / LOG_SHARE - capacity / CUT_SHARE;
        let target = Lsn(tail - keep);
        if self.is_dear(target) && self.double_log_if_allowed(round_state)? {
            return Ok(());
        }
        self.checkpoint_to(round_state, target)
    }

    /// Whether a checkpoint up to `target` costs much for the log that it frees. In a longer log
    /// more changes of a page gather before it is written.
    fn is_dear(&self, target: Lsn) -> bool {
        if self.wal.capacity() == self.wal.capacity_max() {
            return false;
        }
        let dirty = self.pool.pages_dirty_before(target);
        let bytes: u64 = dirty.iter().map(|id| id.page_bytes() as u64).sum();
        bytes + SUPERBLOCK_COST_BYTES > target.0.saturating_sub(self.wal.cut().0) / GROWTH_SHARE
    }

    /// Doubles the log unless a backup or recovery reads it, or the disk is full. Returns whether
    /// it did.
    fn double_log_if_allowed(&self, round_state: &mut RoundState) -> Result<bool> {
        // A backup and recovery read the log in its present form.
        if round_state.backup.is_some() || self.requests.is_recovering() || self.in_memory {
            return Ok(false);
        }
        match self.double_log(round_state) {
            Err(error @ Error::Full { .. }) => {
                if !std::mem::replace(&mut round_state.log_refused, true) {
                    tracing::warn!(%error, "the log cannot grow, so checkpoints are more frequent");
                }
                Ok(false)
            }
            outcome => outcome,
        }
    }

    /// Doubles the log until it has `bytes` bytes, or its largest capacity. Ends a backup's hold on
    /// it.
    ///
    /// # Errors
    /// [`Error::Full`] without space for it, and those of writes.
    pub(super) fn lengthen_log(&self, bytes: u64) -> Result<()> {
        let mut round_state = self.round_state.lock();
        if self.requests.is_recovering() || self.in_memory {
            return Ok(());
        }
        while self.wal.capacity() < bytes {
            round_state.release_log();
            if !self.double_log(&mut round_state)? {
                break;
            }
        }
        Ok(())
    }

    fn double_log(&self, round_state: &mut RoundState) -> Result<bool> {
        let grown = self.wal.double(|capacity| {
            let before = std::mem::replace(&mut round_state.superblock.log_capacity, capacity);
            let cut = self.wal.cut();
            // After a failed write the log has failed, and no superblock follows.
            self.put_superblock(round_state, cut)
                .inspect_err(|_| round_state.superblock.log_capacity = before)
        })?;
        self.pool.meanwhile();
        Ok(grown)
    }

    /// Checkpoints now: everything if `all`, else enough to free half of the used log.
    pub(crate) fn checkpoint_now(&self, all: bool) -> Result<()> {
        let mut round_state = self.round_state.lock();
        self.wal.flush_to(self.wal.tail())?;
        let tail = self.wal.tail().0;
        let target = if all { tail } else { tail - (tail - self.wal.cut().0) / 2 };
        round_state.staging.urgent = true;
        let outcome = self
            .checkpoint_to(&mut round_state, Lsn(target))
            .and_then(|()| self.clean_segments(&mut round_state));
        round_state.staging.urgent = false;
        drop(round_state);
        self.maintain_cache();
        outcome
    }

    /// Writes pages dirty since before `target`, then cuts the log.
    pub(super) fn checkpoint_to(&self, round_state: &mut RoundState, target: Lsn) -> Result<()> {
        round_state.cause = Cause::Checkpoint;
        self.keep_log_for_maintenance(round_state);
        let mut pages = 0;
        for _ in 0..ATTEMPTS {
            let due = self.pool.pages_dirty_before(target);
            let written = self.write_back(round_state, &due)?;
            pages += written;
            if written == due.len() {
                break;
            }
            std::thread::yield_now();
        }
        let mut current = self.absorb(round_state);
        self.pool.meanwhile();
        let due = round_state.mapping.chunks().dirty_before(target);
        for batch in due.chunks(self.table_image.staging_table_images(round_state)) {
            // Old images of chunks are scattered over many segments.
            if self.space.free_segments() < SPARE_SEGMENTS {
                let blocks = batch.len() as u64 * self.pool.table_image_blocks();
                self.make_room(round_state, blocks)?;
                current = self.absorb(round_state);
                let left = round_state.left_alone.blocks(&self.space);
                if left > 0 && self.space.room() < left + blocks {
                    let what = "what is left belongs to pages that are in use, until these can be moved";
                    return Err(Error::Full { what: what.into() });
                }
            }
            self.table_image.write_chunks(round_state, batch, current)?;
        }
        tracing::debug!(%target, pages, chunks = due.len(), "checkpoint");
        self.write_superblock(round_state, target)
    }

    /// Writes directory blocks dirty since before `target`, and the superblock if the cut moved
    /// enough.
    pub(super) fn write_superblock(&self, round_state: &mut RoundState, target: Lsn) -> Result<()> {
        let mut freed = Vec::new();
        if round_state.mapping.blocks().oldest_dirty() < target {
            self.table_image.write_directory(round_state, &mut freed)?;
        }
        self.pool.meanwhile();
        let cut = self.cut(round_state);
        self.pool.meanwhile();
        let moved = cut.0 - self.wal.cut().0;
        // The cleaner may have cut beyond the target.
        let wanted = target.0.saturating_sub(self.wal.cut().0);
        if freed.is_empty()
            && moved < (self.wal.capacity() / CUT_SHARE).min(CUT_BYTES)
            && (moved < wanted || wanted == 0)
        {
            return Ok(());
        }
        self.put_superblock(round_state, cut)?;
        for extent in freed {
            self.file.free_blocks(extent);
        }
        Ok(())
    }

    pub(super) fn put_superblock(&self, round_state: &mut RoundState, cut: Lsn) -> Result<()> {
        self.pool.check()?;
        let superblock = &mut round_state.superblock;
        superblock.sequence += 1;
        superblock.cut = cut;
        superblock.log_end = self.wal.durable();
        superblock.highest_timestamp = superblock.highest_timestamp.max(self.pool.timestamp_now());
        superblock.page_ids_end = self.pool.ids_ends_to_name();
        superblock.segments = self.space.segments();
        if planted(Bug::RecycleBeforeSuperblock) {
            self.wal.set_cut(cut);
        }
        self.pool.meanwhile();
        // The file may have grown. A superblock must not name segments that a crash can lose.
        self.file.sync_store()?;
        round_state
            .slots
            .write(&round_state.superblock)
            .inspect_err(|error| self.wal.poison(&error.to_string()))?;
        self.pool.stats.superblocks.fetch_add(1, Relaxed);
        let before = self.wal.cut();
        self.wal.set_cut(cut);
        if cut > before {
            tracing::debug!(%cut, freed_bytes = cut.0 - before.0, "log cut");
        }
        Ok(())
    }

    pub(super) fn cut(&self, round_state: &RoundState) -> Lsn {
        // First the bound of everything that may become dirty during this scan.
        let mut cut = self.wal.cut_limit();
        let events = self.requests.events.lock().iter().map(|event| event.lsn).min();
        cut = cut.min(events.unwrap_or(cut));
        cut = self.pool.oldest_rec_lsn().map_or(cut, |oldest| cut.min(oldest));
        if !planted(Bug::CutPastDirtyChunk) {
            cut = cut.min(round_state.mapping.chunks().oldest_dirty());
        }
        cut = cut.min(round_state.mapping.blocks().oldest_dirty());
        cut = cut.min(Lsn(self.requests.recovery_floor.load(Relaxed)));
        cut = cut.min(round_state.backup.as_ref().map_or(cut, |backup| backup.cut_max));
        cut.max(self.wal.cut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Mode;
    use crate::{Db, MemoryDirectory};

    /// Regression: a cut beyond the target made the difference underflow.
    #[test]
    fn the_log_may_have_been_cut_beyond_the_target() {
        let directory = std::sync::Arc::new(MemoryDirectory::new());
        let db = Db::builder().directory(directory).dram(4 << 20).mode(Mode::Inline).open("").unwrap();
        let table = db.create_table("t").unwrap();
        (0..2000u32).for_each(|key| table.put(key.to_be_bytes(), [7; 500]).unwrap());
        db.checkpoint().unwrap();
        let pool = &db.shared.maintenance;
        let cut = pool.wal.cut();
        let mut round_state = pool.round_state.lock();
        for target in [Lsn(0), Lsn(cut.0 - 1), cut] {
            pool.write_superblock(&mut round_state, target).unwrap();
            assert!(pool.wal.cut() >= cut);
        }
    }
}
