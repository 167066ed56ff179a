//! The page table as buffer managers in papers have it: open addressing over page ids.
//!
//! A slot belongs to the first page id that takes it, for good, since ids are never given up. So
//! slots are type-stable: a lookup needs no latch, and a slot number stays good (`swips.rs`).
//!
//! ```text
//!   slot      id, state word, location, unused: 32 bytes; id 0 is no page
//!   segments  first slots | twice as many | four times as many ...
//! ```
//!
//! The first segment is sized at open. A full table gets a further segment, and a lookup probes all
//! of them, the newest first. One reserved region holds them all, so a slot number is an address.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use terrace_io::Region;

use super::swips::Swips;
use crate::ids::PageId;
use crate::planted::{Bug, planted};

/// Bytes of a slot.
pub(crate) const SLOT_BYTES: u64 = 32;
/// Least slots of the first segment.
const SLOTS_MIN: u64 = 64;
/// Odd, and its product with an id has the id's low bits in its high ones.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Debug)]
pub(crate) struct HashTable {
    region: Region,
    /// Binary logarithm of the slots of the first segment.
    first_bits: u32,
    segments: AtomicU32,
    /// Slots in use in the newest segment. Changes under the lock of the page ids.
    used: AtomicU64,
    swips: Option<Swips>,
}

/// State word and location of a page.
pub(super) type Words<'a> = (&'a AtomicU64, &'a AtomicU64);

/// Slots of the first segment for `pages` pages, or as many as `bytes` have room for.
pub(crate) fn first_slots(pages: u64, bytes: u64) -> u64 {
    let room = bytes / SLOT_BYTES;
    let room = if room == 0 { 0 } else { 1 << room.ilog2() };
    pages.saturating_mul(2).next_power_of_two().max(room).clamp(SLOTS_MIN, 1 << 30)
}

impl HashTable {
    /// A table whose first segment has `slots` slots, a power of two, for up to `pages_max` pages.
    ///
    /// # Errors
    /// Those of [`Region::reserve_writable`].
    pub(crate) fn reserve(slots: u64, pages_max: u64, swips: Option<Swips>) -> io::Result<HashTable> {
        let region = Region::reserve_writable(HashTable::reserved_bytes(slots, pages_max) as usize)?;
        let (first_bits, segments) = (slots.ilog2(), AtomicU32::new(1));
        Ok(HashTable { region, first_bits, segments, used: AtomicU64::new(0), swips })
    }

    /// Bytes of addresses of all segments that `pages_max` pages can need.
    pub(crate) fn reserved_bytes(slots: u64, pages_max: u64) -> u64 {
        // Three quarters of each segment are used. All others together are smaller than the last.
        let last = (pages_max.saturating_add(slots) / 3 * 2 + 1).next_power_of_two();
        2 * last.min(1 << 31) * SLOT_BYTES
    }

    fn segment_bits(&self, segment: u32) -> u32 {
        self.first_bits + segment
    }

    /// The number of the first slot of a segment.
    #[inline(always)]
    fn segment_start(&self, segment: u32) -> u64 {
        ((1 << segment) - 1) << self.first_bits
    }

    #[inline(always)]
    fn slot(&self, slot: u64) -> &[AtomicU64] {
        let at = (slot * SLOT_BYTES) as usize;
        self.region.words(at..at + 24)
    }

