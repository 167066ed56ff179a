//! Where the bytes of a file are in the cache's address space.
//!
//! A file has up to [`EXTENTS_MAX`] extents. The first covers [`FIRST_BYTES`], and each further one
//! as much as all before it, so a file of any size needs few:
//!
//! ```text
//!   extent     0      1      2           3
//!   offset  0     1M     2M          4M                       8M
//! ```
//!
//! An address belongs to one file and one unbroken history of its content. Whoever drops an extent
//! never uses its addresses again, so a late fill of an old address harms nobody.

/// Bytes of the first extent; a block is at most as long.
pub(crate) const FIRST_BYTES: u64 = 1 << 20;
/// Enough for 8 TiB; the rest of a larger file goes past the cache.
pub(crate) const EXTENTS_MAX: usize = 24;
/// No extent.
pub(crate) const NOWHERE: u64 = u64::MAX;

/// The address of each extent, or [`NOWHERE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extents(pub [u64; EXTENTS_MAX]);

impl Default for Extents {
    fn default() -> Self {
        Extents([NOWHERE; EXTENTS_MAX])
    }
}

/// The extent that covers `offset`, if any.
pub(crate) fn extent_of(offset: u64) -> Option<usize> {
    let extent = match (offset / FIRST_BYTES).checked_ilog2() {
        None => 0,
        Some(log) => log as usize + 1,
    };
    (extent < EXTENTS_MAX).then_some(extent)
}

/// First offset of an extent in the file.
pub(crate) fn start_of(extent: usize) -> u64 {
    if extent == 0 { 0 } else { FIRST_BYTES << (extent - 1) }
}

/// Length of an extent.
pub(crate) fn length_of(extent: usize) -> u64 {
    if extent == 0 { FIRST_BYTES } else { FIRST_BYTES << (extent - 1) }
}

/// End of the part of `offset..end` in the extent of `offset`.
pub(crate) fn piece_end(offset: u64, end: u64) -> u64 {
    match extent_of(offset) {
        Some(extent) => end.min(start_of(extent) + length_of(extent)),
        None => end,
    }
}

impl Extents {
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&address| address == NOWHERE)
    }

    /// The address of a byte.
    pub fn address(&self, offset: u64) -> Option<u64> {
        let extent = extent_of(offset)?;
        let address = self.0[extent];
        (address != NOWHERE).then(|| address + (offset - start_of(extent)))
    }

    /// The ranges of addresses in use: address and length.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        let used = self.0.iter().enumerate().filter(|(_, address)| **address != NOWHERE);
        used.map(|(extent, &address)| (address, length_of(extent)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_cover_a_file_without_gaps() {
        let mut next = 0;
        for extent in 0..EXTENTS_MAX {
            assert_eq!(start_of(extent), next);
            assert_eq!(extent_of(next), Some(extent));
            next += length_of(extent);
            assert_eq!(extent_of(next - 1), Some(extent));
            assert_eq!(piece_end(next - 1, u64::MAX), next);
        }
        assert_eq!((extent_of(next), extent_of(u64::MAX)), (None, None));
    }

    #[test]
    fn a_byte_has_the_address_of_its_extent() {
        let mut extents = Extents::default();
        assert!(extents.is_empty() && extents.address(0).is_none());
        extents.0[2] = 5 << 30;
        assert_eq!(extents.address((2 << 20) + 7), Some((5 << 30) + 7));
        assert_eq!(extents.address(1 << 20), None);
        assert_eq!(extents.ranges().collect::<Vec<_>>(), [(5 << 30, 2 << 20)]);
    }
}
