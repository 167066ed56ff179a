//! Bytes at the addresses that page ids are: each class has a range with an address for every page there may ever be, from
//! when it is first used on, and a page's index says where in it the page is.

use std::io;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use terrace_block::Region;

use super::fixed::Fixed;
use super::nodes::Placement;
use super::{Housed, PAGE_SHIFT};
use crate::buffer::stripe::{Stripe, Tier, class_index_of, is_middle};
use crate::buffer::table::indexes_max;
use crate::ids::{ByClass, PageId, SizeClass};

#[derive(Debug)]
pub(in crate::buffer) struct Mapped {
    classes: ByClass<OnceLock<Region>>,
    /// Pages of the smallest class there may be.
    pages_max: u64,
    /// For frames that hold no page.
    own: Fixed,
    /// Pages of each class that have memory, and frames.
    resident: ByClass<AtomicU64>,
}

impl Mapped {
    pub(super) fn over(own: Fixed, pages_max: u64) -> Mapped {
        Mapped { classes: Default::default(), pages_max, own, resident: Default::default() }
    }

    /// Has memory of frames that hold no page come from the nodes of DRAM.
    pub(super) fn place_own(&self, nodes: &Placement) -> io::Result<()> {
        let region = self.own.region();
        nodes.of(Tier::Dram).map_or(Ok(()), |wanted| region.place_on(0..region.len(), wanted))
    }

