//! Background work in rounds.
//!
//! A round absorbs allocations and frees, writes dirty pages back, checkpoints, and empties sparse
//! segments. One lock covers it, so a page never has two images in flight (docs/durability.md, rule
//! 6). A thread runs rounds on request and every few milliseconds. Inline, a thread that needs
//! frames or log space runs the step that provides them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;

use super::flush::{Flush, SPARE_SEGMENTS, batches};
use super::room::Room;
use super::state::RoundState;
use super::table_image::TableImage;
use super::transfer::PageFile;
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, PageSet};
use crate::pool::Pool;
use crate::pool::backoff::Backoff;
use crate::pool::partition::Partition;
use crate::pool::requests::{Event, Maintainer, Requests};
use crate::pool::resident::{blocks_granted, class_of_page};
use crate::pool::stats::Cause;
use crate::store::mapping_word::MappingWord;
use crate::store::space::{Space, Stream};
use crate::wal::Wal;

/// Maintenance of a pool: moves its pages to the store.
#[derive(Debug)]
pub(crate) struct Maintenance {
    pub(crate) pool: Arc<Pool>,
    pub(crate) wal: Arc<Wal>,
    pub(crate) space: Arc<Space>,
    pub(crate) file: Arc<PageFile>,
    pub(crate) flush: Flush,
    pub(crate) table_image: TableImage,
    pub(crate) room: Room,
    pub(crate) requests: Arc<Requests>,
    pub(crate) round_state: Mutex<RoundState>,
    pub(crate) in_memory: bool,
}

impl Maintenance {
    /// Attaches maintenance to `pool`. Only the log has the pages in `unwritten`.
    pub(crate) fn new(
        pool: Arc<Pool>,
        round_state: RoundState,
        unwritten: PageSet,
        in_memory: bool,
    ) -> Arc<Maintenance> {
        let (wal, space) = (Arc::clone(pool.wal()), Arc::clone(&pool.space));
        let requests = Arc::clone(&pool.requests);
        let file = Arc::new(PageFile {
            pool: Arc::clone(&pool),
            space: Arc::clone(&space),
            device: Arc::clone(&pool.device),
            cache: pool.cache.clone(),
        });
        let flush = Flush {
            pool: Arc::clone(&pool),
            wal: Arc::clone(&wal),
            space: Arc::clone(&space),
            file: Arc::clone(&file),
        };
        let table_image = TableImage {
            pool: Arc::clone(&pool),
            wal: Arc::clone(&wal),
            space: Arc::clone(&space),
            file: Arc::clone(&file),
            unwritten: Mutex::new(unwritten),
        };
        let room =
            Room { pool: Arc::clone(&pool), space: Arc::clone(&space), requests: Arc::clone(&requests) };
        let maintenance = Arc::new(Maintenance {
            pool,
            wal,
            space,
            file,
            flush,
            table_image,
            room,
            requests,
            round_state: Mutex::new(round_state),
            in_memory,
        });
        let maintainer: Arc<dyn Maintainer> = Arc::clone(&maintenance) as _;
        maintenance.requests.set_maintainer(Arc::downgrade(&maintainer));
        maintenance
    }

    /// Applies durable allocations and frees. Returns the LSN up to which all are applied.
    pub(crate) fn absorb(&self, round_state: &mut RoundState) -> Lsn {
        // In this order: records below the floor are queued, and those below the persistent end
        // survive.
        let end = self.wal.finished();
        let mut due: Vec<Event> = {
            let mut events = self.requests.events.lock();
            let (due, later) = events.drain(..).partition(|event| event.lsn < end);
            *events = later;
            due
        };
        due.sort_unstable_by_key(|event| event.lsn);
        for event in due {
            if event.allocated {
                self.absorb_allocation(round_state, event)
            } else {
                self.absorb_free(round_state, event)
            }
        }
        round_state.absorbed = round_state.absorbed.max(end);
        end
    }

    fn absorb_allocation(&self, round_state: &mut RoundState, event: Event) {
        let entry = self.pool.table.entry(event.page).expect("allocated ids are within the table");
        round_state.mapping.dirty(event.page, event.lsn);
        // Shared, since an unlatched page may change its tier.
        self.pool.share_entry(entry);
        // The page's image already says that it is allocated.
        if let Some(frame) = entry.location().frame() {
            let header = self.pool.frames.header(frame);
            if header.mapped() == MappingWord::FREE {
                header.set_mapped(MappingWord::UNWRITTEN);
            }
        }
        entry.latch().unshare();
    }

    fn absorb_free(&self, round_state: &mut RoundState, event: Event) {
        let old = self.pool.end_freed(event.page);
        match old.extent() {
            Some(extent) => self.file.free_blocks(extent),
            None => self.space.ungrant(blocks_granted(event.page)),
        }
        round_state.mapping.dirty(event.page, event.lsn);
        round_state.note_image(event.page);
        self.pool.ids.lock().give_back(event.page);
    }

