//! Memory mode: DRAM as a direct-mapped cache of slower memory.
//!
//! The memory controller of Intel's Optane machines offers this mode (NVCache, section 4.1.1, calls
//! it MM; claims N7 and N11). A line of 64 bytes has one slot, its address modulo the DRAM size. A
//! miss, read or write, replaces the slot's line, which is written back if dirty.
//!
//! ```text
//!   worker -> its processor's cache -> DRAM -- hit ---------------------------------> done
//!                                        '---- miss: the line comes from the memory,  done
//!                                              a dirty victim goes back
//! ```
//!
//! Every access pays for its lines in DRAM, which holds the tags. Then the memory reads the missing
//! lines in whole units, also for a write, while victims are written back in units. Adjacent lines
//! of one access in one unit are one transfer, as in the media's buffer. A write-back is shorter
//! than the read beside it, so it delays the access only if writes queue.
//!
//! Wall-clock threads that race on a slot may lose or add a mark; virtual workers never do.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::channel::{Channel, Charge, Time};
use super::line_cache::LINE_BYTES;
use super::profile::{Direction, Pattern, Profile};
use crate::stats::Family;

const DIRTY: u64 = 1;

const LINES: Family = Family::counter(
    "terrace_dram_cache_lines_total",
    "Lines wanted of a simulated memory that has DRAM before it, by where they were.",
)
.by("found");

crate::stats! {
    /// Counts of a memory's DRAM cache ([`Profile::dram_cache_bytes`]), in lines of 64 bytes.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use terrace_io::{Pattern, Profile, SimulatedMemory, Time, VirtualTime};
    ///
    /// let optane = Profile::named("optane").unwrap();
    /// let profile = optane.with_cache_bytes(0).with_dram_cache_bytes(1 << 20);
    /// let memory = SimulatedMemory::new(profile, Time::Virtual(Arc::new(VirtualTime::new(1))));
    /// assert_eq!(memory.write(0, 256, Pattern::Sequential), 76 + 170 + 3, "not there: read first");
    /// assert_eq!(memory.read(0, 256, Pattern::Sequential), 76, "there");
    /// assert_eq!(memory.read(1 << 20, 64, Pattern::Random), 80 + 329, "and a write-back");
    /// let counts = memory.dram_cache().unwrap();
    /// assert_eq!((counts.hits, counts.misses, counts.write_backs), (4, 5, 1));
    /// assert_eq!((counts.memory_read_bytes, counts.memory_written_bytes), (512, 256), "whole units");
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize))]
    #[non_exhaustive]
    pub struct DramCacheCounts {
        /// Lines found in DRAM.
        hits: u64 => LINES "dram",
        /// Lines missing in DRAM.
        misses: u64 => LINES "memory",
        /// Dirty lines written back on replacement.
        write_backs: u64 => counter "terrace_dram_cache_write_backs_total" "Dirty lines written back.",
        /// Bytes read from the memory behind, in whole units.
        memory_read_bytes: u64 => counter
            "terrace_dram_cache_read_bytes_total" "Bytes that came from the memory to there.",
        /// Bytes written to the memory behind.
        memory_written_bytes: u64 => counter
            "terrace_dram_cache_written_bytes_total" "Bytes that went back from there to the memory.",
    }
}

impl DramCacheCounts {
    /// Fraction of lines found; 0 without accesses.
    pub fn hit_ratio(&self) -> f64 {
        match self.hits + self.misses {
            0 => 0.0,
            lines => self.hits as f64 / lines as f64,
        }
    }
}

