//! NUMA nodes of the two tiers, and migration of mapped pages.
//!
//! Addresses that serve only one tier are bound to its nodes. A mapped page keeps its address in
//! both tiers. Its memory is allocated while the thread prefers the tier's nodes
//! ([`PreferredNodes`]), and migrates when the page changes tiers. So the kernel keeps no mapping
//! per page.
//!
//! Nodes may be full, and pages may refuse to move. A page that does not move stays in its tier.
//! [`Placement::misplaced`] counts memory that the kernel allocated elsewhere.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use terrace_io::{Migrate, Node, NodeSet, PreferredNodes, Region, node_of_thread, nodes};

use super::partition::Tier;
use crate::stats::MemoryMoves;

const PAGE_BYTES: usize = 4096;

/// Nodes requested for each tier; without a request the kernel chooses.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeOptions {
    pub(crate) dram: Option<NodeSet>,
    pub(crate) middle: Option<NodeSet>,
    pub(crate) migrate: Migrate,
}

#[derive(Debug)]
pub(crate) struct Placement {
    dram: Option<NodeSet>,
    middle: Option<NodeSet>,
    /// Target nodes of promotion.
    up: NodeSet,
    way: Migrate,
    /// Spreads calls over the nodes of a tier, round robin.
    turn: AtomicU64,
    has_warned: AtomicBool,
    counts: NodeCounts,
}

#[derive(Debug, Default)]
struct NodeCounts {
    moved: AtomicU64,
    calls: AtomicU64,
    busy: AtomicU64,
    full: AtomicU64,
    misplaced: [AtomicU64; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    None,
    Some,
    All,
}

impl Placement {
    pub(crate) fn new(options: &NodeOptions) -> Placement {
        let up = match (&options.dram, &options.middle) {
            (Some(dram), _) => dram.clone(),
            (None, Some(middle)) => near(&nodes(), middle),
            // Nothing migrates.
            (None, None) => first_node(),
        };
        Placement {
            dram: options.dram.clone(),
            middle: options.middle.clone(),
            up,
            way: options.migrate,
            turn: AtomicU64::new(0),
            has_warned: AtomicBool::new(false),
            counts: NodeCounts::default(),
        }
    }

    pub(super) fn of(&self, tier: Tier) -> Option<&NodeSet> {
        match tier {
            Tier::Dram => self.dram.as_ref(),
            Tier::Middle => self.middle.as_ref(),
        }
    }

    /// Whether pages change tiers at one address, with nodes per tier.
    pub(crate) fn splits_addresses(&self) -> bool {
        self.middle.is_some()
    }

    pub(crate) fn takes_bytes_away(&self) -> bool {
        self.way == Migrate::Copy
    }

    /// The nodes of mapped addresses, if one tier has them all.
    pub(super) fn of_addresses(&self) -> Option<&NodeSet> {
        self.dram.as_ref().filter(|_| !self.splits_addresses())
    }

    pub(crate) fn misplaced(&self, tier: Tier) -> u64 {
        self.counts.misplaced[tier as usize].load(Relaxed)
    }

    pub(crate) fn moves(&self) -> MemoryMoves {
        MemoryMoves {
            pages: self.counts.moved.load(Relaxed),
            calls: self.counts.calls.load(Relaxed),
            busy: self.counts.busy.load(Relaxed),
            full: self.counts.full.load(Relaxed),
        }
    }

    /// Tries every system call that mapped pages in `region` will need.
    ///
    /// So open reports a refusal.
    pub(super) fn try_all(&self, region: &Region) -> io::Result<()> {
        for tier in [Tier::Dram, Tier::Middle] {
            self.of(tier).map(PreferredNodes::new).transpose()?;
        }
        region.nodes_of(&[0])?;
        if self.way != Migrate::Batch {
            region.bind_anywhere(std::slice::from_mut(&mut (0..PAGE_BYTES)))?;
        }
        Ok(())
    }

