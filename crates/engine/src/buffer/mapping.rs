//! The durable page table: level two are chunks of [`Mapped`] words, level one is the directory of the chunks'
//! places, whose blocks the superblock names.
//!
//! A chunk's image is a page of kind Chunk: the usual header (page id = chunk number, LSN = the LSN it is current
//! to), then one word per page. It holds only what durable log records say (durability, rule 8). Recovery takes the
//! newest image of each chunk and replays the mapping, allocation and free records from its LSN on.
//!
//! A chunk is dirty from its first record on which its image lacks; the log is not cut past that.

use crate::ids::{Lsn, PageId};
use crate::store::page::HEADER_BYTES;
use crate::store::place::Mapped;

/// What is known of one chunk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chunk {
    /// Its durable image, named by the directory or by a log record.
    pub(super) image: Mapped,
    /// The first record that the image lacks; none when it is current.
    pub(super) dirty: Lsn,
}

/// What is known of one directory block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Block {
    /// Its image, named by the durable superblock.
    pub(super) image: Mapped,
    /// The first chunk record that the image lacks.
    pub(super) dirty: Lsn,
}

/// Chunks and directory blocks.
#[derive(Debug, Default)]
pub(crate) struct Mapping {
    pub(super) per_chunk: u64,
    pub(super) chunks: Vec<Chunk>,
    pub(super) blocks: Vec<Block>,
}

/// Words that fit a chunk or a directory block.
pub(crate) fn words_per_page(page_bytes: usize) -> u64 {
    ((page_bytes - HEADER_BYTES) / 8) as u64
}

impl Mapping {
    pub(crate) fn new(page_bytes: usize) -> Mapping {
        Mapping { per_chunk: words_per_page(page_bytes), ..Mapping::default() }
    }

    /// The chunk a page is in.
    pub(super) fn chunk_of(&self, page: PageId) -> u64 {
        page.0 / self.per_chunk
    }

    /// A record at `lsn` changed the durable state of `page`.
    pub(super) fn dirty(&mut self, page: PageId, lsn: Lsn) {
        let number = self.chunk_of(page) as usize;
        self.grow_to(number);
        mark(&mut self.chunks[number].dirty, lsn);
    }

    /// A record at `lsn` named a new image of chunk `number`.
    pub(super) fn dirty_block_of(&mut self, number: u64, lsn: Lsn) {
        let block = (number / self.per_chunk) as usize;
        if self.blocks.len() <= block {
            self.blocks.resize(block + 1, Block::default());
        }
        mark(&mut self.blocks[block].dirty, lsn);
    }

    /// Makes sure there is a chunk of that number.
    pub(super) fn grow_to(&mut self, number: usize) {
        if self.chunks.len() <= number {
            self.chunks.resize(number + 1, Chunk::default());
        }
    }

    /// The oldest record that some chunk lacks.
    pub(super) fn oldest_dirty_chunk(&self) -> Lsn {
        oldest(self.chunks.iter().map(|chunk| chunk.dirty))
    }

    /// The oldest chunk record that the directory lacks.
    pub(super) fn oldest_dirty_block(&self) -> Lsn {
        oldest(self.blocks.iter().map(|block| block.dirty))
    }

    /// Numbers of the chunks dirty since before `target`.
    pub(super) fn chunks_before(&self, target: Lsn) -> Vec<u64> {
        let due = |chunk: &Chunk| !chunk.dirty.is_none() && chunk.dirty < target;
        (0..).zip(&self.chunks).filter(|(_, chunk)| due(chunk)).map(|(number, _)| number).collect()
    }
}

fn mark(dirty: &mut Lsn, lsn: Lsn) {
    if dirty.is_none() || lsn < *dirty {
        *dirty = lsn;
    }
}

/// The lowest that is not none, or the end of all logs.
fn oldest(lsns: impl Iterator<Item = Lsn>) -> Lsn {
    lsns.filter(|lsn| !lsn.is_none()).min().unwrap_or(Lsn(u64::MAX))
}
