//! Which block is in which slot: a chained hash table, read without a lock.
//!
//! A slot has one **word**, a checksum and a link, 16 bytes. Each slot adds one chain head of 4
//! bytes.
//!
//! ```text
//!   63            42 41   37 36 35                                   0
//!  | generation 22  | flags  |  | block 36                            |
//!                     |      |
//!                     |      state: free, filling, writing, valid
//!                     verified, doomed, hit, dirty
//! ```
//!
//! All methods need the placement's lock (`placement.rs`), except `find` and `is_unchanged`. A
//! reader without it follows a chain that may be changing; the word makes the result certain:
//!
//! 1. `find` returns a slot and its word, which is valid and names the block.
//! 2. The reader reads the slot's bytes from the fast device.
//! 3. `is_unchanged` compares the word. It is changed *before* the slot gets another block or new
//!    bytes, with a new generation. An unchanged word therefore proves that the bytes were the
//!    block's all the time, and no writer waits for readers. Acquire and Release on the word pair
//!    with each other; the fences order it against the device.
//!
//! A changing chain can hide a block but never show a wrong one; the reader then looks again under
//! the lock. A generation wraps after four million changes, which cannot happen within one read.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

const NIL: u32 = u32::MAX;

const BLOCK_BITS: u32 = 36;
const BLOCK_MASK: u64 = (1 << BLOCK_BITS) - 1;
const STATE_SHIFT: u32 = BLOCK_BITS;
const STATE_MASK: u64 = 3 << STATE_SHIFT;
const VERIFIED: u64 = 1 << 38;
const DOOMED: u64 = 1 << 39;
const HIT: u64 = 1 << 40;
const DIRTY: u64 = 1 << 41;
const GENERATION_SHIFT: u32 = 42;

/// Most links followed without the lock, since the chain may become a ring meanwhile.
const STEPS_MAX: usize = 32;

/// Most blocks of a device: 256 TiB in blocks of 4 KiB.
pub(super) const BLOCKS_MAX: u64 = 1 << BLOCK_BITS;

/// Bytes per slot, its chain head included.
pub(super) const SLOT_BYTES: u64 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    Filling,
    Writing,
    Valid,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(u64);

impl Word {
    pub fn block(self) -> u64 {
        self.0 & BLOCK_MASK
    }

    pub fn state(self) -> State {
        match (self.0 & STATE_MASK) >> STATE_SHIFT {
            0 => State::Free,
            1 => State::Filling,
            2 => State::Writing,
            _ => State::Valid,
        }
    }

    /// Whether the bytes matched their checksum, or were written by this run.
    pub fn is_verified(self) -> bool {
        self.0 & VERIFIED != 0
    }

    pub fn is_hit(self) -> bool {
        self.0 & HIT != 0
    }

    /// Whether the slow device may lack these bytes (`dirty.rs`); the slot must be kept.
    pub fn is_dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    /// Whether the block leaves when its fetch, write or write-back ends.
    pub fn is_doomed(self) -> bool {
        self.0 & DOOMED != 0
    }
}

#[derive(Debug)]
pub(super) struct Index {
    heads: Vec<AtomicU32>,
    links: Vec<AtomicU32>,
    words: Vec<AtomicU64>,
    checksums: Vec<AtomicU32>,
    seed: u64,
}

impl Index {
    pub fn new(slots: u32, seed: u64) -> Self {
        let links = || (0..slots).map(|_| AtomicU32::new(NIL)).collect();
        Self {
            heads: links(),
            links: links(),
            words: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            checksums: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            seed,
        }
    }

    pub fn slots(&self) -> u32 {
        self.words.len() as u32
    }

