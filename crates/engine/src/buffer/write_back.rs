//! Writing images: copy, write, sync, log the mapping, wait until that is durable, and only then let it take effect
//! (durability, rule 5).
//!
//! A page is claimed from the copy until its mapping is in force. It may change meanwhile: the first such change is
//! remembered and becomes recLSN, so that the page stays dirty from there on.

use std::sync::atomic::Ordering::Relaxed;

use terrace_block::{Charge, Direction};

use super::backoff::Backoff;
use super::pool::{Pool, class_of_page, places_granted};
use super::stripe::class_of;
use super::table::{Entry, Location};
use super::upkeep::Upkeep;
use super::view::View;
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, SizeClass};
use crate::planted::{Bug, planted};
use crate::store::place::{Extent, Mapped, places_of};
use crate::store::space::Stream;
use crate::store::{image, page};
use crate::wal::{Class, MappingEntry, RecordBuilder};

/// Segments that write-back leaves to the cleaner: one for what it moves, one for what it writes because it is dirty, one
/// for chunks.
pub(super) const SPARE_SEGMENTS: u64 = 3;

/// An image in the staging buffer, where images stand one behind the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Image {
    pub(super) id: PageId,
    pub(super) lsn: Lsn,
    pub(super) checksum: u32,
    /// Its length.
    pub(super) places: u64,
}

impl Pool {
    /// Writes the dirty ones among `pages`, a staging buffer full at a time. Pages that are latched just now are
    /// left out. Returns how many were written.
    pub(super) fn write_back(&self, upkeep: &mut Upkeep, pages: &[PageId]) -> Result<usize> {
        let mut written = 0;
        for batch in batches(pages, upkeep.staging.len()) {
            written += self.write_batch(upkeep, batch)?;
        }
        Ok(written)
    }

