//! Batches of faults: one thread's missing pages, read together.
//!
//! A single read leaves a disk mostly idle, so [`fault_many`] reads several pages by one device
//! call:
//!
//! 1. Take a buffer, holding nothing.
//! 2. Take frames. Only the first is waited for, holding no other, so two batches never wait for
//!    each other's frames.
//! 3. Try to latch each page at the version seen; skip those that moved or are being loaded. From
//!    here on, only the disk is waited for.
//! 4. Populate the frames and read, adjoining images as one.
//! 5. Verify and store each page, and unlatch with a new version. A failed page is unlatched
//!    unchanged and its frame freed; others stay.
//!
//! A batch takes one buffer, and at most an eighth of the frames per class and tier.
//!
//! Headers note why a page was read ([`ReadReason`]). The first access clears the note and sets no
//! mark: the page was read once. A page evicted earlier was read in vain. The sweep spares a wanted
//! page on probation once, so that the access can come first.

#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering::Relaxed;

use terrace_io::Read;

use super::buffer_pool::Pool;
use super::buffers::BATCH_PAGES_MAX;
use super::frames::ReadReason;
use super::latch::Word;
use super::page_table::{Entry, Location};
use super::partition::{ByPartition, Partition, Tier, partition_index_of, partition_of};
use super::resident::class_of_page;
use crate::error::{Error, Result};
use crate::ids::{PageId, SizeClass};
use crate::store::mapping_word::{Extent, MappingWord};

/// A batch's share of the frames, as a divisor.
const FRAMES_SHARE: usize = 8;

struct Wanted {
    first: PageId,
    first_partition: Partition,
    counts: ByPartition<usize>,
    /// Bytes for decompressing the largest page that read buffers cannot hold.
    reserve: usize,
}

impl Wanted {
    fn count(&mut self, partition: Partition, reserve: usize) {
        self.counts[partition.index()] += 1;
        self.reserve = self.reserve.max(reserve);
    }
}

/// Bytes for a page, and for decompression beyond the read buffers.
fn room_for(id: PageId, mapped: MappingWord) -> (usize, usize) {
    let class = class_of_page(id);
    let whole = mapped.extent().is_some_and(|extent| extent.bytes() == class.page_bytes());
    (class.page_bytes(), if class.is_for_values() && !whole { class.page_bytes() } else { 0 })
}

struct Coming<'p> {
    index: usize,
    id: PageId,
    entry: Entry<'p>,
    mapped: MappingWord,
    extent: Extent,
    frame: u32,
}

impl Coming<'_> {
    fn class(&self) -> SizeClass {
        class_of_page(self.id)
    }
}

pub(crate) fn batch_pages(pool: &Pool, class: SizeClass) -> usize {
    let room = (pool.images.batches.bytes() / class.page_bytes()).min(BATCH_PAGES_MAX);
    room.min(pool.page_frames(class) as usize / FRAMES_SHARE)
}

/// Loads a batch of those `ids` that are only in the store. Returns their number. Skips latched and
/// moving pages. `failed` gets errors with the index of the page; other pages still load. The
/// caller holds no latch. Reading ahead waits for no buffer and no frame.
///
/// # Errors
/// If there is no frame or no memory; then no page was loaded.
pub(crate) fn fault_many(
    pool: &Pool,
    ids: &[PageId],
    read_reason: ReadReason,
    failed: &mut dyn FnMut(usize, Error),
) -> Result<usize> {
    Batch { pool }.fault_many(ids, read_reason, failed)
}

#[derive(Clone, Copy)]
struct Batch<'p> {
    pool: &'p Pool,
}

