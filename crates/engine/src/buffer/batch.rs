//! Several misses at a time: the pages that one thread lacks, read together.
//!
//! A fault waits for one read, and a disk that serves sixty-four at once is idle for most of that time. Who knows of
//! several pages it will need ([`Pool::fault_many`]) has them read by one call of the device. The protocol is that
//! of a single fault, for each page:
//!
//! 1. a buffer for the batch, waited for with nothing held;
//! 2. frames: the first may be waited for, still with nothing held; the others are taken only if there are any. Whoever
//!    waits for a frame therefore holds none, and two batches cannot wait for each other's;
//! 3. the exclusive latch of each page at the version that was seen, and only tried for: a page that moved, or that
//!    somebody else is loading, is left out. Several latches are held then, but nothing is waited for except the disk;
//! 4. the reads, adjoining places as one;
//! 5. every image is held against what vouches for it, stored in its frame, and unlatched with a new version. A page
//!    whose read failed or whose image is damaged is unlatched as it was, its frame given back; the others stay.
//!
//! The pages of a batch may be of different sizes, and come to different tiers, and what is said of frames holds for the frames of each: of a batch that
//! lacks pages of two sizes only the very first frame is waited for.
//!
//! What a batch may take is bounded by its buffer, by an eighth of the frames of each class in each tier, and all batches together by
//! the buffers, which are part of the budget.
//!
//! A page comes into a frame here before anybody has looked at it, so the frame's header notes why
//! ([`Purpose`]). The first look takes the note away, and does not mark the page: read once, it goes at the hand's next
//! visit like any other. What still has its note when it is evicted was read ahead in vain. A page on probation that will be looked
//! at has one visit of the hand for nothing: where several threads read and few frames are on probation, the hand may come
//! round before the look does, and the page would have to be read again.

#[cfg(test)]
mod tests;

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::{Condvar, Mutex};
use terrace_block::{AlignedBuffer, Read};

use super::guard::ReadGuard;
use super::pool::{Pool, Stop, class_of_page};
use super::stripe::{ByStripe, Stripe, stripe_index_of, stripe_of};
use super::table::{Entry, Location};
use crate::error::{Error, Result};
use crate::ids::{PageId, SizeClass};
use crate::store::place::{Extent, Mapped};

/// The most pages of one batch: what a disk serves at once, and a hundred more bring nothing.
pub(crate) const BATCH_PAGES_MAX: usize = 64;
/// The most batches under way at the same time.
pub(crate) const BATCHES_MAX: usize = 4;
/// Bytes of a batch from which on several batches are worth more than longer ones: a disk is as fast with two reads of so many
/// at a time as with any.
const BATCH_BYTES_ENOUGH: usize = 2 << 20;
/// A batch takes at most this share of the frames.
const FRAMES_SHARE: usize = 8;

/// Why a page is read before anybody looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It will be looked at.
    Wanted,
    /// It may be.
    Ahead,
    /// It was wanted, and the hand has been there since.
    Overdue,
}

impl Purpose {
    /// As a frame's header has it; zero is none.
    pub(super) fn encode(purpose: Option<Purpose>) -> u64 {
        match purpose {
            None => 0,
            Some(Purpose::Wanted) => 1,
            Some(Purpose::Ahead) => 2,
            Some(Purpose::Overdue) => 3,
        }
    }

    pub(super) fn decode(word: u64) -> Option<Purpose> {
        match word {
            0 => None,
            1 => Some(Purpose::Wanted),
            2 => Some(Purpose::Ahead),
            _ => Some(Purpose::Overdue),
        }
    }
}

