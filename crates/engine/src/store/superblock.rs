//! The superblock: the start of recovery. Two slots at the start of the page file, written in turn.
//!
//! A write goes to the slot that is *not* the newest valid one, and is synced before anything
//! relies on it (durability, rules 2 and 11). So a torn write leaves the older slot and all it
//! names: log space and directory blocks are reused only after the newer slot is durable. Recovery
//! that finds less log than `log_end`, its persistent end at the write, reports damage.
//!
//! Superblocks bypass a block cache. Each durable one is reported to the cache as a step of the
//! page file, before blocks of the previous one are reused. So a cache is not used with a page file
//! at another point of its history (`CacheConfig::progress`).

use std::io;
use std::sync::Arc;

use terrace_cache::Cached;
use terrace_io::{AlignedBuffer, BlockDevice};

use super::mapping_word::{BLOCK_BYTES, BLOCKS_MAX, MappingWord};
use super::page::crc32c;
use crate::error::{Error, Result};
use crate::ids::{ByClass, Lsn, SizeClass, Timestamp};
use crate::planted::{Bug, planted};

/// The version of the files this build reads and writes.
pub(crate) const FORMAT_VERSION: u32 = 6;
pub(crate) const SLOT_BYTES: usize = 16 << 10;
/// Bytes of the page file's start that belong to the superblock.
pub(crate) const SUPERBLOCK_BYTES: u64 = 2 * SLOT_BYTES as u64;

const MAGIC: [u8; 8] = *b"TERRACE\0";
const FIXED_BYTES: usize = 256;
const PAGE_IDS_AT: usize = 112;
const BLOCKS_AT: usize = PAGE_IDS_AT + 8 * SizeClass::COUNT;
const LIFE_AT: usize = BLOCKS_AT + 4 * SizeClass::COUNT;
const RING_AT: usize = LIFE_AT + 8;
/// Beyond any real log; leaves room for appends.
const LSN_MAX: u64 = 1 << 62;
/// Beyond any real count of superblocks; the next ones count on from the file's.
const SEQUENCE_MAX: u64 = 1 << 62;
/// The most that one life may add to its first sequence.
const SEQUENCES_OF_A_LIFE: u64 = 1 << 32;
/// Most directory blocks of a superblock, over all classes; with blocks of 4 KiB enough for every
/// possible page.
pub(crate) const DIRECTORY_BLOCKS_MAX: usize = (SLOT_BYTES - FIXED_BYTES) / 8;

/// The name of a ring in persistent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingName {
    /// Never 0.
    pub(crate) id: u64,
    pub(crate) bytes: u64,
}

/// Everything recovery needs before it can read anything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) uuid: [u8; 16],
    /// Changes on restore and when a log is discarded by hand.
    pub(crate) timeline: u64,
    /// Counts the superblocks written; the higher of two valid slots is the newer.
    pub(crate) sequence: u64,
    pub(crate) page_bytes: u32,
    pub(crate) segment_blocks: u32,
    pub(crate) log_capacity: u64,
    /// Counts the recoveries; at and above `epoch_start` only records of this epoch are valid.
    pub(crate) epoch: u32,
    pub(crate) epoch_start: Lsn,
    /// Recovery reads the log from here.
    pub(crate) cut: Lsn,
    /// The persistent end of the log when this was written.
    pub(crate) log_end: Lsn,
    /// The highest timestamp issued, as far as the log below the cut matters.
    pub(crate) highest_timestamp: Timestamp,
    /// Page indexes below this have been in use.
    pub(crate) page_ids_end: ByClass<u64>,
    pub(crate) segments: u64,
    /// A random number of this epoch. Copies of a database count the same epochs.
    pub(crate) life: u64,
    /// The ring that has the log's newest records, beyond those in its file.
    pub(crate) ring: Option<RingName>,
    /// Mapping words of the directory blocks.
    pub(crate) directory: ByClass<Vec<MappingWord>>,
}

