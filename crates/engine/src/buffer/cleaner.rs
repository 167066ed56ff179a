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
use super::write_back::{Image, places};
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId};
use crate::store::page::{self, Kind};
use crate::store::place::Mapped;
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

    /// Write-back found no room for `pages` images: empties segments until there is.
    pub(super) fn make_room(&self, upkeep: &mut Upkeep, pages: u64) -> Result<()> {
        let wanted =
            pages.div_ceil(self.space.geometry().segment_pages) + super::write_back::SPARE_SEGMENTS + 1;
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
        let Some((victim, filled_at)) = self.space.victim(geometry.segment_pages - 1, may_touch) else {
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
        let mut live = self.move_live(upkeep, first, first + geometry.segment_pages)?;
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
        let written = dirty.chunks(self.staging_pages(upkeep)).try_for_each(|batch| {
            let runs = self.space.allocate_or_grow(batch.len() as u64, 0, Stream::Changed)?;
            self.write_claimed(upkeep, batch, &runs).map(drop)
        });
        upkeep.cause = before;
        written
    }

    /// Reads the places from `first` to `end` piece by piece, moves the images that are to be copied, and returns what
    /// else counts. What is to be copied gathers at the beginning of the staging buffer, so that it is read once.
    fn move_live(&self, upkeep: &mut Upkeep, first: u64, end: u64) -> Result<Live> {
        let mut live = Live::default();
        let mut staged: Vec<(PageId, u64)> = Vec::new();
        let mut place = first;
        while place < end {
            let room = self.staging_pages(upkeep) - staged.len();
            let count = self.piece_pages(upkeep).min(room).min((end - place) as usize);
            self.read_piece(upkeep, staged.len(), place, count)?;
            for slot in staged.len()..staged.len() + count {
                let start = slot * self.page_bytes;
                let image = &upkeep.staging[start..start + self.page_bytes];
                let (id, kind) = (page::page_id(image), page::kind(image));
                if self.sort_image(upkeep, id, kind, place, &mut live) {
                    upkeep
                        .staging
                        .copy_within(start..start + self.page_bytes, staged.len() * self.page_bytes);
                    staged.push((id, place));
                }
                place += 1;
            }
            if staged.len() == self.staging_pages(upkeep) || place == end {
                self.move_staged(upkeep, &staged)?;
                live.moved += staged.len() as u64;
                staged.clear();
            }
        }
        Ok(live)
    }

    fn read_piece(&self, upkeep: &mut Upkeep, slot: usize, place: u64, pages: usize) -> Result<()> {
        let offset = place * self.page_bytes as u64;
        let bytes = &mut upkeep.staging[slot * self.page_bytes..(slot + pages) * self.page_bytes];
        let read = self.device.read_at(offset, bytes);
        read.map_err(|source| Error::io("read", self.device.name(), Some(offset), source))?;
        self.stats.store_reads.fetch_add(pages as u64, Relaxed);
        Ok(())
    }

    /// Notes an image that counts, unless it is to be copied: whether it is.
    fn sort_image(&self, upkeep: &Upkeep, id: PageId, kind: u8, place: u64, live: &mut Live) -> bool {
        let mapping = &upkeep.mapping;
        let here = |mapped: Mapped| mapped.place() == Some(place);
        if kind == Kind::Chunk as u8 {
            if mapping.chunks.get(id.0 as usize).is_some_and(|chunk| here(chunk.image)) {
                live.chunks.push(id.0);
            }
        } else if kind == Kind::Directory as u8 {
            if mapping.blocks.get(id.0 as usize).is_some_and(|block| here(block.image)) {
                live.blocks.push(id.0 as usize);
            }
        } else if let Some(entry) = self.table.entry(id)
            && here(self.durable_state(id))
        {
            if matches!(entry.location(), Location::Frame(_)) && entry.latch().load().is_dirty() {
                live.dirty.push(id);
            } else {
                return true;
            }
        }
        false
    }

    /// Copies the staged images of `pages`, which are at these places, to new ones, in the order of their ids.
    fn move_staged(&self, upkeep: &mut Upkeep, pages: &[(PageId, u64)]) -> Result<()> {
        let mut images = Vec::with_capacity(pages.len());
        for (slot, &(id, place)) in pages.iter().enumerate() {
            let mapped = self.durable_state(id);
            debug_assert_eq!(
                mapped.place(),
                Some(place),
                "the durable state changes under the upkeep lock only"
            );
            let image = &upkeep.staging[slot * self.page_bytes..(slot + 1) * self.page_bytes];
            self.vouch(id, mapped, image)?;
            images.push(Image { id, lsn: page::lsn(image), checksum: page::checksum(image).0 });
        }
        sort_staged(&mut upkeep.staging, self.page_bytes, &mut images);
        let runs = self.space.allocate_or_grow(images.len() as u64, 0, Stream::Moved)?;
        let places = places(&runs);
        let lsn = self.write_images(upkeep, &images, &runs, &places).inspect_err(|_| {
            for &place in &places {
                self.space.free(place);
            }
        })?;
        for (image, &place) in images.iter().zip(&places) {
            self.put_in_force(upkeep, image, Mapped::at(place, image.checksum), lsn);
        }
        self.stats.images_moved.fetch_add(images.len() as u64, Relaxed);
        Ok(())
    }
}

/// Brings `images`, and what is staged of them, in the order of their ids.
fn sort_staged(staging: &mut [u8], page_bytes: usize, images: &mut [Image]) {
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
            let (low, high) = staging.split_at_mut(now * page_bytes);
            low[slot * page_bytes..(slot + 1) * page_bytes].swap_with_slice(&mut high[..page_bytes]);
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
            let image =
                |&id: &u8| Image { id: PageId(u64::from(id)), lsn: Lsn(9), checksum: u32::from(id) + 1 };
            let mut images: Vec<Image> = ids.iter().map(image).collect();
            sort_staged(&mut staging, 8, &mut images);
            for (slot, image) in images.iter().enumerate() {
                assert_eq!((image.id, image.checksum), (PageId(slot as u64), slot as u32 + 1), "seed {seed}");
                assert_eq!(staging[slot * 8..slot * 8 + 8], [slot as u8; 8], "seed {seed}");
            }
        }
    }
}
