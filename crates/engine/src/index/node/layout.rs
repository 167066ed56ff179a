//! The layout of a node, and how to read one.
//!
//! ```text
//!   0  page header: checksum u32, kind u8, level u8, shared length u16, page id u64, LSN u64
//!  24  count u16 | heap start / 8 u16 | live heap bytes / 8 u16 | prefix length u16
//!  32  lower fence / 8 u16, its length u16 | upper fence / 8 u16, its length u16
//!  40  inner nodes only: the leftmost child u64
//!  40 or 48  slots, one u64 each, sorted by key, growing up:
//!            head << 32 | offset / 8 << 16 | suffix length
//!      ...   gap
//!      heap: fences and entries, at multiples of eight, growing down from the page's end
//!            leaf entry: timestamp u64, value length u24, flags u8, key suffix, value
//!            inner entry: child u64, key suffix; the child has the keys from the separator on
//! ```
//!
//! Keys lie between the fences, lower inclusive, upper exclusive. Entries store only the *suffix*
//! behind the fences' common *prefix*. The empty lower fence is below every key; a missing upper
//! fence is above every key, and leaves no prefix. Such a node counts the first bytes that its
//! suffixes *share*. The head is the next four bytes, big-endian, zero-padded, so most probes of a
//! search compare slots only.
//!
//! Inner fences are cut to [`fence_limit`] bytes: two fences of 1024 bytes would leave a 4 KiB page
//! room for one separator. A key can be above a cut upper fence only by beginning with it.
//!
//! Readers may see a page in the middle of a change. Views clamp offsets, lengths and counts, so
//! reads are safe; their results count only after the page's version validates.

use std::cmp::Ordering;
use std::ops::Range;

use crate::ids::MAX_KEY_BYTES;
use crate::ids::{PageId, Timestamp};
use crate::pool::view::View;
use crate::store::image::COMPRESS;
use crate::store::page;

pub(crate) const PAGE_BYTES_MIN: usize = 4 << 10;
pub(crate) const PAGE_BYTES_MAX: usize = 64 << 10;

pub(crate) const LEAF: u8 = page::Kind::Leaf as u8;
pub(crate) const INNER: u8 = page::Kind::Inner as u8;

pub(crate) const KIND: usize = 4;
pub(crate) const LEVEL: usize = page::LEVEL_AT;
/// The highest level; the bit above it marks compression.
pub(crate) const LEVEL_MAX: u8 = 0x7f;
pub(crate) const SHARED: usize = 6;
pub(crate) const PAGE_ID: usize = 8;
pub(crate) const BODY: usize = page::HEADER_BYTES;

pub(crate) const COUNT: usize = 24;
pub(crate) const HEAP: usize = 26;
pub(crate) const LIVE: usize = 28;
pub(crate) const PREFIX: usize = 30;
pub(crate) const LOWER: usize = 32;
pub(crate) const UPPER: usize = 36;
pub(crate) const LEFTMOST: usize = 40;

/// The stored length of a missing upper fence.
pub(crate) const NO_UPPER: u16 = u16::MAX;

pub(crate) const SLOT: usize = 8;

/// Leaf entry flag: the value is a reference to overflow pages.
pub(crate) const OVERFLOW: u8 = 1;

#[inline]
pub(crate) const fn slots_at(kind: u8) -> usize {
    if kind == INNER { 48 } else { 40 }
}

#[inline]
pub(crate) const fn entry_header(kind: u8) -> usize {
    if kind == INNER { 8 } else { 12 }
}

#[inline]
pub(crate) const fn align8(bytes: usize) -> usize {
    (bytes + 7) & !7
}

/// The longest fence a node keeps.
pub(crate) const fn fence_limit(kind: u8, page_bytes: usize) -> usize {
    if kind != INNER {
        return MAX_KEY_BYTES;
    }
    let separators = 3 * (SLOT + align8(entry_header(INNER) + MAX_KEY_BYTES));
    let limit = (page_bytes.saturating_sub(slots_at(INNER) + separators) / 2) & !7;
    if limit < MAX_KEY_BYTES { limit } else { MAX_KEY_BYTES }
}

