//! Block tables: what a policy remembers of blocks by their key.
//!
//! A ghost list or a table of counts needs one small number for a block. In a live cache a key is any 64-bit number, so
//! the table hashes; in the simulator keys are dense, and an array answers in one memory access. The policy is generic
//! over the two, because this look-up is most of the cost of a miss.

use std::collections::HashMap;

use foldhash::fast::FixedState;

/// A map from block keys to numbers below `u32::MAX`.
pub trait BlockTable: Default + Send + 'static {
    /// The number of `block`, if it has one.
    fn get(&self, block: u64) -> Option<u32>;

    /// Sets the number of `block`, which is below `u32::MAX`.
    fn set(&mut self, block: u64, number: u32);

    /// Forgets `block` and gives the number it had.
    fn take(&mut self, block: u64) -> Option<u32>;

    /// Forgets all blocks.
    fn clear(&mut self);
}

/// An array indexed by block: for dense keys. Four bytes for every key up to the largest set.
///
/// ```
/// use terrace_block::policy::{BlockTable, DenseTable};
///
/// let mut table = DenseTable::default();
/// table.set(5, 40);
/// assert_eq!((table.get(4), table.get(5), table.get(6)), (None, Some(40), None));
/// ```
#[derive(Clone, Debug, Default)]
pub struct DenseTable {
    numbers: Vec<u32>,
}

/// The array's mark for a block without a number.
const NONE: u32 = u32::MAX;

impl BlockTable for DenseTable {
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

/// A hash table: for any keys. The seed is fixed, because nothing a policy does depends on the table's order.
///
/// ```
/// use terrace_block::policy::{BlockTable, HashedTable};
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
