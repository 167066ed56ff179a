//! Counters of the pool. A hit writes none of them and reads no clock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use terrace_io::stats::Histogram;

use super::partition::{ByPartition, Partition};
use crate::ids::SizeClass;
use crate::stats::{Bypasses, Retries, Sweeps, WriteBacks};
use crate::threads::Tally;

/// Why dirty pages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Ahead,
    /// A thread waits for frames.
    Frames,
    /// To cut the log.
    Checkpoint,
    /// To empty a segment.
    Cleaner,
}

/// Counters since the database was opened.
#[derive(Debug, Default)]
pub(crate) struct PoolStats {
    /// Pages loaded from the store.
    pub(crate) faults: AtomicU64,
    /// Time from a miss until the page is in its frame.
    pub(crate) fault: Histogram,
    pub(crate) evictions: AtomicU64,
    pub(crate) swept_used: AtomicU64,
    pub(crate) swept_dirty: AtomicU64,
    /// Pages the sweep found latched, or lost to another thread.
    pub(crate) swept_busy: AtomicU64,
    /// For faults, new pages and migration.
    pub(crate) frames_taken: ByPartition<AtomicU64>,
    pub(crate) frames_gained: ByPartition<AtomicU64>,
    pub(crate) frames_lost: ByPartition<AtomicU64>,
    /// Steps in DRAM.
    pub(crate) frame_moves: AtomicU64,
    /// Pages and frames whose memory could not be taken away.
    pub(crate) not_discarded: AtomicU64,
    /// Times the system refused memory for frames.
    pub(crate) frames_refused: AtomicU64,
    /// Waits for a clean frame.
    pub(crate) frame_waits: AtomicU64,
    pub(crate) frame_reservation_waits: AtomicU64,
    /// Also waits for room in the page file.
    pub(crate) log_waits: AtomicU64,
    pub(crate) segment_waits: AtomicU64,
    /// Accesses that met an exclusive latch.
    pub(crate) latch_waits: Tally,
    /// Optimistic reads that failed validation.
    pub(crate) changed: Tally,
    /// Latches refused at the version seen.
    pub(crate) refused: Tally,
    /// Pages that another thread loaded or moved first.
    pub(crate) overtaken: Tally,
    /// Includes those of cleaner and verification.
    pub(crate) store_reads: AtomicU64,
    pub(crate) store_read_bytes: AtomicU64,
    /// Includes those of the page table.
    pub(crate) store_written_bytes: AtomicU64,
    /// Images shortened by compression.
    pub(crate) images_compressed: AtomicU64,
    /// Images that compression did not shorten.
    pub(crate) images_incompressible: AtomicU64,
    /// Bytes given to compression.
    pub(crate) compression_input_bytes: AtomicU64,
    /// Bytes returned by compression.
    pub(crate) compression_output_bytes: AtomicU64,
    pub(crate) verified: AtomicU64,
    pub(crate) reads_in_flight: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) batched_pages: AtomicU64,
    pub(crate) ahead_pages: AtomicU64,
    /// Pages read ahead, then accessed.
    pub(crate) ahead_used: AtomicU64,
    /// Pages read ahead, then evicted without an access.
    pub(crate) ahead_unused: AtomicU64,
    /// Images written by write-back and checkpoint.
    pub(crate) images_written: AtomicU64,
    /// By cause, without those of the close.
    pub(crate) written: [AtomicU64; 4],
    /// Checkpoint images written during the close.
    pub(crate) written_closing: AtomicU64,
    pub(crate) closing: AtomicBool,
    pub(crate) images_moved: AtomicU64,
    /// Chunk and directory images.
    pub(crate) mapping_images: AtomicU64,
    pub(crate) store_syncs: AtomicU64,
    pub(crate) superblocks: AtomicU64,
}

impl PoolStats {
    pub(super) fn taken(&self, partition: impl Into<Partition>) -> u64 {
        self.frames_taken[partition.into().index()].load(Relaxed)
    }

    /// Bytes of DRAM frames handed out, as pages.
    pub(super) fn taken_bytes(&self) -> u64 {
        SizeClass::all().map(|class| self.taken(class) * class.page_bytes() as u64).sum()
    }

    /// Counts frames that left a partition for another of its tier.
    pub(super) fn count_lost(&self, giver: Partition, frames: u64) {
        self.frames_lost[giver.index()].fetch_add(frames, Relaxed);
    }

    pub(super) fn count_gained(&self, taker: Partition, frames: u64) {
        self.frames_gained[taker.index()].fetch_add(frames, Relaxed);
    }

    pub(crate) fn count_written(&self, images: usize, cause: Cause) {
        self.images_written.fetch_add(images as u64, Relaxed);
        let closing = self.closing.load(Relaxed) && cause == Cause::Checkpoint;
        let counter = if closing { &self.written_closing } else { &self.written[cause as usize] };
        counter.fetch_add(images as u64, Relaxed);
    }

    pub(crate) fn count_read(&self, images: usize, bytes: usize) {
        self.store_reads.fetch_add(images as u64, Relaxed);
        self.store_read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts the compression of `page` bytes to an image of `image` bytes.
    pub(crate) fn count_packed(&self, page: usize, image: usize) {
        let images = if image < page { &self.images_compressed } else { &self.images_incompressible };
        images.fetch_add(1, Relaxed);
        self.compression_input_bytes.fetch_add(page as u64, Relaxed);
        self.compression_output_bytes.fetch_add(image as u64, Relaxed);
    }

    pub(crate) fn write_backs(&self) -> WriteBacks {
        let [ahead, frames, checkpoint, cleaner] =
            [0, 1, 2, 3].map(|cause| self.written[cause].load(Relaxed));
        WriteBacks { ahead, frames, checkpoint, cleaner, close: self.written_closing.load(Relaxed) }
    }

    pub(crate) fn sweeps(&self) -> Sweeps {
        Sweeps {
            evicted: self.evictions.load(Relaxed),
            used: self.swept_used.load(Relaxed),
            dirty: self.swept_dirty.load(Relaxed),
            busy: self.swept_busy.load(Relaxed),
        }
    }

    pub(crate) fn retries(&self) -> Retries {
        Retries {
            changed: self.changed.total(),
            latched: self.refused.total(),
            loaded: self.overtaken.total(),
        }
    }

    pub(crate) fn bypasses(&self) -> Bypasses {
        Bypasses { cleaner: self.images_moved.load(Relaxed), verify: self.verified.load(Relaxed) }
    }
}
