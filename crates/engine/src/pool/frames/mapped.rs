//! Page bytes at addresses computed from page ids.
//!
//! At its first use, each class reserves addresses for every page that may ever exist. A page's
//! index is its position in that range.

use std::io;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use terrace_io::Region;

use super::fixed::{Fixed, PAGE_SHIFT};
use super::nodes::Placement;
use super::partition::{PageFrame, Partition, Tier, class_index_of, is_middle};
use crate::ids::{ByClass, PageId, SizeClass};
use crate::pool::page_table::indexes_max;

#[derive(Debug)]
pub(crate) struct MappedFrames {
    classes: ByClass<OnceLock<Region>>,
    /// Upper limit of pages of the smallest class.
    pages_max: u64,
    /// Addresses of frames that hold no page.
    own: Fixed,
    /// Pages and own frames with memory, per class.
    resident: ByClass<AtomicU64>,
}

impl MappedFrames {
    pub(super) fn over(own: Fixed, pages_max: u64) -> MappedFrames {
        MappedFrames { classes: Default::default(), pages_max, own, resident: Default::default() }
    }

    /// Binds frames without pages to the nodes of DRAM.
    pub(super) fn bind_own(&self, nodes: &Placement) -> io::Result<()> {
        let region = self.own.region();
        nodes.of(Tier::Dram).map_or(Ok(()), |wanted| region.bind_to(0..region.len(), wanted))
    }

    /// Reserves the address range of a partition's class, once.
    ///
    /// Binds the range to nodes if all its pages are in one tier. One caller at a time.
    pub(super) fn use_class(&self, partition: Partition, nodes: &Placement) -> io::Result<()> {
        let class = partition.class;
        let range_of_class = &self.classes[class.index()];
        if range_of_class.get().is_none() {
            let bytes = (indexes_max(self.pages_max, class) as usize) << (PAGE_SHIFT + class.index());
            let pages = Region::reserve_sparse(bytes, class.page_bytes()).map_err(|error| {
                let what = format!("{bytes} bytes of addresses for pages of {} bytes", class.page_bytes());
                io::Error::new(error.kind(), format!("{what}: {error}"))
            })?;
            if let Some(wanted) = nodes.of_addresses() {
                pages.bind_to(0..pages.len(), wanted)?;
            }
            range_of_class.get_or_init(|| pages);
        }
        match range_of_class.get().filter(|_| partition.tier == Tier::Middle && nodes.splits_addresses()) {
            Some(pages) => nodes.try_all(pages),
            None => Ok(()),
        }
    }

    #[inline(always)]
    pub(super) fn words(&self, id: PageId) -> &[AtomicU64] {
        self.region(id).words(bytes(id))
    }

    #[inline(always)]
    fn region(&self, id: PageId) -> &Region {
        self.classes[id.class_index()].get().expect("pages in frames are of classes in use")
    }

    pub(super) fn page_at(&self, address: usize) -> Option<PageId> {
        let (mut regions, classes) = (self.classes.iter(), SizeClass::all());
        classes.zip(&mut regions).find_map(|(class, region)| {
            let offset = region.get()?.offset_of(address)?;
            Some(PageId::new(class, (offset >> (PAGE_SHIFT + class.index())) as u64))
        })
    }

    pub(super) fn resident_bytes(&self, class: SizeClass) -> u64 {
        self.resident[class.index()].load(Relaxed) * class.page_bytes() as u64
    }

    pub(super) fn huge_pages(&self, class: SizeClass) -> bool {
        self.classes[class.index()].get().is_some_and(Region::huge_pages)
    }

    pub(super) fn populate(&self, pages: &[PageFrame], nodes: &Placement) -> io::Result<()> {
        // Counted even on failure, because the caller then discards them.
        pages.iter().for_each(|(id, _)| _ = self.resident[id.class_index()].fetch_add(1, Relaxed));
        if nodes.splits_addresses() {
            for tier in [Tier::Dram, Tier::Middle] {
                let in_tier = |(_, frame): &&PageFrame| is_middle(*frame) == (tier == Tier::Middle);
                self.populate_in(tier, &pages.iter().filter(in_tier).copied().collect::<Vec<_>>(), nodes)?;
            }
        } else {
            self.each_class(pages, Region::populate)?;
            self.count_misplaced(pages, Tier::Dram, nodes);
        }
        #[cfg(test)]
        super::residency_tests::refuse()?;
        Ok(())
    }