#[derive(Debug)]
pub(super) struct DramCache {
    channel: Channel,
    /// Twice one more than the number of a line, plus [`DIRTY`]; 0 for none.
    sets: Box<[AtomicU64]>,
    hits: AtomicU64,
    misses: AtomicU64,
    write_backs: AtomicU64,
    memory_read_bytes: AtomicU64,
    memory_written_bytes: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct Lines {
    hits: u64,
    misses: u64,
    write_backs: u64,
    read: Units,
    written: Units,
}

/// Media units of lines, which usually come in order.
#[derive(Debug, Default)]
struct Units {
    count: u64,
    last: Option<u64>,
}

impl Units {
    fn add(&mut self, line: u64, unit: u64) {
        // Units smaller than a line go with it.
        if self.last.replace(line * LINE_BYTES / unit) != Some(line * LINE_BYTES / unit) {
            self.count += LINE_BYTES.div_ceil(unit);
        }
    }
}

impl DramCache {
    /// The DRAM cache of `profile`, if it holds a line.
    pub(super) fn before(profile: &Profile, time: &Time) -> Option<DramCache> {
        let sets = profile.dram_cache_bytes() / LINE_BYTES;
        let dram = Profile::named("dram").ok().filter(|_| sets > 0)?;
        Some(DramCache {
            channel: Channel::new(dram, time.clone()),
            sets: (0..sets).map(|_| AtomicU64::new(0)).collect(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            write_backs: AtomicU64::new(0),
            memory_read_bytes: AtomicU64::new(0),
            memory_written_bytes: AtomicU64::new(0),
        })
    }

    pub(super) fn counts(&self) -> DramCacheCounts {
        let count = |counter: &AtomicU64| counter.load(Relaxed);
        DramCacheCounts {
            hits: count(&self.hits),
            misses: count(&self.misses),
            write_backs: count(&self.write_backs),
            memory_read_bytes: count(&self.memory_read_bytes),
            memory_written_bytes: count(&self.memory_written_bytes),
        }
    }

    /// Accesses and caches a line of a memory with units of `unit` bytes.
    pub(super) fn use_line(&self, line: u64, direction: Direction, unit: u64, lines: &mut Lines) {
        let set = &self.sets[(line % self.sets.len() as u64) as usize];
        let (clean, dirt) = ((line + 1) << 1, u64::from(direction == Direction::Write) * DIRTY);
        // Relaxed: no other data depends on the word.
        let resident = set.load(Relaxed);
        if resident & !DIRTY == clean {
            lines.hits += 1;
            if resident | dirt != resident {
                set.store(resident | dirt, Relaxed);
            }
            return;
        }
        let victim = set.swap(clean | dirt, Relaxed);
        lines.misses += 1;
        lines.read.add(line, unit);
        if victim & DIRTY != 0 {
            lines.write_backs += 1;
            lines.written.add((victim >> 1) - 1, unit);
        }
    }

    /// Charges for the `lines` of one access, including misses in `memory`.
    pub(super) fn begin<'c>(
        &'c self,
        memory: &'c Channel,
        direction: Direction,
        pattern: Pattern,
        lines: &Lines,
    ) -> Charge<'c> {
        let all = lines.hits + lines.misses;
        if all == 0 {
            return Charge::nothing();
        }
        let dram = self.channel.begin(direction, pattern, all * LINE_BYTES);
        self.hits.fetch_add(lines.hits, Relaxed);
        if lines.misses == 0 {
            return dram;
        }
        let unit = memory.profile.granularity_bytes();
        let [read, written] = [&lines.read, &lines.written].map(|units| units.count * unit);
        self.misses.fetch_add(lines.misses, Relaxed);
        self.write_backs.fetch_add(lines.write_backs, Relaxed);
        self.memory_read_bytes.fetch_add(read, Relaxed);
        self.memory_written_bytes.fetch_add(written, Relaxed);
        // A miss is known after the DRAM access.
        let missed = dram.deadline_ps();
        let mut charge = dram.and(memory.begin_at(missed, Direction::Read, pattern, read));
        if written > 0 {
            charge = charge.and(memory.begin_at(missed, Direction::Write, pattern, written));
        }
        // A write has filled it.
        if direction == Direction::Read {
            let fill = self.channel.begin_at(missed, Direction::Write, pattern, lines.misses * LINE_BYTES);
            charge = charge.and(fill);
        }
        charge
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::SimulatedMemory;
    use super::super::virtual_time::VirtualTime;
    use super::*;

    /// Optane memory behind 16 DRAM lines (four of its units), without a processor cache.
    fn memory(workers: usize) -> (SimulatedMemory, Arc<VirtualTime>) {
        let time = Arc::new(VirtualTime::new(workers));
        let profile = Profile::named("optane").unwrap().with_cache_bytes(0).with_dram_cache_bytes(1024);
        (SimulatedMemory::new(profile, Time::Virtual(Arc::clone(&time))), time)
    }

    /// Hits, misses, lines written back, bytes read from and written to the memory.
    fn counted(memory: &SimulatedMemory) -> [u64; 5] {
        let counts = memory.dram_cache().unwrap();
        [
            counts.hits,
            counts.misses,
            counts.write_backs,
            counts.memory_read_bytes,
            counts.memory_written_bytes,
        ]
    }

    /// By hand: 16 slots, indexed by the line number modulo 16.
    #[test]
    fn a_line_has_one_set_and_goes_back_if_it_was_written() {
        let (memory, _) = memory(1);
        let at = |line: u64| line * LINE_BYTES;
        memory.read(at(0), 4 * LINE_BYTES, Pattern::Sequential);
        assert_eq!(counted(&memory), [0, 4, 0, 256, 0], "four lines of one unit");
        memory.read(at(1), 2 * LINE_BYTES, Pattern::Sequential);
        assert_eq!(counted(&memory), [2, 4, 0, 256, 0]);
        memory.read(at(17), LINE_BYTES, Pattern::Random);
        assert_eq!(counted(&memory), [2, 5, 0, 512, 0], "17 takes the place of 1, which was not written");
        memory.write(at(18), LINE_BYTES, Pattern::Random);
        assert_eq!(counted(&memory), [2, 6, 0, 768, 0], "and 18 that of 2; a write reads its line first");
        memory.read(at(18), LINE_BYTES, Pattern::Random);
        assert_eq!(counted(&memory), [3, 6, 0, 768, 0]);
        memory.read(at(0), 4 * LINE_BYTES, Pattern::Sequential);
        assert_eq!(
            counted(&memory),
            [5, 8, 1, 1024, 256],
            "0 and 3 were there, 18 goes back, one unit of it"
        );
        memory.read(at(16), 4 * LINE_BYTES, Pattern::Sequential);
        assert_eq!(counted(&memory), [5, 12, 1, 1280, 256], "18 is as it was written back");
        memory.write(at(16), 4 * LINE_BYTES, Pattern::Sequential);
        memory.read(at(32), 4 * LINE_BYTES, Pattern::Sequential);
        assert_eq!(counted(&memory), [9, 16, 5, 1536, 512], "four lines that go back together are one unit");
        memory.read(at(0), 0, Pattern::Sequential);
        assert_eq!(counted(&memory), [9, 16, 5, 1536, 512]);
    }

