//! What the pool counts. Nothing here is written on a hit, and no clock is read there.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::stripe::{ByStripe, Stripe};
use crate::ids::{ByClass, SizeClass};
use crate::stats::histogram::Histogram;
use crate::stats::{Bypasses, Retries, Sweeps, WriteBacks};
use crate::threads::Tally;

/// Why images of dirty pages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Ahead of the sweep.
    Ahead,
    /// Frames are waited for.
    Frames,
    /// The log is to be cut.
    Checkpoint,
    /// A segment is being emptied.
    Cleaner,
}

/// Counters since the database was opened.
#[derive(Debug, Default)]
pub(crate) struct PoolStats {
    /// Pages brought in from the store.
    pub(crate) faults: AtomicU64,
    /// From the miss until the page was in its frame.
    pub(crate) fault: Histogram,
    /// Pages whose frame was taken.
    pub(crate) evictions: AtomicU64,
    /// Pages the sweep found used.
    pub(crate) swept_used: AtomicU64,
    /// Pages the sweep found dirty.
    pub(crate) swept_dirty: AtomicU64,
    /// Pages the sweep found latched, or lost to somebody else.
    pub(crate) swept_busy: AtomicU64,
    /// Frames of each stripe handed out, for faults, new pages and pages from another tier.
    pub(super) frames_taken: ByStripe<AtomicU64>,
    /// Frames that each class got from others.
    pub(crate) frames_gained: ByClass<AtomicU64>,
    /// And gave to others.
    pub(crate) frames_lost: ByClass<AtomicU64>,
    /// Times that frames went from one class to another.
    pub(crate) frame_moves: AtomicU64,
    /// Pages and frames whose memory could not be given back.
    pub(crate) not_discarded: AtomicU64,
    /// Times a fault found no clean frame and waited for write-back.
    pub(crate) frame_waits: AtomicU64,
    /// Times somebody waited until frames for new pages were reserved.
    pub(crate) frame_reservation_waits: AtomicU64,
    /// Times somebody waited for log space.
    pub(crate) log_waits: AtomicU64,
    /// Times write-back found no free segment.
    pub(crate) segment_waits: AtomicU64,
    /// Times somebody met an exclusive latch.
    pub(crate) latch_waits: Tally,
    /// Reads without a latch that did not hold.
    pub(crate) changed: Tally,
    /// Latches refused at the version that was seen.
    pub(crate) refused: Tally,
    /// Pages that another thread loaded or moved first.
    pub(crate) overtaken: Tally,
    /// Images read, those moved by the cleaner and looked at by verification included.
    pub(crate) store_reads: AtomicU64,
    /// Bytes of those images.
    pub(crate) store_read_bytes: AtomicU64,
    /// Bytes of images written, those of the page table included.
    pub(crate) store_written_bytes: AtomicU64,
    /// Images of pages that are to be compressed: those that became shorter.
    pub(crate) images_compressed: AtomicU64,
    /// Those that did not.
    pub(crate) images_incompressible: AtomicU64,
    /// Bytes of all of them, as pages.
    pub(crate) compression_input_bytes: AtomicU64,
    /// And as images.
    pub(crate) compression_output_bytes: AtomicU64,
    /// Images that verification has read.
    pub(crate) verified: AtomicU64,
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
    /// The same by cause.
    written: [AtomicU64; 4],
    /// Those written since the database is being closed.
    written_closing: AtomicU64,
    /// Whether it is.
    pub(crate) closing: AtomicBool,
    /// Images moved by the cleaner.
    pub(crate) images_moved: AtomicU64,
    /// Chunk and directory images written.
    pub(crate) mapping_images: AtomicU64,
    /// Syncs of the page file.
    pub(crate) store_syncs: AtomicU64,
    /// Superblocks written.
    pub(crate) superblocks: AtomicU64,
}

impl PoolStats {
    /// Frames of a stripe handed out.
    pub(super) fn taken(&self, stripe: impl Into<Stripe>) -> u64 {
        self.frames_taken[stripe.into().index()].load(Relaxed)
    }

    /// Bytes of all frames in DRAM handed out, as pages.
    pub(super) fn taken_bytes(&self) -> u64 {
        SizeClass::all().map(|class| self.taken(class) * class.page_bytes() as u64).sum()
    }

    /// Counts images that were written because of `cause`.
    pub(super) fn count_written(&self, images: usize, cause: Cause) {
        self.images_written.fetch_add(images as u64, Relaxed);
        let closing = self.closing.load(Relaxed) && cause == Cause::Checkpoint;
        let counter = if closing { &self.written_closing } else { &self.written[cause as usize] };
        counter.fetch_add(images as u64, Relaxed);
    }

    /// Counts images that were read.
    pub(super) fn count_read(&self, images: usize, bytes: usize) {
        self.store_reads.fetch_add(images as u64, Relaxed);
        self.store_read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts an image of `image` bytes made of a page of `page` bytes that is to be compressed.
    pub(super) fn count_packed(&self, page: usize, image: usize) {
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
