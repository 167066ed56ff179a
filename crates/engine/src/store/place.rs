//! Where the durable image of a page is: one word, the same in memory, in mapping chunks and in the superblock.
//!
//! ```text
//!   63         62   61..38            37..34        33..0
//!   allocated  0    check (24 bits)   places - 1    first place + 1, from the start of the page file; 0 = never written
//! ```
//!
//! A place is 4 KiB, whatever the size of a page: an image takes as many as it needs, one behind the other, and the word
//! says how many, so that who reads it reads its bytes and no more.
//!
//! The check is the low 24 bits of the image's checksum. The image vouches for itself by its own checksum; the check
//! says that it is *this* image and not an older one that a lost write left behind.

/// Bytes of a place.
pub(crate) const PLACE_BYTES: usize = 4096;

const ALLOCATED: u64 = 1 << 63;
const PLACE_BITS: u32 = 34;
const PLACE_MASK: u64 = (1 << PLACE_BITS) - 1;
/// Places are below this.
pub(crate) const PLACES_MAX: u64 = PLACE_MASK;
const LENGTH_BITS: u32 = 4;
/// An image has at most so many places: a page of 64 KiB as it is.
pub(crate) const IMAGE_PLACES_MAX: u64 = 1 << LENGTH_BITS;
const CHECK_AT: u32 = PLACE_BITS + LENGTH_BITS;
const CHECK_MASK: u64 = (1 << 24) - 1;

/// The places of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Extent {
    pub(crate) first: u64,
    pub(crate) places: u64,
}

impl Extent {
    /// Where it begins, in bytes from the start of the file.
    pub(crate) fn offset(self) -> u64 {
        self.first * PLACE_BYTES as u64
    }

    /// Its length in bytes.
    pub(crate) fn bytes(self) -> usize {
        self.places as usize * PLACE_BYTES
    }

    /// The first place behind it.
    pub(crate) fn end(self) -> u64 {
        self.first + self.places
    }

    /// Whether all of it is within a file of so many bytes.
    pub(crate) fn is_within(self, file_bytes: u64) -> bool {
        self.end() <= file_bytes / PLACE_BYTES as u64
    }

    /// Whether an image can be there, whatever the file's length.
    pub(crate) fn is_possible(self) -> bool {
        self.first < PLACES_MAX && (1..=IMAGE_PLACES_MAX).contains(&self.places)
    }
}

/// Places of so many bytes.
pub(crate) fn places_of(bytes: usize) -> u64 {
    bytes.div_ceil(PLACE_BYTES) as u64
}

/// The durable state of a page: free, allocated without an image yet, or allocated with one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mapped(pub(crate) u64);

impl Mapped {
    /// A page that does not exist.
    pub(crate) const FREE: Mapped = Mapped(0);
    /// A page that exists but has no image yet: the log alone knows its content.
    pub(crate) const UNWRITTEN: Mapped = Mapped(ALLOCATED);

    /// An image at `extent` with this checksum.
    pub(crate) fn at(extent: Extent, checksum: u32) -> Mapped {
        debug_assert!(extent.is_possible());
        let check = (u64::from(checksum) & CHECK_MASK) << CHECK_AT;
        Mapped(ALLOCATED | check | (extent.places - 1) << PLACE_BITS | (extent.first + 1))
    }

    pub(crate) fn is_allocated(self) -> bool {
        self.0 & ALLOCATED != 0
    }

    /// Where the image is.
    pub(crate) fn extent(self) -> Option<Extent> {
        let first = (self.0 & PLACE_MASK).checked_sub(1)?;
        Some(Extent { first, places: (self.0 >> PLACE_BITS) % IMAGE_PLACES_MAX + 1 })
    }

    /// Whether there is an image.
    pub(crate) fn has_image(self) -> bool {
        self.0 & PLACE_MASK != 0
    }

    /// Whether an image with this checksum is the one meant.
    pub(crate) fn vouches_for(self, checksum: u32) -> bool {
        self.0 >> CHECK_AT & CHECK_MASK == u64::from(checksum) & CHECK_MASK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_keeps_places_and_check() {
        for extent in [
            Extent { first: 0, places: 1 },
            Extent { first: 77, places: 16 },
            Extent { first: PLACES_MAX - 1, places: 3 },
        ] {
            let mapped = Mapped::at(extent, 0xdead_beef);
            assert_eq!(mapped.extent(), Some(extent));
            assert!(mapped.has_image() && mapped.is_allocated() && mapped.0 & 1 << 62 == 0);
            assert!(mapped.vouches_for(0xdead_beef) && !mapped.vouches_for(0xdead_beee));
        }
        assert_eq!(Mapped::UNWRITTEN.extent(), None);
        assert!(!Mapped::FREE.is_allocated() && !Mapped::FREE.has_image());
    }

    #[test]
    fn extents_that_no_word_can_hold_are_told() {
        for (first, places) in [(PLACES_MAX, 1), (u64::MAX, 1), (0, 0), (0, IMAGE_PLACES_MAX + 1)] {
            assert!(!Extent { first, places }.is_possible(), "{first} {places}");
        }
        assert!(Extent { first: 3, places: 2 }.is_within(5 * 4096));
        assert!(!Extent { first: 3, places: 2 }.is_within(5 * 4096 - 1));
    }
}
