//! A page file written from its beginning, image after image, with a page table of its own: that of a backup.
//!
//! Images may come in any order, cheapest by rising page id, and again: then the new one goes over the old one, for
//! nothing relies on the file before it is finished. The words of one chunk of the page table are in memory, the
//! others are in the file already. A chunk's image is current to LSN 0: recovery applies all that the log says about
//! allocation on top of it.

use std::sync::Arc;

use terrace_block::{AlignedBuffer, BlockDevice, Write};

use crate::buffer::mapping::{part_of, words_per_page};
use crate::error::{Error, Result};
use crate::ids::{ByClass, Lsn, PageId, SizeClass};
use crate::store::page::{self, HEADER_BYTES, Kind};
use crate::store::place::{Extent, Mapped, places_of};
use crate::store::space::Geometry;
use crate::store::superblock::{DIRECTORY_BLOCKS_MAX, Slots, Superblock};

/// The file grows by this share of itself, by one segment at the least.
const GROW_SHARE: u64 = 16;
/// And by this many segments at the most.
const GROW_SEGMENTS_MAX: u64 = 64;

/// An image to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StagedImage {
    pub(crate) id: PageId,
    pub(crate) checksum: u32,
    pub(crate) places: u64,
    /// Where in the staging buffer it is.
    pub(crate) at: usize,
}

/// A page file being written.
#[derive(Debug)]
pub(crate) struct PackedFile {
    device: Arc<dyn BlockDevice>,
    geometry: Geometry,
    /// Bytes of an image of a chunk or a directory block.
    page_bytes: usize,
    /// The next place, and how many segments the file has.
    next: u64,
    segments: u64,
    /// The image of each chunk.
    chunks: ByClass<Vec<Mapped>>,
    /// The chunk whose words are in `words`.
    open: Option<PageId>,
    /// An image of a chunk.
    words: AlignedBuffer,
    images: u64,
}

impl PackedFile {
    /// Begins a page file in `device`, which is empty, of a database whose own pages have `page_bytes`.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub(crate) fn new(
        device: Arc<dyn BlockDevice>,
        geometry: Geometry,
        page_bytes: usize,
    ) -> Result<PackedFile> {
        let next = geometry.first_place(0);
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

    /// Writes images that are in `staged` at the offsets given, of the pages, of as many places and with the checksums
    /// given, in place of those that the file may have of these pages.
    pub(crate) fn put(&mut self, images: &[StagedImage], staged: &[u8]) -> Result<()> {
        let mut runs: Vec<(u64, std::ops::Range<usize>)> = Vec::new();
        for &StagedImage { id, checksum, places, at } in images {
            let old = self.word(id)?;
            let extent = match old.extent() {
                // What is left of the old one stays empty.
                Some(Extent { first, places: before }) if places <= before => Extent { first, places },
                _ => self.allocate(places)?,
            };
            self.images += u64::from(!old.has_image());
            self.set_word(id, Mapped::at(extent, checksum));
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

    /// Forgets the image of `id`: there is no such page, or the log alone knows it.
    pub(crate) fn forget(&mut self, id: PageId) -> Result<()> {
        if self.word(id)?.has_image() {
            self.images -= 1;
            self.set_word(id, Mapped::FREE);
        }
        Ok(())
    }

    /// Pages that have an image.
    pub(crate) fn images(&self) -> u64 {
        self.images
    }

    /// Writes what is left, and the superblock, durably. `superblock` is given the file's own numbers. Returns the file's
    /// length in bytes.
    pub(crate) fn finish(mut self, superblock: Superblock) -> Result<u64> {
        self.close_chunk()?;
        let directory = self.write_directory()?;
        let segment_places = self.geometry.segment_places;
        let segments = (self.next - self.geometry.first_place(0)).div_ceil(segment_places).max(1);
        let bytes = self.geometry.file_bytes(segments);
        self.set_len(bytes)?;
        self.device.sync().map_err(|source| Error::io("sync", self.device.name(), None, source))?;
        let superblock = Superblock { sequence: 1, segments, directory, ..superblock };
        Slots::create(self.device, &superblock)?;
        Ok(bytes)
    }

    fn write_directory(&mut self) -> Result<ByClass<Vec<Mapped>>> {
        let per_block = words_per_page(self.page_bytes) as usize;
        let mut directory = ByClass::<Vec<Mapped>>::default();
        let chunks = std::mem::take(&mut self.chunks);
        for (class, chunks) in SizeClass::all().zip(chunks) {
            for (number, words) in (0..).zip(chunks.chunks(per_block)) {
                start(&mut self.words, Kind::Directory, PageId::new(class, number));
                for (chunk, word) in words.iter().zip(self.words[HEADER_BYTES..].chunks_exact_mut(8)) {
                    word.copy_from_slice(&chunk.0.to_le_bytes());
                }
                let checksum = page::seal(&mut self.words);
                let extent = self.allocate(places_of(self.page_bytes))?;
                self.write_words(extent)?;
                directory[class.index()].push(Mapped::at(extent, checksum));
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

    /// The word of `id`, which is one there is; its chunk is in memory after that.
    fn word(&mut self, id: PageId) -> Result<Mapped> {
        let chunk = part_of(id, words_per_page(self.page_bytes)).expect("pages that are copied have a class");
        if self.open != Some(chunk) {
            self.close_chunk()?;
            self.open_chunk(chunk)?;
        }
        let at = self.slot(id);
        Ok(Mapped(u64::from_le_bytes(self.words[at..at + 8].try_into().expect("eight bytes"))))
    }

    fn set_word(&mut self, id: PageId, mapped: Mapped) {
        let at = self.slot(id);
        self.words[at..at + 8].copy_from_slice(&mapped.0.to_le_bytes());
    }

    /// Where the image of `chunk` is.
    fn image_of(&mut self, chunk: PageId) -> &mut Mapped {
        let (chunks, number) = (&mut self.chunks[chunk.class_index()], chunk.index() as usize);
        if chunks.len() <= number {
            chunks.resize(number + 1, Mapped::FREE);
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
                if !holds || !image.vouches_for(checksum) {
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
            None => self.allocate(places_of(self.page_bytes))?,
        };
        let checksum = page::seal(&mut self.words);
        self.write_words(extent)?;
        *self.image_of(chunk) = Mapped::at(extent, checksum);
        Ok(())
    }

    fn write_words(&self, extent: Extent) -> Result<()> {
        let offset = extent.offset();
        let written = self.device.write_at(offset, &self.words);
        written.map_err(|source| Error::io("write", self.device.name(), Some(offset), source))
    }

    /// The next places, which lie within the file and one segment.
    fn allocate(&mut self, places: u64) -> Result<Extent> {
        let segment = self.geometry.segment_of(self.next).expect("behind the superblocks");
        if self.next + places > self.geometry.first_place(segment + 1) {
            self.next = self.geometry.first_place(segment + 1);
        }
        let extent = Extent { first: self.next, places };
        while extent.end() > self.geometry.first_place(self.segments) {
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

/// Clears `image` and gives it a header.
fn start(image: &mut [u8], kind: Kind, name: PageId) {
    image.fill(0);
    page::set_kind(image, kind);
    page::set_page_id(image, name);
    page::set_lsn(image, Lsn::NONE);
}

/// A buffer of so many bytes.
pub(crate) fn copy_buffer(bytes: usize) -> Result<AlignedBuffer> {
    AlignedBuffer::try_zeroed(bytes).map_err(|source| Error::Memory {
        bytes: bytes as u64,
        what: "copying pages",
        source,
    })
}
