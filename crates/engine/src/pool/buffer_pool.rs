//! The pool: pages in frames, faulted in on demand.
//!
//! [`Pool::read`] returns an optimistic guard, [`Pool::latch`] an exclusive one. Both may load the
//! page, do I/O and wait for a frame, so **the caller holds no latch**. A change of several pages
//! loads them all and latches them without waiting. If refused, it releases everything and starts
//! again. So waits for frames and log space cannot deadlock.
//!
//! Lock order: `docs/latching.md`.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Instant;

use parking_lot::Mutex;
use terrace_cache::Cached;
use terrace_io::BlockDevice;

use super::backoff::Backoff;
use super::frames::Frames;
use super::frames::partition::is_mini;
use super::frames::persistent::PersistentFrames;
use super::guard::{ReadGuard, WriteGuard};
use super::images::Images;
use super::latch::Word;
use super::page_ids::{PageIds, id_count_below, ids_below};
use super::page_table::{Entry, Location};
use super::partial::{end_mini, make_whole};
use super::record_cache::{Looked, Record, Records, Source};
use super::resident::class_of_page;
use super::resize::{Resizer, Resizing};
use super::retry::{Mode, Retry};
use super::tier::migration::Access;
use super::tier::{Seen, operation};
use super::tiers::Tiers;
use super::verify_marks::{MarksSlot, VerifyMarks};
use crate::config::PageSizes;
use crate::error::Result;
use crate::ids::{ByClass, PageId, SizeClass, Timestamp};
use crate::store::mapping_word::{BLOCK_BYTES, MappingWord, blocks_of};
use crate::store::space::Space;
use crate::threads::{Padded, thread_number};
use crate::wal::Wal;

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) tiers: Tiers,
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) cache: Option<Arc<Cached>>,
    pub(crate) space: Arc<Space>,
    pub(crate) wal: Arc<Wal>,
    pub(crate) page_bytes: usize,
    pub(super) staging_bytes: usize,
    pub(crate) records: Records,
    pub(crate) ids: Mutex<PageIds>,
    pub(crate) images: Images,
    /// Whether [`Mode::Background`] holds; set after recovery.
    pub(super) is_background: AtomicBool,
    pub(super) verify_marks: MarksSlot,
    pub(crate) resizing: Resizing,
    /// Kept by the transaction layer, stored in the superblock.
    pub(crate) highest_timestamp: Arc<Padded<AtomicU64>>,
}

impl Deref for Pool {
    type Target = Tiers;

    #[inline(always)]
    fn deref(&self) -> &Tiers {
        &self.tiers
    }
}

impl Pool {
    pub(crate) fn wal(&self) -> &Arc<Wal> {
        &self.wal
    }

    /// All ids ever used, in order.
    pub(crate) fn page_ids(&self) -> impl DoubleEndedIterator<Item = PageId> + use<> {
        ids_below(self.ids.lock().ends())
    }

    /// How many ids were ever used.
    pub(crate) fn page_ids_used(&self) -> u64 {
        id_count_below(&self.ids.lock().ends())
    }

    /// Where the ids of each class end, for a superblock. A used class counts before it has pages:
    /// the next process sizes memory by this before it reads the log.
    pub(crate) fn ids_ends_to_name(&self) -> ByClass<u64> {
        let mut ends = self.ids.lock().ends();
        self.frames.classes().for_each(|class| ends[class.index()] = ends[class.index()].max(2));
        ends
    }

    #[inline]
    pub(crate) fn verify_marks(&self) -> Option<Arc<VerifyMarks>> {
        self.verify_marks.get()
    }

    /// The database's own class: of catalog, page-table images and default tables.
    pub(crate) fn class(&self) -> SizeClass {
        SizeClass::of_bytes(self.page_bytes as u64).expect("the superblock was checked")
    }

    /// Bytes of a page of the own class.
    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Blocks of a page-table image, a page of the own class.
    pub(crate) fn table_image_blocks(&self) -> u64 {
        blocks_of(self.page_bytes)
    }

