//! Counts what passes through a device, for statistics and for tests of how often something is read.
//!
//! A call is counted before it is made, whether it succeeds or not, and each transfer of a batch counts as one.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{BlockDevice, Read, Write};

/// Counters that any number of devices can share. Each is independent, hence relaxed: a reader may see one call's
/// bytes and not yet the call.
///
/// ```
/// use terrace_block::{Counters, Counts};
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
    /// What was counted so far.
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

/// What [`Counters`] showed at one moment.
///
/// ```
/// use terrace_block::Counts;
///
/// let counts = Counts { writes: 2, written_bytes: 8192, ..Counts::default() };
/// assert_eq!(counts.written_bytes / counts.writes, 4096);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Bytes asked for by them.
    pub read_bytes: u64,
    /// Writes, durable ones included.
    pub writes: u64,
    /// Bytes given to them.
    pub written_bytes: u64,
    /// Durable writes among the writes.
    pub writes_through: u64,
    /// Syncs; a durable write is none.
    pub syncs: u64,
}

/// A device that counts its calls.
///
/// ```
/// use std::sync::Arc;
/// use terrace_block::{AlignedBuffer, BlockDevice, CountedDevice, Counters, MemoryDevice};
///
/// let counters = Arc::new(Counters::default());
/// let device = CountedDevice::new(Arc::new(MemoryDevice::new("pages", 4096)), Arc::clone(&counters));
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

impl BlockDevice for CountedDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn covers(&self, end: u64) -> bool {
        self.inner.covers(end)
    }

    fn alignment(&self) -> usize {
        self.inner.alignment()
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

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.inner.set_len(bytes)
    }
}
