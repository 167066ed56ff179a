//! Marks: how threads say "nothing of mine is below here" without a shared lock.
//!
//! A mark is a lower bound that a thread publishes in a slot of its own *before* it draws a number from a counter
//! that only grows, and clears when what it did with the number is finished. Whoever wants to know up to where all is
//! finished reads the counter first and the marks after that:
//!
//! ```text
//!   writer:  low = counter; slot = low;  mine = counter += n;  ... use mine ...;  slot = free
//!   reader:  end = counter; end = min(end, every slot)
//! ```
//!
//! All of these are sequentially consistent but the last store. If a number below the reader's `end` was drawn, then
//! before the reader looked at the counter, so its slot was set before the reader looks at the slots: it sees the
//! mark, or it sees the slot cleared, and with it (Release there, Acquire here) all that was done in between. A mark
//! that shows up later belongs to a number at or above `end`.
//!
//! Each slot has cache lines of its own, and a thread returns to the slot it had before, so that marks of different
//! threads do not disturb each other.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, Release, SeqCst},
};

use crate::threads::{Padded, thread_number};

/// A slot without a mark.
const FREE: u64 = u64::MAX;

#[derive(Debug)]
struct Slot {
    mark: AtomicU64,
    /// How often the slot was used. Only its owner writes it.
    uses: AtomicU64,
}

/// `N` slots for marks. More threads than that wait for one another.
#[derive(Debug)]
pub(super) struct Marks<const N: usize> {
    slots: Box<[Padded<Slot>]>,
}

impl<const N: usize> Marks<N> {
    pub(super) fn new() -> Self {
        let free = || Padded(Slot { mark: AtomicU64::new(FREE), uses: AtomicU64::new(0) });
        Self { slots: (0..N).map(|_| free()).collect() }
    }

    /// Publishes a lower bound of what the caller is going to draw from `counter`, and returns the slot it is in.
    /// Waits while all slots are taken.
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
                    // The slot is ours: what the last owner stored here is visible through the exchange.
                    slot.uses.store(slot.uses.load(Relaxed) + 1, Relaxed);
                    return index;
                }
            }
            std::thread::yield_now();
        }
    }

    /// Raises the mark of a slot to the number that was really drawn. Any reader may still see the lower one.
    pub(super) fn raise(&self, slot: usize, to: u64) {
        self.slots[slot].0.mark.store(to, Release);
    }

    /// The mark in a slot the caller owns.
    pub(super) fn get(&self, slot: usize) -> u64 {
        self.slots[slot].0.mark.load(Relaxed)
    }

    /// Gives a slot back. What was done under the mark is visible to whoever no longer sees it (partner: [`Marks::low`]).
    pub(super) fn clear(&self, slot: usize) {
        self.slots[slot].0.mark.store(FREE, Release);
    }

    /// The lowest of `end` and all marks. `end` is what the counter held before this call.
    pub(super) fn low(&self, end: u64) -> u64 {
        self.slots.iter().map(|slot| slot.0.mark.load(SeqCst)).fold(end, u64::min)
    }

    /// How many marks there ever were, give or take those being set.
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
