//! The page table as buffer managers in papers have it: open addressing over page ids.
//!
//! The table leads to entries. An entry belongs to the first page id that takes it, for good, since
//! ids are never given up. So entries are type-stable: a lookup needs no latch, and the number of
//! an entry stays good (`swips.rs`). Entries lie in the order of their numbers, denser than slots,
//! and keys apart from them. So a right swip touches little more memory than the array does, and
//! key, hint and entry are loaded side by side.
//!
//! ```text
//!   entry     state word, location; entry 0 is no page's
//!   key       hint, as in the array | class and index of the id
//!   slot      low half of the id | number of the entry; 0 if empty
//!   segments  first slots | twice as many | four times as many ...
//! ```
//!
//! The first segment is sized at open. A full table gets a further segment, and a lookup probes all
//! of them, the newest first. One reserved region holds them all.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use terrace_io::Region;

use super::swips::Swips;
use crate::ids::{CLASS_SHIFT, PageId, SizeClass};
use crate::planted::{Bug, planted};

const ENTRY_BYTES: u64 = 16;
const KEY_BYTES: u64 = 8;
const SLOT_BYTES: u64 = 8;
/// Bytes of a slot with its share of the entries, of which there are three for four slots.
const BYTES_PER_SLOT: u64 = SLOT_BYTES + (ENTRY_BYTES + KEY_BYTES) / 4 * 3;
/// Least slots of the first segment.
const SLOTS_MIN: u64 = 64;
/// Odd, and its product with an id has the id's low bits in its high ones.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Debug)]
pub(crate) struct HashTable {
    entries: Region,
    keys: Region,
    slots: Region,
    /// Binary logarithm of the slots of the first segment.
    first_bits: u32,
    segments: AtomicU32,
    /// Slots in use in the newest segment, and entries in use with entry 0. They change under the
    /// lock of the page ids.
    used: AtomicU64,
    entries_used: AtomicU64,
    /// Empty if they are off: a branch less for each look.
    swips: Swips,
}

/// State word and location of a page.
pub(super) type Words<'a> = (&'a AtomicU64, &'a AtomicU64);

/// Slots of the first segment for `pages` pages, or as many as `bytes` have room for.
pub(crate) fn first_slots(pages: u64, bytes: u64) -> u64 {
    let room = bytes / BYTES_PER_SLOT;
    let room = if room == 0 { 0 } else { 1 << room.ilog2() };
    pages.saturating_mul(2).next_power_of_two().max(room).clamp(SLOTS_MIN, 1 << 30)
}

/// Entries of `pages` pages, with entry 0.
fn entries(pages: u64) -> u64 {
    pages.min(u32::MAX.into()) + 1
}

/// Bits of an index in a key. The class is above them.
const INDEX_BITS: u32 = 28;
/// Indexes of the pages are below this.
pub(super) const INDEXES_MAX: u64 = 1 << INDEX_BITS;
const _: () = assert!(SizeClass::COUNT <= 1 << (32 - INDEX_BITS));

/// The id of which this is the key, in the low half of a word.
#[inline(always)]
fn id_of_key(word: u64) -> PageId {
    let key = word & u64::from(u32::MAX);
    PageId(key >> INDEX_BITS << CLASS_SHIFT | key & (INDEXES_MAX - 1))
}

fn key_of_id(id: PageId) -> u64 {
    debug_assert!(id.class_index() < SizeClass::COUNT && id.index() < INDEXES_MAX);
    (id.class_index() as u64) << INDEX_BITS | id.index()
}

/// Bytes of all segments that `pages_max` pages can need.
fn slots_bytes(slots: u64, pages_max: u64) -> u64 {
    // Three quarters of each segment are used. All others together are smaller than the last.
    let last = (pages_max.saturating_add(slots) / 3 * 2 + 1).next_power_of_two();
    2 * last * SLOT_BYTES
}

impl HashTable {
    /// A table whose first segment has `slots` slots, a power of two, for up to `pages_max` pages.
    ///
    /// # Errors
    /// Those of [`Region::reserve_writable`].
    pub(crate) fn reserve(slots: u64, pages_max: u64, swips: Swips) -> io::Result<HashTable> {
        Ok(HashTable {
            entries: Region::reserve_writable((entries(pages_max) * ENTRY_BYTES) as usize)?,
            keys: Region::reserve_writable((entries(pages_max) * KEY_BYTES) as usize)?,
            slots: Region::reserve_writable(slots_bytes(slots, pages_max) as usize)?,
            first_bits: slots.ilog2(),
            segments: AtomicU32::new(1),
            used: AtomicU64::new(0),
            entries_used: AtomicU64::new(1),
            swips,
        })
    }

