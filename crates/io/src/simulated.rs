//! Simulated memory and disks: accesses take the time of other hardware.
//!
//! The bytes are in ordinary memory or on an ordinary disk. Users report accesses to a
//! [`SimulatedMemory`], or use a [`SimulatedDevice`](device::SimulatedDevice). A [`Profile`] sets
//! the charge: a latency, and the transfer at the shared bandwidth. [`Time`] passes in one of two
//! ways:
//!
//! * **Wall clock.** The caller waits until the deadline. The real access counts, so the charge is
//!   exact if the real access is faster.
//! * **Virtual.** Nobody waits. Charges and computation advance the clock of each worker
//!   ([`VirtualTime`](virtual_time::VirtualTime)).
//!
//! ```text
//!   an access = wait for the channel | bytes / bandwidth | latency
//!               '-- bytes of others --'  '-- any number at the same time --'
//! ```
//!
//! It takes at least as long as its core needs for the bytes.
//!
//! Reads and writes move whole media units (256 bytes for Optane), on one channel each. Concurrent
//! writers slow down readers and each other. A last-level cache per worker exempts recent lines
//! from charges of random reads.
//!
//! Write-backs and fences of persistent memory cost time, and no bandwidth: the stores did.
//!
//! A wall-clock charge costs two looks at the clock and one compare-and-swap on the channel's
//! shared word (a token bucket). Measured (`examples/charge.rs`): targets below 85 ns take 85 ns,
//! others end some 30 ns late; a cached line costs 12 ns; a virtual charge 70 to 90 ns.

use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

mod built_in;
mod busy;
mod channel;
pub(crate) mod device;
mod dram_cache;
mod line_cache;
mod page_cache;
pub(crate) mod profile;
#[cfg(feature = "profile-files")]
mod profile_file;
pub(crate) mod virtual_time;

use channel::{Channel, look_ps};
pub use channel::{Charge, Time};
pub use dram_cache::DramCacheCounts;
use dram_cache::{DramCache, Lines};
use line_cache::{LINE_BYTES, LineCache};
use profile::{Direction, Pattern, Profile};
use virtual_time::COPY_NS_PER_KIB;

/// Cache models; more workers than that share them.
const SLOTS: usize = 64;

/// A memory that charges its users for accesses.
///
/// ```
/// use std::sync::Arc;
/// use terrace_io::{Direction, Pattern, Profile, SimulatedMemory, Time, VirtualTime};
///
/// let time = Arc::new(VirtualTime::new(1));
/// let optane = Profile::named("optane").unwrap();
/// let memory = SimulatedMemory::new(optane, Time::Virtual(Arc::clone(&time)));
/// // 320 ns, and 256 bytes at 28.8 GB/s, which is what this memory works in.
/// assert_eq!(memory.read(0, 8, Pattern::Random), 328);
/// assert_eq!(time.now(0), 328);
/// // The line is in the cache now.
/// assert_eq!(memory.read(8, 8, Pattern::Random), 0);
/// // A page of 4 KiB, of which one core reads 3.76 GB/s.
/// assert_eq!(memory.read(1 << 20, 4096, Pattern::Sequential), 1088);
/// // One of 16 KiB, whose copy in DRAM would take the core 992 ns.
/// let before = time.now(0);
/// let charge = memory.begin(Direction::Read, 2 << 20, 16 << 10, Pattern::Sequential);
/// memory.copy(16 << 10);
/// charge.finish();
/// assert_eq!(time.now(0) - before, 4352);
/// ```
#[derive(Debug)]
pub struct SimulatedMemory {
    channel: Arc<Channel>,
    caches: Box<[Slot]>,
    modules: Option<Arc<Modules>>,
}

/// The cache model of one worker, on its own lines and made on first use.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Slot(Mutex<Option<LineCache>>);

impl SimulatedMemory {
    /// A memory with `profile`. Those in memory mode that have equal profiles and one virtual time
    /// are parts of the same modules: they share bandwidth and DRAM.
    pub fn new(profile: Profile, time: Time) -> Self {
        let slots = if profile.cache_bytes() < LINE_BYTES { 0 } else { SLOTS };
        let caches = (0..slots).map(|_| Slot::default()).collect();
        let modules = Modules::of(&profile, &time);
        let channel = match &modules {
            Some(modules) => Arc::clone(&modules.channel),
            None => Arc::new(Channel::new(profile, time)),
        };
        Self { channel, caches, modules }
    }

