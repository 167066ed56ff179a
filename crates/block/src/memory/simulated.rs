//! Memory and disks that this machine does not have, by making every access take as long as it would there.
//!
//! The bytes are in ordinary memory or on an ordinary disk. Whoever reads or writes them says so to a [`SimulatedMemory`], or goes
//! through a [`SimulatedDevice`], and is charged what a [`Profile`] says: a latency, and the time that the bytes take at the
//! bandwidth that all users share. Charges are taken in one of two kinds of [`Time`]:
//!
//! * **Wall clock.** Who is charged waits: the access ends when its deadline has passed, a spin for what is near and a sleep for what
//!   is far. What an access really took counts, so the charge is exact as long as the real access is faster.
//! * **Virtual.** Nobody waits. There are a number of workers, each with a clock that its charges, and the steps of computation
//!   between them, move on ([`VirtualTime`]). Throughput is operations over the clock of the last worker. One thread that drives
//!   all workers, always the one whose clock is behind, gives the same figures each time and on each machine.
//!
//! ```text
//!   an access = wait for the channel | bytes / bandwidth | latency
//!               '------ others' bytes -----'  '- any number at the same time
//! ```
//!
//! Bytes are counted in units of the media: a read of 64 bytes of a memory that works in 256 moves 256. Reads and writes have a channel
//! each. That writers slow readers down, and each other, is in the profile, by how many of them are writing at that moment.
//! A model of a processor's last-level cache, private to each worker and of the size in the profile, takes lines that were used
//! lately out of the charge of random reads; sequential transfers go past it.
//!
//! A wall-clock charge costs two looks at the clock and one compare-and-swap on the word of its channel, which all threads share: that is the
//! token bucket. A write raises and lowers a count of writers, too. Nothing else is shared. The model of the cache has a lock
//! for each of 64 slots, which threads share only if there are more of them. Measured (`examples/charge.rs`): what is to take less
//! than 85 ns takes 85, all else is over some 30 ns late; a line that the cache has costs 12 ns; in virtual time a charge takes 70 to 90 ns.
//!
//! | file              | what is in it                                           |
//! |-------------------|---------------------------------------------------------|
//! | `profile.rs`      | what a profile says, and reading one from a file         |
//! | `built_in.rs`     | the profiles that are there, with the source of each number |
//! | `channel.rs`      | who has to wait for whom                                |
//! | `busy.rs`         | when a channel is in use, in virtual time               |
//! | `line_cache.rs`   | the model of a last-level cache                         |
//! | `dram_cache.rs`   | memory mode: DRAM as a cache of slower memory           |
//! | `virtual_time.rs` | workers and their clocks                                |
//! | `device.rs`       | a block device that is charged                          |

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

mod built_in;
mod busy;
mod channel;
pub(crate) mod device;
mod dram_cache;
mod line_cache;
pub(crate) mod profile;
pub(crate) mod virtual_time;

use channel::Channel;
pub use channel::{Charge, Time};
pub use dram_cache::DramCacheCounts;
use dram_cache::{DramCache, Lines};
use line_cache::{LINE_BYTES, LineCache};
use profile::{Direction, Pattern, Profile};
use virtual_time::COPY_NS_PER_KIB;

/// Slots for models of caches: more workers than that share them.
const SLOTS: usize = 64;

/// A memory whose users are charged for their accesses.
///
/// ```
/// use std::sync::Arc;
/// use terrace_block::{Direction, Pattern, Profile, SimulatedMemory, Time, VirtualTime};
///
/// let time = Arc::new(VirtualTime::new(1));
/// let optane = Profile::named("optane").unwrap();
/// let memory = SimulatedMemory::new(optane, Time::Virtual(Arc::clone(&time)));
/// // 320 ns, and 256 bytes at 28.8 GB/s, which is what this memory works in.
/// assert_eq!(memory.read(0, 8, Pattern::Random), 328);
/// assert_eq!(time.now(0), 328);
/// // The line is in the cache now.
/// assert_eq!(memory.read(8, 8, Pattern::Random), 0);
/// // A page of 4 KiB at 91.2 GB/s.
/// assert_eq!(memory.read(1 << 20, 4096, Pattern::Sequential), 170 + 44);
/// // One of 16 KiB takes this memory 349 ns, and a core that copies it 992.
/// let before = time.now(0);
/// let charge = memory.begin(Direction::Read, 2 << 20, 16 << 10, Pattern::Sequential);
/// memory.copy(16 << 10);
/// charge.finish();
/// assert_eq!(time.now(0) - before, 992);
/// ```
#[derive(Debug)]
pub struct SimulatedMemory {
    channel: Arc<Channel>,
    caches: Box<[Slot]>,
    dram: Option<DramCache>,
}

/// The model of one worker's cache, away from those of others. It is made when it is first used.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Slot(Mutex<Option<LineCache>>);

