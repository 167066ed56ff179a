//! How many of the frames the record cache may take.
//!
//! Both halves of the memory remember what they evicted last: the queues of the pages the pages that left probation, the
//! record cache its records. A fault on a page that is remembered would have been none had the pages had so much more
//! memory; a miss of a record that is remembered, had the records had it. So the share goes up with the one and down with
//! the other, by steps that make up for the ghosts not being of one size, and comes to rest where a frame is worth the
//! same on both sides. Nothing is remembered before something was evicted: while everything fits, there is no cache.
//!
//! Only misses come here.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::ghost;

/// The target is kept in parts of a frame.
const PARTS: u64 = 64;
/// One step is one part in so many of the frames there are, and at least one frame.
const STEP_SHARE: u64 = 2048;
/// Pages remembered, as a share of the frames (`queues.rs`).
const PAGES_REMEMBERED_SHARE: u64 = 2;
/// What a missed record weighs, against as many bytes of missed pages. More than one, since a record that is kept relieves
/// the pages too, and to get going; but where half the operations are updates, 1.5 cost a small pool a tenth.
const RECORD_WEIGHT: f64 = 1.2;
/// Frames that stay the pages', whatever happens, in a hundred and at least.
const PAGES_PERCENT: u64 = 20;
const PAGES_MIN: u64 = 64;

/// How much memory records may take.
///
/// ```
/// use terrace::{Db, MemoryDirectory, RecordCache};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let builder = Db::builder().directory(directory).dram(4 << 20).record_cache(RecordCache::Off);
/// assert_eq!(builder.open("")?.stats().records.bytes, 0);
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RecordCache {
    /// Whatever makes misses fewest, up to four fifths of the frames.
    #[default]
    Auto,
    /// None.
    Off,
    /// This many frames in a hundred, at most 80, from the first miss on.
    Percent(u8),
}

impl RecordCache {
    /// The most frames in a hundred.
    pub const PERCENT_MAX: u8 = 100 - PAGES_PERCENT as u8;
}

/// Where the cache is to go.
#[derive(Debug)]
pub(super) struct Share {
    mode: RecordCache,
    target: AtomicU64,
}

impl Share {
    pub(super) fn new(mode: RecordCache) -> Share {
        Share { mode, target: AtomicU64::new(0) }
    }

    pub(super) fn is_off(&self) -> bool {
        self.mode == RecordCache::Off
    }

    /// The most it may be with `frames` frames.
    pub(super) fn most(&self, frames: u32) -> u32 {
        let frames = u64::from(frames);
        let percent = match self.mode {
            RecordCache::Off => 0,
            RecordCache::Auto => 100 - PAGES_PERCENT,
            RecordCache::Percent(percent) => u64::from(percent).min(100 - PAGES_PERCENT),
        };
        (frames * percent / 100).min(frames.saturating_sub(PAGES_MIN)) as u32
    }

    /// What it is to be now.
    pub(super) fn target(&self, frames: u32) -> u32 {
        let most = self.most(frames);
        match self.mode {
            RecordCache::Auto => most.min((self.target.load(Relaxed) / PARTS) as u32),
            _ => most,
        }
    }

    /// A fault on a page that was evicted lately.
    pub(super) fn page_missed(&self, frames: u32) {
        let step = step(frames);
        // Lost steps of two threads at once do not matter, and more than two steps at once do not happen.
        self.target.store(self.target.load(Relaxed).saturating_sub(step), Relaxed);
    }

    /// A miss of a record that was evicted lately, after `since` others in its bucket of a ghost that knows `known`, of
    /// records of `record_bytes`.
    pub(super) fn record_missed(&self, frames: u32, since: usize, known: usize, bytes: (usize, usize)) {
        let (record_bytes, page_bytes) = bytes;
        let pages_bytes = u64::from(frames) / PAGES_REMEMBERED_SHARE * page_bytes as u64;
        let each = (known * record_bytes / ghost::BUCKET).max(1) as u64;
        // As much of the bucket as stands for as many bytes as the pages' ghost does.
        let depth = ((pages_bytes + each / 2) / each).clamp(1, ghost::BUCKET as u64);
        if since as u64 >= depth {
            return;
        }
        let weight = RECORD_WEIGHT * pages_bytes as f64 / (each * depth) as f64;
        let up = (step(frames) as f64 * weight.min(6.0)) as u64;
        let most = u64::from(self.most(frames)) * PARTS;
        self.target.store((self.target.load(Relaxed) + up).min(most), Relaxed);
    }
}

fn step(frames: u32) -> u64 {
    (u64::from(frames) * PARTS / STEP_SHARE).max(PARTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_follows_the_side_that_misses_more() {
        let share = Share::new(RecordCache::Auto);
        assert_eq!(share.target(4000), 0);
        for _ in 0..10_000 {
            share.record_missed(4000, 0, 16_000, (500, 4096));
        }
        assert_eq!(share.target(4000), 3200, "four fifths at most");
        assert_eq!(share.target(400), 320, "of the frames there are");
        share.record_missed(4000, ghost::BUCKET - 1, 16_000, (4000, 4096));
        (0..1000).for_each(|_| share.page_missed(4000));
        let middle = share.target(4000);
        assert!((1000..2500).contains(&middle), "{middle}");
        share.record_missed(4000, ghost::BUCKET - 1, 16_000, (4000, 4096));
        assert_eq!(share.target(4000), middle, "a record that was evicted long ago says nothing");
        (0..3000).for_each(|_| share.page_missed(4000));
        assert_eq!(share.target(4000), 0);
    }

    #[test]
    fn some_frames_stay_the_pages() {
        let fixed = Share::new(RecordCache::Percent(100));
        assert_eq!([0, 24, 64, 100, 1000].map(|frames| fixed.target(frames)), [0, 0, 0, 36, 800]);
        fixed.page_missed(1000);
        assert_eq!(fixed.target(1000), 800);
        let off = Share::new(RecordCache::Off);
        (0..100).for_each(|_| off.record_missed(1000, 0, 4000, (100, 4096)));
        assert_eq!(off.target(1000), 0);
    }
}
