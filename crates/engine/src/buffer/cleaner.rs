//! The cleaner: empties segments in which little is live, so that there is always a free one to write into.
//!
//! It reads a whole segment, piece by piece, asks the page table which of the images in it still count, and moves those:
//! pages that are dirty in a frame are written back instead, others are copied as they are, chunks and directory blocks
//! are written anew. A moved image keeps its LSN and checksum; the mapping record is the same as for any image. Of a block cache under
//! the page file it asks nothing and admits nothing to it; what is cached of a moved image follows it.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use super::pool::{Pool, class_of_page};
use super::stats::Cause;
use super::table::Location;
use super::upkeep::Upkeep;
use super::write_back::{Image, batches, lengths};
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId};
use crate::store::page::{self, Kind};
use crate::store::place::{Extent, Mapped, PLACE_BYTES};
use crate::store::space::{Space, Stream};

/// Segments kept free, at least.
const FREE_MIN: u64 = 4;
/// Segments kept free, as one part in this many of all.
const FREE_SHARE: u64 = 32;
/// A segment in which a latched page was left is due again at the second look for one from then, the next time at the fourth, the eighth,
/// up to two to the power of this.
const TRIES_COUNTED: u32 = 4;
/// What the mapping records of a moved image take in the log, at most, their share of the headers included.
const LOG_BYTES_PER_PLACE: u64 = 64;
/// Segments emptied per round, at most.
const SEGMENTS_PER_ROUND: u32 = 8;

/// Why a segment was left alone, as long as it is the same images that are in it.
#[derive(Clone, Copy, Debug)]
struct Stubborn {
    /// When it was filled, as `Space::victim` says it.
    filled_at: u64,
    /// Visits so far.
    tries: u32,
    /// From which look on it may be tried again. `None`: what is in it cannot be read, or is not known, and trying again will not help.
    again: Option<u64>,
}

/// The segments that were left alone, and the clock by which they are not for long: whoever had pages there latched does not keep them.
#[derive(Debug, Default)]
pub(super) struct LeftAlone {
    segments: HashMap<u64, Stubborn>,
    /// How often the cleaner has looked for a segment.
    looks: u64,
}

impl LeftAlone {
    /// Forgets segments from `end` on, which are not there any more.
    pub(super) fn cut(&mut self, end: u64) {
        self.segments.retain(|&segment, _| segment < end);
    }

    /// Forgets segments that are not as they were left, and gives how many places are live in those that are to be emptied yet.
    pub(super) fn places(&mut self, space: &Space) -> u64 {
        let mut places = 0;
        self.segments.retain(|&segment, stubborn| {
            let (filled_at, live) = space.filling(segment);
            let is_same = filled_at == stubborn.filled_at && live > 0;
            places += if is_same && stubborn.again.is_some() { live } else { 0 };
            is_same
        });
        places
    }

    /// Has all be tried again at the next look that may be at all. Whether there are any that would have waited.
    fn hurry(&mut self) -> bool {
        let next = self.looks + 1;
        let waiting = self.segments.values_mut().filter_map(|stubborn| stubborn.again.as_mut());
        waiting.filter(|again| **again > next).map(|again| *again = next).count() > 0
    }

    /// Whether the cleaner may go for a segment: one that was left alone when its time has come.
    fn is_due(&self, segment: u64) -> bool {
        let stubborn = self.segments.get(&segment);
        stubborn.is_none_or(|stubborn| stubborn.again.is_some_and(|again| again <= self.looks))
    }

    /// After `tries` visits something was left, which a later one will not find again if it is `for_good`.
    fn leave(&mut self, segment: u64, filled_at: u64, tries: u32, for_good: bool) {
        let again = (!for_good).then(|| self.looks + (1 << tries.min(TRIES_COUNTED)));
        self.segments.insert(segment, Stubborn { filled_at, tries, again });
    }
}

/// What is live in a segment, but for the images that were copied.
#[derive(Default)]
struct Live {
    /// How many those are.
    moved: u64,
    dirty: Vec<PageId>,
    chunks: Vec<PageId>,
    blocks: Vec<PageId>,
}