impl SimulatedMemory {
    /// A memory as `profile` says.
    pub fn new(profile: Profile, time: Time) -> Self {
        let slots = if profile.cache_bytes() < LINE_BYTES { 0 } else { SLOTS };
        let dram = DramCache::before(&profile, &time);
        let caches = (0..slots).map(|_| Slot::default()).collect();
        Self { channel: Arc::new(Channel::new(profile, time)), caches, dram }
    }

    /// What happened in the DRAM before it, if its profile has some.
    pub fn dram_cache(&self) -> Option<DramCacheCounts> {
        self.dram.as_ref().map(DramCache::counts)
    }

    /// What it is like.
    pub fn profile(&self) -> &Profile {
        &self.channel.profile
    }

    /// Charges the calling worker for reading `bytes` at `address`, which is a place in this memory, of the caller's choice. Returns
    /// the nanoseconds charged: 0 if the cache has them all.
    pub fn read(&self, address: u64, bytes: u64, pattern: Pattern) -> u64 {
        self.begin(Direction::Read, address, bytes, pattern).finish()
    }

    /// Charges the calling worker for writing. What is written is in the cache afterwards, and charged as it has to reach the memory
    /// in the end. Returns the nanoseconds charged.
    pub fn write(&self, address: u64, bytes: u64, pattern: Pattern) -> u64 {
        self.begin(Direction::Write, address, bytes, pattern).finish()
    }

    /// Begins an access that takes the caller some time itself, as a copy of a page does.
    pub fn begin(&self, direction: Direction, address: u64, bytes: u64, pattern: Pattern) -> Charge<'_> {
        let range = address..address.saturating_add(bytes);
        if let Some(dram) = &self.dram {
            return self.begin_in_memory_mode(dram, direction, &range, pattern);
        }
        let missed = match pattern {
            Pattern::Sequential => self.granules(&range),
            Pattern::Random => self.missed_granules(&range),
        };
        let granules = match direction {
            Direction::Read => missed,
            Direction::Write => self.granules(&range),
        };
        if granules == 0 {
            return Charge::nothing();
        }
        let bytes = granules.saturating_mul(self.profile().granularity_bytes());
        self.channel.begin(direction, pattern, std::iter::once(bytes))
    }

    /// An access to memory that has DRAM before it.
    fn begin_in_memory_mode<'c>(
        &'c self,
        dram: &'c DramCache,
        direction: Direction,
        range: &Range<u64>,
        pattern: Pattern,
    ) -> Charge<'c> {
        let (unit, mut lines) = (self.profile().granularity_bytes(), Lines::default());
        match pattern {
            Pattern::Sequential => {
                lines_of(range).for_each(|line| dram.use_line(line, direction, unit, &mut lines))
            }
            Pattern::Random => self.use_lines(range, |line, is_cached| {
                // What is written has to reach the memory in the end, wherever it is now.
                if !is_cached || direction == Direction::Write {
                    dram.use_line(line, direction, unit, &mut lines);
                }
            }),
        }
        dram.begin(&self.channel, direction, pattern, &lines)
    }

    /// The calling worker copies `bytes` bytes with its own core, as part of an access that is under way: in virtual time that takes
    /// it 62 ns a KiB, however fast the memory is. By the clock of the machine it takes what it takes.
    pub fn copy(&self, bytes: u64) {
        if let Time::Virtual(time) = &self.channel.time {
            time.spend(time.worker(), bytes * COPY_NS_PER_KIB / 1024);
        }
    }

    /// Units of the media that `range` is in.
    fn granules(&self, range: &Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let unit = self.profile().granularity_bytes();
        (range.end - 1) / unit - range.start / unit + 1
    }

    /// Those of them in which the worker's cache misses a line of the range, all of whose lines it has from now on.
    fn missed_granules(&self, range: &Range<u64>) -> u64 {
        if self.caches.is_empty() || range.is_empty() {
            return self.granules(range);
        }
        let unit = self.profile().granularity_bytes();
        let (mut missed, mut last) = (0, None);
        self.use_lines(range, |line, is_cached| {
            // The first byte of the range in this line says which unit it takes.
            let granule = range.start.max(line * LINE_BYTES) / unit;
            // Units smaller than a line are brought in with it.
            if !is_cached && last != Some(granule) {
                missed += LINE_BYTES.div_ceil(unit);
                last = Some(granule);
            }
        });
        missed
    }

    /// The lines of the range, each with whether the worker's cache has it, as it does from now on.
    fn use_lines(&self, range: &Range<u64>, mut each: impl FnMut(u64, bool)) {
        if self.caches.is_empty() {
            return lines_of(range).for_each(|line| each(line, false));
        }
        let mut slot = self.caches[self.channel.time.worker() % SLOTS].0.lock();
        let cache = slot.get_or_insert_with(|| LineCache::new(self.profile().cache_bytes()));
        lines_of(range).for_each(|line| each(line, cache.use_line(line)));
    }
}

/// The numbers of the lines that `range` is in.
fn lines_of(range: &Range<u64>) -> Range<u64> {
    if range.is_empty() {
        return 0..0;
    }
    range.start / LINE_BYTES..(range.end - 1) / LINE_BYTES + 1
}

#[cfg(test)]
mod tests;
