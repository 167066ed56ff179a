//! The continuous checkpoint: oldest dirty pages first, then chunks, directory and superblock, so that the log can be
//! cut and stays within its maximum.
//!
//! The cut is the lowest LSN recovery may need (durability, rule 11): the oldest recLSN, the first LSN of anything in
//! flight, the oldest record a chunk or the directory lacks, and never past the durable end. The log's space below
//! the cut is used again only after the superblock that names the cut is synced.

use std::sync::atomic::Ordering::Relaxed;

use super::mapping::Part;
use super::pool::Pool;
use super::stats::Cause;
use super::table::Location;
use super::upkeep::Upkeep;
use super::write_back::SPARE_SEGMENTS;
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId};
use crate::planted::{Bug, planted};
use crate::store::page::{self, HEADER_BYTES, Kind};
use crate::store::place::{Extent, Mapped};
use crate::store::space::Stream;
use crate::wal::{Appended, ChunkEntry, Class, RecordBuilder};

/// The checkpoint works while the log holds more than one part in this many of its capacity.
const LOG_SHARE: u64 = 2;
/// The superblock is written when the cut has moved by one part in this many of the capacity.
const CUT_SHARE: u64 = 16;
/// Attempts at pages that were latched each time.
const ATTEMPTS: u32 = 100;

impl Pool {
    /// One step: brings the log back to half its capacity, if it is above.
    pub(super) fn checkpoint_step(&self, upkeep: &mut Upkeep) -> Result<()> {
        let capacity = self.log_capacity;
        let (tail, cut) = (self.wal.tail().0, self.wal.cut().0);
        if tail - cut <= capacity / LOG_SHARE {
            return Ok(());
        }
        // Some way past half, so that a step is worth its superblock.
        let keep = capacity / LOG_SHARE - capacity / CUT_SHARE;
        self.checkpoint_to(upkeep, Lsn(tail - keep))
    }

    /// Checkpoints now: everything if `all`, otherwise what holds back the older half of the log.
    pub(crate) fn checkpoint_now(&self, all: bool) -> Result<()> {
        let mut upkeep = self.upkeep.lock();
        self.wal.flush_to(self.wal.tail())?;
        let tail = self.wal.tail().0;
        let target = if all { tail } else { tail - (tail - self.wal.cut().0) / 2 };
        upkeep.hurried = true;
        let outcome =
            self.checkpoint_to(&mut upkeep, Lsn(target)).and_then(|()| self.clean_segments(&mut upkeep));
        upkeep.hurried = false;
        drop(upkeep);
        self.tend_cache();
        outcome
    }

    /// Writes everything that is dirty since before `target`, then cuts the log as far as that allows.
    pub(super) fn checkpoint_to(&self, upkeep: &mut Upkeep, target: Lsn) -> Result<()> {
        upkeep.cause = Cause::Checkpoint;
        self.keep_log_for_upkeep(upkeep);
        let mut pages = 0;
        for _ in 0..ATTEMPTS {
            let due = self.pages_before(target);
            let written = self.write_back(upkeep, &due)?;
            pages += written;
            if written == due.len() {
                break;
            }
            std::thread::yield_now();
        }
        let mut current = self.absorb(upkeep);
        self.meanwhile();
        let due = upkeep.mapping.chunks().dirty_before(target);
        for batch in due.chunks(self.staging_table_images(upkeep)) {
            // What the old images of chunks leave behind is scattered over many segments.
            if self.space.free_segments() < SPARE_SEGMENTS {
                let places = batch.len() as u64 * self.table_image_places();
                self.make_room(upkeep, places)?;
                current = self.absorb(upkeep);
                let left = upkeep.left_alone.places(&self.space);
                if left > 0 && self.space.room() < left + places {
                    let what = "what is left belongs to pages that are in use, until these can be moved";
                    return Err(Error::Full { what: what.into() });
                }
            }
            self.write_chunks(upkeep, batch, current)?;
        }
        tracing::debug!(%target, pages, chunks = due.len(), "checkpoint");
        self.write_superblock(upkeep, target)
    }