/// The first four bytes of a suffix, as an order-preserving number.
#[inline]
pub(crate) fn head(suffix: &[u8]) -> u32 {
    match suffix.first_chunk::<4>() {
        Some(bytes) => u32::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; 4];
            bytes[..suffix.len()].copy_from_slice(suffix);
            u32::from_be_bytes(bytes)
        }
    }
}

/// The length of the common beginning of `a` and `b`.
pub(crate) fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[derive(Clone, Copy)]
pub(crate) struct Slot(pub(crate) u64);

impl Slot {
    /// A slot for the entry at `at`, a multiple of eight. Its suffix shares `shared` bytes with all
    /// others.
    pub(crate) fn new(suffix: &[u8], shared: usize, at: usize) -> Self {
        let head = head(suffix.get(shared..).unwrap_or_default());
        Self(u64::from(head) << 32 | (at as u64 / 8) << 16 | suffix.len() as u64)
    }

    /// The first four bytes behind the shared ones.
    #[inline]
    pub(crate) fn head(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline]
    pub(crate) fn at(self) -> usize {
        usize::from((self.0 >> 16) as u16) * 8
    }

    /// Length of the suffix, clamped to the longest key.
    #[inline]
    pub(crate) fn length(self) -> usize {
        usize::from(self.0 as u16).min(MAX_KEY_BYTES)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) timestamp: Timestamp,
    /// [`OVERFLOW`] or 0.
    pub(crate) flags: u8,
    pub(crate) value_at: usize,
    pub(crate) value_length: usize,
}

impl Entry {
    pub(crate) fn is_overflow(&self) -> bool {
        self.flags & OVERFLOW != 0
    }
}

