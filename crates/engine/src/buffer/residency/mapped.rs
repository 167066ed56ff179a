//! Bytes at the addresses that page ids are: each class has a range with an address for every page there may ever be, from
//! when it is first used on, and a page's index says where in it the page is.

use std::io;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use terrace_block::Region;

use super::fixed::Fixed;
use super::{Housed, PAGE_SHIFT};
use crate::buffer::frames::class_index_of;
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

    /// Reserves the addresses of pages of `class`, unless that was done. One caller at a time.
    pub(super) fn use_class(&self, class: SizeClass) -> io::Result<()> {
        let place = &self.classes[class.index()];
        if place.get().is_none() {
            let bytes = (indexes_max(self.pages_max, class) as usize) << (PAGE_SHIFT + class.index());
            let pages = Region::reserve_sparse(bytes).map_err(|error| {
                let what = format!("{bytes} bytes of addresses for pages of {} bytes", class.page_bytes());
                io::Error::new(error.kind(), format!("{what}: {error}"))
            })?;
            place.get_or_init(|| pages);
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn words(&self, id: PageId) -> &[AtomicU64] {
        self.region(id).words(bytes(id))
    }

    #[inline(always)]
    fn region(&self, id: PageId) -> &Region {
        self.classes[id.class_index()].get().expect("pages in frames are of classes in use")
    }

    pub(super) fn resident_bytes(&self, class: SizeClass) -> u64 {
        self.resident[class.index()].load(Relaxed) * class.page_bytes() as u64
    }

    pub(super) fn populate(&self, pages: &[Housed]) -> io::Result<()> {
        // Before it is known how that ends: whoever is refused has them discarded.
        pages.iter().for_each(|(id, _)| _ = self.resident[id.class_index()].fetch_add(1, Relaxed));
        self.each_class(pages, Region::populate)?;
        #[cfg(test)]
        super::tests::refuse()?;
        Ok(())
    }

    pub(super) fn discard(&self, pages: &[Housed]) -> io::Result<()> {
        pages.iter().for_each(|(id, _)| _ = self.resident[id.class_index()].fetch_sub(1, Relaxed));
        self.each_class(pages, Region::discard)
    }

    /// Has `change` done with the ranges of `pages`, those of each class together, and of all even if it is refused for some.
    fn each_class(
        &self,
        pages: &[Housed],
        change: fn(&Region, &mut [Range<usize>]) -> io::Result<()>,
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

    pub(super) fn populate_own(&self, frames: &[u32]) -> io::Result<()> {
        frames.iter().for_each(|&frame| _ = self.resident[class_index_of(frame)].fetch_add(1, Relaxed));
        self.own.region().populate(&mut self.own_ranges(frames))?;
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
