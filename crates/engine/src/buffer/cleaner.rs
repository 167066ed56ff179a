//! The cleaner: empties segments in which little is live, so that there is always a free one to write into.
//!
//! It reads a whole segment, piece by piece, asks the page table which of the images in it still count, and moves those:
//! pages that are dirty in a frame are written back instead, others are copied as they are, chunks and directory blocks
//! are written anew. A moved image keeps its LSN and checksum; the mapping record is the same as for any image.

use std::sync::atomic::Ordering::Relaxed;

use super::pool::Pool;
use super::stats::Cause;
use super::table::Location;
use super::upkeep::Upkeep;
use super::write_back::{Image, lengths};
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId};
use crate::store::page::{self, Kind};
use crate::store::place::{Extent, Mapped, PLACE_BYTES, places_of};
use crate::store::space::Stream;

/// Segments kept free, at least.
const FREE_MIN: u64 = 4;
/// Segments kept free, as one part in this many of all.
const FREE_SHARE: u64 = 32;
/// Visits to a segment that leave something live in it, before it is left alone.
const TRIES_MAX: u32 = 4;
/// Segments emptied per round, at most.
const SEGMENTS_PER_ROUND: u32 = 8;

/// Why a segment was left alone, as long as it is the same images that are in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stubborn {
    /// When it was filled, as `Space::victim` says it.
    filled_at: u64,
    /// Visits so far.
    tries: u32,
    /// What is in it cannot be read, and trying again will not help.
    is_damaged: bool,
}

/// What is live in a segment, but for the images that were copied.
#[derive(Default)]
struct Live {
    /// How many those are.
    moved: u64,
    dirty: Vec<PageId>,
    chunks: Vec<u64>,
    blocks: Vec<usize>,
}

impl Pool {
    /// Empties segments until enough are free, or nothing is to be gained.
    pub(super) fn clean_segments(&self, upkeep: &mut Upkeep) -> Result<()> {
        for _ in 0..SEGMENTS_PER_ROUND {
            let wanted = FREE_MIN.max(self.space.segments() / FREE_SHARE);
            if self.space.free_segments() >= wanted || !self.clean_one(upkeep)? {
                return Ok(());
            }
            // A segment takes long enough for the log to grow by a good part, and commits that find it full wait.
            self.checkpoint_step(upkeep)?;
        }
        Ok(())
    }

