//! The page table: per page id, a state word and a location.
//!
//! The location names the fastest copy of the page. So one array is page directory and store
//! mapping. While a page is in a frame, the frame's header keeps its mapping word.
//!
//! ```text
//!   location  0                       the page does not exist
//!             top bit set             mapping word of the image in the store
//!             1 << 62 | frame         frame number (frames/partition.rs)
//!             1 << 61 | frame         DRAM frame of a partial page (pool/partial.rs)
//! ```
//!
//! One reserved region holds all entries and gets memory as ids come into use. Each class has half
//! as many entries as the class before it, so a lookup takes only shifts and additions. Four
//! entries share a cache line; separate lines for neighbours were not faster
//! (docs/decisions/0015-mapped-pages.md).
//!
//! Behind the entries there is a *hint* for each of them, if pages lie in frames and have no middle
//! tier: where in the frames the page was last (`frames/fixed.rs`). Sixteen hints share a line, so
//! they are in the processor's cache when the entry is not. A descent prefetches the leaf there
//! while it waits for the entry. Only the entry counts: a wrong hint costs a useless prefetch.
//!
//! After recovery a hash table (`hash_table.rs`) may replace the array. The array's limit is then
//! 0, so that its check of an id leads to the hash table, and costs the array nothing.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_io::{Region, prefetch};

use super::hash_table::{HashTable, INDEXES_MAX};
use super::latch::Latch;
use crate::ids::{PageId, SizeClass};
use crate::page_table::PageTableKind;
use crate::store::mapping_word::MappingWord;

const IN_FRAME: u64 = 1 << 62;
const IS_PARTIAL: u64 = 1 << 61;
const ENTRY_BYTES: u64 = 16;
const HINT_BYTES: u64 = 4;
/// Two hints share a word.
const HINT_BITS: u64 = 8 * HINT_BYTES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// The page does not exist.
    Nowhere,
    /// The frame; of two copies, the one in DRAM.
    Frame(u32),
    /// The DRAM frame that has some lines of the page; its middle copy has all.
    Partial(u32),
    /// In the store only.
    Store(MappingWord),
}

impl Location {
    #[inline]
    fn decode(word: u64) -> Location {
        if word & IN_FRAME != 0 && !MappingWord(word).is_allocated() {
            Location::Frame(word as u32)
        } else if word == 0 {
            Location::Nowhere
        } else if MappingWord(word).is_allocated() {
            Location::Store(MappingWord(word))
        } else {
            Location::Partial(word as u32)
        }
    }

    /// The frame whose header counts, with all lines of the page or some.
    pub(crate) fn frame(self) -> Option<u32> {
        match self {
            Location::Frame(frame) | Location::Partial(frame) => Some(frame),
            Location::Nowhere | Location::Store(_) => None,
        }
    }

