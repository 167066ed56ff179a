//! Space inside a node: creating one, inserting and removing entries, compaction.
//!
//! Whether an entry fits depends only on the node's content: header, slots, fences and entries,
//! each rounded up to eight bytes. If the gap is too small, the heap is compacted first. Redo
//! relies on that: a page rebuilt from an older image has entries at other offsets, and operations
//! must fit again.
//!
//! A redo may run on a damaged page. So [`Shape::of`] verifies the header before any write, sizes
//! in entries are verified before use, and reads go through a clamping view. The result may be an
//! error or wrong content, but never a panic.

use super::layout::{
    BODY, Body, COUNT, HEAP, INNER, KIND, LEAF, LEFTMOST, LEVEL, LIVE, LOWER, NO_UPPER, Node, PAGE_BYTES_MAX,
    PAGE_BYTES_MIN, PAGE_ID, PREFIX, SHARED, SLOT, Slot, UPPER, align8, common, entry_header, fence_limit,
    slots_at,
};
use crate::error::{Error, Result};
use crate::ids::MAX_KEY_BYTES;
use crate::ids::{PageId, Timestamp};
use crate::pool::view::View;

/// The error for an inconsistent node or an unsuitable operation.
pub(crate) fn damaged(page: &[u8], what: impl Into<String>) -> Error {
    damaged_page(PageId(View::u64(&page, PAGE_ID)), what)
}

pub(crate) fn damaged_page(id: PageId, what: impl Into<String>) -> Error {
    Error::corrupt("the page file", Some(id.0), what)
}