impl<'p> Batch<'p> {
    fn fault_many(
        self,
        ids: &[PageId],
        read_reason: ReadReason,
        failed: &mut dyn FnMut(usize, Error),
    ) -> Result<usize> {
        self.pool.frames.check_process()?;
        // Here so that resident pages take no frames. Checked again when latching.
        let away = |&id: &PageId| self.absent(id).map(|(_, _, mapped)| (id, mapped));
        let wanted = self.count_wanted(ids.iter().filter_map(away));
        let Some(mut wanted) = wanted else { return Ok(0) };
        // Without a buffer, pages are read one by one.
        let Some(mut lent) = self.pool.images.batches.take(read_reason).unwrap_or_default() else {
            return Ok(0);
        };
        let mut frames = self.take_frames(&mut wanted, read_reason)?;
        let mut coming = self.latch_absent(ids, &mut frames, wanted.reserve);
        frames.into_iter().flatten().for_each(|frame| self.pool.tiers.give_frame(frame));
        if coming.is_empty() {
            return Ok(0);
        }
        coming.sort_unstable_by_key(|page| page.extent);
        let populated: Vec<_> = coming.iter().map(|page| (page.id, page.frame)).collect();
        if let Err(error) = self.pool.tiers.populate(&populated) {
            for page in coming {
                page.entry.latch().release_unchanged();
                self.pool.tiers.give_frame(page.frame);
            }
            return Err(error);
        }
        self.enter_queues(&coming);
        let room = lent.len() - wanted.reserve;
        let (mut rest, long_spare) = lent.split_at_mut(room);
        let reads = self.read_runs(&coming, rest);
        let mut spare = self.pool.images.read_buffer(self.pool.frames.largest());
        let mut brought = 0;
        for (page, read) in coming.into_iter().zip(reads) {
            let (image, behind) = rest.split_at_mut(page.extent.bytes());
            rest = behind;
            let read =
                read.unwrap_or_else(|| self.pool.images.read_blocks(&self.pool.stats, page.extent, image));
            let spare = if page.class().is_for_values() { &mut *long_spare } else { &mut *spare };
            let content = read
                .and_then(|()| self.pool.images.verify_image(page.id, page.mapped, image))
                .and_then(|()| self.pool.images.unpack(page.id, page.mapped, image, spare));
            match content {
                Ok(content) => {
                    self.finish(&page, read_reason, content);
                    brought += 1;
                }
                Err(error) => {
                    self.pool.tiers.discard(&[(page.id, page.frame)]);
                    page.entry.latch().release_unchanged();
                    self.pool.tiers.give_frame(page.frame);
                    failed(page.index, error);
                }
            }
        }
        self.pool.tiers.stats.faults.fetch_add(brought as u64, Relaxed);
        if read_reason == ReadReason::Ahead {
            self.pool.tiers.stats.ahead_pages.fetch_add(brought as u64, Relaxed);
        }
        Ok(brought)
    }

    /// None unless the page is only in the store and not changing.
    fn absent(self, id: PageId) -> Option<(Entry<'p>, Word, MappingWord)> {
        let entry = self.pool.tiers.table.entry(id)?;
        let seen = entry.latch().load();
        match entry.location() {
            Location::Store(mapped) if !seen.is_exclusive() => Some((entry, seen, mapped)),
            _ => None,
        }
    }

