//! Counts the calls of a device, for statistics and tests.
//!
//! Counts each call before it is made, successful or not, and each transfer of a batch as one.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{BlockDevice, Read, Write};

/// Counters that any number of devices can share. Each is independent, hence relaxed: a reader may
/// see a call's bytes before the call.
///
/// ```
/// use terrace_io::{Counters, Counts};
///
/// assert_eq!(Counters::default().counts(), Counts::default());
/// ```
#[derive(Debug, Default)]
pub struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    writes_through: AtomicU64,
    syncs: AtomicU64,
}

impl Counters {
    /// The counts so far.
    pub fn counts(&self) -> Counts {
        Counts {
            reads: self.reads.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            writes_through: self.writes_through.load(Ordering::Relaxed),
            syncs: self.syncs.load(Ordering::Relaxed),
        }
    }

    fn read(&self, bytes: usize) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn write(&self, bytes: usize) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// One snapshot of [`Counters`].
///
/// ```
/// use terrace_io::Counts;
///
/// let counts = Counts { writes: 2, written_bytes: 8192, ..Counts::default() };
/// assert_eq!(counts.written_bytes / counts.writes, 4096);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Requested bytes.
    pub read_bytes: u64,
    /// Writes, including durable ones.
    pub writes: u64,
    /// Written bytes.
    pub written_bytes: u64,
    /// The durable ones of the writes.
    pub writes_through: u64,
    /// Syncs, without durable writes.
    pub syncs: u64,
}

/// A device that counts its calls.
///
/// ```
/// use std::sync::Arc;
/// use terrace_io::{AlignedBuffer, BlockDevice, CountedDevice, Counters, MemoryDevice};
///
/// let counters = Arc::new(Counters::default());
/// let inner = Arc::new(MemoryDevice::new("pages", 4096));
/// let device = CountedDevice::new(inner, Arc::clone(&counters));
/// device.write_at(0, &AlignedBuffer::zeroed(1024))?;
/// device.sync()?;
/// let counts = counters.counts();
/// assert_eq!((counts.writes, counts.written_bytes, counts.syncs), (1, 1024, 1));
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct CountedDevice {
    inner: Arc<dyn BlockDevice>,
    counters: Arc<Counters>,
}

impl CountedDevice {
    /// Counts the calls of `inner` in `counters`.
    pub fn new(inner: Arc<dyn BlockDevice>, counters: Arc<Counters>) -> Self {
        Self { inner, counters }
    }
}

impl super::decorator::Decorator for CountedDevice {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.counters.read(buffer.len());
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.counters.write(bytes.len());
        self.inner.write_at(offset, bytes)
    }

    fn read_batch(&self, reads: &mut [Read<'_>]) {
        reads.iter().for_each(|read| self.counters.read(read.buffer.len()));
        self.inner.read_batch(reads);
    }

    fn write_batch(&self, writes: &[Write<'_>]) -> io::Result<()> {
        writes.iter().for_each(|write| self.counters.write(write.bytes.len()));
        self.inner.write_batch(writes)
    }

    fn write_through_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.counters.write(bytes.len());
        self.counters.writes_through.fetch_add(1, Ordering::Relaxed);
        self.inner.write_through_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.counters.syncs.fetch_add(1, Ordering::Relaxed);
        self.inner.sync()
    }
}