    fn populate_in(&self, tier: Tier, pages: &[PageFrame], nodes: &Placement) -> io::Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        let preferred = nodes.prefer(tier);
        self.each_class(pages, Region::populate)?;
        drop(preferred);
        self.count_misplaced(pages, tier, nodes);
        Ok(())
    }

    fn count_misplaced(&self, pages: &[PageFrame], tier: Tier, nodes: &Placement) {
        if nodes.of(tier).is_none() {
            return;
        }
        let counted = self.each_class(pages, |region, ranges| {
            nodes.count_misplaced_in(region, ranges, tier);
            Ok(())
        });
        debug_assert!(counted.is_ok(), "it refuses nothing");
    }

    pub(super) fn migrate(&self, pages: &[PageId], tier: Tier, nodes: &Placement) -> Vec<bool> {
        let ranges: Vec<Range<usize>> = pages.iter().map(|&id| bytes(id)).collect();
        pages.first().map_or_else(Vec::new, |&id| nodes.migrate(self.region(id), &ranges, tier))
    }

    #[cfg(test)]
    pub(super) fn nodes_of(&self, id: PageId) -> Vec<u32> {
        let pages: Vec<usize> = bytes(id).step_by(SizeClass::SMALLEST.page_bytes()).collect();
        self.region(id).nodes_of(&pages).unwrap().into_iter().flatten().collect()
    }

    pub(super) fn discard(&self, pages: &[PageFrame]) -> io::Result<()> {
        pages.iter().for_each(|(id, _)| _ = self.resident[id.class_index()].fetch_sub(1, Relaxed));
        self.each_class(pages, Region::discard)
    }

    /// Calls `change` once per class with its ranges.
    ///
    /// Continues after an error and returns the first one.
    fn each_class(
        &self,
        pages: &[PageFrame],
        change: impl Fn(&Region, &mut [Range<usize>]) -> io::Result<()>,
    ) -> io::Result<()> {
        if let &[(id, _)] = pages {
            return change(self.region(id), &mut [bytes(id)]);
        }
        let mut ranges = Vec::with_capacity(pages.len());
        let mut outcome = Ok(());
        for (class, region) in self.classes.iter().enumerate() {
            let of_class = pages.iter().filter(|(id, _)| id.class_index() == class);
            ranges.clear();
            ranges.extend(of_class.map(|&(id, _)| bytes(id)));
            if let (Some(region), false) = (region.get(), ranges.is_empty()) {
                outcome = outcome.and(change(region, &mut ranges));
            }
        }
        outcome
    }

    #[inline(always)]
    pub(super) fn own_words(&self, frame: u32) -> &[AtomicU64] {
        self.own.words(frame)
    }

    pub(super) fn populate_own(&self, frames: &[u32], nodes: &Placement) -> io::Result<()> {
        frames.iter().for_each(|&frame| _ = self.resident[class_index_of(frame)].fetch_add(1, Relaxed));
        let mut ranges = self.own_ranges(frames);
        self.own.region().populate(&mut ranges)?;
        nodes.count_misplaced_in(self.own.region(), &self.own_ranges(frames), Tier::Dram);
        #[cfg(test)]
        super::residency_tests::refuse()?;
        Ok(())
    }

    pub(super) fn discard_own(&self, frames: &[u32]) -> io::Result<()> {
        frames.iter().for_each(|&frame| _ = self.resident[class_index_of(frame)].fetch_sub(1, Relaxed));
        self.own.region().discard(&mut self.own_ranges(frames))
    }

    fn own_ranges(&self, frames: &[u32]) -> Vec<Range<usize>> {
        frames.iter().map(|&frame| self.own.bytes(frame)).collect()
    }
}

