//! One simulated cache: policy, map from blocks to slots, and counts.
//!
//! Every request is a lookup of one block. The trace's multi-block requests are admitted as one
//! ([`Access::continues`]). A written block is dirty until eviction writes it back, unless the
//! cache writes through. Written blocks that are not admitted go to the store at once. The loop is
//! compiled per policy, and blocks are dense numbers, so a hit is an array access plus the policy's
//! work.

use crate::policy::{Access, Hint, Policy, Relation, Slot};

use super::chunk::{Chunk, Interned, Mark};
use super::counts::Counts;
use super::lane::Body;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Held {
    number: u32,
    is_dirty: bool,
}

pub(super) struct Cache<P> {
    policy: P,
    capacity: usize,
    /// Slots by block number.
    slots: Vec<u32>,
    /// Blocks by slot. Slots are assigned in order, then only from victims.
    held: Vec<Held>,
    writes_through: bool,
    counts: Counts,
}

impl<P: Policy> Cache<P> {
    pub(super) fn new(policy: P, capacity: usize) -> Cache<P> {
        Cache {
            policy,
            capacity,
            slots: Vec::new(),
            held: Vec::with_capacity(capacity),
            writes_through: false,
            counts: Counts::default(),
        }
    }

    /// Sets whether writes go to the store at once.
    pub(super) fn writes_through(mut self, writes_through: bool) -> Cache<P> {
        self.writes_through = writes_through;
        self
    }

    /// Passes relation sizes to the policy.
    pub(super) fn sizes(mut self, sizes: &[(u32, u64)]) -> Cache<P> {
        for (relation, blocks) in sizes {
            self.policy.hint(Hint::RelationSize { relation: Relation(*relation), blocks: *blocks });
        }
        self
    }

    #[inline]
    fn request(&mut self, request: Interned, has_relations: bool) {
        let Interned { number, block, write, continues } = request;
        let access = match has_relations {
            true => Access {
                block: u64::from(number),
                offset: block & u64::from(u32::MAX),
                relation: Some(Relation((block >> 32) as u32)),
                write,
                read_ahead: false,
                continues,
            },
            false => Access {
                block: u64::from(number),
                offset: block,
                relation: None,
                write,
                read_ahead: false,
                continues,
            },
        };
        let slot = self.slots[number as usize];
        if slot != NONE {
            self.counts.hits += 1;
            if write {
                self.counts.write_hits += 1;
                self.held[slot as usize].is_dirty = !self.writes_through;
                self.counts.written_through += u64::from(self.writes_through);
            }
            self.policy.hit(Slot(slot), access);
        } else {
            self.miss(access, number);
        }
    }

    #[inline]
    fn miss(&mut self, access: Access, number: u32) {
        self.counts.write_misses += u64::from(access.write);
        self.policy.miss(access);
        if !self.policy.admits(access) {
            return;
        }
        let held = Held { number, is_dirty: access.write && !self.writes_through };
        let slot = if self.held.len() < self.capacity {
            self.held.push(held);
            self.held.len() as u32 - 1
        } else {
            let Some(Slot(slot)) = self.policy.victim(access) else { return };
            let victim = std::mem::replace(&mut self.held[slot as usize], held);
            self.slots[victim.number as usize] = NONE;
            self.counts.evictions += 1;
            self.counts.write_backs += u64::from(victim.is_dirty);
            slot
        };
        self.slots[number as usize] = slot;
        self.counts.admissions += 1;
        self.counts.write_admissions += u64::from(access.write);
        self.counts.written_through += u64::from(access.write && self.writes_through);
        self.policy.insert(access, Slot(slot));
    }
}

impl<P: Policy> Body for Cache<P> {
    fn grow(&mut self, footprint: usize) {
        if self.slots.len() < footprint {
            self.slots.resize(footprint, NONE);
        }
    }

    fn requests(&mut self, chunk: &Chunk, range: std::ops::Range<usize>) {
        self.counts.requests += range.len() as u64;
        match chunk.has_relations {
            true => chunk.requests(range).for_each(|request| self.request(request, true)),
            false => chunk.requests(range).for_each(|request| self.request(request, false)),
        }
    }

    fn mark(&mut self, mark: &Mark) {
        match mark {
            Mark::Current(_) => {}
            Mark::Ends(query) => self.policy.hint(Hint::QueryEnds { query: u64::from(*query) }),
            Mark::Arrives(query) => {
                let relations: Vec<Relation> = query.relations.iter().copied().map(Relation).collect();
                let hint = Hint::QueryBegins { query: u64::from(query.number), relations: &relations };
                self.policy.hint(hint);
            }
        }
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn dirty(&self) -> u64 {
        self.held.iter().filter(|held| held.is_dirty).count() as u64
    }
}
