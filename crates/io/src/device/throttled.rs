//! Slows a device down to given limits.
//!
//! A transfer ends once the inner device is done *and* its deadline has passed. Transfers pass one
//! after the other through a gate. Each holds the gate for the longer of its bytes over the
//! bandwidth and one over the operations per second. Then each waits for the latency, any number at
//! the same time:
//!
//! ```text
//!   gate:     |--- 1 ---|--- 2 ---|--- 3 ---|
//!   latency:            |~~~~~ 1 ~~~~~|
//!                                 |~~~~~ 2 ~~~~~|
//! ```
//!
//! So a batch has the latency once, and a sync only the latency. Tests pass a clock that needs no
//! real time.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{BlockDevice, Read, Write};

/// A source of time to wait for.
///
/// ```
/// use std::time::Duration;
/// use terrace_io::{Clock, VirtualClock};
///
/// let clock = VirtualClock::default();
/// clock.sleep_until(Duration::from_secs(3600)); // returns at once
/// assert_eq!(clock.now(), Duration::from_secs(3600));
/// ```
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Time since a fixed moment; never goes back.
    fn now(&self) -> Duration;

    /// Waits until `now` reaches `deadline`.
    fn sleep_until(&self, deadline: Duration);
}

/// The machine's clock.
///
/// ```
/// use std::time::Duration;
/// use terrace_io::{Clock, MachineClock};
///
/// let clock = MachineClock::default();
/// let deadline = clock.now() + Duration::from_millis(1);
/// clock.sleep_until(deadline);
/// assert!(clock.now() >= deadline);
/// ```
#[derive(Debug)]
pub struct MachineClock {
    start: Instant,
}

impl Default for MachineClock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for MachineClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep_until(&self, deadline: Duration) {
        while let Some(rest) = deadline.checked_sub(self.now()).filter(|rest| !rest.is_zero()) {
            std::thread::sleep(rest);
        }
    }
}

/// A clock that only waiting moves.
///
/// ```
/// use std::time::Duration;
/// use terrace_io::{Clock, VirtualClock};
///
/// let clock = VirtualClock::default();
/// clock.sleep_until(Duration::from_millis(5));
/// clock.sleep_until(Duration::from_millis(2));
/// assert_eq!(clock.now(), Duration::from_millis(5));
/// ```
#[derive(Debug, Default)]
pub struct VirtualClock {
    nanoseconds: AtomicU64,
}

impl Clock for VirtualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::SeqCst))
    }

    fn sleep_until(&self, deadline: Duration) {
        let deadline = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_max(deadline, Ordering::SeqCst);
    }
}

/// Speed limits of a device.
///
/// ```
/// use std::time::Duration;
/// use terrace_io::Limits;
///
/// let latency = Duration::from_millis(8);
/// let disk = Limits { latency, bytes_per_second: Some(150_000_000), ..Limits::default() };
/// assert_eq!(disk.operations_per_second, None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Minimum time of a transfer or sync.
    pub latency: Duration,
    /// Bytes per second, reads and writes together; `None` for no limit.
    pub bytes_per_second: Option<u64>,
    /// Transfers per second; `None` for no limit.
    pub operations_per_second: Option<u64>,
}

