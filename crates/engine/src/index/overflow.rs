//! The pages of values too long for a leaf.
//!
//! The leaf has a [`Reference`]: the value's length and its head page. Values of one page have the data page as
//! their head; longer ones an index page, which lists data pages in order and names the next index page, so that
//! all pages of a value can be fetched in large batches instead of one after the other.
//!
//! ```text
//!   index page   24  next index page u64 | 32  count u32 | 36  zero u32 | 40  data pages u64 each
//!   data page    24  length u32 | 28  zero u32 | 32  bytes
//! ```

use std::ops::Range;

use super::edit::{put_u16, put_u64};
use super::node::{BODY, KIND, LEVEL, PAGE_ID, SHARED};
use crate::buffer::view::View;
use crate::error::Result;
use crate::ids::PageId;
use crate::store::image::COMPRESS;
use crate::store::page;

/// Page kinds, as stored in the page header.
pub(crate) const OVERFLOW_INDEX: u8 = page::Kind::OverflowIndex as u8;
pub(crate) const OVERFLOW_DATA: u8 = page::Kind::OverflowData as u8;

pub(super) const NEXT: usize = 24;
pub(super) const INDEX_COUNT: usize = 32;
const IDS: usize = 40;
const DATA_LENGTH: usize = 24;
const DATA: usize = 32;

/// What a leaf stores in place of a long value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// Bytes of the value.
    pub(crate) total_length: u64,
    /// The data page, if there is one only, or the first index page.
    pub(crate) head: PageId,
}

impl Reference {
    /// Bytes of an encoded reference.
    pub(crate) const BYTES: usize = 16;

    /// The reference as stored in a leaf.
    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.total_length.to_le_bytes());
        bytes[8..].copy_from_slice(&self.head.0.to_le_bytes());
        bytes
    }

    /// The reference in a leaf entry's value, `None` if the value's length is another's.
    pub(crate) fn decode(value: &[u8]) -> Option<Self> {
        let (length, head) = value.split_first_chunk::<8>()?;
        let head: [u8; 8] = head.try_into().ok()?;
        Some(Self { total_length: u64::from_le_bytes(*length), head: PageId(u64::from_le_bytes(head)) })
    }

    /// How many bytes of the value data page number `number` must have, to compare with what it has. All pages of a value
    /// are of its head's class.
    pub(crate) fn expected_length(&self, number: u64) -> usize {
        let capacity = data_capacity(self.head.page_bytes()) as u64;
        self.total_length.saturating_sub(number.saturating_mul(capacity)).min(capacity) as usize
    }
}

/// Bytes of a value that a data page holds.
pub(crate) const fn data_capacity(page_bytes: usize) -> usize {
    page_bytes - DATA
}

/// Data pages that an index page lists.
pub(crate) const fn index_capacity(page_bytes: usize) -> usize {
    (page_bytes - IDS) / 8
}

/// How many data pages and index pages a value of this length takes.
pub(crate) const fn pages_of(page_bytes: usize, total_length: u64) -> (u64, u64) {
    let data = total_length.div_ceil(data_capacity(page_bytes) as u64);
    let index = if data <= 1 { 0 } else { data.div_ceil(index_capacity(page_bytes) as u64) };
    (data, index)
}

fn init(page: &mut [u8], kind: u8, id: PageId, compress: bool) {
    page[BODY..].fill(0);
    page[KIND] = kind;
    page[LEVEL] = if compress { COMPRESS } else { 0 };
    put_u16(page, SHARED, 0);
    put_u64(page, PAGE_ID, id.0);
}

/// Makes `page` a data page with `bytes`, at most [`data_capacity`] of them.
pub(crate) fn init_data(page: &mut [u8], id: PageId, compress: bool, bytes: &[u8]) {
    init(page, OVERFLOW_DATA, id, compress);
    page[DATA_LENGTH..DATA_LENGTH + 4].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    page[DATA..DATA + bytes.len()].copy_from_slice(bytes);
}

/// Makes `page` an index page listing `pages`, at most [`index_capacity`] of them.
pub(crate) fn init_index(page: &mut [u8], id: PageId, compress: bool, next: PageId, pages: &[PageId]) {
    init(page, OVERFLOW_INDEX, id, compress);
    put_u64(page, NEXT, next.0);
    page[INDEX_COUNT..INDEX_COUNT + 4].copy_from_slice(&(pages.len() as u32).to_le_bytes());
    for (index, id) in pages.iter().enumerate() {
        put_u64(page, IDS + index * 8, id.0);
    }
}

/// Appends a data page's bytes to `to`; `None` if the page is not a data page.
pub(crate) fn append_data<V: View>(page: V, to: &mut Vec<u8>) -> Option<usize> {
    if page.u8(KIND) != OVERFLOW_DATA {
        return None;
    }
    let length = (page.u32(DATA_LENGTH) as usize).min(page.len().saturating_sub(DATA));
    page.append_to(DATA, length, to);
    Some(length)
}

/// Appends the data pages an index page lists to `to` and returns the next index page, [`PageId::NONE`] at the
/// end; `None` if the page is not an index page.
pub(crate) fn append_index<V: View>(page: V, to: &mut Vec<PageId>) -> Option<PageId> {
    if page.u8(KIND) != OVERFLOW_INDEX {
        return None;
    }
    let count = (page.u32(INDEX_COUNT) as usize).min(page.len().saturating_sub(IDS) / 8);
    to.extend((0..count).map(|index| PageId(page.u64(IDS + index * 8))));
    Some(PageId(page.u64(NEXT)))
}

/// The bytes an overflow page does not use, empty for other pages.
pub(crate) fn unused(page: &[u8]) -> Range<usize> {
    let used = match View::u8(&page, KIND) {
        OVERFLOW_DATA => DATA + View::u32(&page, DATA_LENGTH) as usize,
        OVERFLOW_INDEX => IDS + (View::u32(&page, INDEX_COUNT) as usize).saturating_mul(8),
        _ => page.len(),
    };
    used.min(page.len())..page.len()
}

/// Verifies an overflow page that came from a disk.
pub(crate) fn check(page: &[u8]) -> Result<(), String> {
    let (number, room) = match View::u8(&page, KIND) {
        OVERFLOW_DATA => (View::u32(&page, DATA_LENGTH), page.len().saturating_sub(DATA)),
        OVERFLOW_INDEX => (View::u32(&page, INDEX_COUNT), page.len().saturating_sub(IDS) / 8),
        kind => return Err(format!("kind {kind} is not an overflow page")),
    };
    if number as usize > room {
        return Err(format!("overflow page holds {number}, at most {room} are possible"));
    }
    if View::u8(&page, KIND) == OVERFLOW_INDEX
        && (0..number as usize).any(|index| View::u64(&page, IDS + index * 8) == 0)
    {
        return Err("overflow index page lists page 0".to_owned());
    }
    Ok(())
}
