//! Marks: lower bounds of unfinished work, published without a shared lock.
//!
//! A thread publishes a mark in its own slot *before* it draws a number from a growing counter. It
//! clears the mark when its work with the number ends. A reader of the finished end reads the
//! counter first and the marks second:
//!
//! ```text
//!   writer:  low = counter; slot = low;  mine = counter += n;  ... use mine ...;  slot = free
//!   reader:  end = counter; end = min(end, every slot)
//! ```
//!
//! All of these are sequentially consistent except the last store. A number below the reader's
//! `end` was drawn before the reader read the counter, so its slot was set before the reader reads
//! the slots. The reader sees the mark, or sees the slot cleared, and with it (Release there,
//! Acquire here) all work in between. A mark that appears later belongs to a number at or above
//! `end`.
//!
//! Each slot has its own cache lines, and a thread returns to its last slot.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, Release, SeqCst},
};

use crate::threads::{Padded, thread_number};

const FREE: u64 = u64::MAX;

#[derive(Debug)]
struct Slot {
    mark: AtomicU64,
    /// Uses of the slot. Only its owner writes it.
    uses: AtomicU64,
}

/// `N` slots for marks. Further threads wait.
#[derive(Debug)]
pub(super) struct Marks<const N: usize> {
    slots: Box<[Padded<Slot>]>,
}

impl<const N: usize> Marks<N> {
    pub(super) fn new() -> Self {
        let free = || Padded(Slot { mark: AtomicU64::new(FREE), uses: AtomicU64::new(0) });
        Self { slots: (0..N).map(|_| free()).collect() }
    }

    /// Publishes a lower bound of the next draw from `counter`; returns its slot. Waits while all
    /// slots are taken.
    pub(super) fn set(&self, counter: &AtomicU64) -> usize {
        let first = thread_number() as usize;
        loop {
            for probe in 0..N {
                let index = first.wrapping_add(probe) % N;
                let slot = &self.slots[index].0;
                if slot.mark.load(Relaxed) != FREE {
                    continue;
                }
                let low = counter.load(SeqCst);
                if slot.mark.compare_exchange(FREE, low, SeqCst, Relaxed).is_ok() {
                    // This thread owns the slot; the exchange shows the last owner's store.
                    slot.uses.store(slot.uses.load(Relaxed) + 1, Relaxed);
                    return index;
                }
            }
            std::thread::yield_now();
        }
    }

    /// Raises a slot's mark to the number really drawn. A reader may still see the lower one.
    pub(super) fn raise(&self, slot: usize, to: u64) {
        self.slots[slot].0.mark.store(to, Release);
    }

    pub(super) fn get(&self, slot: usize) -> u64 {
        self.slots[slot].0.mark.load(Relaxed)
    }

    /// Frees a slot. Readers that no longer see the mark see the work under it (pairs with
    /// [`Marks::low`]).
    pub(super) fn clear(&self, slot: usize) {
        self.slots[slot].0.mark.store(FREE, Release);
    }

    /// The lowest of `end` and all marks. `end` is the counter's value before this call.
    pub(super) fn low(&self, end: u64) -> u64 {
        self.slots.iter().map(|slot| slot.0.mark.load(SeqCst)).fold(end, u64::min)
    }

    /// The approximate number of marks ever set.
    pub(super) fn uses(&self) -> u64 {
        self.slots.iter().map(|slot| slot.0.uses.load(Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_mark_counts_until_it_is_cleared() {
        let marks = Marks::<4>::new();
        let counter = AtomicU64::new(100);
        let low = marks.set(&counter);
        counter.store(200, SeqCst);
        let high = marks.set(&counter);
        assert_ne!(low, high);
        assert_eq!(marks.low(300), 100);
        marks.raise(low, 150);
        assert_eq!((marks.get(low), marks.low(300)), (150, 150));
        marks.clear(low);
        assert_eq!((marks.low(300), marks.low(10)), (200, 10));
        marks.clear(high);
        assert_eq!((marks.low(300), marks.uses()), (300, 2));
    }

    #[test]
    fn more_threads_than_slots_wait_for_one_another() {
        let marks = Marks::<2>::new();
        let counter = AtomicU64::new(1);
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let slot = marks.set(&counter);
                        let mine = counter.fetch_add(1, SeqCst);
                        assert!(marks.low(counter.load(SeqCst)) <= mine);
                        marks.clear(slot);
                    }
                });
            }
        });
        assert_eq!((marks.low(u64::MAX), marks.uses()), (u64::MAX, 1200));
    }
}
