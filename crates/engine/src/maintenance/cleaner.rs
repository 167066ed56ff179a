//! The cleaner: empties sparse segments, so that a free one is always available.
//!
//! The page table says which images of a segment are live. The cleaner writes back pages that are
//! dirty in a frame, copies other images unchanged, and rewrites chunks and directory blocks. It
//! admits nothing to a block cache, but cached blocks follow their moved image.

use std::sync::atomic::Ordering::Relaxed;

use super::flush::{Image, SPARE_SEGMENTS, batches, lengths};
use super::rounds::Maintenance;
use super::state::RoundState;
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId};
use crate::pool::resident::class_of_page;
use crate::pool::stats::Cause;
use crate::store::mapping_word::{BLOCK_BYTES, Extent, MappingWord};
use crate::store::page::{self, Kind};
use crate::store::space::Stream;

const FREE_MIN: u64 = 4;
/// Minimum share of free segments.
const FREE_SHARE: u64 = 32;
/// Upper bound of log bytes per moved image.
const LOG_BYTES_PER_BLOCK: u64 = 64;
const SEGMENTS_PER_ROUND: u32 = 8;

#[derive(Default)]
struct Live {
    moved: u64,
    dirty: Vec<PageId>,
    chunks: Vec<PageId>,
    blocks: Vec<PageId>,
}

pub(super) struct Emptied {
    pub(super) moved: u64,
    latched: u64,
}

impl Maintenance {
    pub(super) fn clean_segments(&self, round_state: &mut RoundState) -> Result<()> {
        for _ in 0..SEGMENTS_PER_ROUND {
            let wanted = FREE_MIN.max(self.space.segments() / FREE_SHARE);
            if self.space.free_segments() >= wanted || !self.clean_one(round_state)? {
                return Ok(());
            }
            // The log grows meanwhile, and commits wait when it is full.
            self.checkpoint_step(round_state)?;
        }
        Ok(())
    }

    pub(super) fn make_room(&self, round_state: &mut RoundState, blocks: u64) -> Result<()> {
        // The end of a segment may be too short for the next image.
        let filled = self.space.geometry().segment_blocks - (self.pool.image_blocks_max() - 1);
        let wanted = blocks.div_ceil(filled) + SPARE_SEGMENTS + 1;
        // The caller may be a checkpoint, whose log must not fill up.
        let log_of_a_segment = self.space.geometry().segment_blocks * LOG_BYTES_PER_BLOCK;
        let mut urgent = false;
        for _ in 0..self.space.segments() * 2 {
            let free = self.space.free_segments();
            if free >= wanted || !self.has_log_left(round_state, log_of_a_segment)? {
                break;
            }
            let visited = self.clean_one(round_state)?;
            if self.space.free_segments() > free {
                urgent = false;
            } else if !visited && (std::mem::replace(&mut urgent, true) || !round_state.left_alone.hurry()) {
                // Latches may be released by now: look once more before reporting no room.
                break;
            }
        }
        Ok(())
    }

    fn has_log_left(&self, round_state: &mut RoundState, bytes: u64) -> Result<bool> {
        let left = self.wal.capacity().saturating_sub(self.wal.tail().0 - self.wal.cut().0);
        if left >= bytes || !self.requests.is_recovering() {
            return Ok(left >= bytes);
        }
        match self.find_log(round_state, bytes) {
            Err(Error::Full { .. }) => Ok(false),
            found => found.map(|()| true),
        }
    }

    /// Empties the best segment. Returns `false` if none is worth it.
    ///
    /// A segment with latched pages frees none of the room that its other images took. So the
    /// cleaner begins a segment only if everything left behind, plus a segment for the checkpoint,
    /// has room.
    fn clean_one(&self, round_state: &mut RoundState) -> Result<bool> {
        if self.in_memory {
            return Ok(false);
        }
        self.keep_log_for_maintenance(round_state);
        let segment_blocks = self.space.geometry().segment_blocks;
        round_state.left_alone.looks += 1;
        let left = match round_state.left_alone.blocks(&self.space) {
            0 => 0,
            blocks => blocks + segment_blocks,
        };
        let room = self.space.room();
        let left_alone = &round_state.left_alone;
        let may_touch = |segment, live| {
            let is_begun = left_alone.segments.contains_key(&segment);
            left_alone.is_due(segment) && (is_begun || live + left <= room)
        };
        let Some((victim, filled_at)) = self.space.victim(segment_blocks - 1, may_touch) else {
            return Ok(false);
        };
        let tries = round_state.left_alone.segments.remove(&victim).map_or(0, |stubborn| stubborn.tries) + 1;
        match self.empty(round_state, victim) {
            Ok(_) if self.space.live_in(victim) == 0 => {}
            // An unlatched image is left: a backup holds it, or its header is damaged.
            Ok(emptied) => round_state.left_alone.leave(victim, filled_at, tries, emptied.latched == 0),
            // Damage to one page must not stop the others. Reading or verifying that page reports
            // it.
            Err(error @ (Error::Corrupt { .. } | Error::Io { operation: "read", .. })) => {
                tracing::error!(%error, victim, "a segment cannot be emptied");
                round_state.left_alone.leave(victim, filled_at, tries, true);
            }
            Err(error) => {
                round_state.left_alone.leave(victim, filled_at, tries, false);
                return Err(error);
            }
        }
        Ok(true)
    }

