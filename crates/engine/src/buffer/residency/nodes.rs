//! Which nodes the memory of pages is on, and how that of mapped pages goes from those of one tier to those of the other.
//!
//! Nodes are tied to addresses where all that will ever be there is of one tier: frames, and mapped pages of sizes that only DRAM has.
//! A mapped page that may be in either tier has the same address in both, so its memory is taken by a thread that prefers the nodes of the
//! tier as long as that takes ([`PreferredNodes`]), and moved when the page changes tiers. No page is ever a mapping of its own to the
//! kernel for longer than it takes to move it.
//!
//! Nodes are preferred, and may be full; pages may refuse to move. What the kernel does not move stays in the tier that it is in, and
//! what it has put elsewhere from the beginning is counted, by its own word. So where a page is, is what the engine says of it, or is in
//! [`Placement::misplaced`].

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use terrace_block::{Migrate, Node, NodeSet, PreferredNodes, Region, node_of_thread, nodes};

use crate::buffer::stripe::Tier;
use crate::ids::SizeClass;
use crate::stats::MemoryMoves;

/// Bytes of a page of the system's.
const PAGE_BYTES: usize = 4096;

/// The nodes that memory is to be on, where it is not to be where the system puts it.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeOptions {
    pub(crate) dram: Option<NodeSet>,
    pub(crate) middle: Option<NodeSet>,
    /// How memory goes from one to the other.
    pub(crate) migrate: Migrate,
}

/// The nodes of the two tiers.
#[derive(Debug)]
pub(in crate::buffer) struct Placement {
    /// Where memory of each is asked for, if that was said.
    dram: Option<NodeSet>,
    middle: Option<NodeSet>,
    /// Where memory goes that comes up to DRAM.
    up: NodeSet,
    /// Of which there are frames in the middle tier.
    class: SizeClass,
    way: Migrate,
    /// Calls take the nodes of a tier in turn.
    turn: AtomicU64,
    has_warned: AtomicBool,
    counts: Counts,
}

/// What became of memory, in pages of the database's if nothing else is said.
#[derive(Debug, Default)]
struct Counts {
    moved: AtomicU64,
    calls: AtomicU64,
    busy: AtomicU64,
    full: AtomicU64,
    /// Pages of the system's of each tier.
    misplaced: [AtomicU64; 2],
}

/// How much of a page is where it is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    None,
    Some,
    All,
}

impl Placement {
    /// That of a pool whose middle tier has frames of `class`.
    pub(in crate::buffer) fn new(options: &NodeOptions, class: SizeClass) -> Placement {
        let up = match (&options.dram, &options.middle) {
            (Some(dram), _) => dram.clone(),
            (None, Some(middle)) => near(&nodes(), middle),
            // Nothing moves.
            (None, None) => first_node(),
        };
        Placement {
            dram: options.dram.clone(),
            middle: options.middle.clone(),
            up,
            class,
            way: options.migrate,
            turn: AtomicU64::new(0),
            has_warned: AtomicBool::new(false),
            counts: Counts::default(),
        }
    }

    /// The nodes that memory of `tier` is to be on.
    pub(super) fn of(&self, tier: Tier) -> Option<&NodeSet> {
        match tier {
            Tier::Dram => self.dram.as_ref(),
            Tier::Middle => self.middle.as_ref(),
        }
    }

    /// Whether the pages of some addresses are now in one tier and now in the other, each on nodes of its own.
    pub(in crate::buffer) fn splits_addresses(&self) -> bool {
        self.middle.is_some()
    }

    /// Whether who reads a page without a latch while it moves may see zeros.
    pub(in crate::buffer) fn takes_bytes_away(&self) -> bool {
        self.way == Migrate::Copy
    }

    /// The nodes of the addresses of mapped pages of `class`, if all of them are of one tier.
    pub(super) fn of_addresses(&self, class: SizeClass) -> Option<&NodeSet> {
        self.dram.as_ref().filter(|_| !self.splits_addresses() || class != self.class)
    }

    /// Pages of the system's that are not on the nodes that were asked for, of those that came to `tier`.
    pub(in crate::buffer) fn misplaced(&self, tier: Tier) -> u64 {
        self.counts.misplaced[tier as usize].load(Relaxed)
    }

    /// How memory went from tier to tier.
    pub(in crate::buffer) fn moves(&self) -> MemoryMoves {
        MemoryMoves {
            pages: self.counts.moved.load(Relaxed),
            calls: self.counts.calls.load(Relaxed),
            busy: self.counts.busy.load(Relaxed),
            full: self.counts.full.load(Relaxed),
        }
    }

    /// Tries what will be asked of the system for mapped pages in `region`, so that what it refuses is known at open.
    pub(super) fn try_all(&self, region: &Region) -> io::Result<()> {
        for tier in [Tier::Dram, Tier::Middle] {
            self.of(tier).map(PreferredNodes::new).transpose()?;
        }
        region.nodes_of(&[0])?;
        if self.way != Migrate::Batch {
            region.place_anywhere(std::slice::from_mut(&mut (0..PAGE_BYTES)))?;
        }
        Ok(())
    }

