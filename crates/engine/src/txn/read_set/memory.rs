//! The budget share for the reads of all transactions.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::{Error, Result};

/// Bytes that a transaction takes at once.
const CHUNK_BYTES: usize = 16 << 10;
/// The share's divisor of the budget; it comes out of the part for old versions.
const SHARE: u64 = 32;

/// Memory for reads. Small read sets do not use it, see [`super::FREE_BYTES`].
#[derive(Debug)]
pub(crate) struct ReadMemory {
    // Relaxed everywhere: these numbers publish nothing.
    used: AtomicUsize,
    max: AtomicUsize,
}

impl ReadMemory {
    pub(crate) fn of(total: u64) -> Self {
        ReadMemory { used: AtomicUsize::new(0), max: AtomicUsize::new((total / SHARE) as usize) }
    }

    /// Changes the share to that of a budget of `total` bytes; grants stay.
    pub(crate) fn set_total(&self, total: u64) {
        self.max.store((total / SHARE) as usize, Relaxed);
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Takes enough for a transaction with `granted` bytes that needs `bytes`; returns its new
    /// grant.
    pub(super) fn grow(&self, granted: usize, bytes: usize) -> Result<usize> {
        let max = self.max.load(Relaxed);
        let wanted = (bytes - granted).next_multiple_of(CHUNK_BYTES);
        let take = |used: usize| used.checked_add(wanted).filter(|used| *used <= max);
        match self.used.fetch_update(Relaxed, Relaxed, take) {
            Ok(_) => Ok(granted + wanted),
            Err(used) => Err(Error::TransactionTooLarge {
                bytes: (granted + wanted) as u64,
                max: (granted + max.saturating_sub(used)) as u64,
                reads: true,
            }),
        }
    }

    pub(super) fn shrink(&self, bytes: usize) {
        if bytes > 0 {
            self.used.fetch_sub(bytes, Relaxed);
        }
    }
}
