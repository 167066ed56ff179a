//! A frame's links in the replacement queues.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// Pages not accessed again since their load.
    Probation = 0,
    Main = 1,
    /// Victims that must be written first.
    Dirty = 2,
}

/// Neighbours, queue and count of a frame.
///
/// Numbers are stored plus one: zeros mean no queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links<'a> {
    pub(crate) before: &'a AtomicU64,
    pub(crate) behind: &'a AtomicU64,
    /// Queue in the low half, count in the upper.
    pub(crate) standing: &'a AtomicU64,
}

impl Links<'_> {
    /// Remaining rounds of the main queue.
    pub(crate) fn count(&self) -> u32 {
        (self.standing.load(Relaxed) >> 32) as u32
    }

    pub(crate) fn queue(&self) -> Option<Queue> {
        match self.standing.load(Relaxed) as u32 {
            0 => None,
            1 => Some(Queue::Probation),
            2 => Some(Queue::Main),
            _ => Some(Queue::Dirty),
        }
    }

    pub(crate) fn stand(&self, queue: Option<Queue>, count: u32) {
        let queue = queue.map_or(0, |queue| queue as u64 + 1);
        self.standing.store(u64::from(count) << 32 | queue, Relaxed);
    }

    pub(crate) fn behind(&self) -> Option<u32> {
        (self.behind.load(Relaxed) as u32).checked_sub(1)
    }
}

pub(crate) fn link(frame: Option<u32>) -> u64 {
    frame.map_or(0, |frame| u64::from(frame) + 1)
}
