//! Baseline of the CXL buffer manager: second-chance FIFO of page versions.
//!
//! Section III-E of "Three-tier buffer management" (the CXL paper). An unlocked page is appended
//! with its version. At the front, entries with old versions are dropped. A page without access
//! goes to the end once more, marked for eviction, and is evicted if it comes back marked.
//! Differences:
//!
//! - The eviction mark is a clear mark in the state word, so a hit only sets that mark.
//! - Reads take no latch, so only loads and changes append a page.
//! - A latched page goes back to the end: the release may keep its version.
//! - Dirty pages wait in the dirty queue (`queues.rs`) until clean or changed.

use std::collections::VecDeque;

use crate::ids::PageId;

/// A page at a version. Frames are ambiguous: another page may have had that version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) struct Entry {
    pub(in crate::pool) page: PageId,
    pub(in crate::pool) version: u64,
}

#[derive(Debug, Default)]
pub(in crate::pool) struct Fifo {
    entries: VecDeque<Entry>,
}

/// Limit of entries per frame, plus a constant.
const ENTRIES_PER_FRAME: usize = 2;
const ENTRIES_MORE: usize = 64;

impl Fifo {
    /// Appends a page, and removes old versions at the limit.
    ///
    /// `stands`: whether an entry has the current version.
    pub(in crate::pool) fn push(&mut self, entry: Entry, frames: u32, stands: impl Fn(Entry) -> bool) {
        if self.entries.len() >= frames as usize * ENTRIES_PER_FRAME + ENTRIES_MORE {
            self.entries.retain(|&entry| stands(entry));
        }
        self.entries.push_back(entry);
    }

    pub(in crate::pool) fn pop(&mut self) -> Option<Entry> {
        self.entries.pop_front()
    }

    #[cfg(test)]
    pub(in crate::pool) fn count(&self, entry: Entry) -> usize {
        self.entries.iter().filter(|&&other| other == entry).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_go_when_there_are_too_many_and_the_order_stays() {
        let mut fifo = Fifo::default();
        let last = |page: u64| Entry { page: PageId(page), version: 100 + page };
        for version in 0..100 {
            for page in 0..4 {
                let entry = Entry { page: PageId(page), version };
                fifo.push(entry, 4, |entry| entry == last(entry.page.0));
            }
        }
        (0..4).for_each(|page| fifo.push(last(page), 4, |_| true));
        let rest: Vec<Entry> = std::iter::from_fn(|| fifo.pop()).collect();
        assert!(rest.len() <= 4 * ENTRIES_PER_FRAME + ENTRIES_MORE + 4, "{}", rest.len());
        assert_eq!(rest[rest.len() - 4..], [0, 1, 2, 3].map(last));
    }
}
