//! Addresses of page bytes: the only difference between the back ends.
//!
//! | back end | address of page bytes      | memory comes and goes     | file        |
//! |----------|----------------------------|---------------------------|-------------|
//! | frames   | of the frame               | with the frames           | `fixed.rs`  |
//! | mapped   | computed from the page id  | with the page             | `mapped.rs` |
//!
//! The mapped back end translates like vmcache (Leis et al., SIGMOD 2023) and the CXL buffer
//! manager (section III-B). The processor loads page bytes in parallel with the page table entry.
//!
//! Memory is populated before the content is stored, and discarded under the exclusive latch. So
//! pages with memory never outnumber frames. A late optimistic reader sees zeros, which take no
//! memory, and a changed version.

use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

use terrace_io::{PersistentMemory, Region};

use super::fixed::Fixed;
use super::mapped::MappedFrames;
use super::nodes::Placement;
use super::partition::{PageFrame, Partition, Tier};
use crate::backend::Backend;
use crate::ids::{PageId, SizeClass};

const SYSTEM_PAGE_BYTES: u64 = 4096;
const SYSTEM_ENTRY_BYTES: u64 = 8;

pub(crate) fn table_bytes_per_page(backend: Backend, class: SizeClass) -> u64 {
    match backend {
        Backend::Frames => 0,
        Backend::Mapped => class.page_bytes() as u64 / SYSTEM_PAGE_BYTES * SYSTEM_ENTRY_BYTES,
    }
}

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a pool has one, and a box would be a load more for each look at a page"
)]
pub(super) enum Residency {
    Frames(Fixed),
    Mapped(MappedFrames),
}

impl Residency {
    /// Reserves addresses without memory.
    pub(super) fn reserve(backend: Backend, counts_max: &[u32], pages_max: u64) -> io::Result<Residency> {
        Ok(match backend {
            Backend::Frames => Residency::Frames(Fixed::reserve(counts_max, Region::reserve)?),
            Backend::Mapped => {
                // Own frames have the database page size, which may be the smallest.
                let sparse = |bytes| Region::reserve_sparse(bytes, SizeClass::SMALLEST.page_bytes());
                Residency::Mapped(MappedFrames::over(Fixed::reserve(counts_max, sparse)?, pages_max))
            }
        })
    }

    pub(super) fn frame_address_bytes(counts_max: &[u32]) -> usize {
        Fixed::partition_bytes(counts_max) * counts_max.len()
    }

