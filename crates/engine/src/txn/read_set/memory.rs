//! The share of the budget for what transactions have read, all of them together.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::{Error, Result};

/// Bytes that a transaction takes at a time.
const CHUNK_BYTES: usize = 16 << 10;
/// The part of the budget, as one in this many. It is taken from the part of old versions.
const SHARE: u64 = 32;

/// Memory for reads. A transaction keeps a little without asking, see [`super::FREE_BYTES`].
#[derive(Debug)]
pub(crate) struct ReadMemory {
    // Relaxed everywhere: nothing is published by these numbers.
    used: AtomicUsize,
    max: AtomicUsize,
}

impl ReadMemory {
    /// The share of a budget of `total` bytes.
    pub(crate) fn of(total: u64) -> Self {
        ReadMemory { used: AtomicUsize::new(0), max: AtomicUsize::new((total / SHARE) as usize) }
    }

    /// Changes it to the share of a budget of `total` bytes. What is taken stays.
    pub(crate) fn set_total(&self, total: u64) {
        self.max.store((total / SHARE) as usize, Relaxed);
    }

    /// Bytes taken.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Takes enough for a transaction that has been granted `granted` bytes and needs `bytes`; returns what it is granted then.
    pub(super) fn grow(&self, granted: usize, bytes: usize) -> Result<usize> {
        let max = self.max.load(Relaxed);
        let wanted = (bytes - granted).next_multiple_of(CHUNK_BYTES);
        let take = |used: usize| used.checked_add(wanted).filter(|used| *used <= max);
        match self.used.fetch_update(Relaxed, Relaxed, take) {
            Ok(_) => Ok(granted + wanted),
            Err(used) => Err(Error::TransactionTooLarge {
                bytes: (granted + wanted) as u64,
                max: (granted + max.saturating_sub(used)) as u64,
            }),
        }
    }

    pub(super) fn shrink(&self, bytes: usize) {
        if bytes > 0 {
            self.used.fetch_sub(bytes, Relaxed);
        }
    }
}
