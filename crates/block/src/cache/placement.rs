//! Who may have a slot, and who has one: the policy, the free slots, and what is being written, behind one lock.
//!
//! Hits do not come here one by one: they are reported together ([`super::recent`]). Everything that does come here, a
//! miss or a write, also waits for a device, which takes far longer than the lock is held; no I/O is done
//! under it.
//!
//! # The course of a slot
//! ```text
//!          fetch                published
//!   free ---------> filling ------------------> valid
//!    ^  \                |  doomed               |  ^
//!    |   \  write        v                 write |  | written
//!    |    `---------> (dropped)                  v  |
//!    |                   ^  doomed or failed    writing
//!    '-------------------'----------------------'
//! ```
//! * A block is fetched by one reader; the others wait for it (`Filling`).
//! * Who writes a block first makes its slot `Writing`, or *dooms* it if it is being fetched: what was fetched may be
//!   older than what is being written, so it is thrown away. A block without a slot is entered in `written`, and no
//!   fetch of it begins before the write is over. So a write that races a fetch never leaves the old block behind.
//! * Writes of one block that is cached wait for each other, in ascending order of blocks, so nobody waits in a circle.
//! * A slot in `Filling` or `Writing` is not given up to another block. A policy that names it as its victim has forgotten it; it
//!   is doomed, and the policy is asked for another.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::Bypass;
use super::budget::Budget;
use super::index::{FreeSlots, Index, State, Word};
use super::journal::{Pending, Place};
use super::stats::RelationStats;
use crate::planted::{CacheBug, planted};
use crate::policy::{Access, Policy, Relation, Slot};

/// How many slots in use a policy may name as victims before the block goes without.
const VICTIMS_MAX: usize = 8;

/// Relations that are counted by themselves.
const RELATIONS_MAX: usize = 4096;

/// What there is of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It has a slot, which is valid, being filled or being written.
    Slot(u32, Word),
    /// It has none and is being written.
    BeingWritten,
    /// It has none.
    Nothing,
}

/// What the lock guards.
pub(super) struct Placement {
    policy: Box<dyn Policy>,
    capacity: u32,
    free: FreeSlots,
    /// Blocks that have no slot and are being written, and by how many.
    written: HashMap<u64, u32, FixedState>,
    /// What the journal is to be told.
    pending: Pending,
    /// Blocks evicted so far.
    evictions: u64,
    budget: Budget,
    /// What happened to blocks by relation, if that is counted.
    relations: Option<HashMap<Option<Relation>, RelationStats, FixedState>>,
}

impl Placement {
    pub fn new(policy: Box<dyn Policy>, capacity: u32) -> Self {
        Self {
            policy,
            capacity,
            free: FreeSlots::new(),
            written: HashMap::default(),
            pending: Pending::default(),
            evictions: 0,
            budget: Budget::default(),
            relations: None,
        }
    }

    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    pub fn used(&self) -> u32 {
        self.free.used()
    }

    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Counts by relation if `by_relation`, and lets nothing in that `budget` does not afford.
    pub fn account(&mut self, by_relation: bool, budget: Budget) {
        self.relations = by_relation.then(HashMap::default);
        self.budget = budget;
    }

    /// Bytes are written to the fast device.
    pub fn spend(&mut self, bytes: u64) {
        self.budget.spend(bytes);
    }

    /// Adds to what happened to the blocks of a relation.
    pub fn count(&mut self, relation: Option<Relation>, add: impl FnOnce(&mut RelationStats)) {
        if let Some(relations) = &mut self.relations {
            let is_known = relations.len() < RELATIONS_MAX || relations.contains_key(&relation);
            let relation = relation.filter(|_| is_known);
            add(relations.entry(relation).or_insert(RelationStats { relation, ..RelationStats::default() }));
        }
    }

    /// What happened by relation, in their order.
    pub fn relations(&self) -> Vec<RelationStats> {
        let mut relations: Vec<_> = self.relations.iter().flat_map(|all| all.values().copied()).collect();
        relations.sort_unstable_by_key(|stats| stats.relation);
        relations
    }

    /// Changes the capacity; what is above it leaves.
    pub fn resize(&mut self, index: &Index, capacity: u32) {
        self.capacity = capacity;
        self.policy.resize(capacity as usize);
        self.shrink(index);
    }

    pub fn pending(&mut self) -> &mut Pending {
        &mut self.pending
    }

    /// Gives slots the blocks, with their checksums, that they are said to hold. All are free before.
    pub fn restore(&mut self, index: &Index, found: &[Option<Place>]) {
        // Those that were never hit first, so that they are the first to leave.
        for is_hit in [false, true] {
            for (slot, place) in (0..).zip(found) {
                if let Some(place) = place
                    && place.is_hit == is_hit
                    && index.get(place.block).is_none()
                {
                    index.link(slot, place.block, State::Filling);
                    index.set_claimed(slot, place.checksum);
                    if is_hit {
                        index.set_hit(slot);
                    }
                    self.policy.restore(Access::read(place.block), Slot(slot), is_hit);
                }
            }
        }
        self.free = FreeSlots::restore(index);
        self.shrink(index);
    }

