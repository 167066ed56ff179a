//! Images of pages: plain, or compressed with LZ4.
//!
//! ```text
//!   plain       page header, 24 bytes | body
//!   compressed  page header, 24 bytes | length u32 | page bytes u32 | LZ4 of the body | zeros
//! ```
//!
//! A bit of the kind in the image's header tells them apart. A bit of the page's level requests
//! compression; a split copies it to new pages. An image is compressed only if that saves a block,
//! or for a page above 64 KiB the 32 blocks of its unit. The checksum covers the image in the file,
//! zeros included.
//!
//! Decompression checks every length, writes into a buffer of the page's size, and must fill it
//! exactly.

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};

use super::mapping_word::{BLOCK_BYTES, blocks_of, can_have, image_unit};
use super::page::{self, HEADER_BYTES};

/// Bit of a page's level: compress its images.
pub(crate) const COMPRESS: u8 = 0x80;
const LENGTH_AT: usize = HEADER_BYTES;
const PAGE_BYTES_AT: usize = LENGTH_AT + 4;
const BLOCK_AT: usize = PAGE_BYTES_AT + 4;
/// Bytes of the compressor's tables: 4096 entries of 16 bits for pages up to 64 KiB, of 32 bits
/// beyond.
const TABLE_BYTES: usize = 8 << 10;
const LONG_TABLE_BYTES: usize = 16 << 10;

pub(crate) fn wants_compression(level: u8) -> bool {
    level & COMPRESS != 0
}

pub(crate) fn packer_bytes(page_bytes: usize) -> usize {
    if page_bytes <= BLOCK_BYTES {
        return 0;
    }
    let long = if is_long(page_bytes) { LONG_TABLE_BYTES } else { 0 };
    page_bytes + get_maximum_output_size(page_bytes) + TABLE_BYTES + long
}

/// Whether images of such pages have units larger than a block.
fn is_long(page_bytes: usize) -> bool {
    image_unit(page_bytes) > BLOCK_BYTES
}

/// Whether images of such pages can be shorter than the page.
pub(crate) fn can_shrink(page_bytes: usize) -> bool {
    page_bytes > image_unit(page_bytes)
}

/// Compresses images. Allocates on first use.
#[derive(Default)]
pub(crate) struct Packer {
    page: Vec<u8>,
    block: Vec<u8>,
    table: Option<CompressTable>,
    long_table: Option<CompressTable>,
}

impl std::fmt::Debug for Packer {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "Packer of {} bytes", self.page.len())
    }
}

impl Packer {
    pub(crate) fn page(&mut self, page_bytes: usize) -> &mut [u8] {
        self.page.resize(page_bytes, 0);
        let most = get_maximum_output_size(page_bytes);
        if self.block.len() < most {
            self.block.resize(most, 0);
        }
        &mut self.page
    }

    /// Makes an image of the page in `out`; returns its bytes, whole blocks. `out` has room for the
    /// whole page.
    pub(crate) fn pack(&mut self, out: &mut [u8]) -> usize {
        let Packer { page, block, table, long_table } = self;
        let table = match is_long(page.len()) {
            false => table.get_or_insert_with(CompressTable::small),
            true => long_table.get_or_insert_with(CompressTable::large),
        };
        // The buffer has room for any result.
        let compressed = compress_into_with_table(&page[HEADER_BYTES..], block, table).ok();
        let Some(length) = compressed.filter(|&length| image_bytes(length, page.len()) < page.len()) else {
            out[..page.len()].copy_from_slice(page);
            return page.len();
        };
        let image = image_bytes(length, page.len());
        let out = &mut out[..image];
        out[..HEADER_BYTES].copy_from_slice(&page[..HEADER_BYTES]);
        page::set_compressed(out, true);
        out[LENGTH_AT..PAGE_BYTES_AT].copy_from_slice(&(length as u32).to_le_bytes());
        out[PAGE_BYTES_AT..BLOCK_AT].copy_from_slice(&(page.len() as u32).to_le_bytes());
        out[BLOCK_AT..BLOCK_AT + length].copy_from_slice(&block[..length]);
        out[BLOCK_AT + length..].fill(0);
        image
    }
}