    /// Makes the thread prefer the nodes of `tier` while the result lives.
    ///
    /// A refusal is only logged: pages are counted where they land.
    pub(super) fn prefer(&self, tier: Tier) -> Option<PreferredNodes> {
        let preferred = self.of(tier).map(PreferredNodes::new)?;
        preferred.inspect_err(|error| self.warn(error)).ok()
    }

    pub(super) fn count_misplaced_in(&self, region: &Region, ranges: &[Range<usize>], tier: Tier) {
        let Some(nodes) = self.of(tier) else { return };
        match region.nodes_of(&offsets(ranges)) {
            Ok(found) => {
                let elsewhere = found.into_iter().flatten().filter(|&node| !nodes.contains(node)).count();
                self.count_misplaced(tier, elsewhere as u64);
            }
            Err(error) => self.warn(&error),
        }
    }

    pub(super) fn count_misplaced(&self, tier: Tier, pages: u64) {
        let before = self.counts.misplaced[tier as usize].fetch_add(pages, Relaxed);
        if pages > 0 && before == 0 {
            tracing::warn!(pages, ?tier, "pages of the system's are not on the nodes of their tier");
        }
    }

    /// Migrates the memory of `pages`; says which arrived in full.
    ///
    /// The others stay. No other thread may use the pages meanwhile.
    pub(super) fn migrate(&self, region: &Region, pages: &[Range<usize>], tier: Tier) -> Vec<bool> {
        let (moved, full) = self.try_move(region, pages, tier);
        let mut parts = vec![Part::All; pages.len()];
        if !moved {
            parts = self.parts_on(region, pages, tier);
            self.take_back(region, pages, &parts, tier);
        }
        let there: Vec<bool> = parts.into_iter().map(|part| part == Part::All).collect();
        #[cfg(test)]
        let there = super::residency_tests::refuse_moves(there);
        let count = there.iter().filter(|there| **there).count() as u64;
        self.counts.moved.fetch_add(count, Relaxed);
        let refused = if full { &self.counts.full } else { &self.counts.busy };
        refused.fetch_add(pages.len() as u64 - count, Relaxed);
        there
    }

    /// Moves as many as it can.
    ///
    /// Returns whether all moved, and whether a node was full.
    fn try_move(&self, region: &Region, pages: &[Range<usize>], tier: Tier) -> (bool, bool) {
        let moved = region.migrate(&mut pages.to_vec(), self.target(tier), self.way);
        let mut calls = moved.as_ref().map_or(1, |moved| moved.calls);
        if self.way != Migrate::Batch {
            // Otherwise the next memory at these addresses would be bound too.
            match region.bind_anywhere(&mut pages.to_vec()) {
                Ok(more) => calls += more,
                Err(error) => self.warn(&error),
            }
        }
        self.counts.calls.fetch_add(calls as u64, Relaxed);
        match moved {
            Ok(moved) => (moved.full + moved.refused == 0, moved.full > 0),
            Err(error) => {
                self.warn(&error);
                (false, error.kind() == io::ErrorKind::OutOfMemory)
            }
        }
    }

    /// Moves partly migrated pages back. NodeCounts the rest as misplaced.
    fn take_back(&self, region: &Region, pages: &[Range<usize>], parts: &[Part], tier: Tier) {
        let torn = pages.iter().zip(parts).filter(|(_, part)| **part == Part::Some);
        let torn: Vec<Range<usize>> = torn.map(|(page, _)| page.clone()).collect();
        let from = if tier == Tier::Dram { Tier::Middle } else { Tier::Dram };
        if !torn.is_empty() && !self.try_move(region, &torn, from).0 {
            self.count_misplaced_in(region, &torn, from);
        }
    }

