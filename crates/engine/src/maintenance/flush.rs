//! Writes page images. The caller chooses the pages (`pool/dirty.rs`, `cleaner.rs`).
//!
//! An image may reach the disk before the records of its changes. Its mapping record is later in
//! the log than those, so when that is durable, they are. The order is copy, write, sync, log the
//! mapping, wait until the record is durable, and only then apply it (docs/durability.md, rule 5).
//! A page is claimed from the copy until its mapping applies. The first change in that time becomes
//! recLSN, so the page stays dirty.

use std::sync::Arc;

use terrace_io::{Charge, Direction};

use super::state::RoundState;
use super::transfer::PageFile;
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId};
use crate::planted::{Bug, planted};
use crate::pool::Pool;
use crate::pool::page_table::{Entry, Location};
use crate::pool::resident::blocks_granted;
use crate::pool::resident::class_of_page;
use crate::pool::view::View;
use crate::store::mapping_word::{Extent, MappingWord, blocks_of};
use crate::store::space::{Space, Stream};
use crate::store::{image, page};
use crate::wal::{Class, MappingEntry, RecordBuilder, Wal};

/// Segments reserved for the cleaner: for moved images, for dirty pages, and for chunks.
pub(super) const SPARE_SEGMENTS: u64 = 3;

#[derive(Clone, Copy, Debug)]
pub(super) struct Image {
    pub(super) id: PageId,
    pub(super) lsn: Lsn,
    pub(super) checksum: u32,
    /// Blocks of the image.
    pub(super) blocks: u64,
}

/// The writer of images.
#[derive(Debug)]
pub(crate) struct Flush {
    pub(super) pool: Arc<Pool>,
    pub(super) wal: Arc<Wal>,
    pub(super) space: Arc<Space>,
    pub(super) file: Arc<PageFile>,
}

impl Flush {
    /// Writes dirty `pages`, up to a full staging buffer, and leaves `spare` segments free.
    pub(super) fn claim_and_write(
        &self,
        round_state: &mut RoundState,
        pages: &[PageId],
        spare: u64,
    ) -> Result<usize> {
        let images = self.claim(round_state, pages);
        let lengths = lengths(&images);
        let extents = self.space.allocate_or_grow(&lengths, spare, Stream::Changed).inspect_err(|_| {
            images.iter().for_each(|image| self.unclaim(image.id));
        })?;
        let written = self.write_images(round_state, &images, &extents);
        if planted(Bug::TwoImagesInFlight) && !images.is_empty() {
            let _ = self.claim_and_write(round_state, pages, 0);
        }
        match written {
            Ok(lsn) => {
                for (image, &extent) in images.iter().zip(&extents) {
                    self.pool.count_flushed(image.id);
                    self.put_in_force(round_state, image, MappingWord::at(extent, image.checksum), lsn);
                }
                self.pool.stats.count_written(images.len(), round_state.cause);
                Ok(images.len())
            }
            Err(error) => {
                for (image, &extent) in images.iter().zip(&extents) {
                    self.unclaim(image.id);
                    self.file.free_blocks(extent);
                }
                Err(error)
            }
        }
    }

