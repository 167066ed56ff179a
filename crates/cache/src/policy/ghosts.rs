//! Ghosts: keys of evicted blocks, in lists.
//!
//! ARC, 2Q, S3-FIFO and MQ learn from blocks that return soon; LFU and HeuristicDB keep counts. A
//! ghost has a key, a list and a number of the policy's. Lists share their nodes and reuse freed
//! ones. A policy may have several ghosts for each slot, so each array grows by little at a time.

use super::BlockTable;
use super::lists::{Lists, push_exact};
use super::nodes::NodeTable;

/// Ends the list of free nodes.
const NIL: u32 = u32::MAX;

#[derive(Clone, Debug)]
pub(crate) struct Ghosts<T: BlockTable, const L: usize> {
    nodes: T::Nodes,
    lists: Lists<L>,
    blocks: Vec<u64>,
    /// The policy's number; of a free node the next free one.
    numbers: Vec<u32>,
    /// Empty if there is one list.
    list_of: Vec<u8>,
    free: u32,
}

impl<T: BlockTable, const L: usize> Ghosts<T, L> {
    pub fn new() -> Self {
        Ghosts {
            nodes: T::Nodes::default(),
            lists: Lists::new(0),
            blocks: Vec::new(),
            numbers: Vec::new(),
            list_of: Vec::new(),
            free: NIL,
        }
    }

    #[inline]
    pub fn len(&self, list: usize) -> usize {
        self.lists.len(list)
    }

    #[inline]
    pub fn list_of(&self, block: u64) -> Option<usize> {
        self.nodes.get(block, &self.blocks).map(|node| self.list(node))
    }

    fn list(&self, node: u32) -> usize {
        if L == 1 { 0 } else { self.list_of[node as usize] as usize }
    }

    /// Puts `block`, not yet a ghost, in front of `list` with the policy's `number`.
    #[inline]
    pub fn push_front(&mut self, list: usize, block: u64, number: u32) {
        let node = match self.free {
            NIL => {
                let node = self.blocks.len() as u32;
                push_exact(&mut self.blocks, block);
                push_exact(&mut self.numbers, number);
                if L > 1 {
                    push_exact(&mut self.list_of, list as u8);
                }
                self.lists.grow(node as usize + 1);
                node
            }
            node => {
                self.free = std::mem::replace(&mut self.numbers[node as usize], number);
                self.blocks[node as usize] = block;
                if L > 1 {
                    self.list_of[node as usize] = list as u8;
                }
                node
            }
        };
        self.lists.push_front(list, node);
        self.nodes.insert(node, &self.blocks);
    }

    /// Removes the ghost `block`; returns its list and number.
    #[inline]
    pub fn take(&mut self, block: u64) -> Option<(usize, u32)> {
        let node = self.nodes.take(block, &self.blocks)?;
        let list = self.list(node);
        self.lists.unlink(list, node);
        Some((list, self.release(node)))
    }

    /// Returns the number of `node`, which is free then.
    fn release(&mut self, node: u32) -> u32 {
        let number = std::mem::replace(&mut self.numbers[node as usize], self.free);
        self.free = node;
        number
    }

    #[inline]
    pub fn drop_back(&mut self, list: usize) {
        if let Some(node) = self.lists.pop_back(list) {
            self.nodes.take(self.blocks[node as usize], &self.blocks);
            self.release(node);
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

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::Ghosts;
    use crate::policy::{BlockTable, DenseTable, HashedTable};

    /// Against plain lists.
    fn run<T: BlockTable>(spread: u64) {
        let (mut ghosts, mut model) = (Ghosts::<T, 2>::new(), [VecDeque::new(), VecDeque::new()]);
        let mut state = 7_u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for step in 0..60_000_u32 {
            let (block, list) = (draw(3000) * spread, draw(2) as usize);
            let known = model.iter().position(|list| list.iter().any(|&(other, _)| other == block));
            assert_eq!(ghosts.list_of(block), known);
            match (known, draw(8)) {
                (Some(at), 0..6) => {
                    let index = model[at].iter().position(|&(other, _)| other == block).unwrap();
                    let (_, number) = model[at].remove(index).unwrap();
                    assert_eq!(ghosts.take(block), Some((at, number)));
                }
                (None, 0..6) => {
                    assert_eq!(ghosts.take(block), None);
                    model[list].push_front((block, step));
                    ghosts.push_front(list, block, step);
                }
                (_, 6) => {
                    model[list].pop_back();
                    ghosts.drop_back(list);
                }
                _ if step % 20_000 == 9 => {
                    model.iter_mut().for_each(VecDeque::clear);
                    ghosts.clear();
                }
                _ => {}
            }
            assert_eq!([0, 1].map(|list| ghosts.len(list)), [0, 1].map(|list| model[list].len()));
        }
    }

    #[test]
    fn ghosts_are_found_where_they_were_put() {
        run::<DenseTable>(1);
        run::<HashedTable>(1);
        run::<HashedTable>(1 << 40);
    }
}
