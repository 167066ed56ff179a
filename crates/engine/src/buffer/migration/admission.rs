//! HyMem's admission queue: a page may come to the middle tier the second time that it asks.
//!
//! HyMem (SIGMOD 2018, section 4.2; described in Spitfire, section 2.1) keeps the ids of pages that asked lately. A page that is among
//! them is taken out and admitted; any other is added, in place of the one that has waited longest if the queue is full, and turned
//! away. So what comes in has left DRAM twice within as many evictions as the queue is long, which what is read once never does.
//!
//! The queue is a list of ids with the number under which each was added, and a map from id to that number. What was admitted stays in
//! the list, where it can be told by the map that no longer knows its number, until it is first or such entries are as many as the
//! others; so each call does constant work on average. The mutex is taken once for each page that leaves DRAM, never on a hit.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::FixedState;
use parking_lot::Mutex;

/// Pages that asked for admission lately.
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
    /// Bytes of memory for each page that it remembers, at most: two entries of 16 in the list, and 17 for each place of a map that has
    /// up to 16 places for 7 pages.
    pub const BYTES_PER_PAGE: u64 = 2 * 16 + 17 * 16 / 7 + 1;

    /// Remembers up to `capacity` pages, none if that is 0: then no page is ever admitted. HyMem takes half as many as
    /// the middle tier has frames (Spitfire, section 6.5). The memory is taken at once.
    pub fn new(capacity: usize) -> AdmissionQueue {
        let waiting = Waiting {
            numbers: HashMap::with_capacity_and_hasher(capacity, FixedState::default()),
            order: VecDeque::with_capacity(2 * capacity),
            next: 0,
        };
        AdmissionQueue { capacity, waiting: Mutex::new(waiting) }
    }

    /// Whether `page` may come in. If so it is forgotten, else remembered.
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

    /// Pages that are remembered now.
    pub fn len(&self) -> usize {
        self.waiting.lock().numbers.len()
    }

    /// Whether no page is remembered.
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

    /// Against a list that is searched from end to end.
    #[test]
    fn a_page_is_admitted_if_it_asked_lately() {
        for seed in 0..20 {
            let mut random = SmallRng::seed_from_u64(seed);
            let capacity = random.random_range(0..40);
            let queue = AdmissionQueue::new(capacity);
            let mut model: Vec<u64> = Vec::new();
            for step in 0..5000 {
                let page = random.random_range(0..80u64);
                let place = model.iter().position(|&waiting| waiting == page);
                assert_eq!(queue.admits(page), place.is_some(), "seed {seed} step {step}");
                if let Some(place) = place {
                    model.remove(place);
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
