//! LFRU, NVCache's eviction: LFU among blocks unused for a window (FAST 2022, section 3.1; Bilal
//! and Kang 2017).
//!
//! NVCache's thread scans once a second; this order is exact, with time in lookups. A block waits
//! in a list by last use until the window has passed; then it is a candidate, in lists by count.
//! Without candidates the least recently used block leaves. Only a miss makes candidates, at most
//! [`SWEPT_MAX`], so hits cost as much as in LRU and no miss takes long.

use super::frequency::FrequencyLists;
use super::lists::Lists;
use super::{Access, Policy, Slot};

/// Most new candidates per miss.
const SWEPT_MAX: usize = 256;

/// The LFRU policy.
///
/// ```
/// use terrace_cache::policy::{Access, Lfru, Policy, Slot};
///
/// let mut policy = Lfru::new(2, 1);
/// policy.insert(Access::read(4), Slot(0));
/// policy.hit(Slot(0), Access::read(4));
/// policy.insert(Access::read(5), Slot(1));
/// for block in 6..9 {
///     policy.miss(Access::read(block));
/// }
/// assert_eq!(policy.victim(Access::read(9)), Some(Slot(1)));
/// ```
#[derive(Clone, Debug)]
pub struct Lfru {
    /// Used within the window, or not yet candidates; most recently used in front.
    recent: Lists<1>,
    candidates: FrequencyLists,
    entries: Vec<Entry>,
    now: u64,
    window: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    last_use: u64,
    count: u32,
    is_candidate: bool,
}

impl Lfru {
    /// For `capacity` blocks and a window in lookups.
    pub fn new(capacity: usize, window: u64) -> Lfru {
        Lfru {
            recent: Lists::new(capacity),
            candidates: FrequencyLists::new(capacity),
            entries: vec![Entry::default(); capacity],
            now: 0,
            window,
        }
    }

    /// Makes candidates of blocks that the window has passed.
    fn sweep(&mut self) {
        for _ in 0..SWEPT_MAX {
            let Some(slot) = self.recent.back(0) else { return };
            let entry = &mut self.entries[slot as usize];
            if entry.last_use + self.window >= self.now {
                return;
            }
            entry.is_candidate = true;
            self.recent.unlink(0, slot);
            self.candidates.insert(slot, entry.count);
        }
    }

    fn enter(&mut self, slot: Slot, count: u32) {
        self.entries[slot.index()] = Entry { last_use: self.now, count, is_candidate: false };
        self.recent.push_front(0, slot.0);
    }
}

impl Policy for Lfru {
    #[inline]
    fn hit(&mut self, slot: Slot, _: Access) {
        self.remove(slot);
        self.now += 1;
        self.enter(slot, self.entries[slot.index()].count.saturating_add(1));
    }

    fn miss(&mut self, _: Access) {
        self.now += 1;
        self.sweep();
    }

    fn victim(&mut self, _: Access) -> Option<Slot> {
        self.sweep();
        let slot = self.coldest()?;
        self.remove(slot);
        Some(slot)
    }

    fn coldest(&self) -> Option<Slot> {
        let candidate = self.candidates.coldest().map(|(slot, _)| slot);
        candidate.or_else(|| self.recent.back(0)).map(Slot)
    }

    fn insert(&mut self, _: Access, slot: Slot) {
        self.enter(slot, 1);
    }

    #[inline]
    fn remove(&mut self, slot: Slot) {
        match self.entries[slot.index()].is_candidate {
            true => self.candidates.remove(slot.0),
            false => self.recent.unlink(0, slot.0),
        }
    }

    fn renamed(&mut self, _: Slot, _: Access) {}

    fn moved(&mut self, from: Slot, to: Slot, _: Access) {
        let entry = self.entries[from.index()];
        self.entries[to.index()] = entry;
        match entry.is_candidate {
            true => self.candidates.substitute(from.0, to.0),
            false => self.recent.substitute(from.0, to.0),
        }
    }

    fn resize(&mut self, capacity: usize) {
        self.recent.grow(capacity);
        self.candidates.grow(capacity);
        self.entries.resize(capacity.max(self.entries.len()), Entry::default());
    }
}
