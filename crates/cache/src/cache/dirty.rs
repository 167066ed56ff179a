//! Dirty blocks, by the *epochs* in which they must reach the slow device.
//!
//! An epoch is the writes between two syncs of the cache. Epochs reach the slow device in order,
//! with a sync after each, so its state is always possible after a power cut. Epochs are never
//! merged: a block written in three epochs has three slots. The index knows the newest, this table
//! the others.
//!
//! ```text
//!   open epoch --seal--> sealed epochs --written, synced--> settling --journal durable--> clean
//!       ^ writes         oldest first; overwritten ones keep their own slots         or free
//! ```
//! A *settling* slot is on the slow device or unneeded. But after a power cut the journal may still
//! call it dirty, and recovery would write it again. Until the journal is durable, its bytes must
//! stay, and its block must not be written directly.

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::FixedState;

use crate::planted::{CacheBug, planted};

/// Largest epoch: 25 bits in the journal, from 1, restarting when nothing is dirty.
pub(super) const EPOCH_MAX: u32 = (1 << 25) - 1;

pub(super) type Version = (u64, u32);

#[derive(Debug)]
pub(super) struct Dirty {
    open: u32,
    /// Epochs up to here are durable on the fast device.
    durable: u32,
    epochs: BTreeMap<u32, BTreeMap<u64, u32>>,
    slots: HashMap<u32, u32, FixedState>,
    settling: BTreeMap<u64, Vec<u32>>,
}

impl Default for Dirty {
    fn default() -> Self {
        let (epochs, slots, settling) = Default::default();
        Self { open: 1, durable: 0, epochs, slots, settling }
    }
}

impl Dirty {
    pub fn len(&self) -> usize {
        self.slots.len() + self.settling.values().map(Vec::len).sum::<usize>()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.settling.is_empty()
    }

    pub fn epoch(&self, slot: u32) -> Option<u32> {
        self.slots.get(&slot).copied()
    }

    pub fn open(&self) -> u32 {
        self.open
    }

    /// Adds a version to the open epoch; returns the slot that it replaces there.
    pub fn add(&mut self, block: u64, slot: u32) -> Option<u32> {
        let before = self.epochs.entry(self.open).or_default().insert(block, slot);
        let before = before.filter(|&before| before != slot);
        if let Some(before) = before {
            self.slots.remove(&before);
        }
        self.slots.insert(slot, self.open);
        before
    }

    /// Ends the open epoch unless it is empty; returns the last ended one.
    pub fn seal(&mut self) -> u32 {
        if self.epochs.contains_key(&self.open) {
            self.open += 1;
        }
        self.open - 1
    }

    /// Whether epoch numbers are used up, so that all must be written.
    pub fn is_used_up(&self) -> bool {
        self.open >= EPOCH_MAX - 1
    }

    pub fn durable(&self) -> u32 {
        self.durable
    }

    pub fn set_durable(&mut self, epoch: u32) {
        self.durable = self.durable.max(epoch);
    }

    /// Whether an ended epoch is not yet on the slow device.
    pub fn any_sealed(&self) -> bool {
        self.epochs.first_key_value().is_some_and(|(&epoch, _)| epoch < self.open)
    }

    /// The oldest ended epoch with its versions, by block.
    pub fn oldest(&self) -> Option<(u32, Vec<Version>)> {
        let mut sealed = self.epochs.range(..self.open);
        let (epoch, blocks) =
            if planted(CacheBug::DrainOutOfOrder) { sealed.next_back() } else { sealed.next() }?;
        Some((*epoch, blocks.iter().map(|(&block, &slot)| (block, slot)).collect()))
    }

    /// Removes an epoch that the slow device has; its slots, returned, are settling.
    pub fn written(&mut self, epoch: u32) -> Vec<Version> {
        let versions: Vec<_> = self.epochs.remove(&epoch).unwrap_or_default().into_iter().collect();
        for &(block, slot) in &versions {
            self.slots.remove(&slot);
            self.settling.entry(block).or_default().push(slot);
        }
        versions
    }

    /// Discards a block; returns slots of its versions that begin to settle.
    pub fn forget(&mut self, block: u64) -> Vec<u32> {
        let mut forgotten = Vec::new();
        self.epochs.retain(|_, blocks| {
            forgotten.extend(blocks.remove(&block));
            !blocks.is_empty()
        });
        for slot in &forgotten {
            self.slots.remove(slot);
        }
        if !forgotten.is_empty() {
            self.settling.entry(block).or_default().extend(&forgotten);
        }
        forgotten
    }

    /// Whether a direct write of `block` must wait for its versions.
    pub fn has(&self, block: u64) -> bool {
        self.settling.contains_key(&block) || self.epochs.values().any(|blocks| blocks.contains_key(&block))
    }

    pub fn settling(&self) -> Vec<Version> {
        let versions =
            self.settling.iter().flat_map(|(&block, slots)| slots.iter().map(move |&slot| (block, slot)));
        versions.collect()
    }

    /// Ends settling of a version, once the journal is durable.
    pub fn settled(&mut self, (block, slot): Version) {
        if let Some(slots) = self.settling.get_mut(&block) {
            slots.retain(|&other| other != slot);
            if slots.is_empty() {
                self.settling.remove(&block);
            }
        }
    }

    pub fn versions(&self) -> impl Iterator<Item = (u32, Version)> + '_ {
        self.epochs
            .iter()
            .flat_map(|(&epoch, blocks)| blocks.iter().map(move |(&block, &slot)| (epoch, (block, slot))))
    }

    /// Restarts epoch numbers if they are used up and nothing is dirty; returns whether.
    pub fn begin_anew(&mut self) -> bool {
        let begins = self.is_used_up() && self.is_empty();
        if begins {
            *self = Self::default();
        }
        begins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_leave_in_order_and_versions_of_a_block_are_kept_apart() {
        let mut dirty = Dirty::default();
        assert_eq!(dirty.seal(), 0, "there is nothing to seal");
        assert_eq!((dirty.add(7, 0), dirty.add(7, 1), dirty.add(8, 2)), (None, Some(0), None));
        assert_eq!(dirty.oldest(), None, "an open epoch waits for its end");
        assert_eq!(dirty.seal(), 1);
        assert_eq!(dirty.add(7, 3), None, "the sealed version stays");
        dirty.seal();
        assert_eq!(dirty.oldest(), Some((1, vec![(7, 1), (8, 2)])));
        assert_eq!(dirty.written(1), vec![(7, 1), (8, 2)]);
        assert_eq!((dirty.len(), dirty.epoch(1), dirty.epoch(3)), (3, None, Some(2)));
        assert!(dirty.has(8), "until it is settled");
        dirty.settled((8, 2));
        assert!(!dirty.has(8) && dirty.has(7));
        assert_eq!(dirty.forget(7), vec![3]);
        assert_eq!(dirty.settling(), vec![(7, 1), (7, 3)]);
        for version in dirty.settling() {
            dirty.settled(version);
        }
        assert!(dirty.is_empty());
    }
}