    /// Pages in frames that are dirty since before `target`, in the order of their ids.
    fn pages_before(&self, target: Lsn) -> Vec<PageId> {
        // As for the cut: one that goes from frame to frame meanwhile would be left out.
        let moving = self.moving.write();
        let mut due: Vec<PageId> = self
            .frames
            .all()
            .map(|frame| self.frames.header(frame))
            .filter(|header| !header.recovery().is_none() && header.recovery() < target)
            .map(|header| header.page())
            .filter(|page| !page.is_none())
            .collect();
        drop(moving);
        due.sort_unstable();
        due
    }

    /// Writes images of chunks, current to `current`, and logs where they are.
    pub(super) fn write_chunks(&self, upkeep: &mut Upkeep, names: &[PageId], current: Lsn) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let extents = self.places_of_table(names.len())?;
        let (appended, images) =
            self.write_chunk_images(upkeep, names, current, &extents).inspect_err(|_| {
                if !planted(Bug::ChunkInPlace) {
                    extents.iter().for_each(|&extent| self.free_places(extent));
                }
            })?;
        for (&name, image) in names.iter().zip(images) {
            let chunk = upkeep.mapping.chunks_mut().entry(name);
            let old = std::mem::replace(&mut chunk.image, image);
            chunk.dirty = Lsn::NONE;
            upkeep.mapping.dirty_block_of(name, appended.lsn);
            if let Some(extent) = old.extent().filter(|_| old.extent() != image.extent()) {
                self.free_places(extent);
            }
        }
        self.stats.mapping_images.fetch_add(names.len() as u64, Relaxed);
        Ok(())
    }

    /// Places for so many images of the page table, which are as long as a page.
    fn places_of_table(&self, images: usize) -> Result<Vec<Extent>> {
        self.space.allocate_or_grow(&vec![self.table_image_places(); images], 0, Stream::Changed)
    }

    /// Writes the images of `write_chunks` into `extents`, and logs durably where they are.
    fn write_chunk_images(
        &self,
        upkeep: &mut Upkeep,
        names: &[PageId],
        current: Lsn,
        extents: &[Extent],
    ) -> Result<(Appended, Vec<Mapped>)> {
        let mut record = RecordBuilder::chunk();
        let mut images = Vec::with_capacity(names.len());
        for (slot, (&name, &extent)) in names.iter().zip(extents).enumerate() {
            let checksum = self.stage_chunk(upkeep, slot, name, current);
            let old = upkeep.mapping.chunks_mut().entry(name).image;
            let extent = match old.extent() {
                Some(old) if planted(Bug::ChunkInPlace) => {
                    self.overwrite_chunk(upkeep, slot, old)?;
                    self.free_places(extent);
                    old
                }
                _ => extent,
            };
            record.chunk_entry(ChunkEntry { chunk: name, extent, current_lsn: current, check: checksum });
            images.push(Mapped::at(extent, checksum));
        }
        self.meanwhile();
        self.write_staged(upkeep, extents)?;
        self.sync_store()?;
        self.meanwhile();
        let mut reservation = self.wal.reserve(record.len() as u64, Class::System).ok_or_else(|| {
            Error::Poisoned { reason: "the log has no room left for its own checkpoint".into() }
        })?;
        let appended = self.wal.append(&mut record, Some(&mut reservation))?;
        self.wal.flush_to(appended.end)?;
        Ok((appended, images))
    }

    /// The planted bug: a chunk goes over its old image.
    fn overwrite_chunk(&self, upkeep: &Upkeep, slot: usize, extent: Extent) -> Result<()> {
        let bytes = &upkeep.staging[slot * self.page_bytes..(slot + 1) * self.page_bytes];
        let offset = extent.offset();
        let written = self.device.write_at(offset, bytes);
        written.map_err(|source| Error::io("write", self.device.name(), Some(offset), source))
    }

    /// Puts the image of chunk `name` into the staging buffer.
    fn stage_chunk(&self, upkeep: &mut Upkeep, slot: usize, name: PageId, current: Lsn) -> u32 {
        let image = &mut upkeep.staging[slot * self.page_bytes..(slot + 1) * self.page_bytes];
        let first = upkeep.mapping.first_of(name).index();
        let class = name.class().expect("chunks there are have a class");
        start_image(image, Kind::Chunk, name, current);
        let indexes = first..(first + upkeep.mapping.words()).min(self.table.indexes_max(class));
        for (index, word) in indexes.zip(image[HEADER_BYTES..].chunks_exact_mut(8)) {
            word.copy_from_slice(&self.durable_state(PageId::new(class, index)).0.to_le_bytes());
        }
        page::seal(image)
    }

    /// The durable state of a page. It changes only under the upkeep lock, which the caller holds; the page may be
    /// loaded or evicted meanwhile, which moves the word but does not change it.
    pub(super) fn durable_state(&self, id: PageId) -> Mapped {
        let entry = self.table.entry(id).expect("ids of chunks are within the table");
        loop {
            match entry.location() {
                Location::Nowhere if self.unwritten.lock().contains(&id) => return Mapped::UNWRITTEN,
                Location::Nowhere => return Mapped::FREE,
                Location::Store(mapped) => return mapped,
                Location::Frame(frame) => {
                    let mapped = self.frames.header(frame).mapped();
                    std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
                    if entry.location() == Location::Frame(frame) && self.frames.header(frame).page() == id {
                        return mapped;
                    }
                }
            }
        }
    }

    /// Writes the directory blocks dirty since before `target`, and the superblock if the cut moved enough for it.
    pub(super) fn write_superblock(&self, upkeep: &mut Upkeep, target: Lsn) -> Result<()> {
        let mut freed = Vec::new();
        if upkeep.mapping.blocks().oldest_dirty() < target {
            self.write_directory(upkeep, &mut freed)?;
        }
        self.meanwhile();
        let cut = self.cut(upkeep);
        self.meanwhile();
        let moved = cut.0 - self.wal.cut().0;
        // The cleaner may have cut beyond the target on the way.
        let wanted = target.0.saturating_sub(self.wal.cut().0);
        if freed.is_empty()
            && moved < (self.log_capacity / CUT_SHARE).min(64 << 10)
            && (moved < wanted || wanted == 0)
        {
            return Ok(());
        }
        self.put_superblock(upkeep, cut)?;
        for extent in freed {
            self.free_places(extent);
        }
        Ok(())
    }

    /// Writes the superblock with a new cut, then lets the log use the space below it again.
    pub(super) fn put_superblock(&self, upkeep: &mut Upkeep, cut: Lsn) -> Result<()> {
        self.check()?;
        let superblock = &mut upkeep.superblock;
        superblock.sequence += 1;
        superblock.cut = cut;
        superblock.log_end = self.wal.durable();
        superblock.highest_timestamp = superblock.highest_timestamp.max(self.timestamp_now());
        superblock.page_ids_end = self.ids_ends_to_name();
        superblock.segments = self.space.segments();
        if planted(Bug::RecycleBeforeSuperblock) {
            self.wal.set_cut(cut);
        }
        self.meanwhile();
        // The file may have grown; a superblock must not name segments that are not there after a crash.
        self.sync_store()?;
        upkeep.slots.write(&upkeep.superblock).inspect_err(|error| self.wal.poison(&error.to_string()))?;
        self.stats.superblocks.fetch_add(1, Relaxed);
        let before = self.wal.cut();
        self.wal.set_cut(cut);
        if cut > before {
            tracing::debug!(%cut, freed_bytes = cut.0 - before.0, "log cut");
        }
        Ok(())
    }

    fn write_directory(&self, upkeep: &mut Upkeep, freed: &mut Vec<Extent>) -> Result<()> {
        let dirty = upkeep.mapping.blocks().dirty_before(Lsn(u64::MAX));
        let mut written = Vec::with_capacity(dirty.len());
        for batch in dirty.chunks(self.staging_table_images(upkeep)) {
            if let Err(error) = self.write_blocks(upkeep, batch, &mut written) {
                // None of them counts: the superblock that is to name them must name all that is left out of the log.
                written
                    .iter()
                    .filter_map(|(_, image)| image.extent())
                    .for_each(|extent| self.free_places(extent));
                return Err(error);
            }
        }
        self.stats.mapping_images.fetch_add(written.len() as u64, Relaxed);
        for (name, image) in written {
            let old =
                std::mem::replace(upkeep.mapping.blocks_mut().entry(name), Part { image, dirty: Lsn::NONE });
            freed.extend(old.image.extent());
        }
        upkeep.superblock.directory = upkeep.mapping.directory();
        Ok(())
    }

    /// Writes images of directory blocks, and adds them to `written` with their places.
    fn write_blocks(
        &self,
        upkeep: &mut Upkeep,
        blocks: &[PageId],
        written: &mut Vec<(PageId, Mapped)>,
    ) -> Result<()> {
        let extents = self.places_of_table(blocks.len())?;
        for (slot, (&block, &extent)) in blocks.iter().zip(&extents).enumerate() {
            let image = &mut upkeep.staging[slot * self.page_bytes..(slot + 1) * self.page_bytes];
            start_image(image, Kind::Directory, block, self.wal.durable());
            let chunks = upkeep.mapping.chunk_images(block);
            for (chunk, word) in chunks.zip(image[HEADER_BYTES..].chunks_exact_mut(8)) {
                word.copy_from_slice(&chunk.0.to_le_bytes());
            }
            written.push((block, Mapped::at(extent, page::seal(image))));
        }
        self.write_staged(upkeep, &extents)
    }

    /// How far the log can be cut.
    pub(super) fn cut(&self, upkeep: &Upkeep) -> Lsn {
        // First what bounds everything that may become dirty while the rest is looked at.
        let mut cut = self.wal.cut_limit();
        let events = self.events.lock().iter().map(|event| event.lsn).min();
        cut = cut.min(events.unwrap_or(cut));
        // What is dirty stays in its frame meanwhile.
        let moving = self.moving.write();
        for frame in self.frames.all() {
            let recovery = self.frames.header(frame).recovery();
            if !recovery.is_none() {
                cut = cut.min(recovery);
            }
        }
        drop(moving);
        if !planted(Bug::CutPastDirtyChunk) {
            cut = cut.min(upkeep.mapping.chunks().oldest_dirty());
        }
        cut = cut.min(upkeep.mapping.blocks().oldest_dirty());
        cut = cut.min(Lsn(self.recovery_floor.load(Relaxed)));
        cut = cut.min(upkeep.backup.as_ref().map_or(cut, |backup| backup.floor));
        cut.max(self.wal.cut())
    }
}

/// Clears `image` and gives it a header.
fn start_image(image: &mut [u8], kind: Kind, name: PageId, lsn: Lsn) {
    image.fill(0);
    page::set_kind(image, kind);
    page::set_page_id(image, name);
    page::set_lsn(image, lsn);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Mode;
    use crate::{Db, MemoryDirectory};

    /// The cleaner may have cut the log on the way; once the difference underflowed.
    #[test]
    fn the_log_may_have_been_cut_beyond_the_target() {
        let directory = std::sync::Arc::new(MemoryDirectory::new());
        let db = Db::builder().directory(directory).dram(4 << 20).mode(Mode::Inline).open("").unwrap();
        let table = db.create_table("t").unwrap();
        (0..2000u32).for_each(|key| table.put(key.to_be_bytes(), [7; 500]).unwrap());
        db.checkpoint().unwrap();
        let pool = &db.shared.pool;
        let cut = pool.wal.cut();
        let mut upkeep = pool.upkeep.lock();
        for target in [Lsn(0), Lsn(cut.0 - 1), cut] {
            pool.write_superblock(&mut upkeep, target).unwrap();
            assert!(pool.wal.cut() >= cut);
        }
    }
}