    fn encode(self) -> u64 {
        match self {
            Location::Nowhere => 0,
            Location::Frame(frame) => IN_FRAME | u64::from(frame),
            Location::Partial(frame) => IS_PARTIAL | u64::from(frame),
            Location::Store(mapped) => {
                debug_assert!(mapped.has_image());
                mapped.0
            }
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    state: &'a AtomicU64,
    location: &'a AtomicU64,
}

impl<'a> Entry<'a> {
    #[inline]
    pub(crate) fn latch(self) -> Latch<'a> {
        #[cfg(not(loom))]
        return Latch(self.state);
        #[cfg(loom)]
        unreachable!("loom checks the latch by itself");
    }

    /// Loads the location. Acquire pairs with `set_location`, so the frame's content is visible.
    #[inline]
    pub(crate) fn location(self) -> Location {
        Location::decode(self.location.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn prefetch(self) {
        prefetch(std::slice::from_ref(self.state));
    }

    /// Moves the page, under the exclusive latch or in recovery.
    pub(crate) fn set_location(self, location: Location) {
        self.location.store(location.encode(), Ordering::Release);
    }
}

/// All entries, smallest class first. With one region, its address loads before the page id is
/// known.
#[derive(Debug)]
pub(crate) struct PageTable {
    /// The array.
    region: Region,
    /// Limit on indexes of the smallest class, halved for each larger one.
    pages_max: u64,
    /// [`PageTable::pages_max`] of the array; 0 beside a hash table.
    array_max: u64,
    /// Where hints begin in the array's region; 0 if there are none. With a hash table, which has
    /// its own, only whether there are any.
    hints_at: u64,
    hash: Option<Box<HashTable>>,
}

/// Highest `pages_max`: 960 GiB of pages per class. A superblock can name such a page table.
pub(crate) const PAGES_MAX: u64 = 15 << 24;
const _: () = assert!(PAGES_MAX <= INDEXES_MAX);

/// Limit on indexes of `class`, given that of the smallest.
pub(crate) fn indexes_max(pages_max: u64, class: SizeClass) -> u64 {
    pages_max >> class.index()
}

/// Bytes of an entry of the array, with its hint.
pub(crate) fn bytes_per_entry(hints: bool) -> u64 {
    if hints { ENTRY_BYTES + HINT_BYTES } else { ENTRY_BYTES }
}

/// Where a hint is in its word.
#[inline(always)]
fn hint_shift(number: u64) -> u64 {
    number % 2 * HINT_BITS
}

/// Entries before those of `class`.
#[inline(always)]
fn first_entry(pages_max: u64, class: usize) -> u64 {
    2 * pages_max - ((2 * pages_max) >> class)
}

impl PageTable {
    /// Reserves addresses for all entries, and their hints; `pages_max` is a multiple of 512.
    ///
    /// # Errors
    /// Those of [`Region::reserve_writable`].
    pub(crate) fn reserve(pages_max: u64, hints: bool) -> io::Result<PageTable> {
        let region = Region::reserve_writable(PageTable::reserved_bytes(pages_max, hints) as usize)?;
        let hints_at = if hints { PageTable::reserved_bytes(pages_max, false) } else { 0 };
        Ok(PageTable { region, pages_max, array_max: pages_max, hints_at, hash: None })
    }

    /// Moves the entries of `ids` to `hash`, while no other thread uses the table. Other ids get
    /// theirs when they are used: a damaged file may name one far beyond all others.
    ///
    /// # Errors
    /// Those of [`Region::reserve`].
    pub(crate) fn hashed(&mut self, hash: HashTable, ids: impl Iterator<Item = PageId>) -> io::Result<()> {
        for id in ids {
            hash.insert(id);
            if let Some((from, (state, location))) = self.entry(id).zip(hash.entry(id)) {
                state.store(from.state.load(Ordering::Relaxed), Ordering::Relaxed);
                location.store(from.location.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        self.region = Region::reserve(ENTRY_BYTES as usize)?;
        self.array_max = 0;
        self.hash = Some(Box::new(hash));
        Ok(())
    }

    /// Gives a new `id` an entry. One thread at a time.
    pub(crate) fn admit(&self, id: PageId) {
        if let Some(hash) = &self.hash {
            hash.insert(id);
        }
    }

    pub(crate) fn kind(&self) -> PageTableKind {
        if self.hash.is_some() { PageTableKind::Hash } else { PageTableKind::Array }
    }

    pub(crate) fn is_swizzled(&self) -> bool {
        self.hash.as_ref().is_some_and(|hash| hash.is_swizzled())
    }

    /// Bytes of the hash table with its swips, or of `entries` entries of the array.
    pub(crate) fn bytes(&self, entries: u64) -> u64 {
        let in_array = entries * bytes_per_entry(self.hints_at > 0);
        self.hash.as_ref().map_or(in_array, |hash| hash.bytes())
    }

    /// Bytes of addresses that [`PageTable::reserve`] takes.
    pub(crate) fn reserved_bytes(pages_max: u64, hints: bool) -> u64 {
        (first_entry(pages_max, SizeClass::COUNT) * bytes_per_entry(hints)).next_multiple_of(8)
    }

    /// Indexes of `class` must be below this.
    pub(crate) fn indexes_max(&self, class: SizeClass) -> u64 {
        indexes_max(self.pages_max, class)
    }

    /// The entry of `id`. `None` if no page can have it, as after a racy read.
    #[inline(always)]
    pub(crate) fn entry(&self, id: PageId) -> Option<Entry<'_>> {
        self.entry_in_array(id).or_else(|| self.entry_in_hash(id))
    }

    /// [`PageTable::entry`], or `None` with a hash table.
    #[inline(always)]
    pub(crate) fn entry_in_array(&self, id: PageId) -> Option<Entry<'_>> {
        self.number_in_array(id).map(|number| self.entry_numbered(number))
    }

    /// The number of the entry of `id`; `None` with a hash table, or if no page can have that id.
    #[inline(always)]
    pub(crate) fn number_in_array(&self, id: PageId) -> Option<u64> {
        let (class, index) = (id.class_index(), id.index());
        if class >= SizeClass::COUNT || index >= self.array_max >> class {
            return None;
        }
        Some(first_entry(self.pages_max, class) + index)
    }

    #[inline(always)]
    pub(crate) fn entry_numbered(&self, number: u64) -> Entry<'_> {
        let at = (number * ENTRY_BYTES) as usize;
        let [state, location] = self.region.words(at..at + ENTRY_BYTES as usize) else {
            unreachable!("an entry is two words");
        };
        Entry { state, location }
    }

    /// The hint of an entry of the array; `None` if there are none.
    #[inline(always)]
    pub(crate) fn hint_numbered(&self, number: u64) -> Option<u32> {
        // Not a closure: it would not be inlined.
        if self.hints_at == 0 {
            return None;
        }
        Some((self.hints(number).load(Ordering::Relaxed) >> hint_shift(number)) as u32)
    }

    #[inline(always)]
    fn hints(&self, number: u64) -> &AtomicU64 {
        let at = (self.hints_at + number / 2 * 8) as usize;
        &self.region.words(at..at + 8)[0]
    }

    /// The hint of `id`; `None` if there are none.
    #[cfg(test)]
    pub(crate) fn hint(&self, id: PageId) -> Option<u32> {
        match &self.hash {
            Some(hash) => hash.hint(id).filter(|_| self.hints_at > 0),
            None => self.hint_numbered(self.number_in_array(id)?),
        }
    }

    /// Notes where the page is. The caller has its exclusive latch, or no other thread knows it.
    pub(crate) fn note_hint(&self, id: PageId, hint: u32) {
        if self.hints_at == 0 {
            return;
        }
        if let Some(hash) = &self.hash {
            hash.note_hint(id, hint);
        } else if let Some(number) = self.number_in_array(id) {
            // Each half of the word has one writer at a time, the holder of its latch. A hint
            // orders nothing.
            let hints = self.hints(number);
            let changed = (hints.load(Ordering::Relaxed) >> hint_shift(number)) as u32 ^ hint;
            if changed != 0 {
                hints.fetch_xor(u64::from(changed) << hint_shift(number), Ordering::Relaxed);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn entry_in_hash(&self, id: PageId) -> Option<Entry<'_>> {
        let (state, location) = self.hash.as_ref()?.entry(id)?;
        Some(Entry { state, location })
    }

    /// [`PageTable::entry`] of a root. Faster if there is a hash table.
    #[inline(always)]
    pub(crate) fn entry_of_root(&self, id: PageId) -> Option<Entry<'_>> {
        let Some(hash) = &self.hash else { return self.entry(id) };
        let (state, location) = hash.root(id)?;
        Some(Entry { state, location })
    }

    /// The entry of the `child`th child `id` of the node in the frame `parent`. Faster than
    /// [`PageTable::entry`] if there is a hash table.
    #[inline(always)]
    pub(crate) fn entry_of_child(
        &self,
        parent: u32,
        child: usize,
        id: PageId,
        with_hint: impl FnOnce(u32),
    ) -> Option<Entry<'_>> {
        let Some(hash) = &self.hash else { return self.entry(id) };
        let (state, location) = match hash.guess(parent, child, id, with_hint) {
            Some(words) => words,
            None => hash.child(parent, child, id)?,
        };
        Some(Entry { state, location })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::mapping_word::Extent;

    /// Two entries in one word would overwrite each other.
    #[test]
    fn each_page_of_each_class_has_an_entry_of_its_own() {
        let table = PageTable::reserve(1024, true).unwrap();
        let mut all = Vec::new();
        for class in SizeClass::all() {
            assert_eq!(table.indexes_max(class), 1024 >> class.index());
            all.extend((0..table.indexes_max(class)).map(|index| PageId::new(class, index)));
        }
        assert_eq!(all.len(), 2 * 1024 - 2);
        let mapped = |at: usize| MappingWord::at(Extent { first: at as u64, blocks: 1 }, 7);
        for (at, &id) in all.iter().enumerate() {
            table.entry(id).unwrap().set_location(Location::Store(mapped(at)));
            assert!(table.entry(id).unwrap().latch().try_exclusive(table.entry(id).unwrap().latch().load()));
        }
        for (at, &id) in all.iter().enumerate() {
            assert_eq!(table.entry(id).unwrap().location(), Location::Store(mapped(at)), "{id}");
        }
    }

    #[test]
    fn each_entry_has_a_hint_of_its_own_if_there_are_any() {
        let table = PageTable::reserve(512, true).unwrap();
        let ids = || {
            SizeClass::all().flat_map(|class| (0..512 >> class.index()).map(move |at| PageId::new(class, at)))
        };
        let hint = |at: usize| (at as u32).wrapping_mul(0x9e37_79b9);
        for (at, id) in ids().enumerate() {
            table.note_hint(id, u32::MAX);
            table.note_hint(id, hint(at));
        }
        for (at, id) in ids().enumerate() {
            assert_eq!(
                (table.hint(id), table.entry(id).unwrap().location()),
                (Some(hint(at)), Location::Nowhere)
            );
        }
        table.note_hint(PageId::new(SizeClass::SMALLEST, 512), 7);
        assert_eq!((table.hint(PageId::new(SizeClass::SMALLEST, 512)), table.bytes(10)), (None, 200));
        let without = PageTable::reserve(512, false).unwrap();
        without.note_hint(PageId(1), 7);
        assert_eq!((without.hint(PageId(1)), without.bytes(10)), (None, 160));
    }

    /// The hints of two pages share a word.
    #[test]
    fn hints_that_two_threads_note_at_once_are_both_there() {
        let table = PageTable::reserve(512, true).unwrap();
        let note = |index: u64| {
            let id = PageId::new(SizeClass::SMALLEST, index);
            (0..200_000).for_each(|hint| {
                table.note_hint(id, hint);
                assert_eq!(table.hint(id), Some(hint));
            });
        };
        std::thread::scope(|scope| {
            scope.spawn(|| note(8));
            scope.spawn(|| note(9));
        });
    }

    #[test]
    fn ids_that_no_page_can_have_have_no_entry() {
        let table = PageTable::reserve(1024, true).unwrap();
        for class in SizeClass::all() {
            let end = table.indexes_max(class);
            for index in [end, end + 1, 1024, (1 << 56) - 1] {
                assert!(table.entry(PageId::new(class, index)).is_none(), "{class:?} {index}");
            }
        }
        for class in SizeClass::COUNT as u64..256 {
            for index in [0, 1, (1 << 56) - 1] {
                assert!(table.entry(PageId(class << 56 | index)).is_none(), "{class} {index}");
            }
        }
    }
}