    /// Has the calling thread prefer the nodes of `tier`, as long as what is returned lives. What the system refuses now it did not at
    /// open; what comes is then counted by where it is.
    pub(super) fn prefer(&self, tier: Tier) -> Option<PreferredNodes> {
        let preferred = self.of(tier).map(PreferredNodes::new)?;
        preferred.inspect_err(|error| self.warn(error)).ok()
    }

    /// Counts those of the system's pages in `ranges`, which have come to `tier`, that are not on its nodes.
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

    /// Counts pages of the system's that are not on the nodes of `tier`.
    pub(super) fn count_misplaced(&self, tier: Tier, pages: u64) {
        let before = self.counts.misplaced[tier as usize].fetch_add(pages, Relaxed);
        if pages > 0 && before == 0 {
            tracing::warn!(pages, ?tier, "pages of the system's are not on the nodes of their tier");
        }
    }

    /// Moves the memory of `pages` in `region`, each a range, to nodes of `tier`; says of each whether it is there, all of it. Others have
    /// stayed. Nobody else uses them meanwhile.
    pub(super) fn migrate(&self, region: &Region, pages: &[Range<usize>], tier: Tier) -> Vec<bool> {
        let (moved, full) = self.try_move(region, pages, tier);
        let mut parts = vec![Part::All; pages.len()];
        if !moved {
            parts = self.parts_on(region, pages, tier);
            self.take_back(region, pages, &parts, tier);
        }
        let there: Vec<bool> = parts.into_iter().map(|part| part == Part::All).collect();
        #[cfg(test)]
        let there = super::tests::refuse_moves(there);
        let count = there.iter().filter(|there| **there).count() as u64;
        self.counts.moved.fetch_add(count, Relaxed);
        let refused = if full { &self.counts.full } else { &self.counts.busy };
        refused.fetch_add(pages.len() as u64 - count, Relaxed);
        there
    }

    /// Moves what can be; whether that is all of it, and whether a node was full.
    fn try_move(&self, region: &Region, pages: &[Range<usize>], tier: Tier) -> (bool, bool) {
        let moved = region.migrate(&mut pages.to_vec(), self.target(tier), self.way);
        let mut calls = moved.as_ref().map_or(1, |moved| moved.calls);
        if self.way != Migrate::Batch {
            // The choice of a node that is left behind would be that of whatever comes to these addresses next.
            match region.place_anywhere(&mut pages.to_vec()) {
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

    /// Moves pages back that have gone to `tier` in part; what stays there is misplaced.
    fn take_back(&self, region: &Region, pages: &[Range<usize>], parts: &[Part], tier: Tier) {
        let torn = pages.iter().zip(parts).filter(|(_, part)| **part == Part::Some);
        let torn: Vec<Range<usize>> = torn.map(|(page, _)| page.clone()).collect();
        let from = if tier == Tier::Dram { Tier::Middle } else { Tier::Dram };
        if !torn.is_empty() && !self.try_move(region, &torn, from).0 {
            self.count_misplaced_in(region, &torn, from);
        }
    }

    /// How much of each page the system has on the nodes of `tier`; nothing of any if it does not say.
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

    /// Where memory goes that is to come to `tier`.
    fn targets(&self, tier: Tier) -> &NodeSet {
        match (tier, &self.middle) {
            (Tier::Middle, Some(middle)) => middle,
            _ => &self.up,
        }
    }

    /// The node that the pages of one call go to: that of the thread, where nothing else was said of DRAM, or the next in turn.
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

    /// Says once what the system refuses; from then on it is counted alone.
    fn warn(&self, error: &io::Error) {
        if !self.has_warned.swap(true, Relaxed) {
            tracing::warn!(%error, "the system refuses what it did not at open; pages stay on the nodes that they are on");
        }
    }
}

/// The offsets of the system's pages in `ranges`.
fn offsets(ranges: &[Range<usize>]) -> Vec<usize> {
    ranges.iter().flat_map(|range| range.clone().step_by(PAGE_BYTES)).collect()
}

/// The nodes of DRAM where nobody has said which: those with processors that are not of the middle tier, or all that are not, or the
/// middle tier's where there are no others.
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
        let nodes = Placement::new(&options, SizeClass::SMALLEST);
        let targets = |tier| [nodes.target(tier), nodes.target(tier), nodes.target(tier)];
        assert_eq!(targets(Tier::Middle), [1, 2, 1]);
        assert_eq!(targets(Tier::Dram), [3, 0, 3]);
        assert_eq!(nodes.of_addresses(SizeClass::SMALLEST), None);
        assert_eq!(nodes.of_addresses(SizeClass::LARGEST), options.dram.as_ref());
    }
}