    fn write_batch(&self, upkeep: &mut Upkeep, pages: &[PageId]) -> Result<usize> {
        // Segments are emptied through the buffer in which the images will be made, and how long those will be is not known yet.
        // Nobody else allocates while the upkeep is locked: where there is room for whole pages, there is for what they come to.
        let lengths: Vec<u64> = pages.iter().map(|&id| class_of_page(id).places()).collect();
        if !self.space.has_room(&lengths, SPARE_SEGMENTS, Stream::Changed) {
            self.stats.segment_waits.fetch_add(1, Relaxed);
            match self.make_room(upkeep, lengths.iter().sum()) {
                // The cleaner found none for what it moves; what there is may do for these images.
                Ok(()) | Err(Error::Full { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let written = self.write_claimed(upkeep, pages, SPARE_SEGMENTS);
        match &written {
            Err(Error::Full { .. }) => self.without_room.store(lengths.iter().sum(), Relaxed),
            Ok(_) if self.image_places_max() > 1 => {
                // What has become longer was never granted. That it is too much by now is for the next commit.
                let _ = self.keep_up();
            }
            _ => {}
        }
        written
    }

    /// Whether there is room in the page file for what commits change; they wait while there is not.
    ///
    /// Pages that are compressed may come to be longer than they were, and write-back find no room for them. Then they stay
    /// in their frames. So that these are never all there are, and reads go on: as soon as the file is fuller than it
    /// should be, half of the frames at most may be dirty, and nothing is changed any more where nothing new would be
    /// granted either, or write-back has found no room.
    pub(super) fn changes_find_room(&self) -> bool {
        if !self.is_short_of_room() {
            return true;
        }
        let places = self.without_room.load(Relaxed);
        let is_dirty = |frame: &u32| !self.frames.header(*frame).recovery().is_none();
        // In the middle tier they may be all there are: reads go past it.
        let is_half_dirty = |class: SizeClass| {
            self.frames.of(class.into()).filter(is_dirty).count() > self.page_frames(class) as usize / 2
        };
        if self.frames.classes().any(is_half_dirty) || self.keep_up().is_err() {
            return false;
        }
        let longest = self.image_places_max();
        let lengths = vec![longest; places.div_ceil(longest) as usize];
        let found = self.space.finds_room(&lengths, SPARE_SEGMENTS, Stream::Changed);
        if found {
            self.without_room.store(0, Relaxed);
        }
        found
    }

    /// Whether what is changed may find no room in the page file. Then no dirty page is brought from the middle tier to DRAM, where
    /// half of the frames are to stay clean.
    pub(super) fn is_short_of_room(&self) -> bool {
        self.without_room.load(Relaxed) > 0 || self.is_tight.load(Relaxed)
    }

    fn keep_up(&self) -> Result<()> {
        let kept_up = self.space.keep_up();
        self.is_tight.store(!matches!(kept_up, Ok(true)), Relaxed);
        kept_up.map(drop)
    }

    /// Writes the dirty ones among `pages`, at most a staging buffer full, leaving `spare` segments free.
    pub(super) fn write_claimed(&self, upkeep: &mut Upkeep, pages: &[PageId], spare: u64) -> Result<usize> {
        let images = self.claim(upkeep, pages);
        let lengths = lengths(&images);
        let extents = self.space.allocate_or_grow(&lengths, spare, Stream::Changed).inspect_err(|_| {
            images.iter().for_each(|image| self.unclaim(image.id));
        })?;
        match self.write_images(upkeep, &images, &extents) {
            Ok(lsn) => {
                for (image, &extent) in images.iter().zip(&extents) {
                    self.count_flushed(image.id);
                    self.put_in_force(upkeep, image, Mapped::at(extent, image.checksum), lsn);
                }
                self.stats.count_written(images.len(), upkeep.cause);
                Ok(images.len())
            }
            Err(error) => {
                for (image, &extent) in images.iter().zip(&extents) {
                    self.unclaim(image.id);
                    self.free_places(extent);
                }
                Err(error)
            }
        }
    }

    /// Makes images of the dirty ones among `pages` in the staging buffer and claims the pages.
    fn claim(&self, upkeep: &mut Upkeep, pages: &[PageId]) -> Vec<Image> {
        let mut images = Vec::with_capacity(pages.len());
        let mut at = 0;
        for &id in pages {
            let Some(entry) = self.table.entry(id) else { continue };
            let latch = entry.latch();
            if !latch.try_share() {
                continue;
            }
            let now = latch.load();
            // One image of a page at a time: of two, the older may come into force with the page clean (durability, rule 6).
            let has_image = now.is_claimed() && !planted(Bug::TwoImagesInFlight);
            if let Location::Frame(frame) = entry.location()
                && now.is_dirty()
                && !has_image
            {
                let header = self.frames.header(frame);
                header.set_next_recovery(Lsn::NONE);
                latch.set_claimed(true);
                self.charge_page(frame, Direction::Read).map(Charge::finish);
                let view = self.frames.view(id, frame);
                let page_bytes = class_of(frame).page_bytes();
                let slot = &mut upkeep.staging[at..at + page_bytes];
                let bytes =
                    if image::wants_compression(view.u8(page::LEVEL_AT)) && image::can_shrink(page_bytes) {
                        view.copy_to(0, upkeep.packer.page(page_bytes));
                        latch.unshare();
                        let bytes = upkeep.packer.pack(slot);
                        self.stats.count_packed(page_bytes, bytes);
                        bytes
                    } else {
                        view.copy_to(0, slot);
                        latch.unshare();
                        page_bytes
                    };
                let slot = &mut slot[..bytes];
                let checksum = page::seal(slot);
                images.push(Image { id, lsn: page::lsn(slot), checksum, places: places_of(bytes) });
                at += bytes;
            } else {
                latch.unshare();
            }
        }
        images
    }

    /// Writes the staged images to `extents`, syncs, logs the mapping and waits for it. Returns its LSN.
    pub(super) fn write_images(
        &self,
        upkeep: &mut Upkeep,
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
        let mut early = None;
        if planted(Bug::MappingBeforeImageSync) {
            early = Some(self.log_mapping(&mut record)?);
        }
        self.meanwhile();
        self.write_staged(upkeep, extents)?;
        self.meanwhile();
        self.sync_store()?;
        self.meanwhile();
        if planted(Bug::TwoImagesInFlight) {
            self.write_changed_again(upkeep, images)?;
        }
        let lsn = match early {
            Some(lsn) => lsn,
            None => self.log_mapping(&mut record)?,
        };
        self.meanwhile();
        Ok(lsn)
    }

    /// The planted bug: pages that changed since their image was copied are written by another, who is faster.
    fn write_changed_again(&self, upkeep: &mut Upkeep, images: &[Image]) -> Result<()> {
        let changed = |image: &&Image| {
            let location = self.table.entry(image.id).map(|entry| entry.location());
            matches!(location, Some(Location::Frame(frame))
                if !self.frames.header(frame).next_recovery().is_none())
        };
        let pages: Vec<PageId> = images.iter().filter(changed).map(|image| image.id).collect();
        let lengths: Vec<u64> = pages.iter().map(|&id| class_of_page(id).places()).collect();
        match self.space.has_room(&lengths, 0, Stream::Changed) {
            true if !pages.is_empty() => self.write_claimed(upkeep, &pages, 0).map(|_| ()),
            _ => Ok(()),
        }
    }

    fn log_mapping(&self, record: &mut RecordBuilder) -> Result<Lsn> {
        let mut reservation = self.wal.reserve(record.len() as u64, Class::System).ok_or_else(|| {
            Error::Poisoned { reason: "the log has no room left for its own checkpoint".into() }
        })?;
        let appended = self.wal.append(record, Some(&mut reservation))?;
        if !planted(Bug::ReusePlaceEarly) {
            self.wal.flush_to(appended.end)?;
        }
        Ok(appended.lsn)
    }

    /// Writes the staged images into `extents`, which are as long as they.
    pub(super) fn write_staged(&self, upkeep: &Upkeep, extents: &[Extent]) -> Result<()> {
        // A mapping record whose flush failed may be durable: the places it names must stay what they are. And a database
        // that was closed may have another owner.
        self.check()?;
        let bytes: usize = extents.iter().map(|extent| extent.bytes()).sum();
        self.stats.store_written_bytes.fetch_add(bytes as u64, Relaxed);
        let mut at = 0;
        let written = extents.chunk_by(|one, next| one.end() == next.first).try_for_each(|run| {
            let places = run.iter().map(|extent| extent.places).sum();
            let starts: Vec<u64> = run.iter().map(|extent| extent.offset()).collect();
            let run = Extent { first: run[0].first, places };
            self.write_pieces(upkeep, at, run, &starts)?;
            at += run.bytes();
            Ok(())
        });
        let offset = extents.first().map(|extent| extent.offset());
        let written = written.map_err(|source| Error::io("write", self.device.name(), offset, source));
        written.inspect_err(|error| {
            if !matches!(error, Error::Full { .. }) {
                // A device that loses writes cannot be trusted with the next ones (durability, rule 14).
                self.wal.poison(&error.to_string());
            }
        })
    }

    /// Makes everything written to the page file durable.
    pub(super) fn sync_store(&self) -> Result<()> {
        if planted(Bug::SkipStoreSync) {
            return Ok(());
        }
        self.stats.store_syncs.fetch_add(1, Relaxed);
        self.device.sync().map_err(|source| {
            let error = Error::io("sync", self.device.name(), None, source);
            // Whatever it was, it is not known what reached the disk: never retried into success.
            self.wal.poison(&error.to_string());
            error
        })
    }

    /// The mapping record at `lsn` is durable: `mapped` is where `image.id` is from now on.
    pub(super) fn put_in_force(&self, upkeep: &mut Upkeep, image: &Image, mapped: Mapped, lsn: Lsn) {
        let entry = self.table.entry(image.id).expect("claimed pages are within the table");
        let old = loop {
            match self.try_put_in_force(entry, mapped) {
                Some(old) => break old,
                None => std::thread::yield_now(),
            }
        };
        match old.extent() {
            Some(extent) => self.free_places(extent),
            None => self.space.ungrant(places_granted(image.id)),
        }
        upkeep.mapping.dirty(image.id, lsn);
        upkeep.note_image(image.id);
    }

    fn try_put_in_force(&self, entry: Entry<'_>, mapped: Mapped) -> Option<Mapped> {
        let latch = entry.latch();
        match entry.location() {
            Location::Frame(frame) => {
                if !latch.try_share() {
                    return None;
                }
                let stays = entry.location() == Location::Frame(frame);
                let header = self.frames.header(frame);
                let old = header.mapped();
                if stays {
                    header.set_mapped(mapped);
                    if latch.load().is_claimed() {
                        let next = if planted(Bug::ClearRecLsn) { Lsn::NONE } else { header.next_recovery() };
                        header.set_recovery(next);
                        if next.is_none() {
                            latch.set_dirty(false);
                        }
                        latch.set_claimed(false);
                    }
                }
                latch.unshare();
                stays.then_some(old)
            }
            // Moved by the cleaner while in the store only.
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
        let entry = self.table.entry(id).expect("claimed pages are within the table");
        self.share_entry(entry);
        // recLSN is older than anything remembered since the copy, so nothing is lost by forgetting that.
        entry.latch().set_claimed(false);
        entry.latch().unshare();
    }

    /// Takes a shared latch of a page wherever it is; nothing else may be latched.
    pub(super) fn share_entry(&self, entry: Entry<'_>) {
        let mut backoff = Backoff::new();
        while !entry.latch().try_share() {
            backoff.wait();
        }
    }

    /// Takes the exclusive latch of a page whose location does not matter; nothing else may be latched.
    pub(super) fn lock_entry(&self, entry: Entry<'_>) {
        let mut backoff = Backoff::new();
        while !entry.latch().try_exclusive(entry.latch().load()) {
            backoff.wait();
        }
    }
}

/// `pages` in turn, as many at a time as `bytes` bytes have room for, whatever the length of their images.
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

/// How many places each of `images` takes.
pub(super) fn lengths(images: &[Image]) -> Vec<u64> {
    images.iter().map(|image| image.places).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use terrace_block::MemoryDirectory;

    use crate::{Db, Mode};

    /// Whoever asks for it: of two images in flight the older might come into force, and the page be clean.
    #[test]
    fn a_page_that_is_asked_for_twice_has_one_image_in_flight() {
        let directory = Arc::new(MemoryDirectory::new());
        let db = Db::builder().directory(directory).dram(4 << 20).mode(Mode::Inline).open("").unwrap();
        let table = db.create_table("t").unwrap();
        (0..200u32).for_each(|key| table.put(key.to_be_bytes(), [7; 500]).unwrap());
        let pool = &db.shared.pool;
        pool.wal.flush_to(pool.wal.tail()).unwrap();
        let mut upkeep = pool.upkeep.lock();
        let frames = pool.frames.all().map(|frame| pool.frames.header(frame));
        let dirty = frames.filter(|header| !header.recovery().is_none()).map(|header| header.page());
        let pages: Vec<_> = dirty.flat_map(|page| [page; 2]).collect();
        assert!(pages.len() > 40);
        assert_eq!(pool.write_back(&mut upkeep, &pages).unwrap(), pages.len() / 2);
        assert_eq!(pool.write_back(&mut upkeep, &pages).unwrap(), 0);
    }
}
