//! Time that passes only as it is spent, for each worker by itself.
//!
//! A worker is what a thread would be: it does one thing after the other. The thread that drives it says which it is
//! ([`VirtualTime::enter`]), and what is done from then on in that thread moves that worker's clock. The usual driver is one real thread:
//!
//! ```text
//!   repeat: take the worker whose clock is behind (`next`), enter it, do one operation as it
//! ```
//!
//! Then no two things happen at the same time, figures depend on nothing but the program and its seed, and still workers wait for each
//! other where they would: at the devices, whose channels know when they are busy. What they do not wait for is each other's
//! latches. Several real threads may drive workers too; the figures are then as good, but not the same each time.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::device::throttled::Clock;

/// Workers, at most.
const WORKERS_MAX: usize = 1024;

/// Nanoseconds of computation of an operation beside its steps: a call, a generated key, the copy of a value. Measured on a virtual
/// machine of 2025: 96 ns for the loop around a get and 140 for copying 1000 bytes.
pub const OPERATION_NS: u64 = 240;
/// Nanoseconds of computation for one page on the way of an operation: its translation, latch and search. Measured there: 300 to 400 ns
/// for a tree of three levels whose pages are in the processor's caches or next to it.
pub const PAGE_NS: u64 = 120;
/// Nanoseconds that a core takes to copy a KiB from memory to memory, however fast these are: measured there, 1.0 us for 16 KiB.
pub(super) const COPY_NS_PER_KIB: u64 = 62;

thread_local! {
    static WORKER: Cell<usize> = const { Cell::new(0) };
}

/// The clocks of a number of workers.
///
/// ```
/// use terrace_block::VirtualTime;
///
/// let time = VirtualTime::new(2);
/// for _ in 0..10 {
///     let worker = time.next();
///     time.enter(worker);
///     time.spend(worker, 100);
/// }
/// assert_eq!((time.now(0), time.now(1), time.elapsed_ns()), (500, 500, 500));
/// assert_eq!(time.throughput(10), 2e7);
/// ```
#[derive(Debug)]
pub struct VirtualTime {
    /// Picoseconds.
    clocks: Box<[AtomicU64]>,
}

impl VirtualTime {
    /// Clocks at 0 for `workers`.
    ///
    /// # Panics
    /// If there are none, or more than 1024.
    pub fn new(workers: usize) -> Self {
        assert!(
            (1..=WORKERS_MAX).contains(&workers),
            "{workers} workers are not between 1 and {WORKERS_MAX}"
        );
        Self { clocks: (0..workers).map(|_| AtomicU64::new(0)).collect() }
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.clocks.len()
    }

    /// A worker's clock, nanoseconds.
    pub fn now(&self, worker: usize) -> u64 {
        self.now_ps(worker) / 1000
    }

    /// A worker computes for `nanoseconds`.
    pub fn spend(&self, worker: usize, nanoseconds: u64) {
        self.clocks[worker].fetch_add(nanoseconds.saturating_mul(1000), Relaxed);
    }

    /// The worker that the calling thread is from now on, for every [`VirtualTime`].
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn enter(&self, worker: usize) {
        assert!(worker < self.clocks.len(), "there is no worker {worker} of {}", self.clocks.len());
        WORKER.set(worker);
    }

    /// Which worker the calling thread is: what it said last, 0 if nothing.
    ///
    /// # Panics
    /// If it said so of another [`VirtualTime`] that has more workers.
    pub fn worker(&self) -> usize {
        let worker = WORKER.get();
        assert!(
            worker < self.clocks.len(),
            "worker {worker} of another time in one of {}",
            self.clocks.len()
        );
        worker
    }

    /// The worker whose clock is behind, the first of them.
    pub fn next(&self) -> usize {
        (0..self.clocks.len()).min_by_key(|&worker| self.now_ps(worker)).expect("there is a worker")
    }

    /// The clock of the last worker, nanoseconds: how long all of it took.
    pub fn elapsed_ns(&self) -> u64 {
        (0..self.clocks.len()).map(|worker| self.now(worker)).max().expect("there is a worker")
    }

    /// Operations a second, when all workers together did so many.
    pub fn throughput(&self, operations: u64) -> f64 {
        operations as f64 * 1e9 / self.elapsed_ns().max(1) as f64
    }

    pub(super) fn now_ps(&self, worker: usize) -> u64 {
        self.clocks[worker].load(Relaxed)
    }

    /// A worker waits until `deadline`, picoseconds.
    pub(super) fn wait_until_ps(&self, worker: usize, deadline: u64) {
        self.clocks[worker].fetch_max(deadline, Relaxed);
    }

    /// The clock of the worker that is behind, picoseconds.
    pub(super) fn first_ps(&self) -> u64 {
        self.now_ps(self.next())
    }
}

/// The clock of the calling thread's worker.
impl Clock for VirtualTime {
    fn now(&self) -> Duration {
        Duration::from_nanos(VirtualTime::now(self, self.worker()))
    }

    fn sleep_until(&self, deadline: Duration) {
        let picoseconds = u64::try_from(deadline.as_nanos().saturating_mul(1000)).unwrap_or(u64::MAX);
        self.wait_until_ps(self.worker(), picoseconds);
    }
}