    /// Runs one full round. `urgent` also writes recently touched pages.
    pub(crate) fn round(&self, urgent: bool) -> Result<()> {
        self.pool.resizer().balance()?;
        let mut round_state = self.round_state.lock();
        self.absorb(&mut round_state);
        round_state.staging.urgent = urgent;
        let outcome = self
            .clean_ahead(&mut round_state, urgent)
            .and_then(|()| self.checkpoint_step(&mut round_state))
            .and_then(|()| self.clean_segments(&mut round_state));
        round_state.staging.urgent = false;
        self.seal_frames(&mut round_state);
        drop(round_state);
        self.maintain_cache();
        outcome
    }

    /// Makes the cache's state durable at intervals, for when no write syncs the page file.
    pub(crate) fn maintain_cache(&self) {
        if let Some(cache) = &self.file.cache {
            cache.maintain_if_needed();
        }
    }

    /// Writes the dirty pages among `pages`, except latched ones. Returns their number.
    pub(crate) fn write_back(&self, round_state: &mut RoundState, pages: &[PageId]) -> Result<usize> {
        let mut written = 0;
        for batch in batches(pages, round_state.staging.bytes.len()) {
            written += self.write_batch(round_state, batch)?;
            // Many batches take longer than other threads need to use up frames and log.
            self.pool.back_ahead();
            self.grow_log_if_dear(round_state)?;
        }
        Ok(written)
    }

    fn write_batch(&self, round_state: &mut RoundState, pages: &[PageId]) -> Result<usize> {
        // Runs before images are staged, since the cleaner uses the staging buffer. It makes room
        // for whole pages, since lengths are unknown. Nothing else allocates under this lock.
        let lengths: Vec<u64> = pages.iter().map(|&id| class_of_page(id).blocks()).collect();
        if !self.space.has_room(&lengths, SPARE_SEGMENTS, Stream::Changed) {
            self.pool.stats.segment_waits.fetch_add(1, Relaxed);
            match self.make_room(round_state, lengths.iter().sum()) {
                // The cleaner has no room for its moves; there may be enough for these images.
                Ok(()) | Err(Error::Full { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.find_log_of(round_state, pages.len())?;
        let written = self.flush.claim_and_write(round_state, pages, SPARE_SEGMENTS);
        match &written {
            Err(Error::Full { .. }) => self.room.note_missing(lengths.iter().sum()),
            Ok(_) if self.pool.image_blocks_max() > 1 => {
                // Nothing granted the growth of compressed images. The next commit may have to
                // wait.
                let _ = self.room.keep_up();
            }
            _ => {}
        }
        written
    }

    /// Writes back dirty pages ahead of the sweeps. If `urgent`, any of the partitions with waiting
    /// threads, or of all if there are none.
    fn clean_ahead(&self, round_state: &mut RoundState, urgent: bool) -> Result<()> {
        let wanting = self.pool.replacer.take_all_wanting();
        for partition in self.pool.frames.partitions() {
            let wanted = wanting == 0 || wanting & 1 << partition.index() != 0;
            self.clean_ahead_of(round_state, partition, urgent && wanted)?;
        }
        Ok(())
    }

    pub(crate) fn clean_ahead_of(
        &self,
        round_state: &mut RoundState,
        partition: Partition,
        urgent: bool,
    ) -> Result<()> {
        let taken = self.pool.stats.frames_taken[partition.index()].load(Relaxed);
        if !urgent && round_state.frames_taken[partition.index()] == taken {
            // No thread has needed a frame since: the checkpoint writes dirty pages.
            return Ok(());
        }
        round_state.frames_taken[partition.index()] = taken;
        let batch = round_state.staging.bytes.len() / partition.class.page_bytes();
        let mut pages = self.pool.dirty_ahead(partition, urgent, false, batch);
        if pages.is_empty() && urgent {
            pages = self.pool.dirty_ahead(partition, urgent, true, batch);
        }
        // In the order of ids, for scans of tables loaded in order.
        pages.sort_unstable();
        // A frame that a sweep moved meanwhile appears in two queues.
        pages.dedup();
        for batch in batches(&pages, round_state.staging.bytes.len()) {
            round_state.cause = if urgent { Cause::Frames } else { Cause::Ahead };
            self.write_back(round_state, batch)?;
            // Each batch logs its mapping. Inline, this caller is the only one to cut the log.
            if self.wal.tail().0 - self.wal.cut().0 > self.wal.capacity() / 8 * 5 {
                self.checkpoint_step(round_state)?;
            }
        }
        Ok(())
    }

    /// Cuts the log, or asks the maintenance thread to and waits a little. Each request frees half
    /// of the used part: a regular round stops at half of the log, too little for a large
    /// reservation.
    pub(super) fn wait_for_log_space(&self) -> Result<()> {
        self.pool.stats.log_waits.fetch_add(1, Relaxed);
        if self.requests.works_inline() {
            let made = self.checkpoint_now(false);
            self.requests.wake_up.state.lock().rounds += 1;
            return made;
        }
        self.requests.wake_up.state.lock().log_wanted = true;
        self.pool.wait_for_round()
    }

    /// Runs rounds until `stop_maintenance`. A failed round poisons the log.
    pub(crate) fn run_maintenance(&self) {
        /// Wakes threads that wait for the next round, even after a panic.
        struct Leave<'a>(&'a Maintenance);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.wal.poison("the maintenance thread panicked");
                }
                self.0.requests.maintenance_runs.store(false, Relaxed);
                self.0.requests.wake_up.done.notify_all();
            }
        }
        self.requests.maintenance_runs.store(true, Relaxed);
        let _leave = Leave(self);
        let mut was_full = false;
        loop {
            let Some(urgent) = self.requests.wake_up.next_round() else { return };
            let round = || {
                // Before a write that may take long.
                self.pool.back_ahead();
                self.grow_log_if_dear(&mut self.round_state.lock())?;
                self.wal.flush_at_leisure()?;
                self.round(urgent)?;
                if self.requests.wake_up.take_log_wanted() { self.checkpoint_now(false) } else { Ok(()) }
            };
            if self.pool.check().is_ok() {
                let is_full = match round() {
                    Ok(()) => false,
                    // No room to write back: reads continue, and the next round tries again.
                    Err(error @ Error::Full { .. }) => {
                        if !was_full {
                            tracing::warn!(%error, "maintenance waits for disk space");
                        }
                        true
                    }
                    Err(error) => {
                        self.wal.poison(&error.to_string());
                        false
                    }
                };
                was_full = is_full;
            }
            self.requests.wake_up.round_done(was_full);
        }
    }