    /// Stages images of dirty `pages`, and claims those pages.
    fn claim(&self, round_state: &mut RoundState, pages: &[PageId]) -> Vec<Image> {
        let mut images = Vec::with_capacity(pages.len());
        let mut at = 0;
        for &id in pages {
            let Some(entry) = self.pool.table.entry(id) else { continue };
            let latch = entry.latch();
            if !latch.try_share() {
                continue;
            }
            let now = latch.load();
            // One image per page at a time: the older of two may be applied with the page marked
            // clean (docs/durability.md, rule 6).
            let location = entry.location();
            if let Some(frame) = location.frame()
                && now.is_dirty()
                && let header = self.pool.frames.header(frame)
                && (!now.is_claimed() || planted(Bug::TwoImagesInFlight) && !header.next_rec_lsn().is_none())
            {
                header.set_next_rec_lsn(Lsn::NONE);
                latch.set_claimed(true);
                let frames = &self.pool.frames;
                let copy = frames.whole_copy(location).expect("a page in a frame");
                // No change by lines touches the level.
                let whole = copy.1.unwrap_or(frame);
                self.pool.charge_page(whole, Direction::Read).map(Charge::finish);
                let level = frames.view(id, whole).u8(page::LEVEL_AT);
                let page_bytes = class_of_page(id).page_bytes();
                let slot = &mut round_state.staging.bytes[at..at + page_bytes];
                let bytes = if image::wants_compression(level) && image::can_shrink(page_bytes) {
                    frames.copy_whole(id, copy, round_state.staging.packer.page(page_bytes));
                    latch.unshare();
                    let bytes = round_state.staging.packer.pack(slot);
                    self.pool.stats.count_packed(page_bytes, bytes);
                    bytes
                } else {
                    frames.copy_whole(id, copy, slot);
                    latch.unshare();
                    page_bytes
                };
                let slot = &mut slot[..bytes];
                let checksum = page::seal(slot);
                images.push(Image { id, lsn: page::lsn(slot), checksum, blocks: blocks_of(bytes) });
                at += bytes;
            } else {
                latch.unshare();
            }
        }
        images
    }

    /// Writes the staged images, syncs, and logs the mapping durably. Returns its LSN.
    pub(super) fn write_images(
        &self,
        round_state: &mut RoundState,
        images: &[Image],
        extents: &[Extent],
    ) -> Result<Lsn> {
        if images.is_empty() {
            return Ok(Lsn::NONE);
        }
        let mut record = RecordBuilder::mapping();
        for (image, &extent) in images.iter().zip(extents) {
            record.mapping_entry(MappingEntry {
                page: image.id,
                extent,
                image_lsn: image.lsn,
                check: image.checksum,
            });
        }
        if planted(Bug::MappingBeforeImageSync) {
            self.log_mapping(&mut record)?;
        }
        self.pool.meanwhile();
        self.file.write_staged(&round_state.staging, extents)?;
        self.pool.meanwhile();
        self.file.sync_store()?;
        self.pool.meanwhile();
        let lsn = self.log_mapping(&mut record)?;
        self.pool.meanwhile();
        Ok(lsn)
    }

    fn log_mapping(&self, record: &mut RecordBuilder) -> Result<Lsn> {
        let mut reservation = self.wal.reserve(record.len() as u64, Class::System).ok_or_else(|| {
            let (used, capacity) = (self.wal.tail().0 - self.wal.cut().0, self.wal.capacity());
            let what = format!(
                "the log has no room left for its own checkpoint: {used} of {capacity} bytes are in use"
            );
            Error::Poisoned { reason: what }
        })?;
        let appended = self.wal.append(record, Some(&mut reservation))?;
        if !planted(Bug::ReuseBlocksEarly) {
            self.wal.flush_to(appended.end)?;
        }
        Ok(appended.lsn)
    }

    /// Applies the durable mapping record at `lsn`: `image.id` is now at `mapped`.
    pub(super) fn put_in_force(
        &self,
        round_state: &mut RoundState,
        image: &Image,
        mapped: MappingWord,
        lsn: Lsn,
    ) {
        let entry = self.pool.table.entry(image.id).expect("claimed pages are within the table");
        let old = loop {
            match self.try_put_in_force(entry, image.lsn, mapped) {
                Some(old) => break old,
                None => std::thread::yield_now(),
            }
        };
        match old.extent() {
            Some(extent) => self.file.free_blocks(extent),
            None => self.space.ungrant(blocks_granted(image.id)),
        }
        round_state.mapping.dirty(image.id, lsn);
        round_state.note_image(image.id);
    }

