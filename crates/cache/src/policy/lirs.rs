//! LIRS: keeps blocks with a short distance between uses (Jiang and Zhang, SIGMETRICS 2002).
//!
//! The stack S orders blocks by last use; the queue Q holds the few resident blocks of high
//! inter-reference recency (HIR), which leave first. A HIR block used while in S replaces the LIR
//! block at the bottom of S, which is always LIR ("pruning"). HIR blocks get one per cent of the
//! capacity, as in the paper. Evicted blocks still in S are ghosts: unbounded in the paper, here at
//! most as many as slots, and the oldest go first.

use super::lists::Lists;
use super::{Access, BlockTable, Policy, Slot};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Lir,
    Hir,
    Ghost,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    block: u64,
    slot: u32,
    state: State,
    in_stack: bool,
}

/// The LIRS policy.
///
/// ```
/// use terrace_cache::policy::{Access, HashedTable, Lirs, Policy, Slot};
///
/// let mut policy = Lirs::<HashedTable>::new(2);
/// policy.insert(Access::read(4), Slot(0));
/// policy.insert(Access::read(5), Slot(1));
/// assert_eq!(policy.victim(Access::read(6)), Some(Slot(1)));
/// ```
#[derive(Clone, Debug)]
pub struct Lirs<T> {
    nodes: Vec<Node>,
    free: Vec<u32>,
    node_of_slot: Vec<u32>,
    ghost_nodes: T,
    /// S, most recently used in front.
    stack: Lists<1>,
    /// Q, next victim at the back, and ghosts, oldest at the back. No node is in both.
    queues: Lists<2>,
    lir_len: usize,
    lir_max: usize,
    ghosts_max: usize,
}

const RESIDENT: usize = 0;
const GHOSTS: usize = 1;

impl<T: BlockTable> Lirs<T> {
    /// For `capacity` blocks.
    pub fn new(capacity: usize) -> Self {
        let mut policy = Lirs {
            nodes: Vec::new(),
            free: Vec::new(),
            node_of_slot: Vec::new(),
            ghost_nodes: T::default(),
            stack: Lists::new(0),
            queues: Lists::new(0),
            lir_len: 0,
            lir_max: 0,
            ghosts_max: 0,
        };
        policy.resize(capacity);
        policy
    }

    fn allocate(&mut self, node: Node) -> u32 {
        if let Some(index) = self.free.pop() {
            self.nodes[index as usize] = node;
            return index;
        }
        self.nodes.push(node);
        self.stack.grow(self.nodes.len());
        self.queues.grow(self.nodes.len());
        self.nodes.len() as u32 - 1
    }

    fn push_stack(&mut self, node: u32) {
        self.nodes[node as usize].in_stack = true;
        self.stack.push_front(0, node);
    }

    fn leave_stack(&mut self, node: u32) {
        self.nodes[node as usize].in_stack = false;
        self.stack.unlink(0, node);
    }

    fn drop_ghost(&mut self, node: u32) {
        self.queues.unlink(GHOSTS, node);
        self.leave_stack(node);
        self.ghost_nodes.take(self.nodes[node as usize].block);
        self.free.push(node);
    }

    /// Pops blocks off the bottom of S until it is LIR.
    fn prune(&mut self) {
        while let Some(bottom) = self.stack.back(0) {
            match self.nodes[bottom as usize].state {
                State::Lir => return,
                State::Hir => self.leave_stack(bottom),
                State::Ghost => self.drop_ghost(bottom),
            }
        }
    }

    /// Makes `node`, in S, LIR, and the bottom LIR block HIR if there are too many.
    fn promote(&mut self, node: u32) {
        self.nodes[node as usize].state = State::Lir;
        self.stack.move_to_front(0, node);
        self.lir_len += 1;
        self.shrink_lir();
    }