/// What became of a segment's images.
pub(super) struct Emptied {
    /// How many are elsewhere now.
    pub(super) moved: u64,
    /// How many stayed because their pages were latched.
    latched: u64,
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
        let filled = self.space.geometry().segment_places - (self.image_places_max() - 1);
        let wanted = places.div_ceil(filled) + super::write_back::SPARE_SEGMENTS + 1;
        // A checkpoint, which may have called for this, must not find that the log it is to cut has filled up.
        let log_of_a_segment = self.space.geometry().segment_places * LOG_BYTES_PER_PLACE;
        let mut hurried = false;
        for _ in 0..self.space.segments() * 2 {
            let free = self.space.free_segments();
            if free >= wanted || self.log_left() < log_of_a_segment {
                break;
            }
            let visited = self.clean_one(upkeep)?;
            if self.space.free_segments() > free {
                hurried = false;
            } else if !visited && (std::mem::replace(&mut hurried, true) || !upkeep.left_alone.hurry()) {
                // Who latched pages there may have let go of them: better to look once more than to say that there is no room.
                break;
            }
        }
        Ok(())
    }

    /// Bytes that the log still has room for.
    fn log_left(&self) -> u64 {
        self.log_capacity.saturating_sub(self.wal.tail().0 - self.wal.cut().0)
    }

    /// Empties the segment that is worth it most. `false` if none is.
    ///
    /// Pages that are latched stay behind, and a segment that is emptied but for them gives nothing back for the room that the others
    /// have taken. So none is begun for which there would not be room with all that stayed behind elsewhere, and with a segment of what
    /// the checkpoint writes meanwhile: as soon as the latches are let go of, that is moved, and the first segment that comes free makes
    /// room for the next.
    fn clean_one(&self, upkeep: &mut Upkeep) -> Result<bool> {
        if self.in_memory {
            return Ok(false);
        }
        self.keep_log_for_upkeep(upkeep);
        let segment_places = self.space.geometry().segment_places;
        upkeep.left_alone.looks += 1;
        let left = match upkeep.left_alone.places(&self.space) {
            0 => 0,
            places => places + segment_places,
        };
        let room = self.space.room();
        let left_alone = &upkeep.left_alone;
        let may_touch = |segment, live| {
            let is_begun = left_alone.segments.contains_key(&segment);
            left_alone.is_due(segment) && (is_begun || live + left <= room)
        };
        let Some((victim, filled_at)) = self.space.victim(segment_places - 1, may_touch) else {
            return Ok(false);
        };
        let tries = upkeep.left_alone.segments.remove(&victim).map_or(0, |stubborn| stubborn.tries) + 1;
        match self.empty(upkeep, victim) {
            Ok(_) if self.space.live_in(victim) == 0 => {}
            // What nobody latches and is still there a backup holds, or the header of its image is damaged.
            Ok(emptied) => upkeep.left_alone.leave(victim, filled_at, tries, emptied.latched == 0),
            // Damage to a page that nobody asked for must not stop those who ask for others. Whoever reads it, or
            // verifies, is told.
            Err(error @ (Error::Corrupt { .. } | Error::Io { operation: "read", .. })) => {
                tracing::error!(%error, victim, "a segment cannot be emptied");
                upkeep.left_alone.leave(victim, filled_at, tries, true);
            }
            Err(error) => {
                upkeep.left_alone.leave(victim, filled_at, tries, false);
                return Err(error);
            }
        }
        Ok(true)
    }

    /// Moves everything that is live out of segment `victim`, but for pages latched just now.
    pub(super) fn empty(&self, upkeep: &mut Upkeep, victim: u64) -> Result<Emptied> {
        let geometry = self.space.geometry();
        let segment = Extent { first: geometry.first_place(victim), places: geometry.segment_places };
        let mut live = self.move_live(upkeep, segment)?;
        live.dirty.sort_unstable();
        let written = self.write_dirty_elsewhere(upkeep, &live.dirty)?;
        let current = self.absorb(upkeep);
        for batch in live.chunks.chunks(self.staging_table_images(upkeep)) {
            self.write_chunks(upkeep, batch, current)?;
        }
        if !live.blocks.is_empty() {
            let lsn = self.wal.durable();
            for &block in &live.blocks {
                upkeep.mapping.blocks_mut().entry(block).dirty = lsn;
            }
            self.write_superblock(upkeep, Lsn(u64::MAX))?;
        }
        let moved = live.moved + written + (live.chunks.len() + live.blocks.len()) as u64;
        Ok(Emptied { moved, latched: live.dirty.len() as u64 - written })
    }

    /// Dirty pages need a new image anyway; those latched just now are moved by a later visit. Unlike write-back, the
    /// cleaner may use the last segments: what it frees is worth more.
    fn write_dirty_elsewhere(&self, upkeep: &mut Upkeep, dirty: &[PageId]) -> Result<u64> {
        // Write-back may have called for this, and goes on afterwards.
        let before = std::mem::replace(&mut upkeep.cause, Cause::Cleaner);
        let written = batches(dirty, upkeep.staging.len())
            .try_fold(0, |written, batch| Ok(written + self.write_claimed(upkeep, batch, 0)? as u64));
        upkeep.cause = before;
        written
    }

    /// Reads `segment` piece by piece, moves the images that are to be copied, and returns what else counts. At each place an
    /// image may begin: whatever its bytes say, it counts if what they name is here by the page table. What is to be copied
    /// gathers at the beginning of the staging buffer, so that it is read once.
    fn move_live(&self, upkeep: &mut Upkeep, segment: Extent) -> Result<Live> {
        let mut live = Live::default();
        let (mut staged, mut held): (Vec<(PageId, Extent)>, usize) = (Vec::new(), 0);
        let mut place = segment.first;
        while place < segment.end() {
            let room = ((upkeep.staging.len() - held) / PLACE_BYTES) as u64;
            let places = self.piece_places(upkeep).min(room).min(segment.end() - place);
            let piece = Extent { first: place, places };
            self.read_piece(upkeep, held, piece)?;
            let read_at = held;
            while place < piece.end() {
                let at = read_at + (place - piece.first) as usize * PLACE_BYTES;
                let header = &upkeep.staging[at..at + page::HEADER_BYTES];
                let (id, kind) = (page::page_id(header), page::kind(header));
                let found = self.sort_image(upkeep, id, kind, place, &mut live);
                if let Found::ToCopy(extent) = found {
                    if !extent.suits(class_of_page(id).page_bytes()) || extent.end() > segment.end() {
                        let mapped = self.durable_state(id);
                        return Err(self.damaged(id, mapped, "there is no room for this image at its place"));
                    }
                    if extent.end() > piece.end() {
                        // The next piece begins with it.
                        break;
                    }
                    upkeep.staging.copy_within(at..at + extent.bytes(), held);
                    staged.push((id, extent));
                    held += extent.bytes();
                }
                place += found.places();
            }
            let longest = self.image_places_max() as usize * PLACE_BYTES;
            if upkeep.staging.len() - held < longest || place >= segment.end() {
                self.move_staged(upkeep, &staged)?;
                live.moved += staged.len() as u64;
                staged.clear();
                held = 0;
            }
        }
        Ok(live)
    }

    fn read_piece(&self, upkeep: &mut Upkeep, at: usize, piece: Extent) -> Result<()> {
        let read = self.read_pieces(upkeep, at, piece);
        read.map_err(|source| Error::io("read", self.device.name(), Some(piece.offset()), source))?;
        self.stats.count_read(0, piece.bytes());
        Ok(())
    }

    /// What there may be of an image at `place`. Notes those that count, unless they are to be copied.
    fn sort_image(&self, upkeep: &Upkeep, id: PageId, kind: u8, place: u64, live: &mut Live) -> Found {
        let mapping = &upkeep.mapping;
        let here = |mapped: Mapped| mapped.extent().filter(|extent| extent.first == place);
        let found = if kind == Kind::Chunk as u8 {
            let found = mapping.chunks().get(id).and_then(|chunk| here(chunk.image));
            live.chunks.extend(found.map(|_| id));
            found
        } else if kind == Kind::Directory as u8 {
            let found = mapping.blocks().get(id).and_then(|block| here(block.image));
            live.blocks.extend(found.map(|_| id));
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
        found.map_or(Found::Nothing, Found::Noted)
    }

    /// Copies the staged images of `pages`, which are at these places, to new ones, in the order of their ids.
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
            // It was read past the cache.
            page::vouch(image, id, mapped).map_err(|what| self.damaged(id, mapped, what))?;
            let (lsn, checksum) = (page::lsn(image), page::checksum(image).0);
            images.push(Image { id, lsn, checksum, places: extent.places });
            at += extent.bytes();
        }
        self.stats.count_read(images.len(), 0);
        sort_staged(&mut upkeep.staging, PLACE_BYTES, &mut images);
        let extents = self.space.allocate_or_grow(&lengths(&images), 0, Stream::Moved)?;
        let free = || extents.iter().for_each(|&extent| self.free_places(extent));
        upkeep.moving = true;
        let written = self.write_images(upkeep, &images, &extents);
        upkeep.moving = false;
        let lsn = written.inspect_err(|_| free())?;
        let mut at = 0;
        for (image, &extent) in images.iter().zip(&extents) {
            if let Some(cache) = &self.cache
                && let Some(old) = self.durable_state(image.id).extent()
            {
                cache.relocate(old.offset(), extent.offset(), &upkeep.staging[at..at + extent.bytes()]);
            }
            at += extent.bytes();
            self.put_in_force(upkeep, image, Mapped::at(extent, image.checksum), lsn);
        }
        self.stats.images_moved.fetch_add(images.len() as u64, Relaxed);
        Ok(())
    }
}

