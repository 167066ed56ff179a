//! Hits that the policy has not yet heard of.
//!
//! A hit takes no lock that others want: each thread has a *lane*, by its number, with a list of its own. When
//! the list is full the thread reports it to the policy; if the policy is busy just then, the list may grow to several times
//! that before the thread waits. Before a miss a thread reports its own list, so that a single thread's policy hears of everything
//! in order, and the cache does exactly what the simulator would.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::policy::{Access, Slot};

/// Lanes; threads beyond that share them.
const LANES: usize = 32;

/// Hits reported together.
const BATCH: usize = 64;

/// Hits that wait at most.
const WAITING_MAX: usize = 1024;

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The number of this thread, in the order of their first hits.
    static THREAD: usize = THREADS.fetch_add(1, Ordering::Relaxed);
}

/// A thread's own, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Lane {
    look_ups: AtomicU64,
    hits: AtomicU64,
    whole: AtomicU64,
    waiting: Mutex<Vec<(Slot, Access)>>,
}

impl Lane {
    /// What waits to be reported.
    pub fn waiting(&self) -> MutexGuard<'_, Vec<(Slot, Access)>> {
        self.waiting.lock()
    }
}

/// What a hit asks of the thread that had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing.
    No,
    /// To report, if the policy is free.
    IfFree,
    /// To report, even if it has to wait.
    Now,
}

/// The lanes of all threads.
#[derive(Debug)]
pub(super) struct Recent {
    lanes: Vec<Lane>,
}

impl Recent {
    pub fn new() -> Self {
        Self { lanes: (0..LANES).map(|_| Lane::default()).collect() }
    }

    /// This thread's lane.
    pub fn lane(&self) -> &Lane {
        &self.lanes[THREAD.with(|thread| *thread) % LANES]
    }

    /// Those of all threads.
    pub fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter()
    }

    /// Counts a look-up that found its block; gives its number in this lane.
    pub fn look_ups(&self) -> u64 {
        self.lane().look_ups.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts one that the fast device has served.
    pub fn count_hit(&self) {
        self.lane().hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a read request of which every block was in the cache.
    pub fn count_whole(&self) {
        self.lane().whole.fetch_add(1, Ordering::Relaxed);
    }

    /// Those of all threads.
    pub fn whole(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.whole.load(Ordering::Relaxed)).sum()
    }

    /// Takes note of a hit.
    pub fn note(&self, slot: u32, access: Access) -> Due {
        let lane = self.lane();
        let mut waiting = lane.waiting.lock();
        waiting.push((Slot(slot), access));
        match waiting.len() {
            WAITING_MAX.. => Due::Now,
            length if length.is_multiple_of(BATCH) => Due::IfFree,
            _ => Due::No,
        }
    }

    /// All hits of all threads.
    pub fn hits(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.hits.load(Ordering::Relaxed)).sum()
    }
}