    /// Evicts what is above the capacity; what is in use leaves later.
    fn shrink(&mut self, index: &Index) {
        for _ in self.capacity..self.free.used() {
            let Some(Slot(victim)) = self.policy.victim(Access::read(0)) else { return };
            self.evictions += 1;
            match index.word(victim).state() {
                State::Valid => self.empty(index, victim),
                _ => index.doom(victim),
            }
        }
    }

    /// Takes a slot, which the policy does not know any more, away from its block.
    fn empty(&mut self, index: &Index, slot: u32) {
        self.pending.left(slot, index.word(slot).block(), index.checksum(slot));
        index.unlink(slot);
        self.free.give_back(index, slot);
    }

    pub fn policy(&mut self) -> &mut dyn Policy {
        &mut *self.policy
    }

    pub fn find(&self, index: &Index, block: u64) -> Found {
        match index.get(block) {
            Some((slot, word)) => Found::Slot(slot, word),
            None if self.written.contains_key(&block) => Found::BeingWritten,
            None => Found::Nothing,
        }
    }

    /// Reports hits, unless their slots have other blocks by now.
    pub fn hits(&mut self, index: &Index, hits: &mut Vec<(Slot, Access)>) {
        hits.retain(|(slot, access)| {
            let word = index.word(slot.0);
            let is_there = word.block() == access.block && word.state() != State::Free && !word.is_doomed();
            if is_there && !word.is_hit() {
                index.set_hit(slot.0);
            }
            is_there
        });
        if self.relations.is_some() {
            hits.iter().for_each(|(_, access)| self.count(access.relation, |stats| stats.hits += 1));
        }
        self.policy.hits(hits);
        hits.clear();
    }

    /// A look-up of a block without a slot: gives it one in `state`, if the policy and the slots allow.
    pub fn admit(
        &mut self,
        index: &Index,
        access: Access,
        state: State,
        block_bytes: u64,
    ) -> Result<u32, Bypass> {
        if !self.policy.admits(access) {
            return Err(Bypass::Policy);
        }
        if !self.budget.affords(block_bytes) {
            return Err(Bypass::Budget);
        }
        let slot = self.slot(index, access)?;
        self.count(access.relation, |stats| stats.admissions += 1);
        index.link(slot, access.block, state);
        self.policy.insert(access, Slot(slot));
        Ok(slot)
    }

    fn slot(&mut self, index: &Index, access: Access) -> Result<u32, Bypass> {
        if let Some(slot) = self.free.take(index, self.capacity) {
            return Ok(slot);
        }
        for _ in 0..VICTIMS_MAX {
            let Some(Slot(victim)) = self.policy.victim(access) else { break };
            if index.word(victim).state() == State::Valid {
                self.pending.left(victim, index.word(victim).block(), index.checksum(victim));
                index.unlink(victim);
                self.evictions += 1;
                return Ok(victim);
            }
            index.doom(victim);
        }
        Err(Bypass::NoSlot)
    }

    /// The slot of block `from`, if it is valid and its bytes have this checksum, is from now on that of the block of `access`, if
    /// that has none and nobody is writing it. Says whether it is.
    pub fn rename(&mut self, index: &Index, from: u64, access: Access, checksum: u32) -> bool {
        let Some((slot, word)) = index.get(from) else { return false };
        let can_move = word.state() == State::Valid && !word.is_doomed() && index.checksum(slot) == checksum;
        if !can_move || self.find(index, access.block) != Found::Nothing {
            return false;
        }
        if !planted(CacheBug::ForgetMoved) {
            self.pending.left(slot, from, checksum);
        }
        index.rename(slot, access.block);
        self.pending.holds(slot, Place { block: access.block, checksum, is_hit: word.is_hit() }, checksum);
        self.policy.renamed(Slot(slot), access);
        true
    }

    /// The block in `slot`, which is valid, leaves.
    pub fn remove(&mut self, index: &Index, slot: u32) {
        self.policy.remove(Slot(slot));
        self.empty(index, slot);
    }

    /// The block in `slot`, which is in use, leaves when that is over.
    pub fn doom(&mut self, index: &Index, slot: u32) {
        if !index.word(slot).is_doomed() {
            self.policy.remove(Slot(slot));
            index.doom(slot);
        }
    }

    /// What was done with `slot` is over: it holds its block, whose checksum is given, or nothing of use. Says whether
    /// the block stays.
    pub fn finish(&mut self, index: &Index, slot: u32, checksum: Option<u32>) -> bool {
        let doomed = index.word(slot).is_doomed();
        match checksum {
            Some(checksum) if !doomed => {
                let (word, before) = (index.word(slot), index.checksum(slot));
                let place = Place { block: word.block(), checksum, is_hit: word.is_hit() };
                self.pending.holds(slot, place, before);
                index.set_valid(slot, checksum);
                true
            }
            _ => {
                if !doomed {
                    self.policy.remove(Slot(slot));
                }
                self.empty(index, slot);
                false
            }
        }
    }

    /// A write of a block without a slot begins.
    pub fn begin_write(&mut self, block: u64) {
        *self.written.entry(block).or_insert(0) += 1;
    }

    /// It is over.
    pub fn end_write(&mut self, block: u64) {
        if let Some(count) = self.written.get_mut(&block) {
            *count -= 1;
            if *count == 0 {
                self.written.remove(&block);
            }
        }
    }
}