#[inline(always)]
fn bytes(id: PageId) -> Range<usize> {
    let shift = PAGE_SHIFT + id.class_index();
    let start = (id.index() as usize) << shift;
    start..start + (1 << shift)
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};
    use terrace_io::Region;

    use super::super::nodes::NodeOptions;
    use super::*;

    fn system_bytes(words: &[AtomicU64]) -> u64 {
        let address = words.as_ptr().addr();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines();
        let holds = |line: &str| {
            let bounds = line.split(' ').next().and_then(|bounds| bounds.split_once('-'));
            let number = |text: &str| usize::from_str_radix(text, 16);
            bounds.is_some_and(|(start, end)| match (number(start), number(end)) {
                (Ok(start), Ok(end)) => (start..end).contains(&address),
                _ => false,
            })
        };
        lines.by_ref().find(|line| holds(line)).expect("the words are mapped");
        let line = lines.find(|line| line.starts_with("Rss:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    fn mappings() -> usize {
        std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
    }

    /// Requests other nodes than the system was told, like full nodes.
    #[test]
    fn pages_that_the_system_has_put_elsewhere_are_counted_whatever_they_are_of() {
        let own =
            Fixed::reserve(&[4; 2 * SizeClass::COUNT], |bytes| Region::reserve_sparse(bytes, 4096)).unwrap();
        let mapped = MappedFrames::over(own, 1 << 12);
        let class = SizeClass::from_index(1).unwrap();
        mapped.use_class(class.into(), &Placement::new(&NodeOptions::default())).unwrap();
        let dram = Some("5".parse().unwrap());
        let nodes = Placement::new(&NodeOptions { dram, ..NodeOptions::default() });
        let pages =
            [PageId::new(class, 3), PageId::new(class, 9)].map(|id| (id, Partition::from(class).frame(0)));
        mapped.populate(&pages, &nodes).unwrap();
        assert_eq!(nodes.misplaced(Tier::Dram), 4);
        mapped.populate_own(&[Partition::from(class).frame(1)], &nodes).unwrap();
        assert_eq!((nodes.misplaced(Tier::Dram), nodes.misplaced(Tier::Middle)), (6, 0));
    }

    #[test]
    fn only_pages_that_are_there_have_memory_whoever_looks_at_others() {
        const PAGES_MAX: u64 = 1 << 16;
        let own =
            Fixed::reserve(&[4; 2 * SizeClass::COUNT], |bytes| Region::reserve_sparse(bytes, 4096)).unwrap();
        let mapped = MappedFrames::over(own, PAGES_MAX);
        let nodes = Placement::new(&NodeOptions::default());
        SizeClass::all().for_each(|class| mapped.use_class(class.into(), &nodes).unwrap());
        let before = mappings();
        let seed = 7;
        let mut random = SmallRng::seed_from_u64(seed);
        let mut there: Vec<PageFrame> = Vec::new();
        for round in 0..50 {
            let mut come = Vec::new();
            for _ in 0..random.random_range(1..100) {
                let class = SizeClass::from_index(random.random_range(0..SizeClass::COUNT)).unwrap();
                let id = PageId::new(class, random.random_range(0..indexes_max(PAGES_MAX, class)));
                if there.iter().chain(&come).all(|&(other, _)| other != id) {
                    come.push((id, 0));
                }
            }
            mapped.populate(&come, &nodes).unwrap();
            come.iter().for_each(|&(id, _)| mapped.words(id)[1].store(id.0 + 1, Relaxed));
            there.extend(come);
            let go = there.split_off(random.random_range(there.len() / 2..there.len()));
            mapped.discard(&go).unwrap();
            for &(id, _) in &go {
                assert!(mapped.words(id).iter().all(|word| word.load(Relaxed) == 0), "{id}, seed {seed}");
            }
            for &(id, _) in &there {
                assert_eq!(mapped.words(id)[1].load(Relaxed), id.0 + 1, "round {round}, seed {seed}");
            }
            for class in SizeClass::all() {
                let bytes = mapped.resident_bytes(class);
                let of_class = there.iter().filter(|(id, _)| id.class() == Some(class)).count();
                assert_eq!(bytes, (of_class * class.page_bytes()) as u64);
                let first = mapped.words(PageId::new(class, 0));
                assert_eq!(system_bytes(first), bytes, "{class:?} in round {round}, seed {seed}");
            }
        }
        // Other tests of this process map memory too, but far less often.
        assert!(mappings() < before + 1000, "{} mappings, {before} before", mappings());
    }
}
