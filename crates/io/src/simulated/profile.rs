//! The description of a memory or a disk.

use std::borrow::Cow;
use std::path::Path;
use std::time::Duration;

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the memory.
    Read = 0,
    /// To the memory.
    Write = 1,
}

/// Access pattern: whether the memory can predict the next access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Consecutive bytes: a page, a long value.
    Sequential = 0,
    /// Scattered bytes: a line of a page.
    Random = 1,
}

/// Speed, unit and price of a memory or a disk.
///
/// ```
/// use terrace_io::{Direction, Pattern, Profile};
///
/// let flash = Profile::named("nvme-flash").unwrap();
/// assert!(flash.is_persistent());
/// let optane = Profile::named("optane").unwrap();
/// assert!(!optane.with_dram_cache_bytes(1 << 20).is_persistent());
/// let dram = Profile::named("dram").unwrap();
/// let read = |profile: &Profile| profile.time_of(Direction::Read, Pattern::Random, 4096);
/// assert!(read(&flash) > 100 * read(&dram));
/// assert!(Profile::named("tape").is_err());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    pub(super) name: Cow<'static, str>,
    pub(super) file: Option<Box<Path>>,
    /// By direction and pattern.
    pub(super) latency_ns: [[f64; 2]; 2],
    /// By direction and pattern, 10^9 bytes a second.
    pub(super) gb_s: [[f64; 2]; 2],
    /// By direction: what one core moves, 10^9 bytes a second.
    pub(super) core_gb_s: [f32; 2],
    /// Fraction of the write bandwidth in total with 1, 2, ... writers; the last holds for more.
    pub(super) write_share_by_writers: Cow<'static, [f64]>,
    /// Fraction of the read bandwidth left with 1, 2, ... writers.
    pub(super) read_share_by_writers: Cow<'static, [f64]>,
    pub(super) granularity_bytes: u32,
    pub(super) persistent: bool,
    pub(super) price_per_gb: f64,
    pub(super) endurance_cycles: f64,
    pub(super) cache_bytes: u32,
    pub(super) dram_cache_bytes: u32,
    pub(super) page_cache: Option<Box<PageCacheLayout>>,
    pub(super) counts_lines: bool,
    pub(super) joins_writes: bool,
    pub(super) move_ns: u32,
    /// By line of 64 bytes.
    pub(super) write_back_ns: f64,
    pub(super) fence_ns: f64,
}

/// Where the pages of a page cache are.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PageCacheLayout {
    pub(super) bytes: u64,
    pub(super) memory: Profile,
    /// Address of the first page in the memory.
    pub(super) address: u64,
}

/// Largest modelled cache, bytes.
pub(super) const CACHE_BYTES_MAX: u64 = 1 << 30;