    fn latch_absent(
        self,
        ids: &[PageId],
        frames: &mut ByPartition<Vec<u32>>,
        reserve: usize,
    ) -> Vec<Coming<'p>> {
        let mut coming: Vec<Coming<'p>> = Vec::with_capacity(frames.iter().map(Vec::len).sum());
        for (index, &id) in ids.iter().enumerate() {
            if frames.iter().all(Vec::is_empty) {
                break;
            }
            let Some((entry, seen, mapped)) = self.absent(id) else { continue };
            let class = class_of_page(id);
            // The tier of the policy, or one with a frame left.
            let partitions = [self.pool.partition_for_load(id), Partition::middle(class), class.into()];
            let partition = partitions.into_iter().find(|partition| !frames[partition.index()].is_empty());
            // A newer image may be compressed.
            let has_room = room_for(id, mapped).1 <= reserve;
            if let Some(partition) = partition
                && has_room
                && entry.latch().try_exclusive(seen)
            {
                // The version held since `seen`, so the location did too.
                let extent = mapped.extent().expect("only pages with an image are read");
                let frame = frames[partition.index()].pop().expect("not empty");
                coming.push(Coming { index, id, entry, mapped, extent, frame });
            }
        }
        coming
    }

    fn finish(self, page: &Coming<'_>, read_reason: ReadReason, content: &[u8]) {
        self.pool.tiers.fill(page.id, page.frame, content);
        self.pool.tiers.bind_to_frame(page.id, page.entry, page.frame, page.mapped);
        self.pool.tiers.frames.header(page.frame).set_read_reason(Some(read_reason));
        page.entry.latch().unmark();
        page.entry.latch().release_changed();
        self.pool.tiers.unlocked(page.id, page.entry, page.frame);
        self.pool.tiers.count_loaded(page.frame);
    }

    fn count_wanted(self, mut away: impl Iterator<Item = (PageId, MappingWord)>) -> Option<Wanted> {
        let (first, mapped) = away.next()?;
        let first_partition = self.pool.partition_for_load(first);
        let mut wanted = Wanted { first, first_partition, counts: [0; _], reserve: 0 };
        let (mut bytes, reserve) = room_for(first, mapped);
        wanted.count(first_partition, reserve);
        let mut pages = 1;
        for (id, mapped) in away {
            let (partition, class) = (self.pool.partition_for_load(id), class_of_page(id));
            if wanted.counts[partition.index()] < batch_pages(self.pool, class) {
                let (page, reserve) = room_for(id, mapped);
                bytes += page;
                pages += 1;
                if bytes + wanted.reserve.max(reserve) > self.pool.images.batches.bytes
                    || pages > BATCH_PAGES_MAX
                {
                    break;
                }
                wanted.count(partition, reserve);
            }
        }
        Some(wanted)
    }

    fn enter_queues(self, coming: &[Coming<'_>]) {
        for partition in self.pool.tiers.frames.partitions() {
            let in_partition = || coming.iter().filter(|page| partition_of(page.frame) == partition);
            if in_partition().next().is_none() {
                continue;
            }
            let mut free = self.pool.tiers.replacer.free(partition).lock();
            let known =
                in_partition().filter(|page| free.queues.enter(&self.pool.tiers.frames, page.frame, page.id));
            known.for_each(|_| self.pool.missed(partition.class));
        }
    }

    /// Reads images, sorted by extent, into `buffer`. If a read of several fails, each gets `None`,
    /// to be read by itself.
    fn read_runs(self, pages: &[Coming<'_>], buffer: &mut [u8]) -> Vec<Option<Result<()>>> {
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
        let starts: Vec<u64> = pages.iter().map(|page| page.extent.offset()).collect();
        self.pool.images.read_batch(&self.pool.stats, &mut reads, &starts);
        self.pool.tiers.stats.batches.fetch_add(1, Relaxed);
        self.pool.tiers.stats.batched_pages.fetch_add(pages.len() as u64, Relaxed);
        self.pool.tiers.stats.count_read(pages.len(), pages.iter().map(|page| page.extent.bytes()).sum());
        let mut outcomes = Vec::with_capacity(pages.len());
        for (read, pages) in reads.into_iter().zip(counts) {
            match read.result {
                Ok(()) => outcomes.extend((0..pages).map(|_| Some(Ok(())))),
                Err(source) if pages == 1 => {
                    outcomes.push(Some(Err(Error::io(
                        "read",
                        self.pool.images.file(),
                        Some(read.offset),
                        source,
                    ))));
                }
                Err(_) => outcomes.extend((0..pages).map(|_| None)),
            }
        }
        outcomes
    }

    /// Takes up to `wanted` frames. Waits only for the first of wanted pages. DRAM replaces missing
    /// middle frames.
    fn take_frames(self, wanted: &mut Wanted, read_reason: ReadReason) -> Result<ByPartition<Vec<u32>>> {
        let mut taken: ByPartition<Vec<u32>> = Default::default();
        if read_reason == ReadReason::Wanted {
            let frame = self.pool.frame_for_load(wanted.first)?;
            // It may be in DRAM instead of the middle tier. The buffer has room for counted pages
            // only.
            wanted.counts[wanted.first_partition.index()] -= 1;
            wanted.counts[partition_index_of(frame)] += 1;
            taken[partition_index_of(frame)].push(frame);
        }
        let take = |partition: Partition, most: usize, taken: &mut ByPartition<Vec<u32>>| {
            let frames = &mut taken[partition.index()];
            while frames.len() < most && self.pool.tiers.try_take_frames(partition, most, frames) {}
            frames.len()
        };
        let in_middle = |partition: &Partition| partition.tier == Tier::Middle;
        for partition in self.pool.tiers.frames.partitions().filter(in_middle) {
            let class = partition.class;
            let (wants, share) = (
                wanted.counts[partition.index()],
                self.pool.tiers.page_frames(partition) as usize / FRAMES_SHARE,
            );
            let lacks = wants - take(partition, wants.min(share.max(1)), &mut taken).min(wants);
            let near = &mut wanted.counts[Partition::from(class).index()];
            *near = (*near + lacks).min(batch_pages(self.pool, class).max(*near));
        }
        for class in SizeClass::all() {
            let partition = Partition::from(class);
            take(partition, wanted.counts[partition.index()], &mut taken);
        }
        Ok(taken)
    }
}
