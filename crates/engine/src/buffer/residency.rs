//! Where the bytes of pages live: all that the two back ends differ in.
//!
//! Both have the same frames, and a page that is in memory has one: with it come a header, a place in the queues of
//! replacement, and a share of the budget. What differs is where its bytes are:
//!
//! | back end | the bytes of a page are at              | memory comes and goes          | file                  |
//! |----------|-----------------------------------------|--------------------------------|-----------------------|
//! | frames   | the address of its frame                | with the frames                | `residency/fixed.rs`  |
//! | mapped   | the address that its id is, arithmetically | with the page in the frame  | `residency/mapped.rs` |
//!
//! The second is the translation of vmcache (Leis et al., SIGMOD 2023) and of the CXL buffer manager (section III-B): who reads
//! a page knows where its bytes are from its id alone, so that the processor can load them while it loads the entry of the page
//! table that says whether they are there. Memory is put behind a page before its content is stored, and taken away while
//! the page's exclusive latch is held that evicts or frees it; so a page has memory only while it has a frame, or is on
//! its way there or back, and no more pages than there are frames have any. Who reads without a latch what is gone reads
//! zeros, which takes no memory, in a page whose version has moved.
//!
//! Which nodes that memory is on, where it is not to be where the system puts it, is in `residency/nodes.rs`.

mod fixed;
mod mapped;
mod nodes;
#[cfg(test)]
pub(super) mod tests;

use std::io;
use std::sync::atomic::AtomicU64;

use terrace_block::Region;

use self::fixed::Fixed;
use self::mapped::Mapped;
pub(crate) use self::nodes::NodeOptions;
pub(in crate::buffer) use self::nodes::Placement;
use super::stripe::{Stripe, Tier};
use crate::backend::Backend;
use crate::ids::{PageId, SizeClass};

/// The binary logarithm of the bytes of the smallest pages; each class has pages twice as long as the one before.
const PAGE_SHIFT: usize = SizeClass::SMALLEST.page_bytes().trailing_zeros() as usize;

/// Bytes of a page of the system's, and of its entry in the system's page table.
const SYSTEM_PAGE_BYTES: u64 = 4096;
const SYSTEM_ENTRY_BYTES: u64 = 8;

/// Bytes of the system's page table for each page of `class`, where pages are housed by `backend`.
pub(crate) fn table_bytes_per_page(backend: Backend, class: SizeClass) -> u64 {
    match backend {
        Backend::Frames => 0,
        Backend::Mapped => class.page_bytes() as u64 / SYSTEM_PAGE_BYTES * SYSTEM_ENTRY_BYTES,
    }
}

/// A page and the frame that it has, or is about to have, or has just lost.
pub(in crate::buffer) type Housed = (PageId, u32);

/// One of the back ends.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a pool has one, and a box would be a load more for each look at a page"
)]
pub(super) enum Residency {
    Frames(Fixed),
    Mapped(Mapped),
}

impl Residency {
    /// Addresses for `counts_max` frames of each stripe, and for `pages_max` pages of the smallest; no memory yet.
    pub(super) fn reserve(backend: Backend, counts_max: &[u32], pages_max: u64) -> io::Result<Residency> {
        Ok(match backend {
            Backend::Frames => Residency::Frames(Fixed::reserve(counts_max, Region::reserve)?),
            Backend::Mapped => {
                // Only pages of the database's own size have such frames, and it may be the smallest.
                let sparse = |bytes| Region::reserve_sparse(bytes, SizeClass::SMALLEST.page_bytes());
                Residency::Mapped(Mapped::over(Fixed::reserve(counts_max, sparse)?, pages_max))
            }
        })
    }

    /// Bytes of addresses for frames of their own, at most so many of each stripe.
    pub(super) fn frame_address_bytes(counts_max: &[u32]) -> usize {
        Fixed::stripe_bytes(counts_max) * counts_max.len()
    }

    /// Has frames that hold no page, where they have addresses of their own, on the nodes of DRAM.
    pub(super) fn place(&self, nodes: &Placement) -> io::Result<()> {
        match self {
            Residency::Frames(_) => Ok(()),
            Residency::Mapped(pages) => pages.place_own(nodes),
        }
    }

    /// Moves the memory of `pages`, all of one size, whose exclusive latches are the caller's, to the nodes of `tier`; says of each whether
    /// it is there. It always is where a page in another frame is at another address.
    pub(super) fn migrate(&self, pages: &[PageId], tier: Tier, nodes: &Placement) -> Vec<bool> {
        match self {
            Residency::Mapped(mapped) if nodes.splits_addresses() => mapped.migrate(pages, tier, nodes),
            _ => vec![true; pages.len()],
        }
    }