    pub(super) fn empty(&self, round_state: &mut RoundState, victim: u64) -> Result<Emptied> {
        let geometry = self.space.geometry();
        let segment = Extent { first: geometry.first_block(victim), blocks: geometry.segment_blocks };
        let mut live = self.move_live(round_state, segment)?;
        live.dirty.sort_unstable();
        let written = self.write_dirty_elsewhere(round_state, &live.dirty)?;
        let current = self.absorb(round_state);
        for batch in live.chunks.chunks(self.table_image.staging_table_images(round_state)) {
            self.find_log_of(round_state, batch.len())?;
            self.table_image.write_chunks(round_state, batch, current)?;
        }
        if !live.blocks.is_empty() {
            let lsn = self.wal.persistent();
            for &block in &live.blocks {
                round_state.mapping.blocks_mut().entry(block).dirty = lsn;
            }
            self.write_superblock(round_state, Lsn(u64::MAX))?;
        }
        let moved = live.moved + written + (live.chunks.len() + live.blocks.len()) as u64;
        Ok(Emptied { moved, latched: live.dirty.len() as u64 - written })
    }

    /// Writes back dirty pages, except latched ones. May use the last segments, because it frees
    /// more.
    fn write_dirty_elsewhere(&self, round_state: &mut RoundState, dirty: &[PageId]) -> Result<u64> {
        // The caller may be write-back, which continues afterwards.
        let before = std::mem::replace(&mut round_state.cause, Cause::Cleaner);
        let written = batches(dirty, round_state.staging.bytes.len()).try_fold(0, |written, batch| {
            self.find_log_of(round_state, batch.len())?;
            Ok(written + self.flush.claim_and_write(round_state, batch, 0)? as u64)
        });
        round_state.cause = before;
        written
    }

    /// Copies the clean images of `segment`, and returns the other live ones. Images to copy gather
    /// at the start of the staging buffer, so each is read once.
    fn move_live(&self, round_state: &mut RoundState, segment: Extent) -> Result<Live> {
        let mut live = Live::default();
        let (mut staged, mut held): (Vec<(PageId, Extent)>, usize) = (Vec::new(), 0);
        let mut next_block = segment.first;
        while next_block < segment.end() {
            let room = ((round_state.staging.bytes.len() - held) / BLOCK_BYTES) as u64;
            let blocks =
                self.file.piece_blocks(&round_state.staging).min(room).min(segment.end() - next_block);
            let piece = Extent { first: next_block, blocks };
            self.read_piece(round_state, held, piece)?;
            let read_at = held;
            while next_block < piece.end() {
                let at = read_at + (next_block - piece.first) as usize * BLOCK_BYTES;
                let header = &round_state.staging.bytes[at..at + page::HEADER_BYTES];
                let (id, kind) = (page::page_id(header), page::kind(header));
                let found = self.sort_image(round_state, id, kind, next_block, &mut live);
                if let SegmentEntry::ToCopy(extent) = found {
                    if !extent.suits(class_of_page(id).page_bytes()) || extent.end() > segment.end() {
                        let mapped = self.durable_state(id);
                        return Err(self.pool.images.damaged(
                            id,
                            mapped,
                            "there is no room for this image at its block",
                        ));
                    }
                    if extent.end() > piece.end() {
                        break;
                    }
                    round_state.staging.bytes.copy_within(at..at + extent.bytes(), held);
                    staged.push((id, extent));
                    held += extent.bytes();
                }
                next_block += found.blocks();
            }
            let longest = self.pool.image_blocks_max() as usize * BLOCK_BYTES;
            if round_state.staging.bytes.len() - held < longest || next_block >= segment.end() {
                self.move_staged(round_state, &staged)?;
                live.moved += staged.len() as u64;
                staged.clear();
                held = 0;
            }
        }
        Ok(live)
    }

    fn read_piece(&self, round_state: &mut RoundState, at: usize, piece: Extent) -> Result<()> {
        let read = self.file.read_pieces(&mut round_state.staging, at, piece);
        read.map_err(|source| Error::io("read", self.file.name(), Some(piece.offset()), source))?;
        self.pool.stats.count_read(0, piece.bytes());
        Ok(())
    }

