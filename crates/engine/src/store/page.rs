//! The header of pages and images, and the log's compact page form.
//!
//! ```text
//!   0        4      5       6       8         16    24
//!   checksum kind   level   flags   page id   LSN   body ...
//! ```
//!
//! The checksum (CRC-32C over everything behind it) is computed when an image is made and checked
//! when one is read; in a frame it is stale. The highest bit of the level requests compression;
//! that of the kind marks a compressed image (`image.rs`). Little-endian throughout.

use super::mapping_word::MappingWord;
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, SizeClass};

/// Bytes before the body.
pub(crate) const HEADER_BYTES: usize = 24;

/// Bit of the kind: this image's body is compressed (`image.rs`).
const COMPRESSED: u8 = 0x80;

pub(crate) const LEVEL_AT: usize = 5;

pub(crate) const LSN_AT: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Leaf = 1,
    Inner = 2,
    OverflowIndex = 3,
    OverflowData = 4,
    /// Words of a structure outside the engine (`crate::pages`).
    Words = 6,
    /// A page of the crash harness.
    #[cfg(test)]
    Raw = 5,
    Chunk = 0x43,
    Directory = 0x44,
}

/// CRC-32C (Castagnoli), the checksum of pages, records and headers.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The kind of a page or image, without the compression bit.
pub(crate) fn kind(page: &[u8]) -> u8 {
    page[4] & !COMPRESSED
}

pub(crate) fn is_compressed(image: &[u8]) -> bool {
    image.get(4).is_some_and(|kind| kind & COMPRESSED != 0)
}

pub(crate) fn set_compressed(image: &mut [u8], compressed: bool) {
    image[4] = image[4] & !COMPRESSED | if compressed { COMPRESSED } else { 0 };
}

pub(crate) fn set_kind(page: &mut [u8], kind: Kind) {
    page[4] = kind as u8;
}

pub(crate) fn page_id(page: &[u8]) -> PageId {
    PageId(u64::from_le_bytes(page[8..16].try_into().expect("eight bytes")))
}

pub(crate) fn set_page_id(page: &mut [u8], id: PageId) {
    page[8..16].copy_from_slice(&id.0.to_le_bytes());
}

pub(crate) fn lsn(page: &[u8]) -> Lsn {
    Lsn(u64::from_le_bytes(page[LSN_AT..LSN_AT + 8].try_into().expect("eight bytes")))
}

pub(crate) fn set_lsn(page: &mut [u8], lsn: Lsn) {
    page[LSN_AT..LSN_AT + 8].copy_from_slice(&lsn.0.to_le_bytes());
}

pub(crate) fn seal(page: &mut [u8]) -> u32 {
    let checksum = crc32c(&page[4..]);
    page[..4].copy_from_slice(&checksum.to_le_bytes());
    checksum
}

/// The stored checksum, and whether it holds.
pub(crate) fn checksum(page: &[u8]) -> (u32, bool) {
    let stored = u32::from_le_bytes(page[..4].try_into().expect("four bytes"));
    (stored, stored == crc32c(&page[4..]))
}

/// Verifies an image: its own checksum, its page id, and the check in the mapping, which detects an
/// older image after a lost write. Returns its checksum.
pub(crate) fn verify_image(image: &[u8], id: PageId, mapped: MappingWord) -> Result<u32, &'static str> {
    if image.len() < HEADER_BYTES {
        return Err("it has no image");
    }
    let (checksum, holds) = checksum(image);
    if !holds {
        return Err("its checksum does not hold");
    }
    if page_id(image) != id {
        return Err("another page's image is in its place");
    }
    if !mapped.verifies_for(checksum) {
        return Err("an older image is in its place, a write was lost");
    }
    check_kind(image, id)?;
    Ok(checksum)
}

/// Refuses a node or index page in a page too large for either. So no reference can use such a page
/// as a node. Chunks are no pages; their ids have the class that they describe.
pub(crate) fn check_kind(content: &[u8], id: PageId) -> Result<(), &'static str> {
    let small_only = [Kind::Leaf, Kind::Inner, Kind::OverflowIndex].map(|kind| kind as u8);
    if id.class_index() > SizeClass::LARGEST_NODE.index() && small_only.contains(&kind(content)) {
        return Err("a page of this size can hold nothing but a part of a value");
    }
    Ok(())
}

/// Appends the compact form of `page` to `out`: everything from byte 4 on, without the unused bytes
/// in `gap`. Layout: gap start u32, gap end u32, bytes 4 to gap start, bytes from gap end.
pub(crate) fn compact(page: &[u8], gap: std::ops::Range<usize>, out: &mut Vec<u8>) {
    debug_assert!(gap.start >= HEADER_BYTES && gap.start <= gap.end && gap.end <= page.len());
    out.extend_from_slice(&(gap.start as u32).to_le_bytes());
    out.extend_from_slice(&(gap.end as u32).to_le_bytes());
    out.extend_from_slice(&page[4..gap.start]);
    out.extend_from_slice(&page[gap.end..]);
}

/// Rebuilds a page from its compact form; the gap becomes zeros.
pub(crate) fn expand(payload: &[u8], page: &mut [u8]) -> Result<()> {
    let damaged = || Error::corrupt("the log", None, "a page image has an impossible gap");
    let word = |at: usize| {
        payload
            .get(at..at + 4)
            .map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")) as usize)
    };
    let (start, end) = word(0).zip(word(4)).ok_or_else(damaged)?;
    if start < HEADER_BYTES
        || start > end
        || end > page.len()
        || payload.len() != 8 + (start - 4) + (page.len() - end)
    {
        return Err(damaged());
    }
    page[..4].fill(0);
    page[4..start].copy_from_slice(&payload[8..8 + start - 4]);
    page[start..end].fill(0);
    page[end..].copy_from_slice(&payload[8 + start - 4..]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compact_form_rebuilds_the_page() {
        let mut page = vec![7u8; 4096];
        page[100..3000].fill(0);
        page[..4].fill(0);
        let mut payload = Vec::new();
        compact(&page, 100..3000, &mut payload);
        assert!(payload.len() < 1300);
        let mut rebuilt = vec![1u8; 4096];
        expand(&payload, &mut rebuilt).expect("expands");
        assert_eq!(rebuilt, page);
    }

    #[test]
    fn hostile_compact_forms_are_refused() {
        let mut page = vec![0u8; 4096];
        for payload in [&[][..], &[0; 8], &[0xff; 64], &[24, 0, 0, 0, 24, 0, 0, 0, 1, 2, 3]] {
            assert!(expand(payload, &mut page).is_err());
        }
    }

    #[test]
    fn a_flipped_bit_breaks_the_seal() {
        let mut page = vec![3u8; 4096];
        seal(&mut page);
        assert!(checksum(&page).1);
        page[777] ^= 4;
        assert!(!checksum(&page).1);
    }
}