    /// Counts of the DRAM cache, if the profile has one.
    pub fn dram_cache(&self) -> Option<DramCacheCounts> {
        self.modules.as_ref().map(|modules| modules.dram.counts())
    }

    /// Its profile.
    pub fn profile(&self) -> &Profile {
        &self.channel.profile
    }

    /// Charges the calling worker for reading `bytes` at `address`, chosen by the caller. Returns
    /// the nanoseconds charged: 0 if all bytes are cached.
    pub fn read(&self, address: u64, bytes: u64, pattern: Pattern) -> u64 {
        self.begin(Direction::Read, address, bytes, pattern).finish()
    }

    /// Charges the calling worker for writing. Caches the bytes, but charges them, since they must
    /// reach the memory eventually. Returns the nanoseconds charged.
    pub fn write(&self, address: u64, bytes: u64, pattern: Pattern) -> u64 {
        self.begin(Direction::Write, address, bytes, pattern).finish()
    }

    /// Charges the calling worker for looking at the lines of `bytes` at `address`. Unlike a
    /// sequential [`SimulatedMemory::read`], cached lines are free. Returns the nanoseconds.
    pub fn look(&self, address: u64, bytes: u64, pattern: Pattern) -> u64 {
        self.begin_by(Direction::Read, address..address.saturating_add(bytes), pattern, true).finish()
    }

