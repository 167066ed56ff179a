//! Dirty blocks: those whose newest bytes the slow device does not have yet, by the *epochs* in which they are to reach it.
//!
//! An epoch is what was written between two syncs of the cache. Epochs reach the slow device in order, with a sync of it
//! in between, so that it always is as a device that lost its power between two syncs may be: everything of the epochs before,
//! any part of the next, nothing of later ones. Nothing is merged across epochs: a block that was written in three of them has three
//! slots, of which the index knows the newest and this table the others.
//!
//! ```text
//!   open epoch --seal--> sealed epochs, oldest first --written and synced--> settling --journal durable--> clean, or free
//!       ^ writes              | overwritten: kept, in a slot of its own
//! ```
//! A slot that is *settling* has been written to the slow device, or nobody needs it any more, but the journal may still say after a
//! power cut that it is dirty, and it would be written again. Until the journal is known to be durable its bytes must stay, and
//! nobody may write the block to the slow device directly.

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::FixedState;

/// Epochs are numbered with 25 bits in the journal, from 1; they begin anew where nothing is dirty.
pub(super) const EPOCH_MAX: u32 = (1 << 25) - 1;

/// A block and a slot that holds a version of it.
pub(super) type Version = (u64, u32);

/// The table, under the placement's lock.
#[derive(Debug)]
pub(super) struct Dirty {
    open: u32,
    /// Epochs up to here are durable on the fast device.
    durable: u32,
    /// Blocks and slots of each epoch, the open one included.
    epochs: BTreeMap<u32, BTreeMap<u64, u32>>,
    /// The epoch of each slot above.
    slots: HashMap<u32, u32, FixedState>,
    /// Slots that are settling, by block.
    settling: BTreeMap<u64, Vec<u32>>,
}

impl Default for Dirty {
    fn default() -> Self {
        let (epochs, slots, settling) = Default::default();
        Self { open: 1, durable: 0, epochs, slots, settling }
    }
}

impl Dirty {
    /// Slots that must not be given up.
    pub fn len(&self) -> usize {
        self.slots.len() + self.settling.values().map(Vec::len).sum::<usize>()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.settling.is_empty()
    }

    /// The epoch of a version that the slow device does not have.
    pub fn epoch(&self, slot: u32) -> Option<u32> {
        self.slots.get(&slot).copied()
    }

    pub fn open(&self) -> u32 {
        self.open
    }

    /// The open epoch has `block` in `slot`. Gives the slot that it had there before, which nobody needs any more.
    pub fn add(&mut self, block: u64, slot: u32) -> Option<u32> {
        let before = self.epochs.entry(self.open).or_default().insert(block, slot);
        let before = before.filter(|&before| before != slot);
        if let Some(before) = before {
            self.slots.remove(&before);
        }
        self.slots.insert(slot, self.open);
        before
    }

    /// Ends the open epoch, if it has anything. Gives the last that has ended.
    pub fn seal(&mut self) -> u32 {
        if self.epochs.contains_key(&self.open) {
            self.open += 1;
        }
        self.open - 1
    }

    /// Whether the numbers of epochs are used up, so that all must be written.
    pub fn is_used_up(&self) -> bool {
        self.open >= EPOCH_MAX - 1
    }

    pub fn durable(&self) -> u32 {
        self.durable
    }

    pub fn set_durable(&mut self, epoch: u32) {
        self.durable = self.durable.max(epoch);
    }

    /// Whether an epoch that has ended is not yet on the slow device.
    pub fn any_sealed(&self) -> bool {
        self.epochs.first_key_value().is_some_and(|(&epoch, _)| epoch < self.open)
    }

    /// The oldest epoch that has ended, and what is in it, in ascending order of blocks; the newest, if not `in_order`.
    pub fn oldest(&self, in_order: bool) -> Option<(u32, Vec<Version>)> {
        let mut sealed = self.epochs.range(..self.open);
        let (epoch, blocks) = if in_order { sealed.next() } else { sealed.next_back() }?;
        Some((*epoch, blocks.iter().map(|(&block, &slot)| (block, slot)).collect()))
    }

    /// The slow device has an epoch durably: its slots are settling. Gives them.
    pub fn written(&mut self, epoch: u32) -> Vec<Version> {
        let versions: Vec<_> = self.epochs.remove(&epoch).unwrap_or_default().into_iter().collect();
        for &(block, slot) in &versions {
            self.slots.remove(&slot);
            self.settling.entry(block).or_default().push(slot);
        }
        versions
    }

    /// Nobody needs a block any more: the slots of all its versions are settling. Gives those that were not yet.
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

    /// Loses a block, as planted bugs do.
    pub fn lose(&mut self, block: u64) {
        for slot in self.forget(block) {
            self.settled((block, slot));
        }
    }

    /// Whether a direct write of `block` has to wait until what is here of it is settled.
    pub fn has(&self, block: u64) -> bool {
        self.settling.contains_key(&block) || self.epochs.values().any(|blocks| blocks.contains_key(&block))
    }

    /// All that is settling.
    pub fn settling(&self) -> Vec<Version> {
        let versions =
            self.settling.iter().flat_map(|(&block, slots)| slots.iter().map(move |&slot| (block, slot)));
        versions.collect()
    }

    /// The journal that says so is durable.
    pub fn settled(&mut self, (block, slot): Version) {
        if let Some(slots) = self.settling.get_mut(&block) {
            slots.retain(|&other| other != slot);
            if slots.is_empty() {
                self.settling.remove(&block);
            }
        }
    }

    /// All versions that the slow device does not have, with their epochs.
    pub fn versions(&self) -> impl Iterator<Item = (u32, Version)> + '_ {
        self.epochs
            .iter()
            .flat_map(|(&epoch, blocks)| blocks.iter().map(move |(&block, &slot)| (epoch, (block, slot))))
    }

    /// Has numbers begin anew if they are used up and nothing is dirty. Says whether they did.
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
        assert_eq!(dirty.oldest(true), None, "an open epoch waits for its end");
        assert_eq!(dirty.seal(), 1);
        assert_eq!(dirty.add(7, 3), None, "the sealed version stays");
        dirty.seal();
        assert_eq!(dirty.oldest(true), Some((1, vec![(7, 1), (8, 2)])));
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
