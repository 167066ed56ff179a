//! The record cache's share of the frames.
//!
//! A fault on a page in the page ghost lowers the share: more page frames would have avoided it. A
//! record miss in the record ghost raises it. Steps compensate for the ghosts' sizes. The share
//! converges where a frame is worth the same on both sides. While everything fits, there is no
//! record cache.
//!
//! Of accesses in place in the middle tier, both sides count the same sample
//! (`threads::Sample`), so faults and promotions weigh more.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::ghost;

/// Parts of a frame in which the target is stored.
const PARTS: u64 = 64;
/// One step, as a divisor of the frames; at least one frame.
const STEP_SHARE: u64 = 2048;
/// Capacity of the page ghost (`queues.rs`), as a divisor of the frames.
const PAGES_REMEMBERED_SHARE: u64 = 2;
/// Weight of a missed record against as many bytes of missed pages.
///
/// Above one: a cached record also relieves the pages. But 1.5 cost a small pool a tenth with half
/// updates.
const RECORD_WEIGHT: f64 = 1.2;
/// Frames reserved for pages: a percentage, and a minimum.
const PAGES_PERCENT: u64 = 20;
const PAGES_MIN: u64 = 64;

/// The memory that records may take.
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
    /// The share with the fewest misses; at most 80 % of the frames.
    #[default]
    Auto,
    /// No record cache.
    Off,
    /// A percentage of the frames from the first miss; at most 80.
    Percent(u8),
}

impl RecordCache {
    /// The highest percentage.
    pub const PERCENT_MAX: u8 = 100 - PAGES_PERCENT as u8;
}

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

    pub(super) fn most(&self, frames: u32) -> u32 {
        let frames = u64::from(frames);
        let percent = match self.mode {
            RecordCache::Off => 0,
            RecordCache::Auto => 100 - PAGES_PERCENT,
            RecordCache::Percent(percent) => u64::from(percent).min(100 - PAGES_PERCENT),
        };
        (frames * percent / 100).min(frames.saturating_sub(PAGES_MIN)) as u32
    }

    pub(super) fn target(&self, frames: u32) -> u32 {
        let most = self.most(frames);
        match self.mode {
            RecordCache::Auto => most.min((self.target.load(Relaxed) / PARTS) as u32),
            _ => most,
        }
    }

    pub(super) fn page_missed(&self, frames: u32) {
        let step = step(frames);
        // Concurrent threads may lose steps.
        self.target.store(self.target.load(Relaxed).saturating_sub(step), Relaxed);
    }

    /// Reports a miss of a recently evicted record.
    ///
    /// `since` later records are in its ghost bucket. The ghost has room for `known`. `bytes`: of a
    /// record and of a page.
    pub(super) fn record_missed(&self, frames: u32, since: usize, known: usize, bytes: (usize, usize)) {
        let (record_bytes, page_bytes) = bytes;
        let pages_bytes = u64::from(frames) / PAGES_REMEMBERED_SHARE * page_bytes as u64;
        let each = (known * record_bytes / ghost::BUCKET).max(1) as u64;
        // The part of the bucket that covers as many bytes as the page ghost.
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
