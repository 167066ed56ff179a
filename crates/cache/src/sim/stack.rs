//! Stack distances: LRU at all sizes in one pass (Mattson et al., "Evaluation techniques for
//! storage hierarchies", 1970).
//!
//! A request's distance counts the distinct blocks since its block's last use, including itself.
//! LRU hits if the distance is at most its size. A Fenwick tree marks the time of each block's last
//! use; the distance is the number of marks since. When times run out, the marks are compacted, at
//! the cost of a few requests each.

use super::chunk::Chunk;
use super::distance::Distances;
use super::flow::{Lane, Outcome};

/// Marks an unused block.
const NEVER: u32 = u32::MAX;

/// Fewest times in the tree.
const TIMES_MIN: usize = 1 << 12;

/// Counts requests by distance.
pub(super) struct Stack {
    /// Time of last use by block number.
    last: Vec<u32>,
    /// A Fenwick tree over times from 1 on, with 1 at each last use.
    tree: Vec<u32>,
    /// The block by time of its last use.
    at: Vec<u32>,
    now: usize,
    distances: Distances,
}

impl Stack {
    pub(super) fn new() -> Stack {
        let mut stack = Stack {
            last: Vec::new(),
            tree: Vec::new(),
            at: Vec::new(),
            now: 0,
            distances: Distances::default(),
        };
        stack.renumber();
        stack
    }

    fn add(&mut self, time: usize, change: i32) {
        let mut index = time + 1;
        while index < self.tree.len() {
            self.tree[index] = self.tree[index].wrapping_add_signed(change);
            index += index & index.wrapping_neg();
        }
    }

    /// Marks at times before `time`.
    fn before(&self, time: usize) -> u32 {
        let (mut index, mut sum) = (time, 0);
        while index > 0 {
            sum += self.tree[index];
            index &= index - 1;
        }
        sum
    }

    /// Compacts the marks, with room for as many more.
    fn renumber(&mut self) {
        let held: Vec<u32> = self.at[..self.now].iter().copied().filter(|number| *number != NEVER).collect();
        let times = (held.len() * 2).max(TIMES_MIN);
        (self.tree, self.at, self.now) = (vec![0; times + 1], vec![NEVER; times], held.len());
        for (time, number) in held.into_iter().enumerate() {
            self.last[number as usize] = time as u32;
            self.at[time] = number;
        }
        // A tree of ones up to `now`, built in one pass: each node adds its sum to its parent.
        for index in 1..=times {
            self.tree[index] += u32::from(index <= self.now);
            let parent = index + (index & index.wrapping_neg());
            if parent <= times {
                self.tree[parent] += self.tree[index];
            }
        }
    }

    pub(super) fn request(&mut self, number: u32) {
        if self.now == self.at.len() {
            self.renumber();
        }
        match self.last[number as usize] {
            NEVER => self.distances.first += 1,
            last => {
                let last = last as usize;
                let distance = (self.before(self.now) - self.before(last)) as usize;
                if self.distances.counts.len() < distance {
                    self.distances.counts.resize(distance, 0);
                }
                self.distances.counts[distance - 1] += 1;
                self.add(last, -1);
                self.at[last] = NEVER;
            }
        }
        self.add(self.now, 1);
        (self.at[self.now], self.last[number as usize]) = (number, self.now as u32);
        self.now += 1;
    }
}

impl Lane for Stack {
    fn run(&mut self, chunk: &Chunk) {
        if self.last.len() < chunk.footprint {
            self.last.resize(chunk.footprint, NEVER);
        }
        for request in chunk.requests(0..chunk.len()) {
            self.request(request.number);
        }
    }

    fn finish(self: Box<Self>) -> Outcome {
        Outcome::Distances(self.distances)
    }
}
