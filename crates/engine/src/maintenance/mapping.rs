//! The durable page table in memory: chunks of [`MappingWord`] words, and directory blocks.
//!
//! Directory blocks hold the extents of chunks, and the superblock names the blocks. Each size
//! class numbers its own chunks and blocks from 0. Their images are as long as the database's own
//! pages.
//!
//! A chunk's image is a page of kind Chunk: the usual header (page id = chunk name, LSN = the LSN
//! it is current to), then one word per page. It holds only durable records (docs/durability.md,
//! rule 8). Recovery replays newer mapping, allocation and free records. A chunk is dirty from the
//! first record that its image lacks, and the log is not cut past that record.

use crate::ids::{ByClass, Lsn, PageId, SizeClass};
use crate::store::mapping_word::MappingWord;
use crate::store::page::HEADER_BYTES;

/// State of one chunk or directory block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    /// As named by the directory or the log; for a block, by the durable superblock.
    pub(crate) image: MappingWord,
    /// The first record (for a block: chunk record) that the image lacks, or none.
    pub(crate) dirty: Lsn,
}

#[derive(Debug)]
pub(crate) struct Mapping {
    per_chunk: u64,
    chunks: Parts,
    blocks: Parts,
}

/// Words per chunk or directory block.
pub(crate) fn words_per_page(page_bytes: usize) -> u64 {
    ((page_bytes - HEADER_BYTES) / 8) as u64
}

/// The chunk of page `id`, or the block of chunk `id`; `None` if impossible.
pub(crate) fn part_of(id: PageId, words: u64) -> Option<PageId> {
    Some(PageId::new(id.class()?, id.index() / words))
}

/// The first page of chunk `part`, or first chunk of block `part`; `None` if impossible.
pub(crate) fn first_of(part: PageId, words: u64) -> Option<PageId> {
    let index = part.index().checked_mul(words).filter(|&index| PageId(index).class_index() == 0)?;
    Some(PageId::new(part.class()?, index))
}

impl Mapping {
    pub(crate) fn new(page_bytes: usize) -> Mapping {
        let (chunks, blocks) = (Parts::default(), Parts::default());
        Mapping { per_chunk: words_per_page(page_bytes), chunks, blocks }
    }

    pub(crate) fn words(&self) -> u64 {
        self.per_chunk
    }

    pub(crate) fn chunk_of(&self, page: PageId) -> PageId {
        part_of(page, self.per_chunk).expect("pages in use have a class")
    }

    pub(crate) fn first_of(&self, part: PageId) -> PageId {
        first_of(part, self.per_chunk).expect("parts that are known have pages")
    }

    pub(crate) fn chunks(&self) -> &Parts {
        &self.chunks
    }

    pub(crate) fn chunks_mut(&mut self) -> &mut Parts {
        &mut self.chunks
    }

    pub(crate) fn blocks(&self) -> &Parts {
        &self.blocks
    }

    pub(crate) fn blocks_mut(&mut self) -> &mut Parts {
        &mut self.blocks
    }

    /// Notes the record at `lsn`, which changed `page`.
    pub(crate) fn dirty(&mut self, page: PageId, lsn: Lsn) {
        let chunk = self.chunk_of(page);
        self.chunks.mark(chunk, lsn);
    }

    /// Notes the record at `lsn`, which named an image of `chunk`.
    pub(crate) fn dirty_block_of(&mut self, chunk: PageId, lsn: Lsn) {
        let block = self.chunk_of(chunk);
        self.blocks.mark(block, lsn);
    }

    pub(super) fn chunk_images(&self, block: PageId) -> impl Iterator<Item = MappingWord> + '_ {
        let chunks = &self.chunks.classes[block.class_index()];
        let first = self.first_of(block).index() as usize;
        chunks.get(first..).unwrap_or_default().iter().take(self.per_chunk as usize).map(|chunk| chunk.image)
    }

    /// The images of all blocks, for the superblock.
    pub(super) fn directory(&self) -> ByClass<Vec<MappingWord>> {
        let images = |parts: &Vec<Part>| parts.iter().map(|block| block.image).collect();
        std::array::from_fn(|class| images(&self.blocks.classes[class]))
    }
}

/// Chunks or directory blocks, by class and number.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    classes: ByClass<Vec<Part>>,
}

impl Parts {
    /// The part `name`, which may be any number.
    pub(crate) fn get(&self, name: PageId) -> Option<&Part> {
        self.classes.get(name.class_index())?.get(usize::try_from(name.index()).ok()?)
    }

    /// The part `name`, created if absent.
    pub(crate) fn entry(&mut self, name: PageId) -> &mut Part {
        let (parts, number) = (&mut self.classes[name.class_index()], name.index() as usize);
        if parts.len() <= number {
            parts.resize(number + 1, Part::default());
        }
        &mut parts[number]
    }

