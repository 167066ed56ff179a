//! A block device that takes as long as a profile says.
//!
//! Beside [`crate::ThrottledDevice`], which has three limits and one clock, this one has all of a profile, and charges the worker that
//! asks. A transfer is sequential if it begins where one of the last few ended, else random. The transfers of a batch are under way at the
//! same time: each takes its bytes of the bandwidth, all have the latency once. A sync waits for the latency of a write.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::SimulatedMemory;
use super::channel::{Channel, Charge, Time};
use super::profile::{Direction, Pattern, Profile};
use crate::device::{BlockDevice, Read, Write};

/// Streams that are told from random transfers.
const STREAMS: usize = 8;

/// A device whose users are charged for what they read and write.
///
/// ```
/// use std::sync::Arc;
/// use terrace_block::{AlignedBuffer, BlockDevice, MemoryDevice, Profile, SimulatedDevice, Time, VirtualTime};
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
    /// Where the last transfers of each direction ended, and which is to be replaced next.
    streams: [Mutex<([u64; STREAMS], usize)>; 2],
}

impl SimulatedDevice {
    /// Makes `inner` as slow as `profile` says, which is to be slower than it is. Caches that the profile has before it are a memory's, and
    /// not a device's.
    pub fn new(inner: Arc<dyn BlockDevice>, profile: Profile, time: Time) -> Self {
        Self::over(inner, Arc::new(Channel::new(profile, time)))
    }

    /// Makes `inner` a part of the modules that `memory` is another part of: both share one bandwidth, and the writers of one slow down
    /// the readers of the other. What the memory has before it, processor's caches and DRAM, the device goes past.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use terrace_block::{AlignedBuffer, BlockDevice, MemoryDevice, Pattern, Profile, SimulatedDevice, SimulatedMemory, Time, VirtualTime};
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
        // No transfer begins at the end of all offsets, so none is sequential at first.
        let streams = [(); 2].map(|()| Mutex::new(([u64::MAX; STREAMS], 0)));
        Self { inner, channel, streams }
    }

    /// What it is like.
    pub fn profile(&self) -> &Profile {
        &self.channel.profile
    }

    /// Whether a transfer goes on where another ended; where it ends itself is noted.
    fn pattern(&self, direction: Direction, offset: u64, bytes: usize) -> Pattern {
        let mut streams = self.streams[direction as usize].lock();
        let (ends, turn) = &mut *streams;
        let known = ends.iter().position(|&end| end == offset);
        let place = known.unwrap_or(*turn);
        ends[place] = offset.saturating_add(bytes as u64);
        if known.is_none() {
            *turn = (*turn + 1) % STREAMS;
        }
        if known.is_some() { Pattern::Sequential } else { Pattern::Random }
    }

    /// Begins transfers at the same time; one that is random makes the whole batch so.
    fn begin(
        &self,
        direction: Direction,
        transfers: impl Iterator<Item = (u64, usize)> + Clone,
    ) -> Charge<'_> {
        let patterns = transfers.clone().map(|(offset, bytes)| self.pattern(direction, offset, bytes));
        let random = patterns.fold(false, |random, pattern| random | (pattern == Pattern::Random));
        let pattern = if random { Pattern::Random } else { Pattern::Sequential };
        let unit = self.profile().granularity_bytes();
        let sizes = transfers.map(|(offset, bytes)| {
            let end = offset.saturating_add(bytes as u64);
            (end.div_ceil(unit) - offset / unit).saturating_mul(unit)
        });
        self.channel.begin(direction, pattern, sizes)
    }
}

impl BlockDevice for SimulatedDevice {
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
        let _charge = self.channel.begin(Direction::Write, Pattern::Sequential, std::iter::empty());
        self.inner.sync()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.inner.set_len(bytes)
    }
}