    /// Reserves the addresses of pages that frames of `stripe` hold, unless that was done, on nodes where all of them are in one tier. One
    /// caller at a time.
    pub(super) fn use_class(&self, stripe: Stripe, nodes: &Placement) -> io::Result<()> {
        let class = stripe.class;
        let place = &self.classes[class.index()];
        if place.get().is_none() {
            let bytes = (indexes_max(self.pages_max, class) as usize) << (PAGE_SHIFT + class.index());
            let pages = Region::reserve_sparse(bytes, class.page_bytes()).map_err(|error| {
                let what = format!("{bytes} bytes of addresses for pages of {} bytes", class.page_bytes());
                io::Error::new(error.kind(), format!("{what}: {error}"))
            })?;
            if let Some(wanted) = nodes.of_addresses(class) {
                pages.place_on(0..pages.len(), wanted)?;
            }
            place.get_or_init(|| pages);
        }
        match place.get().filter(|_| stripe.tier == Tier::Middle && nodes.splits_addresses()) {
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

    pub(super) fn populate(&self, pages: &[Housed], nodes: &Placement) -> io::Result<()> {
        // Before it is known how that ends: whoever is refused has them discarded.
        pages.iter().for_each(|(id, _)| _ = self.resident[id.class_index()].fetch_add(1, Relaxed));
        if nodes.splits_addresses() {
            for tier in [Tier::Dram, Tier::Middle] {
                let in_tier = |(_, frame): &&Housed| is_middle(*frame) == (tier == Tier::Middle);
                self.populate_in(tier, &pages.iter().filter(in_tier).copied().collect::<Vec<_>>(), nodes)?;
            }
        } else {
            self.each_class(pages, Region::populate)?;
            self.count_misplaced(pages, Tier::Dram, nodes);
        }
        #[cfg(test)]
        super::tests::refuse()?;
        Ok(())
    }

    /// The same for pages that are all in `tier`, on its nodes.
    fn populate_in(&self, tier: Tier, pages: &[Housed], nodes: &Placement) -> io::Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        let preferred = nodes.prefer(tier);
        self.each_class(pages, Region::populate)?;
        drop(preferred);
        self.count_misplaced(pages, tier, nodes);
        Ok(())
    }

    /// Counts those of the system's pages behind `pages`, which have come to `tier`, that are not on its nodes.
    fn count_misplaced(&self, pages: &[Housed], tier: Tier, nodes: &Placement) {
        if nodes.of(tier).is_none() {
            return;
        }
        let counted = self.each_class(pages, |region, ranges| {
            nodes.count_misplaced_in(region, ranges, tier);
            Ok(())
        });
        debug_assert!(counted.is_ok(), "it refuses nothing");
    }

    /// Moves the memory of `pages`, all of one size, to the nodes of `tier`; says of each whether it is there.
    pub(super) fn migrate(&self, pages: &[PageId], tier: Tier, nodes: &Placement) -> Vec<bool> {
        let ranges: Vec<Range<usize>> = pages.iter().map(|&id| bytes(id)).collect();
        pages.first().map_or_else(Vec::new, |&id| nodes.migrate(self.region(id), &ranges, tier))
    }

    /// Which nodes the system has the memory of the page `id` on, a number for each of its own pages that has some.
    #[cfg(test)]
    pub(super) fn nodes_of(&self, id: PageId) -> Vec<u32> {
        let pages: Vec<usize> = bytes(id).step_by(SizeClass::SMALLEST.page_bytes()).collect();
        self.region(id).nodes_of(&pages).unwrap().into_iter().flatten().collect()
    }

    pub(super) fn discard(&self, pages: &[Housed]) -> io::Result<()> {
        pages.iter().for_each(|(id, _)| _ = self.resident[id.class_index()].fetch_sub(1, Relaxed));
        self.each_class(pages, Region::discard)
    }

    /// Has `change` done with the ranges of `pages`, those of each class together, and of all even if it is refused for some.
    fn each_class(
        &self,
        pages: &[Housed],
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
        super::tests::refuse()?;
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

/// Where in the range of its class the page `id` is.
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
    use terrace_block::Region;

    use super::super::NodeOptions;
    use super::*;

    /// What the system says of the mapping that `words` is in: bytes of memory behind it.
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

    /// What is asked for is not what the system was told here, as if the node had become full.
    #[test]
    fn pages_that_the_system_has_put_elsewhere_are_counted_whatever_they_are_of() {
        let own =
            Fixed::reserve(&[4; 2 * SizeClass::COUNT], |bytes| Region::reserve_sparse(bytes, 4096)).unwrap();
        let mapped = Mapped::over(own, 1 << 12);
        let class = SizeClass::from_index(1).unwrap();
        mapped.use_class(class.into(), &Placement::new(&NodeOptions::default(), class)).unwrap();
        let dram = Some("5".parse().unwrap());
        let nodes = Placement::new(&NodeOptions { dram, ..NodeOptions::default() }, class);
        let pages =
            [PageId::new(class, 3), PageId::new(class, 9)].map(|id| (id, Stripe::from(class).frame(0)));
        mapped.populate(&pages, &nodes).unwrap();
        assert_eq!(nodes.misplaced(Tier::Dram), 4);
        mapped.populate_own(&[Stripe::from(class).frame(1)], &nodes).unwrap();
        assert_eq!((nodes.misplaced(Tier::Dram), nodes.misplaced(Tier::Middle)), (6, 0));
    }

    #[test]
    fn only_pages_that_are_there_have_memory_whoever_looks_at_others() {
        const PAGES_MAX: u64 = 1 << 16;
        let own =
            Fixed::reserve(&[4; 2 * SizeClass::COUNT], |bytes| Region::reserve_sparse(bytes, 4096)).unwrap();
        let mapped = Mapped::over(own, PAGES_MAX);
        let nodes = Placement::new(&NodeOptions::default(), SizeClass::SMALLEST);
        SizeClass::all().for_each(|class| mapped.use_class(class.into(), &nodes).unwrap());
        let before = mappings();
        let seed = 7;
        let mut random = SmallRng::seed_from_u64(seed);
        let mut there: Vec<Housed> = Vec::new();
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
        // Other tests of this process map memory too, but none as often as pages came and went here.
        assert!(mappings() < before + 1000, "{} mappings, {before} before", mappings());
    }
}
