//! The mapping word: a page's durable image, in memory, mapping chunks and superblock.
//!
//! ```text
//!   63         62     61..38            37..34       33..0
//!   allocated  long   check (24 bits)   length - 1   first block + 1 in the file; 0 = unwritten
//! ```
//!
//! An image takes consecutive blocks of 4 KiB, whose number is in the word, so that a read takes
//! exactly its bytes. Lengths count blocks up to 16, and units of 32 blocks for long images, those
//! of pages above 64 KiB. So each length has one encoding, and four bits reach the 512 blocks of 2
//! MiB.
//!
//! The check is the low 24 bits of the image's checksum. The image's own checksum proves it intact;
//! the check proves that it is *this* image, not an older one after a lost write.

pub(crate) use crate::ids::{BLOCK_BYTES, blocks_of};

const ALLOCATED: u64 = 1 << 63;
const BLOCK_BITS: u32 = 34;
const BLOCK_MASK: u64 = (1 << BLOCK_BITS) - 1;
/// Block ids are below this.
pub(crate) const BLOCKS_MAX: u64 = BLOCK_MASK;
const LENGTH_BITS: u32 = 4;
const LENGTHS: u64 = 1 << LENGTH_BITS;
/// Most blocks of a short image: a plain page of 64 KiB.
const SHORT_BLOCKS_MAX: u64 = LENGTHS;
/// The unit of long images in blocks: a plain page of 128 KiB.
const LONG_BLOCKS: u64 = 2 * SHORT_BLOCKS_MAX;
const LONG: u64 = 1 << 62;
/// Most blocks of an image: a plain page of 2 MiB.
pub(crate) const IMAGE_BLOCKS_MAX: u64 = LENGTHS * LONG_BLOCKS;
const CHECK_AT: u32 = BLOCK_BITS + LENGTH_BITS;
const CHECK_MASK: u64 = (1 << 24) - 1;

/// The consecutive blocks of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Extent {
    pub(crate) first: u64,
    pub(crate) blocks: u64,
}

impl Extent {
    pub(crate) fn offset(self) -> u64 {
        self.first * BLOCK_BYTES as u64
    }

    pub(crate) fn bytes(self) -> usize {
        self.blocks as usize * BLOCK_BYTES
    }

    /// The first block behind it.
    pub(crate) fn end(self) -> u64 {
        self.first + self.blocks
    }

    pub(crate) fn is_within(self, file_bytes: u64) -> bool {
        self.end() <= file_bytes / BLOCK_BYTES as u64
    }

    /// Whether an image can be there, for any file length.
    pub(crate) fn is_possible(self) -> bool {
        self.first < BLOCKS_MAX && can_have(self.blocks)
    }

    /// Whether an image of a page of `page_bytes` can be there: not longer than the page, and in
    /// its units.
    pub(crate) fn suits(self, page_bytes: usize) -> bool {
        self.bytes() <= page_bytes && self.bytes().is_multiple_of(image_unit(page_bytes))
    }
}

pub(crate) fn can_have(blocks: u64) -> bool {
    match blocks {
        0 => false,
        1..=SHORT_BLOCKS_MAX => true,
        _ => blocks.is_multiple_of(LONG_BLOCKS) && blocks <= IMAGE_BLOCKS_MAX,
    }
}

/// Images of pages of `page_bytes` are multiples of this many bytes.
pub(crate) fn image_unit(page_bytes: usize) -> usize {
    if blocks_of(page_bytes) <= SHORT_BLOCKS_MAX { BLOCK_BYTES } else { LONG_BLOCKS as usize * BLOCK_BYTES }
}

/// The durable state of a page: free, allocated without an image yet, or allocated with one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MappingWord(pub(crate) u64);

impl MappingWord {
    pub(crate) const FREE: MappingWord = MappingWord(0);
    /// A page without an image: only the log has its content.
    pub(crate) const UNWRITTEN: MappingWord = MappingWord(ALLOCATED);