    fn shrink_lir(&mut self) {
        while self.lir_len > self.lir_max {
            self.prune();
            let Some(bottom) = self.stack.back(0) else { return };
            self.nodes[bottom as usize].state = State::Hir;
            self.lir_len -= 1;
            self.leave_stack(bottom);
            self.queues.push_front(RESIDENT, bottom);
        }
        self.prune();
    }
}

impl<T: BlockTable> Policy for Lirs<T> {
    fn hit(&mut self, slot: Slot, _: Access) {
        let node = self.node_of_slot[slot.index()];
        let Node { state, in_stack, .. } = self.nodes[node as usize];
        match (state, in_stack) {
            (State::Hir, true) => {
                self.queues.unlink(RESIDENT, node);
                self.promote(node);
            }
            (State::Hir, false) => {
                self.push_stack(node);
                self.queues.move_to_front(RESIDENT, node);
            }
            _ => {
                self.stack.move_to_front(0, node);
                self.prune();
            }
        }
    }

    fn victim(&mut self, _: Access) -> Option<Slot> {
        if let Some(node) = self.queues.pop_back(RESIDENT) {
            let Node { block, slot, in_stack, .. } = self.nodes[node as usize];
            if in_stack {
                self.nodes[node as usize].state = State::Ghost;
                self.ghost_nodes.set(block, node);
                self.queues.push_front(GHOSTS, node);
            } else {
                self.free.push(node);
            }
            // A cache of one block has no LIR block to keep the ghost above the bottom of S.
            self.prune();
            return Some(Slot(slot));
        }
        let slot = self.coldest()?;
        self.remove(slot);
        Some(slot)
    }

    fn coldest(&self) -> Option<Slot> {
        // Between calls the bottom of S is LIR, hence resident.
        let node = self.queues.back(RESIDENT).or_else(|| self.stack.back(0))?;
        Some(Slot(self.nodes[node as usize].slot))
    }

    fn insert(&mut self, access: Access, slot: Slot) {
        if let Some(node) = self.ghost_nodes.take(access.block) {
            self.queues.unlink(GHOSTS, node);
            self.nodes[node as usize].slot = slot.0;
            self.node_of_slot[slot.index()] = node;
            self.promote(node);
        } else {
            let state = if self.lir_len < self.lir_max { State::Lir } else { State::Hir };
            let node = self.allocate(Node { block: access.block, slot: slot.0, state, in_stack: false });
            self.node_of_slot[slot.index()] = node;
            self.push_stack(node);
            match state {
                State::Lir => self.lir_len += 1,
                _ => self.queues.push_front(RESIDENT, node),
            }
        }
        while self.queues.len(GHOSTS) > self.ghosts_max
            && let Some(oldest) = self.queues.back(GHOSTS)
        {
            self.drop_ghost(oldest);
        }
    }

    fn remove(&mut self, slot: Slot) {
        let node = self.node_of_slot[slot.index()];
        if self.nodes[node as usize].in_stack {
            self.leave_stack(node);
        }
        match self.nodes[node as usize].state {
            State::Lir => self.lir_len -= 1,
            _ => self.queues.unlink(RESIDENT, node),
        }
        self.free.push(node);
        self.prune();
    }

    fn renamed(&mut self, slot: Slot, access: Access) {
        if let Some(ghost) = self.ghost_nodes.get(access.block) {
            self.drop_ghost(ghost);
            self.prune();
        }
        self.nodes[self.node_of_slot[slot.index()] as usize].block = access.block;
    }

    fn moved(&mut self, from: Slot, to: Slot, _: Access) {
        let node = self.node_of_slot[from.index()];
        self.nodes[node as usize].slot = to.0;
        self.node_of_slot[to.index()] = node;
    }

    fn resize(&mut self, capacity: usize) {
        self.lir_max = capacity - (capacity / 100).max(1);
        self.ghosts_max = capacity;
        self.node_of_slot.resize(capacity.max(self.node_of_slot.len()), 0);
        self.shrink_lir();
    }
}