    /// Classifies the image at `next_block`, and notes a live one that is not to be copied.
    fn sort_image(
        &self,
        round_state: &RoundState,
        id: PageId,
        kind: u8,
        next_block: u64,
        live: &mut Live,
    ) -> SegmentEntry {
        let mapping = &round_state.mapping;
        let here = |mapped: MappingWord| mapped.extent().filter(|extent| extent.first == next_block);
        let found = if kind == Kind::Chunk as u8 {
            let found = mapping.chunks().get(id).and_then(|chunk| here(chunk.image));
            live.chunks.extend(found.map(|_| id));
            found
        } else if kind == Kind::Directory as u8 {
            let found = mapping.blocks().get(id).and_then(|block| here(block.image));
            live.blocks.extend(found.map(|_| id));
            found
        } else if let Some(entry) = self.pool.table.entry(id)
            && let Some(extent) = here(self.durable_state(id))
        {
            if !(entry.location().frame().is_some() && entry.latch().load().is_dirty()) {
                return SegmentEntry::ToCopy(extent);
            }
            live.dirty.push(id);
            Some(extent)
        } else {
            None
        };
        found.map_or(SegmentEntry::Nothing, SegmentEntry::Noted)
    }

    fn move_staged(&self, round_state: &mut RoundState, pages: &[(PageId, Extent)]) -> Result<()> {
        let mut images = Vec::with_capacity(pages.len());
        let mut at = 0;
        for &(id, extent) in pages {
            let mapped = self.durable_state(id);
            debug_assert_eq!(
                mapped.extent(),
                Some(extent),
                "the durable state changes under the lock of the rounds only"
            );
            let image = &round_state.staging.bytes[at..at + extent.bytes()];
            // The bytes bypassed the cache.
            page::verify_image(image, id, mapped)
                .map_err(|what| self.pool.images.damaged(id, mapped, what))?;
            let (lsn, checksum) = (page::lsn(image), page::checksum(image).0);
            images.push(Image { id, lsn, checksum, blocks: extent.blocks });
            at += extent.bytes();
        }
        self.pool.stats.count_read(images.len(), 0);
        sort_staged(&mut round_state.staging.bytes, BLOCK_BYTES, &mut images);
        self.find_log_of(round_state, images.len())?;
        let extents = self.space.allocate_or_grow(&lengths(&images), 0, Stream::Moved)?;
        let free = || extents.iter().for_each(|&extent| self.file.free_blocks(extent));
        round_state.staging.moving = true;
        let written = self.flush.write_images(round_state, &images, &extents);
        round_state.staging.moving = false;
        let lsn = written.inspect_err(|_| free())?;
        let mut at = 0;
        for (image, &extent) in images.iter().zip(&extents) {
            if let Some(cache) = &self.file.cache
                && let Some(old) = self.durable_state(image.id).extent()
            {
                cache.relocate(
                    old.offset(),
                    extent.offset(),
                    &round_state.staging.bytes[at..at + extent.bytes()],
                );
            }
            at += extent.bytes();
            self.flush.put_in_force(round_state, image, MappingWord::at(extent, image.checksum), lsn);
        }
        self.pool.stats.images_moved.fetch_add(images.len() as u64, Relaxed);
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum SegmentEntry {
    Nothing,
    Noted(Extent),
    ToCopy(Extent),
}

impl SegmentEntry {
    /// Blocks up to the next possible image.
    fn blocks(self) -> u64 {
        match self {
            SegmentEntry::Nothing => 1,
            SegmentEntry::Noted(extent) | SegmentEntry::ToCopy(extent) => extent.blocks,
        }
    }
}

/// Sorts `images`, and their adjacent bytes in `staging`, by id.
fn sort_staged(staging: &mut [u8], block_bytes: usize, images: &mut [Image]) {
    let mut end = 0;
    let starts = images.iter().map(|image| (image.id, (end, end += image.blocks as usize).0));
    let mut starts: Vec<(PageId, usize)> = starts.collect();
    starts.sort_unstable();
    images.sort_unstable_by_key(|image| image.id);
    let from: Vec<usize> = images
        .iter()
        .zip(starts)
        .flat_map(|(image, (_, start))| start..start + image.blocks as usize)
        .collect();
    for next_block in 0..from.len() {
        // Earlier swaps may have moved this block.
        let mut now = from[next_block];
        while now < next_block {
            now = from[now];
        }
        if now != next_block {
            let (low, high) = staging.split_at_mut(now * block_bytes);
            low[next_block * block_bytes..(next_block + 1) * block_bytes]
                .swap_with_slice(&mut high[..block_bytes]);
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
            let blocks = |id: u8| 1 + (u64::from(id) + seed) % 3;
            // Each block holds its image's id and its own number.
            let bytes = |&id: &u8| (0..blocks(id) as u8).flat_map(move |at| [id, at]);
            let mut staging: Vec<u8> = ids.iter().flat_map(bytes).collect();
            let image = |&id: &u8| Image {
                id: PageId(u64::from(id)),
                lsn: Lsn(9),
                checksum: u32::from(id) + 1,
                blocks: blocks(id),
            };
            let mut images: Vec<Image> = ids.iter().map(image).collect();
            sort_staged(&mut staging, 2, &mut images);
            ids.sort_unstable();
            assert_eq!(staging, ids.iter().flat_map(bytes).collect::<Vec<u8>>(), "seed {seed}");
            for (image, &id) in images.iter().zip(&ids) {
                let known = (image.id, image.checksum, image.blocks);
                assert_eq!(known, (PageId(u64::from(id)), u32::from(id) + 1, blocks(id)), "seed {seed}");
            }
        }
    }
}
