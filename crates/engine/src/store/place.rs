//! Where the durable image of a page is: one word, the same in memory, in mapping chunks and in the superblock.
//!
//! ```text
//!   63         62     61..38            37..34       33..0
//!   allocated  long   check (24 bits)   length - 1   first place + 1, from the start of the page file; 0 = never written
//! ```
//!
//! A place is 4 KiB, whatever the size of a page: an image takes as many as it needs, one behind the other, and the word
//! says how many, so that who reads it reads its bytes and no more. The length is in places up to 16 of them, and in units
//! of 32 places for long images, those of pages above 64 KiB; so each number of places has one way to be said, and four
//! bits count up to the 512 places of 2 MiB.
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
const LENGTHS: u64 = 1 << LENGTH_BITS;
/// An image that is not long has at most so many places: a page of 64 KiB as it is.
const SHORT_PLACES_MAX: u64 = LENGTHS;
/// A long image has a multiple of so many places: a page of 128 KiB as it is.
const LONG_PLACES: u64 = 2 * SHORT_PLACES_MAX;
const LONG: u64 = 1 << 62;
/// An image has at most so many places: a page of 2 MiB as it is.
pub(crate) const IMAGE_PLACES_MAX: u64 = LENGTHS * LONG_PLACES;
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
        self.first < PLACES_MAX && can_have(self.places)
    }

    /// Whether an image of a page of `page_bytes` can be there: it is no longer than the page, and comes in its units.
    pub(crate) fn suits(self, page_bytes: usize) -> bool {
        self.bytes() <= page_bytes && self.bytes().is_multiple_of(image_unit(page_bytes))
    }
}

/// Places of so many bytes.
pub(crate) fn places_of(bytes: usize) -> u64 {
    bytes.div_ceil(PLACE_BYTES) as u64
}

/// Whether some image has so many places.
pub(crate) fn can_have(places: u64) -> bool {
    match places {
        0 => false,
        1..=SHORT_PLACES_MAX => true,
        _ => places.is_multiple_of(LONG_PLACES) && places <= IMAGE_PLACES_MAX,
    }
}

/// Bytes that images of pages of `page_bytes` come in multiples of.
pub(crate) fn image_unit(page_bytes: usize) -> usize {
    if places_of(page_bytes) <= SHORT_PLACES_MAX { PLACE_BYTES } else { LONG_PLACES as usize * PLACE_BYTES }
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
        let length = match extent.places {
            ..=SHORT_PLACES_MAX => (extent.places - 1) << PLACE_BITS,
            long => LONG | (long / LONG_PLACES - 1) << PLACE_BITS,
        };
        Mapped(ALLOCATED | check | length | (extent.first + 1))
    }

    pub(crate) fn is_allocated(self) -> bool {
        self.0 & ALLOCATED != 0
    }

    /// Where the image is.
    pub(crate) fn extent(self) -> Option<Extent> {
        let first = (self.0 & PLACE_MASK).checked_sub(1)?;
        let unit = if self.0 & LONG == 0 { 1 } else { LONG_PLACES };
        Some(Extent { first, places: ((self.0 >> PLACE_BITS) % LENGTHS + 1) * unit })
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
        for places in (1..=16).chain((1..=16).map(|units| units * 32)) {
            for first in [0, 77, PLACES_MAX - 1] {
                let extent = Extent { first, places };
                assert!(extent.is_possible());
                let mapped = Mapped::at(extent, 0xdead_beef);
                assert_eq!(mapped.extent(), Some(extent));
                assert!(mapped.has_image() && mapped.is_allocated());
                assert_eq!(mapped.0 & LONG != 0, places > 16);
                assert!(mapped.vouches_for(0xdead_beef) && !mapped.vouches_for(0xdead_beee));
            }
        }
        assert_eq!(Mapped::UNWRITTEN.extent(), None);
        assert!(!Mapped::FREE.is_allocated() && !Mapped::FREE.has_image());
    }

    /// Two words for one extent would be two names for one image.
    #[test]
    fn every_word_is_the_one_way_to_say_what_it_says() {
        for length in 0..LENGTHS {
            for long in [0, LONG] {
                let mapped = Mapped(ALLOCATED | long | length << PLACE_BITS | 9);
                let extent = mapped.extent().unwrap();
                assert!(extent.is_possible(), "{extent:?}");
                assert_eq!(Mapped::at(extent, 0), mapped);
            }
        }
    }

    #[test]
    fn extents_that_no_word_can_hold_are_told() {
        let beyond = [(PLACES_MAX, 1), (u64::MAX, 1), (0, 0), (0, IMAGE_PLACES_MAX + 1), (0, 544)];
        let between = [17, 31, 33, 48, 63, 511].map(|places| (0, places));
        for (first, places) in beyond.into_iter().chain(between) {
            assert!(!Extent { first, places }.is_possible(), "{first} {places}");
        }
        assert!(Extent { first: 3, places: 2 }.is_within(5 * 4096));
        assert!(!Extent { first: 3, places: 2 }.is_within(5 * 4096 - 1));
    }

    #[test]
    fn images_are_no_longer_than_their_pages_and_come_in_their_units() {
        let suits = |places, page_bytes| Extent { first: 1, places }.suits(page_bytes);
        assert!(suits(1, 4096) && !suits(2, 4096) && suits(3, 64 << 10) && suits(16, 64 << 10));
        assert!(!suits(32, 64 << 10) && suits(32, 128 << 10) && !suits(16, 128 << 10) && !suits(1, 2 << 20));
        assert!(suits(96, 512 << 10) && !suits(160, 512 << 10) && suits(512, 2 << 20) && suits(32, 2 << 20));
        assert_eq!([4096, 64 << 10, 128 << 10, 2 << 20].map(image_unit), [4096, 4096, 128 << 10, 128 << 10]);
    }
}
