//! Writes images of the page table: chunks and directory blocks.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;

use super::mapping::Part;
use super::state::RoundState;
use super::transfer::PageFile;
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, PageSet};
use crate::planted::{Bug, planted};
use crate::pool::Pool;
use crate::pool::page_table::Location;
use crate::store::mapping_word::{Extent, MappingWord};
use crate::store::page::{self, HEADER_BYTES, Kind};
use crate::store::space::{Space, Stream};
use crate::wal::{Appended, ChunkEntry, Class, RecordBuilder, Wal};

#[derive(Debug)]
pub(crate) struct TableImage {
    pub(super) pool: Arc<Pool>,
    pub(super) wal: Arc<Wal>,
    pub(super) space: Arc<Space>,
    pub(super) file: Arc<PageFile>,
    /// During recovery: allocated pages that only the log has, until redo puts them into a frame.
    pub(crate) unwritten: Mutex<PageSet>,
}

impl TableImage {
    pub(crate) fn staging_table_images(&self, round_state: &RoundState) -> usize {
        round_state.staging.bytes.len() / self.pool.page_bytes
    }

    /// Writes images of chunks, current to `current`, and logs their extents.
    pub(super) fn write_chunks(
        &self,
        round_state: &mut RoundState,
        names: &[PageId],
        current: Lsn,
    ) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let mut extents = self.extents_of_table(names.len())?;
        let written = self.write_chunk_images(round_state, names, current, &mut extents);
        let (appended, images) = written.inspect_err(|_| {
            extents.iter().for_each(|&extent| self.file.free_blocks(extent));
        })?;
        for (&name, image) in names.iter().zip(images) {
            let chunk = round_state.mapping.chunks_mut().entry(name);
            let old = std::mem::replace(&mut chunk.image, image);
            chunk.dirty = Lsn::NONE;
            round_state.mapping.dirty_block_of(name, appended.lsn);
            if let Some(extent) = old.extent() {
                self.file.free_blocks(extent);
            }
        }
        self.pool.stats.mapping_images.fetch_add(names.len() as u64, Relaxed);
        Ok(())
    }

    fn extents_of_table(&self, images: usize) -> Result<Vec<Extent>> {
        self.space.allocate_or_grow(&vec![self.pool.table_image_blocks(); images], 0, Stream::Changed)
    }

    fn write_chunk_images(
        &self,
        round_state: &mut RoundState,
        names: &[PageId],
        current: Lsn,
        extents: &mut [Extent],
    ) -> Result<(Appended, Vec<MappingWord>)> {
        let mut record = RecordBuilder::chunk();
        let mut images = Vec::with_capacity(names.len());
        for (slot, (&name, extent)) in names.iter().zip(&mut *extents).enumerate() {
            let checksum = self.stage_chunk(round_state, slot, name, current);
            let chunks = round_state.mapping.chunks_mut();
            if planted(Bug::ChunkInPlace)
                && let Some(old) = chunks.entry(name).image.extent()
            {
                chunks.entry(name).image = MappingWord::at(std::mem::replace(extent, old), checksum);
            }
            let entry = ChunkEntry { chunk: name, extent: *extent, current_lsn: current, check: checksum };
            record.chunk_entry(entry);
            images.push(MappingWord::at(*extent, checksum));
        }
        self.pool.meanwhile();
        self.file.write_staged(&round_state.staging, extents)?;
        self.file.sync_store()?;
        self.pool.meanwhile();
        let mut reservation = self.wal.reserve(record.len() as u64, Class::System).ok_or_else(|| {
            Error::Poisoned { reason: "the log has no room left for its own checkpoint".into() }
        })?;
        let appended = self.wal.append(&mut record, Some(&mut reservation))?;
        self.wal.flush_to(appended.end)?;
        Ok((appended, images))
    }

    fn stage_chunk(&self, round_state: &mut RoundState, slot: usize, name: PageId, current: Lsn) -> u32 {
        let image =
            &mut round_state.staging.bytes[slot * self.pool.page_bytes..(slot + 1) * self.pool.page_bytes];
        let first = round_state.mapping.first_of(name).index();
        let class = name.class().expect("chunks there are have a class");
        start_image(image, Kind::Chunk, name, current);
        let indexes = first..(first + round_state.mapping.words()).min(self.pool.table.indexes_max(class));
        for (index, word) in indexes.zip(image[HEADER_BYTES..].chunks_exact_mut(8)) {
            word.copy_from_slice(&self.durable_state(PageId::new(class, index)).0.to_le_bytes());
        }
        page::seal(image)
    }

    /// The durable state of a page, which changes only under the maintenance lock that the caller
    /// holds. A load or an eviction moves the word, but keeps its value.
    pub(crate) fn durable_state(&self, id: PageId) -> MappingWord {
        // A hash table has no entry of an id that was never used.
        let Some(entry) = self.pool.table.entry(id) else { return MappingWord::FREE };
        loop {
            match entry.location() {
                Location::Nowhere if self.unwritten.lock().contains(&id) => return MappingWord::UNWRITTEN,
                Location::Nowhere => return MappingWord::FREE,
                Location::Store(mapped) => return mapped,
                Location::Frame(frame) | Location::Partial(frame) => {
                    let mapped = self.pool.frames.header(frame).mapped();
                    std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
                    if entry.location().frame() == Some(frame) && self.pool.frames.header(frame).page() == id
                    {
                        return mapped;
                    }
                }
            }
        }
    }

    /// Writes dirty directory blocks. Their old extents go to `freed`, for when a superblock names
    /// the new ones.
    pub(super) fn write_directory(
        &self,
        round_state: &mut RoundState,
        freed: &mut Vec<Extent>,
    ) -> Result<()> {
        let dirty = round_state.mapping.blocks().dirty_before(Lsn(u64::MAX));
        let mut written = Vec::with_capacity(dirty.len());
        for batch in dirty.chunks(self.staging_table_images(round_state)) {
            if let Err(error) = self.write_blocks(round_state, batch, &mut written) {
                // The superblock must name every new block or none, so none of them counts.
                written
                    .iter()
                    .filter_map(|(_, image)| image.extent())
                    .for_each(|extent| self.file.free_blocks(extent));
                return Err(error);
            }
        }
        self.pool.stats.mapping_images.fetch_add(written.len() as u64, Relaxed);
        for (name, image) in written {
            let old = std::mem::replace(
                round_state.mapping.blocks_mut().entry(name),
                Part { image, dirty: Lsn::NONE },
            );
            freed.extend(old.image.extent());
        }
        round_state.superblock.directory = round_state.mapping.directory();
        Ok(())
    }

    fn write_blocks(
        &self,
        round_state: &mut RoundState,
        blocks: &[PageId],
        written: &mut Vec<(PageId, MappingWord)>,
    ) -> Result<()> {
        let extents = self.extents_of_table(blocks.len())?;
        for (slot, (&block, &extent)) in blocks.iter().zip(&extents).enumerate() {
            let image = &mut round_state.staging.bytes
                [slot * self.pool.page_bytes..(slot + 1) * self.pool.page_bytes];
            start_image(image, Kind::Directory, block, self.wal.persistent());
            let chunks = round_state.mapping.chunk_images(block);
            for (chunk, word) in chunks.zip(image[HEADER_BYTES..].chunks_exact_mut(8)) {
                word.copy_from_slice(&chunk.0.to_le_bytes());
            }
            written.push((block, MappingWord::at(extent, page::seal(image))));
        }
        self.file.write_staged(&round_state.staging, &extents)
    }
}

fn start_image(image: &mut [u8], kind: Kind, name: PageId, lsn: Lsn) {
    image.fill(0);
    page::set_kind(image, kind);
    page::set_page_id(image, name);
    page::set_lsn(image, lsn);
}