    fn parts_on(&self, region: &Region, pages: &[Range<usize>], tier: Tier) -> Vec<Part> {
        let found = region.nodes_of(&offsets(pages)).unwrap_or_else(|error| {
            self.warn(&error);
            Vec::new()
        });
        let nodes = self.targets(tier);
        let mut found = found.into_iter();
        let part = |page: &Range<usize>| {
            let there = found.by_ref().take(page.len() / PAGE_BYTES);
            let on = there.filter(|node| node.is_some_and(|node| nodes.contains(node))).count();
            match on * PAGE_BYTES {
                0 => Part::None,
                bytes if bytes == page.len() => Part::All,
                _ => Part::Some,
            }
        };
        pages.iter().map(part).collect()
    }

    fn targets(&self, tier: Tier) -> &NodeSet {
        match (tier, &self.middle) {
            (Tier::Middle, Some(middle)) => middle,
            _ => &self.up,
        }
    }

    /// The target node of one call.
    ///
    /// The thread's own node if the user requested none for DRAM, else the next in turn.
    fn target(&self, tier: Tier) -> u32 {
        let nodes = self.targets(tier);
        if tier == Tier::Dram
            && self.dram.is_none()
            && let Ok(node) = node_of_thread()
            && nodes.contains(node)
        {
            return node;
        }
        let turn = self.turn.fetch_add(1, Relaxed) as usize % nodes.len();
        nodes.iter().nth(turn).expect("there are as many")
    }

    /// Logs only the first refusal by the system.
    fn warn(&self, error: &io::Error) {
        if !self.has_warned.swap(true, Relaxed) {
            tracing::warn!(%error, "the system refuses what it did not at open; pages stay on the nodes that they are on");
        }
    }
}

fn offsets(ranges: &[Range<usize>]) -> Vec<usize> {
    ranges.iter().flat_map(|range| range.clone().step_by(PAGE_BYTES)).collect()
}

/// Default nodes of DRAM: outside the middle tier, with processors if possible.
fn near(there: &[Node], middle: &NodeSet) -> NodeSet {
    let others = || there.iter().filter(|node| !middle.contains(node.node));
    let numbers = |with_processors: bool| -> Vec<u32> {
        let nodes = others().filter(|node| !with_processors || !node.cpus.is_empty());
        nodes.map(|node| node.node).collect()
    };
    let sets = [numbers(true), numbers(false)];
    sets.iter().find_map(|set| NodeSet::of(set).ok()).unwrap_or_else(|| middle.clone())
}

fn first_node() -> NodeSet {
    NodeSet::of(&[0]).expect("0 is the number of a node")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_up_to_nodes_with_processors_that_are_not_the_middle_tiers() {
        let node = |node, cpus: &[u32]| {
            let mut found = nodes().remove(0);
            (found.node, found.cpus) = (node, cpus.to_vec());
            found
        };
        let there = [node(0, &[0]), node(1, &[1]), node(2, &[]), node(3, &[])];
        let near = |there: &[Node], middle: &str| near(there, &middle.parse().unwrap()).to_string();
        assert_eq!(near(&there, "2"), "0,1");
        assert_eq!(near(&there, "1-2"), "0");
        assert_eq!(near(&there, "0-1"), "2,3");
        assert_eq!(near(&there[..1], "0"), "0", "the tiers are on one node");
        assert_eq!(near(&[], "1"), "1");
    }

    #[test]
    fn calls_take_the_nodes_of_a_tier_in_turn() {
        let options = NodeOptions {
            dram: Some("0,3".parse().unwrap()),
            middle: Some("1-2".parse().unwrap()),
            ..NodeOptions::default()
        };
        let nodes = Placement::new(&options);
        let targets = |tier| [nodes.target(tier), nodes.target(tier), nodes.target(tier)];
        assert_eq!(targets(Tier::Middle), [1, 2, 1]);
        assert_eq!(targets(Tier::Dram), [3, 0, 3]);
        assert_eq!(nodes.of_addresses(), None);
        let dram_only = NodeOptions { middle: None, ..options.clone() };
        assert_eq!(Placement::new(&dram_only).of_addresses(), options.dram.as_ref());
    }
}