    /// Write-back found no room for images of so many places: empties segments until there is.
    pub(super) fn make_room(&self, upkeep: &mut Upkeep, places: u64) -> Result<()> {
        // The end of a segment may be too short for the next image.
        let filled = self.space.geometry().segment_places - (self.page_places() - 1);
        let wanted = places.div_ceil(filled) + super::write_back::SPARE_SEGMENTS + 1;
        for _ in 0..self.space.segments() * 2 {
            if self.space.free_segments() >= wanted {
                break;
            }
            if !self.clean_one(upkeep)? {
                // Who latched pages there has long let go of them; better to look again than to say that there is no room.
                let before = upkeep.stubborn.len();
                upkeep.stubborn.retain(|_, stubborn| stubborn.is_damaged);
                if upkeep.stubborn.len() == before {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Empties the segment that is worth it most. `false` if none is.
    fn clean_one(&self, upkeep: &mut Upkeep) -> Result<bool> {
        if self.in_memory {
            return Ok(false);
        }
        self.keep_log_for_upkeep(upkeep);
        let geometry = self.space.geometry();
        let may_touch = |segment, filled_at| {
            let stubborn = upkeep.stubborn.get(&segment).filter(|stubborn| stubborn.filled_at == filled_at);
            stubborn.is_none_or(|stubborn| !stubborn.is_damaged && stubborn.tries < TRIES_MAX)
        };
        let Some((victim, filled_at)) = self.space.victim(geometry.segment_places - 1, may_touch) else {
            return Ok(false);
        };
        let before = upkeep.stubborn.remove(&victim).filter(|stubborn| stubborn.filled_at == filled_at);
        let tries = before.map_or(0, |stubborn| stubborn.tries) + 1;
        match self.empty(upkeep, victim) {
            Ok(_) if self.space.live_in(victim) == 0 => {}
            Ok(_) => {
                upkeep.stubborn.insert(victim, Stubborn { filled_at, tries, is_damaged: false });
            }
            // Damage to a page that nobody asked for must not stop those who ask for others. Whoever reads it, or
            // verifies, is told.
            Err(error @ (Error::Corrupt { .. } | Error::Io { operation: "read", .. })) => {
                tracing::error!(%error, victim, "a segment cannot be emptied");
                upkeep.stubborn.insert(victim, Stubborn { filled_at, tries, is_damaged: true });
            }
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Moves everything that is live out of segment `victim`, but for pages latched just now. Returns how much was.
    pub(super) fn empty(&self, upkeep: &mut Upkeep, victim: u64) -> Result<u64> {
        let geometry = self.space.geometry();
        let first = geometry.first_place(victim);
        let mut live = self.move_live(upkeep, first, first + geometry.segment_places)?;
        live.dirty.sort_unstable();
        self.write_dirty_elsewhere(upkeep, &live.dirty)?;
        let current = self.absorb(upkeep);
        for batch in live.chunks.chunks(self.staging_pages(upkeep)) {
            self.write_chunks(upkeep, batch, current)?;
        }
        if !live.blocks.is_empty() {
            let lsn = self.wal.durable();
            for &block in &live.blocks {
                upkeep.mapping.blocks[block].dirty = lsn;
            }
            self.write_superblock(upkeep, Lsn(u64::MAX))?;
        }
        Ok(live.moved + (live.dirty.len() + live.chunks.len() + live.blocks.len()) as u64)
    }

    /// Dirty pages need a new image anyway; those latched just now are moved by a later visit. Unlike write-back, the
    /// cleaner may use the last segments: what it frees is worth more.
    fn write_dirty_elsewhere(&self, upkeep: &mut Upkeep, dirty: &[PageId]) -> Result<()> {
        // Write-back may have called for this, and goes on afterwards.
        let before = std::mem::replace(&mut upkeep.cause, Cause::Cleaner);
        let written = dirty
            .chunks(self.staging_pages(upkeep))
            .try_for_each(|batch| self.write_claimed(upkeep, batch, 0).map(drop));
        upkeep.cause = before;
        written
    }

    /// Reads the places from `first` to `end` piece by piece, moves the images that are to be copied, and returns what
    /// else counts. What is to be copied gathers at the beginning of the staging buffer, so that it is read once.
    ///
    /// At each place an image may begin: whatever its bytes say, it counts if what they name is here by the page table.
    fn move_live(&self, upkeep: &mut Upkeep, first: u64, end: u64) -> Result<Live> {
        let mut live = Live::default();
        let mut staged: Vec<(PageId, Extent)> = Vec::new();
        let (mut bytes, mut place) = (0, first);
        while place < end {
            let room = places_of(upkeep.staging.len() - bytes);
            let places = self.piece_places(upkeep).min(room).min(end - place);
            let (piece, from) = (Extent { first: place, places }, bytes);
            self.read_piece(upkeep, from, piece)?;
            while place < piece.end() {
                let at = from + (place - piece.first) as usize * PLACE_BYTES;
                let header = &upkeep.staging[at..at + page::HEADER_BYTES];
                let (id, kind) = (page::page_id(header), page::kind(header));
                let extent = match self.sort_image(upkeep, id, kind, place, &mut live) {
                    Found::ToCopy(extent) => extent,
                    Found::Noted(extent) => {
                        place = extent.end();
                        continue;
                    }
                    Found::Nothing => {
                        place += 1;
                        continue;
                    }
                };
                if bytes + extent.bytes() > upkeep.staging.len() {
                    // The rest of it is behind this piece, and has no room: it is read again.
                    break;
                }
                let here = Extent { first: place, places: extent.places.min(piece.end() - place) };
                upkeep.staging.copy_within(at..at + here.bytes(), bytes);
                if here.end() < extent.end() {
                    let rest = Extent { first: here.end(), places: extent.end() - here.end() };
                    self.read_piece(upkeep, bytes + here.bytes(), rest)?;
                }
                staged.push((id, extent));
                bytes += extent.bytes();
                place = extent.end();
            }
            if bytes + self.page_bytes > upkeep.staging.len() || place >= end {
                self.move_staged(upkeep, &staged)?;
                live.moved += staged.len() as u64;
                staged.clear();
                bytes = 0;
            }
        }
        Ok(live)
    }

    /// Reads what is at `piece` into the staging buffer, from byte `at` on.
    fn read_piece(&self, upkeep: &mut Upkeep, at: usize, piece: Extent) -> Result<()> {
        let (offset, bytes) = (piece.offset(), &mut upkeep.staging[at..at + piece.bytes()]);
        let read = self.device.read_at(offset, bytes);
        read.map_err(|source| Error::io("read", self.device.name(), Some(offset), source))?;
        self.stats.count_read(0, piece.bytes());
        Ok(())
    }

    /// Notes the image that may begin at `place`, unless it is to be copied.
    fn sort_image(&self, upkeep: &Upkeep, id: PageId, kind: u8, place: u64, live: &mut Live) -> Found {
        let mapping = &upkeep.mapping;
        let here = |mapped: Mapped| mapped.extent().filter(|extent| extent.first == place);
        let noted = if kind == Kind::Chunk as u8 {
            let found = mapping.chunks.get(id.0 as usize).and_then(|chunk| here(chunk.image));
            live.chunks.extend(found.map(|_| id.0));
            found
        } else if kind == Kind::Directory as u8 {
            let found = mapping.blocks.get(id.0 as usize).and_then(|block| here(block.image));
            live.blocks.extend(found.map(|_| id.0 as usize));
            found
        } else if let Some(entry) = self.table.entry(id)
            && let Some(extent) = here(self.durable_state(id))
        {
            if !(matches!(entry.location(), Location::Frame(_)) && entry.latch().load().is_dirty()) {
                return Found::ToCopy(extent);
            }
            live.dirty.push(id);
            Some(extent)
        } else {
            None
        };
        noted.map_or(Found::Nothing, Found::Noted)
    }

    /// Copies the staged images of `pages`, which are at these places, to new ones: in the order of their ids if they are
    /// all of one length, and otherwise in that in which they were written.
    fn move_staged(&self, upkeep: &mut Upkeep, pages: &[(PageId, Extent)]) -> Result<()> {
        let mut images = Vec::with_capacity(pages.len());
        let mut at = 0;
        for &(id, extent) in pages {
            let mapped = self.durable_state(id);
            debug_assert_eq!(
                mapped.extent(),
                Some(extent),
                "the durable state changes under the upkeep lock only"
            );
            let image = &upkeep.staging[at..at + extent.bytes()];
            self.vouch(id, mapped, image)?;
            let checksum = page::checksum(image).0;
            images.push(Image { id, lsn: page::lsn(image), checksum, places: extent.places });
            at += extent.bytes();
        }
        if let Some(&(_, extent)) = pages.first()
            && images.iter().all(|image| image.places == extent.places)
        {
            sort_staged(&mut upkeep.staging, extent.bytes(), &mut images);
        }
        self.stats.count_read(images.len(), 0);
        let extents = self.space.allocate_or_grow(&lengths(&images), 0, Stream::Moved)?;
        let lsn = self.write_images(upkeep, &images, &extents).inspect_err(|_| {
            extents.iter().for_each(|&extent| self.space.free(extent));
        })?;
        for (image, &extent) in images.iter().zip(&extents) {
            self.put_in_force(upkeep, image, Mapped::at(extent, image.checksum), lsn);
        }
        self.stats.images_moved.fetch_add(images.len() as u64, Relaxed);
        Ok(())
    }
}

/// What was found at a place.
enum Found {
    /// No image that counts begins there.
    Nothing,
    /// One that needs no copy.
    Noted(Extent),
    /// One that is to be copied.
    ToCopy(Extent),
}

/// Brings `images`, which are all of one length, and what is staged of them, in the order of their ids.
fn sort_staged(staging: &mut [u8], image_bytes: usize, images: &mut [Image]) {
    let mut from: Vec<usize> = (0..images.len()).collect();
    from.sort_unstable_by_key(|&slot| images[slot].id);
    for slot in 0..images.len() {
        // What belongs here has been swapped away as often as a lower slot was filled from where it was.
        let mut now = from[slot];
        while now < slot {
            now = from[now];
        }
        if now != slot {
            images.swap(slot, now);
            let (low, high) = staging.split_at_mut(now * image_bytes);
            low[slot * image_bytes..(slot + 1) * image_bytes].swap_with_slice(&mut high[..image_bytes]);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::seq::SliceRandom;
    use rand::{RngExt, SeedableRng};

    use super::*;

    #[test]
    fn staged_images_are_sorted_with_what_is_known_of_them() {
        for seed in 0..100 {
            let mut random = SmallRng::seed_from_u64(seed);
            let mut ids: Vec<u8> = (0..random.random_range(0..40)).collect();
            ids.shuffle(&mut random);
            let mut staging: Vec<u8> = ids.iter().flat_map(|&id| [id; 8]).collect();
            let image = |&id: &u8| Image {
                id: PageId(u64::from(id)),
                lsn: Lsn(9),
                checksum: u32::from(id) + 1,
                places: 1,
            };
            let mut images: Vec<Image> = ids.iter().map(image).collect();
            sort_staged(&mut staging, 8, &mut images);
            for (slot, image) in images.iter().enumerate() {
                assert_eq!((image.id, image.checksum), (PageId(slot as u64), slot as u32 + 1), "seed {seed}");
                assert_eq!(staging[slot * 8..slot * 8 + 8], [slot as u8; 8], "seed {seed}");
            }
        }
    }
}