    /// Bytes of addresses that [`HashTable::reserve`] takes.
    pub(crate) fn reserved_bytes(slots: u64, pages_max: u64) -> u64 {
        slots_bytes(slots, pages_max) + entries(pages_max) * (ENTRY_BYTES + KEY_BYTES)
    }

    /// Bytes of the segments and entries of `pages` pages, if the first segment has `slots` slots.
    pub(crate) fn bytes_with(slots: u64, pages: u64) -> u64 {
        let (mut segment, mut all) = (slots, slots);
        while all / 4 * 3 < pages {
            segment *= 2;
            all += segment;
        }
        all * SLOT_BYTES + entries(pages) * (ENTRY_BYTES + KEY_BYTES)
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
    fn slot(&self, slot: u64) -> &AtomicU64 {
        let at = (slot * SLOT_BYTES) as usize;
        &self.slots.words(at..at + 8)[0]
    }

    #[inline(always)]
    fn key(&self, number: u32) -> &AtomicU64 {
        let at = (u64::from(number) * KEY_BYTES) as usize;
        &self.keys.words(at..at + 8)[0]
    }

    #[inline(always)]
    fn words(&self, number: u32) -> Words<'_> {
        let at = (u64::from(number) * ENTRY_BYTES) as usize;
        let [state, location] = self.entries.words(at..at + 16) else { unreachable!("two words") };
        (state, location)
    }

