//! Virtual time: a clock per worker, advanced by its own work.
//!
//! A worker stands for a thread. The driving thread enters a worker ([`VirtualTime::enter`]), and
//! its actions then advance that worker's clock:
//!
//! ```text
//!   repeat: take the worker with the earliest clock (`next`), enter it, do one operation as it
//! ```
//!
//! With one driver, figures depend only on the program and its seed. Workers wait for each other at
//! devices, which record when they are busy, but not for latches.

use std::any::Any;
use std::cell::Cell;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use crate::device::throttled::Clock;

const WORKERS_MAX: usize = 1024;

/// Nanoseconds of computation per operation, beside its steps: call, key generation, copy of a
/// value. Measured on a virtual machine of 2025: 96 ns for the loop around a get and 140 for
/// copying 1000 bytes.
pub const OPERATION_NS: u64 = 240;
/// Nanoseconds of computation per page of an operation. Measured there: 300 to 400 ns for a cached
/// tree of three levels.
pub const PAGE_NS: u64 = 120;
/// Nanoseconds for a core to copy a KiB in any memory: measured there, 1.0 us for 16 KiB.
pub(super) const COPY_NS_PER_KIB: u64 = 62;

thread_local! {
    static WORKER: Cell<usize> = const { Cell::new(0) };
}

/// The clocks of several workers.
///
/// ```
/// use terrace_io::VirtualTime;
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
    /// The modules in memory mode that are in use.
    pub(super) modules: Mutex<Vec<Weak<dyn Any + Send + Sync>>>,
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
        let clocks = (0..workers).map(|_| AtomicU64::new(0)).collect();
        Self { clocks, modules: Mutex::default() }
    }

    /// Number of workers.
    pub fn workers(&self) -> usize {
        self.clocks.len()
    }

    /// A worker's clock, nanoseconds.
    pub fn now(&self, worker: usize) -> u64 {
        self.now_ps(worker) / 1000
    }

    /// Advances a worker's clock by `nanoseconds` of computation.
    pub fn spend(&self, worker: usize, nanoseconds: u64) {
        self.clocks[worker].fetch_add(nanoseconds.saturating_mul(1000), Relaxed);
    }

    /// Makes the calling thread this worker, for every [`VirtualTime`].
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn enter(&self, worker: usize) {
        assert!(worker < self.clocks.len(), "there is no worker {worker} of {}", self.clocks.len());
        WORKER.set(worker);
    }

    /// The worker that the calling thread last entered, 0 if none.
    ///
    /// # Panics
    /// If it entered a worker of another [`VirtualTime`] that does not exist here.
    pub fn worker(&self) -> usize {
        let worker = WORKER.get();
        assert!(
            worker < self.clocks.len(),
            "worker {worker} of another time in one of {}",
            self.clocks.len()
        );
        worker
    }

    /// The first worker with the earliest clock.
    pub fn next(&self) -> usize {
        (0..self.clocks.len()).min_by_key(|&worker| self.now_ps(worker)).expect("there is a worker")
    }

    /// The latest clock, nanoseconds: the duration of all work.
    pub fn elapsed_ns(&self) -> u64 {
        (0..self.clocks.len()).map(|worker| self.now(worker)).max().expect("there is a worker")
    }

    /// Operations per second, if all workers together did `operations`.
    pub fn throughput(&self, operations: u64) -> f64 {
        operations as f64 * 1e9 / self.elapsed_ns().max(1) as f64
    }

    pub(super) fn now_ps(&self, worker: usize) -> u64 {
        self.clocks[worker].load(Relaxed)
    }

    pub(super) fn wait_until_ps(&self, worker: usize, deadline: u64) {
        self.clocks[worker].fetch_max(deadline, Relaxed);
    }

    pub(super) fn first_ps(&self) -> u64 {
        self.now_ps(self.next())
    }
}

impl Clock for VirtualTime {
    fn now(&self) -> Duration {
        Duration::from_nanos(VirtualTime::now(self, self.worker()))
    }

    fn sleep_until(&self, deadline: Duration) {
        let picoseconds = u64::try_from(deadline.as_nanos().saturating_mul(1000)).unwrap_or(u64::MAX);
        self.wait_until_ps(self.worker(), picoseconds);
    }
}
