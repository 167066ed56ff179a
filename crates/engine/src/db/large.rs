//! Writing values that are too large for a leaf, at the time of the `put`, page by page.
//!
//! Each part of a value ([`chain`](crate::index::chain)) is one log record, which also makes the garbage entry name
//! the new head. So at every moment the entry leads to all pages there are, and a crash leaks nothing; and a part fits
//! the log buffer and a few frames, however large the value is.

use super::core::Core;
use super::core::TableState;
use super::garbage::{GarbageKey, garbage_tree, put};
use super::options::Compression;
use crate::error::Result;
use crate::ids::{ByClass, PageId, SizeClass};
use crate::index::chain::store_part;
use crate::index::overflow::{Reference, ValuePages};
use crate::index::{SPLIT_FRAMES, Write, log_bytes};

/// Pages that its garbage entry may cost.
const GARBAGE_PAGES: u64 = 4;
/// Log bytes of a new page beside its content.
const IMAGE_BYTES: u64 = 64;

/// A value written and not yet referred to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) reference: Reference,
    pub(crate) key: GarbageKey,
}

impl Core {
    /// Writes `value` to pages of its own, which are as large as its table wants them, and compressed like that's. Until a
    /// commit claims them they are garbage. The caller holds no latch.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) if pages of a size that was not used before cannot be had; others of a write.
    pub(crate) fn write_value(&self, value: &[u8], table: &TableState) -> Result<Written> {
        for class in table.value_pages().classes(value.len()) {
            self.use_class(class)?;
        }
        let mut written: Option<Written> = None;
        let mut from = value.len();
        while from > 0 {
            from = self.write_part(value, from, table, &mut written).inspect_err(|_| {
                if let Some(Written { key, reference }) = written {
                    self.garbage.add_value(key, reference);
                }
            })?;
        }
        Ok(written.expect("a large value is not empty"))
    }

    /// Writes the part in front of byte `stored_from`; returns where it begins.
    fn write_part(
        &self,
        value: &[u8],
        stored_from: usize,
        table: &TableState,
        written: &mut Option<Written>,
    ) -> Result<usize> {
        let sizes = table.value_pages();
        let places = part_places(sizes, value.len()) + GARBAGE_PAGES * self.pool.class().places();
        let mut grant = self.pool.grant(places, part_frames(sizes, value.len(), self.pool.class()))?;
        let compress = table.compression != Compression::None;
        let next = written.map_or(PageId::NONE, |written| written.reference.head);
        let part = store_part(&self.pool, Some(&mut grant), value, stored_from, next, (sizes, compress))?;
        let reference = Reference { total_length: value.len() as u64, head: part.head };
        let key = written.map_or(GarbageKey::value(part.head), |written| written.key);
        let entry = reference.encode();
        let change = put(&key, &entry);
        let images: u64 = part.create.iter().map(|(_, page)| page.len() as u64 + IMAGE_BYTES).sum();
        let mut reservation = self.pool.reserve_log(log_bytes(&change, 0) + images)?;
        let mut write = Write {
            reservation: Some(&mut reservation),
            grant: Some(&mut grant),
            create: part.create,
            ..Write::default()
        };
        garbage_tree(&self.pool).apply(&self.pool, &mut write, change)?;
        // A verification that began while the value was being written may know the old head's pages and not the new
        // one's. Only now: one that had not begun by now finds all of them, and nobody else knows of the value yet.
        if let Some(census) = self.pool.census().filter(|_| !next.is_none()) {
            census.pass_on(next);
        }
        *written = Some(Written { reference, key });
        Ok(part.from)
    }
}

/// Frames that the pages of one part of a value of this length take at most, and the splits of its garbage entry.
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

/// Places that the pages of one part of a value of this length take at most.
fn part_places(sizes: ValuePages, length: usize) -> u64 {
    if length <= sizes.capacity() {
        return sizes.class_for(length).places();
    }
    sizes.batch() as u64 * sizes.most.places() + sizes.own.places()
}