    /// Lines that fit stay; one line more displaces another in each round.
    #[test]
    fn conflicts_are_those_of_the_sets() {
        let (fits, _) = memory(1);
        (0..160).for_each(|turn| _ = fits.read(turn % 16 * LINE_BYTES, LINE_BYTES, Pattern::Random));
        assert_eq!(counted(&fits)[..2], [144, 16]);
        let (over, _) = memory(1);
        (0..170).for_each(|turn| _ = over.read(turn % 17 * LINE_BYTES, LINE_BYTES, Pattern::Random));
        // 0 and 16 share a slot and always miss.
        assert_eq!(counted(&over)[..2], [15 * 9, 15 + 2 * 10]);
    }

    /// Nanoseconds. DRAM: 80, and 64 bytes at 180 GB/s. Optane: 320, and a unit of 256 bytes at
    /// 28.8.
    #[test]
    fn a_miss_is_charged_after_the_look_that_finds_it() {
        let (memory, time) = memory(2);
        assert_eq!(memory.read(0, 64, Pattern::Random), 80 + 320 + 9);
        assert_eq!(memory.read(0, 64, Pattern::Random), 80);
        assert_eq!(time.now(0), 409 + 80);
        memory.write(0, 64, Pattern::Random);
        // The write-back takes 80 ns and 256 bytes at 6 GB/s, less than the read beside it.
        assert_eq!(memory.read(1024, 64, Pattern::Random), 80 + 320 + 9);
        assert_eq!(time.now(0).div_ceil(10), 98, "and fractions of them");
        // A worker that writes back counts as a writer for other readers.
        let (beside, time) = self::memory(2);
        beside.write(0, 1024, Pattern::Sequential);
        time.spend(1, time.now(0));
        let quiet = beside.read(1 << 20, 1024, Pattern::Sequential);
        time.enter(1);
        let hurt = beside.read(2 << 20, 1024, Pattern::Sequential);
        // Without it: 6 ns for the other's bytes in DRAM, and 5 for those in the memory.
        assert!(hurt >= quiet + 30, "{hurt} {quiet}");
    }

    /// 1024 bytes at .1 GB/s take 10 us, and the write queue is full.
    #[test]
    fn write_backs_are_waited_for_where_the_memory_is_slow_to_write() {
        let text = "base = 'optane'\nsequential_write_gb_s = 0.1\ncache_bytes = 0\ndram_cache_bytes = 1024";
        let time = Arc::new(VirtualTime::new(1));
        let memory = SimulatedMemory::new(Profile::parse(text, "slow").unwrap(), Time::Virtual(time));
        assert!(memory.write(0, 1024, Pattern::Sequential) < 300);
        assert!(memory.read(1024, 1024, Pattern::Sequential) > 10_240);
        assert!(memory.read(0, 1024, Pattern::Sequential) < 300, "nothing was dirty");
    }

    #[test]
    fn the_processors_cache_is_before_it() {
        let time = Arc::new(VirtualTime::new(1));
        let profile = Profile::named("optane").unwrap().with_dram_cache_bytes(1024);
        let memory = SimulatedMemory::new(profile, Time::Virtual(time));
        (0..2).for_each(|_| _ = memory.read(0, 64, Pattern::Random));
        assert_eq!(counted(&memory)[..2], [0, 1], "the second does not leave the processor");
        memory.read(0, 64, Pattern::Sequential);
        assert_eq!(counted(&memory)[..2], [1, 1], "what is sequential goes past that");
        let plain = SimulatedMemory::new(Profile::named("optane").unwrap(), Time::wall());
        assert_eq!(plain.dram_cache(), None);
    }

    /// Every announced writer is gone after the access, or readers would stay slow.
    #[test]
    fn on_the_wall_clock_no_writer_is_left_behind() {
        let profile = Profile::named("optane").unwrap().with_cache_bytes(0).with_dram_cache_bytes(1024);
        let memory = SimulatedMemory::new(profile, Time::wall());
        let read = |bytes| memory.read(1 << 30, bytes, Pattern::Sequential);
        let before = read(1 << 20);
        (0..64).for_each(|turn| _ = memory.write(turn * 1024, 1024, Pattern::Sequential));
        (0..64).for_each(|turn| _ = memory.read(turn * 1024, 1024, Pattern::Sequential));
        assert!(read(1 << 20) < before * 3 / 2, "a writer for ever takes 72 %");
    }
}
