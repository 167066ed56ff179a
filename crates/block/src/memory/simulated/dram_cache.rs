//! Memory mode: DRAM before slower memory, as a direct-mapped cache of its lines that the memory controller keeps.
//!
//! The controller of Intel's Optane machines can make one large memory of both: programs see as many bytes as the slower one has (NVCache,
//! section 4.1.1, calls it MM; claims N7 and N11). It caches lines of 64 bytes. A line has one place, its address modulo the size of
//! the DRAM, so nobody chooses what stays: a line that misses takes the place of what was there, for a write as for a read, and what
//! was there is written back if it was written.
//!
//! ```text
//!   worker -> its processor's cache -> DRAM -- has the line ------------------------------> done
//!                                        '---- has not: the line comes from the memory, --> done
//!                                              what was in its place goes back if it is dirty
//! ```
//!
//! Every access reads, or writes, its lines in DRAM, since the tags are with them. What is missed is asked for when that is over: the
//! memory is read in whole units, as always, and meanwhile victims are written back in theirs and DRAM is filled. Lines of one access
//! that are next to each other in one unit are one unit read, and so are victims one unit written, as in the buffer of such media. A write
//! that misses reads its line, too, as the controllers do. The access is over when all of this is; a write-back is shorter
//! than the read beside it, so it is waited for only where writes wait for each other.
//!
//! A place is a word, one more than the line's number and whether it is dirty: eight bytes for 64. Threads of the wall clock that meet in a
//! place may lose a mark or make one too many; a worker of virtual time never does.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::channel::{Channel, Charge, Time};
use super::line_cache::LINE_BYTES;
use super::profile::{Direction, Pattern, Profile};

/// Whether the line in a place was written.
const DIRTY: u64 = 1;

/// What happened in the DRAM before a memory ([`Profile::dram_cache_bytes`]): lines of 64 bytes.
///
/// ```
/// use std::sync::Arc;
/// use terrace_block::{Pattern, Profile, SimulatedMemory, Time, VirtualTime};
///
/// let profile = Profile::named("optane").unwrap().with_cache_bytes(0).with_dram_cache_bytes(1 << 20);
/// let memory = SimulatedMemory::new(profile, Time::Virtual(Arc::new(VirtualTime::new(1))));
/// assert_eq!(memory.write(0, 256, Pattern::Sequential), 76 + 170 + 3, "not there: read first");
/// assert_eq!(memory.read(0, 256, Pattern::Sequential), 76, "there");
/// assert_eq!(memory.read(1 << 20, 64, Pattern::Random), 80 + 329, "in the place of the first, which goes back");
/// let counts = memory.dram_cache().unwrap();
/// assert_eq!((counts.hits, counts.misses, counts.write_backs), (4, 5, 1));
/// assert_eq!((counts.memory_read_bytes, counts.memory_written_bytes), (512, 256), "whole units");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DramCacheCounts {
    /// Lines that were there.
    pub hits: u64,
    /// Lines that were not.
    pub misses: u64,
    /// Lines that others displaced and that were written back.
    pub write_backs: u64,
    /// Bytes that were read from the memory behind it, whole units.
    pub memory_read_bytes: u64,
    /// And written to it.
    pub memory_written_bytes: u64,
}

/// The DRAM before a memory.
#[derive(Debug)]
pub(super) struct DramCache {
    channel: Channel,
    /// Twice one more than the number of a line, and [`DIRTY`]; 0 for none.
    places: Box<[AtomicU64]>,
    hits: AtomicU64,
    misses: AtomicU64,
    write_backs: AtomicU64,
    memory_read_bytes: AtomicU64,
    memory_written_bytes: AtomicU64,
}

/// The lines of one access so far.
#[derive(Debug, Default)]
pub(super) struct Lines {
    hits: u64,
    misses: u64,
    write_backs: u64,
    read: Units,
    written: Units,
}

