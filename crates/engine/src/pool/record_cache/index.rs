//! Hash index of the record cache: buckets of slots in pool frames.
//!
//! ```text
//!   63..44               43..42   41..0
//!   part of the hash     rounds   address of the record + 1; 0 = an empty slot
//! ```
//!
//! Slots are written under the lock of the cache and read without. A full bucket loses a slot, and
//! with it a record. At two thirds full, that is one bucket of 32 slots in a hundred.

use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::words::Words;

pub(super) const BUCKET: u64 = 32;
const ADDRESS_BITS: u32 = 42;
const ADDRESS_MASK: u64 = (1 << ADDRESS_BITS) - 1;
const ROUNDS_AT: u32 = ADDRESS_BITS;
const PART_AT: u32 = 44;
/// Upper limit of the rounds that spare a record.
pub(super) const ROUNDS_MAX: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(u64);

impl Slot {
    pub(super) fn new(hash: u64, address: u64, rounds: u32) -> Slot {
        debug_assert!(address < ADDRESS_MASK && rounds <= ROUNDS_MAX);
        Slot(part(hash) << PART_AT | u64::from(rounds) << ROUNDS_AT | (address + 1))
    }

    pub(super) fn address(self) -> Option<u64> {
        (self.0 & ADDRESS_MASK).checked_sub(1)
    }

    /// Remaining rounds of the main queue.
    pub(super) fn rounds(self) -> u32 {
        (self.0 >> ROUNDS_AT) as u32 & ROUNDS_MAX
    }

    fn may_be(self, hash: u64) -> bool {
        self.0 >> PART_AT == part(hash) && self.0 != 0
    }
}

fn part(hash: u64) -> u64 {
    hash & ((1 << (64 - PART_AT)) - 1)
}

/// An index of `slots` slots, a multiple of [`BUCKET`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Index<'a> {
    pub(super) words: Words<'a>,
    pub(super) slots: u64,
}

impl Index<'_> {
    fn bucket(&self, hash: u64) -> std::ops::Range<u64> {
        let bucket = ((u128::from(hash) * u128::from(self.slots / BUCKET)) >> 64) as u64;
        let first = bucket * BUCKET;
        first..(first + BUCKET).min(self.slots)
    }

    /// Slots whose record may have this hash.
    ///
    /// Acquire pairs with `set`: the record is visible.
    pub(super) fn candidates(&self, hash: u64) -> impl Iterator<Item = (u64, Slot)> {
        let words = self.words;
        self.bucket(hash)
            .filter_map(move |at| Some((at, Slot(words.slot(at)?.load(Acquire)))))
            .filter(move |(_, slot)| slot.may_be(hash))
    }

    pub(super) fn slot_of(&self, hash: u64, address: u64) -> Option<(u64, Slot)> {
        self.candidates(hash).find(|(_, slot)| slot.address() == Some(address))
    }

    /// A slot for a new record, and whether it holds another.
    pub(super) fn slot_for(&self, hash: u64) -> (u64, bool) {
        let bucket = self.bucket(hash);
        match bucket.clone().find(|&at| self.words.word(at) == 0) {
            Some(at) => (at, false),
            None => (bucket.start + (hash >> 24) % BUCKET, true),
        }
    }

    pub(super) fn set(&self, at: u64, slot: Option<Slot>) {
        let word = self.words.slot(at).expect("a slot within the index");
        word.store(slot.map_or(0, |slot| slot.0), Release);
    }

    pub(super) fn clear(&self) {
        for at in 0..self.slots {
            self.words.slot(at).expect("a slot within the index").store(0, Relaxed);
        }
    }
}