    pub(crate) fn stop_maintenance(&self) {
        self.requests.wake_up.stop();
    }

    /// Waits until no write is under way in a poisoned database.
    pub(crate) fn wait_for_writes(&self) {
        // Images, chunks and superblocks are written under this lock, each after a check of the
        // poison.
        drop(self.round_state.lock());
        self.wal.wait_for_writes();
    }

    /// Lets the log be cut past the losers, which are durably closed.
    pub(crate) fn recovery_done(&self) {
        self.requests.recovery_floor.store(u64::MAX, Relaxed);
    }

    pub(crate) fn take_log_from_backup(&self) {
        self.round_state.lock().release_log();
    }

    pub(crate) fn durable_state(&self, id: PageId) -> MappingWord {
        self.table_image.durable_state(id)
    }

    /// Verifies the durable image of `id`, if it has one. A cached copy would prove nothing about
    /// the page file.
    pub(crate) fn check_image(&self, id: PageId) -> Result<()> {
        let mut buffer = self.pool.images.image_buffer(class_of_page(id), self.pool.frames.largest())?;
        match self.read_durable(id, &mut buffer) {
            Ok(()) => Ok(()),
            // The extent may have been reused, which happens only under this lock.
            Err(_) => {
                let _round_state = self.round_state.lock();
                self.read_durable(id, &mut buffer)
            }
        }
    }

    fn read_durable(&self, id: PageId, buffer: &mut [u8]) -> Result<()> {
        if !self.pool.exists(id) {
            return Ok(());
        }
        let mapped = self.durable_state(id);
        if !mapped.has_image() {
            return Ok(());
        }
        self.pool.stats.verified.fetch_add(1, Relaxed);
        self.pool.images.read_from(self.file.slow(), &self.pool.stats, id, mapped, buffer).map(drop)
    }

    /// All existing pages, once freed ones are gone.
    pub(crate) fn existing(&self) -> Result<Vec<PageId>> {
        self.wal.flush_to(self.wal.tail())?;
        let mut round_state = self.round_state.lock();
        self.absorb(&mut round_state);
        Ok(self.pool.page_ids().filter(|&id| self.pool.exists(id)).collect())
    }

    /// Withholds ids from new pages while references to old pages may remain.
    pub(crate) fn withhold(&self, ids: impl Iterator<Item = PageId>) {
        self.pool.ids.lock().withhold(&ids.collect());
    }

    /// Waits for changes that new verify marks may have missed, and for earlier frees.
    pub(crate) fn wait_for_changes(&self) -> Result<()> {
        let end = self.wal.tail();
        let mut backoff = Backoff::new();
        loop {
            self.pool.check()?;
            self.wal.flush_to(end)?;
            if self.absorb(&mut self.round_state.lock()) >= end {
                return Ok(());
            }
            backoff.wait();
        }
    }
}
