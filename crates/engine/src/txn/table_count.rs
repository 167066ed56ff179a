//! The entry count of one table, in memory and as saved.

use std::sync::atomic::{
    AtomicBool, AtomicI64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use std::sync::{Arc, OnceLock};

use crate::threads::{Padded, thread_number};

/// Slots; threads beyond that share.
const SLOTS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Saved {
    pub(crate) entries: u64,
    pub(crate) exact: bool,
}

impl Saved {
    pub(crate) fn encode(self) -> [u8; 9] {
        let mut bytes = [u8::from(self.exact); 9];
        bytes[..8].copy_from_slice(&self.entries.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (entries, exact) = bytes.split_first_chunk::<8>()?;
        let entries = u64::from_le_bytes(*entries);
        match exact {
            [exact @ 0..=1] if entries <= i64::MAX as u64 => Some(Saved { entries, exact: *exact == 1 }),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct TableCount {
    /// Offset of the slots; below zero after removals of uncounted entries.
    base: AtomicI64,
    /// Whether base and slots add up to the number of entries.
    exact: AtomicBool,
    /// Changes before there were slots.
    first: AtomicI64,
    /// Allocated when two threads contend for `first`.
    slots: OnceLock<Box<[Padded<AtomicI64>]>>,
}

impl TableCount {
    pub(crate) fn of(saved: Saved) -> Self {
        TableCount {
            base: AtomicI64::new(saved.entries as i64),
            exact: AtomicBool::new(saved.exact),
            first: AtomicI64::new(0),
            slots: OnceLock::new(),
        }
    }

    /// A count that is never read.
    pub(crate) fn unknown() -> Arc<Self> {
        Arc::new(Self::of(Saved { entries: 0, exact: false }))
    }

    /// Adds `change` entries, inside the gate and before the commit is decided.
    #[inline]
    pub(crate) fn add(&self, change: i64) {
        // Release, with the loads in `change`: a thread that sees this addition sees that its
        // timestamp was drawn.
        let slots = match self.slots.get() {
            Some(slots) => slots,
            None => {
                let now = self.first.load(Relaxed);
                let next = now.wrapping_add(change);
                if self.first.compare_exchange(now, next, Release, Relaxed).is_ok() {
                    return;
                }
                self.slots.get_or_init(|| (0..SLOTS).map(|_| Padded::default()).collect())
            }
        };
        slots[thread_number() as usize % SLOTS].fetch_add(change, Release);
    }

    pub(crate) fn change(&self) -> i64 {
        let slots = self.slots.get().into_iter().flatten();
        slots.fold(self.first.load(Acquire), |sum, slot| sum.wrapping_add(slot.load(Acquire)))
    }

    pub(crate) fn now(&self) -> Saved {
        let entries = self.base.load(SeqCst).wrapping_add(self.change()).max(0) as u64;
        Saved { entries, exact: self.exact.load(SeqCst) }
    }

    /// Notes that there were `entries` when the slots added up to `change`.
    ///
    /// Threads that walked the table concurrently store the same base.
    pub(crate) fn set(&self, entries: u64, change: i64) {
        self.base.store((entries as i64).wrapping_sub(change), SeqCst);
        self.exact.store(true, SeqCst);
    }

    pub(crate) fn is_exact(&self) -> bool {
        self.exact.load(SeqCst)
    }

    pub(crate) fn size_bytes(&self) -> usize {
        let slots = SLOTS * size_of::<Padded<AtomicI64>>();
        size_of::<TableCount>() + self.slots.get().map_or(0, |_| slots)
    }
}