fn image_bytes(block: usize, page_bytes: usize) -> usize {
    (BLOCK_AT + block).next_multiple_of(image_unit(page_bytes))
}

/// Bytes of an image by its first bytes; `None` if its header is impossible.
pub(crate) fn claimed_bytes(start: &[u8], page_bytes: usize) -> Option<usize> {
    if !page::is_compressed(start) {
        return Some(page_bytes);
    }
    let (length, of_page) = (word(start, LENGTH_AT)?, word(start, PAGE_BYTES_AT)?);
    let fits = of_page == page_bytes && length < page_bytes && image_bytes(length, page_bytes) < page_bytes;
    fits.then(|| image_bytes(length, page_bytes))
}

/// The page of `page_bytes` in the verified `image`: the image itself, or decompressed into
/// `spare`, which must then have the page's length.
pub(crate) fn unpack<'a>(
    image: &'a [u8],
    page_bytes: usize,
    spare: &'a mut [u8],
) -> Result<&'a [u8], &'static str> {
    if !image.len().is_multiple_of(BLOCK_BYTES) || !can_have(blocks_of(image.len())) {
        return Err("its image has an impossible length");
    }
    if claimed_bytes(image, page_bytes) != Some(image.len()) {
        return Err("its image has another length than it says");
    }
    if !page::is_compressed(image) {
        return Ok(image);
    }
    let spare = spare.get_mut(..page_bytes).ok_or("its image is compressed where none should be")?;
    let length = word(image, LENGTH_AT).unwrap_or_default();
    let (header, body) = spare.split_at_mut(HEADER_BYTES);
    match decompress_into(&image[BLOCK_AT..BLOCK_AT + length], body) {
        Ok(bytes) if bytes == body.len() => {}
        _ => return Err("its image does not decompress to a page"),
    }
    header.copy_from_slice(&image[..HEADER_BYTES]);
    page::set_compressed(spare, false);
    Ok(spare)
}