impl Limits {
    fn hold(&self, bytes: usize) -> Duration {
        let time = |count: u64, per_second: Option<u64>| {
            per_second.map_or(0, |rate| u128::from(count) * 1_000_000_000 / u128::from(rate.max(1)))
        };
        let nanoseconds = time(bytes as u64, self.bytes_per_second).max(time(1, self.operations_per_second));
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

/// Gate and latency, for other things than block devices.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use terrace_io::{Clock, Gate, Limits, VirtualClock};
///
/// let clock = Arc::new(VirtualClock::default());
/// let limits = Limits { latency: Duration::from_millis(2), ..Limits::default() };
/// let gate = Gate::new(limits, Arc::clone(&clock) as Arc<dyn Clock>);
/// assert_eq!(gate.slowly([4096], || "read"), "read");
/// assert_eq!(clock.now(), Duration::from_millis(2));
/// ```
#[derive(Debug)]
pub struct Gate {
    limits: Limits,
    clock: Arc<dyn Clock>,
    free_at: Mutex<Duration>,
}

impl Gate {
    /// A gate with `limits`.
    pub fn new(limits: Limits, clock: Arc<dyn Clock>) -> Self {
        Self { limits, clock, free_at: Mutex::new(Duration::ZERO) }
    }

    /// Passes transfers of these sizes, in bytes, through the gate; returns the last deadline.
    fn pass(&self, sizes: impl IntoIterator<Item = usize>) -> Duration {
        let now = self.clock.now();
        let mut free_at = self.free_at.lock();
        let mut last = now;
        for bytes in sizes {
            last = (*free_at).max(now).saturating_add(self.limits.hold(bytes));
            *free_at = last;
        }
        last.saturating_add(self.limits.latency)
    }

    /// Runs `act` and waits until the limits allow its end. `act` makes concurrent transfers of
    /// these sizes, in bytes. No size means a sync.
    pub fn slowly<T>(&self, sizes: impl IntoIterator<Item = usize>, act: impl FnOnce() -> T) -> T {
        let deadline = self.pass(sizes);
        let outcome = act();
        self.clock.sleep_until(deadline);
        outcome
    }
}

/// A device with limits.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use terrace_io::{AlignedBuffer, BlockDevice, Clock, Limits, MemoryDevice};
/// use terrace_io::{ThrottledDevice, VirtualClock};
///
/// let clock = Arc::new(VirtualClock::default());
/// let limits = Limits { bytes_per_second: Some(1_048_576), ..Limits::default() };
/// let inner = Arc::new(MemoryDevice::new("slow", 1 << 20));
/// let device = ThrottledDevice::new(inner, limits, Arc::clone(&clock) as Arc<dyn Clock>);
/// device.write_at(0, &AlignedBuffer::zeroed(524_288))?;
/// assert_eq!(clock.now(), Duration::from_millis(500));
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct ThrottledDevice {
    inner: Arc<dyn BlockDevice>,
    gate: Gate,
}

impl ThrottledDevice {
    /// Slows `inner` down to `limits`.
    pub fn new(inner: Arc<dyn BlockDevice>, limits: Limits, clock: Arc<dyn Clock>) -> Self {
        Self { inner, gate: Gate::new(limits, clock) }
    }
}

impl super::decorator::Decorator for ThrottledDevice {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.gate.slowly([buffer.len()], || self.inner.read_at(offset, buffer))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.gate.slowly([bytes.len()], || self.inner.write_at(offset, bytes))
    }

    fn read_batch(&self, reads: &mut [Read<'_>]) {
        if reads.is_empty() {
            return;
        }
        let sizes: Vec<_> = reads.iter().map(|read| read.buffer.len()).collect();
        self.gate.slowly(sizes, || self.inner.read_batch(reads));
    }

    fn write_batch(&self, writes: &[Write<'_>]) -> io::Result<()> {
        if writes.is_empty() {
            return Ok(());
        }
        self.gate.slowly(writes.iter().map(|write| write.bytes.len()), || self.inner.write_batch(writes))
    }

    fn write_through_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.gate.slowly([bytes.len()], || self.inner.write_through_at(offset, bytes))
    }

    fn sync(&self) -> io::Result<()> {
        self.gate.slowly([], || self.inner.sync())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlignedBuffer, MemoryDevice};

    fn device(limits: Limits) -> (ThrottledDevice, Arc<VirtualClock>) {
        let clock = Arc::new(VirtualClock::default());
        let inner = Arc::new(MemoryDevice::new("pages", 1 << 20));
        (ThrottledDevice::new(inner, limits, Arc::clone(&clock) as Arc<dyn Clock>), clock)
    }

    #[test]
    fn a_batch_has_the_latency_once() {
        let limits = Limits { latency: Duration::from_millis(10), ..Limits::default() };
        let (device, clock) = device(limits);
        let mut buffers = vec![AlignedBuffer::zeroed(4096); 8];
        let mut reads: Vec<_> = buffers.iter_mut().map(|buffer| Read::new(0, buffer)).collect();
        device.read_batch(&mut reads);
        assert_eq!(clock.now(), Duration::from_millis(10));
        device.sync().unwrap();
        assert_eq!(clock.now(), Duration::from_millis(20));
    }

    #[test]
    fn operations_a_second_hold_also_within_a_batch() {
        let limits = Limits { operations_per_second: Some(1000), ..Limits::default() };
        let (device, clock) = device(limits);
        let page = AlignedBuffer::zeroed(4096);
        device.write_batch(&[Write::new(0, &page); 50]).unwrap();
        assert_eq!(clock.now(), Duration::from_millis(50));
    }

    #[test]
    fn the_slower_of_bandwidth_and_operations_counts() {
        let limits = Limits {
            bytes_per_second: Some(4_096_000),
            operations_per_second: Some(100),
            ..Limits::default()
        };
        let (device, clock) = device(limits);
        device.write_at(0, &AlignedBuffer::zeroed(4096)).unwrap();
        assert_eq!(clock.now(), Duration::from_millis(10));
        device.write_through_at(0, &AlignedBuffer::zeroed(409_600)).unwrap();
        assert_eq!(clock.now(), Duration::from_millis(110));
    }
}
