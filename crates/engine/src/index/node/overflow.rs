//! The pages of values too long for a leaf.
//!
//! The leaf holds a [`Reference`]: the value's length and its head page. A one-page value's head is
//! its data page. Otherwise it is an index page, which lists data pages in order and names the next
//! index page. So a reader fetches data pages in large batches.
//!
//! The table chooses the page sizes ([`ValuePages`]). Index pages are as large as its nodes. Data
//! pages have the largest size, but the last has the smallest that holds the rest. Page ids tell
//! the sizes.
//!
//! ```text
//!   index page   24  next index page u64 | 32  count u32 | 36  zero u32 | 40  data pages u64 each
//!   data page    24  length u32 | 28  zero u32 | 32  bytes
//! ```

use std::ops::Range;

use super::edit::{put_u16, put_u64};
use super::layout::{BODY, KIND, LEVEL, PAGE_ID, SHARED};
use crate::error::Result;
use crate::ids::{PageId, SizeClass};
use crate::pool::view::View;
use crate::store::image::COMPRESS;
use crate::store::page;

pub(crate) const OVERFLOW_INDEX: u8 = page::Kind::OverflowIndex as u8;
pub(crate) const OVERFLOW_DATA: u8 = page::Kind::OverflowData as u8;

pub(in crate::index) const NEXT: usize = 24;
pub(in crate::index) const INDEX_COUNT: usize = 32;
pub(in crate::index) const IDS: usize = 40;
const DATA_LENGTH: usize = 24;
pub(in crate::index) const DATA: usize = 32;

/// Data pages of at most 64 KiB in one batch.
const BATCH_PAGES: usize = 15;

/// A leaf's stand-in for a long value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) total_length: u64,
    /// The only data page, or the first index page.
    pub(crate) head: PageId,
}

impl Reference {
    pub(crate) const BYTES: usize = 16;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.total_length.to_le_bytes());
        bytes[8..].copy_from_slice(&self.head.0.to_le_bytes());
        bytes
    }

    /// `None` if the length is wrong.
    pub(crate) fn decode(value: &[u8]) -> Option<Self> {
        let (length, head) = value.split_first_chunk::<8>()?;
        let head: [u8; 8] = head.try_into().ok()?;
        Some(Self { total_length: u64::from_le_bytes(*length), head: PageId(u64::from_le_bytes(head)) })
    }

    pub(crate) fn is_one_page(&self) -> bool {
        self.total_length <= data_capacity(self.head.page_bytes()) as u64
    }

    /// The page sizes of a value whose first data page is `first`; `None` if no such value exists.
    pub(crate) fn pages(&self, first: PageId) -> Option<ValuePages> {
        let (index, data) = (self.head.class()?, first.class()?);
        let is_one = self.total_length <= data_capacity(data.page_bytes()) as u64;
        (index <= data && !index.is_for_values() && !is_one).then_some(ValuePages { own: index, most: data })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValuePages {
    /// The class of nodes, index pages and the smallest data pages.
    pub(crate) own: SizeClass,
    pub(crate) most: SizeClass,
}

impl ValuePages {
    /// Bytes of a value in one of its largest pages.
    pub(crate) fn capacity(&self) -> usize {
        data_capacity(self.most.page_bytes())
    }

    /// The class for `bytes` bytes of a value, at most the largest.
    pub(crate) fn class_for(&self, bytes: usize) -> SizeClass {
        SizeClass::holding((bytes + DATA) as u64).map_or(self.most, |class| class.clamp(self.own, self.most))
    }

    pub(crate) fn data_pages(&self, total_length: u64) -> u64 {
        total_length.div_ceil(self.capacity() as u64)
    }

    pub(crate) fn length_of(&self, number: u64, total_length: u64) -> usize {
        let capacity = self.capacity() as u64;
        total_length.saturating_sub(number.saturating_mul(capacity)).min(capacity) as usize
    }

    /// Most data pages created by one record. Above 64 KiB it is one: frames and log buffer have
    /// room for few.
    pub(crate) fn batch(&self) -> usize {
        if self.most.is_for_values() { 1 } else { BATCH_PAGES }
    }

    pub(crate) fn classes(&self, total_length: usize) -> impl Iterator<Item = SizeClass> + use<> {
        let rest = total_length % self.capacity();
        let several = (total_length >= self.capacity()).then_some(self.most);
        several.into_iter().chain((rest > 0).then(|| self.class_for(rest)))
    }
}

pub(crate) const fn data_capacity(page_bytes: usize) -> usize {
    page_bytes - DATA
}

pub(crate) const fn index_capacity(page_bytes: usize) -> usize {
    (page_bytes - IDS) / 8
}

/// Data and index pages of a value, if all have one size.
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

/// Makes `page` an index page of `pages`, at most [`index_capacity`] of them.
pub(crate) fn init_index(page: &mut [u8], id: PageId, compress: bool, next: PageId, pages: &[PageId]) {
    init(page, OVERFLOW_INDEX, id, compress);
    put_u64(page, NEXT, next.0);
    page[INDEX_COUNT..INDEX_COUNT + 4].copy_from_slice(&(pages.len() as u32).to_le_bytes());
    for (index, id) in pages.iter().enumerate() {
        put_u64(page, IDS + index * 8, id.0);
    }
}

/// Appends the bytes `part` of those of a data page to `to`; returns how many the page has. `None`
/// for another kind of page.
pub(crate) fn append_data<V: View>(page: V, part: &Range<usize>, to: &mut Vec<u8>) -> Option<usize> {
    if page.u8(KIND) != OVERFLOW_DATA {
        return None;
    }
    let length = (page.u32(DATA_LENGTH) as usize).min(page.len().saturating_sub(DATA));
    let start = part.start.min(length);
    page.append_to(DATA + start, part.end.min(length).saturating_sub(start), to);
    Some(length)
}

/// Appends the ids that an index page lists to `to`. Returns the next index page, [`PageId::NONE`]
/// at the end; `None` for another kind of page.
pub(crate) fn append_index<V: View>(page: V, to: &mut Vec<PageId>) -> Option<PageId> {
    if page.u8(KIND) != OVERFLOW_INDEX {
        return None;
    }
    let count = (page.u32(INDEX_COUNT) as usize).min(page.len().saturating_sub(IDS) / 8);
    to.extend((0..count).map(|index| PageId(page.u64(IDS + index * 8))));
    Some(PageId(page.u64(NEXT)))
}

/// The unused bytes of an overflow page; empty for other pages.
pub(crate) fn unused(page: &[u8]) -> Range<usize> {
    let used = match View::u8(&page, KIND) {
        OVERFLOW_DATA => DATA + View::u32(&page, DATA_LENGTH) as usize,
        OVERFLOW_INDEX => IDS + (View::u32(&page, INDEX_COUNT) as usize).saturating_mul(8),
        _ => page.len(),
    };
    used.min(page.len())..page.len()
}

pub(crate) fn check(page: &[u8]) -> Result<(), String> {
    let (number, room) = match View::u8(&page, KIND) {
        OVERFLOW_DATA => (View::u32(&page, DATA_LENGTH), page.len().saturating_sub(DATA)),
        OVERFLOW_INDEX => (View::u32(&page, INDEX_COUNT), page.len().saturating_sub(IDS) / 8),
        kind => return Err(format!("kind {kind} is not an overflow page")),
    };
    if View::u8(&page, KIND) == OVERFLOW_INDEX && page.len() > SizeClass::LARGEST_NODE.page_bytes() {
        return Err(format!("an overflow index page of {} bytes", page.len()));
    }
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
