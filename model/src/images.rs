//! Images: written, synced, named by a mapping record, in force. Chunks of the page table, cut and
//! superblock.

use crate::disk::{CHUNK_PAGES, Chunk, Content, Image, Kind, MappingWord, Superblock};
use crate::flags::Flag;
use crate::world::{ChunkInFlight, ImageInFlight, Outcome, PendingSuperblock, Progress, World};

/// Images in flight at a time.
const IMAGES_MAX: usize = 2;

impl World {
    /// The checkpoint writes a dirty page to a free block.
    pub fn write_image(&mut self, page: usize) -> Outcome {
        let pages = &self.life.pages;
        let is_dirty = pages.words[page].is_allocated && pages.rec_lsn[page] != 0;
        if !is_dirty || self.is_claimed(page, false) {
            return Ok(false);
        }
        let content = self.content(page)?;
        self.put_in_flight(page, content, false)
    }

    /// The cleaner copies an image to a free block.
    pub fn move_image(&mut self, page: usize) -> Outcome {
        if self.is_claimed(page, true) {
            return Ok(false);
        }
        let word = self.life.pages.words[page];
        match self.image(page, word)? {
            Some(content) if word.is_allocated => self.put_in_flight(page, content, true),
            _ => Ok(false),
        }
    }

    fn put_in_flight(&mut self, page: usize, content: Content, by_cleaner: bool) -> Outcome {
        if self.life.images.len() >= IMAGES_MAX || self.life.work.restructuring.is_some() {
            return Ok(false);
        }
        let Some(block) = self.take_block() else { return Ok(false) };
        self.disk.blocks[block].set(Image { page, content, is_torn: false });
        let old_block = self.life.pages.words[page].block;
        let progress = Progress::Written;
        self.life.images.push(ImageInFlight { page, block, old_block, content, progress, by_cleaner });
        let who = if by_cleaner { "cleaner" } else { "checkpoint" };
        self.note(|| format!("the {who} writes page {page} LSN {} to block {block}", content.lsn));
        Ok(true)
    }

    /// Syncs the page file.
    pub fn sync_pages(&mut self) -> Outcome {
        let disk = &self.disk;
        let mut any = disk.blocks.iter().any(crate::cell::Cell::is_unsynced);
        any |= disk.chunks.iter().flatten().any(crate::cell::Cell::is_unsynced);
        self.disk.sync_pages();
        let frees = self.lacks(Flag::FreeAtImageSync);
        for image in &mut self.life.images {
            if image.progress == Progress::Written {
                image.progress = Progress::Synced;
                any = true;
                if frees && let Some(block) = image.old_block {
                    self.life.taken[block] = false;
                }
            }
        }
        for chunk in self.life.chunks.in_flight.iter_mut().flatten() {
            any |= !chunk.is_synced;
            chunk.is_synced = true;
        }
        if any {
            self.note(|| "the page file is synced".to_owned());
        }
        Ok(any)
    }

    /// Appends the mapping record of an image.
    pub fn append_mapping(&mut self, at: usize) -> Outcome {
        let Some(&image) = self.life.images.get(at) else { return Ok(false) };
        let early = self.lacks(Flag::MappingBeforeImageSync) && image.progress == Progress::Written;
        if !(image.progress == Progress::Synced || early) || !self.may_append(1) {
            return Ok(false);
        }
        let ImageInFlight { page, block, content, .. } = image;
        let record = self.append(Kind::Mapping { page, block, image_lsn: content.lsn });
        self.life.images[at].progress = Progress::Appended(record.lsn);
        if !self.lacks(Flag::ChunkDirtyInForce) {
            self.dirty_chunk(page, record.lsn);
        }
        if self.lacks(Flag::ChunkHoldsUndurable) {
            self.life.images[at].old_block = self.life.pages.words[page].block;
            self.life.pages.words[page] = MappingWord::at(block, content.lsn);
            self.life.chunks.last[page / CHUNK_PAGES] = record.lsn;
        }
        if self.lacks(Flag::FreeAtMappingAppend)
            && let Some(block) = image.old_block
        {
            self.life.taken[block] = false;
        }
        self.note(|| format!("record {}: page {page} has its image in block {block}", record.lsn));
        Ok(true)
    }