    fn try_put_in_force(&self, entry: Entry<'_>, image: Lsn, mapped: MappingWord) -> Option<MappingWord> {
        let latch = entry.latch();
        match entry.location() {
            Location::Frame(frame) | Location::Partial(frame) => {
                if !latch.try_share() {
                    return None;
                }
                let stays = entry.location().frame() == Some(frame);
                let header = self.pool.frames.header(frame);
                let old = header.mapped();
                if stays {
                    // Before recLSN moves: the log may be cut, and recovery would base on it.
                    if let Some(below) = header.middle_copy()
                        && !planted(Bug::UnsealNotAtMapping)
                    {
                        self.pool.frames.unseal_older(below, image);
                    }
                    header.set_mapped(mapped);
                    if latch.load().is_claimed() {
                        let next = if planted(Bug::ClearRecLsn) { Lsn::NONE } else { header.next_rec_lsn() };
                        header.set_rec_lsn(next);
                        if next.is_none() {
                            latch.set_dirty(false);
                        }
                        latch.set_claimed(false);
                    }
                }
                latch.unshare();
                stays.then_some(old)
            }
            // The cleaner moved an image that was only in the store.
            Location::Store(old) => {
                let seen = latch.load();
                if !latch.try_exclusive(seen) {
                    return None;
                }
                let stays = entry.location() == Location::Store(old);
                if stays {
                    entry.set_location(Location::Store(mapped));
                    latch.release_changed();
                } else {
                    latch.release_unchanged();
                }
                stays.then_some(old)
            }
            Location::Nowhere => unreachable!("pages with an image in flight are not freed"),
        }
    }

    fn unclaim(&self, id: PageId) {
        let entry = self.pool.table.entry(id).expect("claimed pages are within the table");
        self.pool.share_entry(entry);
        // recLSN is older than any change since the copy, so forgetting that change loses nothing.
        entry.latch().set_claimed(false);
        entry.latch().unshare();
    }
}

/// Splits `pages` into batches that fit `bytes` bytes as full pages.
pub(super) fn batches(pages: &[PageId], bytes: usize) -> impl Iterator<Item = &[PageId]> {
    let mut rest = pages;
    std::iter::from_fn(move || {
        let mut left = bytes;
        let fits = |id: &&PageId| match left.checked_sub(class_of_page(**id).page_bytes()) {
            Some(less) => {
                left = less;
                true
            }
            None => false,
        };
        let count = rest.iter().take_while(fits).count();
        let (now, later) = rest.split_at(count);
        rest = later;
        (!now.is_empty()).then_some(now)
    })
}

/// Blocks of each image.
pub(super) fn lengths(images: &[Image]) -> Vec<u64> {
    images.iter().map(|image| image.blocks).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use terrace_io::MemoryDirectory;

    use crate::{Db, Mode};

    /// Two images in flight could leave the older in place with the page marked clean.
    #[test]
    fn a_page_that_is_asked_for_twice_has_one_image_in_flight() {
        let directory = Arc::new(MemoryDirectory::new());
        let db = Db::builder().directory(directory).dram(4 << 20).mode(Mode::Inline).open("").unwrap();
        let table = db.create_table("t").unwrap();
        (0..200u32).for_each(|key| table.put(key.to_be_bytes(), [7; 500]).unwrap());
        let pool = &db.shared.maintenance;
        pool.wal.flush_to(pool.wal.tail()).unwrap();
        let mut round_state = pool.round_state.lock();
        let frames = pool.frames.all().map(|frame| pool.frames.header(frame));
        let dirty = frames.filter(|header| !header.rec_lsn().is_none()).map(|header| header.page());
        let pages: Vec<_> = dirty.flat_map(|page| [page; 2]).collect();
        assert!(pages.len() > 40);
        assert_eq!(pool.write_back(&mut round_state, &pages).unwrap(), pages.len() / 2);
        assert_eq!(pool.write_back(&mut round_state, &pages).unwrap(), 0);
    }
}
