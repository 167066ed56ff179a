//! S3-FIFO: small, main and ghost FIFO queues (Yang et al., SOSP 2023).
//!
//! The small queue filters new blocks, the main queue keeps blocks hit at least twice there, and
//! ghosts that return go straight to the main queue. A hit counts up to three and moves nothing.
//! The count restarts in the main queue, and grants as many more rounds. Sizes as in the paper: a
//! tenth of the capacity small, ghosts for nine tenths. During the first fill the small queue
//! overflows to the main queue, as in the authors' libCacheSim, whose counts this matches exactly.

use super::ghosts::Ghosts;
use super::lists::Lists;
use super::{Access, BlockTable, Policy, Slot};

const SMALL: usize = 0;
const MAIN: usize = 1;

/// Hits in the small queue that promote a block.
const PROMOTED_AT: u8 = 2;
const COUNT_MAX: u8 = 3;

/// The S3-FIFO policy.
///
/// ```
/// use terrace_cache::policy::{Access, HashedTable, Policy, S3Fifo, Slot};
///
/// let mut policy = S3Fifo::<HashedTable>::new(2);
/// policy.insert(Access::read(4), Slot(0));
/// policy.insert(Access::read(5), Slot(1));
/// assert_eq!(policy.victim(Access::read(6)), Some(Slot(0)));
/// ```
#[derive(Clone, Debug)]
pub struct S3Fifo<T: BlockTable> {
    /// Newest in front.
    queues: Lists<2>,
    ghosts: Ghosts<T, 1>,
    blocks: Vec<u64>,
    counts: Vec<u8>,
    in_main: Vec<bool>,
    small_target: usize,
    main_target: usize,
    ghosts_max: usize,
    /// The cache was full once.
    evicted: bool,
    /// The last `victim`'s block, if it was a ghost.
    returning: Option<u64>,
}

impl<T: BlockTable> S3Fifo<T> {
    /// For `capacity` blocks.
    pub fn new(capacity: usize) -> Self {
        let mut policy = S3Fifo {
            queues: Lists::new(0),
            ghosts: Ghosts::new(),
            blocks: Vec::new(),
            counts: Vec::new(),
            in_main: Vec::new(),
            small_target: 0,
            main_target: 0,
            evicted: false,
            ghosts_max: 0,
            returning: None,
        };
        policy.resize(capacity);
        policy
    }

    fn evict_small(&mut self) -> Option<Slot> {
        while let Some(slot) = self.queues.pop_back(SMALL) {
            if self.counts[slot as usize] < PROMOTED_AT {
                if self.ghosts_max > 0 {
                    if self.ghosts.len(0) >= self.ghosts_max {
                        self.ghosts.drop_back(0);
                    }
                    self.ghosts.push_front(0, self.blocks[slot as usize], 0);
                }
                return Some(Slot(slot));
            }
            self.in_main[slot as usize] = true;
            self.counts[slot as usize] = 0;
            self.queues.push_front(MAIN, slot);
        }
        None
    }

    fn evict_main(&mut self) -> Option<Slot> {
        loop {
            let slot = self.queues.back(MAIN)?;
            let count = &mut self.counts[slot as usize];
            if *count == 0 {
                self.queues.unlink(MAIN, slot);
                return Some(Slot(slot));
            }
            *count -= 1;
            self.queues.move_to_front(MAIN, slot);
        }
    }
}

impl<T: BlockTable> Policy for S3Fifo<T> {
    #[inline]
    fn hit(&mut self, slot: Slot, _: Access) {
        let count = &mut self.counts[slot.index()];
        *count = (*count + 1).min(COUNT_MAX);
    }

    #[inline]
    fn victim(&mut self, access: Access) -> Option<Slot> {
        // Before the victim's ghost may push this one out.
        self.evicted = true;
        if self.returning != Some(access.block) {
            self.returning = self.ghosts.take(access.block).map(|_| access.block);
        }
        if self.queues.len(MAIN) <= self.main_target
            && let Some(slot) = self.evict_small()
        {
            return Some(slot);
        }
        self.evict_main().or_else(|| self.evict_small())
    }

    fn coldest(&self) -> Option<Slot> {
        let small = self.queues.len(MAIN) <= self.main_target && self.queues.len(SMALL) > 0;
        self.queues.back(if small || self.queues.len(MAIN) == 0 { SMALL } else { MAIN }).map(Slot)
    }

    #[inline]
    fn insert(&mut self, access: Access, slot: Slot) {
        let returns = self.returning.take() == Some(access.block) || self.ghosts.take(access.block).is_some();
        let main = returns || (!self.evicted && self.queues.len(SMALL) >= self.small_target);
        self.blocks[slot.index()] = access.block;
        self.counts[slot.index()] = 0;
        self.in_main[slot.index()] = main;
        self.queues.push_front(if main { MAIN } else { SMALL }, slot.0);
    }

    fn remove(&mut self, slot: Slot) {
        self.queues.unlink(if self.in_main[slot.index()] { MAIN } else { SMALL }, slot.0);
    }

    fn renamed(&mut self, slot: Slot, access: Access) {
        self.ghosts.take(access.block);
        self.blocks[slot.index()] = access.block;
    }

    fn moved(&mut self, from: Slot, to: Slot, _: Access) {
        self.blocks[to.index()] = self.blocks[from.index()];
        self.counts[to.index()] = self.counts[from.index()];
        self.in_main[to.index()] = self.in_main[from.index()];
        self.queues.substitute(from.0, to.0);
    }

    fn resize(&mut self, capacity: usize) {
        self.small_target = (capacity / 10).max(1);
        self.main_target = capacity - self.small_target;
        self.ghosts_max = capacity * 9 / 10;
        while self.ghosts.len(0) > self.ghosts_max {
            self.ghosts.drop_back(0);
        }
        self.queues.grow(capacity);
        let slots = capacity.max(self.blocks.len());
        self.blocks.resize(slots, 0);
        self.counts.resize(slots, 0);
        self.in_main.resize(slots, false);
    }
}
