//! Validates the whole structure of a page that nothing has checked yet.
//!
//! A checksum proves that a page is what was written, not that this program wrote it without a bug.
//! So every page is checked once, when it comes from a disk, and the node code relies on that. The
//! check accepts any bytes. It costs a few nanoseconds per entry: one pass over the slots, with one
//! bit per eight bytes of the page to find overlapping entries.

use std::cmp::Ordering;

use super::edit::Shape;
use super::layout::{
    INNER, LEAF, LOWER, NO_UPPER, Node, OVERFLOW, PAGE_BYTES_MAX, SHARED, UPPER, align8, common, fence_limit,
    head,
};
use super::leaf::max_record;
use super::overflow::{self, Reference};
use crate::ids::MAX_KEY_BYTES;
use crate::pool::view::View;

/// The error names the fault.
pub(crate) fn check(page: &[u8]) -> Result<(), String> {
    let kind = View::u8(&page, super::layout::KIND);
    if kind == overflow::OVERFLOW_INDEX || kind == overflow::OVERFLOW_DATA {
        return overflow::check(page);
    }
    let shape = Shape::of(page).map_err(|error| error.to_string())?;
    let node = Node::new(page);
    verify((node.level() > 0) == (kind == INNER), || "level does not suit the kind".into())?;
    let shared = usize::from(View::u16(&page, SHARED));
    verify(shared == node.shared() && (shared == 0 || node.is_first() || node.is_last()), || {
        "its suffixes cannot share that much".into()
    })?;
    let mut heap = Heap { taken: [0; PAGE_BYTES_MAX / 8 / 64], bytes: 0, start: shape.heap, end: page.len() };
    check_fences(page, &shape, &mut heap)?;
    verify(kind == LEAF || !node.child_at(0).is_none(), || "no leftmost child".into())?;

    let suffix = |index| node.suffix(index);
    for index in 0..shape.count {
        check_entry(page, &node, &shape, index)?;
        heap.take(node.slot(index).at(), node.entry_bytes(index))?;
        let (slot, own) = (node.slot(index), suffix(index));
        let behind = own.get(shared..).filter(|_| own[..shared] == suffix(0)[..shared]);
        verify(behind.is_some_and(|behind| slot.head() == head(behind)), || {
            format!("head of entry {index} differs from its key")
        })?;
        if let Some(before) = index.checked_sub(1) {
            let order = node.slot(before).head().cmp(&slot.head()).then_with(|| suffix(before).cmp(own));
            verify(order == Ordering::Less, || format!("entry {index} is not above the one before it"))?;
        }
    }
    // The keys are sorted, so the first and the last stand for all.
    for index in [0, shape.count.saturating_sub(1)] {
        verify(shape.count == 0 || node.contains(&node.key(index)), || {
            format!("entry {index} outside the fences")
        })?;
    }
    verify(heap.bytes == shape.live, || format!("{} live bytes, header says {}", heap.bytes, shape.live))
}

fn verify(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

/// The occupied parts of the heap, one bit per eight bytes.
struct Heap {
    taken: [u64; PAGE_BYTES_MAX / 8 / 64],
    bytes: usize,
    start: usize,
    end: usize,
}

impl Heap {
    /// Marks `length` bytes at `at` as occupied; both are multiples of eight.
    fn take(&mut self, at: usize, length: usize) -> Result<(), String> {
        verify(at >= self.start && at + length <= self.end, || {
            format!("bytes at {at} are outside the heap")
        })?;
        let (mut bit, end) = (at / 8, (at + length) / 8);
        while bit < end {
            let (word, shift) = (bit / 64, bit % 64);
            let bits = (end - bit).min(64 - shift);
            let mask = (u64::MAX >> (64 - bits)) << shift;
            verify(self.taken[word] & mask == 0, || format!("two things overlap near {}", bit * 8))?;
            self.taken[word] |= mask;
            bit += bits;
        }
        self.bytes += length;
        Ok(())
    }
}

fn check_fences(page: &[u8], shape: &Shape, heap: &mut Heap) -> Result<(), String> {
    let limit = fence_limit(shape.kind, page.len());
    let mut fence = |which: usize| -> Result<&[u8], String> {
        let (at, length) =
            (usize::from(View::u16(&page, which)) * 8, usize::from(View::u16(&page, which + 2)));
        verify(length <= limit, || format!("fence of {length} bytes"))?;
        heap.take(at, align8(length))?;
        Ok(&page[at..at + length])
    };
    let lower = fence(LOWER)?;
    let prefix = if View::u16(&page, UPPER + 2) == NO_UPPER {
        0
    } else {
        let upper = fence(UPPER)?;
        // Cut fences may be equal although the full keys differ.
        let cut = shape.kind == INNER && upper.len() == limit;
        verify(lower < upper || (cut && lower == upper), || "lower fence is not below the upper one".into())?;
        common(lower, upper)
    };
    verify(prefix == shape.prefix, || format!("prefix of {} bytes, fences share {prefix}", shape.prefix))
}

fn check_entry(page: &[u8], node: &Node<&[u8]>, shape: &Shape, index: usize) -> Result<(), String> {
    let slot = node.slot(index);
    let key_length = shape.prefix + usize::from(slot.0 as u16);
    verify(key_length <= MAX_KEY_BYTES, || format!("key of {key_length} bytes at entry {index}"))?;
    if shape.kind == INNER {
        verify(key_length > 0, || "an empty separator".into())?;
        return verify(!node.child_at(index + 1).is_none(), || format!("no child at entry {index}"));
    }
    let entry = node.entry(index);
    verify(entry.flags & !OVERFLOW == 0, || format!("unknown flags at entry {index}"))?;
    verify(!entry.is_overflow() || entry.value_length == Reference::BYTES, || {
        format!("malformed overflow reference at entry {index}")
    })?;
    let record = key_length + entry.value_length;
    verify(record <= max_record(page.len()), || format!("record of {record} bytes at entry {index}"))
}