    /// Which nodes the system has the memory of the page `id` in `frame` on.
    #[cfg(test)]
    pub(super) fn nodes_of(&self, id: PageId, frame: u32) -> Vec<u32> {
        match self {
            Residency::Frames(frames) => frames.nodes_of(frame),
            Residency::Mapped(pages) => pages.nodes_of(id),
        }
    }

    pub(super) fn backend(&self) -> Backend {
        match self {
            Residency::Frames(_) => Backend::Frames,
            Residency::Mapped(_) => Backend::Mapped,
        }
    }

    /// The words of the page `id`, which is within the page table, or of whatever else is in `frame`.
    #[inline(always)]
    pub(super) fn words(&self, id: PageId, frame: u32) -> &[AtomicU64] {
        match self {
            Residency::Frames(frames) => frames.words(frame),
            Residency::Mapped(pages) => pages.words(id),
        }
    }

    /// There are frames of `stripe` from `old` to `count` too from now on, on the nodes of its tier.
    pub(super) fn grow(&self, stripe: Stripe, old: u32, count: u32, nodes: &Placement) -> io::Result<()> {
        match self {
            Residency::Frames(frames) => frames.commit(stripe, old..count, nodes),
            Residency::Mapped(pages) => pages.use_class(stripe, nodes),
        }
    }

    /// The frames of `stripe` from `count` to `old` are no more. They hold nothing.
    pub(super) fn shrink(&self, stripe: Stripe, count: u32, old: u32) -> io::Result<()> {
        match self {
            Residency::Frames(frames) => frames.release(stripe, count..old),
            Residency::Mapped(_) => Ok(()),
        }
    }

    /// Bytes of memory behind pages of `class`, and behind frames of it that hold none; none if all frames have theirs.
    pub(super) fn resident_bytes(&self, class: SizeClass) -> Option<u64> {
        match self {
            Residency::Frames(_) => None,
            Residency::Mapped(mapped) => Some(mapped.resident_bytes(class)),
        }
    }

    /// Whether the system has taken the advice to put huge pages behind pages of `class`.
    pub(super) fn huge_pages(&self, class: SizeClass) -> bool {
        match self {
            Residency::Frames(frames) => frames.huge_pages(),
            Residency::Mapped(mapped) => mapped.huge_pages(class),
        }
    }

    /// Bytes of the system's page tables for `addresses` bytes of addresses of pages that were in memory once.
    pub(super) fn tables_bytes(&self, addresses: u64) -> u64 {
        match self {
            Residency::Frames(_) => 0,
            Residency::Mapped(_) => addresses / SYSTEM_PAGE_BYTES * SYSTEM_ENTRY_BYTES,
        }
    }

    /// The page whose bytes include those at `address`, if they are of a page that has a frame, as `page_in` says.
    pub(super) fn page_at(&self, address: usize, page_in: impl Fn(u32) -> PageId) -> Option<PageId> {
        match self {
            Residency::Frames(frames) => frames.frame_at(address).map(page_in),
            Residency::Mapped(pages) => pages.page_at(address),
        }
    }

    /// Puts memory behind pages whose content is about to be stored; their exclusive latches are the caller's, or nobody
    /// else knows them. Refused, they are to be discarded.
    pub(super) fn populate(&self, pages: &[Housed], nodes: &Placement) -> io::Result<()> {
        match self {
            Residency::Frames(_) => Ok(()),
            Residency::Mapped(mapped) => mapped.populate(pages, nodes),
        }
    }

    /// Takes the memory away from behind pages that leave; their exclusive latches are the caller's, or nobody else knows
    /// them.
    pub(super) fn discard(&self, pages: &[Housed]) -> io::Result<()> {
        match self {
            Residency::Frames(_) => Ok(()),
            Residency::Mapped(mapped) => mapped.discard(pages),
        }
    }

    /// The words of a frame that holds no page (`records.rs`).
    #[inline(always)]
    pub(super) fn own_words(&self, frame: u32) -> &[AtomicU64] {
        match self {
            Residency::Frames(frames) => frames.words(frame),
            Residency::Mapped(pages) => pages.own_words(frame),
        }
    }

    /// Frames are about to hold something that is no page. Refused, they are to be discarded.
    pub(super) fn populate_own(&self, frames: &[u32], nodes: &Placement) -> io::Result<()> {
        match self {
            Residency::Frames(_) => Ok(()),
            Residency::Mapped(mapped) => mapped.populate_own(frames, nodes),
        }
    }

    /// They do not any more.
    pub(super) fn discard_own(&self, frames: &[u32]) -> io::Result<()> {
        match self {
            Residency::Frames(_) => Ok(()),
            Residency::Mapped(mapped) => mapped.discard_own(frames),
        }
    }
}
