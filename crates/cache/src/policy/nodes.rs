//! Node tables: the numbers of nodes by the block that each has.
//!
//! Blocks are in an array by node, which the caller owns, so a table need not repeat them.

use std::fmt::Debug;

use super::lists::push_exact;

/// Ends a chain.
const NIL: u32 = u32::MAX;
/// Most nodes for each chain.
const LOAD: usize = 2;

/// A map from block keys to nodes. `blocks` has each node's block.
pub trait NodeTable: Clone + Debug + Default + Send + 'static {
    /// The node with `block`.
    fn get(&self, block: u64, blocks: &[u64]) -> Option<u32>;

    /// Adds a node, whose block has none.
    fn insert(&mut self, node: u32, blocks: &[u64]);

    /// Removes the node with `block` and returns it.
    fn take(&mut self, block: u64, blocks: &[u64]) -> Option<u32>;
}

/// Chains of nodes by the hash of their blocks: six to seven bytes a node.
#[derive(Clone, Debug, Default)]
pub struct NodeChains {
    heads: Vec<u32>,
    /// By node.
    next: Vec<u32>,
    nodes: usize,
}

impl NodeChains {
    fn chain_of(&self, block: u64) -> usize {
        let product = u128::from(block ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        let hash = (product >> 64) as u64 ^ product as u64;
        // The upper half of the product spreads the hash over any number of chains.
        ((u128::from(hash) * self.heads.len() as u128) >> 64) as usize
    }

    fn link(&mut self, node: u32, block: u64) {
        let chain = self.chain_of(block);
        self.next[node as usize] = std::mem::replace(&mut self.heads[chain], node);
    }

    /// Makes half as many chains more.
    fn grow(&mut self, blocks: &[u64]) {
        let chains = self.heads.len() + (self.heads.len() / 2).max(8);
        let old = std::mem::replace(&mut self.heads, vec![NIL; chains]);
        for mut node in old {
            while node != NIL {
                let next = self.next[node as usize];
                self.link(node, blocks[node as usize]);
                node = next;
            }
        }
    }
}

impl NodeTable for NodeChains {
    fn get(&self, block: u64, blocks: &[u64]) -> Option<u32> {
        let mut node = *self.heads.get(self.chain_of(block))?;
        while node != NIL && blocks[node as usize] != block {
            node = self.next[node as usize];
        }
        (node != NIL).then_some(node)
    }

    fn insert(&mut self, node: u32, blocks: &[u64]) {
        if self.nodes >= self.heads.len() * LOAD {
            self.grow(blocks);
        }
        if self.next.len() == node as usize {
            push_exact(&mut self.next, NIL);
        }
        self.link(node, blocks[node as usize]);
        self.nodes += 1;
    }

    fn take(&mut self, block: u64, blocks: &[u64]) -> Option<u32> {
        let chain = self.chain_of(block);
        let (mut before, mut node) = (NIL, *self.heads.get(chain)?);
        while node != NIL && blocks[node as usize] != block {
            (before, node) = (node, self.next[node as usize]);
        }
        if node == NIL {
            return None;
        }
        let next = self.next[node as usize];
        match before {
            NIL => self.heads[chain] = next,
            before => self.next[before as usize] = next,
        }
        self.nodes -= 1;
        Some(node)
    }
}
