//! The pool: pages in frames, faulted in on demand.
//!
//! A reader asks for a page by id and gets a guard. [`Pool::read`] gives an optimistic one, which holds nothing and
//! is worth something only after `validate`; [`Pool::latch`] an exclusive one. Both fault the page in when it is not
//! resident, so both may do I/O and wait for a frame, and **no latch may be held when calling them**. Code that
//! changes several pages faults all of them in, latches them without waiting, and on refusal gives up everything and
//! starts again. That rule is what makes waiting for frames and log space free of deadlocks.
//!
//! Lock order: resizing, upkeep, page latch, events, cached records, free frames, page ids, segments of the space.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Instant;

use parking_lot::{Condvar, Mutex, RwLock};
use terrace_block::{BlockDevice, Cached, prefetch};

use super::backoff::Backoff;
use super::batch::Batches;
use super::census::CensusPlace;
use super::frames::Frames;
use super::guard::{ReadGuard, WriteGuard};
use super::latch::Word;
use super::middle::MiddleTier;
use super::migration::Access;
use super::operation;
use super::page_ids::PageIds;
use super::read_buffer::{ImageBuffer, PageBuffer, ReadBuffers};
use super::records::Records;
use super::reserve::ReservedFrames;
use super::residency::Housed;
use super::resize::FrameBudget;
use super::room::Line;
use super::stats::PoolStats;
use super::stripe::ByStripe;
use super::sweep::FreeFrames;
use super::table::{Entry, Location, PageTable};
use super::upkeep::Upkeep;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, SizeClass, Timestamp};
use crate::replacement::Replacement;
use crate::store::image;
use crate::store::place::{Extent, Mapped, places_of};
use crate::store::space::Space;
use crate::threads::Padded;
use crate::wal::Wal;

/// Why an attempt at a page, or at a tree, ended without a result.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Something moved meanwhile: start again.
    Restart,
    /// The page does not exist. A reader that came by a stale pointer starts again; one whose pointer still
    /// stands has found damage.
    Missing(PageId),
    /// The attempt failed for good.
    Fail(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Fail(error)
    }
}

/// Who does the background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A thread of the database's own.
    Background,
    /// Whoever needs it, in place: no threads, so that a test replays exactly.
    Inline,
}

/// Allocations and frees whose records may not be durable yet, in the order of their appends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) lsn: Lsn,
    pub(super) page: PageId,
    pub(super) allocated: bool,
}

/// Places that page `id`, which exists, is granted as long as it has no image.
pub(super) fn places_granted(id: PageId) -> u64 {
    class_of_page(id).places()
}

/// Pages in frames over a store and a log.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(super) table: PageTable,
    pub(super) frames: Frames,
    pub(super) device: Arc<dyn BlockDevice>,
    /// The cache that the device is, if it is one.
    pub(crate) cache: Option<Arc<Cached>>,
    pub(super) space: Space,
    pub(super) wal: Arc<Wal>,
    pub(super) page_bytes: usize,
    pub(super) log_capacity: u64,
    /// Records of pages that are away, in frames of their own.
    pub(crate) records: Records,
    pub(super) free: ByStripe<Mutex<FreeFrames>>,
    pub(super) ids: Mutex<PageIds>,
    pub(super) events: Mutex<Vec<Event>>,
    pub(super) upkeep: Mutex<Upkeep>,
    /// Wakes the upkeep thread, and those that wait for it.
    pub(super) bell: Bell,
    /// What reads of several pages at a time go through.
    pub(super) batches: Batches,
    /// What reads of one page go through, where it is more than a thread keeps.
    pub(super) read_buffers: ReadBuffers,
    pub(super) replacement: Replacement,
    pub(super) mode: Mode,
    /// See [`PoolOptions`](super::PoolOptions).
    pub(super) in_memory: bool,
    /// Places of the images that write-back found no room for in the page file; 0 while it finds some.
    pub(super) without_room: AtomicU64,
    /// Whether the page file is fuller than it should be, and could not be made longer.
    pub(super) is_tight: AtomicBool,
    pub(crate) stats: PoolStats,
    /// What recovery still has to read of the log; the cut stays below it.
    pub(super) recovery_floor: AtomicU64,
    /// Whether the upkeep thread is there to be waited for; until then, recovery included, everybody helps himself.
    pub(super) upkeep_runs: AtomicBool,
    /// Recovery: pages that are allocated but that the log alone knows, until redo puts them into a frame.
    pub(super) unwritten: Mutex<std::collections::HashSet<PageId>>,
    /// Told of what changes hands while a verification runs.
    pub(super) census: CensusPlace,
    /// Held by who changes the number of frames.
    pub(super) resizing: Mutex<FrameBudget>,
    /// The middle tier, if there is one.
    pub(super) middle: Option<MiddleTier>,
    /// Held shared, and never waited for, by who moves a dirty page from one tier to the other; alone by who computes the cut of the
    /// log, who would miss one that goes past him (`migrate.rs`).
    pub(super) moving: RwLock<()>,
    /// A bit for each stripe of which somebody waits for a frame.
    pub(super) wanting: AtomicU32,
    /// And for each class for which somebody has waited in vain: its frames are in the hands of others who wait.
    pub(super) starving: AtomicU16,
    /// Frames reserved for pages that are about to exist.
    pub(super) reserved_frames: ReservedFrames,
    /// Commits that wait for log space.
    pub(super) log_line: Line,
    /// The highest commit timestamp drawn; the transaction layer keeps it, the superblock stores it.
    pub(crate) highest_timestamp: Arc<Padded<AtomicU64>>,
}

