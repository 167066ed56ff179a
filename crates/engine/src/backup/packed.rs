//! A page file written sequentially, with its own page table, for backup and salvage.
//!
//! Images may come in any order, best by ascending page id. A page may come again: its new image
//! overwrites the old one, since nothing reads the file before it is finished. Only one chunk of
//! the page table is in memory. Chunk images are current to LSN 0, so recovery applies every
//! allocation record of the log.

use std::sync::Arc;

use terrace_io::{AlignedBuffer, BlockDevice, Write};

use crate::error::{Error, Result};
use crate::ids::{ByClass, Lsn, PageId, SizeClass};
use crate::maintenance::{part_of, words_per_page};
use crate::store::mapping_word::{Extent, MappingWord, blocks_of};
use crate::store::page::{self, HEADER_BYTES, Kind};
use crate::store::space::Geometry;
use crate::store::superblock::{DIRECTORY_BLOCKS_MAX, Slots, Superblock};

/// The file grows by this share of its length, but at least by one segment.
const GROW_SHARE: u64 = 16;
/// Maximum growth in segments.
const GROW_SEGMENTS_MAX: u64 = 64;

/// A staged image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StagedImage {
    pub(crate) id: PageId,
    pub(crate) checksum: u32,
    pub(crate) blocks: u64,
    /// Offset in the staging buffer.
    pub(crate) at: usize,
}

/// A page file under construction.
#[derive(Debug)]
pub(crate) struct PackedFile {
    device: Arc<dyn BlockDevice>,
    geometry: Geometry,
    /// Bytes of a chunk or directory image.
    page_bytes: usize,
    /// The next free block, and the file's segments.
    next: u64,
    segments: u64,
    /// The image of each chunk.
    chunks: ByClass<Vec<MappingWord>>,
    /// The chunk in `words`.
    open: Option<PageId>,
    words: AlignedBuffer,
    images: u64,
}