impl Superblock {
    fn encode(&self, slot: &mut [u8]) {
        let blocks: usize = self.directory.iter().map(Vec::len).sum();
        assert!(blocks <= DIRECTORY_BLOCKS_MAX, "directory larger than a superblock can name");
        slot.fill(0);
        let mut at = 4;
        let mut put = |bytes: &[u8]| {
            slot[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&FORMAT_VERSION.to_le_bytes());
        put(&MAGIC);
        put(&self.uuid);
        put(&self.timeline.to_le_bytes());
        put(&self.sequence.to_le_bytes());
        put(&self.page_bytes.to_le_bytes());
        put(&self.segment_blocks.to_le_bytes());
        put(&self.log_capacity.to_le_bytes());
        put(&self.epoch_start.0.to_le_bytes());
        put(&self.cut.0.to_le_bytes());
        put(&self.log_end.0.to_le_bytes());
        put(&self.highest_timestamp.0.to_le_bytes());
        put(&self.segments.to_le_bytes());
        put(&self.epoch.to_le_bytes());
        put(&[0; 4]);
        self.page_ids_end.iter().for_each(|end| put(&end.to_le_bytes()));
        self.directory.iter().for_each(|blocks| put(&(blocks.len() as u32).to_le_bytes()));
        put(&self.life.to_le_bytes());
        let ring = self.ring.map_or([0; 2], |ring| [ring.id, ring.bytes]);
        ring.iter().for_each(|word| put(&word.to_le_bytes()));
        for (word, mapped) in slot[FIXED_BYTES..].chunks_exact_mut(8).zip(self.directory.iter().flatten()) {
            word.copy_from_slice(&mapped.0.to_le_bytes());
        }
        let checksum = crc32c(&slot[4..]);
        slot[..4].copy_from_slice(&checksum.to_le_bytes());
    }

    /// `None` if the slot holds no whole superblock (never written, torn, foreign).
    fn decode(slot: &[u8], file: &str) -> Result<Option<Superblock>> {
        let stored = u32::from_le_bytes(slot[..4].try_into().expect("four bytes"));
        if slot[8..16] != MAGIC || stored != crc32c(&slot[4..]) {
            return Ok(None);
        }
        let found = u32::from_le_bytes(slot[4..8].try_into().expect("four bytes"));
        if found != FORMAT_VERSION {
            return Err(Error::Version { file: file.to_owned(), found, supported: FORMAT_VERSION });
        }
        let word = |at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().expect("eight bytes"));
        let half = |at: usize| u32::from_le_bytes(slot[at..at + 4].try_into().expect("four bytes"));
        // Directory words before those of each class, and before the end.
        let mut blocks = [0; SizeClass::COUNT + 1];
        for class in 0..SizeClass::COUNT {
            blocks[class + 1] = blocks[class] + half(BLOCKS_AT + class * 4) as usize;
        }
        let mapped = |index: usize| MappingWord(word(FIXED_BYTES + index * 8));
        let named = |end: usize| end.min(DIRECTORY_BLOCKS_MAX);
        let superblock = Superblock {
            uuid: slot[16..32].try_into().expect("sixteen bytes"),
            timeline: word(32),
            sequence: word(40),
            page_bytes: half(48),
            segment_blocks: half(52),
            log_capacity: word(56),
            epoch_start: Lsn(word(64)),
            cut: Lsn(word(72)),
            log_end: Lsn(word(80)),
            highest_timestamp: Timestamp(word(88)),
            page_ids_end: std::array::from_fn(|class| word(PAGE_IDS_AT + class * 8)),
            segments: word(96),
            epoch: half(104),
            life: word(LIFE_AT),
            ring: (word(RING_AT) != 0).then(|| RingName { id: word(RING_AT), bytes: word(RING_AT + 8) }),
            directory: std::array::from_fn(|class| {
                (named(blocks[class])..named(blocks[class + 1])).map(mapped).collect()
            }),
        };
        let own = SizeClass::of_bytes(superblock.page_bytes.into());
        let sane = own.is_some_and(|class| !class.is_for_values())
            && (4..=1 << 20).contains(&superblock.segment_blocks)
            && superblock.page_bytes / BLOCK_BYTES as u32 <= superblock.segment_blocks
            && superblock.log_capacity.is_multiple_of(4096)
            && superblock.log_capacity > 0
            && superblock.cut <= superblock.log_end
            && superblock.log_end.0 <= LSN_MAX
            && superblock.epoch_start.0 <= LSN_MAX
            && superblock.epoch < u32::MAX
            && superblock.sequence <= SEQUENCE_MAX
            && superblock.segments <= BLOCKS_MAX / u64::from(superblock.segment_blocks)
            && blocks[SizeClass::COUNT] <= DIRECTORY_BLOCKS_MAX;
        if !sane {
            return Err(Error::corrupt(
                file,
                None,
                "the superblock's checksum holds but its numbers contradict each other",
            ));
        }
        Ok(Some(superblock))
    }
}

