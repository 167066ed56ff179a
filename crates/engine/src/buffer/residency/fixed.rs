//! Bytes at the addresses of frames: each stripe has a range of them, which any one could fill with the whole budget of its tier.

use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

use terrace_block::{Region, check_room};

use super::PAGE_SHIFT;
use super::nodes::Placement;
use crate::buffer::stripe::{Stripe, class_index_of, index_of, stripe_index_of};

/// One region for all stripes, so that where it is can be loaded before it is known which frame is looked for.
#[derive(Debug)]
pub(in crate::buffer) struct Fixed {
    region: Region,
    /// Bytes of a stripe's range, as a power of two.
    stripe_shift: u32,
}

impl Fixed {
    /// Addresses for as many frames of each stripe, by their numbers, out of a region that `reserve` makes.
    pub(super) fn reserve(counts_max: &[u32], reserve: fn(usize) -> io::Result<Region>) -> io::Result<Fixed> {
        let stripe = Fixed::stripe_bytes(counts_max);
        let region = reserve(stripe * counts_max.len())?;
        Ok(Fixed { region, stripe_shift: stripe.trailing_zeros() })
    }

    /// Bytes of addresses that each stripe has.
    pub(super) fn stripe_bytes(counts_max: &[u32]) -> usize {
        let bytes =
            Stripe::all().map(|stripe| counts_max[stripe.index()] as usize * stripe.class.page_bytes());
        // They begin at a huge page.
        bytes.max().unwrap_or(0).next_multiple_of(2 << 20).next_power_of_two()
    }

    #[inline(always)]
    pub(super) fn words(&self, frame: u32) -> &[AtomicU64] {
        self.region.words(self.bytes(frame))
    }

    /// Where `frame` is.
    #[inline(always)]
    pub(super) fn bytes(&self, frame: u32) -> Range<usize> {
        let class = class_index_of(frame);
        // Shifted by the class, and not multiplied by what would have to be loaded for it.
        let start = (stripe_index_of(frame) << self.stripe_shift)
            + ((index_of(frame) as usize) << (PAGE_SHIFT + class));
        start..start + (1 << (PAGE_SHIFT + class))
    }

    /// The frame at `address`, if there are frames there.
    pub(super) fn frame_at(&self, address: usize) -> Option<u32> {
        let offset = self.region.offset_of(address)?;
        let stripe = Stripe::from_index(offset >> self.stripe_shift)?;
        let index = (offset & ((1 << self.stripe_shift) - 1)) >> (PAGE_SHIFT + stripe.class.index());
        Some(stripe.frame(index as u32))
    }

    /// Puts memory behind these frames of `stripe`, of the nodes of its tier as long as they have some.
    pub(super) fn commit(&self, stripe: Stripe, frames: Range<u32>, nodes: &Placement) -> io::Result<()> {
        let range = self.range(stripe, frames);
        let Some(wanted) = nodes.of(stripe.tier) else { return self.region.commit(range) };
        check_room(wanted, range.len() as u64)?;
        self.region.place_on(range.clone(), wanted)?;
        self.region.commit(range.clone())?;
        let misplaced = self.region.misplaced(range, wanted)?;
        nodes.count_misplaced(stripe.tier, misplaced as u64);
        Ok(())
    }

    /// Gives the memory of these frames of `stripe` back.
    pub(super) fn release(&self, stripe: Stripe, frames: Range<u32>) -> io::Result<()> {
        self.region.release(self.range(stripe, frames))
    }

    fn range(&self, stripe: Stripe, frames: Range<u32>) -> Range<usize> {
        let (start, page_bytes) = (stripe.index() << self.stripe_shift, stripe.class.page_bytes());
        start + frames.start as usize * page_bytes..start + frames.end as usize * page_bytes
    }

    /// Which nodes the system has the memory of `frame` on, a number for each of its own pages.
    #[cfg(test)]
    pub(super) fn nodes_of(&self, frame: u32) -> Vec<u32> {
        let pages: Vec<usize> = self.bytes(frame).step_by(1 << PAGE_SHIFT).collect();
        self.region.nodes_of(&pages).unwrap().into_iter().flatten().collect()
    }

    pub(super) fn huge_pages(&self) -> bool {
        self.region.huge_pages()
    }

    /// The region, for who has frames come and go one by one.
    pub(super) fn region(&self) -> &Region {
        &self.region
    }
}