    /// Puts a mapping in force whose record is durable.
    pub fn put_in_force(&mut self, at: usize) -> Outcome {
        let Some(&image) = self.life.images.get(at) else { return Ok(false) };
        let Progress::Appended(lsn) = image.progress else { return Ok(false) };
        if lsn > self.life.log.durable || self.life.work.restructuring.is_some() {
            return Ok(false);
        }
        self.life.images.remove(at);
        let page = image.page;
        if !self.lacks(Flag::UnsealNotAtMapping) {
            self.unseal_older(page, image.content.lsn);
        }
        if self.lacks(Flag::ChunkDirtyInForce) {
            self.dirty_chunk(page, lsn);
        }
        if !self.life.pages.words[page].is_allocated {
            self.life.taken[image.block] = false;
            return Ok(true);
        }
        let mut old = image.old_block;
        if !self.lacks(Flag::ChunkHoldsUndurable) {
            old = self.life.pages.words[page].block;
            self.life.pages.words[page] = MappingWord::at(image.block, image.content.lsn);
            let last = &mut self.life.chunks.last[page / CHUNK_PAGES];
            *last = (*last).max(lsn);
        }
        let is_free = self.lacks(Flag::FreeAtMappingAppend) || self.lacks(Flag::FreeAtImageSync);
        if let Some(block) = old
            && !is_free
        {
            self.free_block(block);
        }
        if !image.by_cleaner {
            self.move_rec_lsn(page, image.content.lsn, lsn);
        }
        let rec_lsn = self.life.pages.rec_lsn[page];
        self.note(|| format!("page {page}: block {} is in force, recLSN {rec_lsn}", image.block));
        Ok(true)
    }

    fn move_rec_lsn(&mut self, page: usize, image_lsn: u32, mapping: u32) {
        let is_wrong = self.lacks(Flag::RecLsnOfMapping);
        let pages = &mut self.life.pages;
        pages.changes[page].retain(|&lsn| lsn > image_lsn);
        pages.rec_lsn[page] = match pages.changes[page].first() {
            None => 0,
            Some(_) if is_wrong => mapping,
            Some(&first) => first,
        };
    }

    /// A chunk lacks the record at `lsn`.
    pub fn dirty_chunk(&mut self, page: usize, lsn: u32) {
        let dirty = &mut self.life.chunks.dirty[page / CHUNK_PAGES];
        *dirty = if *dirty == 0 { lsn } else { lsn.min(*dirty) };
    }

    /// First mapping record of the chunk that is not in force.
    fn first_unapplied(&self, chunk: usize) -> Option<u32> {
        let of_chunk = self.life.images.iter().filter(|image| image.page / CHUNK_PAGES == chunk);
        let lsns = of_chunk.filter_map(|image| match image.progress {
            Progress::Appended(lsn) => Some(lsn),
            _ => None,
        });
        lsns.min()
    }

    /// Writes a chunk's image, with durable mappings only.
    pub fn write_chunk(&mut self, chunk: usize) -> Outcome {
        let chunks = &self.life.chunks;
        let takes_all = self.lacks(Flag::ChunkHoldsUndurable);
        let durable = self.life.log.durable;
        let is_busy = chunks.in_flight[chunk].is_some() || self.life.work.restructuring.is_some();
        if chunks.dirty[chunk] == 0 || is_busy || (!takes_all && chunks.last[chunk] > durable) {
            return Ok(false);
        }
        let current_to = match self.first_unapplied(chunk) {
            _ if takes_all => durable.max(chunks.last[chunk]),
            Some(lsn) => durable.min(lsn - 1),
            None => durable,
        };
        let slot = if self.lacks(Flag::ChunkInPlace) { 0 } else { 1 - chunks.slot[chunk] };
        let version = chunks.version[chunk] + 1;
        let words = &self.life.pages.words[chunk * CHUNK_PAGES..];
        let image = Chunk { version, current_to, words: [words[0], words[1]], is_torn: false };
        self.disk.chunks[chunk][slot].set(image);
        self.life.chunks.version[chunk] = version;
        self.life.chunks.in_flight[chunk] = Some(ChunkInFlight { is_synced: false, slot });
        self.note(|| format!("chunk {chunk} is written, current to {current_to}"));
        Ok(true)
    }

    /// Ends a chunk's image that is synced.
    pub fn end_chunk(&mut self, chunk: usize) -> Outcome {
        let Some(ChunkInFlight { is_synced: true, slot }) = self.life.chunks.in_flight[chunk] else {
            return Ok(false);
        };
        let current_to = self.disk.chunks[chunk][slot].get().current_to;
        let in_force_only = self.lacks(Flag::ChunkDirtyInForce);
        let mut lacking = Vec::new();
        lacking.extend(self.first_unapplied(chunk).filter(|&lsn| lsn > current_to && !in_force_only));
        lacking.extend((self.life.chunks.last[chunk] > current_to).then_some(current_to + 1));
        if let Some(record) = self.life.work.restructuring
            && record.kind.maps().is_some_and(|page| page / CHUNK_PAGES == chunk)
            && !in_force_only
        {
            lacking.push(record.lsn);
        }
        let dirty = lacking.into_iter().min().unwrap_or(0);
        let chunks = &mut self.life.chunks;
        chunks.in_flight[chunk] = None;
        chunks.slot[chunk] = slot;
        chunks.dirty[chunk] = dirty;
        self.note(|| format!("chunk {chunk} is durable, dirty from {dirty}"));
        Ok(true)
    }

