//! The CXL buffer manager's replacement, to compare with: a queue with a second chance, of versions of pages.
//!
//! After section III-E of "Three-tier buffer management" (the CXL paper): a page that is unlocked is put at the end of the
//! queue with its version. Who needs a frame takes entries from the front. An entry whose page has another version by
//! now is dropped, since the page stands further back too. A page that was not looked at so far is put at the end again and
//! marked for eviction; one that still is so when it comes to the front is evicted.
//!
//! What the paper calls marked is here a clear mark of the state word: a hit sets the mark, which takes the second chance
//! back, and writes nothing else. Three things differ, because the rest of the pool does:
//!
//! - Reads take no latch, so nothing is unlocked after them, and only what loads or changes a page puts it in line.
//! - A page that is latched keeps its place at the end, since latches here are also given back with the version as it was.
//! - Pages of each size have a queue of their own, and dirty ones are left to the write-back instead of being written by
//!   who meets them: they stand in the laundry (`queues.rs`) and not in line, until they are clean or changed once more.
//!
//! Entries of old versions are dropped when they come to the front, or all at once when there are more than two to a frame.

use std::collections::VecDeque;

use crate::ids::PageId;

/// A page at a version. Not its frame: what stood there before may have been at the same version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) page: PageId,
    pub(super) version: u64,
}

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Fifo {
    entries: VecDeque<Entry>,
}

/// Entries for each frame, and how many more, before old versions are looked for.
const ENTRIES_PER_FRAME: usize = 2;
const ENTRIES_MORE: usize = 64;

impl Fifo {
    /// Puts a page at the end. There are `frames` frames; `stands` says whether an entry is of its page's present version.
    pub(super) fn push(&mut self, entry: Entry, frames: u32, stands: impl Fn(Entry) -> bool) {
        if self.entries.len() >= frames as usize * ENTRIES_PER_FRAME + ENTRIES_MORE {
            self.entries.retain(|&entry| stands(entry));
        }
        self.entries.push_back(entry);
    }

    pub(super) fn pop(&mut self) -> Option<Entry> {
        self.entries.pop_front()
    }

    /// How often `entry` stands in line.
    #[cfg(test)]
    pub(super) fn count(&self, entry: Entry) -> usize {
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