    fn head(&self, block: u64) -> &AtomicU32 {
        let hash = (block ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.heads[((hash * self.heads.len() as u64) >> 32) as usize]
    }

    pub fn word(&self, slot: u32) -> Word {
        Word(self.words[slot as usize].load(Ordering::Acquire))
    }

    fn find_within(&self, block: u64, steps_max: usize) -> Option<(u32, Word)> {
        let mut slot = self.head(block).load(Ordering::Acquire);
        for _ in 0..steps_max {
            if slot == NIL {
                return None;
            }
            let word = self.word(slot);
            if word.block() == block && word.state() != State::Free {
                return Some((slot, word));
            }
            slot = self.links[slot as usize].load(Ordering::Acquire);
        }
        None
    }

    /// The slot that seems to hold `block`; needs no lock.
    #[inline]
    pub fn find(&self, block: u64) -> Option<(u32, Word)> {
        self.find_within(block, STEPS_MAX).filter(|(_, word)| word.state() == State::Valid)
    }

    /// Whether `slot` was unchanged since `word` was read; needs no lock.
    #[inline]
    pub fn is_unchanged(&self, slot: u32, word: Word) -> bool {
        fence(Ordering::Acquire);
        self.word(slot) == word
    }

    pub fn get(&self, block: u64) -> Option<(u32, Word)> {
        self.find_within(block, usize::MAX)
    }

    fn set(&self, slot: u32, block: u64, state: State, flags: u64) {
        let cell = &self.words[slot as usize];
        let generation = (cell.load(Ordering::Relaxed) >> GENERATION_SHIFT).wrapping_add(1);
        let word = generation << GENERATION_SHIFT | flags | (state as u64) << STATE_SHIFT | block;
        cell.store(word, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    pub fn link(&self, slot: u32, block: u64, state: State) {
        debug_assert!(self.word(slot).state() == State::Free && block < BLOCKS_MAX);
        self.set(slot, block, state, 0);
        let head = self.head(block);
        self.links[slot as usize].store(head.load(Ordering::Relaxed), Ordering::Release);
        head.store(slot, Ordering::Release);
    }

    /// Detaches `slot` from its block; its link may then serve the free list.
    pub fn unlink(&self, slot: u32) {
        let block = self.word(slot).block();
        self.set(slot, 0, State::Free, 0);
        let after = self.links[slot as usize].load(Ordering::Relaxed);
        let mut from = self.head(block);
        loop {
            let next = from.load(Ordering::Relaxed);
            if next == slot {
                from.store(after, Ordering::Release);
                return;
            }
            assert_ne!(next, NIL, "a slot is in its block's chain");
            from = &self.links[next as usize];
        }
    }

    /// Gives the valid `slot` to `block`, which has the same bytes.
    pub fn rename(&self, slot: u32, block: u64) {
        let flags = self.word(slot).0 & (VERIFIED | HIT);
        self.unlink(slot);
        self.link(slot, block, State::Filling);
        self.set(slot, block, State::Valid, flags);
    }

    pub fn begin_writing(&self, slot: u32) {
        let word = self.word(slot);
        self.set(slot, word.block(), State::Writing, word.0 & HIT);
    }

    /// Makes the slot valid, with verified bytes.
    pub fn set_valid(&self, slot: u32, checksum: u32) {
        self.checksums[slot as usize].store(checksum, Ordering::Relaxed);
        let word = self.word(slot);
        self.set(slot, word.block(), State::Valid, VERIFIED | word.0 & HIT);
    }

    pub fn set_dirty(&self, slot: u32, checksum: u32) {
        self.checksums[slot as usize].store(checksum, Ordering::Relaxed);
        let word = self.word(slot);
        self.set(slot, word.block(), State::Valid, VERIFIED | DIRTY | word.0 & (HIT | DOOMED));
    }

    pub fn set_clean(&self, slot: u32) {
        self.words[slot as usize].fetch_and(!DIRTY, Ordering::Release);
    }

    pub fn set_hit(&self, slot: u32) {
        self.words[slot as usize].fetch_or(HIT, Ordering::Release);
    }

    /// Makes the slot valid, with unverified bytes.
    pub fn set_claimed(&self, slot: u32, checksum: u32) {
        self.checksums[slot as usize].store(checksum, Ordering::Relaxed);
        self.set(slot, self.word(slot).block(), State::Valid, 0);
    }

    pub fn checksum(&self, slot: u32) -> u32 {
        self.checksums[slot as usize].load(Ordering::Relaxed)
    }

    pub fn doom(&self, slot: u32) {
        self.words[slot as usize].fetch_or(DOOMED, Ordering::Release);
    }
}

/// Free slots, last in first out, linked through unused chain links.
#[derive(Debug)]
pub(super) struct FreeSlots {
    first: u32,
    /// Slots from here on were never used.
    fresh: u32,
    used: u32,
}

impl FreeSlots {
    pub fn new() -> Self {
        Self { first: NIL, fresh: 0, used: 0 }
    }

    pub fn restore(index: &Index) -> Self {
        let mut free = Self { first: NIL, fresh: index.slots(), used: index.slots() };
        for slot in (0..index.slots()).rev().filter(|&slot| index.word(slot).state() == State::Free) {
            free.give_back(index, slot);
        }
        free
    }

    pub fn used(&self) -> u32 {
        self.used
    }

    pub fn take(&mut self, index: &Index, capacity: u32) -> Option<u32> {
        if self.used >= capacity {
            return None;
        }
        let slot = self.first;
        let slot = if slot != NIL {
            self.first = index.links[slot as usize].load(Ordering::Relaxed);
            slot
        } else if self.fresh < index.slots() {
            self.fresh += 1;
            self.fresh - 1
        } else {
            return None;
        };
        self.used += 1;
        Some(slot)
    }

    pub fn give_back(&mut self, index: &Index, slot: u32) {
        index.links[slot as usize].store(self.first, Ordering::Release);
        self.first = slot;
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn it_agrees_with_a_map() {
        const SLOTS: u32 = 61;
        let index = Index::new(SLOTS, 7);
        let mut free = FreeSlots::new();
        let mut model: HashMap<u64, u32> = HashMap::new();
        let mut random = 1_u64;
        for step in 0..10_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let block = (random >> 40) % 200;
            match model.remove(&block) {
                Some(slot) => {
                    assert_eq!(index.get(block).map(|(slot, _)| slot), Some(slot), "step {step}");
                    index.unlink(slot);
                    free.give_back(&index, slot);
                }
                None => {
                    assert_eq!(index.get(block), None, "step {step}");
                    if let Some(slot) = free.take(&index, SLOTS) {
                        index.link(slot, block, State::Filling);
                        assert_eq!(index.find(block), None, "not yet valid");
                        index.set_valid(slot, 5);
                        model.insert(block, slot);
                    }
                }
            }
            assert_eq!(free.used() as usize, model.len());
        }
        assert!(model.iter().all(|(&block, &slot)| index.find(block).is_some_and(|found| found.0 == slot)));
    }

    #[test]
    fn every_change_of_owner_or_bytes_changes_the_word() {
        let index = Index::new(2, 1);
        index.link(0, 9, State::Filling);
        let mut seen = vec![index.word(0)];
        let mut note = |index: &Index| {
            assert!(seen.iter().all(|&word| !index.is_unchanged(0, word)));
            seen.push(index.word(0));
        };
        index.set_valid(0, 1);
        note(&index);
        index.begin_writing(0);
        note(&index);
        index.set_valid(0, 1);
        note(&index);
        index.unlink(0);
        note(&index);
        index.link(0, 9, State::Filling);
        note(&index);
        index.set_valid(0, 1);
        note(&index);
    }
}
