//! Ghosts: keys of evicted blocks, in lists.
//!
//! ARC, 2Q, S3-FIFO and MQ learn from blocks that return soon. A ghost has a key, a list and a
//! number of the policy's. Lists share their nodes and reuse freed ones.

use super::BlockTable;
use super::lists::Lists;

#[derive(Clone, Debug)]
pub(crate) struct Ghosts<T, const L: usize> {
    nodes: T,
    lists: Lists<L>,
    ghosts: Vec<Ghost>,
    free: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Ghost {
    block: u64,
    number: u32,
    list: u8,
}

impl<T: BlockTable, const L: usize> Ghosts<T, L> {
    pub fn new() -> Self {
        Ghosts { nodes: T::default(), lists: Lists::new(0), ghosts: Vec::new(), free: Vec::new() }
    }

    #[inline]
    pub fn len(&self, list: usize) -> usize {
        self.lists.len(list)
    }

    #[inline]
    pub fn list_of(&self, block: u64) -> Option<usize> {
        self.nodes.get(block).map(|node| self.ghosts[node as usize].list as usize)
    }

    /// Puts `block`, not yet a ghost, in front of `list` with the policy's `number`.
    #[inline]
    pub fn push_front(&mut self, list: usize, block: u64, number: u32) {
        let ghost = Ghost { block, number, list: list as u8 };
        let node = match self.free.pop() {
            Some(node) => {
                self.ghosts[node as usize] = ghost;
                node
            }
            None => {
                self.ghosts.push(ghost);
                self.lists.grow(self.ghosts.len());
                self.ghosts.len() as u32 - 1
            }
        };
        self.lists.push_front(list, node);
        self.nodes.set(block, node);
    }

    /// Removes the ghost `block`; returns its list and number.
    #[inline]
    pub fn take(&mut self, block: u64) -> Option<(usize, u32)> {
        let node = self.nodes.take(block)?;
        let Ghost { number, list, .. } = self.ghosts[node as usize];
        self.lists.unlink(list as usize, node);
        self.free.push(node);
        Some((list as usize, number))
    }

    #[inline]
    pub fn drop_back(&mut self, list: usize) {
        if let Some(node) = self.lists.pop_back(list) {
            self.nodes.take(self.ghosts[node as usize].block);
            self.free.push(node);
        }
    }

    pub fn clear(&mut self) {
        for list in 0..L {
            while self.len(list) > 0 {
                self.drop_back(list);
            }
        }
    }
}
