//! Memory limits and modes of a pool.

use super::budget::MiddleBudget;
use super::frames::Frames;
use super::hash_table::HashTable;
use super::page_table::PageTable;
use super::record_cache::RecordCache;
use super::retry::Mode;
use super::swips::SwipSizes;
use super::tier::TierOptions;
use crate::backend::Backend;
use crate::ids::SizeClass;
use crate::replacement::Replacement;
use crate::store::mapping_word::BLOCK_BYTES;

/// Sizes of the buffers beside the frames, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferSizes {
    pub(crate) log: u64,
    pub(crate) staging: u64,
    /// All buffers for batches of faults, at least two pages.
    pub(crate) batches: u64,
    /// Least size of one of them: two of the largest pages if these may be above 64 KiB.
    pub(crate) batch_least: u64,
}

/// A hash table instead of the array of the page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HashOptions {
    /// Of its first segment, a power of two.
    pub(crate) slots: u64,
    pub(crate) swips: Option<SwipSizes>,
}

impl HashOptions {
    /// Bytes of the table with `pages` pages.
    pub(crate) fn bytes(&self, pages: u64) -> u64 {
        HashTable::bytes_with(self.slots, pages)
    }

    pub(crate) fn swips_bytes(&self) -> u64 {
        self.swips.map_or(0, SwipSizes::bytes)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct PoolOptions {
    /// For frames with their overhead, and for page-long buffers.
    pub(crate) frame_bytes: u64,
    /// Upper limit of `frame_bytes`: addresses, not memory.
    pub(crate) frame_bytes_max: u64,
    /// Floor of classes that nodes can have, if several are used.
    pub(crate) frames_floor: u32,
    pub(crate) buffers: BufferSizes,
    /// Limit for the smallest class, a multiple of 512. Each larger class has half as many.
    pub(crate) pages_max: u64,
    pub(crate) hash: Option<HashOptions>,
    pub(crate) store_bytes_max: u64,
    pub(crate) record_cache: RecordCache,
    pub(crate) backend: Backend,
    pub(crate) replacement: Replacement,
    pub(crate) tiers: TierOptions,
    /// Recovery may use threads in [`Mode::Background`]. Its pool begins in [`Mode::Inline`].
    pub(crate) mode: Mode,
    /// Whether writes stay in memory, where the cleaner gains nothing and a failure loses nothing.
    pub(crate) in_memory: bool,
    /// Whether the page table has hints (`page_table.rs`).
    pub(crate) hints: bool,
}

impl PoolOptions {
    /// Address space that a pool reserves; most never gets memory.
    pub(crate) fn address_bytes(&self) -> u64 {
        let is_persistent = self.tiers.persistent.is_some();
        let middle = self.tiers.middle.as_ref().map(|middle| MiddleBudget::of(middle, is_persistent));
        let middle = middle.map_or([0; _], |middle| middle.counts_max());
        let frames = Frames::address_bytes(self.frame_bytes_max.max(self.frame_bytes), &middle);
        // Mapped addresses follow from page ids; each class takes as many bytes.
        let mapped = match self.backend {
            Backend::Frames => 0,
            Backend::Mapped => SizeClass::COUNT as u64 * self.pages_max * BLOCK_BYTES as u64,
        };
        // Recovery uses the array in any case.
        let hash = self.hash.map_or(0, |hash| HashTable::reserved_bytes(hash.slots, 2 * self.pages_max));
        PageTable::reserved_bytes(self.pages_max, self.hints)
            .saturating_add(hash)
            .saturating_add(frames)
            .saturating_add(mapped)
    }
}