    /// Begins an access that takes the caller some time itself, such as a page copy.
    pub fn begin(&self, direction: Direction, address: u64, bytes: u64, pattern: Pattern) -> Charge<'_> {
        let range = address..address.saturating_add(bytes);
        self.begin_by(direction, range, pattern, pattern == Pattern::Random)
    }

    /// Begins an access, by way of the worker's cache or past it.
    fn begin_by(
        &self,
        direction: Direction,
        range: Range<u64>,
        pattern: Pattern,
        cached: bool,
    ) -> Charge<'_> {
        if let Some(modules) = &self.modules {
            return self.begin_in_memory_mode(&modules.dram, direction, &range, pattern, cached);
        }
        let missed = if cached { self.missed_granules(&range) } else { self.granules(&range) };
        let granules = match direction {
            Direction::Read => missed,
            Direction::Write => self.granules(&range),
        };
        if granules == 0 {
            return Charge::nothing();
        }
        let bytes = granules.saturating_mul(self.profile().granularity_bytes());
        self.channel.begin(direction, pattern, bytes)
    }

    fn begin_in_memory_mode<'c>(
        &'c self,
        dram: &'c DramCache,
        direction: Direction,
        range: &Range<u64>,
        pattern: Pattern,
        cached: bool,
    ) -> Charge<'c> {
        let (unit, mut lines) = (self.profile().granularity_bytes(), Lines::default());
        match cached {
            false => lines_of(range).for_each(|line| dram.use_line(line, direction, unit, &mut lines)),
            true => self.use_lines(range, |line, is_cached| {
                // Writes must reach the memory eventually, cached or not.
                if !is_cached || direction == Direction::Write {
                    dram.use_line(line, direction, unit, &mut lines);
                }
            }),
        }
        dram.begin(&self.channel, direction, pattern, &lines)
    }

    /// Charges a copy of `bytes` by the caller's core, as part of an access: 62 ns per KiB in
    /// virtual time, whatever the memory. Free by the wall clock, which measures the real copy.
    pub fn copy(&self, bytes: u64) {
        if let Time::Virtual(time) = &self.channel.time {
            time.spend(time.worker(), bytes * COPY_NS_PER_KIB / 1024);
        }
    }

    /// Charges the calling worker for the system call that moves a page, as [`Profile::move_ns`]
    /// says: it waits for the calls of other workers. Only in virtual time.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use terrace_io::{Profile, SimulatedMemory, Time, VirtualTime};
    ///
    /// let time = Arc::new(VirtualTime::new(2));
    /// let cxl = Profile::named("cxl-prototype").unwrap().with_move_ns(10_000);
    /// let memory = SimulatedMemory::new(cxl, Time::Virtual(Arc::clone(&time)));
    /// for worker in 0..2 {
    ///     time.enter(worker);
    ///     memory.move_page();
    /// }
    /// assert_eq!((time.now(0), time.now(1)), (10_000, 20_000));
    /// ```
    pub fn move_page(&self) {
        self.channel.move_page();
    }

    /// Charges the calling worker for sending each line of `bytes` at `address` to the memory.
    /// Returns the nanoseconds charged. By the wall clock few lines are free: a look at the clock
    /// would take longer.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use terrace_io::{Profile, SimulatedMemory, Time, VirtualTime};
    ///
    /// let time = Arc::new(VirtualTime::new(1));
    /// let optane = Profile::named("optane").unwrap();
    /// let memory = SimulatedMemory::new(optane, Time::Virtual(Arc::clone(&time)));
    /// assert_eq!(memory.write_back(0, 4096) + memory.fence(), 89 + 62);
    /// let dram = Profile::named("dram").unwrap();
    /// assert_eq!(SimulatedMemory::new(dram, Time::Virtual(time)).fence(), 0);
    /// ```
    pub fn write_back(&self, address: u64, bytes: u64) -> u64 {
        let lines = lines_of(&(address..address.saturating_add(bytes)));
        let picoseconds = (self.profile().write_back_ns() * 1000.0 * (lines.end - lines.start) as f64) as u64;
        if matches!(self.channel.time, Time::Wall(_)) && picoseconds < look_ps() {
            return 0;
        }
        self.channel.wait(picoseconds).finish()
    }

    /// Charges the calling worker for waiting until the memory has the lines that it sent. Returns
    /// the nanoseconds charged.
    pub fn fence(&self) -> u64 {
        self.channel.wait((self.profile().fence_ns() * 1000.0) as u64).finish()
    }

    fn granules(&self, range: &Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let unit = self.profile().granularity_bytes();
        (range.end - 1) / unit - range.start / unit + 1
    }

    /// Media units with missed lines of the range; caches all its lines.
    fn missed_granules(&self, range: &Range<u64>) -> u64 {
        if self.caches.is_empty() || range.is_empty() {
            return self.granules(range);
        }
        let unit = self.profile().granularity_bytes();
        let (mut missed, mut last) = (0, None);
        self.use_lines(range, |line, is_cached| {
            // The first byte of the range in this line determines the unit.
            let granule = range.start.max(line * LINE_BYTES) / unit;
            // Units smaller than a line come with it.
            if !is_cached && last != Some(granule) {
                missed += LINE_BYTES.div_ceil(unit);
                last = Some(granule);
            }
        });
        missed
    }

    /// Calls `each` with each line and whether it was cached; caches it.
    fn use_lines(&self, range: &Range<u64>, mut each: impl FnMut(u64, bool)) {
        if self.caches.is_empty() {
            return lines_of(range).for_each(|line| each(line, false));
        }
        let mut slot = self.caches[self.channel.time.worker() % SLOTS].0.lock();
        let cache = slot.get_or_insert_with(|| LineCache::new(self.profile().cache_bytes()));
        lines_of(range).for_each(|line| each(line, cache.use_line(line)));
    }
}

/// Modules in memory mode.
#[derive(Debug)]
struct Modules {
    channel: Arc<Channel>,
    dram: DramCache,
}

impl Modules {
    /// Those with `profile` that are in use at this virtual time, or new ones; `None` if it has no
    /// DRAM cache.
    fn of(profile: &Profile, time: &Time) -> Option<Arc<Modules>> {
        let make = || {
            let channel = Arc::new(Channel::new(profile.clone(), time.clone()));
            Some(Arc::new(Modules { channel, dram: DramCache::before(profile, time)? }))
        };
        let Time::Virtual(clocks) = time else { return make() };
        let mut used = clocks.modules.lock();
        used.retain(|modules| modules.strong_count() > 0);
        let in_use = used.iter().filter_map(|modules| modules.upgrade()?.downcast::<Modules>().ok());
        let same = in_use.into_iter().find(|modules| modules.channel.profile == *profile);
        if same.is_some() {
            return same;
        }
        let made = make()?;
        let weak: Weak<dyn Any + Send + Sync> = Arc::<Modules>::downgrade(&made);
        used.push(weak);
        Some(made)
    }
}

fn lines_of(range: &Range<u64>) -> Range<u64> {
    if range.is_empty() {
        return 0..0;
    }
    range.start / LINE_BYTES..(range.end - 1) / LINE_BYTES + 1
}

#[cfg(test)]
mod tests;
