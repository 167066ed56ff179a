//! Block tables: small numbers by block key.
//!
//! For ghosts and counts. Live keys are arbitrary and need hashing; the simulator's dense keys
//! index an array. Policies are generic over both, because this lookup dominates the cost of a
//! miss.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::nodes::{NodeChains, NodeTable};

/// A map from block keys to numbers below `u32::MAX`.
pub trait BlockTable: Default + Send + 'static {
    /// The same for nodes that have their blocks.
    #[doc(hidden)]
    type Nodes: NodeTable;

    /// The number of `block`.
    fn get(&self, block: u64) -> Option<u32>;

    /// Sets the number of `block`, which is below `u32::MAX`.
    fn set(&mut self, block: u64, number: u32);

    /// Removes `block` and returns its number.
    fn take(&mut self, block: u64) -> Option<u32>;

    /// Removes all blocks.
    fn clear(&mut self);
}

/// An array for dense keys, four bytes each up to the largest set.
///
/// ```
/// use terrace_cache::policy::{BlockTable, DenseTable};
///
/// let mut table = DenseTable::default();
/// table.set(5, 40);
/// assert_eq!((table.get(4), table.get(5), table.get(6)), (None, Some(40), None));
/// ```
#[derive(Clone, Debug, Default)]
pub struct DenseTable {
    numbers: Vec<u32>,
}

/// Marks a block without a number.
const NONE: u32 = u32::MAX;

impl BlockTable for DenseTable {
    type Nodes = DenseTable;

    #[inline]
    fn get(&self, block: u64) -> Option<u32> {
        self.numbers.get(block as usize).copied().filter(|&number| number != NONE)
    }

    #[inline]
    fn set(&mut self, block: u64, number: u32) {
        debug_assert_ne!(number, NONE);
        let index = block as usize;
        if index >= self.numbers.len() {
            self.numbers.resize(index + 1, NONE);
        }
        self.numbers[index] = number;
    }

    #[inline]
    fn take(&mut self, block: u64) -> Option<u32> {
        let number = self.numbers.get_mut(block as usize)?;
        Some(std::mem::replace(number, NONE)).filter(|&number| number != NONE)
    }

    fn clear(&mut self) {
        self.numbers.fill(NONE);
    }
}

impl NodeTable for DenseTable {
    #[inline]
    fn get(&self, block: u64, _: &[u64]) -> Option<u32> {
        BlockTable::get(self, block)
    }

    #[inline]
    fn insert(&mut self, node: u32, blocks: &[u64]) {
        BlockTable::set(self, blocks[node as usize], node);
    }

    #[inline]
    fn take(&mut self, block: u64, _: &[u64]) -> Option<u32> {
        BlockTable::take(self, block)
    }
}

/// A hash table for any keys. Its seed is fixed: no policy depends on the order.
///
/// ```
/// use terrace_cache::policy::{BlockTable, HashedTable};
///
/// let mut table = HashedTable::default();
/// table.set(u64::MAX, 1);
/// assert_eq!(table.take(u64::MAX), Some(1));
/// assert_eq!(table.get(u64::MAX), None);
/// ```
#[derive(Clone, Debug, Default)]
pub struct HashedTable {
    numbers: HashMap<u64, u32, FixedState>,
}

impl BlockTable for HashedTable {
    type Nodes = NodeChains;

    fn get(&self, block: u64) -> Option<u32> {
        self.numbers.get(&block).copied()
    }

    fn set(&mut self, block: u64, number: u32) {
        debug_assert_ne!(number, NONE);
        self.numbers.insert(block, number);
    }

    fn take(&mut self, block: u64) -> Option<u32> {
        self.numbers.remove(&block)
    }

    fn clear(&mut self) {
        self.numbers.clear();
    }
}
