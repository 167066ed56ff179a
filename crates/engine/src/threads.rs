//! What keeps threads out of each other's way: numbers of their own, and words on lines of their own.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A value alone on its cache lines. Two lines, because the neighbour is prefetched with it.
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

/// Gives threads that have no number yet none below `number`.
#[cfg(test)]
pub(crate) fn skip_numbers_to(number: u64) {
    THREADS.fetch_max(number, Relaxed);
}

/// A number of the calling thread, from 1, never given to another thread of this process. Not small: programs start threads for
/// years.
#[inline]
pub(crate) fn thread_number() -> u64 {
    THREAD.with(|thread| {
        if thread.get() == 0 {
            // Relaxed: only the number's uniqueness counts, nothing is published with it.
            thread.set(THREADS.fetch_add(1, Relaxed));
        }
        thread.get()
    })
}

/// Bytes of scratch memory of one kind that a thread keeps from one call to the next. There are three kinds: for changes, for
/// images read, for rows of scans. A budget does not know how many threads there are, so what each keeps is little, and
/// what takes more goes back when the call ends.
pub(crate) const KEPT_BYTES_MAX: usize = 64 << 10;

const TALLY_SLOTS: usize = 32;

/// A counter that many threads raise at once and hardly anybody reads.
#[derive(Debug, Default)]
pub(crate) struct Tally([Padded<AtomicU64>; TALLY_SLOTS]);

impl Tally {
    /// One more.
    #[inline]
    pub(crate) fn raise(&self) {
        self.0[thread_number() as usize % TALLY_SLOTS].fetch_add(1, Relaxed);
    }

    /// How often it was raised, give or take what happens meanwhile.
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
