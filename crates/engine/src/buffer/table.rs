//! The page table: sixteen bytes per page id, a state word and a location.
//!
//! The location names the fastest copy of the page: a frame, or a place in the store. It is directory and store
//! mapping in one. While a page is in a frame, the frame's header remembers where its durable image is.
//!
//! ```text
//!   location  0                       the page does not exist
//!             top bit set             Mapped: durable image in the store (place.rs)
//!             1 << 62 | frame         DRAM frame   (1 << 61 is kept for a middle tier's frames)
//! ```
//!
//! The table is one reserved range of memory, touched as ids come into use, so that a lookup is one multiplication.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_block::{Region, prefetch};

use super::latch::Latch;
use crate::ids::PageId;
use crate::store::place::Mapped;

const IN_FRAME: u64 = 1 << 62;
/// Bytes of one entry.
pub(crate) const ENTRY_BYTES: u64 = 16;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// Nowhere: the page does not exist.
    Nowhere,
    /// In this DRAM frame.
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

/// All entries.
#[derive(Debug)]
pub(crate) struct PageTable {
    region: Region,
    pages_max: u64,
}

impl PageTable {
    /// Reserves addresses for ids below `pages_max`; memory is used only for entries that are touched.
    pub(crate) fn reserve(pages_max: u64) -> io::Result<PageTable> {
        let region = Region::reserve_writable((pages_max * ENTRY_BYTES) as usize)?;
        Ok(PageTable { region, pages_max })
    }

    /// Ids must be below this.
    pub(crate) fn pages_max(&self) -> u64 {
        self.pages_max
    }

    /// The entry of `id`; `None` for an id that no page can have, as a racy reader may come up with.
    #[inline(always)]
    pub(crate) fn entry(&self, id: PageId) -> Option<Entry<'_>> {
        if id.0 >= self.pages_max {
            return None;
        }
        let at = id.0 as usize * ENTRY_BYTES as usize;
        let [state, location] = self.region.words(at..at + ENTRY_BYTES as usize) else {
            unreachable!("an entry is two words");
        };
        Some(Entry { state, location })
    }
}
