//! Writes of values too large for a leaf, page by page at the time of the `put`.
//!
//! Each part of a value ([`chain`](crate::index::chain)) is one log record, which also points the
//! garbage entry at the new head. So the entry always leads to all pages, and a crash leaks
//! nothing. A part fits into the log buffer and a few frames, however large the value is.

use super::garbage::{GarbageKey, garbage_tree, put};
use super::mvcc::Mvcc;
use super::table::TableState;
use crate::compression::Compression;
use crate::error::Result;
use crate::ids::{ByClass, PageId, SizeClass};
use crate::index::chain::store_part;
use crate::index::node::overflow::{Reference, ValuePages};
use crate::index::{SPLIT_FRAMES, Write, log_bytes};

const GARBAGE_PAGES: u64 = 4;
/// Log bytes of a new page beside its content.
const IMAGE_BYTES: u64 = 64;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) reference: Reference,
    pub(crate) key: GarbageKey,
}

/// Writes `value` to pages of its own, sized and compressed as its table says.
///
/// The pages are garbage until a commit claims them. Their sizes are in use. The caller holds no
/// latch.
///
/// # Errors
/// Those of a write.
pub(crate) fn write_value(mvcc: &Mvcc, value: &[u8], table: &TableState) -> Result<Written> {
    let mut written: Option<Written> = None;
    let mut from = value.len();
    while from > 0 {
        from = write_part(mvcc, value, from, table, &mut written).inspect_err(|_| {
            if let Some(Written { key, reference }) = written {
                mvcc.garbage.add_value(key, reference);
            }
        })?;
    }
    Ok(written.expect("a large value is not empty"))
}

/// Writes the part before byte `stored_from`; returns where the part begins.
fn write_part(
    mvcc: &Mvcc,
    value: &[u8],
    stored_from: usize,
    table: &TableState,
    written: &mut Option<Written>,
) -> Result<usize> {
    let sizes = table.value_pages();
    let blocks = part_blocks(sizes, value.len()) + GARBAGE_PAGES * mvcc.pool.class().blocks();
    let mut grant = mvcc.pool.grant(blocks, part_frames(sizes, value.len(), mvcc.pool.class()))?;
    let compress = table.compression != Compression::None;
    let next = written.map_or(PageId::NONE, |written| written.reference.head);
    let part = store_part(&mvcc.pool, Some(&mut grant), value, stored_from, next, (sizes, compress))?;
    let reference = Reference { total_length: value.len() as u64, head: part.head };
    let key = written.map_or(GarbageKey::value(part.head), |written| written.key);
    let entry = reference.encode();
    let change = put(&key, &entry);
    let images: u64 = part.create.iter().map(|(_, page)| page.len() as u64 + IMAGE_BYTES).sum();
    let mut reservation = mvcc.pool.reserve_log(log_bytes(&change, 0) + images)?;
    let mut write = Write {
        reservation: Some(&mut reservation),
        grant: Some(&mut grant),
        create: part.create,
        ..Write::default()
    };
    garbage_tree(&mvcc.pool).apply(&mvcc.pool, &mut write, change)?;
    // A verification that began during the write may know only the old head. One that begins later
    // finds all pages.
    if let Some(verify_marks) = mvcc.pool.verify_marks().filter(|_| !next.is_none()) {
        verify_marks.pass_on(next);
    }
    *written = Some(Written { reference, key });
    Ok(part.from)
}

/// Upper bound of frames for one part, and for splits by its garbage entry.
fn part_frames(sizes: ValuePages, length: usize, garbage: SizeClass) -> ByClass<u32> {
    let mut frames = [0; SizeClass::COUNT];
    let several = sizes.batch().min(length / sizes.capacity()) as u32;
    let rest = length % sizes.capacity();
    frames[sizes.most.index()] += several;
    frames[sizes.class_for(rest).index()] += u32::from(rest > 0);
    frames[sizes.own.index()] += u32::from(length > sizes.capacity());
    frames[garbage.index()] += SPLIT_FRAMES;
    frames
}

/// Upper bound of blocks for the pages of one part.
fn part_blocks(sizes: ValuePages, length: usize) -> u64 {
    if length <= sizes.capacity() {
        return sizes.class_for(length).blocks();
    }
    sizes.batch() as u64 * sizes.most.blocks() + sizes.own.blocks()
}
