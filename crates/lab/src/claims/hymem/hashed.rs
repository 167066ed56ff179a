//! A model of the paper's three tiers with hashed leaves, for H5. The engine has no such page kind.
//!
//! Inner nodes are in DRAM. Leaves in NVM are hash tables with linear probing. So a lookup touches
//! the lines from its home slot to its entry. DRAM has mini pages of 16 lines and whole frames,
//! under one CLOCK. Nothing is inserted or changed.

use std::collections::VecDeque;

use terrace_common::values;
use terrace_io::{Pattern, SimulatedMemory};

use crate::design::PAGE_BYTES;

const LINE_BYTES: u64 = 64;
const ENTRY_BYTES: u64 = 16;
const SLOTS: u64 = PAGE_BYTES / ENTRY_BYTES;
/// Two thirds of the slots, the paper's load factor.
const LEAF_ENTRIES: u64 = 676;
/// The paper's mini page.
const MINI_BYTES: u64 = 1088;
const MINI_LINES: u32 = 16;
const LINES: usize = (PAGE_BYTES / LINE_BYTES) as usize;

/// A leaf and its lines in DRAM.
#[derive(Clone, Debug)]
struct Leaf {
    /// What it takes of DRAM: nothing, a mini page or a frame.
    bytes: u64,
    lines: [u64; LINES / 64],
    is_marked: bool,
}

impl Leaf {
    const ABSENT: Leaf = Leaf { bytes: 0, lines: [0; LINES / 64], is_marked: false };

    fn has(&self, line: u64) -> bool {
        self.lines[line as usize / 64] >> (line % 64) & 1 != 0
    }

    /// Whether another line has no room.
    fn is_full(&self) -> bool {
        self.bytes == MINI_BYTES && self.lines.iter().map(|word| word.count_ones()).sum::<u32>() == MINI_LINES
    }
}

/// A tree of hashed leaves.
#[derive(Debug)]
pub(super) struct HashedLeaves<'m> {
    memory: &'m SimulatedMemory,
    leaves: Vec<Leaf>,
    /// The slot of each record.
    slots: Vec<u16>,
    /// Leaves in DRAM, the next victim first.
    clock: VecDeque<usize>,
    /// Bytes of DRAM that are free.
    room: u64,
}

impl<'m> HashedLeaves<'m> {
    /// `records` records, and a `share` of the leaves' bytes in DRAM.
    pub(super) fn new(memory: &'m SimulatedMemory, records: u64, share: f64) -> HashedLeaves<'m> {
        let count = records.div_ceil(LEAF_ENTRIES);
        let mut slots = Vec::with_capacity(records as usize);
        for leaf in 0..count {
            let mut used = [false; SLOTS as usize];
            for record in leaf * LEAF_ENTRIES..((leaf + 1) * LEAF_ENTRIES).min(records) {
                let mut slot = home(record);
                while used[slot as usize] {
                    slot = (slot + 1) % SLOTS;
                }
                used[slot as usize] = true;
                slots.push(slot as u16);
            }
        }
        let room = (count as f64 * share) as u64 * PAGE_BYTES;
        HashedLeaves {
            memory,
            leaves: vec![Leaf::ABSENT; count as usize],
            slots,
            clock: VecDeque::new(),
            room,
        }
    }

    /// Charges a lookup of the record with key number `number`, and tells whether there is one.
    pub(super) fn get(&mut self, number: u64) -> bool {
        let record = number / values::loaded(1);
        let Some(&slot) = self.slots.get(record as usize) else { return false };
        let leaf = (record / LEAF_ENTRIES) as usize;
        if self.leaves[leaf].bytes == 0 {
            self.give_room(leaf, MINI_BYTES);
            self.clock.push_back(leaf);
        }
        self.leaves[leaf].is_marked = true;
        let (from, to) = (home(record), u64::from(slot));
        let to = if to < from { to + SLOTS } else { to };
        let in_line = LINE_BYTES / ENTRY_BYTES;
        for line in from / in_line..=to / in_line {
            self.load(leaf, line % LINES as u64);
        }
        true
    }

    fn load(&mut self, number: usize, line: u64) {
        if self.leaves[number].has(line) {
            return;
        }
        if self.leaves[number].is_full() {
            self.give_room(number, PAGE_BYTES);
        }
        self.memory.read(number as u64 * PAGE_BYTES + line * LINE_BYTES, LINE_BYTES, Pattern::Random);
        self.memory.copy(LINE_BYTES);
        self.leaves[number].lines[line as usize / 64] |= 1 << (line % 64);
    }

    /// Lets a leaf take `bytes` of DRAM. Others leave.
    fn give_room(&mut self, number: usize, bytes: u64) {
        while self.room + self.leaves[number].bytes < bytes {
            let Some(victim) = self.clock.pop_front() else { return };
            let leaf = &mut self.leaves[victim];
            if victim == number || std::mem::take(&mut leaf.is_marked) {
                self.clock.push_back(victim);
            } else {
                self.room += leaf.bytes;
                *leaf = Leaf::ABSENT;
            }
        }
        let leaf = &mut self.leaves[number];
        self.room = self.room + leaf.bytes - bytes;
        leaf.bytes = bytes;
    }
}

fn home(record: u64) -> u64 {
    values::mix(record) % SLOTS
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use terrace_io::{Profile, Time, VirtualTime};

    use super::*;

    /// Lines loaded for each of `gets` random lookups.
    fn loaded(share: f64, gets: u64) -> f64 {
        let time = Arc::new(VirtualTime::new(1));
        let nvm = "base = 'dram'\ncache_bytes = 0\nrandom_read_ns = 100\nrandom_read_gb_s = 1000";
        let memory =
            SimulatedMemory::new(Profile::parse(nvm, "nvm").unwrap(), Time::Virtual(Arc::clone(&time)));
        let mut leaves = HashedLeaves::new(&memory, 20_000, share);
        let mut go_on = |from: u64| {
            (from..from + gets)
                .for_each(|get| assert!(leaves.get(values::loaded(values::mix(get) % 20_000))));
        };
        go_on(0);
        let before = time.now(0);
        go_on(gets);
        let used: u64 = leaves.leaves.iter().map(|leaf| leaf.bytes).sum();
        let all = (30.0 * share) as u64 * PAGE_BYTES;
        assert!(used + leaves.room == all, "{used} and {} of {all}", leaves.room);
        (time.now(0) - before) as f64 / 103.0 / gets as f64
    }

    #[test]
    fn less_than_two_lines_are_loaded_and_none_if_all_fits() {
        assert!(loaded(1.0, 100_000) < 0.001);
        let half = loaded(0.5, 100_000);
        assert!((0.5..1.3).contains(&half), "{half}");
        assert!((half..2.0).contains(&loaded(0.1, 100_000)));
    }

    /// Each record is found from its home slot on, as no slot between them is empty.
    #[test]
    fn records_have_slots_of_their_own() {
        let memory = SimulatedMemory::new(
            Profile::named("dram").unwrap(),
            Time::Virtual(Arc::new(VirtualTime::new(1))),
        );
        let leaves = HashedLeaves::new(&memory, LEAF_ENTRIES, 1.0);
        let mut slots = leaves.slots.clone();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len() as u64, LEAF_ENTRIES);
        for record in 0..LEAF_ENTRIES {
            let mut slot = home(record);
            while slot != u64::from(leaves.slots[record as usize]) {
                assert!(slots.binary_search(&(slot as u16)).is_ok());
                slot = (slot + 1) % SLOTS;
            }
        }
    }
}
