//! A block device as slow as a profile.
//!
//! It charges the calling worker. A transfer is sequential if it begins where one of the last few
//! ended, else random. The transfers of a batch run concurrently and have the latency once. A sync
//! takes the latency of a write.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::SimulatedMemory;
use super::channel::{Channel, Charge, Time};
use super::page_cache::{PageCache, Transfer};
use super::profile::{Direction, Pattern, Profile};
use crate::device::{BlockDevice, Read, Write};

/// Concurrent sequential streams that are recognised.
const STREAMS: usize = 8;

/// A device that charges its users for reads and writes.
///
/// ```
/// use std::sync::Arc;
/// use terrace_io::{AlignedBuffer, BlockDevice, MemoryDevice};
/// use terrace_io::{Profile, SimulatedDevice, Time, VirtualTime};
///
/// let time = Arc::new(VirtualTime::new(1));
/// let inner = Arc::new(MemoryDevice::new("pages", 1 << 20));
/// let profile = Profile::named("nvme-optane").unwrap();
/// let device = SimulatedDevice::new(inner, profile, Time::Virtual(Arc::clone(&time)));
/// let mut page = AlignedBuffer::zeroed(16384);
/// device.read_at(65536, &mut page)?;
/// assert_eq!(time.now(0), 12_000 + 6_826, "a latency, and 16 KiB at 2.4 GB/s");
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct SimulatedDevice {
    inner: Arc<dyn BlockDevice>,
    channel: Arc<Channel>,
    page_cache: Option<PageCache>,
    /// By direction: ends of the last transfers, and the next to replace.
    streams: [Mutex<([u64; STREAMS], usize)>; 2],
}

impl SimulatedDevice {
    /// Makes `inner` as slow as `profile`, which must be slower. Ignores a memory's caches.
    pub fn new(inner: Arc<dyn BlockDevice>, profile: Profile, time: Time) -> Self {
        let page_cache = PageCache::before(&profile, &time);
        Self { page_cache, ..Self::over(inner, Arc::new(Channel::new(profile, time))) }
    }

    /// Puts `inner` on the modules of `memory`: both share bandwidth, and writers of one slow down
    /// readers of the other. The device bypasses the memory's caches.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use terrace_io::{AlignedBuffer, BlockDevice, MemoryDevice, Pattern, Profile};
    /// use terrace_io::{SimulatedDevice, SimulatedMemory, Time, VirtualTime};
    ///
    /// let time = Arc::new(VirtualTime::new(2));
    /// let optane = Profile::named("optane").unwrap();
    /// let memory = SimulatedMemory::new(optane, Time::Virtual(Arc::clone(&time)));
    /// let inner = Arc::new(MemoryDevice::new("the other half", 1 << 20));
    /// let device = SimulatedDevice::beside(inner, &memory);
    /// memory.write(0, 1 << 20, Pattern::Sequential);
    /// time.enter(1);
    /// device.write_at(0, &AlignedBuffer::zeroed(4096))?;
    /// assert!(time.now(1) > 38_000, "a MiB at 27.6 GB/s is in the way");
    /// # std::io::Result::Ok(())
    /// ```
    pub fn beside(inner: Arc<dyn BlockDevice>, memory: &SimulatedMemory) -> Self {
        Self::over(inner, Arc::clone(&memory.channel))
    }

    fn over(inner: Arc<dyn BlockDevice>, channel: Arc<Channel>) -> Self {
        // No transfer begins at the largest offset, so none is sequential at first.
        let streams = [(); 2].map(|()| Mutex::new(([u64::MAX; STREAMS], 0)));
        Self { inner, channel, page_cache: None, streams }
    }

    /// Its profile.
    pub fn profile(&self) -> &Profile {
        &self.channel.profile
    }

    /// Whether a transfer continues another; records its end.
    fn pattern(&self, direction: Direction, offset: u64, bytes: usize) -> Pattern {
        let mut streams = self.streams[direction as usize].lock();
        let (ends, turn) = &mut *streams;
        let known = ends.iter().position(|&end| end == offset);
        let stream = known.unwrap_or(*turn);
        ends[stream] = offset.saturating_add(bytes as u64);
        if known.is_none() {
            *turn = (*turn + 1) % STREAMS;
        }
        if known.is_some() { Pattern::Sequential } else { Pattern::Random }
    }

    /// Begins concurrent transfers, by way of the page cache if there is one.
    fn begin(&self, direction: Direction, transfers: impl Iterator<Item = Transfer> + Clone) -> Charge<'_> {
        match (&self.page_cache, direction) {
            (None, _) => {}
            (Some(cache), Direction::Write) => cache.write(transfers.clone()),
            (Some(cache), Direction::Read) => {
                cache.read(transfers, |missing| {
                    _ = self.begin_below(Direction::Read, missing.iter().copied()).finish();
                });
                return Charge::nothing();
            }
        }
        self.begin_below(direction, transfers)
    }

    /// Begins transfers of the disk; one random transfer makes the whole batch random.
    fn begin_below(
        &self,
        direction: Direction,
        transfers: impl Iterator<Item = Transfer> + Clone,
    ) -> Charge<'_> {
        let patterns = transfers.clone().map(|(offset, bytes)| self.pattern(direction, offset, bytes));
        let random = patterns.fold(false, |random, pattern| random | (pattern == Pattern::Random));
        let pattern = if random { Pattern::Random } else { Pattern::Sequential };
        let unit = self.profile().granularity_bytes();
        let sizes = transfers.map(|(offset, bytes)| {
            let end = offset.saturating_add(bytes as u64);
            (end.div_ceil(unit) - offset / unit).saturating_mul(unit)
        });
        self.channel.begin(direction, pattern, sizes.fold(0, u64::saturating_add))
    }
}

impl crate::device::decorator::Decorator for SimulatedDevice {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let _charge = self.begin(Direction::Read, [(offset, buffer.len())].into_iter());
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let _charge = self.begin(Direction::Write, [(offset, bytes.len())].into_iter());
        self.inner.write_at(offset, bytes)
    }

    fn read_batch(&self, reads: &mut [Read<'_>]) {
        if reads.is_empty() {
            return;
        }
        let _charge = self.begin(Direction::Read, reads.iter().map(|read| (read.offset, read.buffer.len())));
        self.inner.read_batch(reads);
    }

    fn write_batch(&self, writes: &[Write<'_>]) -> io::Result<()> {
        if writes.is_empty() {
            return Ok(());
        }
        let _charge =
            self.begin(Direction::Write, writes.iter().map(|write| (write.offset, write.bytes.len())));
        self.inner.write_batch(writes)
    }

    fn write_through_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let _charge = self.begin(Direction::Write, [(offset, bytes.len())].into_iter());
        self.inner.write_through_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        let _charge = self.channel.begin(Direction::Write, Pattern::Sequential, 0);
        self.inner.sync()
    }
}
