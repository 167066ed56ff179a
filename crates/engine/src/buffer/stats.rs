//! What the pool counts. Nothing here is written on a hit.

use std::sync::atomic::AtomicU64;

/// Counters since the database was opened.
#[derive(Debug, Default)]
pub(crate) struct PoolStats {
    /// Pages brought in from the store.
    pub(crate) faults: AtomicU64,
    /// Pages whose frame was taken.
    pub(crate) evictions: AtomicU64,
    /// Frames handed out, for faults and new pages.
    pub(crate) frames_taken: AtomicU64,
    /// Times a fault found no clean frame and waited for write-back.
    pub(crate) frame_waits: AtomicU64,
    /// Images read, relocation excluded.
    pub(crate) store_reads: AtomicU64,
    /// Reads of images that are under way now.
    pub(crate) reads_in_flight: AtomicU64,
    /// Reads of several pages at a time.
    pub(crate) batches: AtomicU64,
    /// Pages that these asked for.
    pub(crate) batched_pages: AtomicU64,
    /// Pages brought in that may be needed next.
    pub(crate) ahead_pages: AtomicU64,
    /// Those of them that somebody looked at.
    pub(crate) ahead_used: AtomicU64,
    /// Those of them whose frame was taken before anybody did.
    pub(crate) ahead_unused: AtomicU64,
    /// Images written for write-back and checkpoint.
    pub(crate) images_written: AtomicU64,
    /// Images moved by the cleaner.
    pub(crate) images_moved: AtomicU64,
    /// Chunk and directory images written.
    pub(crate) mapping_images: AtomicU64,
    /// Syncs of the page file.
    pub(crate) store_syncs: AtomicU64,
    /// Superblocks written.
    pub(crate) superblocks: AtomicU64,
    /// Times a commit waited for log space.
    pub(crate) log_waits: AtomicU64,
}