/// The two slots on their device.
#[derive(Debug)]
pub(crate) struct Slots {
    device: Arc<dyn BlockDevice>,
    newest: usize,
    buffer: AlignedBuffer,
    /// Whether the other slot was invalid at open, by an interrupted write or damage.
    is_other_torn: bool,
    /// Whether the other slot was not whole at open.
    is_alone: bool,
    cache: Option<Arc<Cached>>,
}

/// The page file, bypassing the cache before it.
#[derive(Debug)]
struct Past(Arc<Cached>);

impl BlockDevice for Past {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn alignment(&self) -> usize {
        self.0.alignment()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_past(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_past(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }
}

impl Slots {
    /// Writes `superblock` to both slots of a new file.
    pub(crate) fn create(device: Arc<dyn BlockDevice>, superblock: &Superblock) -> Result<Slots> {
        let buffer = AlignedBuffer::zeroed(SLOT_BYTES);
        let mut slots =
            Slots { device, newest: 0, buffer, is_other_torn: false, is_alone: false, cache: None };
        slots.write(superblock)?;
        slots.write(superblock)?;
        Ok(slots)
    }

    pub(crate) fn open(device: Arc<dyn BlockDevice>) -> Result<(Slots, Superblock)> {
        let file = device.name().to_owned();
        if device.len() < SUPERBLOCK_BYTES {
            return Err(Error::NotADatabase {
                path: file,
                what: "the page file is shorter than its superblock".into(),
            });
        }
        let mut buffer = AlignedBuffer::zeroed(SLOT_BYTES);
        let mut best: Option<(usize, Superblock)> = None;
        let (mut magic_seen, mut is_other_torn, mut is_alone) = (false, false, false);
        for slot in 0..2 {
            let offset = (slot * SLOT_BYTES) as u64;
            device
                .read_at(offset, &mut buffer)
                .map_err(|source| Error::io("read", &file, Some(offset), source))?;
            magic_seen |= buffer[8..16] == MAGIC;
            match Superblock::decode(&buffer, &file)? {
                Some(found) if best.as_ref().is_some_and(|(_, newest)| found.sequence <= newest.sequence) => {
                }
                Some(found) => best = Some((slot, found)),
                None => {
                    is_alone = true;
                    is_other_torn |= buffer.iter().any(|&byte| byte != 0);
                }
            }
        }
        match best {
            Some((_, superblock)) if superblock.sequence > SEQUENCE_MAX - SEQUENCES_OF_A_LIFE => {
                Err(Error::corrupt(&file, None, "the superblock's sequence leaves no room to count on"))
            }
            Some((newest, superblock)) => {
                Ok((Slots { device, newest, buffer, is_other_torn, is_alone, cache: None }, superblock))
            }
            None if magic_seen => Err(Error::corrupt(&file, None, "neither superblock is whole")),
            None => Err(Error::NotADatabase { path: file, what: "the page file has no superblock".into() }),
        }
    }

