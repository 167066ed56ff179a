//! The page table: sixteen bytes per page id, a state word and a location.
//!
//! The location names the fastest copy of the page: a frame, or a place in the store. It is directory and store
//! mapping in one. While a page is in a frame, the frame's header remembers where its durable image is.
//!
//! ```text
//!   location  0                       the page does not exist
//!             top bit set             Mapped: durable image in the store (place.rs)
//!             1 << 62 | frame         the frame with the fastest copy, whose number says its tier (stripe.rs)
//! ```
//!
//! For each class of pages there is one reserved range of memory, touched as ids come into use, so that a lookup is a shift,
//! an index into the ranges of all classes, and a multiplication. A class has half as many entries as the one before, whose pages are
//! half as long; one that is not used costs addresses only. Four entries share a line of the cache; neighbours on lines apart were
//! tried, and nothing became faster (docs/decisions/0015-mapped-pages.md).

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_block::{Region, prefetch};

use super::latch::Latch;
use crate::ids::{PageId, SizeClass};
use crate::store::place::Mapped;

const IN_FRAME: u64 = 1 << 62;
/// Bytes of one entry.
pub(crate) const ENTRY_BYTES: u64 = 16;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// Nowhere: the page does not exist.
    Nowhere,
    /// In this frame; of two, the one in DRAM.
    Frame(u32),
    /// In the store only.
    Store(Mapped),
}

impl Location {
    #[inline]
    fn decode(word: u64) -> Location {
        if word & IN_FRAME != 0 && !Mapped(word).is_allocated() {
            Location::Frame(word as u32)
        } else if word == 0 {
            Location::Nowhere
        } else {
            Location::Store(Mapped(word))
        }
    }

    fn encode(self) -> u64 {
        match self {
            Location::Nowhere => 0,
            Location::Frame(frame) => IN_FRAME | u64::from(frame),
            Location::Store(mapped) => {
                debug_assert!(mapped.has_image());
                mapped.0
            }
        }
    }
}

/// One page's entry.
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

    /// The location now. Acquire: pairs with `set_location`, so that the frame's content is seen with it.
    #[inline]
    pub(crate) fn location(self) -> Location {
        Location::decode(self.location.load(Ordering::Acquire))
    }

    /// Asks for the entry's line of memory ahead.
    #[inline]
    pub(crate) fn prefetch(self) {
        prefetch(std::slice::from_ref(self.state));
    }

    /// Moves the page; under the exclusive latch, or in recovery.
    pub(crate) fn set_location(self, location: Location) {
        self.location.store(location.encode(), Ordering::Release);
    }
}

/// All entries, those of the smallest class first. One region for all classes, so that where it is can be loaded before it is
/// known which page is looked for.
#[derive(Debug)]
pub(crate) struct PageTable {
    region: Region,
    /// Indexes of the smallest class are below this, those of each other below half as many.
    pages_max: u64,
}

/// Pages of the smallest class that the page table has addresses for, and half as many of each larger one: 960 GiB of each. A
/// superblock can name the page table of that many.
pub(crate) const PAGES_MAX: u64 = 15 << 24;

/// Indexes of the pages of `class` are below this, where there may be `pages_max` of the smallest.
pub(crate) fn indexes_max(pages_max: u64, class: SizeClass) -> u64 {
    pages_max >> class.index()
}

/// Entries in front of those of the class with this number: half as many of each class as of the one before.
#[inline(always)]
fn first_entry(pages_max: u64, class: usize) -> u64 {
    2 * pages_max - ((2 * pages_max) >> class)
}

impl PageTable {
    /// Reserves addresses for as many pages as there may be, `pages_max` being those of the smallest class and a
    /// multiple of 512; memory is used only for entries that are touched.
    ///
    /// # Errors
    /// Those of [`Region::reserve_writable`].
    pub(crate) fn reserve(pages_max: u64) -> io::Result<PageTable> {
        let region = Region::reserve_writable(PageTable::reserved_bytes(pages_max) as usize)?;
        Ok(PageTable { region, pages_max })
    }

    /// Bytes of addresses that [`PageTable::reserve`] takes.
    pub(crate) fn reserved_bytes(pages_max: u64) -> u64 {
        first_entry(pages_max, SizeClass::COUNT) * ENTRY_BYTES
    }

    /// Indexes of the pages of `class` must be below this.
    pub(crate) fn indexes_max(&self, class: SizeClass) -> u64 {
        indexes_max(self.pages_max, class)
    }

    /// The entry of `id`; `None` for an id that no page can have, as a racy reader may come up with.
    #[inline(always)]
    pub(crate) fn entry(&self, id: PageId) -> Option<Entry<'_>> {
        let (class, index) = (id.class_index(), id.index());
        if class >= SizeClass::COUNT || index >= self.pages_max >> class {
            return None;
        }
        let at = ((first_entry(self.pages_max, class) + index) * ENTRY_BYTES) as usize;
        let [state, location] = self.region.words(at..at + ENTRY_BYTES as usize) else {
            unreachable!("an entry is two words");
        };
        Some(Entry { state, location })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::place::Extent;

    /// Two entries that shared a word would show what was last put into the other.
    #[test]
    fn each_page_of_each_class_has_an_entry_of_its_own() {
        let table = PageTable::reserve(1024).unwrap();
        let mut all = Vec::new();
        for class in SizeClass::all() {
            assert_eq!(table.indexes_max(class), 1024 >> class.index());
            all.extend((0..table.indexes_max(class)).map(|index| PageId::new(class, index)));
        }
        assert_eq!(all.len(), 2 * 1024 - 2);
        let mapped = |at: usize| Mapped::at(Extent { first: at as u64, places: 1 }, 7);
        for (at, &id) in all.iter().enumerate() {
            table.entry(id).unwrap().set_location(Location::Store(mapped(at)));
            assert!(table.entry(id).unwrap().latch().try_exclusive(table.entry(id).unwrap().latch().load()));
        }
        for (at, &id) in all.iter().enumerate() {
            assert_eq!(table.entry(id).unwrap().location(), Location::Store(mapped(at)), "{id}");
        }
    }

    #[test]
    fn ids_that_no_page_can_have_have_no_entry() {
        let table = PageTable::reserve(1024).unwrap();
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
