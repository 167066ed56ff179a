//! Page bytes at frame addresses.
//!
//! Each partition has an address range for all frames that it may get.

use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

use terrace_io::{PersistentMemory, Region, check_room};

use super::nodes::Placement;
use super::partition::{Partition, class_index_of, index_of, partition_index_of};
use crate::ids::SizeClass;

/// Binary logarithm of the smallest page size; each class doubles it.
pub(super) const PAGE_SHIFT: usize = SizeClass::SMALLEST.page_bytes().trailing_zeros() as usize;

/// Header and slots of a leaf of about thirty entries.
const LINES_AHEAD: usize = 4;
const LINE_BYTES: usize = 64;

/// Addresses of all frames. The processor can load the one base before the frame is known.
#[derive(Debug)]
pub(crate) struct Fixed {
    region: Region,
    /// Binary logarithm of a partition's range in bytes.
    partition_shift: u32,
}

impl Fixed {
    pub(super) fn reserve(counts_max: &[u32], reserve: fn(usize) -> io::Result<Region>) -> io::Result<Fixed> {
        let partition = Fixed::partition_bytes(counts_max);
        let region = reserve(partition * counts_max.len())?;
        Ok(Fixed { region, partition_shift: partition.trailing_zeros() })
    }

    pub(super) fn partition_bytes(counts_max: &[u32]) -> usize {
        let bytes = Partition::all()
            .map(|partition| counts_max[partition.index()] as usize * partition.class.page_bytes());
        // Partitions begin at huge page boundaries.
        bytes.max().unwrap_or(0).next_multiple_of(2 << 20).next_power_of_two()
    }

    #[inline(always)]
    pub(super) fn words(&self, frame: u32) -> &[AtomicU64] {
        self.region.words(self.bytes(frame))
    }

    #[inline(always)]
    pub(super) fn bytes(&self, frame: u32) -> Range<usize> {
        let class = class_index_of(frame);
        // A shift by the class avoids a load and a multiplication.
        let start = (partition_index_of(frame) << self.partition_shift)
            + ((index_of(frame) as usize) << (PAGE_SHIFT + class));
        start..start + (1 << (PAGE_SHIFT + class))
    }

    /// The address of the frame, in units of the smallest page. 0 means none: the first frame goes
    /// without, and those beyond 16 TiB.
    pub(crate) fn hint(&self, frame: u32) -> u32 {
        u32::try_from(self.bytes(frame).start >> PAGE_SHIFT).unwrap_or(0)
    }

    /// Prefetches the first lines of the frame at `hint`, which may be any number: the slots of a
    /// leaf follow its header, and the search would wait for them after it.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hint: u32) {
        if hint != 0 {
            let start = (hint as usize) << PAGE_SHIFT;
            (0..LINES_AHEAD).for_each(|line| self.region.prefetch(start + line * LINE_BYTES));
        }
    }

    pub(super) fn frame_at(&self, address: usize) -> Option<u32> {
        let offset = self.region.offset_of(address)?;
        let partition = Partition::from_index(offset >> self.partition_shift)?;
        let index = (offset & ((1 << self.partition_shift) - 1)) >> (PAGE_SHIFT + partition.class.index());
        Some(partition.frame(index as u32))
    }

    /// Makes frames accessible without memory, on the nodes of their tier. Limits of the process
    /// and missing rights for nodes refuse them now. The system checks no room of nodes before
    /// memory is used, so it is checked here.
    pub(super) fn allow(
        &self,
        partition: Partition,
        frames: Range<u32>,
        nodes: &Placement,
    ) -> io::Result<()> {
        let range = self.range(partition, frames);
        if let Some(wanted) = nodes.of(partition.tier) {
            check_room(wanted, range.len() as u64)?;
            self.region.bind_to(range.clone(), wanted)?;
        }
        self.region.allow(range)
    }

    /// Commits memory to frames of `partition`, on the nodes of its tier.
    ///
    /// Fails if those nodes lack room. Counts pages that still land on others.
    pub(super) fn commit(
        &self,
        partition: Partition,
        frames: Range<u32>,
        nodes: &Placement,
    ) -> io::Result<()> {
        let range = self.range(partition, frames);
        let Some(wanted) = nodes.of(partition.tier) else { return self.region.commit(range) };
        check_room(wanted, range.len() as u64)?;
        self.region.commit(range.clone())?;
        let misplaced = self.region.misplaced(range, wanted)?;
        nodes.count_misplaced(partition.tier, misplaced as u64);
        Ok(())
    }

    pub(super) fn map_over(
        &self,
        partition: Partition,
        frames: Range<u32>,
        memory: &PersistentMemory,
        at: usize,
    ) -> io::Result<()> {
        memory.map_over(&self.region, self.range(partition, frames), at)
    }

    pub(super) fn release(&self, partition: Partition, frames: Range<u32>) -> io::Result<()> {
        self.region.release(self.range(partition, frames))
    }

    fn range(&self, partition: Partition, frames: Range<u32>) -> Range<usize> {
        let (start, page_bytes) = (partition.index() << self.partition_shift, partition.class.page_bytes());
        start + frames.start as usize * page_bytes..start + frames.end as usize * page_bytes
    }

    #[cfg(test)]
    pub(super) fn nodes_of(&self, frame: u32) -> Vec<u32> {
        let pages: Vec<usize> = self.bytes(frame).step_by(1 << PAGE_SHIFT).collect();
        self.region.nodes_of(&pages).unwrap().into_iter().flatten().collect()
    }

    pub(super) fn huge_pages(&self) -> bool {
        self.region.huge_pages()
    }

    pub(super) fn region(&self) -> &Region {
        &self.region
    }
}
