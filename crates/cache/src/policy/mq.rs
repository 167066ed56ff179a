//! MQ: LRU lists by logarithm of the access count (Zhou, Philbin and Li, USENIX 2001).
//!
//! A block with count n is in list log2(n). After a life time without use, it is demoted by one
//! list. The last block of the lowest list leaves, and a ghost keeps its count. Eight lists, and
//! ghosts for four times the capacity, as in the paper. Its life time is the most common distance
//! between two uses; here it is a setting with libCacheSim's default, [`LIFE_TIME`] lookups.

use super::ghosts::Ghosts;
use super::lists::Lists;
use super::{Access, BlockTable, Policy, Slot};

const LISTS: usize = 8;
/// The default life time, in lookups.
pub(crate) const LIFE_TIME: u64 = 10_000;

/// The MQ policy.
///
/// ```
/// use terrace_cache::policy::{Access, HashedTable, Mq, Policy, Slot};
///
/// let mut policy = Mq::<HashedTable>::new(2, 100);
/// policy.insert(Access::read(4), Slot(0));
/// policy.insert(Access::read(5), Slot(1));
/// policy.hit(Slot(0), Access::read(4));
/// assert_eq!(policy.victim(Access::read(6)), Some(Slot(1)));
/// ```
#[derive(Clone, Debug)]
pub struct Mq<T: BlockTable> {
    queues: Lists<LISTS>,
    /// The paper's Qout, with counts.
    ghosts: Ghosts<T, 1>,
    entries: Vec<Entry>,
    now: u64,
    life_time: u64,
    ghosts_max: usize,
    /// Block and count of the last `victim`'s ghost.
    returning: Option<(u64, u32)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    block: u64,
    expires: u64,
    count: u32,
    queue: u8,
}

impl<T: BlockTable> Mq<T> {
    /// For `capacity` blocks, demoted after `life_time` lookups without use.
    pub fn new(capacity: usize, life_time: u64) -> Self {
        let mut policy = Mq {
            queues: Lists::new(0),
            ghosts: Ghosts::new(),
            entries: Vec::new(),
            now: 0,
            life_time,
            ghosts_max: 0,
            returning: None,
        };
        policy.resize(capacity);
        policy
    }

    fn push(&mut self, slot: Slot) {
        let entry = &mut self.entries[slot.index()];
        entry.queue = entry.count.max(1).ilog2().min(LISTS as u32 - 1) as u8;
        entry.expires = self.now + self.life_time;
        self.queues.push_front(entry.queue as usize, slot.0);
    }

    /// The paper's Adjust: advances time and demotes the expired last block of every list.
    fn tick(&mut self) {
        self.now += 1;
        for queue in 1..LISTS {
            let Some(slot) = self.queues.back(queue) else { continue };
            let entry = &mut self.entries[slot as usize];
            if entry.expires < self.now {
                entry.expires = self.now + self.life_time;
                entry.queue = queue as u8 - 1;
                self.queues.unlink(queue, slot);
                self.queues.push_front(queue - 1, slot);
            }
        }
    }
}

impl<T: BlockTable> Policy for Mq<T> {
    fn hit(&mut self, slot: Slot, _: Access) {
        let entry = &mut self.entries[slot.index()];
        entry.count = entry.count.saturating_add(1);
        self.queues.unlink(entry.queue as usize, slot.0);
        self.push(slot);
        self.tick();
    }

    fn miss(&mut self, _: Access) {
        self.tick();
    }

    fn victim(&mut self, access: Access) -> Option<Slot> {
        // Before the victim's ghost may push this one out.
        if self.returning.is_none_or(|(block, _)| block != access.block) {
            self.returning = self.ghosts.take(access.block).map(|(_, count)| (access.block, count));
        }
        let slot = self.coldest()?;
        let Entry { block, count, queue, .. } = self.entries[slot.index()];
        self.queues.unlink(queue as usize, slot.0);
        if self.ghosts.len(0) >= self.ghosts_max {
            self.ghosts.drop_back(0);
        }
        self.ghosts.push_front(0, block, count);
        Some(slot)
    }

    fn coldest(&self) -> Option<Slot> {
        (0..LISTS).find_map(|queue| self.queues.back(queue)).map(Slot)
    }

    fn insert(&mut self, access: Access, slot: Slot) {
        let count = match self.returning.take() {
            Some((block, count)) if block == access.block => count,
            _ => self.ghosts.take(access.block).map_or(0, |(_, count)| count),
        };
        let entry = &mut self.entries[slot.index()];
        entry.block = access.block;
        entry.count = count.saturating_add(1);
        self.push(slot);
    }

    fn remove(&mut self, slot: Slot) {
        self.queues.unlink(self.entries[slot.index()].queue as usize, slot.0);
    }

    fn renamed(&mut self, slot: Slot, access: Access) {
        self.ghosts.take(access.block);
        self.entries[slot.index()].block = access.block;
    }

    fn moved(&mut self, from: Slot, to: Slot, _: Access) {
        self.entries[to.index()] = self.entries[from.index()];
        self.queues.substitute(from.0, to.0);
    }

    fn resize(&mut self, capacity: usize) {
        self.ghosts_max = 4 * capacity;
        while self.ghosts.len(0) > self.ghosts_max {
            self.ghosts.drop_back(0);
        }
        self.queues.grow(capacity);
        self.entries.resize(capacity.max(self.entries.len()), Entry::default());
    }
}
