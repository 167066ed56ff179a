//! HyMem's admission queue: a page enters at its second request.
//!
//! HyMem (SIGMOD 2018, section 4.2; described in Spitfire, section 2.1) keeps the ids of pages that
//! asked recently. A known page is removed and admitted. Any other is refused and added, and
//! displaces the oldest if the queue is full. So pages read once never enter.
//!
//! The list entry of an admitted page is removed later, in constant amortised time. The mutex is
//! never taken on a hit.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::FixedState;
use parking_lot::Mutex;

/// Pages that recently asked for admission.
///
/// ```
/// use terrace::migration::AdmissionQueue;
///
/// let queue = AdmissionQueue::new(2);
/// assert!(!queue.admits(7), "asked for the first time");
/// assert!(queue.admits(7));
/// assert!(!queue.admits(7), "was taken out");
/// ```
#[derive(Debug)]
pub struct AdmissionQueue {
    capacity: usize,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    numbers: HashMap<u64, u64, FixedState>,
    order: VecDeque<(u64, u64)>,
    next: u64,
}

impl AdmissionQueue {
    /// Bytes per page, at most.
    ///
    /// Two list entries of 16, and 17 per map slot, of up to 16 slots for 7 pages.
    pub const BYTES_PER_PAGE: u64 = 2 * 16 + 17 * 16 / 7 + 1;

    /// Holds up to `capacity` pages; 0 admits none.
    ///
    /// HyMem takes half as many as middle frames (Spitfire, section 6.5). Allocates all memory now.
    pub fn new(capacity: usize) -> AdmissionQueue {
        let waiting = Waiting {
            numbers: HashMap::with_capacity_and_hasher(capacity, FixedState::default()),
            order: VecDeque::with_capacity(2 * capacity),
            next: 0,
        };
        AdmissionQueue { capacity, waiting: Mutex::new(waiting) }
    }

    /// Whether `page` is admitted. Removes it if so, else adds it.
    pub fn admits(&self, page: u64) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.numbers.remove(&page).is_some() {
            return true;
        }
        if self.capacity > 0 {
            waiting.add(page, self.capacity);
        }
        false
    }

    /// Pages in the queue now.
    pub fn len(&self) -> usize {
        self.waiting.lock().numbers.len()
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Waiting {
    fn add(&mut self, page: u64, capacity: usize) {
        while self.numbers.len() == capacity {
            let (oldest, number) = self.order.pop_front().expect("each remembered page is in the list");
            if self.numbers.get(&oldest) == Some(&number) {
                self.numbers.remove(&oldest);
            }
        }
        if self.order.len() == 2 * capacity {
            let numbers = &self.numbers;
            self.order.retain(|(page, number)| numbers.get(page) == Some(number));
        }
        self.numbers.insert(page, self.next);
        self.order.push_back((page, self.next));
        self.next += 1;
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    #[test]
    fn a_page_is_admitted_if_it_asked_lately() {
        for seed in 0..20 {
            let mut random = SmallRng::seed_from_u64(seed);
            let capacity = random.random_range(0..40);
            let queue = AdmissionQueue::new(capacity);
            let mut model: Vec<u64> = Vec::new();
            for step in 0..5000 {
                let page = random.random_range(0..80u64);
                let rank = model.iter().position(|&waiting| waiting == page);
                assert_eq!(queue.admits(page), rank.is_some(), "seed {seed} step {step}");
                if let Some(rank) = rank {
                    model.remove(rank);
                } else if capacity > 0 {
                    if model.len() == capacity {
                        model.remove(0);
                    }
                    model.push(page);
                }
                assert_eq!(queue.len(), model.len(), "seed {seed} step {step}");
                assert!(queue.waiting.lock().order.len() <= 2 * capacity, "seed {seed} step {step}");
            }
        }
    }
}
