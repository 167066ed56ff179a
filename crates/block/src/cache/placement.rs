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
//! * Neither is one that is dirty (`dirty.rs`): it is doomed, too, and can still be read until the slow device has it. A dirty block that is
//!   written again gets another slot, because the bytes of the one it has are the only copy; it stays readable meanwhile, and is
//!   entered in `written`, so that nobody else takes hold of the block.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::Bypass;
use super::budget::Budget;
use super::dirty::{Dirty, Version};
use super::index::{FreeSlots, Index, State, Word};
use super::journal::{Pending, Place, Record};
use super::request::Request;
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
    /// Blocks that are being written to the slow device directly, where others are written back, and by how many.
    kept_clean: HashMap<u64, u32, FixedState>,
    /// What the journal is to be told.
    pending: Pending,
    /// Blocks evicted so far.
    evictions: u64,
    budget: Budget,
    dirty: Dirty,
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

    /// Counts by relation if `by_relation`, and lets nothing in that `budget` does not afford.
    pub fn account(&mut self, by_relation: bool, budget: Budget) {
        self.relations = by_relation.then(HashMap::default);
        self.budget = budget;
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

    pub fn dirty(&mut self) -> &mut Dirty {
        &mut self.dirty
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
            let word = index.word(victim);
            match word.state() {
                State::Valid if !word.is_dirty() => self.empty(index, victim),
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
            if word.state() == State::Valid && (!word.is_dirty() || planted(CacheBug::EvictDirty)) {
                if word.is_dirty() {
                    self.dirty.lose(word.block());
                }
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
        }
        Err(Bypass::NoSlot)
    }

    /// The slot of block `from`, if it is valid and its bytes have this checksum, is from now on that of the block of `access`, if
    /// that has none and nobody is writing it. Says whether it is.
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
            Place { block: access.block, checksum, is_hit: word.is_hit(), epoch: 0 },
            checksum,
        );
        self.policy.renamed(Slot(slot), access);
        true
    }

    /// The block in `slot`, which is valid, leaves.
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
        // If it is settling the journal says that it holds the block. To say so twice does no harm.
        self.pending.left(slot, word.block(), index.checksum(slot));
        index.unlink(slot);
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
                let place = Place { block: word.block(), checksum, is_hit: word.is_hit(), epoch: 0 };
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

    /// Whether somebody has entered a write of this block.
    pub fn is_entered(&self, block: u64) -> bool {
        self.written.contains_key(&block)
    }

    /// A slot for bytes that no look-up may find yet.
    pub fn spare(&mut self, index: &Index, access: Access) -> Result<u32, Bypass> {
        self.slot(index, access, &mut Request::default())
    }

    /// `slot`, which was spare, is for `access`, which is to be written and to become dirty, whatever the policy would admit.
    pub fn admit_dirty(&mut self, index: &Index, access: Access, slot: u32) {
        self.count(access.relation, |stats| stats.admissions += 1);
        index.link(slot, access.block, State::Writing);
        self.policy.insert(access, Slot(slot));
    }

    /// A slot that was spare is free again.
    pub fn give_back(&mut self, index: &Index, slot: u32) {
        self.free.give_back(index, slot);
    }

    /// `slot`, which was spare, takes the place of what holds the block now. Gives the slot of that, if its bytes are those of the open
    /// epoch, which nobody needs when the journal knows of the new ones.
    pub fn replace(&mut self, index: &Index, slot: u32, access: Access) {
        self.end_write(access.block);
        let found = index.get(access.block);
        match found {
            Some((before, word)) if !word.is_doomed() => {
                self.policy.moved(Slot(before), Slot(slot), access);
            }
            // It has left meanwhile, or had to leave for this very slot.
            _ => self.policy.insert(access, Slot(slot)),
        }
        if let Some((before, word)) = found {
            match word.is_dirty() {
                true => {
                    // The table knows it; but if it is settling the journal says that it holds the block, clean.
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

    /// Has another policy decide, in an empty cache.
    #[cfg(test)]
    pub fn set_policy(&mut self, policy: Box<dyn Policy>) {
        self.policy = policy;
    }

    /// `slot` holds bytes that the slow device does not have. Gives a slot that nobody needs any more, and that is to be given back once
    /// the journal knows of this one.
    pub fn publish_dirty(&mut self, index: &Index, slot: u32, checksum: u32) -> Option<u32> {
        let (word, before) = (index.word(slot), index.checksum(slot));
        index.set_dirty(slot, checksum);
        let unneeded = self.dirty.add(word.block(), slot);
        let epoch = self.dirty.open();
        let place = Place { block: word.block(), checksum, is_hit: word.is_hit(), epoch };
        self.pending.holds(slot, place, before);
        if let Some(unneeded) = unneeded {
            self.pending.left(unneeded, word.block(), index.checksum(unneeded));
        }
        unneeded
    }

    /// The slow device has an epoch durably. Gives the number of its blocks.
    pub fn epoch_written(&mut self, index: &Index, epoch: u32) -> usize {
        let versions = self.dirty.written(epoch);
        for &(block, slot) in &versions {
            match index.get(block) {
                Some((live, word)) if live == slot => {
                    let place =
                        Place { block, checksum: index.checksum(slot), is_hit: word.is_hit(), epoch: 0 };
                    self.pending.holds(slot, place, place.checksum);
                }
                _ => self.pending.left(slot, block, index.checksum(slot)),
            }
        }
        versions.len()
    }

    /// What was settling is settled: the slots are clean, or free if nobody needs them.
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

    /// Records of dirty versions that were written again since, which the index does not know, and of what is durable of them.
    pub fn overwritten(&self, index: &Index) -> Vec<Record> {
        let is_live = |block, slot| index.get(block).is_some_and(|(live, _)| live == slot);
        let versions = self.dirty.versions().filter(|&(_, (block, slot))| !is_live(block, slot));
        let records = versions.map(|(epoch, (block, slot))| {
            let place = Place { block, checksum: index.checksum(slot), is_hit: false, epoch };
            Record::Holds { slot, place }
        });
        records
            .chain((!self.dirty.is_empty()).then_some(Record::Durable { epoch: self.dirty.durable() }))
            .collect()
    }

    /// Whether somebody is writing this block, into its slot or without one.
    pub fn is_held(&self, index: &Index, block: u64) -> bool {
        self.is_entered(block) || index.get(block).is_some_and(|(_, word)| word.state() == State::Writing)
    }

    /// This block, which is not dirty, must not become so.
    pub fn keep_clean(&mut self, block: u64) {
        enter(&mut self.kept_clean, block);
    }

    /// It may again.
    pub fn end_keep_clean(&mut self, block: u64) {
        leave(&mut self.kept_clean, block);
    }

    pub fn is_kept_clean(&self, block: u64) -> bool {
        self.kept_clean.contains_key(&block)
    }

    /// A write of a block without a slot begins.
    pub fn begin_write(&mut self, block: u64) {
        enter(&mut self.written, block);
    }

    /// It is over.
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