/// Two condition variables around one flag: "there is work" and "work was done".
#[derive(Debug, Default)]
pub(super) struct Bell {
    pub(super) rung: Mutex<BellState>,
    pub(super) work: Condvar,
    pub(super) done: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct BellState {
    pub(super) wanted: bool,
    pub(super) urgent: bool,
    /// Somebody needs more of the log than the checkpoint keeps free by itself.
    pub(super) log_wanted: bool,
    pub(super) stop: bool,
    pub(super) rounds: u64,
    /// Whether the last round found no room in the page file.
    pub(super) is_full: bool,
}

impl Pool {
    /// The log under this pool.
    pub(crate) fn wal(&self) -> &Arc<Wal> {
        &self.wal
    }

    /// The class of the catalog's pages, of the page table's images, and of tables for which nothing else is said.
    pub(crate) fn class(&self) -> SizeClass {
        SizeClass::of_bytes(self.page_bytes as u64).expect("the superblock was checked")
    }

    /// Bytes of a page.
    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Places of an image of the page table, which is as long as a page of the database's own class.
    pub(super) fn table_image_places(&self) -> u64 {
        places_of(self.page_bytes)
    }

    /// Places of the longest image there may be: that of a page of the largest class in use.
    pub(super) fn image_places_max(&self) -> u64 {
        self.frames.largest().places()
    }

    /// An error if something failed for good.
    pub(crate) fn check(&self) -> Result<()> {
        match self.wal.poisoned() {
            Some(reason) => Err(Error::Poisoned { reason: reason.to_owned() }),
            None => Ok(()),
        }
    }

    /// Whether `id` is in a frame, and marked there.
    #[cfg(test)]
    pub(crate) fn is_marked(&self, id: PageId) -> Option<bool> {
        let entry = self.table.entry(id)?;
        matches!(entry.location(), Location::Frame(_)).then(|| entry.latch().load().is_marked())
    }

    /// Whether somebody has `id` latched.
    #[cfg(test)]
    pub(crate) fn is_latched(&self, id: PageId) -> bool {
        self.table.entry(id).is_some_and(|entry| entry.latch().load().is_latched())
    }

    /// Whether others who need the upkeep would have to wait now: with a middle tier, those who need a frame.
    #[cfg(test)]
    pub(crate) fn keeps_others_waiting(&self) -> bool {
        self.middle.is_some() && self.upkeep.try_lock().is_none()
    }

    /// A point of a change, of write-back or of a checkpoint at which other threads may have done anything to any page
    /// that is not latched. Tests without threads do it here.
    #[inline]
    pub(crate) fn meanwhile(&self) {
        #[cfg(test)]
        crate::crash::in_flight(self);
    }