/// The buffers that batches read into, made when first needed.
#[derive(Debug)]
pub(crate) struct Batches {
    /// Bytes of one buffer.
    bytes: usize,
    /// Buffers there may be.
    most: usize,
    buffers: Mutex<Buffers>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct Buffers {
    idle: Vec<AlignedBuffer>,
    made: usize,
}

impl Batches {
    /// Buffers for batches of a pool that has `bytes` bytes of memory for all of them, and pages of `page_bytes`; none shorter than
    /// `least`.
    pub(super) fn new(bytes: usize, page_bytes: usize, least: usize) -> Self {
        // Two at the least, and more of them where one holds as many pages as a batch has, or is long enough.
        let enough = (BATCH_PAGES_MAX * page_bytes).min(BATCH_BYTES_ENOUGH);
        let each = (bytes / 2).min(enough.max(bytes / BATCHES_MAX)).max(least);
        let each = (each / page_bytes).max(1) * page_bytes;
        Batches {
            bytes: each,
            most: (bytes / each).clamp(1, BATCHES_MAX),
            buffers: Mutex::default(),
            returned: Condvar::new(),
        }
    }

    /// Bytes of one buffer.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A buffer lent to a batch.
pub(super) struct Lent<'p> {
    batches: &'p Batches,
    buffer: Option<AlignedBuffer>,
}

impl std::ops::Deref for Lent<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.as_ref().expect("lent until dropped")
    }
}

impl std::ops::DerefMut for Lent<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut().expect("lent until dropped")
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.batches.buffers.lock().idle.extend(self.buffer.take());
        self.batches.returned.notify_one();
    }
}

/// The frames that a batch is to have.
struct Wanted {
    /// The first page, and where it is counted.
    first: PageId,
    first_stripe: Stripe,
    counts: ByStripe<usize>,
    /// Bytes of the batch's buffer to be left for the largest page that read buffers have no room for, to be decompressed in.
    reserve: usize,
}

impl Wanted {
    fn count(&mut self, stripe: Stripe, reserve: usize) {
        self.counts[stripe.index()] += 1;
        self.reserve = self.reserve.max(reserve);
    }
}

/// Bytes of a batch's buffer that the page `id` takes, and those that it is decompressed in, if it is and read buffers have no
/// room for it.
fn room_for(id: PageId, mapped: Mapped) -> (usize, usize) {
    let class = class_of_page(id);
    let whole = mapped.extent().is_some_and(|extent| extent.bytes() == class.page_bytes());
    (class.page_bytes(), if class.is_for_values() && !whole { class.page_bytes() } else { 0 })
}

/// A page that is being brought in: its exclusive latch is held.
struct Coming<'p> {
    /// Which of the pages asked for.
    index: usize,
    id: PageId,
    entry: Entry<'p>,
    mapped: Mapped,
    extent: Extent,
    frame: u32,
}

impl Coming<'_> {
    fn class(&self) -> SizeClass {
        class_of_page(self.id)
    }
}

/// Reads that are under way, counted as long as this lives.
pub(super) struct InFlight<'p>(&'p Pool, u64);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.stats.reads_in_flight.fetch_sub(self.1, Relaxed);
    }
}

impl Pool {
    /// The most pages of `class` that one batch can bring in.
    pub(crate) fn batch_pages(&self, class: SizeClass) -> usize {
        let room = (self.batches.bytes / class.page_bytes()).min(BATCH_PAGES_MAX);
        room.min(self.page_frames(class) as usize / FRAMES_SHARE)
    }

    /// Pages brought in from the store so far. Moves only when somebody misses a page.
    pub(crate) fn misses(&self) -> u64 {
        self.stats.faults.load(Relaxed)
    }

