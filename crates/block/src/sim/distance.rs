//! Stack distances: how LRU does at every size at once (Mattson et al., "Evaluation techniques for storage hierarchies", 1970).
//!
//! The distance of a request is how many different blocks were asked for since its block was last, itself included. LRU
//! hits where the distance is at most its size; so one count of requests by distance says what it misses at any size.
//! Times at which a block was last asked for are marked in a Fenwick tree; the distance is the count of marks from that
//! time on. When the times run out, the marks are moved together, in the order they have, which takes as long as a few
//! requests for each of them.

use super::chunk::Chunk;
use super::flow::{Lane, Outcome};

/// The mark of a block that was not asked for yet.
const NEVER: u32 = u32::MAX;

/// The least number of times that the tree has.
const TIMES_MIN: usize = 1 << 12;

/// Requests counted by stack distance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distances {
    /// Requests of distance 1, 2 and so on.
    counts: Vec<u64>,
    /// Requests for blocks that were not asked for before.
    first: u64,
}

impl Distances {
    /// All requests.
    pub fn requests(&self) -> u64 {
        self.first + self.counts.iter().sum::<u64>()
    }

    /// What an LRU cache of `blocks` blocks misses.
    pub fn misses(&self, blocks: usize) -> u64 {
        self.first + self.counts.iter().skip(blocks).sum::<u64>()
    }

    /// Misses at each of `sizes`, which must not fall.
    pub fn curve(&self, sizes: &[usize]) -> Vec<(usize, u64)> {
        let mut misses = self.requests();
        let mut counted = 0;
        let mut curve = Vec::with_capacity(sizes.len());
        for blocks in sizes {
            let upto = (*blocks).clamp(counted, self.counts.len());
            misses -= self.counts[counted..upto].iter().sum::<u64>();
            counted = upto;
            curve.push((*blocks, misses));
        }
        curve
    }
}

/// Counts requests by distance as they come.
pub(super) struct Stack {
    /// When each block was last asked for, by its number.
    last: Vec<u32>,
    /// A Fenwick tree over times, from 1 on: 1 where a block was last asked for.
    tree: Vec<u32>,
    /// The block that was asked for at each time, if that was the last time.
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

    /// Moves the marks to the first times, and makes room for as many more.
    fn renumber(&mut self) {
        let held: Vec<u32> = self.at[..self.now].iter().copied().filter(|number| *number != NEVER).collect();
        let times = (held.len() * 2).max(TIMES_MIN);
        (self.tree, self.at, self.now) = (vec![0; times + 1], vec![NEVER; times], held.len());
        for (time, number) in held.into_iter().enumerate() {
            self.last[number as usize] = time as u32;
            self.at[time] = number;
        }
        // A tree of ones up to `now`, built in one pass: each node gives what it has to its parent.
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