    /// [`Slots::open`] for the page file below `cache`.
    pub(crate) fn open_below(cache: &Arc<Cached>) -> Result<(Slots, Superblock)> {
        let device: Arc<dyn BlockDevice> = match planted(Bug::CacheSuperblocks) {
            true => Arc::clone(cache) as _,
            false => Arc::new(Past(Arc::clone(cache))),
        };
        let (slots, superblock) = Slots::open(device)?;
        Ok((Slots { cache: Some(Arc::clone(cache)), ..slots }, superblock))
    }

    /// The sequence of recovery's first superblock after `sequence`: a cache recognises this life
    /// by it.
    pub(crate) fn first_of_life(&self, sequence: u64) -> u64 {
        let first = self.cache.as_ref().map_or(0, |cache| cache.first_step());
        first.max(sequence + 1)
    }

    /// Whether the other slot held something invalid at open.
    pub(crate) fn is_other_torn(&self) -> bool {
        self.is_other_torn
    }

    /// Whether the other slot, which may be the newer, was lost or never written.
    pub(crate) fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Rewrites the newest superblock in place, byte for byte: the bytes read may have been in a
    /// cache only.
    pub(crate) fn write_again(&mut self) -> Result<()> {
        let offset = (self.newest * SLOT_BYTES) as u64;
        self.device
            .read_at(offset, &mut self.buffer)
            .and_then(|()| self.device.write_at(offset, &self.buffer))
            .and_then(|()| self.device.sync())
            .map_err(|source| Error::io("rewrite", self.device.name(), Some(offset), source))
    }

