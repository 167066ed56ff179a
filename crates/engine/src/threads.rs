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

const SLOTS: usize = 32;

/// A counter that many threads raise and few read.
#[derive(Debug, Default)]
pub(crate) struct Tally([Padded<AtomicU64>; SLOTS]);

impl Tally {
    #[inline]
    pub(crate) fn raise(&self) {
        self.0[thread_number() as usize % SLOTS].fetch_add(1, Relaxed);
    }

    /// The sum; concurrent raises may be missing.
    pub(crate) fn total(&self) -> u64 {
        self.0.iter().map(|slot| slot.load(Relaxed)).sum()
    }
}

/// Chooses one event in eight, not the first, in a fixed order without a period.
///
/// Each thread counts for itself, by plain loads and stores. Threads of one slot may lose events.
#[derive(Debug, Default)]
pub(crate) struct Sample([Padded<AtomicU64>; SLOTS]);

impl Sample {
    pub(crate) fn takes_next(&self) -> bool {
        let slot = &self.0[thread_number() as usize % SLOTS];
        let number = slot.load(Relaxed) + 1;
        slot.store(number, Relaxed);
        // The top bits of multiples of the golden ratio are spread evenly.
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_one_event_in_eight_of_every_kind() {
        let sample = Sample::default();
        let taken: Vec<usize> = (1..=8000).filter(|_| sample.takes_next()).collect();
        assert_eq!(taken[..4], [5, 13, 18, 26]);
        for period in 2..20 {
            for rest in 0..period {
                let count = taken.iter().filter(|&event| event % period == rest).count() * period;
                assert!((900..1100).contains(&count), "{count} of events {rest} modulo {period}");
            }
        }
    }

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
