//! Where the durable image of a page is: one word, the same in memory, in mapping chunks and in log records.
//!
//! ```text
//!   63         61..38             37..0
//!   allocated  check (24 bits)    place + 1, in pages from the start of the page file; 0 = never written
//! ```
//!
//! The check is the low 24 bits of the image's checksum. The image vouches for itself by its own checksum; the check
//! says that it is *this* image and not an older one that a lost write left behind.

const ALLOCATED: u64 = 1 << 63;
const PLACE_BITS: u32 = 38;
const PLACE_MASK: u64 = (1 << PLACE_BITS) - 1;
/// Places are below this.
pub(crate) const PLACES_MAX: u64 = PLACE_MASK;
const CHECK_MASK: u64 = (1 << 24) - 1;

/// The durable state of a page: free, allocated without an image yet, or allocated with one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mapped(pub(crate) u64);

impl Mapped {
    /// A page that does not exist.
    pub(crate) const FREE: Mapped = Mapped(0);
    /// A page that exists but has no image yet: the log alone knows its content.
    pub(crate) const UNWRITTEN: Mapped = Mapped(ALLOCATED);

    /// An image at `place` with this checksum.
    pub(crate) fn at(place: u64, checksum: u32) -> Mapped {
        debug_assert!(place < PLACES_MAX);
        Mapped(ALLOCATED | (u64::from(checksum) & CHECK_MASK) << PLACE_BITS | (place + 1))
    }

    pub(crate) fn is_allocated(self) -> bool {
        self.0 & ALLOCATED != 0
    }

    /// The place of the image, in pages from the start of the file.
    pub(crate) fn place(self) -> Option<u64> {
        (self.0 & PLACE_MASK).checked_sub(1)
    }

    /// Whether an image with this checksum is the one meant.
    pub(crate) fn vouches_for(self, checksum: u32) -> bool {
        self.0 >> PLACE_BITS & CHECK_MASK == u64::from(checksum) & CHECK_MASK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_keeps_place_and_check() {
        let mapped = Mapped::at(0, 0xdead_beef);
        assert_eq!(mapped.place(), Some(0));
        assert!(mapped.is_allocated() && mapped.vouches_for(0xdead_beef) && !mapped.vouches_for(0xdead_beee));
        assert_eq!(Mapped::UNWRITTEN.place(), None);
        assert!(!Mapped::FREE.is_allocated());
    }
}