/// What begins at a place.
#[derive(Clone, Copy)]
enum Found {
    /// No image that counts.
    Nothing,
    /// One that was noted as live.
    Noted(Extent),
    /// One that is to be copied as it is.
    ToCopy(Extent),
}

impl Found {
    /// How many places on to look for the next.
    fn places(self) -> u64 {
        match self {
            Found::Nothing => 1,
            Found::Noted(extent) | Found::ToCopy(extent) => extent.places,
        }
    }
}

/// Brings `images`, and what is staged of them, in the order of their ids. They stand one behind the other.
fn sort_staged(staging: &mut [u8], place_bytes: usize, images: &mut [Image]) {
    let mut end = 0;
    let starts = images.iter().map(|image| (image.id, (end, end += image.places as usize).0));
    let mut starts: Vec<(PageId, usize)> = starts.collect();
    starts.sort_unstable();
    images.sort_unstable_by_key(|image| image.id);
    let from: Vec<usize> = images
        .iter()
        .zip(starts)
        .flat_map(|(image, (_, start))| start..start + image.places as usize)
        .collect();
    for place in 0..from.len() {
        // What belongs here has been swapped away as often as a lower place was filled from where it was.
        let mut now = from[place];
        while now < place {
            now = from[now];
        }
        if now != place {
            let (low, high) = staging.split_at_mut(now * place_bytes);
            low[place * place_bytes..(place + 1) * place_bytes].swap_with_slice(&mut high[..place_bytes]);
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
            let places = |id: u8| 1 + (u64::from(id) + seed) % 3;
            // Each place says whose it is and the how manyth.
            let bytes = |&id: &u8| (0..places(id) as u8).flat_map(move |at| [id, at]);
            let mut staging: Vec<u8> = ids.iter().flat_map(bytes).collect();
            let image = |&id: &u8| Image {
                id: PageId(u64::from(id)),
                lsn: Lsn(9),
                checksum: u32::from(id) + 1,
                places: places(id),
            };
            let mut images: Vec<Image> = ids.iter().map(image).collect();
            sort_staged(&mut staging, 2, &mut images);
            ids.sort_unstable();
            assert_eq!(staging, ids.iter().flat_map(bytes).collect::<Vec<u8>>(), "seed {seed}");
            for (image, &id) in images.iter().zip(&ids) {
                let known = (image.id, image.checksum, image.places);
                assert_eq!(known, (PageId(u64::from(id)), u32::from(id) + 1, places(id)), "seed {seed}");
            }
        }
    }
}
