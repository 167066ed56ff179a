//! The cleaner: empties segments in which little is live, so that there is always a free one to write into.
//!
//! It reads a whole segment, asks the page table which of the images in it still count, and moves those: pages that
//! are dirty in a frame are written back instead, others are copied as they are, chunks and directory blocks are
//! written anew. A moved image keeps its LSN and checksum; the mapping record is the same as for any image.

use std::sync::atomic::Ordering::Relaxed;

use terrace_block::Read;

use super::pool::Pool;
use super::stats::Cause;
use super::table::Location;
use super::upkeep::Upkeep;
use super::write_back::Image;
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

/// What is live in a segment.
#[derive(Default)]
struct Live {
    dirty: Vec<PageId>,
    /// Pages to copy, with where their image is.
    moved: Vec<(PageId, Extent)>,
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
        let mut live = self.live_in(upkeep, geometry.first_place(victim), geometry.segment_places)?;
        live.moved.sort_unstable();
        live.dirty.sort_unstable();
        self.write_dirty_elsewhere(upkeep, &live.dirty)?;
        for batch in live.moved.chunks(self.staging_pages(upkeep)) {
            self.move_images(upkeep, batch)?;
        }
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
        Ok((live.dirty.len() + live.moved.len() + live.chunks.len() + live.blocks.len()) as u64)
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

    /// Reads the segment that starts at `first` and sorts what in it still counts. At each place an image may begin: whatever
    /// its bytes say, it counts if what they name is here by the page table.
    fn live_in(&self, upkeep: &mut Upkeep, first: u64, places: u64) -> Result<Live> {
        let mut live = Live::default();
        let file = self.device.name();
        let at_once = places_of(upkeep.staging.len());
        let end = first + places;
        let mut place = first;
        while place < end {
            let read = Extent { first: place, places: at_once.min(end - place) };
            self.device
                .read_at(read.offset(), &mut upkeep.staging[..read.bytes()])
                .map_err(|source| Error::io("read", file, Some(read.offset()), source))?;
            while place < read.end() {
                let start = (place - read.first) as usize * PLACE_BYTES;
                let header = &upkeep.staging[start..start + page::HEADER_BYTES];
                let (id, kind) = (page::page_id(header), page::kind(header));
                place += self.sort_image(upkeep, id, kind, place, &mut live);
            }
        }
        Ok(live)
    }

    /// Sorts the image that may begin at `place`; how many places on to look for the next.
    fn sort_image(&self, upkeep: &Upkeep, id: PageId, kind: u8, place: u64, live: &mut Live) -> u64 {
        let mapping = &upkeep.mapping;
        let here = |mapped: Mapped| mapped.extent().filter(|extent| extent.first == place);
        if kind == Kind::Chunk as u8 {
            let found = mapping.chunks.get(id.0 as usize).and_then(|chunk| here(chunk.image));
            live.chunks.extend(found.map(|_| id.0));
            found.map_or(1, |extent| extent.places)
        } else if kind == Kind::Directory as u8 {
            let found = mapping.blocks.get(id.0 as usize).and_then(|block| here(block.image));
            live.blocks.extend(found.map(|_| id.0 as usize));
            found.map_or(1, |extent| extent.places)
        } else if let Some(entry) = self.table.entry(id)
            && let Some(extent) = here(self.durable_state(id))
        {
            if matches!(entry.location(), Location::Frame(_)) && entry.latch().load().is_dirty() {
                live.dirty.push(id);
            } else {
                live.moved.push((id, extent));
            }
            extent.places
        } else {
            1
        }
    }

    /// Reads the images of `pages` into the staging buffer, all at once, and holds each against what vouches for it.
    fn stage_images(&self, upkeep: &mut Upkeep, pages: &[(PageId, Extent)]) -> Result<Vec<Image>> {
        let mut reads = Vec::with_capacity(pages.len());
        let mut rest = &mut upkeep.staging[..];
        for &(_, extent) in pages {
            let (buffer, behind) = rest.split_at_mut(extent.bytes());
            reads.push(Read::new(extent.offset(), buffer));
            rest = behind;
        }
        self.device.read_batch(&mut reads);
        let mut images = Vec::with_capacity(pages.len());
        for (&(id, extent), read) in pages.iter().zip(reads) {
            let mapped = self.durable_state(id);
            debug_assert_eq!(
                mapped.extent(),
                Some(extent),
                "the durable state changes under the upkeep lock only"
            );
            read.result.map_err(|source| Error::io("read", self.device.name(), Some(read.offset), source))?;
            self.vouch(id, mapped, read.buffer)?;
            let checksum = page::checksum(read.buffer).0;
            images.push(Image { id, lsn: page::lsn(read.buffer), checksum, places: extent.places });
        }
        Ok(images)
    }

    /// Copies images as they are to new places.
    fn move_images(&self, upkeep: &mut Upkeep, pages: &[(PageId, Extent)]) -> Result<()> {
        let lengths: Vec<u64> = pages.iter().map(|(_, extent)| extent.places).collect();
        let extents = self.space.allocate_or_grow(&lengths, 0, Stream::Moved)?;
        let free = || extents.iter().for_each(|&extent| self.space.free(extent));
        let images = self.stage_images(upkeep, pages).inspect_err(|_| free())?;
        let lsn = self.write_images(upkeep, &images, &extents).inspect_err(|_| free())?;
        for (image, &extent) in images.iter().zip(&extents) {
            self.put_in_force(upkeep, image, Mapped::at(extent, image.checksum), lsn);
        }
        self.stats.images_moved.fetch_add(images.len() as u64, Relaxed);
        Ok(())
    }
}
