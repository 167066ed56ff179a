//! The holder of each slot: policy, free slots and blocks being written, under one lock.
//!
//! Hits arrive in batches ([`super::recent`]). No I/O is done under the lock.
//!
//! ```text
//!          fetch                published
//!   free ---------> filling ------------------> valid
//!    ^  \                |  doomed               |  ^
//!    |   \  write        v                 write |  | written
//!    |    `---------> (dropped)                  v  |
//!    |                   ^  doomed or failed    writing
//!    '-------------------'----------------------'
//! ```
//! * One reader fetches a block (`Filling`); the others wait.
//! * A write makes the slot `Writing`, or *dooms* it if it is being fetched, since the fetched
//!   bytes may be older. A block without a slot is entered in `written`, which delays its fetch. So
//!   a write that races a fetch never leaves the old block behind.
//! * Writes of one cached block wait for each other, in ascending order of blocks, so there is no
//!   deadlock.
//! * A slot in use is not given to another block. If the policy names it as victim, it is doomed,
//!   and the policy is asked again.
//! * A doomed dirty slot (`dirty.rs`) stays readable until the slow device has its bytes. A dirty
//!   block that is written again gets another slot, as its bytes are the only copy. It stays
//!   readable, and enters `written`, so that no other thread takes it.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::Bypass;
use super::budget::Budget;
use super::dirty::{Dirty, Version};
use super::index::{FreeSlots, Index, State, Word};
use super::record::{Pending, Record, SlotContent};
use super::request::Request;
use super::stats::RelationStats;
use crate::planted::{CacheBug, planted};
use crate::policy::{Access, Policy, Relation, Slot};

/// Most victims in use before a block is not admitted.
const VICTIMS_MAX: usize = 8;

/// Most relations with counters of their own.
const RELATIONS_MAX: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Slot(u32, Word),
    /// Being written without a slot.
    BeingWritten,
    Nothing,
}

pub(super) struct Placement {
    policy: Box<dyn Policy>,
    capacity: u32,
    free: FreeSlots,
    /// Writers per block without a slot.
    written: HashMap<u64, u32, FixedState>,
    /// Direct writers per block that must not become dirty.
    kept_clean: HashMap<u64, u32, FixedState>,
    pending: Pending,
    evictions: u64,
    budget: Budget,
    dirty: Dirty,
    relations: Option<HashMap<Option<Relation>, RelationStats, FixedState>>,
}