pub(crate) fn put_u16(page: &mut [u8], at: usize, value: usize) {
    page[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
}

pub(crate) fn put_u64(page: &mut [u8], at: usize, value: u64) {
    page[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// A node's header numbers, verified to be possible.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) kind: u8,
    pub(crate) page_bytes: usize,
    pub(crate) count: usize,
    pub(crate) heap: usize,
    pub(crate) live: usize,
    pub(crate) prefix: usize,
}

impl Shape {
    pub(crate) fn of(page: &[u8]) -> Result<Self> {
        let page_bytes = page.len();
        if !(PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&page_bytes) || !page_bytes.is_power_of_two() {
            return Err(damaged(page, format!("a page of {page_bytes} bytes")));
        }
        let number = |at| usize::from(View::u16(&page, at));
        let shape = Self {
            kind: page[KIND],
            page_bytes,
            count: number(COUNT),
            heap: number(HEAP) * 8,
            live: number(LIVE) * 8,
            prefix: number(PREFIX),
        };
        if shape.kind != LEAF && shape.kind != INNER {
            return Err(damaged(page, format!("kind {} is not a node", shape.kind)));
        }
        if shape.slots_end() > shape.heap || shape.heap > page_bytes || shape.live > page_bytes - shape.heap {
            return Err(damaged(page, "node header: slots and heap overlap or leave the page"));
        }
        if shape.prefix > MAX_KEY_BYTES {
            return Err(damaged(page, "node header: prefix longer than any key"));
        }
        Ok(shape)
    }

    pub(crate) fn slots_end(&self) -> usize {
        slots_at(self.kind) + self.count * SLOT
    }

    pub(crate) fn gap(&self) -> usize {
        self.heap - self.slots_end()
    }

    /// Free bytes: gap and holes.
    pub(crate) fn free(&self) -> usize {
        self.page_bytes - self.slots_end() - self.live
    }

    fn store(&self, page: &mut [u8]) {
        put_u16(page, COUNT, self.count);
        put_u16(page, HEAP, self.heap / 8);
        put_u16(page, LIVE, self.live / 8);
    }
}

impl Body<'_> {
    pub(crate) fn bytes(&self, suffix_length: usize) -> usize {
        match self {
            Body::Leaf { value, .. } => align8(entry_header(LEAF) + suffix_length + value.len()),
            Body::Inner { .. } => align8(entry_header(INNER) + suffix_length),
        }
    }

    /// Writes the entry; `to` has exactly its size.
    pub(in crate::index) fn write(&self, suffix: &[u8], to: &mut [u8]) {
        let value = match *self {
            Body::Leaf { timestamp, flags, value } => {
                put_u64(to, 0, timestamp.0);
                let word = value.len() as u32 | u32::from(flags) << 24;
                to[8..12].copy_from_slice(&word.to_le_bytes());
                value
            }
            Body::Inner { child } => {
                put_u64(to, 0, child.0);
                &[]
            }
        };
        let kind = if matches!(self, Body::Leaf { .. }) { LEAF } else { INNER };
        let (suffix_at, value_at) = (entry_header(kind), entry_header(kind) + suffix.len());
        to[suffix_at..value_at].copy_from_slice(suffix);
        to[value_at..value_at + value.len()].copy_from_slice(value);
        to[value_at + value.len()..].fill(0);
    }
}

/// Makes `page` an empty node. `level` includes the compression bit; checksum and LSN stay. Fences
/// are at most [`MAX_KEY_BYTES`] long.
pub(crate) fn init(
    page: &mut [u8],
    kind: u8,
    level: u8,
    id: PageId,
    lower: &[u8],
    upper: Option<&[u8]>,
    leftmost: PageId,
) {
    let limit = fence_limit(kind, page.len());
    let cut = |fence: &'_ [u8]| fence.len().min(limit);
    let lower = &lower[..cut(lower)];
    let upper = upper.map(|upper| &upper[..cut(upper)]);

    page[BODY..].fill(0);
    page[KIND] = kind;
    page[LEVEL] = level;
    put_u16(page, SHARED, 0);
    put_u64(page, PAGE_ID, id.0);
    if kind == INNER {
        put_u64(page, LEFTMOST, leftmost.0);
    }

    let lower_at = page.len() - align8(lower.len());
    page[lower_at..lower_at + lower.len()].copy_from_slice(lower);
    put_u16(page, LOWER, lower_at / 8);
    put_u16(page, LOWER + 2, lower.len());
    let mut heap = lower_at;
    match upper {
        Some(upper) => {
            heap -= align8(upper.len());
            page[heap..heap + upper.len()].copy_from_slice(upper);
            put_u16(page, UPPER, heap / 8);
            put_u16(page, UPPER + 2, upper.len());
            put_u16(page, PREFIX, common(lower, upper));
        }
        None => put_u16(page, UPPER + 2, usize::from(NO_UPPER)),
    }
    Shape { kind, page_bytes: page.len(), count: 0, heap, live: page.len() - heap, prefix: 0 }.store(page);
}

/// Inserts an entry at `index`, from the caller's search. `false`: no room, and nothing changed.
pub(crate) fn insert(page: &mut [u8], index: usize, key: &[u8], body: &Body<'_>) -> Result<bool> {
    let mut shape = Shape::of(page)?;
    let Some(suffix) = key.get(shape.prefix..) else {
        return Err(damaged(page, "a key shorter than the prefix of its node"));
    };
    let size = body.bytes(suffix.len());
    if shape.free() < size + SLOT {
        return Ok(false);
    }
    if shape.gap() < size + SLOT {
        shape = compact(page, None)?;
    }
    if shape.gap() < size + SLOT || index > shape.count {
        return Err(damaged(page, "node header: live bytes do not match the entries"));
    }
    let shared = share(page, &shape, suffix);
    shape.heap -= size;
    shape.live += size;
    body.write(suffix, &mut page[shape.heap..shape.heap + size]);
    let slot_at = slots_at(shape.kind) + index * SLOT;
    page.copy_within(slot_at..shape.slots_end(), slot_at + SLOT);
    put_u64(page, slot_at, Slot::new(suffix, shared, shape.heap).0);
    shape.count += 1;
    shape.store(page);
    Ok(true)
}

/// Updates the shared length for a new `suffix`, and all heads. A node with both fences has a
/// prefix and shares nothing.
fn share(page: &mut [u8], shape: &Shape, suffix: &[u8]) -> usize {
    let node = Node::new(&page[..]);
    let (before, suffixes) = (node.shared(), 0..shape.count);
    let shared = match shape.count {
        0 if node.is_first() || node.is_last() => suffix.len(),
        0 => 0,
        _ => before.min(common(node.suffix(0), suffix)),
    };
    if shared == before {
        return shared;
    }
    let slots: Vec<Slot> =
        suffixes.map(|index| Slot::new(node.suffix(index), shared, node.slot(index).at())).collect();
    put_u16(page, SHARED, shared);
    for (index, slot) in slots.into_iter().enumerate() {
        put_u64(page, slots_at(shape.kind) + index * SLOT, slot.0);
    }
    shared
}

/// Replaces the body of the entry at `index`. `false`: no room, and nothing changed.
pub(crate) fn replace(page: &mut [u8], index: usize, key: &[u8], body: &Body<'_>) -> Result<bool> {
    let mut shape = Shape::of(page)?;
    let (old_at, old_size) = extent(page, &shape, index)?;
    let Some(suffix) = key.get(shape.prefix..) else {
        return Err(damaged(page, "a key shorter than the prefix of its node"));
    };
    let size = body.bytes(suffix.len());
    if size <= old_size {
        body.write(suffix, &mut page[old_at..old_at + size]);
        shape.live = live_without(page, &shape, old_size - size)?;
        shape.store(page);
        return Ok(true);
    }
    if shape.free() + old_size < size {
        return Ok(false);
    }
    shape.live = live_without(page, &shape, old_size)?;
    if shape.gap() < size {
        shape = compact(page, Some(index))?;
    }
    if shape.gap() < size {
        return Err(damaged(page, "node header: live bytes do not match the entries"));
    }
    let shared = Node::new(&page[..]).shared();
    shape.heap -= size;
    shape.live += size;
    body.write(suffix, &mut page[shape.heap..shape.heap + size]);
    put_u64(page, slots_at(shape.kind) + index * SLOT, Slot::new(suffix, shared, shape.heap).0);
    shape.store(page);
    Ok(true)
}

/// Overwrites a part of the inline value of the leaf entry at `index`, and sets its timestamp.
pub(crate) fn patch(
    page: &mut [u8],
    index: usize,
    timestamp: Timestamp,
    at: usize,
    bytes: &[u8],
) -> Result<()> {
    let shape = Shape::of(page)?;
    let (entry_at, _) = extent(page, &shape, index)?;
    let entry = Node::new(&page[..]).entry(index);
    let end = at.checked_add(bytes.len()).filter(|&end| end <= entry.value_length && !entry.is_overflow());
    let Some(end) = end else {
        return Err(damaged(page, "a part to be changed is not inside an inline value"));
    };
    put_u64(page, entry_at, timestamp.0);
    page[entry.value_at + at..entry.value_at + end].copy_from_slice(bytes);
    Ok(())
}

pub(crate) fn remove(page: &mut [u8], index: usize) -> Result<()> {
    let mut shape = Shape::of(page)?;
    let (at, size) = extent(page, &shape, index)?;
    shape.live = live_without(page, &shape, size)?;
    if at == shape.heap {
        shape.heap += size;
    }
    let slot_at = slots_at(shape.kind) + index * SLOT;
    page.copy_within(slot_at + SLOT..shape.slots_end(), slot_at);
    shape.count -= 1;
    shape.store(page);
    Ok(())
}

/// Appends an entry to a node under reconstruction, which must have room.
pub(crate) fn append(page: &mut [u8], key: &[u8], body: &Body<'_>) -> Result<()> {
    let count = Node::new(&page[..]).count();
    if insert(page, count, key, body)? {
        Ok(())
    } else {
        Err(damaged(page, "entries do not fit their own node"))
    }
}

/// Moves fences and entries to the page's end, and clears the gap. Drops the entry at `skip`, whose
/// slot the caller fills.
pub(crate) fn compact(page: &mut [u8], skip: Option<usize>) -> Result<Shape> {
    let mut shape = Shape::of(page)?;
    let old = page.to_vec();
    let mut heap = page.len();
    let mut append = |page: &mut [u8], at: usize, length: usize| -> Result<usize> {
        let size = align8(length);
        if heap < shape.slots_end() + size || at + length > old.len() {
            return Err(damaged(&old, "entries larger than their page"));
        }
        heap -= size;
        page[heap..heap + length].copy_from_slice(&old[at..at + length]);
        page[heap + length..heap + size].fill(0);
        Ok(heap)
    };
    for fence in [LOWER, UPPER] {
        let (at, length) = (View::u16(&&old[..], fence), View::u16(&&old[..], fence + 2));
        if fence == LOWER || length != NO_UPPER {
            let at = append(page, usize::from(at) * 8, usize::from(length))?;
            put_u16(page, fence, at / 8);
        }
    }
    let node = Node::new(&old[..]);
    for index in (0..shape.count).filter(|&index| Some(index) != skip) {
        let slot = node.slot(index);
        let at = append(page, slot.at(), node.entry_bytes(index))?;
        let moved = slot.0 & !(0xffff << 16) | (at as u64 / 8) << 16;
        put_u64(page, slots_at(shape.kind) + index * SLOT, moved);
    }
    page[shape.slots_end()..heap].fill(0);
    shape.heap = heap;
    shape.live = page.len() - heap;
    shape.store(page);
    Ok(shape)
}

/// Verified offset and size.
fn extent(page: &[u8], shape: &Shape, index: usize) -> Result<(usize, usize)> {
    if index >= shape.count {
        return Err(damaged(page, "no such entry"));
    }
    let node = Node::new(page);
    let (at, size) = (node.slot(index).at(), node.entry_bytes(index));
    if at < shape.heap || at + size > page.len() {
        return Err(damaged(page, "an entry outside the heap"));
    }
    Ok((at, size))
}

fn live_without(page: &[u8], shape: &Shape, bytes: usize) -> Result<usize> {
    shape
        .live
        .checked_sub(bytes)
        .ok_or_else(|| damaged(page, "node header: fewer live bytes than an entry has"))
}