    /// Starts an optimistic read of `id` if it is in a frame and nobody has it latched; `None` if not. Does no I/O and
    /// waits for nothing, unless there is no thread for the upkeep: then bringing the page from the middle tier to DRAM may have
    /// others written.
    pub(crate) fn read_resident(&self, id: PageId) -> Result<Option<ReadGuard<'_>>, Stop> {
        if let Some(guard) = self.glance(id) {
            if guard.is_in_middle() {
                return self.settle(guard, false).map(Some);
            }
            guard.mark();
            return Ok(Some(guard));
        }
        let entry = self.table.entry(id).ok_or(Stop::Missing(id))?;
        let seen = entry.latch().load();
        match entry.location() {
            Location::Nowhere if !seen.is_exclusive() && entry.latch().validate(seen) => {
                Err(Stop::Missing(id))
            }
            _ => Ok(None),
        }
    }

    /// Brings those of `ids` into frames that are in the store only, as many as one batch takes; how many it brought. What
    /// is wrong with a page is told to `failed`, with its index in `ids`; the other pages are not touched by that. A page
    /// that is latched, or that moves, is left out. The caller holds no latch.
    ///
    /// Reading ahead never waits for a buffer or a frame: it brings fewer pages then, or none.
    ///
    /// # Errors
    /// That no frame could be had. Nothing has been brought in then.
    pub(crate) fn fault_many(
        &self,
        ids: &[PageId],
        purpose: Purpose,
        failed: &mut dyn FnMut(usize, Error),
    ) -> Result<usize> {
        let absent = |id: PageId| {
            let entry = self.table.entry(id)?;
            let seen = entry.latch().load();
            match entry.location() {
                Location::Store(mapped) if !seen.is_exclusive() => Some((entry, seen, mapped)),
                _ => None,
            }
        };
        // Asked again below, when the frames are there; here so that nothing is taken for pages that are in memory.
        let away = |&id: &PageId| absent(id).map(|(_, _, mapped)| (id, mapped));
        let wanted = self.count_wanted(ids.iter().filter_map(away));
        let Some(mut wanted) = wanted else { return Ok(0) };
        // Pages that there is no memory to read together are read one by one.
        let Some(mut lent) = self.take_buffer(purpose).unwrap_or_default() else { return Ok(0) };
        let mut frames = self.take_frames(&mut wanted, purpose)?;
        let mut coming: Vec<Coming<'_>> = Vec::with_capacity(frames.iter().map(Vec::len).sum());
        for (index, &id) in ids.iter().enumerate() {
            if frames.iter().all(Vec::is_empty) {
                break;
            }
            let Some((entry, seen, mapped)) = absent(id) else { continue };
            let class = class_of_page(id);
            // In the tier that it is to come to, or in the other if there is a frame left.
            let stripes = [self.stripe_for_load(id), Stripe::middle(class), class.into()];
            let stripe = stripes.into_iter().find(|stripe| !frames[stripe.index()].is_empty());
            // It may have been written anew since it was counted, and be compressed now.
            let has_room = room_for(id, mapped).1 <= wanted.reserve;
            if let Some(stripe) = stripe
                && has_room
                && entry.latch().try_exclusive(seen)
            {
                // The version held since `seen`, so the location is still the one that was read.
                let extent = mapped.extent().expect("only pages with an image are read");
                let frame = frames[stripe.index()].pop().expect("not empty");
                coming.push(Coming { index, id, entry, mapped, extent, frame });
            }
        }
        frames.into_iter().flatten().for_each(|frame| self.give_frame(frame));
        if coming.is_empty() {
            return Ok(0);
        }
        coming.sort_unstable_by_key(|page| page.extent);
        let housed: Vec<_> = coming.iter().map(|page| (page.id, page.frame)).collect();
        if let Err(error) = self.house(&housed) {
            for page in coming {
                page.entry.latch().release_unchanged();
                self.give_frame(page.frame);
            }
            return Err(error);
        }
        self.enter_queues(&coming);
        let room = lent.len() - wanted.reserve;
        let (mut rest, long_spare) = lent.split_at_mut(room);
        let reads = self.read_runs(&coming, rest);
        let mut spare = self.read_buffer();
        let mut brought = 0;
        for (page, read) in coming.into_iter().zip(reads) {
            let (image, behind) = rest.split_at_mut(page.extent.bytes());
            rest = behind;
            let read = read.unwrap_or_else(|| self.read_places(&*self.device, page.extent, image));
            let spare = if page.class().is_for_values() { &mut *long_spare } else { &mut *spare };
            let content = read
                .and_then(|()| self.vouch(page.id, page.mapped, image))
                .and_then(|()| self.unpack(page.id, page.mapped, image, spare));
            match content {
                Ok(content) => {
                    self.fill(page.id, page.frame, content);
                    self.settle_in_frame(page.id, page.entry, page.frame, page.mapped);
                    self.frames.header(page.frame).set_purpose(Some(purpose));
                    page.entry.latch().unmark();
                    page.entry.latch().release_changed();
                    self.unlocked(page.id, page.entry, page.frame);
                    self.count_loaded(page.frame);
                    brought += 1;
                }
                Err(error) => {
                    self.evacuate(&[(page.id, page.frame)]);
                    page.entry.latch().release_unchanged();
                    self.give_frame(page.frame);
                    failed(page.index, error);
                }
            }
        }
        self.stats.faults.fetch_add(brought as u64, Relaxed);
        if purpose == Purpose::Ahead {
            self.stats.ahead_pages.fetch_add(brought as u64, Relaxed);
        }
        Ok(brought)
    }

    /// How many frames of each class a batch takes for the first of these pages, as many as it brings in, and of which class
    /// the first is; none if there are no pages.
    fn count_wanted(&self, mut away: impl Iterator<Item = (PageId, Mapped)>) -> Option<Wanted> {
        let (first, mapped) = away.next()?;
        let first_stripe = self.stripe_for_load(first);
        let mut wanted = Wanted { first, first_stripe, counts: [0; _], reserve: 0 };
        let (mut bytes, reserve) = room_for(first, mapped);
        wanted.count(first_stripe, reserve);
        let mut pages = 1;
        for (id, mapped) in away {
            let (stripe, class) = (self.stripe_for_load(id), class_of_page(id));
            if wanted.counts[stripe.index()] < self.batch_pages(class) {
                let (page, reserve) = room_for(id, mapped);
                bytes += page;
                pages += 1;
                if bytes + wanted.reserve.max(reserve) > self.batches.bytes || pages > BATCH_PAGES_MAX {
                    break;
                }
                wanted.count(stripe, reserve);
            }
        }
        Some(wanted)
    }

    /// Puts the frames of `coming` into the queues that their pages belong in.
    fn enter_queues(&self, coming: &[Coming<'_>]) {
        for stripe in self.frames.stripes() {
            let in_stripe = || coming.iter().filter(|page| stripe_of(page.frame) == stripe);
            if in_stripe().next().is_none() {
                continue;
            }
            let mut free = self.free(stripe).lock();
            let known = in_stripe().filter(|page| free.queues.enter(&self.frames, page.frame, page.id));
            known.for_each(|_| self.missed(stripe.class));
        }
    }

    /// Reads the images of `pages`, which are sorted by place, one after the other into `buffer`; says of each what became
    /// of its read. Places that adjoin are read as one: if that fails, it says nothing about each of its pages, `None`,
    /// and they are to be read one by one.
    fn read_runs(&self, pages: &[Coming<'_>], buffer: &mut [u8]) -> Vec<Option<Result<()>>> {
        let mut reads: Vec<Read<'_>> = Vec::with_capacity(pages.len());
        let mut counts = Vec::with_capacity(pages.len());
        let mut rest = buffer;
        for run in pages.chunk_by(|page, next| page.extent.end() == next.extent.first) {
            let bytes = run.iter().map(|page| page.extent.bytes()).sum();
            let (images, behind) = rest.split_at_mut(bytes);
            reads.push(Read::new(run[0].extent.offset(), images));
            counts.push(run.len());
            rest = behind;
        }
        let in_flight = self.reads_in_flight(pages.len());
        match &self.cache {
            // Pages that adjoin are one read, and each is a request of its own to the cache.
            Some(cache) => {
                let starts: Vec<u64> = pages.iter().map(|page| page.extent.offset()).collect();
                cache.read_batch_of(&mut reads, &starts);
            }
            None => self.device.read_batch(&mut reads),
        }
        drop(in_flight);
        self.stats.batches.fetch_add(1, Relaxed);
        self.stats.batched_pages.fetch_add(pages.len() as u64, Relaxed);
        self.stats.count_read(pages.len(), pages.iter().map(|page| page.extent.bytes()).sum());
        let mut outcomes = Vec::with_capacity(pages.len());
        for (read, pages) in reads.into_iter().zip(counts) {
            match read.result {
                Ok(()) => outcomes.extend((0..pages).map(|_| Some(Ok(())))),
                Err(source) if pages == 1 => {
                    outcomes.push(Some(Err(Error::io(
                        "read",
                        self.device.name(),
                        Some(read.offset),
                        source,
                    ))));
                }
                Err(_) => outcomes.extend((0..pages).map(|_| None)),
            }
        }
        outcomes
    }

    /// Counts `pages` reads as under way until the answer is dropped.
    pub(super) fn reads_in_flight(&self, pages: usize) -> InFlight<'_> {
        self.stats.reads_in_flight.fetch_add(pages as u64, Relaxed);
        InFlight(self, pages as u64)
    }

    /// A buffer for a batch. Reading ahead does not wait for one.
    fn take_buffer(&self, purpose: Purpose) -> io::Result<Option<Lent<'_>>> {
        let batches = &self.batches;
        let mut buffers = batches.buffers.lock();
        loop {
            if let Some(buffer) = buffers.idle.pop() {
                return Ok(Some(Lent { batches, buffer: Some(buffer) }));
            }
            if buffers.made < batches.most {
                let buffer = AlignedBuffer::try_zeroed(batches.bytes)?;
                buffers.made += 1;
                return Ok(Some(Lent { batches, buffer: Some(buffer) }));
            }
            if purpose == Purpose::Ahead {
                return Ok(None);
            }
            batches.returned.wait(&mut buffers);
        }
    }

    /// One of the buffers of batches, for one large image. The caller holds no latch, no frame and no other of them: who has one
    /// may wait for a frame.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub(super) fn batch_buffer(&self) -> Result<Lent<'_>> {
        let bytes = self.batches.bytes as u64;
        let taken = self.take_buffer(Purpose::Wanted);
        let taken = taken.map_err(|source| Error::Memory { bytes, what: "reading a large page", source })?;
        Ok(taken.expect("who wants a buffer waits for it"))
    }

    /// Up to as many frames as are `wanted`, that hold nothing: the first of them all, if the pages are wanted, as a fault takes
    /// it, the others only if the sweep finds them at once. What the middle tier does not have, DRAM is asked for, as by a fault.
    fn take_frames(&self, wanted: &mut Wanted, purpose: Purpose) -> Result<ByStripe<Vec<u32>>> {
        let mut taken: ByStripe<Vec<u32>> = Default::default();
        if purpose == Purpose::Wanted {
            let frame = self.frame_for_load(wanted.first)?;
            // It may be one in DRAM for a page that was to come to the middle tier. There is room in the buffer for as many pages
            // as were counted, and no more.
            wanted.counts[wanted.first_stripe.index()] -= 1;
            wanted.counts[stripe_index_of(frame)] += 1;
            taken[stripe_index_of(frame)].push(frame);
        }
        let take = |stripe: Stripe, most: usize, taken: &mut ByStripe<Vec<u32>>| {
            let frames = &mut taken[stripe.index()];
            while frames.len() < most && self.try_take_frames(stripe, most, frames) {}
            frames.len()
        };
        if let Some(class) = self.middle.as_ref().map(|middle| middle.class) {
            let stripe = Stripe::middle(class);
            let (wants, share) =
                (wanted.counts[stripe.index()], self.page_frames(stripe) as usize / FRAMES_SHARE);
            let lacks = wants - take(stripe, wants.min(share.max(1)), &mut taken).min(wants);
            let near = &mut wanted.counts[Stripe::from(class).index()];
            *near = (*near + lacks).min(self.batch_pages(class).max(*near));
        }
        for class in SizeClass::all() {
            let stripe = Stripe::from(class);
            take(stripe, wanted.counts[stripe.index()], &mut taken);
        }
        Ok(taken)
    }

    /// Takes away the note that a page was read for some purpose; whether there was one.
    #[inline(never)]
    pub(super) fn first_look(&self, frame: u32) -> bool {
        let purpose = self.frames.header(frame).take_purpose();
        if purpose == Some(Purpose::Ahead) {
            self.stats.ahead_used.fetch_add(1, Relaxed);
        }
        purpose.is_some()
    }
}