    /// The entry of this number, if it is that of `id`.
    #[inline(always)]
    fn entry_at(&self, number: u32, id: PageId) -> Option<Words<'_>> {
        self.hinted_entry_at(number, id, |_| {})
    }

    /// [`HashTable::entry_at`], after `with` has its hint, or another's.
    #[inline(always)]
    fn hinted_entry_at(&self, number: u32, id: PageId, with: impl FnOnce(u32)) -> Option<Words<'_>> {
        let key = self.key(number).load(Ordering::Relaxed);
        with((key >> 32) as u32);
        // The words of a new entry are zero, as are those of a page that does not exist.
        (id_of_key(key) == id).then(|| self.words(number))
    }

    #[cfg(test)]
    pub(super) fn hint(&self, id: PageId) -> Option<u32> {
        Some((self.key(self.find(id)?).load(Ordering::Relaxed) >> 32) as u32)
    }

    /// Notes where the page is. The caller has its exclusive latch, or no other thread knows it.
    pub(super) fn note_hint(&self, id: PageId, hint: u32) {
        let Some(number) = self.find(id) else { return };
        let (key, noted) = (self.key(number), key_of_id(id) | u64::from(hint) << 32);
        if key.load(Ordering::Relaxed) != noted {
            key.store(noted, Ordering::Relaxed);
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn entry(&self, id: PageId) -> Option<Words<'_>> {
        self.entry_at(self.find(id)?, id)
    }

    /// The entry of the `child`th child of the node in the frame `parent`, by its swip. Or at the
    /// first probe, if the frame cannot have swips.
    #[inline(always)]
    pub(super) fn guess(
        &self,
        parent: u32,
        child: usize,
        id: PageId,
        with_hint: impl FnOnce(u32),
    ) -> Option<Words<'_>> {
        let Some(number) = self.swips.get(parent, child) else {
            return self.hinted_entry_at(self.first_probe(id), id, with_hint);
        };
        if planted(Bug::SwipOfReusedEntry) && number != 0 {
            return Some(self.words(number));
        }
        self.hinted_entry_at(number, id, with_hint)
    }

    /// [`HashTable::entry`], by a swip if there are any.
    #[inline(always)]
    pub(super) fn root(&self, id: PageId) -> Option<Words<'_>> {
        let number = match self.swips.of_root(id) {
            Some(swip) => swip.load(Ordering::Relaxed),
            None => self.first_probe(id),
        };
        self.entry_at(number, id).or_else(|| self.root_anew(id))
    }

    #[cold]
    #[inline(never)]
    fn root_anew(&self, id: PageId) -> Option<Words<'_>> {
        let number = self.find(id)?;
        if let Some(swip) = self.swips.of_root(id) {
            swip.store(number, Ordering::Relaxed);
        }
        self.entry_at(number, id)
    }

    /// [`HashTable::entry`] after a wrong guess, which is put right.
    #[cold]
    #[inline(never)]
    pub(super) fn child(&self, parent: u32, child: usize, id: PageId) -> Option<Words<'_>> {
        let number = self.find(id)?;
        self.swips.note(parent, child, number);
        self.entry_at(number, id)
    }

    /// The number in the first slot that `id` could have in the first segment.
    #[inline(always)]
    fn first_probe(&self, id: PageId) -> u32 {
        self.slot(id.0.wrapping_mul(MULTIPLIER) >> (64 - self.first_bits)).load(Ordering::Relaxed) as u32
    }

    /// The number of the entry of `id`, if it ever had one.
    fn find(&self, id: PageId) -> Option<u32> {
        if id.is_none() {
            return None;
        }
        // A new segment is announced before an id is in it.
        (0..self.segments.load(Ordering::Acquire)).rev().find_map(|segment| self.probe(segment, id).ok())
    }

    /// The entry of `id` by a segment, or the empty slot where it would be.
    fn probe(&self, segment: u32, id: PageId) -> Result<u32, u64> {
        let bits = self.segment_bits(segment);
        let (first, mask) = (id.0.wrapping_mul(MULTIPLIER) >> (64 - bits), (1 << bits) - 1);
        let mut step = 0;
        loop {
            let slot = self.segment_start(segment) + ((first + step) & mask);
            // Acquire: the entry has its id.
            let found = self.slot(slot).load(Ordering::Acquire);
            if found == 0 {
                return Err(slot);
            }
            if found >> 32 == id.0 & u64::from(u32::MAX) && self.entry_at(found as u32, id).is_some() {
                return Ok(found as u32);
            }
            step += 1;
        }
    }

    /// Gives `id` an entry, unless it has one. One thread at a time.
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
        let number = self.entries_used.fetch_add(1, Ordering::Relaxed);
        self.key(number as u32).store(key_of_id(id), Ordering::Relaxed);
        self.slot(slot).store(id.0 << 32 | number, Ordering::Release);
    }

    pub(super) fn is_swizzled(&self) -> bool {
        self.swips.bytes() > 0
    }

    /// Bytes of the segments, the entries in use and the swips.
    pub(super) fn bytes(&self) -> u64 {
        let slots = self.segment_start(self.segments.load(Ordering::Relaxed)) * SLOT_BYTES;
        let entries = self.entries_used.load(Ordering::Relaxed) * (ENTRY_BYTES + KEY_BYTES);
        slots + entries + self.swips.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u64) -> PageId {
        PageId::new(SizeClass::SMALLEST, index)
    }

    #[test]
    fn a_key_is_that_of_one_id() {
        for class in SizeClass::all() {
            for index in [1, 2, INDEXES_MAX - 1] {
                let key = key_of_id(PageId::new(class, index));
                assert!(key <= u64::from(u32::MAX));
                assert_eq!(id_of_key(key | 7 << 32), PageId::new(class, index), "beside any hint");
            }
        }
    }

    /// Every page keeps its entry when further segments come.
    #[test]
    fn pages_keep_their_entries_while_the_table_grows() {
        let table = HashTable::reserve(64, 1 << 12, Swips::none()).unwrap();
        let mut numbers = Vec::new();
        // Of two classes, whose ids have equal low halves.
        let ids: Vec<PageId> =
            (1..1000).flat_map(|index| [id(index), PageId::new(SizeClass::LARGEST, index)]).collect();
        for (at, &id) in (1..).zip(&ids) {
            assert_eq!(table.find(id), None);
            table.insert(id);
            numbers.push(table.find(id).unwrap());
            let (state, location) = table.entry(id).unwrap();
            assert_eq!((state.load(Ordering::Relaxed), location.load(Ordering::Relaxed)), (0, 0));
            location.store(at, Ordering::Relaxed);
        }
        assert!(table.segments.load(Ordering::Relaxed) > 4, "it grew");
        for ((at, &id), &number) in (1..).zip(&ids).zip(&numbers) {
            table.insert(id);
            assert_eq!(table.find(id), Some(number), "and an id has one entry");
            assert_eq!(table.entry_at(number, id).unwrap().1.load(Ordering::Relaxed), at);
            assert!(table.entry_at(number, PageId(id.0 + 1)).is_none());
        }
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), ids.len(), "no two pages share an entry");
        assert_eq!(table.find(PageId::NONE), None);
        assert!(table.bytes() <= HashTable::reserved_bytes(64, 1 << 12));
        assert_eq!(table.bytes(), HashTable::bytes_with(64, ids.len() as u64));
        assert_eq!(HashTable::bytes_with(64, 0), 64 * SLOT_BYTES + ENTRY_BYTES + KEY_BYTES);
    }

    #[test]
    fn the_first_segment_has_room_for_twice_the_pages() {
        assert_eq!(first_slots(0, 0), SLOTS_MIN);
        assert_eq!(first_slots(100, 0), 256);
        assert_eq!(first_slots(100, 3 << 20), 1 << 16);
    }
}