impl Profile {
    /// The name or file by which [`Profile::find`] finds it.
    pub fn location(&self) -> Cow<'_, str> {
        match &self.file {
            Some(file) => file.to_string_lossy(),
            None => Cow::Borrowed(&self.name),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Nanoseconds until the first byte.
    pub fn latency_ns(&self, direction: Direction, pattern: Pattern) -> f64 {
        self.latency_ns[direction as usize][pattern as usize]
    }

    /// Total bandwidth of all users, 10^9 bytes per second.
    pub fn gb_s(&self, direction: Direction, pattern: Pattern) -> f64 {
        self.gb_s[direction as usize][pattern as usize]
    }

    /// What one core moves, in 10^9 bytes a second; infinite where no core is a limit. A core has
    /// few lines in flight, so it reads slow memory below the bandwidth.
    pub fn core_gb_s(&self, direction: Direction) -> f64 {
        f64::from(self.core_gb_s[direction as usize])
    }

    /// The fraction of a direction's bandwidth left with `writers`, including the caller: at most
    /// 1.
    pub fn share(&self, direction: Direction, writers: usize) -> f64 {
        let shares = match direction {
            Direction::Read => &self.read_share_by_writers,
            Direction::Write => &self.write_share_by_writers,
        };
        match (writers.checked_sub(1), shares.len().checked_sub(1)) {
            (Some(writer), Some(last)) => shares[writer.min(last)],
            (None, _) | (_, None) => 1.0,
        }
    }

    /// Bytes per media unit.
    pub fn granularity_bytes(&self) -> u64 {
        u64::from(self.granularity_bytes)
    }

    /// Whether its content survives a power cut. In memory mode, with a DRAM cache, it does not.
    pub fn is_persistent(&self) -> bool {
        self.persistent && self.dram_cache_bytes == 0
    }

    /// Sets whether its content survives a power cut.
    #[must_use]
    pub fn with_persistent(mut self, persistent: bool) -> Profile {
        self.persistent = persistent;
        self
    }

    /// Dollars per 10^9 bytes.
    pub fn price_per_gb(&self) -> f64 {
        self.price_per_gb
    }

    /// Write cycles of the media.
    pub fn endurance_cycles(&self) -> f64 {
        self.endurance_cycles
    }

    /// Bytes of the modelled last-level cache of each worker.
    pub fn cache_bytes(&self) -> u64 {
        u64::from(self.cache_bytes)
    }

    /// Sets the modelled cache to `bytes`; 0 for none.
    #[must_use]
    pub fn with_cache_bytes(mut self, bytes: u64) -> Profile {
        self.cache_bytes = bytes.min(CACHE_BYTES_MAX) as u32;
        self
    }

    /// Bytes of the shared, direct-mapped DRAM cache (`dram_cache.rs`); 0 for none.
    pub fn dram_cache_bytes(&self) -> u64 {
        u64::from(self.dram_cache_bytes)
    }

    /// Sets the DRAM cache to `bytes`; 0 for none. Sizes below a line of 64 bytes have no effect.
    #[must_use]
    pub fn with_dram_cache_bytes(mut self, bytes: u64) -> Profile {
        self.dram_cache_bytes = bytes.min(CACHE_BYTES_MAX) as u32;
        self
    }

    /// Puts an operating system's page cache before a disk (`page_cache.rs`): `bytes` bytes in
    /// `memory`, from `address` on. Memories in memory mode with equal profiles share their DRAM.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use terrace_io::{AlignedBuffer, BlockDevice, MemoryDevice};
    /// use terrace_io::{Profile, SimulatedDevice, Time, VirtualTime};
    ///
    /// let [disk, dram] = ["nvme-optane", "dram"].map(|name| Profile::named(name).unwrap());
    /// let time = Arc::new(VirtualTime::new(1));
    /// let inner = Arc::new(MemoryDevice::new("pages", 1 << 20));
    /// let profile = disk.with_page_cache(1 << 20, dram, 0);
    /// let device = SimulatedDevice::new(inner, profile, Time::Virtual(Arc::clone(&time)));
    /// let mut page = AlignedBuffer::zeroed(4096);
    /// device.read_at(0, &mut page)?;
    /// let read = time.now(0);
    /// device.read_at(0, &mut page)?;
    /// assert_eq!(time.now(0) - read, 460 + 248, "a system call and a copy");
    /// # std::io::Result::Ok(())
    /// ```
    #[must_use]
    pub fn with_page_cache(mut self, bytes: u64, memory: Profile, address: u64) -> Profile {
        self.page_cache = Some(Box::new(PageCacheLayout { bytes, memory, address }));
        self
    }

    /// Whether users count the lines that each look touches; otherwise they charge an average.
    pub fn counts_lines(&self) -> bool {
        self.counts_lines
    }

    /// Sets whether users count lines.
    #[must_use]
    pub fn with_counted_lines(mut self, counts_lines: bool) -> Profile {
        self.counts_lines = counts_lines;
        self
    }

    /// Whether adjoining lines of one change are one access. Otherwise each is one.
    pub fn joins_writes(&self) -> bool {
        self.joins_writes
    }

    /// Sets whether adjoining lines of one change are one access. Files have no key for it.
    #[must_use]
    pub fn with_joined_writes(mut self, joins_writes: bool) -> Profile {
        self.joins_writes = joins_writes;
        self
    }

    /// Nanoseconds of the system call that moves a page to or from this memory; 0 without one.
    pub fn move_ns(&self) -> u64 {
        u64::from(self.move_ns)
    }

    /// Sets the nanoseconds of the system call that moves a page. The kernel runs one call at a
    /// time. Charged in virtual time only; files have no key for it.
    #[must_use]
    pub fn with_move_ns(mut self, nanoseconds: u32) -> Profile {
        self.move_ns = nanoseconds;
        self
    }

    /// Lifts the limits of a core ([`Profile::core_gb_s`]).
    #[must_use]
    pub fn without_core_limits(mut self) -> Profile {
        self.core_gb_s = [f32::INFINITY; 2];
        self
    }

    /// Nanoseconds of a core for sending one line of 64 bytes to the memory (`clwb`), without the
    /// bandwidth, which the store has been charged for.
    pub fn write_back_ns(&self) -> f64 {
        self.write_back_ns
    }

    /// Nanoseconds until the memory has what was sent (`sfence`).
    pub fn fence_ns(&self) -> f64 {
        self.fence_ns
    }

    /// Adds the write-back of a line and a fence to each scattered write, as if each changed line
    /// were made durable at once.
    ///
    /// ```
    /// use terrace_io::{Direction, Pattern, Profile};
    ///
    /// let optane = Profile::named("optane").unwrap();
    /// let direct = optane.clone().with_write_back();
    /// let write_ns = |profile: &Profile| profile.latency_ns(Direction::Write, Pattern::Random);
    /// assert!(write_ns(&direct) > write_ns(&optane));
    /// ```
    #[must_use]
    pub fn with_write_back(mut self) -> Profile {
        let more = self.write_back_ns + self.fence_ns;
        self.latency_ns[Direction::Write as usize][Pattern::Random as usize] += more;
        self
    }

    /// Time of a transfer without contention: latency and bytes, rounded up to whole media units.
    pub fn time_of(&self, direction: Direction, pattern: Pattern, bytes: u64) -> Duration {
        let bytes = bytes.div_ceil(self.granularity_bytes()).saturating_mul(self.granularity_bytes());
        let memory = self.latency_ps(direction, pattern) + self.hold_ps(direction, pattern, bytes, 0);
        let picoseconds = memory.max(self.core_ps(direction, bytes));
        Duration::from_nanos(picoseconds.div_ceil(1000))
    }

    pub(super) fn latency_ps(&self, direction: Direction, pattern: Pattern) -> u64 {
        (self.latency_ns(direction, pattern) * 1000.0) as u64
    }

    /// Picoseconds that a core takes for `bytes` at least, however fast the memory is.
    pub(super) fn core_ps(&self, direction: Direction, bytes: u64) -> u64 {
        (bytes as f64 * 1000.0 / self.core_gb_s(direction)).round() as u64
    }

    /// Picoseconds of bandwidth that `bytes`, whole media units, take.
    pub(super) fn hold_ps(&self, direction: Direction, pattern: Pattern, bytes: u64, writers: usize) -> u64 {
        // 10^9 bytes per second are one byte per nanosecond.
        (bytes as f64 * 1000.0 / (self.gb_s(direction, pattern) * self.share(direction, writers))) as u64
    }
}