    /// Fails if the log is poisoned, and in a forked child without the middle tier's memory.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        // A result that is handed on goes through memory, with room for an error.
        let persistent = self.frames.persistent.as_ref();
        if persistent.is_none_or(PersistentFrames::is_of_this_process) && self.wal.is_well() {
            return Ok(());
        }
        refusal(&self.frames, &self.wal)
    }

    #[cfg(test)]
    pub(crate) fn keeps_others_waiting(&self) -> bool {
        self.middle.is_some() && self.requests.maintainer().is_busy()
    }

    /// A yield point: others may change any unlatched page. In tests they do so here.
    #[inline]
    pub(crate) fn meanwhile(&self) {
        #[cfg(test)]
        crate::crash::in_flight(self);
    }

    pub(crate) fn mode(&self) -> Mode {
        if self.is_background.load(Relaxed) { Mode::Background } else { Mode::Inline }
    }

    #[inline]
    pub(crate) fn read(&self, id: PageId) -> Result<ReadGuard<'_>, Retry> {
        let mut loaded = false;
        loop {
            if let Some(guard) = self.tiers.try_read(id) {
                if guard.is_in_middle() {
                    return self.access_in_middle(guard, loaded);
                }
                // Not by the load: one read must not look like two.
                if !loaded {
                    guard.mark();
                }
                return Ok(guard);
            }
            loaded |= self.fetch(id)?;
        }
    }

    pub(crate) fn latch(&self, id: PageId) -> Result<WriteGuard<'_>, Retry> {
        operation::begin(Access::Write);
        let mut backoff = Backoff::new();
        loop {
            match self.read(id)?.upgrade() {
                Err(Retry::Restart) => backoff.wait(),
                other => return other,
            }
        }
    }

    /// Loads `id`, or waits until no thread changes it. Returns whether it loaded. The caller holds
    /// no latch.
    #[cold]
    pub(crate) fn fetch(&self, id: PageId) -> Result<bool, Retry> {
        let loaded = self.bring(id)?;
        #[cfg(test)]
        if loaded {
            super::replacement_tests::touch(id);
        }
        Ok(loaded)
    }

    fn bring(&self, id: PageId) -> Result<bool, Retry> {
        // A load may demote another page.
        self.frames.check_process()?;
        let entry = self.table.entry(id).ok_or(Retry::Missing(id))?;
        let mut backoff = Backoff::new();
        loop {
            let seen = entry.latch().load();
            if seen.is_exclusive() {
                self.wait_latched(&mut backoff);
                continue;
            }
            match entry.location() {
                Location::Frame(_) => return Ok(false),
                Location::Partial(frame) if is_mini(frame) => {
                    // It has no room for all lines. The middle tier has them: no frame is needed.
                    if !end_mini(&self.tiers, Seen { id, entry, word: seen, frame }) {
                        // It has changed, or its image is being written.
                        backoff.wait();
                    }
                }
                Location::Partial(_) if make_whole(&self.tiers, id, entry, seen) => return Ok(false),
                Location::Partial(_) => self.wait_latched(&mut backoff),
                Location::Nowhere if entry.latch().validate(seen) => return Err(Retry::Missing(id)),
                Location::Nowhere => {}
                Location::Store(mapped) if self.fault(id, entry, seen, mapped)? => return Ok(true),
                Location::Store(_) => {}
            }
        }
    }

    /// Loads `id` unless it moved since `seen`; returns whether it did. Other threads wait at its
    /// latch, so the store is read once.
    fn fault(&self, id: PageId, entry: Entry<'_>, seen: Word, mapped: MappingWord) -> Result<bool> {
        let begun = Instant::now();
        let class = class_of_page(id);
        // Before frame and latch: a buffer's owner may wait for a frame and for maintenance.
        let mut buffer = self.images.image_buffer(class, self.frames.largest())?;
        let frame = self.frame_for_load(id)?;
        if !entry.latch().try_exclusive(seen) {
            self.give_frame(frame);
            self.stats.overtaken.raise();
            return Ok(false);
        }
        // The version held since `seen`, so the location did too.
        let content = self.images.read(&self.stats, id, mapped, &mut buffer);
        match content.and_then(|content| self.populate(&[(id, frame)]).map(|()| content)) {
            Ok(content) => {
                self.fill(id, frame, content);
                self.bind_to_frame(id, entry, frame, mapped);
                entry.latch().unmark();
                entry.latch().release_changed();
                self.unlocked(id, entry, frame);
                self.stats.faults.fetch_add(1, Relaxed);
                self.count_loaded(frame);
                self.stats.fault.record(begun.elapsed(), thread_number());
                Ok(true)
            }
            Err(error) => {
                entry.latch().release_unchanged();
                self.give_frame(frame);
                Err(error)
            }
        }
    }

    /// Starts an optimistic read if `id` is resident and not changing. Calls `in_middle` for a page
    /// in the middle tier. Does no I/O and waits for nothing, but without a maintenance thread a
    /// promotion may write pages.
    pub(crate) fn read_resident<'p, E: From<Retry>>(
        &'p self,
        id: PageId,
        in_middle: impl FnOnce(ReadGuard<'p>) -> Result<ReadGuard<'p>, E>,
    ) -> Result<Option<ReadGuard<'p>>, E> {
        if let Some(guard) = self.try_read(id) {
            if guard.is_in_middle() {
                return in_middle(guard).map(Some);
            }
            guard.mark();
            return Ok(Some(guard));
        }
        let entry = self.table.entry(id).ok_or(Retry::Missing(id))?;
        let seen = entry.latch().load();
        match entry.location() {
            Location::Nowhere if !seen.is_exclusive() && entry.latch().validate(seen) => {
                Err(Retry::Missing(id).into())
            }
            _ => Ok(None),
        }
    }

    pub(crate) fn set_mode(&self, mode: Mode) {
        self.is_background.store(mode == Mode::Background, Relaxed);
    }

    pub(crate) fn file(&self) -> &str {
        self.device.name()
    }

    pub(crate) fn segment_bytes(&self) -> u64 {
        self.space.geometry().segment_blocks * BLOCK_BYTES as u64
    }

    #[cfg(test)]
    pub(crate) fn limit_to_fill(&self, fill: f64) -> Result<()> {
        self.space.limit_to_fill(fill)
    }

    pub(crate) fn resizer(&self) -> Resizer<'_> {
        self.resizing.of(&self.tiers, &self.records, self.class(), self)
    }

    /// Recovery: gives frames to each class that ever had pages.
    pub(crate) fn use_classes_with_ids(&self) -> Result<()> {
        let ends = self.ids.lock().ends();
        SizeClass::all()
            .filter(|class| ends[class.index()] > 1)
            .try_for_each(|class| self.resizer().use_class(class))
    }

    pub(crate) fn page_sizes(&self) -> PageSizes {
        let mut sizes = PageSizes::one(self.class());
        self.frames.classes().for_each(|class| sizes.others[class.index()] = true);
        sizes
    }

    /// Frames of the class of `id`; of the own class if fewer.
    pub(crate) fn frames_least(&self, id: PageId) -> u32 {
        let classes = id.class().into_iter().chain([self.class()]);
        classes.map(|class| self.frames.count(class)).min().unwrap_or(0)
    }

    /// Looks up a record while its page is only in the store. The page held it at a moment during
    /// this call; the caller validates its pointer to the page again. No I/O, no waits.
    #[cold]
    pub(crate) fn lookup(&self, id: PageId, key: &[u8]) -> Option<Record> {
        if self.replacer.lent() == 0 {
            return None;
        }
        self.meanwhile();
        // This load is the moment. If the incarnation still equals the record's, the blocks held
        // one image since the record was copied.
        let Location::Store(mapped) = self.table.entry(id)?.location() else { return None };
        let source = Source::of_image(id, mapped, self.space.incarnation(mapped));
        let looked = self.records.find(&self.frames, &[source], key);
        let Looked::Found(record) = looked else { return None };
        #[cfg(test)]
        super::replacement_tests::touch(id);
        Some(record)
    }

    /// Looks up a record of `leaf`, seen in the middle tier. One found is of the version seen,
    /// which the page had until now. No I/O, no waits.
    #[cold]
    pub(crate) fn lookup_in_middle(&self, leaf: &ReadGuard<'_>, key: &[u8]) -> Result<Looked, Retry> {
        if self.replacer.lent() == 0 {
            return Ok(Looked::Unknown);
        }
        self.meanwhile();
        let (id, version) = (leaf.id(), Source::of_version(leaf.id(), leaf.version()));
        // The image first, its incarnation second, the version last: while it holds, no other
        // content has had this image.
        let image = leaf.image_seen().map(|mapped| (mapped, self.space.incarnation(mapped)));
        let looked = match image {
            Some((mapped, incarnation)) => {
                let image = Source::of_image(id, mapped, incarnation);
                self.records.find(&self.frames, &[version, image], key)
            }
            None => self.records.find(&self.frames, &[version], key),
        };
        if matches!(looked, Looked::Found(_)) {
            leaf.validate()?;
        }
        Ok(looked)
    }

    /// Inserts the result of a get of `leaf`, which was not in DRAM before. The caller holds no
    /// latch.
    #[cold]
    pub(crate) fn insert(
        &self,
        leaf: &ReadGuard<'_>,
        key: &[u8],
        timestamp: Timestamp,
        value: Option<&[u8]>,
    ) {
        if !self.records.takes(key, value) {
            return;
        }
        let (id, incarnation) = (leaf.id(), |mapped| self.space.incarnation(mapped));
        let source = match leaf.with_image(|mapped| Source::of_image(id, mapped, incarnation(mapped))) {
            Some(image) => image,
            // True for ever, whatever the page holds now.
            None if leaf.is_in_middle() => Source::of_version(id, leaf.version()),
            None => return,
        };
        // A read in place waits for no other thread.
        self.records.insert(&self.tiers, source, key, timestamp, value, !leaf.is_in_middle());
    }

    pub(crate) fn timestamp_now(&self) -> Timestamp {
        Timestamp(self.highest_timestamp.load(SeqCst))
    }
}

/// What [`Pool::check`] fails with.
#[cold]
#[inline(never)]
fn refusal(frames: &Frames, wal: &Wal) -> Result<()> {
    frames.check_process()?;
    wal.check()
}