    /// Puts `memory` from `at` on behind `frames` of `partition`.
    pub(super) fn map_over(
        &self,
        partition: Partition,
        frames: Range<u32>,
        memory: &PersistentMemory,
        at: usize,
    ) -> io::Result<()> {
        match self {
            Residency::Frames(fixed) => fixed.map_over(partition, frames, memory, at),
            Residency::Mapped(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a mapped page has one address in both tiers; use the back end frames",
            )),
        }
    }

    /// Binds frames without pages to DRAM nodes, if they have own addresses.
    pub(super) fn bind(&self, nodes: &Placement) -> io::Result<()> {
        match self {
            Residency::Frames(_) => Ok(()),
            Residency::Mapped(pages) => pages.bind_own(nodes),
        }
    }

    /// Migrates the memory of `pages`, all of one size; says which arrived.
    ///
    /// The caller holds their exclusive latches. All arrive where no memory has to move.
    pub(super) fn migrate(&self, pages: &[PageId], tier: Tier, nodes: &Placement) -> Vec<bool> {
        match self {
            Residency::Mapped(mapped) if nodes.splits_addresses() => mapped.migrate(pages, tier, nodes),
            _ => vec![true; pages.len()],
        }
    }

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

    /// The words of page `id`, which the page table covers.
    #[inline(always)]
    pub(super) fn words(&self, id: PageId, frame: u32) -> &[AtomicU64] {
        match self {
            Residency::Frames(frames) => frames.words(frame),
            Residency::Mapped(pages) => pages.words(id),
        }
    }

    /// The addresses of frames, if they are those of pages.
    #[inline(always)]
    pub(super) fn fixed(&self) -> Option<&Fixed> {
        match self {
            Residency::Frames(frames) => Some(frames),
            Residency::Mapped(_) => None,
        }
    }

    /// Prepares addresses for frames to come.
    pub(super) fn prepare(
        &self,
        partition: Partition,
        frames: Range<u32>,
        nodes: &Placement,
    ) -> io::Result<()> {
        match self {
            Residency::Frames(fixed) => fixed.allow(partition, frames, nodes),
            Residency::Mapped(pages) => pages.use_class(partition, nodes),
        }
    }

    /// Puts memory behind frames whose bytes are at own addresses.
    pub(super) fn back(&self, partition: Partition, frames: Range<u32>, nodes: &Placement) -> io::Result<()> {
        match self {
            Residency::Frames(fixed) => fixed.commit(partition, frames, nodes),
            Residency::Mapped(_) => Ok(()),
        }
    }

    pub(super) fn shrink(&self, partition: Partition, count: u32, old: u32) -> io::Result<()> {
        match self {
            Residency::Frames(frames) => frames.release(partition, count..old),
            Residency::Mapped(_) => Ok(()),
        }
    }

    pub(super) fn resident_bytes(&self, class: SizeClass) -> Option<u64> {
        match self {
            Residency::Frames(_) => None,
            Residency::Mapped(mapped) => Some(mapped.resident_bytes(class)),
        }
    }

    pub(super) fn huge_pages(&self, class: SizeClass) -> bool {
        match self {
            Residency::Frames(frames) => frames.huge_pages(),
            Residency::Mapped(mapped) => mapped.huge_pages(class),
        }
    }

    /// Bytes of system page tables for `addresses` bytes ever used.
    pub(super) fn tables_bytes(&self, addresses: u64) -> u64 {
        match self {
            Residency::Frames(_) => 0,
            Residency::Mapped(_) => addresses / SYSTEM_PAGE_BYTES * SYSTEM_ENTRY_BYTES,
        }
    }

    pub(super) fn page_at(&self, address: usize, page_in: impl Fn(u32) -> PageId) -> Option<PageId> {
        match self {
            Residency::Frames(frames) => frames.frame_at(address).map(page_in),
            Residency::Mapped(pages) => pages.page_at(address),
        }
    }

    /// Allocates memory for pages before their content is stored.
    ///
    /// After an error the caller must discard them. For this and `discard`, the caller holds the
    /// exclusive latches, or no other thread knows the pages.
    pub(super) fn populate(&self, pages: &[PageFrame], nodes: &Placement) -> io::Result<()> {
        match self {
            Residency::Frames(_) => Ok(()),
            Residency::Mapped(mapped) => mapped.populate(pages, nodes),
        }
    }

    pub(super) fn discard(&self, pages: &[PageFrame]) -> io::Result<()> {
        match self {
            Residency::Frames(_) => Ok(()),
            Residency::Mapped(mapped) => mapped.discard(pages),
        }
    }

    /// The words of a frame without a page.
    #[inline(always)]
    pub(super) fn own_words(&self, frame: u32) -> &[AtomicU64] {
        match self {
            Residency::Frames(frames) => frames.words(frame),
            Residency::Mapped(pages) => pages.own_words(frame),
        }
    }

    /// Allocates memory for frames without pages.
    ///
    /// After an error the caller must discard them.
    pub(super) fn populate_own(&self, frames: &[u32], nodes: &Placement) -> io::Result<()> {
        match self {
            Residency::Frames(_) => Ok(()),
            Residency::Mapped(mapped) => mapped.populate_own(frames, nodes),
        }
    }

    pub(super) fn discard_own(&self, frames: &[u32]) -> io::Result<()> {
        match self {
            Residency::Frames(_) => Ok(()),
            Residency::Mapped(mapped) => mapped.discard_own(frames),
        }
    }
}