/// Units of the media that lines are in, which come in order as a rule.
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
    /// What the memory of `profile` has before it, if it has a line at least.
    pub(super) fn before(profile: &Profile, time: &Time) -> Option<DramCache> {
        let places = profile.dram_cache_bytes() / LINE_BYTES;
        let dram = Profile::named("dram").ok().filter(|_| places > 0)?;
        Some(DramCache {
            channel: Channel::new(dram, time.clone()),
            places: (0..places).map(|_| AtomicU64::new(0)).collect(),
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

    /// Uses a line of a memory that works in units of `unit` bytes. It is there from now on.
    pub(super) fn use_line(&self, line: u64, direction: Direction, unit: u64, lines: &mut Lines) {
        let place = &self.places[(line % self.places.len() as u64) as usize];
        let (clean, dirt) = ((line + 1) << 1, u64::from(direction == Direction::Write) * DIRTY);
        // Relaxed: the word is the whole of what is shared.
        let resident = place.load(Relaxed);
        if resident & !DIRTY == clean {
            lines.hits += 1;
            if resident | dirt != resident {
                place.store(resident | dirt, Relaxed);
            }
            return;
        }
        let victim = place.swap(clean | dirt, Relaxed);
        lines.misses += 1;
        lines.read.add(line, unit);
        if victim & DIRTY != 0 {
            lines.write_backs += 1;
            lines.written.add((victim >> 1) - 1, unit);
        }
    }

    /// Charges for `lines`, of one access to this and, where they missed, to `memory`.
    pub(super) fn begin<'c>(
        &'c self,
        memory: &'c Channel,
        direction: Direction,
        pattern: Pattern,
        lines: &Lines,
    ) -> Charge<'c> {
        let bytes = |lines: u64| std::iter::once(lines * LINE_BYTES);
        let all = lines.hits + lines.misses;
        if all == 0 {
            return Charge::nothing();
        }
        let dram = self.channel.begin(direction, pattern, bytes(all));
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
        // That it is not there is known when DRAM has been looked at.
        let missed = dram.deadline_ps();
        let mut charge = dram.and(memory.begin_at(missed, Direction::Read, pattern, std::iter::once(read)));
        if written > 0 {
            charge = charge.and(memory.begin_at(missed, Direction::Write, pattern, std::iter::once(written)));
        }
        // A write has filled it.
        if direction == Direction::Read {
            let fill = self.channel.begin_at(missed, Direction::Write, pattern, bytes(lines.misses));
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

    /// Optane memory behind 16 lines of DRAM, four of its units, and no processor's cache.
    fn memory(workers: usize) -> (SimulatedMemory, Arc<VirtualTime>) {
        let time = Arc::new(VirtualTime::new(workers));
        let profile = Profile::named("optane").unwrap().with_cache_bytes(0).with_dram_cache_bytes(1024);
        (SimulatedMemory::new(profile, Time::Virtual(Arc::clone(&time))), time)
    }

    /// Hits, misses, lines written back, bytes read from the memory and written to it.
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

    /// By hand: 16 places, and a line is in that of its number modulo 16.
    #[test]
    fn a_line_has_one_place_and_goes_back_if_it_was_written() {
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

    /// What fits stays, however long; one line more than fits displaces another each time around.
    #[test]
    fn conflicts_are_those_of_the_places() {
        let (fits, _) = memory(1);
        (0..160).for_each(|turn| _ = fits.read(turn % 16 * LINE_BYTES, LINE_BYTES, Pattern::Random));
        assert_eq!(counted(&fits)[..2], [144, 16]);
        let (over, _) = memory(1);
        (0..170).for_each(|turn| _ = over.read(turn % 17 * LINE_BYTES, LINE_BYTES, Pattern::Random));
        // 0 and 16 have one place; each is there never when it is wanted.
        assert_eq!(counted(&over)[..2], [15 * 9, 15 + 2 * 10]);
    }

    /// In nanoseconds: DRAM 80 and 64 bytes at 180 GB/s; Optane memory 320 and a unit of 256 bytes at 28.8.
    #[test]
    fn a_miss_is_charged_after_the_look_that_finds_it() {
        let (memory, time) = memory(2);
        assert_eq!(memory.read(0, 64, Pattern::Random), 80 + 320 + 9);
        assert_eq!(memory.read(0, 64, Pattern::Random), 80);
        assert_eq!(time.now(0), 409 + 80);
        memory.write(0, 64, Pattern::Random);
        // The unit that goes back takes 80 ns and 256 bytes at 6 GB/s, less than the read beside it.
        assert_eq!(memory.read(1024, 64, Pattern::Random), 80 + 320 + 9);
        assert_eq!(time.now(0).div_ceil(10), 98, "and fractions of them");
        // A worker that writes back is a writer to the others, who read the same modules.
        let (beside, time) = self::memory(2);
        beside.write(0, 1024, Pattern::Sequential);
        time.spend(1, time.now(0));
        let quiet = beside.read(1 << 20, 1024, Pattern::Sequential);
        time.enter(1);
        let hurt = beside.read(2 << 20, 1024, Pattern::Sequential);
        // Without that: 6 ns for the other's bytes in DRAM, and 5 for those in the memory.
        assert!(hurt >= quiet + 30, "{hurt} {quiet}");
    }

    /// 1024 bytes at .1 GB/s are 10 us, and nobody has room for more that is to be written.
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

    /// Every writer that was announced is gone when the access is over, or readers would be slow for ever.
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