impl PackedFile {
    /// Begins a page file in the empty `device`, for database pages of `page_bytes`.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub(crate) fn new(
        device: Arc<dyn BlockDevice>,
        geometry: Geometry,
        page_bytes: usize,
    ) -> Result<PackedFile> {
        let next = geometry.first_block(0);
        let words = copy_buffer(page_bytes)?;
        Ok(PackedFile {
            device,
            geometry,
            page_bytes,
            next,
            segments: 0,
            chunks: Default::default(),
            open: None,
            words,
            images: 0,
        })
    }

    /// Writes `images` from `staged`, in place of older images of the same pages.
    pub(crate) fn put(&mut self, images: &[StagedImage], staged: &[u8]) -> Result<()> {
        let mut runs: Vec<(u64, std::ops::Range<usize>)> = Vec::new();
        for &StagedImage { id, checksum, blocks, at } in images {
            let old = self.word(id)?;
            let extent = match old.extent() {
                // The rest of the old extent stays unused.
                Some(Extent { first, blocks: before }) if blocks <= before => Extent { first, blocks },
                _ => self.allocate(blocks)?,
            };
            self.images += u64::from(!old.has_image());
            self.set_word(id, MappingWord::at(extent, checksum));
            match runs.last_mut() {
                Some((first, bytes)) if *first + bytes.len() as u64 == extent.offset() && bytes.end == at => {
                    bytes.end += extent.bytes()
                }
                _ => runs.push((extent.offset(), at..at + extent.bytes())),
            }
        }
        let writes: Vec<Write<'_>> =
            runs.iter().map(|(offset, bytes)| Write::new(*offset, &staged[bytes.clone()])).collect();
        let offset = runs.first().map(|(offset, _)| *offset);
        self.device
            .write_batch(&writes)
            .map_err(|source| Error::io("write", self.device.name(), offset, source))
    }

    /// Forgets the image of `id`, which was freed or is only in the log.
    pub(crate) fn forget(&mut self, id: PageId) -> Result<()> {
        if self.word(id)?.has_image() {
            self.images -= 1;
            self.set_word(id, MappingWord::FREE);
        }
        Ok(())
    }

    /// Number of pages with an image.
    pub(crate) fn images(&self) -> u64 {
        self.images
    }

    /// Writes the rest and the superblock durably. Returns the file's length in bytes.
    pub(crate) fn finish(mut self, superblock: Superblock) -> Result<u64> {
        self.close_chunk()?;
        let directory = self.write_directory()?;
        let segment_blocks = self.geometry.segment_blocks;
        let segments = (self.next - self.geometry.first_block(0)).div_ceil(segment_blocks).max(1);
        let bytes = self.geometry.file_bytes(segments);
        self.set_len(bytes)?;
        self.device.sync().map_err(|source| Error::io("sync", self.device.name(), None, source))?;
        let superblock = Superblock { sequence: 1, segments, directory, ..superblock };
        Slots::create(self.device, &superblock)?;
        Ok(bytes)
    }

    fn write_directory(&mut self) -> Result<ByClass<Vec<MappingWord>>> {
        let per_block = words_per_page(self.page_bytes) as usize;
        let mut directory = ByClass::<Vec<MappingWord>>::default();
        let chunks = std::mem::take(&mut self.chunks);
        for (class, chunks) in SizeClass::all().zip(chunks) {
            for (number, words) in (0..).zip(chunks.chunks(per_block)) {
                start(&mut self.words, Kind::Directory, PageId::new(class, number));
                for (chunk, word) in words.iter().zip(self.words[HEADER_BYTES..].chunks_exact_mut(8)) {
                    word.copy_from_slice(&chunk.0.to_le_bytes());
                }
                let checksum = page::seal(&mut self.words);
                let extent = self.allocate(blocks_of(self.page_bytes))?;
                self.write_words(extent)?;
                directory[class.index()].push(MappingWord::at(extent, checksum));
            }
        }
        if directory.iter().map(Vec::len).sum::<usize>() > DIRECTORY_BLOCKS_MAX {
            let what = format!("{} has more pages than a superblock can name", self.device.name());
            return Err(Error::Full { what });
        }
        Ok(directory)
    }

    fn slot(&self, id: PageId) -> usize {
        HEADER_BYTES + (id.index() % words_per_page(self.page_bytes)) as usize * 8
    }

    /// The word of the existing page `id`. Loads its chunk.
    fn word(&mut self, id: PageId) -> Result<MappingWord> {
        let chunk = part_of(id, words_per_page(self.page_bytes)).expect("pages that are copied have a class");
        if self.open != Some(chunk) {
            self.close_chunk()?;
            self.open_chunk(chunk)?;
        }
        let at = self.slot(id);
        Ok(MappingWord(u64::from_le_bytes(self.words[at..at + 8].try_into().expect("eight bytes"))))
    }

    fn set_word(&mut self, id: PageId, mapped: MappingWord) {
        let at = self.slot(id);
        self.words[at..at + 8].copy_from_slice(&mapped.0.to_le_bytes());
    }

    fn image_of(&mut self, chunk: PageId) -> &mut MappingWord {
        let (chunks, number) = (&mut self.chunks[chunk.class_index()], chunk.index() as usize);
        if chunks.len() <= number {
            chunks.resize(number + 1, MappingWord::FREE);
        }
        &mut chunks[number]
    }

    fn open_chunk(&mut self, chunk: PageId) -> Result<()> {
        let image = *self.image_of(chunk);
        match image.extent() {
            None => start(&mut self.words, Kind::Chunk, chunk),
            Some(extent) => {
                let offset = extent.offset();
                let file = self.device.name();
                self.device
                    .read_at(offset, &mut self.words)
                    .map_err(|source| Error::io("read", file, Some(offset), source))?;
                let (checksum, holds) = page::checksum(&self.words);
                if !holds || !image.verifies_for(checksum) {
                    let what = format!("chunk {chunk} at byte {offset} is not what was just written there");
                    return Err(Error::corrupt(file, None, what));
                }
            }
        }
        self.open = Some(chunk);
        Ok(())
    }

    fn close_chunk(&mut self) -> Result<()> {
        let Some(chunk) = self.open.take() else { return Ok(()) };
        let extent = match self.image_of(chunk).extent() {
            Some(extent) => extent,
            None if self.words[HEADER_BYTES..].iter().all(|&byte| byte == 0) => return Ok(()),
            None => self.allocate(blocks_of(self.page_bytes))?,
        };
        let checksum = page::seal(&mut self.words);
        self.write_words(extent)?;
        *self.image_of(chunk) = MappingWord::at(extent, checksum);
        Ok(())
    }

    fn write_words(&self, extent: Extent) -> Result<()> {
        let offset = extent.offset();
        let written = self.device.write_at(offset, &self.words);
        written.map_err(|source| Error::io("write", self.device.name(), Some(offset), source))
    }

    /// Allocates the next blocks within one segment.
    fn allocate(&mut self, blocks: u64) -> Result<Extent> {
        let segment = self.geometry.segment_of(self.next).expect("behind the superblocks");
        if self.next + blocks > self.geometry.first_block(segment + 1) {
            self.next = self.geometry.first_block(segment + 1);
        }
        let extent = Extent { first: self.next, blocks };
        while extent.end() > self.geometry.first_block(self.segments) {
            let step = (self.segments / GROW_SHARE).clamp(1, GROW_SEGMENTS_MAX);
            self.set_len(self.geometry.file_bytes(self.segments + step))?;
            self.segments += step;
        }
        self.next = extent.end();
        Ok(extent)
    }

    fn set_len(&self, bytes: u64) -> Result<()> {
        self.device.set_len(bytes).map_err(|source| Error::io("grow", self.device.name(), None, source))
    }
}

fn start(image: &mut [u8], kind: Kind, name: PageId) {
    image.fill(0);
    page::set_kind(image, kind);
    page::set_page_id(image, name);
    page::set_lsn(image, Lsn::NONE);
}

/// An aligned buffer of `bytes`.
pub(crate) fn copy_buffer(bytes: usize) -> Result<AlignedBuffer> {
    AlignedBuffer::try_zeroed(bytes).map_err(|source| Error::Memory {
        bytes: bytes as u64,
        what: "copying pages",
        source,
    })
}