    /// Where the bytes of pages are.
    pub(crate) fn backend(&self) -> Backend {
        self.frames.backend()
    }

    /// Who does the background work.
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// Starts an optimistic read of `id`, faulting it in if need be. The caller holds no latch.
    #[inline]
    pub(crate) fn read(&self, id: PageId) -> Result<ReadGuard<'_>, Stop> {
        let mut loaded = false;
        loop {
            if let Some(guard) = self.glance(id) {
                if guard.is_in_middle() {
                    return self.settle(guard, loaded);
                }
                // Not by the access that loads the page: one that is read once must not look as if it were read again.
                if !loaded {
                    guard.mark();
                }
                return Ok(guard);
            }
            loaded |= self.fetch(id)?;
        }
    }

    /// Starts an optimistic read of `id` if it is in a frame and nobody is changing it. Nothing is written, so `id` may
    /// still turn out to be garbage; [`ReadGuard::mark`] is for when it did not.
    #[inline(always)]
    pub(crate) fn glance(&self, id: PageId) -> Option<ReadGuard<'_>> {
        let entry = self.table.entry(id)?;
        let seen = entry.latch().load();
        match entry.location() {
            Location::Frame(frame) if !seen.is_exclusive() => {
                Some(ReadGuard::new(self, id, entry, seen, frame))
            }
            _ => None,
        }
    }

    /// Asks for the lines of memory with what says where `id` is. The id may be garbage.
    #[inline]
    pub(crate) fn prefetch_entry(&self, id: PageId) {
        if let Some(entry) = self.table.entry(id) {
            entry.prefetch();
        }
    }

    /// Asks for the lines of memory with parts of `id`, if it is in a frame. The id may be garbage, and so may the parts.
    #[inline]
    pub(crate) fn prefetch_page(&self, id: PageId, parts: [Range<usize>; 2]) {
        let Some(entry) = self.table.entry(id) else { return };
        let Location::Frame(frame) = entry.location() else { return };
        let words = self.frames.words(id, frame);
        for part in parts {
            prefetch(words.get(part.start / 8..part.end / 8).unwrap_or_default());
        }
    }

    /// Latches `id` exclusively, faulting it in if need be. The caller holds no latch.
    pub(crate) fn latch(&self, id: PageId) -> Result<WriteGuard<'_>, Stop> {
        operation::begin(Access::Write);
        let mut backoff = Backoff::new();
        loop {
            match self.read(id)?.upgrade() {
                Err(Stop::Restart) => backoff.wait(),
                other => return other,
            }
        }
    }

    /// Latches `id` exclusively if it is resident and nobody holds it now. May be called with latches held.
    #[cfg(test)]
    pub(crate) fn try_latch(&self, id: PageId) -> Option<WriteGuard<'_>> {
        let entry = self.table.entry(id)?;
        let seen = entry.latch().load();
        let Location::Frame(frame) = entry.location() else { return None };
        entry.latch().try_exclusive(seen).then(|| WriteGuard::new(self, id, entry, frame))
    }

    /// Whether `id` is at `version` and nobody is changing it.
    pub(crate) fn version_is(&self, id: PageId, version: u64) -> bool {
        self.table.entry(id).is_some_and(|entry| {
            let now = entry.latch().load();
            !now.is_exclusive() && now.version() == version && matches!(entry.location(), Location::Frame(_))
        })
    }

    /// Whether `id` has a page now, resident or not.
    pub(crate) fn exists(&self, id: PageId) -> bool {
        self.table.entry(id).is_some_and(|entry| entry.location() != Location::Nowhere)
    }

    /// Returns when `id` was in a frame and nobody was changing it; whether this loaded it. The caller holds no latch.
    #[cold]
    pub(crate) fn fetch(&self, id: PageId) -> Result<bool, Stop> {
        let loaded = self.bring(id)?;
        #[cfg(test)]
        if loaded {
            super::replacement_tests::touch(id);
        }
        Ok(loaded)
    }

    fn bring(&self, id: PageId) -> Result<bool, Stop> {
        let entry = self.table.entry(id).ok_or(Stop::Missing(id))?;
        let mut backoff = Backoff::new();
        loop {
            let seen = entry.latch().load();
            if seen.is_exclusive() {
                self.wait_latched(&mut backoff);
                continue;
            }
            match entry.location() {
                Location::Frame(_) => return Ok(false),
                Location::Nowhere if entry.latch().validate(seen) => return Err(Stop::Missing(id)),
                Location::Nowhere => {}
                Location::Store(mapped) if self.fault(id, entry, seen, mapped)? => return Ok(true),
                Location::Store(_) => {}
            }
        }
    }

    /// What was read from a page does not hold: it changed meanwhile.
    #[cold]
    pub(crate) fn changed(&self) -> Stop {
        self.stats.changed.raise();
        Stop::Restart
    }

    #[cold]
    fn wait_latched(&self, backoff: &mut Backoff) {
        if backoff.is_first() {
            self.stats.latch_waits.raise();
        }
        backoff.wait();
    }

    /// Marks a page that is looked at. Written only when clear: a hot page's mark stays set, and a hit on it writes
    /// nothing. The first look at a page that a batch brought in is the one it was read for, and leaves no mark.
    #[inline]
    pub(super) fn touch(&self, entry: Entry<'_>, seen: Word, frame: u32) {
        if !seen.is_marked() && !self.first_look(frame) {
            entry.latch().mark();
        }
    }

    /// Brings `id` into a frame, unless it moved since `seen`; whether it did. Threads that want the same page wait at
    /// its latch, so the store is read once.
    fn fault(&self, id: PageId, entry: Entry<'_>, seen: Word, mapped: Mapped) -> Result<bool> {
        let begun = Instant::now();
        let class = class_of_page(id);
        // Before the frame and the latch: whoever has such a buffer may wait for a frame, and for the upkeep.
        let mut buffer = self.image_buffer(class)?;
        let frame = self.frame_for_load(id)?;
        if !entry.latch().try_exclusive(seen) {
            self.give_frame(frame);
            self.stats.overtaken.raise();
            return Ok(false);
        }
        // The version held since `seen`, so the location is still the one that was read.
        let content = self.read_image(id, mapped, &mut buffer);
        match content.and_then(|content| self.house(&[(id, frame)]).map(|()| content)) {
            Ok(content) => {
                self.fill(id, frame, content);
                self.settle_in_frame(id, entry, frame, mapped);
                entry.latch().unmark();
                entry.latch().release_changed();
                self.unlocked(id, entry, frame);
                self.stats.faults.fetch_add(1, Relaxed);
                self.count_loaded(frame);
                self.stats.fault.record(begun.elapsed());
                Ok(true)
            }
            Err(error) => {
                entry.latch().release_unchanged();
                self.give_frame(frame);
                Err(error)
            }
        }
    }

    /// Puts memory behind pages that have frames and are about to get their content, under their exclusive latches.
    ///
    /// # Errors
    /// [`Error::Memory`]; none of them has any then.
    pub(super) fn house(&self, pages: &[Housed]) -> Result<()> {
        self.frames.populate(pages).map_err(|source| {
            self.evacuate(pages);
            let bytes = pages.iter().map(|(id, _)| id.page_bytes() as u64).sum();
            Error::Memory { bytes, what: "pages that are brought in", source }
        })
    }

    /// Takes the memory away from behind pages that lose their frames, under their exclusive latches.
    pub(super) fn evacuate(&self, pages: &[Housed]) {
        if let Err(error) = self.frames.discard(pages) {
            // What a page is made of when it comes in again does not depend on it; the budget does.
            self.stats.not_discarded.fetch_add(pages.len() as u64, Relaxed);
            tracing::warn!(%error, pages = pages.len(), "the memory of pages that left could not be given back");
        }
    }

    /// The same for frames that held something else than a page, before they are given back.
    pub(super) fn evacuate_own(&self, frames: &[u32]) {
        if let Err(error) = self.frames.discard_own(frames) {
            self.stats.not_discarded.fetch_add(frames.len() as u64, Relaxed);
            tracing::warn!(%error, frames = frames.len(), "the memory of frames could not be given back");
        }
    }

    /// Ties a frame to a page, clean, under the page's exclusive latch.
    pub(super) fn settle_in_frame(&self, id: PageId, entry: Entry<'_>, frame: u32, mapped: Mapped) {
        let header = self.frames.header(frame);
        header.set_mapped(mapped);
        header.set_recovery(Lsn::NONE);
        header.set_next_recovery(Lsn::NONE);
        header.set_purpose(None);
        header.set_below(None);
        header.set_page(id);
        entry.set_location(Location::Frame(frame));
    }

    /// Reads the durable image of `id`, which is in the page table, holds it against everything that vouches for it, and gives
    /// the page it is of. `buffer` is one for an image and a page ([`Pool::image_buffer`]).
    pub(super) fn read_image<'b>(
        &self,
        id: PageId,
        mapped: Mapped,
        buffer: &'b mut [u8],
    ) -> Result<&'b [u8]> {
        self.read_image_from(&*self.device, id, mapped, buffer)
    }

    /// The same, of `device`: the page file, or the page file through the cache.
    pub(super) fn read_image_from<'b>(
        &self,
        device: &dyn BlockDevice,
        id: PageId,
        mapped: Mapped,
        buffer: &'b mut [u8],
    ) -> Result<&'b [u8]> {
        let extent = mapped.extent().expect("only pages with an image are read");
        let page_bytes = class_of_page(id).page_bytes();
        let (image, page) = buffer[..2 * page_bytes].split_at_mut(page_bytes);
        let image = image.get_mut(..extent.bytes()).ok_or_else(|| {
            Error::corrupt(self.device.name(), Some(id.0), "the page table names more places than a page has")
        })?;
        self.read_places(device, extent, image)?;
        self.vouch(id, mapped, image)?;
        self.unpack(id, mapped, image, page)
    }

    /// Reads the image at `extent` of `device`, which is as long as `image`.
    pub(super) fn read_places(
        &self,
        device: &dyn BlockDevice,
        extent: Extent,
        image: &mut [u8],
    ) -> Result<()> {
        let in_flight = self.reads_in_flight(1);
        let read = device.read_at(extent.offset(), image);
        drop(in_flight);
        read.map_err(|source| Error::io("read", self.device.name(), Some(extent.offset()), source))?;
        self.stats.count_read(1, image.len());
        Ok(())
    }

    /// The page that an image is of, which has been vouched for; decompressed into the first bytes of `page` if it must be.
    pub(super) fn unpack<'b>(
        &self,
        id: PageId,
        mapped: Mapped,
        image: &'b [u8],
        page: &'b mut [u8],
    ) -> Result<&'b [u8]> {
        let page_bytes = class_of_page(id).page_bytes();
        image::unpack(image, page_bytes, page).map_err(|what| self.damaged(id, mapped, what))
    }

    pub(super) fn damaged(&self, id: PageId, mapped: Mapped, what: &str) -> Error {
        let offset = mapped.extent().map_or(0, |extent| extent.offset());
        Error::corrupt(self.device.name(), Some(id.0), format!("{what} (byte {offset} of the file)"))
    }

    /// An aligned buffer for this thread, of an image and of the page in it, of any class that nodes can have.
    pub(super) fn read_buffer(&self) -> PageBuffer<'_> {
        self.read_buffers.take(2 * self.frames.largest().min(SizeClass::LARGEST_NODE).page_bytes())
    }

    /// A buffer for an image and a page of `class`: this thread's, or for a page that it has no room for one of those of
    /// batches, which may be waited for. The caller holds no latch, no frame, and no such buffer.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub(super) fn image_buffer(&self, class: SizeClass) -> Result<ImageBuffer<'_>> {
        match class.is_for_values() {
            false => Ok(ImageBuffer::Own(self.read_buffer())),
            true => self.batch_buffer().map(ImageBuffer::Lent),
        }
    }

    /// The highest commit timestamp drawn so far.
    pub(crate) fn timestamp_now(&self) -> Timestamp {
        Timestamp(self.highest_timestamp.load(SeqCst))
    }
}

/// The class of a page that is in the page table, which has no others.
pub(super) fn class_of_page(id: PageId) -> SizeClass {
    id.class().expect("pages of the page table are of classes there are")
}
