//! The continuous checkpoint, which bounds the log.
//!
//! It writes old dirty pages, then chunks, directory and superblock. The cut is the lowest LSN that
//! recovery may need (docs/durability.md, rule 11): the oldest recLSN, the first LSN in flight, the
//! oldest record that a chunk or the directory lacks, and at most the durable end. Log space below
//! it is reused only after the superblock with that cut is synced.

use std::sync::atomic::Ordering::Relaxed;

use super::flush::SPARE_SEGMENTS;
use super::rounds::Maintenance;
use super::state::RoundState;
use crate::error::{Error, Result};
use crate::ids::Lsn;
use crate::planted::{Bug, planted};
use crate::pool::requests::Attempt;
use crate::pool::stats::Cause;
use crate::wal::{Class, RecordBuilder};

/// Largest share of the log in use, as a divisor.
const LOG_SHARE: u64 = 2;
/// The superblock is written when the cut has moved by this share of the log, as a divisor, or by
/// [`CUT_BYTES`].
const CUT_SHARE: u64 = 16;
const CUT_BYTES: u64 = 64 << 10;

const fn cut_step(capacity: u64) -> u64 {
    let share = capacity / CUT_SHARE;
    if share < CUT_BYTES { share } else { CUT_BYTES }
}

/// The log grows if a checkpoint costs more than this fraction of the log that it frees.
const COST_SHARE: u64 = 8;
/// The log grows before more of it is in use than this share, as a divisor: commits still find log
/// while it grows, and afterwards.
const GROWTH_SHARE: u64 = 4;
/// With its syncs, as bytes written.
const SUPERBLOCK_COST_BYTES: u64 = 256 << 10;
/// Steps of a checkpoint that threads wait for.
const STEPS: u64 = 8;
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
        if self.grow_log_if_dear(round_state)? {
            return Ok(());
        }
        let capacity = self.wal.capacity();
        let (tail, cut) = (self.wal.tail().0, self.wal.cut().0);
        // Redo and losers may hold the cut: then a checkpoint would only log more.
        let floor = self.requests.recovery_floor.load(Relaxed);
        if tail - cut <= capacity / LOG_SHARE || floor.saturating_sub(cut) < cut_step(capacity) {
            return Ok(());
        }
        // Below half, so that a step is worth its superblock.
        let keep = capacity / LOG_SHARE - capacity / CUT_SHARE;
        self.checkpoint_to(round_state, Lsn(tail - keep))
    }

    /// Grows the log early, and if checkpoints would cost much. Returns whether it did.
    pub(super) fn grow_log_if_dear(&self, round_state: &mut RoundState) -> Result<bool> {
        let (tail, cut, capacity) = (self.wal.tail().0, self.wal.cut().0, self.wal.capacity());
        let few = (tail - cut).saturating_mul(GROWTH_SHARE) <= capacity;
        // The answer needs a scan of all frames.
        let asked_just_now = tail < round_state.growth_asked.0.saturating_add(capacity / CUT_SHARE);
        if few || asked_just_now || capacity == self.wal.capacity_max() {
            return Ok(false);
        }
        round_state.growth_asked = Lsn(tail);
        Ok(self.is_dear(capacity) && self.grow_log_if_allowed(round_state, (tail - cut) * GROWTH_SHARE)?)
    }

    /// Whether a checkpoint of a log half in use costs much for the part that it frees. In a longer
    /// log more changes of a page gather before it is written.
    fn is_dear(&self, capacity: u64) -> bool {
        let freed = capacity / CUT_SHARE;
        let dirty = self.pool.pages_dirty_before(Lsn(self.wal.cut().0 + freed));
        let bytes: u64 = dirty.iter().map(|id| id.page_bytes() as u64).sum();
        bytes + SUPERBLOCK_COST_BYTES > freed / COST_SHARE
    }

    /// Grows the log to `bytes` bytes, unless a backup or recovery reads it, or the disk is full.
    /// Returns whether it did.
    fn grow_log_if_allowed(&self, round_state: &mut RoundState, bytes: u64) -> Result<bool> {
        // A backup and recovery read the log in its present form.
        if round_state.backup.is_some() || self.requests.is_recovering() || self.in_memory {
            return Ok(false);
        }
        let grown = match self.grow_log(round_state, bytes) {
            Err(Error::Full { .. }) => self.grow_log(round_state, 0),
            outcome => outcome,
        };
        match grown {
            Err(error @ Error::Full { .. }) => {
                if !std::mem::replace(&mut round_state.log_refused, true) {
                    tracing::warn!(%error, "the log cannot grow, so checkpoints are more frequent");
                }
                Ok(false)
            }
            outcome => outcome,
        }
    }

    /// Grows the log to `bytes` bytes, or its largest capacity. Ends a backup's hold on it.
    ///
    /// # Errors
    /// [`Error::Full`] without space for it, and those of writes.
    pub(super) fn lengthen_log(&self, bytes: u64) -> Result<()> {
        let mut round_state = self.round_state.lock();
        if self.requests.is_recovering() || self.in_memory {
            return Ok(());
        }
        if self.wal.capacity() < bytes {
            round_state.release_log();
            self.grow_log(&mut round_state, bytes)?;
        }
        Ok(())
    }

    fn grow_log(&self, round_state: &mut RoundState, bytes: u64) -> Result<bool> {
        let grown = self.wal.grow(bytes, |capacity| self.name_capacity(round_state, capacity))?;
        if grown {
            self.requests.wake_up.log_is_there();
        }
        self.pool.meanwhile();
        Ok(grown)
    }

    fn name_capacity(&self, round_state: &mut RoundState, capacity: u64) -> Result<()> {
        let before = std::mem::replace(&mut round_state.superblock.log_capacity, capacity);
        let cut = self.wal.cut();
        // After a failed write the log has failed, and no superblock follows.
        self.put_superblock(round_state, cut).inspect_err(|_| round_state.superblock.log_capacity = before)
    }

    /// Finds log for a record of maintenance, which lets the cut move. A log that recovery has left
    /// full grows, even beyond its largest capacity.
    ///
    /// # Errors
    /// [`Error::Full`] without space for it, and those of writes.
    pub(super) fn find_log(&self, round_state: &mut RoundState, bytes: u64) -> Result<()> {
        // A backup reads the log in its present form.
        while self.wal.reserve(bytes, Class::System).is_none() && round_state.backup.is_none() {
            self.extend_log(round_state)?;
        }
        Ok(())
    }

    /// The same for the record that names `images` images.
    pub(super) fn find_log_of(&self, round_state: &mut RoundState, images: usize) -> Result<()> {
        self.find_log(round_state, RecordBuilder::bytes_of_entries(images))
    }

    pub(crate) fn extend_log(&self, round_state: &mut RoundState) -> Result<()> {
        let (used, capacity) = (self.wal.tail().0 - self.wal.cut().0, self.wal.capacity());
        self.wal.extend(|capacity| self.name_capacity(round_state, capacity)).map_err(|error| match error {
            Error::Full { what } => Error::Full {
                what: format!(
                    "{what}; the log has to grow from {capacity} bytes to twice as many, since {used} are in use"
                ),
            },
            other => other,
        })?;
        tracing::info!(capacity = self.wal.capacity(), used, "a full log has grown");
        self.requests.wake_up.log_is_there();
        self.pool.meanwhile();
        Ok(())
    }

    /// Recovery: makes `attempt` at log succeed. Only undo asks, and it holds no latch.
    pub(super) fn find_log_in_recovery(&self, attempt: Attempt<'_>) -> Result<()> {
        let mut may_cut = true;
        while !attempt() {
            let mut round_state = self.round_state.lock();
            let floor = Lsn(self.requests.recovery_floor.load(Relaxed));
            if std::mem::take(&mut may_cut) && floor > self.wal.cut() {
                match self.checkpoint_to(&mut round_state, floor) {
                    // The log may have room to grow where the page file has none.
                    Ok(()) | Err(Error::Full { .. }) => continue,
                    Err(error) => return Err(error),
                }
            }
            self.extend_log(&mut round_state)?;
        }
        Ok(())
    }

    /// Checkpoints now: everything if `all`, else enough to free half of the used log.
    pub(crate) fn checkpoint_now(&self, all: bool) -> Result<()> {
        let mut round_state = self.round_state.lock();
        // The cut goes no further than the file.
        self.wal.file_to(self.wal.tail())?;
        let tail = self.wal.tail().0;
        let target = if all { tail } else { tail - (tail - self.wal.cut().0) / 2 };
        round_state.staging.urgent = true;
        let steps = if all || self.requests.works_inline() { 1 } else { STEPS };
        let outcome = self
            .checkpoint_in_steps(&mut round_state, target, steps)
            .and_then(|()| self.clean_segments(&mut round_state));
        round_state.staging.urgent = false;
        drop(round_state);
        self.maintain_cache();
        outcome
    }

    /// Checkpoints up to `target`. Threads that wait for log go on after the first step.
    fn checkpoint_in_steps(&self, round_state: &mut RoundState, target: u64, steps: u64) -> Result<()> {
        let cut = self.wal.cut().0;
        for step in 1..=steps {
            self.checkpoint_to(round_state, Lsn(cut + (target - cut) * step / steps))?;
            self.requests.wake_up.done.notify_all();
        }
        Ok(())
    }

    /// Writes pages dirty since before `target`, then cuts the log.
    pub(crate) fn checkpoint_to(&self, round_state: &mut RoundState, target: Lsn) -> Result<()> {
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
            self.find_log_of(round_state, batch.len())?;
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
        // The cut goes no further than the file.
        self.wal.file_to(target.min(self.wal.persistent()))?;
        let cut = self.cut(round_state);
        self.pool.meanwhile();
        let moved = cut.0 - self.wal.cut().0;
        // The cleaner may have cut beyond the target.
        let wanted = target.0.saturating_sub(self.wal.cut().0);
        if freed.is_empty() && moved < cut_step(self.wal.capacity()) && (moved < wanted || wanted == 0) {
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
        superblock.log_end = self.wal.persistent();
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

    /// Makes the log's file all that recovery needs, for a close.
    ///
    /// # Errors
    /// Those of writes.
    pub(crate) fn release_ring(&self) -> Result<()> {
        let mut round_state = self.round_state.lock();
        if round_state.superblock.ring.is_none() {
            return Ok(());
        }
        self.wal.retire_ring()?;
        round_state.superblock.ring = None;
        let cut = self.wal.cut();
        self.put_superblock(&mut round_state, cut)?;
        self.wal.release_ring()
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
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use terrace_io::{BlockDevice, DecoratedDirectory, Decorator};

    use super::*;
    use crate::pool::Mode;
    use crate::{Db, Durability, MemoryDirectory, Table};

    fn database(records: u32) -> (Db, Table) {
        let directory = Arc::new(MemoryDirectory::new());
        let db = Db::builder().directory(directory).dram(4 << 20).mode(Mode::Inline).open("").unwrap();
        let table = db.create_table("t").unwrap();
        (0..records).for_each(|key| table.put(key.to_be_bytes(), [7; 500]).unwrap());
        (db, table)
    }

    /// Regression: a cut beyond the target made the difference underflow.
    #[test]
    fn the_log_may_have_been_cut_beyond_the_target() {
        let (db, _table) = database(2000);
        db.checkpoint().unwrap();
        let pool = &db.shared.maintenance;
        let cut = pool.wal.cut();
        let mut round_state = pool.round_state.lock();
        for target in [Lsn(0), Lsn(cut.0 - 1), cut] {
            pool.write_superblock(&mut round_state, target).unwrap();
            assert!(pool.wal.cut() >= cut);
        }
    }

    /// Threads that wait for log need not wait for all of it.
    #[test]
    fn a_checkpoint_that_threads_wait_for_cuts_the_log_step_by_step() {
        let (db, _table) = database(1500);
        let pool = &db.shared.maintenance;
        let superblocks = || pool.pool.stats.superblocks.load(Relaxed);
        let (before, cut, used) = (superblocks(), pool.wal.cut().0, pool.wal.tail().0 - pool.wal.cut().0);
        pool.requests.maintenance_runs.store(true, Relaxed);
        pool.checkpoint_now(false).unwrap();
        pool.requests.maintenance_runs.store(false, Relaxed);
        assert!(superblocks() - before >= STEPS / 2, "{} of {STEPS}", superblocks() - before);
        assert!(pool.wal.cut().0 - cut >= used / 2 - CUT_BYTES);
    }

    #[test]
    fn a_log_that_has_grown_needs_no_checkpoint_for_those_that_wait() {
        let (db, _table) = database(10);
        let pool = &db.shared.maintenance;
        pool.requests.wake_up.state.lock().log_wanted = true;
        pool.lengthen_log(pool.wal.capacity() + 1).unwrap();
        assert!(!pool.requests.wake_up.take_log_wanted());
    }

    /// A file whose next growth, once armed, is announced and waits.
    #[derive(Debug)]
    struct Slow(Arc<dyn BlockDevice>, Arc<Mutex<Option<Armed>>>);

    /// Tells that the growth has begun, and waits until it may go on.
    type Armed = (Sender<()>, Receiver<()>);

    impl Decorator for Slow {
        fn inner(&self) -> &dyn BlockDevice {
            &*self.0
        }

        fn set_len(&self, bytes: u64) -> std::io::Result<()> {
            let armed = self.1.lock().unwrap().take();
            if let Some((begun, go)) = armed {
                begun.send(()).unwrap();
                // Ends too if the test has failed.
                let _ = go.recv();
            }
            self.0.set_len(bytes)
        }
    }

    /// The log begins to grow so early that commits find room while its file takes long. Before,
    /// it grew when half of it was used, and the next quarter filled it.
    #[test]
    fn commits_go_on_while_the_file_of_the_log_grows() {
        const MIB: u64 = 1 << 20;
        let armed = Arc::new(Mutex::new(None));
        let directory = DecoratedDirectory::new(Arc::new(MemoryDirectory::new()), {
            let armed = Arc::clone(&armed);
            move |file, device| match file.contains("log") {
                true => Arc::new(Slow(device, Arc::clone(&armed))),
                false => device,
            }
        });
        let builder = Db::builder().directory(Arc::new(directory)).dram(32 * MIB).log_max(64 * MIB);
        let db = builder.durability(Durability::Buffered).open("").unwrap();
        let table = db.create_table("t").unwrap();
        let pool = Arc::clone(&db.shared.maintenance);
        let (first, mut key) = (pool.wal.capacity(), 0u32);
        let put_some = move |table: &Table| {
            for _ in 0..64 {
                key += 1;
                table.put(key.wrapping_mul(0x9e37_79b1).to_be_bytes(), [1; 900]).unwrap();
            }
        };
        let (begun, has_begun) = channel();
        let (go, may_go) = channel();
        *armed.lock().unwrap() = Some((begun, may_go));
        let rounds = || pool.requests.wake_up.state.lock().rounds;
        let mut put = put_some;
        // The maintenance thread looks at the log after each step.
        while has_begun.try_recv().is_err() {
            put(&table);
            let next = rounds() + 2;
            while rounds() < next && armed.lock().unwrap().is_some() {
                std::thread::yield_now();
            }
            assert!(pool.wal.tail().0 < first, "the log does not grow");
        }
        let end = pool.wal.tail().0 + first / 8 * 3;
        let (done, is_done) = channel();
        let writer = std::thread::spawn({
            let pool = Arc::clone(&pool);
            move || {
                while pool.wal.tail().0 < end {
                    put(&table);
                }
                pool.wal.flush_to(pool.wal.tail()).unwrap();
                done.send(()).unwrap();
            }
        });
        is_done.recv_timeout(Duration::from_secs(60)).expect("commits wait for the file");
        assert_eq!(pool.wal.capacity(), first);
        go.send(()).unwrap();
        writer.join().unwrap();
        while pool.wal.capacity() == first {
            std::thread::yield_now();
        }
        drop(pool);
        db.close().unwrap();
    }
}