/// An entry without its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body<'a> {
    Leaf {
        timestamp: Timestamp,
        flags: u8,
        /// The value, or the reference to it.
        value: &'a [u8],
    },
    Inner {
        child: PageId,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fences {
    /// Inclusive.
    pub(crate) lower: Vec<u8>,
    /// Exclusive; `None` is above every key.
    pub(crate) upper: Option<Vec<u8>>,
}

/// A node being read; the header numbers are read once and clamped.
#[derive(Clone, Copy)]
pub(crate) struct Node<V> {
    view: V,
    kind: u8,
    /// Includes the compression bit.
    level: u8,
    count: usize,
    prefix: usize,
    shared: usize,
}

impl<V: View> Node<V> {
    #[inline]
    pub(crate) fn new(view: V) -> Self {
        let (page, header) = (view.u64(0), view.u64(COUNT));
        let kind = (page >> 32) as u8;
        let count_max = view.len().saturating_sub(slots_at(kind)) / SLOT;
        Self {
            view,
            kind,
            level: (page >> 40) as u8,
            count: usize::from(header as u16).min(count_max),
            prefix: usize::from((header >> 48) as u16).min(MAX_KEY_BYTES),
            shared: usize::from((page >> 48) as u16).min(MAX_KEY_BYTES),
        }
    }

    #[inline]
    pub(crate) fn is_leaf(&self) -> bool {
        self.kind == LEAF
    }

    #[inline]
    pub(crate) fn kind(&self) -> u8 {
        self.kind
    }

    /// Height above the leaves.
    #[inline]
    pub(crate) fn level(&self) -> u8 {
        self.level & !COMPRESS
    }

    /// The level with its compression bit, which a split's new node inherits.
    #[inline]
    pub(crate) fn level_byte(&self) -> u8 {
        self.level
    }

    /// Number of entries: keys of a leaf, separators of an inner node.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    #[inline]
    pub(crate) fn prefix(&self) -> usize {
        self.prefix
    }

    /// Number of first bytes that all suffixes share.
    #[inline]
    pub(crate) fn shared(&self) -> usize {
        self.shared
    }

    #[inline]
    pub(crate) fn page(&self) -> PageId {
        PageId(self.view.u64(PAGE_ID))
    }

    #[inline]
    pub(crate) fn page_bytes(&self) -> usize {
        self.view.len()
    }

    #[inline]
    pub(crate) fn heap_start(&self) -> usize {
        usize::from(self.view.u16(HEAP)) * 8
    }

    #[inline]
    pub(crate) fn slot(&self, index: usize) -> Slot {
        Slot(self.view.u64(slots_at(self.kind) + index * SLOT))
    }

    /// The first index at or above `key`, and whether that key equals it. A key outside the fences
    /// gets an arbitrary index.
    #[inline]
    pub(crate) fn lower_bound(&self, key: &[u8]) -> (usize, bool) {
        let mut suffix = key.get(self.prefix..).unwrap_or_default();
        if self.shared > 0 && self.count > 0 {
            let at = self.slot(0).at() + entry_header(self.kind);
            match self.view.compare(at, self.shared, &suffix[..suffix.len().min(self.shared)]) {
                Ordering::Less => return (self.count, false),
                Ordering::Equal => suffix = suffix.get(self.shared..).unwrap_or_default(),
                Ordering::Greater => return (0, false),
            }
        }
        let head = head(suffix);
        // The head is the upper half, so slots ascend as words. Lower bits that are all set are no
        // valid length.
        let (slots, bound) = (slots_at(self.kind), u64::from(head) << 32);
        let mut low = self.view.count_below(slots, self.count, bound);
        let mut high = low;
        while high < self.count && high < low + 2 && self.slot(high).head() == head {
            high += 1;
        }
        if high == low + 2 {
            let last = bound | u64::from(u32::MAX);
            high = low + self.view.count_below(slots + low * SLOT, self.count - low, last);
        }
        // Slots with equal heads; mostly one.
        while low < high {
            let middle = low.midpoint(high);
            match self.compare_tail(self.slot(middle), suffix) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return (middle, true),
                Ordering::Greater => high = middle,
            }
        }
        (low, false)
    }

    /// Compares a slot's suffix, behind the shared bytes, with `suffix`; their heads are equal. If
    /// either ends within the head, the lengths decide without a heap access.
    #[inline]
    fn compare_tail(&self, slot: Slot, suffix: &[u8]) -> Ordering {
        let length = slot.length().saturating_sub(self.shared);
        match suffix.get(4..) {
            Some(tail) if length > 4 && !tail.is_empty() => {
                let at = slot.at() + entry_header(self.kind) + self.shared + 4;
                self.view.compare(at, length - 4, tail)
            }
            _ => length.cmp(&suffix.len()),
        }
    }

    pub(crate) fn append_key(&self, index: usize, to: &mut Vec<u8>) {
        let slot = self.slot(index);
        self.view.append_to(usize::from(self.view.u16(LOWER)) * 8, self.prefix, to);
        self.view.append_to(slot.at() + entry_header(self.kind), slot.length(), to);
    }

    pub(crate) fn key(&self, index: usize) -> Vec<u8> {
        let mut key = Vec::new();
        self.append_key(index, &mut key);
        key
    }

    #[inline]
    pub(crate) fn entry(&self, index: usize) -> Entry {
        let slot = self.slot(index);
        let at = slot.at();
        let word = self.view.u32(at + 8);
        Entry {
            timestamp: Timestamp(self.view.u64(at)),
            flags: (word >> 24) as u8,
            value_at: at + entry_header(LEAF) + slot.length(),
            value_length: (word as usize & 0xff_ffff).min(self.view.len()),
        }
    }

    /// Appends the bytes `part` of a value.
    #[inline]
    pub(crate) fn append_part(&self, entry: &Entry, part: Range<usize>, to: &mut Vec<u8>) {
        self.view.append_to(entry.value_at + part.start, part.len(), to);
    }

    /// Copies bytes of the page.
    pub(in crate::index) fn copy_to(&self, at: usize, to: &mut [u8]) {
        self.view.copy_to(at, to);
    }

    #[inline]
    pub(crate) fn append_value(&self, entry: &Entry, to: &mut Vec<u8>) {
        self.view.append_to(entry.value_at, entry.value_length, to);
    }

    /// Child `index` of an inner node, 0 to `count` inclusive; 0 is the leftmost.
    #[inline]
    pub(crate) fn child_at(&self, index: usize) -> PageId {
        match index.checked_sub(1) {
            None => PageId(self.view.u64(LEFTMOST)),
            Some(index) => PageId(self.view.u64(self.slot(index).at())),
        }
    }

    #[inline]
    pub(crate) fn child_index(&self, key: &[u8]) -> usize {
        let (index, found) = self.lower_bound(key);
        index + usize::from(found)
    }

    /// A fence's offset and length; `None` for a missing upper fence.
    fn fence(&self, which: usize) -> Option<(usize, usize)> {
        let (at, length) = (self.view.u16(which), self.view.u16(which + 2));
        (which == LOWER || length != NO_UPPER)
            .then(|| (usize::from(at) * 8, usize::from(length).min(MAX_KEY_BYTES)))
    }

    /// The fences; an inner node's may be cut (see the head of this file).
    pub(crate) fn fences(&self) -> Fences {
        let copy = |(at, length)| {
            let mut fence = Vec::new();
            self.view.append_to(at, length, &mut fence);
            fence
        };
        Fences { lower: self.fence(LOWER).map(copy).unwrap_or_default(), upper: self.fence(UPPER).map(copy) }
    }

    /// Copies the fences into reused vectors.
    pub(crate) fn copy_fences(&self, lower: &mut Vec<u8>, upper: &mut Option<Vec<u8>>) {
        lower.clear();
        if let Some((at, length)) = self.fence(LOWER) {
            self.view.append_to(at, length, lower);
        }
        match self.fence(UPPER) {
            Some((at, length)) => {
                let upper = upper.get_or_insert_default();
                upper.clear();
                self.view.append_to(at, length, upper);
            }
            None => *upper = None,
        }
    }

    pub(crate) fn is_last(&self) -> bool {
        self.fence(UPPER).is_none()
    }

    pub(crate) fn is_first(&self) -> bool {
        self.fence(LOWER).is_none_or(|(_, length)| length == 0)
    }

    /// Whether `key` lies within the fences. Exact for a leaf; a cut upper fence admits every key
    /// that begins with it.
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        let (lower_at, lower_length) = self.fence(LOWER).unwrap_or_default();
        if self.view.compare(lower_at, lower_length, key) == Ordering::Greater {
            return false;
        }
        let Some((at, length)) = self.fence(UPPER) else { return true };
        if self.view.compare(at, length, key) == Ordering::Greater {
            return true;
        }
        let may_be_cut = self.kind == INNER && length == fence_limit(INNER, self.view.len());
        may_be_cut && key.get(..length).is_some_and(|start| self.view.compare(at, length, start).is_eq())
    }

    /// Bytes of header, slots, fences and entries; independent of where the entries lie.
    pub(crate) fn used_bytes(&self) -> usize {
        slots_at(self.kind) + self.count * SLOT + usize::from(self.view.u16(LIVE)) * 8
    }

    pub(crate) fn free_bytes(&self) -> usize {
        self.view.len().saturating_sub(self.used_bytes())
    }
}