    /// Marks the part `name` dirty from `lsn`, unless it already is.
    fn mark(&mut self, name: PageId, lsn: Lsn) {
        let dirty = &mut self.entry(name).dirty;
        if dirty.is_none() || lsn < *dirty {
            *dirty = lsn;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (PageId, &Part)> + '_ {
        SizeClass::all().zip(&self.classes).flat_map(|(class, parts)| {
            (0..).zip(parts).map(move |(number, part)| (PageId::new(class, number), part))
        })
    }

    pub(crate) fn count(&self, class: SizeClass) -> u64 {
        self.classes[class.index()].len() as u64
    }

    /// The oldest record that some part lacks, or the maximum.
    pub(super) fn oldest_dirty(&self) -> Lsn {
        let dirty = self.classes.iter().flatten().map(|part| part.dirty);
        dirty.filter(|lsn| !lsn.is_none()).min().unwrap_or(Lsn(u64::MAX))
    }

    /// Parts dirty since before `target`.
    pub(super) fn dirty_before(&self, target: Lsn) -> Vec<PageId> {
        let due = |part: &Part| !part.dirty.is_none() && part.dirty < target;
        self.iter().filter(|(_, part)| due(part)).map(|(name, _)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::mapping_word::Extent;

    const WORDS: u64 = 509;

    fn id(class: usize, index: u64) -> PageId {
        PageId::new(SizeClass::from_index(class).expect("one there is"), index)
    }

    #[test]
    fn classes_have_chunks_and_blocks_of_their_own() {
        let mut mapping = Mapping::new(4096);
        assert_eq!(mapping.words(), WORDS);
        mapping.dirty(id(0, 1), Lsn(50));
        mapping.dirty(id(2, WORDS - 1), Lsn(40));
        mapping.dirty(id(2, WORDS), Lsn(60));
        mapping.dirty(id(2, 2 * WORDS - 1), Lsn(55));
        mapping.dirty(id(4, 3 * WORDS), Lsn(70));
        assert_eq!([0, 1, 2, 3, 4].map(|class| mapping.chunks().classes[class].len()), [1, 0, 2, 0, 4]);
        assert_eq!(mapping.chunks().oldest_dirty(), Lsn(40));
        assert_eq!(mapping.chunks().dirty_before(Lsn(60)), [id(0, 0), id(2, 0), id(2, 1)]);
        assert_eq!(mapping.blocks().oldest_dirty(), Lsn(u64::MAX));
        mapping.chunks_mut().entry(id(2, 1)).dirty = Lsn::NONE;
        mapping.dirty_block_of(id(2, 1), Lsn(80));
        mapping.dirty_block_of(id(4, WORDS * 2), Lsn(81));
        assert_eq!(mapping.blocks().dirty_before(Lsn(u64::MAX)), [id(2, 0), id(4, 2)]);
        assert_eq!(mapping.chunks().dirty_before(Lsn(60)), [id(0, 0), id(2, 0)]);
    }

    #[test]
    fn the_directory_has_the_images_of_each_class() {
        let mut mapping = Mapping::new(4096);
        let image = |first| MappingWord::at(Extent { first, blocks: 1 }, 9);
        for (first, name) in [(1, id(1, 0)), (2, id(3, WORDS)), (3, id(3, WORDS + 1))] {
            mapping.chunks_mut().entry(name).image = image(first);
        }
        mapping.blocks_mut().entry(id(1, 0)).image = image(4);
        mapping.blocks_mut().entry(id(3, 1)).image = image(5);
        let images = |block| mapping.chunk_images(block).collect::<Vec<_>>();
        assert_eq!(images(id(1, 0)), [image(1)]);
        assert_eq!(images(id(3, 0)), vec![MappingWord::FREE; WORDS as usize]);
        assert_eq!(images(id(3, 1)), [image(2), image(3)]);
        assert_eq!(images(id(1, 7)), []);
        let mut directory = ByClass::<Vec<MappingWord>>::default();
        directory[1] = vec![image(4)];
        directory[3] = vec![MappingWord::FREE, image(5)];
        assert_eq!(mapping.directory(), directory);
    }

    #[test]
    fn names_that_nothing_can_have_name_nothing() {
        let mut mapping = Mapping::new(4096);
        mapping.chunks_mut().entry(id(0, 3)).dirty = Lsn(1);
        for name in [id(0, 4), id(1, 0), id(4, (1 << 56) - 1), id(9, 0), PageId(10 << 56), PageId(u64::MAX)] {
            assert_eq!(mapping.chunks().get(name), None, "{name}");
        }
        assert!(mapping.chunks().get(id(0, 3)).is_some());
        assert_eq!(part_of(PageId(10 << 56), WORDS), None);
        assert_eq!(part_of(id(9, WORDS), WORDS), Some(id(9, 1)));
        assert_eq!(part_of(id(4, WORDS + 1), WORDS), Some(id(4, 1)));
        assert_eq!(first_of(id(4, 2), WORDS), Some(id(4, 2 * WORDS)));
        assert_eq!(first_of(id(4, 1 << 55), WORDS), None, "no index is so high");
        assert_eq!(first_of(PageId(u64::MAX), WORDS), None);
    }
}