    /// The entry in `slot`, if it is that of `id`.
    #[inline(always)]
    fn entry_at(&self, slot: u64, id: PageId) -> Option<Words<'_>> {
        let [key, state, location] = self.slot(slot) else { unreachable!("three words") };
        // The other words of a new slot are zero, as are those of a page that does not exist.
        (key.load(Ordering::Relaxed) == id.0).then_some((state, location))
    }

    #[cold]
    #[inline(never)]
    pub(super) fn entry(&self, id: PageId) -> Option<Words<'_>> {
        self.entry_at(self.find(id)?, id)
    }

    /// The entry of the `child`th child of the node in the frame `parent`, by its swip. Or at the
    /// first probe, if there are no swips.
    #[inline(always)]
    pub(super) fn guess(&self, parent: u32, child: usize, id: PageId) -> Option<Words<'_>> {
        let slot = match &self.swips {
            Some(swips) => swips.get(parent, child)?.into(),
            None => self.first_slot(id),
        };
        if planted(Bug::SwipOfReusedEntry) && self.swips.is_some() && slot != 0 {
            let [_, state, location] = self.slot(slot) else { unreachable!("three words") };
            return Some((state, location));
        }
        self.entry_at(slot, id)
    }

    /// [`HashTable::entry`], by a swip if there are any.
    #[inline(always)]
    pub(super) fn root(&self, id: PageId) -> Option<Words<'_>> {
        let slot = match &self.swips {
            Some(swips) => swips.of_root(id).load(Ordering::Relaxed).into(),
            None => self.first_slot(id),
        };
        self.entry_at(slot, id).or_else(|| self.root_anew(id))
    }

    #[cold]
    #[inline(never)]
    fn root_anew(&self, id: PageId) -> Option<Words<'_>> {
        let slot = self.find(id)?;
        if let Some(swips) = &self.swips {
            swips.of_root(id).store(slot as u32, Ordering::Relaxed);
        }
        self.entry_at(slot, id)
    }

    /// [`HashTable::entry`] after a wrong guess, which is put right.
    #[cold]
    #[inline(never)]
    pub(super) fn child(&self, parent: u32, child: usize, id: PageId) -> Option<Words<'_>> {
        let slot = self.find(id)?;
        if let Some(swips) = &self.swips {
            swips.note(parent, child, slot);
        }
        self.entry_at(slot, id)
    }

    /// The first probe of `id` in the first segment.
    #[inline(always)]
    fn first_slot(&self, id: PageId) -> u64 {
        id.0.wrapping_mul(MULTIPLIER) >> (64 - self.first_bits)
    }

    /// The slot of `id`, if it ever had one.
    fn find(&self, id: PageId) -> Option<u64> {
        if id.is_none() {
            return None;
        }
        // A new segment is announced before an id is in it.
        (0..self.segments.load(Ordering::Acquire)).rev().find_map(|segment| self.probe(segment, id).ok())
    }

    /// The slot of `id` in a segment, or the empty one where it would be.
    fn probe(&self, segment: u32, id: PageId) -> Result<u64, u64> {
        let bits = self.segment_bits(segment);
        let (first, mask) = (id.0.wrapping_mul(MULTIPLIER) >> (64 - bits), (1 << bits) - 1);
        let mut step = 0;
        loop {
            let slot = self.segment_start(segment) + ((first + step) & mask);
            match self.slot(slot)[0].load(Ordering::Relaxed) {
                0 => return Err(slot),
                found if found == id.0 => return Ok(slot),
                _ => step += 1,
            }
        }
    }

    /// Gives `id` a slot, unless it has one. One thread at a time.
    pub(super) fn insert(&self, id: PageId) {
        debug_assert!(!id.is_none());
        if self.find(id).is_some() {
            return;
        }
        let mut newest = self.segments.load(Ordering::Relaxed) - 1;
        let slots = 1u64 << self.segment_bits(newest);
        if self.used.load(Ordering::Relaxed) >= slots / 4 * 3 {
            newest += 1;
            self.used.store(0, Ordering::Relaxed);
            self.segments.store(newest + 1, Ordering::Release);
        }
        let slot = self.probe(newest, id).expect_err("it has none");
        self.used.fetch_add(1, Ordering::Relaxed);
        self.slot(slot)[0].store(id.0, Ordering::Release);
    }

    /// Bytes of all segments, and of the swips.
    pub(super) fn bytes(&self) -> u64 {
        let slots = self.segment_start(self.segments.load(Ordering::Relaxed));
        slots * SLOT_BYTES + self.swips.as_ref().map_or(0, Swips::bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SizeClass;

    fn id(index: u64) -> PageId {
        PageId::new(SizeClass::SMALLEST, index)
    }

    /// Every page keeps its slot when further segments come.
    #[test]
    fn pages_keep_their_slots_while_the_table_grows() {
        let table = HashTable::reserve(64, 1 << 12, None).unwrap();
        let mut slots = Vec::new();
        for index in 1..2000 {
            assert_eq!(table.find(id(index)), None);
            table.insert(id(index));
            slots.push(table.find(id(index)).unwrap());
            let (state, location) = table.entry(id(index)).unwrap();
            assert_eq!((state.load(Ordering::Relaxed), location.load(Ordering::Relaxed)), (0, 0));
            location.store(index, Ordering::Relaxed);
        }
        assert!(table.segments.load(Ordering::Relaxed) > 4, "it grew");
        for (index, &slot) in (1..).zip(&slots) {
            table.insert(id(index));
            assert_eq!(table.find(id(index)), Some(slot), "and an id has one slot");
            assert_eq!(table.entry_at(slot, id(index)).unwrap().1.load(Ordering::Relaxed), index);
            assert!(table.entry_at(slot, id(index + 1)).is_none());
        }
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), 1999, "no two pages share a slot");
        assert_eq!(table.find(PageId::NONE), None);
        assert!(table.bytes() <= HashTable::reserved_bytes(64, 1 << 12));
    }

    #[test]
    fn the_first_segment_has_room_for_twice_the_pages() {
        assert_eq!(first_slots(0, 0), SLOTS_MIN);
        assert_eq!(first_slots(100, 0), 256);
        assert_eq!(first_slots(100, 3 << 20), 1 << 16);
    }
}