impl<'a> Node<&'a [u8]> {
    pub(crate) fn body(&self, index: usize) -> Body<'a> {
        if self.kind == INNER {
            return Body::Inner { child: self.child_at(index + 1) };
        }
        let Entry { timestamp, flags, value_at, value_length } = self.entry(index);
        let value = self.view.get(value_at..value_at + value_length).unwrap_or_default();
        Body::Leaf { timestamp, flags, value }
    }

    pub(crate) fn prefix_bytes(&self) -> &'a [u8] {
        let at = usize::from(View::u16(&self.view, LOWER)) * 8;
        self.view.get(at..at + self.prefix).unwrap_or_default()
    }

    pub(crate) fn suffix(&self, index: usize) -> &'a [u8] {
        let slot = self.slot(index);
        let at = slot.at() + entry_header(self.kind);
        self.view.get(at..at + slot.length()).unwrap_or_default()
    }

    pub(crate) fn entry_bytes(&self, index: usize) -> usize {
        let slot = self.slot(index);
        let value = if self.kind == INNER { 0 } else { self.entry(index).value_length };
        align8(entry_header(self.kind) + slot.length() + value)
    }
}

/// The number of entries of a sound leaf page; 0 for any other page.
pub(crate) fn leaf_entries(page: &[u8]) -> u64 {
    let node = Node::new(page);
    if node.is_leaf() { node.count() as u64 } else { 0 }
}

/// The children of a sound inner node; empty for any other page.
pub(crate) fn children(page: &[u8]) -> Vec<PageId> {
    let node = Node::new(page);
    if node.is_leaf() { Vec::new() } else { (0..=node.count()).map(|index| node.child_at(index)).collect() }
}