    /// The highest cut that loses nothing.
    fn highest_cut(&self) -> u32 {
        let life = &self.life;
        let mut cut = if self.lacks(Flag::CutPastWatermark) { life.log.tail } else { life.log.durable + 1 };
        let mut hold =
            |lsns: &mut dyn Iterator<Item = u32>| cut = lsns.filter(|&lsn| lsn != 0).fold(cut, u32::min);
        if !self.lacks(Flag::CutIgnoresRecLsn) {
            hold(&mut life.pages.rec_lsn.iter().copied());
        }
        hold(&mut life.freed.iter().map(|freed| freed.rec_lsn));
        if !self.lacks(Flag::CutPastCommitInFlight) {
            let ends_early = self.lacks(Flag::CommitEndsAtUnlock);
            let in_flight = life.work.transactions.iter().filter(|one| one.commit.is_none() || !ends_early);
            hold(&mut in_flight.map(|one| one.first));
        }
        if !self.lacks(Flag::SplitNotInFlight) {
            hold(&mut life.work.restructuring.iter().map(|record| record.lsn));
        }
        if !self.lacks(Flag::CutPastDirtyChunk) {
            hold(&mut life.chunks.dirty.iter().copied());
        }
        if !self.lacks(Flag::CutPastLosers) {
            hold(&mut life.work.losers.iter().map(|loser| loser.first));
        }
        if !self.lacks(Flag::BackupCutsLog) {
            hold(&mut life.backup.iter().map(|backup| backup.cut));
        }
        cut
    }

    /// The cut now.
    pub fn cut_now(&self) -> u32 {
        self.highest_cut()
    }

    /// Computes a cut that is written later (a planted bug).
    pub fn compute_cut(&mut self) -> Outcome {
        let cut = self.highest_cut();
        if !self.lacks(Flag::CutComputedEarly) || self.life.computed_cut.is_some() || cut <= self.life.log.cut
        {
            return Ok(false);
        }
        self.life.computed_cut = Some(cut);
        self.note(|| format!("the cut {cut} is computed"));
        Ok(true)
    }

    /// Writes a superblock with a higher cut.
    pub fn write_cut(&mut self) -> Outcome {
        let pending = self.life.pending;
        if (pending.is_some() && !self.lacks(Flag::TwoSuperblockWrites)) || self.life.is_closing {
            return Ok(false);
        }
        let cut = if self.lacks(Flag::CutComputedEarly) {
            self.life.computed_cut.take().unwrap_or(0)
        } else {
            self.highest_cut()
        };
        if cut <= self.life.log.cut || pending.is_some_and(|pending| pending.cut >= cut) {
            return Ok(false);
        }
        self.life.names_ring = self.life.log.has_ring;
        self.write_superblock(cut, self.life.log.capacity);
        if self.lacks(Flag::RecycleBeforeSuperblock) {
            self.life.log.cut = cut;
        }
        self.note(|| format!("a superblock with cut {cut} is written"));
        Ok(true)
    }

    /// Writes a superblock to the slot that is not the newest.
    pub fn write_superblock(&mut self, cut: u32, capacity: u32) {
        let life = &mut self.life;
        life.generation += 1;
        life.superblock_slot = 1 - life.superblock_slot;
        self.disk.superblocks[life.superblock_slot].set(Superblock {
            generation: life.generation,
            cut,
            epoch: life.log.epoch,
            epoch_first: life.log.epoch_first,
            log_end: life.log.durable,
            capacity,
            timeline: life.timeline,
            life: life.number,
            names_ring: life.names_ring,
            is_torn: false,
        });
        life.pending = Some(PendingSuperblock { cut, capacity });
    }

    /// Syncs it; only then is the space below the cut reused, and the new capacity used.
    pub fn sync_superblock(&mut self) -> Outcome {
        let Some(pending) = self.life.pending.take() else { return Ok(false) };
        self.disk.superblocks.iter_mut().for_each(crate::cell::Cell::sync);
        let log = &mut self.life.log;
        log.cut = log.cut.max(pending.cut);
        if pending.capacity != log.capacity {
            log.capacity = pending.capacity;
            log.growth = None;
        }
        self.life.is_epoch_synced = true;
        self.note(|| format!("the superblock is synced: cut {}, {} records", pending.cut, pending.capacity));
        Ok(true)
    }

    /// Closes: all is filed and synced, so the superblock need not name the ring any more.
    pub fn close(&mut self) -> Outcome {
        let life = &self.life;
        let log = &life.log;
        let is_idle = life.work.transactions.is_empty() && life.work.restructuring.is_none();
        let is_filled = log.unfilled.is_empty() && !log.holds_next && log.durable + 1 == log.tail;
        let is_filed = log.filed == log.durable || self.lacks(Flag::ClearRingEarly);
        let is_busy = life.pending.is_some() || log.growth.is_some() || life.backup.is_some();
        if !life.is_open || !log.has_ring || life.is_closing || !is_idle || !is_filled || !is_filed || is_busy
        {
            return Ok(false);
        }
        self.life.is_closing = true;
        self.life.names_ring = false;
        self.write_superblock(self.life.log.cut, self.life.log.capacity);
        self.note(|| "closing: a superblock without the ring is written".to_owned());
        Ok(true)
    }
}
