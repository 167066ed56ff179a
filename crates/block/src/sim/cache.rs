//! One cache: a policy, the map from blocks to slots that it is driven with, and what happened.
//!
//! Every request is a look-up of one block; those that a trace asks for together are told as one ([`Access::continues`]), and are
//! admitted together by an admission policy. A hit updates the policy; a miss is admitted unless the policy refuses. A written block
//! that is in the cache is dirty until it leaves, which is a write-back, unless the cache writes through; one that is not
//! admitted goes to the store at once. The loop is compiled for each policy by itself and knows blocks by their interned numbers, so a hit is an
//! element of an array and the policy's own work.

use crate::policy::{Access, Hint, Policy, Relation, Slot};

use super::chunk::{Chunk, Interned, Mark};
use super::lane::Body;

/// The mark of a block that is not in the cache.
const NONE: u32 = u32::MAX;

/// What happened in a cache, counted in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests: look-ups of one block each.
    pub requests: u64,
    /// Requests whose block was there.
    pub hits: u64,
    /// Those among the hits that wrote.
    pub write_hits: u64,
    /// Misses that wrote.
    pub write_misses: u64,
    /// Blocks that were put into the cache.
    pub admissions: u64,
    /// Those among the admissions that were written, not read.
    pub write_admissions: u64,
    /// Blocks that left to make room.
    pub evictions: u64,
    /// Those among the evicted that were dirty and had to be written to the store.
    pub write_backs: u64,
    /// Writes that went to the cache and to the store at once, where the cache writes through.
    pub written_through: u64,
    /// Misses of a direct-mapped cache whose block an LRU cache of the same size would have had.
    pub conflict_misses: u64,
}

impl Counts {
    /// Requests whose block was not there.
    pub fn misses(&self) -> u64 {
        self.requests - self.hits
    }

    /// Misses for each request; 0 where there were none.
    pub fn miss_ratio(&self) -> f64 {
        match self.requests {
            0 => 0.0,
            requests => self.misses() as f64 / requests as f64,
        }
    }

    /// Blocks written to the cache's device: what was admitted, and hits that wrote.
    pub fn device_writes(&self) -> u64 {
        self.admissions + self.write_hits
    }

    /// Blocks moved between the cache and the store, in both directions: reads that were admitted, and write-backs. A
    /// block that is admitted because it is written comes from above and moves only when it leaves. This is what
    /// HeuristicDB calls the migrated data (section 6).
    pub fn moved(&self) -> u64 {
        self.admissions - self.write_admissions + self.write_backs
    }

    /// What happened since `earlier`.
    pub(super) fn since(&self, earlier: &Counts) -> Counts {
        Counts {
            requests: self.requests - earlier.requests,
            hits: self.hits - earlier.hits,
            write_hits: self.write_hits - earlier.write_hits,
            write_misses: self.write_misses - earlier.write_misses,
            admissions: self.admissions - earlier.admissions,
            write_admissions: self.write_admissions - earlier.write_admissions,
            evictions: self.evictions - earlier.evictions,
            write_backs: self.write_backs - earlier.write_backs,
            written_through: self.written_through - earlier.written_through,
            conflict_misses: self.conflict_misses - earlier.conflict_misses,
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(mut self, more: &Counts) -> Counts {
        self.requests += more.requests;
        self.hits += more.hits;
        self.write_hits += more.write_hits;
        self.write_misses += more.write_misses;
        self.admissions += more.admissions;
        self.write_admissions += more.write_admissions;
        self.evictions += more.evictions;
        self.write_backs += more.write_backs;
        self.written_through += more.written_through;
        self.conflict_misses += more.conflict_misses;
        self
    }
}

/// A slot of the cache.
#[derive(Clone, Copy)]
struct Held {
    number: u32,
    is_dirty: bool,
}

/// A cache that is being simulated.
pub(super) struct Cache<P> {
    policy: P,
    capacity: usize,
    /// The slot of each block, by its number.
    slots: Vec<u32>,
    /// What each slot holds. Slots are given out in order, and then only those of victims.
    held: Vec<Held>,
    /// Written blocks go to the store at once, and never are dirty.
    writes_through: bool,
    counts: Counts,
}

impl<P: Policy> Cache<P> {
    /// An empty cache of `capacity` blocks.
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

    /// Has written blocks go to the store at once.
    pub(super) fn writes_through(mut self, writes_through: bool) -> Cache<P> {
        self.writes_through = writes_through;
        self
    }

    /// Tells the policy how large relations are.
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