    pub(crate) fn at(extent: Extent, checksum: u32) -> MappingWord {
        debug_assert!(extent.is_possible());
        let check = (u64::from(checksum) & CHECK_MASK) << CHECK_AT;
        let length = match extent.blocks {
            ..=SHORT_BLOCKS_MAX => (extent.blocks - 1) << BLOCK_BITS,
            long => LONG | (long / LONG_BLOCKS - 1) << BLOCK_BITS,
        };
        MappingWord(ALLOCATED | check | length | (extent.first + 1))
    }

    pub(crate) fn is_allocated(self) -> bool {
        self.0 & ALLOCATED != 0
    }

    pub(crate) fn extent(self) -> Option<Extent> {
        let first = (self.0 & BLOCK_MASK).checked_sub(1)?;
        let unit = if self.0 & LONG == 0 { 1 } else { LONG_BLOCKS };
        Some(Extent { first, blocks: ((self.0 >> BLOCK_BITS) % LENGTHS + 1) * unit })
    }

    pub(crate) fn has_image(self) -> bool {
        self.0 & BLOCK_MASK != 0
    }

    /// Whether an image with this checksum is the mapped one.
    pub(crate) fn verifies_for(self, checksum: u32) -> bool {
        self.0 >> CHECK_AT & CHECK_MASK == u64::from(checksum) & CHECK_MASK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_keeps_blocks_and_check() {
        for blocks in (1..=16).chain((1..=16).map(|units| units * 32)) {
            for first in [0, 77, BLOCKS_MAX - 1] {
                let extent = Extent { first, blocks };
                assert!(extent.is_possible());
                let mapped = MappingWord::at(extent, 0xdead_beef);
                assert_eq!(mapped.extent(), Some(extent));
                assert!(mapped.has_image() && mapped.is_allocated());
                assert_eq!(mapped.0 & LONG != 0, blocks > 16);
                assert!(mapped.verifies_for(0xdead_beef) && !mapped.verifies_for(0xdead_beee));
            }
        }
        assert_eq!(MappingWord::UNWRITTEN.extent(), None);
        assert!(!MappingWord::FREE.is_allocated() && !MappingWord::FREE.has_image());
    }

    /// Two words for one extent would be two names for one image.
    #[test]
    fn every_word_is_the_one_way_to_say_what_it_says() {
        for length in 0..LENGTHS {
            for long in [0, LONG] {
                let mapped = MappingWord(ALLOCATED | long | length << BLOCK_BITS | 9);
                let extent = mapped.extent().unwrap();
                assert!(extent.is_possible(), "{extent:?}");
                assert_eq!(MappingWord::at(extent, 0), mapped);
            }
        }
    }

    #[test]
    fn extents_that_no_word_can_hold_are_told() {
        let beyond = [(BLOCKS_MAX, 1), (u64::MAX, 1), (0, 0), (0, IMAGE_BLOCKS_MAX + 1), (0, 544)];
        let between = [17, 31, 33, 48, 63, 511].map(|blocks| (0, blocks));
        for (first, blocks) in beyond.into_iter().chain(between) {
            assert!(!Extent { first, blocks }.is_possible(), "{first} {blocks}");
        }
        assert!(Extent { first: 3, blocks: 2 }.is_within(5 * 4096));
        assert!(!Extent { first: 3, blocks: 2 }.is_within(5 * 4096 - 1));
    }

    #[test]
    fn images_are_no_longer_than_their_pages_and_come_in_their_units() {
        let suits = |blocks, page_bytes| Extent { first: 1, blocks }.suits(page_bytes);
        assert!(suits(1, 4096) && !suits(2, 4096) && suits(3, 64 << 10) && suits(16, 64 << 10));
        assert!(!suits(32, 64 << 10) && suits(32, 128 << 10) && !suits(16, 128 << 10) && !suits(1, 2 << 20));
        assert!(suits(96, 512 << 10) && !suits(160, 512 << 10) && suits(512, 2 << 20) && suits(32, 2 << 20));
        assert_eq!([4096, 64 << 10, 128 << 10, 2 << 20].map(image_unit), [4096, 4096, 128 << 10, 128 << 10]);
    }
}