fn word(image: &[u8], at: usize) -> Option<usize> {
    let bytes = image.get(at..at + 4)?;
    Some(u32::from_le_bytes(bytes.try_into().expect("four bytes")) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Lsn, PageId};
    use crate::store::page::Kind;
    use proptest::prelude::*;

    /// A page whose body is a run of `noise` incompressible bytes, then zeros.
    fn page(page_bytes: usize, noise: usize, seed: u64) -> Vec<u8> {
        let mut page = vec![0; page_bytes];
        page::set_kind(&mut page, Kind::Leaf);
        page::set_page_id(&mut page, PageId(7));
        page::set_lsn(&mut page, Lsn(4096));
        let mut state = seed | 1;
        for byte in &mut page[HEADER_BYTES..][..noise.min(page_bytes - HEADER_BYTES)] {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *byte = (state >> 56) as u8;
        }
        page
    }

    thread_local! {
        /// One for pages of all sizes, as in a database.
        static PACKER: std::cell::RefCell<Packer> = std::cell::RefCell::default();
    }

    fn pack(page: &[u8]) -> Vec<u8> {
        PACKER.with_borrow_mut(|packer| pack_with(packer, page))
    }

    fn pack_with(packer: &mut Packer, page: &[u8]) -> Vec<u8> {
        packer.page(page.len()).copy_from_slice(page);
        let mut out = vec![0xee; page.len()];
        let bytes = packer.pack(&mut out);
        out.truncate(bytes);
        page::seal(&mut out);
        out
    }

    #[test]
    fn every_size_and_every_degree_of_order_comes_back() {
        for page_bytes in (13..=16).chain([14, 13]).map(|bits| 1 << bits) {
            for noise in (0..=page_bytes).step_by(page_bytes / 16) {
                let page = page(page_bytes, noise, noise as u64);
                let image = pack(&page);
                assert!(image.len().is_multiple_of(BLOCK_BYTES) && image.len() <= page_bytes);
                assert_eq!(page::is_compressed(&image), image.len() < page_bytes, "{page_bytes} {noise}");
                // Noise keeps its size, and the rest shrinks to almost nothing.
                let least =
                    (noise * 255 / 256 + BLOCK_AT).div_ceil(BLOCK_BYTES).clamp(1, page_bytes / BLOCK_BYTES);
                let most = (noise * 257 / 256 + 600).div_ceil(BLOCK_BYTES).min(page_bytes / BLOCK_BYTES);
                let blocks = image.len() / BLOCK_BYTES;
                assert!((least..=most).contains(&blocks), "{page_bytes} {noise}: {blocks} blocks");
                let mut spare = vec![0x55; page_bytes];
                let found = unpack(&image, spare.len(), &mut spare).expect("unpacks");
                assert_eq!(found[4..], page[4..], "{page_bytes} {noise}");
            }
        }
    }

    #[test]
    fn a_page_of_one_block_has_nothing_to_save() {
        assert_eq!(packer_bytes(4096), 0);
        assert!(!wants_compression(3) && wants_compression(COMPRESS | 3));
    }

    #[test]
    fn every_flipped_bit_breaks_the_seal() {
        let mut image = pack(&page(16384, 3000, 1));
        assert_eq!(image.len(), 4096);
        for at in 0..image.len() {
            for bit in [0, 3, 7] {
                image[at] ^= 1 << bit;
                assert!(!page::checksum(&image).1, "byte {at}");
                image[at] ^= 1 << bit;
            }
        }
    }

    #[test]
    fn images_behind_a_good_seal_that_make_no_page_are_refused() {
        let good = pack(&page(16384, 9000, 1));
        let mut spare = vec![0; 16384];
        assert!(unpack(&good, spare.len(), &mut spare).is_ok());
        let hostile: [fn(&mut Vec<u8>); 7] = [
            |image| image[LENGTH_AT] ^= 1,
            |image| image[LENGTH_AT + 3] = 0xff,
            |image| image[PAGE_BYTES_AT + 1] ^= 0x20,
            |image| image.truncate(8192),
            |image| image.extend([0; 4096]),
            |image| image.clear(),
            |image| page::set_compressed(image, false),
        ];
        for (index, change) in hostile.into_iter().enumerate() {
            let mut image = good.clone();
            change(&mut image);
            assert!(unpack(&image, spare.len(), &mut spare).is_err(), "case {index}");
        }
        assert!(unpack(&good, 8192, &mut vec![0; 8192]).is_err(), "of a page of another size");
    }

    proptest! {
        /// Hostile compressed bytes: a page, or an error; never a panic.
        #[test]
        fn hostile_blocks_do_not_panic(
            start in prop::collection::vec(any::<u8>(), 0..300), length in 0usize..9000, of_page in 12u32..18,
        ) {
            let page_bytes = 16384;
            let mut image = page(page_bytes, 0, 1);
            page::set_compressed(&mut image, true);
            image[LENGTH_AT..PAGE_BYTES_AT].copy_from_slice(&(length as u32).to_le_bytes());
            image[PAGE_BYTES_AT..BLOCK_AT].copy_from_slice(&(1u32 << of_page).to_le_bytes());
            image[BLOCK_AT..BLOCK_AT + start.len()].copy_from_slice(&start);
            let mut spare = vec![0; page_bytes];
            for blocks in 1..=4 {
                if let Ok(page) = unpack(&image[..blocks * BLOCK_BYTES], spare.len(), &mut spare) {
                    prop_assert_eq!(page.len(), page_bytes);
                }
            }
        }
    }
}