impl Placement {
    pub fn new(policy: Box<dyn Policy>, capacity: u32) -> Self {
        Self {
            policy,
            capacity,
            free: FreeSlots::new(),
            written: HashMap::default(),
            kept_clean: HashMap::default(),
            pending: Pending::default(),
            evictions: 0,
            budget: Budget::default(),
            dirty: Dirty::default(),
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

    pub fn account(&mut self, by_relation: bool, budget: Budget) {
        self.relations = by_relation.then(HashMap::default);
        self.budget = budget;
    }

    pub fn count(&mut self, relation: Option<Relation>, add: impl FnOnce(&mut RelationStats)) {
        if let Some(relations) = &mut self.relations {
            let is_known = relations.len() < RELATIONS_MAX || relations.contains_key(&relation);
            let relation = relation.filter(|_| is_known);
            add(relations.entry(relation).or_insert(RelationStats { relation, ..RelationStats::default() }));
        }
    }

    pub fn relations(&self) -> Vec<RelationStats> {
        let mut relations: Vec<_> = self.relations.iter().flat_map(|all| all.values().copied()).collect();
        relations.sort_unstable_by_key(|stats| stats.relation);
        relations
    }

    pub fn resize(&mut self, index: &Index, capacity: u32) {
        self.capacity = capacity;
        self.policy.resize(capacity as usize);
        self.shrink(index);
    }

    pub fn dirty(&mut self) -> &mut Dirty {
        &mut self.dirty
    }

    pub fn pending(&mut self) -> &mut Pending {
        &mut self.pending
    }

    /// Restores blocks and checksums to their slots, which must all be free.
    pub fn restore(&mut self, index: &Index, found: &[Option<SlotContent>]) {
        // Blocks never hit come first, so that they leave first.
        for is_hit in [false, true] {
            for (slot, content) in (0..).zip(found) {
                if let Some(content) = content
                    && content.is_hit == is_hit
                    && index.get(content.block).is_none()
                {
                    index.link(slot, content.block, State::Filling);
                    index.set_claimed(slot, content.checksum);
                    if is_hit {
                        index.set_hit(slot);
                    }
                    self.policy.restore(Access::read(content.block), Slot(slot), is_hit);
                }
            }
        }
        self.free = FreeSlots::restore(index);
        self.shrink(index);
    }

    fn shrink(&mut self, index: &Index) {
        for _ in self.capacity..self.free.used() {
            let Some(Slot(victim)) = self.policy.victim(Access::read(0)) else { return };
            self.evictions += 1;
            let word = index.word(victim);
            match word.state() {
                State::Valid if !word.is_dirty() => self.empty(index, victim),
                _ => index.doom(victim),
            }
        }
    }

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

    /// Reports hits whose slots still hold the same block.
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

    /// Gives a block a slot in `state`, if policy, budget and slots allow.
    pub fn admit(
        &mut self,
        index: &Index,
        access: Access,
        state: State,
        block_bytes: u64,
        request: &mut Request,
    ) -> Result<u32, Bypass> {
        if !self.policy.admits(access) {
            return Err(Bypass::Policy);
        }
        if !request.affords(|| self.budget.affords(block_bytes)) {
            return Err(Bypass::Budget);
        }
        let slot = self.slot(index, access, request)?;
        self.count(access.relation, |stats| stats.admissions += 1);
        index.link(slot, access.block, state);
        self.policy.insert(access, Slot(slot));
        Ok(slot)
    }

    fn slot(&mut self, index: &Index, access: Access, request: &mut Request) -> Result<u32, Bypass> {
        if let Some(slot) = self.free.take(index, self.capacity) {
            return Ok(slot);
        }
        for _ in 0..VICTIMS_MAX {
            let Some(Slot(victim)) = self.policy.victim(access) else { break };
            let word = index.word(victim);
            if word.state() == State::Valid && !word.is_dirty() {
                self.pending.left(victim, word.block(), index.checksum(victim));
                index.unlink(victim);
                self.evictions += 1;
                return Ok(victim);
            }
            if request.gives_up(victim) {
                index.unlink(victim);
                self.evictions += 1;
                return Ok(victim);
            }
            index.doom(victim);
            if planted(CacheBug::EvictDirty) && word.state() == State::Valid {
                self.remove(index, victim);
            }
        }
        Err(Bypass::NoSlot)
    }

    /// Gives the slot of block `from` to the block of `access`; returns success.
    ///
    /// The slot must be valid, clean and have this checksum. The new block must have no slot and no
    /// writer.
    pub fn rename(&mut self, index: &Index, from: u64, access: Access, checksum: u32) -> bool {
        let Some((slot, word)) = index.get(from) else { return false };
        let can_move = word.state() == State::Valid
            && !word.is_doomed()
            && !word.is_dirty()
            && index.checksum(slot) == checksum;
        if !can_move || self.find(index, access.block) != Found::Nothing {
            return false;
        }
        if !planted(CacheBug::ForgetMoved) {
            self.pending.left(slot, from, checksum);
        }
        index.rename(slot, access.block);
        self.pending.holds(
            slot,
            SlotContent { block: access.block, checksum, is_hit: word.is_hit(), epoch: 0 },
            checksum,
        );
        self.policy.renamed(Slot(slot), access);
        true
    }

    pub fn remove(&mut self, index: &Index, slot: u32) {
        let word = index.word(slot);
        if !word.is_doomed() {
            self.policy.remove(Slot(slot));
        }
        if !word.is_dirty() {
            return self.empty(index, slot);
        }
        for version in self.dirty.forget(word.block()) {
            self.pending.left(version, word.block(), index.checksum(version));
        }
        // If it is settling, the journal says that it holds the block. A second record is harmless.
        self.pending.left(slot, word.block(), index.checksum(slot));
        index.unlink(slot);
    }

    /// Marks the block in `slot`, which is in use, to leave afterwards.
    pub fn doom(&mut self, index: &Index, slot: u32) {
        if !index.word(slot).is_doomed() {
            self.policy.remove(Slot(slot));
            index.doom(slot);
        }
    }

    /// Ends a fetch or write of `slot`; without a checksum it is freed.
    ///
    /// Returns whether the block stays.
    pub fn finish(&mut self, index: &Index, slot: u32, checksum: Option<u32>) -> bool {
        let doomed = index.word(slot).is_doomed();
        match checksum {
            Some(checksum) if !doomed => {
                let (word, before) = (index.word(slot), index.checksum(slot));
                let content = SlotContent { block: word.block(), checksum, is_hit: word.is_hit(), epoch: 0 };
                self.pending.holds(slot, content, before);
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

    pub fn is_entered(&self, block: u64) -> bool {
        self.written.contains_key(&block)
    }

    pub fn spare(&mut self, index: &Index, access: Access) -> Result<u32, Bypass> {
        self.slot(index, access, &mut Request::default())
    }

    /// Links the spare `slot` to a block about to become dirty, without asking the policy.
    pub fn admit_dirty(&mut self, index: &Index, access: Access, slot: u32) {
        self.count(access.relation, |stats| stats.admissions += 1);
        index.link(slot, access.block, State::Writing);
        self.policy.insert(access, Slot(slot));
    }

    pub fn give_back(&mut self, index: &Index, slot: u32) {
        self.free.give_back(index, slot);
    }

    pub fn replace(&mut self, index: &Index, slot: u32, access: Access) {
        self.end_write(access.block);
        let found = index.get(access.block);
        match found {
            Some((before, word)) if !word.is_doomed() => {
                self.policy.moved(Slot(before), Slot(slot), access);
            }
            // The block has left meanwhile, perhaps for this very slot.
            _ => self.policy.insert(access, Slot(slot)),
        }
        if let Some((before, word)) = found {
            match word.is_dirty() {
                true => {
                    // `Dirty` knows the slot, but the journal may say that a settling one holds the
                    // block.
                    if self.dirty.epoch(before).is_none() && !planted(CacheBug::KeepSettling) {
                        self.pending.left(before, access.block, index.checksum(before));
                    }
                    index.unlink(before);
                }
                false => self.empty(index, before),
            }
        }
        index.link(slot, access.block, State::Writing);
        if found.is_some_and(|(_, word)| word.is_hit()) {
            index.set_hit(slot);
        }
    }

    #[cfg(test)]
    pub fn set_policy(&mut self, policy: Box<dyn Policy>) {
        self.policy = policy;
    }

    /// Makes `slot` the dirty version of its block in the open epoch.
    ///
    /// Returns an unneeded slot, which the caller frees once the journal knows `slot`.
    pub fn publish_dirty(&mut self, index: &Index, slot: u32, checksum: u32) -> Option<u32> {
        let (word, before) = (index.word(slot), index.checksum(slot));
        index.set_dirty(slot, checksum);
        let unneeded = self.dirty.add(word.block(), slot);
        let epoch = self.dirty.open();
        let content = SlotContent { block: word.block(), checksum, is_hit: word.is_hit(), epoch };
        self.pending.holds(slot, content, before);
        if let Some(unneeded) = unneeded {
            self.pending.left(unneeded, word.block(), index.checksum(unneeded));
        }
        unneeded
    }

    /// Records that the slow device has an epoch durably; returns its number of blocks.
    pub fn epoch_written(&mut self, index: &Index, epoch: u32) -> usize {
        let versions = self.dirty.written(epoch);
        for &(block, slot) in &versions {
            match index.get(block) {
                Some((live, word)) if live == slot => {
                    let content = SlotContent {
                        block,
                        checksum: index.checksum(slot),
                        is_hit: word.is_hit(),
                        epoch: 0,
                    };
                    self.pending.holds(slot, content, content.checksum);
                }
                _ => self.pending.left(slot, block, index.checksum(slot)),
            }
        }
        versions.len()
    }

    /// Ends settling: the slots become clean, or free if unneeded.
    pub fn settled(&mut self, index: &Index, versions: &[Version]) {
        for &(block, slot) in versions {
            self.dirty.settled((block, slot));
            match index.get(block) {
                Some((live, word)) if live == slot => {
                    index.set_clean(slot);
                    if word.is_doomed() {
                        self.empty(index, slot);
                    }
                }
                _ => self.free.give_back(index, slot),
            }
        }
        if self.dirty.begin_anew() {
            self.pending.durable(0);
        }
    }

    /// Records of overwritten dirty versions, which the index lacks, and of durable epochs.
    pub fn overwritten(&self, index: &Index) -> Vec<Record> {
        let is_live = |block, slot| index.get(block).is_some_and(|(live, _)| live == slot);
        let versions = self.dirty.versions().filter(|&(_, (block, slot))| !is_live(block, slot));
        let records = versions.map(|(epoch, (block, slot))| {
            let content = SlotContent { block, checksum: index.checksum(slot), is_hit: false, epoch };
            Record::Holds { slot, content }
        });
        records
            .chain((!self.dirty.is_empty()).then_some(Record::Durable { epoch: self.dirty.durable() }))
            .collect()
    }

    pub fn is_held(&self, index: &Index, block: u64) -> bool {
        self.is_entered(block) || index.get(block).is_some_and(|(_, word)| word.state() == State::Writing)
    }

    pub fn keep_clean(&mut self, block: u64) {
        enter(&mut self.kept_clean, block);
    }

    pub fn end_keep_clean(&mut self, block: u64) {
        leave(&mut self.kept_clean, block);
    }

    pub fn is_kept_clean(&self, block: u64) -> bool {
        self.kept_clean.contains_key(&block)
    }

    pub fn begin_write(&mut self, block: u64) {
        enter(&mut self.written, block);
    }

    pub fn end_write(&mut self, block: u64) {
        leave(&mut self.written, block);
    }
}

fn enter(blocks: &mut HashMap<u64, u32, FixedState>, block: u64) {
    *blocks.entry(block).or_insert(0) += 1;
}

fn leave(blocks: &mut HashMap<u64, u32, FixedState>, block: u64) {
    if let Some(count) = blocks.get_mut(&block) {
        *count -= 1;
        if *count == 0 {
            blocks.remove(&block);
        }
    }
}
