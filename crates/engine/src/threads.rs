//! Per-thread numbers and padded counters, to avoid contention.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A value alone on two cache lines, because the neighbour line is prefetched.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

impl<T> Deref for Padded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

thread_local! {
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

static THREADS: AtomicU64 = AtomicU64::new(1);

/// Threads without a number get none below `number`.
#[cfg(test)]
pub(crate) fn skip_numbers_to(number: u64) {
    THREADS.fetch_max(number, Relaxed);
}

/// Number of the calling thread, from 1, never reused in this process.
#[inline]
pub(crate) fn thread_number() -> u64 {
    THREAD.with(|thread| {
        if thread.get() == 0 {
            // Relaxed: the number need only be unique.
            thread.set(THREADS.fetch_add(1, Relaxed));
        }
        thread.get()
    })
}

/// Scratch bytes that a thread keeps per kind: changes, images, rows.
///
/// The budget does not know the number of threads, so each keeps little.
pub(crate) const KEPT_BYTES_MAX: usize = 64 << 10;

const TALLY_SLOTS: usize = 32;

/// A counter that many threads raise and few read.
#[derive(Debug, Default)]
pub(crate) struct Tally([Padded<AtomicU64>; TALLY_SLOTS]);

impl Tally {
    #[inline]
    pub(crate) fn raise(&self) {
        self.0[thread_number() as usize % TALLY_SLOTS].fetch_add(1, Relaxed);
    }

    /// The sum; concurrent raises may be missing.
    pub(crate) fn total(&self) -> u64 {
        self.0.iter().map(|slot| slot.load(Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_counts_what_all_threads_raise() {
        let tally = Tally::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| tally.raise()));
            }
        });
        assert_eq!(tally.total(), 4000);
    }
}
