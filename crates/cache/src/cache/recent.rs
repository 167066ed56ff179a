//! Hits not yet reported to the policy.
//!
//! A hit takes no shared lock: each thread has a *lane* with its own list. A full list is reported,
//! or grows to several times its size while the policy is busy, before the thread waits. A thread
//! reports its own list before a miss, so that the cache does exactly what the simulator does.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::policy::{Access, Slot};

/// Lanes; further threads share them.
const LANES: usize = 32;

/// Hits reported together.
const BATCH: usize = 64;

/// Most unreported hits of a lane.
const WAITING_MAX: usize = 1024;

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static THREAD: usize = THREADS.fetch_add(1, Ordering::Relaxed);
}

/// The data of one thread, on separate cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Lane {
    look_ups: AtomicU64,
    hits: AtomicU64,
    whole: AtomicU64,
    waiting: Mutex<Vec<(Slot, Access)>>,
}

impl Lane {
    pub fn waiting(&self) -> MutexGuard<'_, Vec<(Slot, Access)>> {
        self.waiting.lock()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reporting {
    No,
    /// Report, if the policy is free.
    IfFree,
    /// Report, even if it must wait.
    Now,
}

#[derive(Debug)]
pub(super) struct Recent {
    lanes: Vec<Lane>,
}

impl Recent {
    pub fn new() -> Self {
        Self { lanes: (0..LANES).map(|_| Lane::default()).collect() }
    }

    pub fn lane(&self) -> &Lane {
        &self.lanes[THREAD.with(|thread| *thread) % LANES]
    }

    pub fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter()
    }

    /// Counts a look-up that found its block; returns its number in this lane.
    pub fn look_ups(&self) -> u64 {
        self.lane().look_ups.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts a hit served by the fast device.
    pub fn count_hit(&self) {
        self.lane().hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a read request served from the cache alone.
    pub fn count_whole(&self) {
        self.lane().whole.fetch_add(1, Ordering::Relaxed);
    }

    /// Read requests of all threads served from the cache alone.
    pub fn whole(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.whole.load(Ordering::Relaxed)).sum()
    }

    pub fn note(&self, slot: u32, access: Access) -> Reporting {
        let lane = self.lane();
        let mut waiting = lane.waiting.lock();
        waiting.push((Slot(slot), access));
        match waiting.len() {
            WAITING_MAX.. => Reporting::Now,
            length if length.is_multiple_of(BATCH) => Reporting::IfFree,
            _ => Reporting::No,
        }
    }

    pub fn hits(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.hits.load(Ordering::Relaxed)).sum()
    }
}
