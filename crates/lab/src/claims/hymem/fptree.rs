//! FPTree (Oukid et al., SIGMOD 2016) in virtual time, as HyMem configures it (section 5.5).
//!
//! Inner nodes in DRAM have 4096 entries. Leaves in NVM have 56, unsorted: a line with bitmap and
//! fingerprints, then the entries, 960 bytes. A lookup reads the first line and the line of each
//! entry whose fingerprint matches. Keys and values have 8 bytes. Nothing is removed or recovered:
//! the experiment needs loads and lookups.

use terrace_io::{Pattern, SimulatedMemory};

const INNER_ENTRIES: usize = 4096;
const LEAF_ENTRIES: usize = 56;
const LINE_BYTES: u64 = 64;
const ENTRY_BYTES: u64 = 16;
const LEAF_BYTES: u64 = LINE_BYTES + LEAF_ENTRIES as u64 * ENTRY_BYTES;

/// The number of a node or leaf.
type Number = u32;

#[derive(Debug)]
struct Inner {
    /// The least key of each child but the first.
    keys: Vec<u64>,
    children: Vec<Number>,
}

#[derive(Clone, Debug)]
struct Leaf {
    bitmap: u64,
    fingerprints: [u8; LEAF_ENTRIES],
    entries: [(u64, u64); LEAF_ENTRIES],
}

impl Leaf {
    const EMPTY: Leaf = Leaf { bitmap: 0, fingerprints: [0; LEAF_ENTRIES], entries: [(0, 0); LEAF_ENTRIES] };

    fn is_full(&self) -> bool {
        self.bitmap.count_ones() as usize == LEAF_ENTRIES
    }

    fn is_used(&self, slot: usize) -> bool {
        self.bitmap >> slot & 1 != 0
    }

    /// Used slots with the fingerprint of `key`.
    fn candidates(&self, key: u64) -> impl Iterator<Item = usize> {
        let print = fingerprint(key);
        (0..LEAF_ENTRIES).filter(move |&slot| self.is_used(slot) && self.fingerprints[slot] == print)
    }

    fn add(&mut self, key: u64, value: u64) {
        let slot = (!self.bitmap).trailing_zeros() as usize;
        self.entries[slot] = (key, value);
        self.fingerprints[slot] = fingerprint(key);
        self.bitmap |= 1 << slot;
    }

    /// Moves the upper half of the entries to a new leaf, which begins with the returned key.
    fn split(&mut self) -> (u64, Leaf) {
        let mut keys: Vec<u64> = self.entries.iter().map(|&(key, _)| key).collect();
        let (_, &mut middle, _) = keys.select_nth_unstable(LEAF_ENTRIES / 2);
        let mut upper = Leaf::EMPTY;
        for slot in 0..LEAF_ENTRIES {
            let (key, value) = self.entries[slot];
            if key >= middle {
                upper.add(key, value);
                self.bitmap &= !(1 << slot);
            }
        }
        (middle, upper)
    }
}

/// A tree with its leaves in `memory`.
#[derive(Debug)]
pub(super) struct FpTree<'m> {
    memory: &'m SimulatedMemory,
    inner: Vec<Inner>,
    leaves: Vec<Leaf>,
    root: Number,
    /// Levels of inner nodes.
    height: u32,
}

impl<'m> FpTree<'m> {
    pub(super) fn new(memory: &'m SimulatedMemory) -> FpTree<'m> {
        let root = Inner { keys: Vec::new(), children: vec![0] };
        FpTree { memory, inner: vec![root], leaves: vec![Leaf::EMPTY], root: 0, height: 1 }
    }

    /// Levels of inner nodes and leaves.
    pub(super) fn levels(&self) -> u32 {
        self.height + 1
    }

    /// Adds a key that is not there. Charges nothing: loads are not measured.
    pub(super) fn insert(&mut self, key: u64, value: u64) {
        let path = self.path(key);
        let leaf = self.child(*path.last().expect("a tree has a root"), key);
        if !self.leaves[leaf as usize].is_full() {
            return self.leaves[leaf as usize].add(key, value);
        }
        let (least, mut upper) = self.leaves[leaf as usize].split();
        if key < least { &mut self.leaves[leaf as usize] } else { &mut upper }.add(key, value);
        self.leaves.push(upper);
        self.enter(path, least, self.leaves.len() as Number - 1);
    }

    /// The value of `key`. Charges the lines of its leaf.
    pub(super) fn get(&self, key: u64) -> Option<u64> {
        let number = self.child(*self.path(key).last()?, key);
        let (leaf, address) = (&self.leaves[number as usize], u64::from(number) * LEAF_BYTES);
        self.memory.look(address, LINE_BYTES, Pattern::Random);
        leaf.candidates(key).find_map(|slot| {
            self.memory.look(address + LINE_BYTES + slot as u64 * ENTRY_BYTES, ENTRY_BYTES, Pattern::Random);
            let (found, value) = leaf.entries[slot];
            (found == key).then_some(value)
        })
    }

    /// Inner nodes from the root to the parent of the leaf for `key`.
    fn path(&self, key: u64) -> Vec<Number> {
        let mut path = vec![self.root];
        for _ in 1..self.height {
            path.push(self.child(path[path.len() - 1], key));
        }
        path
    }

    fn child(&self, node: Number, key: u64) -> Number {
        let Inner { keys, children } = &self.inner[node as usize];
        children[keys.partition_point(|&least| least <= key)]
    }

    /// Enters `child` into the last node of `path`, and splits nodes that are full.
    fn enter(&mut self, mut path: Vec<Number>, mut least: u64, mut child: Number) {
        while let Some(number) = path.pop() {
            let node = &mut self.inner[number as usize];
            let at = node.keys.partition_point(|&key| key <= least);
            node.keys.insert(at, least);
            node.children.insert(at + 1, child);
            if node.children.len() <= INNER_ENTRIES {
                return;
            }
            let half = INNER_ENTRIES / 2;
            let upper = Inner { keys: node.keys.split_off(half), children: node.children.split_off(half) };
            least = node.keys.pop().expect("half of the keys are left");
            self.inner.push(upper);
            child = self.inner.len() as Number - 1;
        }
        self.inner.push(Inner { keys: vec![least], children: vec![self.root, child] });
        self.root = self.inner.len() as Number - 1;
        self.height += 1;
    }
}

fn fingerprint(key: u64) -> u8 {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use terrace_common::values;
    use terrace_io::{Profile, Time, VirtualTime};

    use super::*;

    #[test]
    fn keys_are_found_with_two_lines_each() {
        let time = Arc::new(VirtualTime::new(1));
        let nvm = Profile::parse(
            "base = 'dram'\ncache_bytes = 0\nrandom_read_ns = 100\nrandom_read_gb_s = 1000",
            "nvm",
        );
        let memory = SimulatedMemory::new(nvm.unwrap(), Time::Virtual(Arc::clone(&time)));
        let mut tree = FpTree::new(&memory);
        let count = 300_000;
        (0..count).for_each(|number| tree.insert(values::mix(number), number));
        assert_eq!((tree.levels(), LEAF_BYTES), (3, 960));
        assert!(tree.inner.iter().all(|node| node.children.len() == node.keys.len() + 1));
        let before = time.now(0);
        (0..count).for_each(|number| assert_eq!(tree.get(values::mix(number)), Some(number)));
        let lines = (time.now(0) - before) as f64 / 100.0 / count as f64;
        assert!((2.0..2.2).contains(&lines), "{lines}");
        (count..count + 1000).for_each(|number| assert_eq!(tree.get(values::mix(number)), None));
    }
}