    /// Writes and syncs the slot that is not the newest. On failure the newest slot is untouched.
    pub(crate) fn write(&mut self, superblock: &Superblock) -> Result<()> {
        superblock.encode(&mut self.buffer);
        let slot = if planted(Bug::WriteNewestSuperblock) { self.newest } else { 1 - self.newest };
        let offset = (slot * SLOT_BYTES) as u64;
        self.device
            .write_at(offset, &self.buffer)
            .and_then(|()| self.device.sync())
            .map_err(|source| Error::io("write", self.device.name(), Some(offset), source))?;
        self.newest = slot;
        if let Some(cache) = self.cache.as_ref().filter(|_| !planted(Bug::StepUntold)) {
            cache.progress(superblock.sequence);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maintenance::words_per_page;
    use crate::pool::{PAGES_MAX, indexes_max};
    use crate::store::mapping_word::Extent;
    use terrace_io::{Directory, MemoryDirectory, OpenMode};

    fn file() -> Arc<dyn BlockDevice> {
        let device = MemoryDirectory::new().open("pages", OpenMode::CreateNew).expect("a new file");
        device.set_len(SUPERBLOCK_BYTES).expect("memory");
        device
    }

    fn first() -> Superblock {
        Superblock {
            uuid: [1; 16],
            timeline: 1,
            sequence: 1,
            page_bytes: 4096,
            segment_blocks: 8,
            log_capacity: 65536,
            epoch: 1,
            epoch_start: Lsn(4096),
            cut: Lsn(4096),
            log_end: Lsn(4096),
            highest_timestamp: Timestamp::NONE,
            page_ids_end: [1; SizeClass::COUNT],
            segments: 8,
            life: 0,
            ring: None,
            directory: Default::default(),
        }
    }

    #[test]
    fn numbers_that_leave_no_room_to_count_on_are_refused() {
        let end = Lsn(!7);
        let hostile: [fn(&mut Superblock, Lsn); 8] = [
            |superblock, end| (superblock.cut, superblock.log_end) = (end, end),
            |superblock, end| superblock.epoch_start = end,
            |superblock, _| superblock.epoch = u32::MAX,
            |superblock, _| superblock.sequence = u64::MAX,
            |superblock, _| superblock.sequence = SEQUENCE_MAX,
            |superblock, _| superblock.segments = u64::MAX,
            |superblock, _| superblock.page_bytes = 12288,
            |superblock, _| superblock.page_bytes = 128 << 10,
        ];
        for (index, change) in hostile.into_iter().enumerate() {
            let (device, mut superblock) = (file(), first());
            change(&mut superblock, end);
            Slots::create(device.clone(), &superblock).expect("created");
            assert!(matches!(Slots::open(device), Err(Error::Corrupt { .. })), "case {index}");
        }
    }

    #[test]
    fn slots_that_are_whole_or_were_never_written_are_not_torn() {
        let (device, superblock) = (file(), first());
        let mut slots = Slots::create(device.clone(), &superblock).expect("created");
        assert!(!Slots::open(device.clone()).expect("opened").0.is_other_torn());
        slots.write(&Superblock { sequence: 2, ..superblock }).expect("written");
        assert!(!Slots::open(device.clone()).expect("opened").0.is_other_torn());
        device.write_at(SLOT_BYTES as u64, &AlignedBuffer::zeroed(SLOT_BYTES)).expect("written");
        assert!(!Slots::open(device).expect("opened").0.is_other_torn());
    }

    fn read_past_a_cache() {
        let slow = file();
        let superblock = first();
        Slots::create(slow.clone(), &superblock).expect("created");
        let fast = Arc::new(terrace_io::MemoryDevice::new("fast", 0));
        let config = terrace_cache::CacheConfig { progress: 1, ..terrace_cache::CacheConfig::new(64) };
        let cache = Arc::new(Cached::open(slow.clone(), fast, config).expect("memory"));
        let (mut slots, _) = Slots::open_below(&cache).expect("opened");
        slots.write_again().expect("memory");
        slots.write(&Superblock { sequence: 2, ..superblock.clone() }).expect("memory");
        Slots::open(slow)
            .expect("opened")
            .0
            .write(&Superblock { sequence: 3, ..superblock })
            .expect("memory");
        assert_eq!(Slots::open_below(&cache).expect("opened").1.sequence, 3, "the page file's counts");
        assert_eq!(cache.stats().resident_blocks(), 0);
    }

    #[test]
    fn superblocks_are_never_in_a_cache() {
        read_past_a_cache();
    }

    #[test]
    #[should_panic(expected = "the page file's counts")]
    fn catches_cache_superblocks() {
        crate::planted::plant(Some(Bug::CacheSuperblocks));
        let outcome = std::panic::catch_unwind(read_past_a_cache);
        crate::planted::plant(None);
        std::panic::resume_unwind(outcome.expect_err("it must be noticed"));
    }

    #[test]
    fn what_is_known_of_each_class_is_read_back() {
        let image = |first| MappingWord::at(Extent { first, blocks: 1 }, 5);
        let superblock = Superblock {
            page_ids_end: [7, 1, u64::MAX, 9, 1, 1, 2, 1, 1, 12],
            life: 77,
            ring: Some(RingName { id: u64::MAX, bytes: 16 << 10 }),
            directory: [
                vec![8, 9],
                vec![],
                vec![10],
                vec![],
                vec![],
                vec![11],
                vec![],
                vec![],
                vec![],
                vec![12],
            ]
            .map(|firsts| firsts.into_iter().map(image).collect()),
            ..first()
        };
        let device = file();
        Slots::create(device.clone(), &superblock).expect("created");
        assert_eq!(Slots::open(device).expect("opened").1, superblock);
        let device = file();
        let blocks = (0..DIRECTORY_BLOCKS_MAX as u64).map(image).collect();
        let mut directory = ByClass::default();
        directory[SizeClass::LARGEST.index()] = blocks;
        let superblock = Superblock { directory, ..first() };
        Slots::create(device.clone(), &superblock).expect("created");
        assert_eq!(Slots::open(device).expect("opened").1, superblock);
    }

    /// Block counts too large each, or only together.
    #[test]
    fn more_directory_blocks_than_there_is_room_for_are_refused() {
        let most = DIRECTORY_BLOCKS_MAX as u32;
        let of = |counts: &[(usize, u32)]| {
            let mut blocks = [0; SizeClass::COUNT];
            counts.iter().for_each(|&(class, count)| blocks[class] = count);
            blocks
        };
        for blocks in [
            of(&[(0, most + 1)]),
            of(&[(9, u32::MAX)]),
            [u32::MAX; SizeClass::COUNT],
            of(&[(0, most / 2 + 1), (7, most / 2)]),
        ] {
            let device = file();
            Slots::create(device.clone(), &first()).expect("created");
            let mut both = AlignedBuffer::zeroed(SUPERBLOCK_BYTES as usize);
            device.read_at(0, &mut both).expect("read");
            for slot in both.chunks_exact_mut(SLOT_BYTES) {
                let counts = slot[BLOCKS_AT..].chunks_exact_mut(4);
                counts.zip(blocks).for_each(|(count, blocks)| count.copy_from_slice(&blocks.to_le_bytes()));
                let checksum = crc32c(&slot[4..]);
                slot[..4].copy_from_slice(&checksum.to_le_bytes());
            }
            device.write_at(0, &both).expect("written");
            assert!(matches!(Slots::open(device), Err(Error::Corrupt { .. })), "{blocks:?}");
        }
    }

    /// The next number would exceed the last one, or wrap below this one.
    #[test]
    fn a_sequence_that_leaves_no_room_for_the_next_ones_is_refused() {
        for sequence in [SEQUENCE_MAX + 1, u64::MAX - 1, u64::MAX] {
            let device = file();
            Slots::create(device.clone(), &Superblock { sequence, ..first() }).expect("created");
            assert!(matches!(Slots::open(device), Err(Error::Corrupt { .. })), "{sequence}");
        }
    }

    /// The blocks of all classes, each with its most pages.
    #[test]
    fn a_superblock_can_name_every_page_there_may_be() {
        let words = words_per_page(SizeClass::SMALLEST.page_bytes());
        let blocks = |class| indexes_max(PAGES_MAX, class).div_ceil(words).div_ceil(words);
        let all: u64 = SizeClass::all().map(blocks).sum();
        assert!(all <= DIRECTORY_BLOCKS_MAX as u64, "{all}");
    }

    /// Writes two superblocks, tears the second write, and returns the sequence found.
    fn sequence_after_a_torn_write() -> Option<u64> {
        let (device, mut superblock) = (file(), first());
        let mut slots = Slots::create(device.clone(), &superblock).expect("created");
        superblock.sequence = 2;
        slots.write(&superblock).expect("written");
        let mut before = AlignedBuffer::zeroed(SUPERBLOCK_BYTES as usize);
        let mut after = AlignedBuffer::zeroed(SUPERBLOCK_BYTES as usize);
        device.read_at(0, &mut before).expect("read");
        superblock.sequence = 3;
        slots.write(&superblock).expect("written");
        device.read_at(0, &mut after).expect("read");
        let torn =
            before.iter().zip(after.iter()).position(|(old, new)| old != new)? / SLOT_BYTES * SLOT_BYTES;
        after[torn + 20] ^= 0xff;
        device.write_at(0, &after).expect("written");
        Slots::open(device).ok().filter(|(slots, _)| slots.is_other_torn()).map(|(_, found)| found.sequence)
    }

    #[test]
    fn a_torn_write_leaves_the_superblock_before() {
        assert_eq!(sequence_after_a_torn_write(), Some(2));
    }

    #[test]
    fn catches_write_newest_superblock() {
        crate::planted::plant(Some(Bug::WriteNewestSuperblock));
        let found = sequence_after_a_torn_write();
        crate::planted::plant(None);
        assert_ne!(found, Some(2));
    }
}
