//! The layout of the fast device, and its superblock; `docs/cache.md` has the format.
//!
//! ```text
//!   0       superblock                               4096  the other
//!   8192    marks of regions                         (regions.rs)
//!   ...     journal, first half and second half      (journal.rs)
//!   ...     slots, each a block
//! ```
//! The newest valid superblock counts; each fits one sector, which a power cut does not tear. Both
//! name a new half of the journal before it is used: the previous half is outdated and must not
//! count again, whichever superblock is damaged or wiped first.

use std::io;

use super::checksum::checksum;
use terrace_io::{AlignedBuffer, BlockDevice};

/// Bytes of superblocks, pages of marks and journal pages.
pub(super) const PAGE_BYTES: usize = 4096;

const MAGIC: [u8; 8] = *b"TERRCACH";
const RESERVED: u32 = u32::MAX;
/// The format of a complete slow device; the next version may have dirty blocks.
///
/// A program that knows only this version refuses the next one.
const VERSION: u32 = 3;
const VERSION_DIRTY: u32 = 4;
/// The first format without sessions: dirty blocks are saved, then the cache is made anew.
const VERSION_ONCE: u32 = 1;
const VERSION_ONCE_DIRTY: u32 = 2;
const SECTOR_BYTES: usize = 512;
const CHECK_AT: usize = SECTOR_BYTES - 4;

/// A larger sequence is damage, because the next ones count on from it.
const SEQUENCE_MAX: u64 = 1 << 62;

pub(super) const PAGE_RECORDS: usize = 252;

const HALF_PAGES_MIN: u64 = 64;

pub(super) const REGION_PAGES_MAX: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub block_shift: u32,
    pub slots: u32,
    pub region_pages: u32,
}

impl Layout {
    /// Pages of a journal half: twice what all slots need.
    pub fn half_pages(self) -> u64 {
        let full = u64::from(self.slots).div_ceil(PAGE_RECORDS as u64);
        full + full.max(HALF_PAGES_MIN)
    }

    pub fn region_page_offset(self, page: u32) -> u64 {
        (2 + u64::from(page)) * PAGE_BYTES as u64
    }

    pub fn journal_offset(self, half: u32, page: u64) -> u64 {
        let first = 2 + u64::from(self.region_pages) + u64::from(half) * self.half_pages();
        (first + page) * PAGE_BYTES as u64
    }

    pub fn slots_start(self) -> u64 {
        self.journal_offset(2, 0).next_multiple_of(1 << self.block_shift)
    }

    pub fn bytes(self) -> u64 {
        self.slots_start() + (u64::from(self.slots) << self.block_shift)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub layout: Layout,
    pub region_shift: u32,
    pub identity: [u8; 16],
    /// Names the time since power-on; zeros if unknown.
    pub power_cycle: [u8; 16],
    pub sequence: u64,
    pub generation: u64,
    pub half: u32,
    /// Durable pages of the half; fewer mean damage.
    pub pages: u64,
    /// The cache's number since it was made, never 0; for the guard.
    pub number: u64,
    /// Random, new at each opening and close (`guard.rs`); 0 in old versions.
    pub session: u64,
    /// The previous session until the guard has this one; else 0.
    pub session_before: u64,
    /// The slow device's progress, or 0; see [`super::CacheConfig::progress`].
    pub progress: u64,
    /// This opening's first step until it is reported; else 0.
    pub first_step: u64,
    pub is_dirty: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    Blank,
    Reserved,
    Foreign,
    OtherVersion(u32),
    Damaged,
    Whole(Superblock),
}

impl Superblock {
    fn encode(&self) -> AlignedBuffer {
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC);
        put(8, &if self.is_dirty { VERSION_DIRTY } else { VERSION }.to_le_bytes());
        put(16, &self.identity);
        put(32, &self.power_cycle);
        put(48, &self.sequence.to_le_bytes());
        put(56, &self.generation.to_le_bytes());
        put(64, &self.half.to_le_bytes());
        put(68, &self.layout.block_shift.to_le_bytes());
        put(72, &self.layout.slots.to_le_bytes());
        put(76, &self.layout.region_pages.to_le_bytes());
        put(80, &self.region_shift.to_le_bytes());
        put(88, &self.number.to_le_bytes());
        put(96, &self.pages.to_le_bytes());
        put(104, &self.session.to_le_bytes());
        put(112, &self.session_before.to_le_bytes());
        put(120, &self.progress.to_le_bytes());
        put(128, &self.first_step.to_le_bytes());
        let check = checksum(&page[..CHECK_AT]);
        page[CHECK_AT..SECTOR_BYTES].copy_from_slice(&check.to_le_bytes());
        page
    }

    fn decode(page: &[u8]) -> Header {
        if page.iter().all(|&byte| byte == 0) {
            return Header::Blank;
        }
        if page[..8] != MAGIC {
            return Header::Foreign;
        }
        let u32_at = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().expect("four bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"));
        let name_at = |at: usize| page[at..at + 16].try_into().expect("sixteen bytes");
        let (sector, rest) = page.split_at(SECTOR_BYTES);
        if u32_at(CHECK_AT) != checksum(&sector[..CHECK_AT]) || rest.iter().any(|&byte| byte != 0) {
            return Header::Damaged;
        }
        let version = u32_at(8);
        let has_sessions = match version {
            RESERVED => return Header::Reserved,
            VERSION | VERSION_DIRTY => true,
            VERSION_ONCE | VERSION_ONCE_DIRTY => false,
            other => return Header::OtherVersion(other),
        };
        let layout = Layout { block_shift: u32_at(68), slots: u32_at(72), region_pages: u32_at(76) };
        let superblock = Superblock {
            layout,
            region_shift: u32_at(80),
            identity: name_at(16),
            power_cycle: name_at(32),
            sequence: u64_at(48),
            generation: u64_at(56),
            half: u32_at(64),
            number: u64_at(88),
            pages: u64_at(96),
            session: u64_at(104),
            session_before: u64_at(112),
            progress: u64_at(120),
            first_step: u64_at(128),
            is_dirty: [VERSION_DIRTY, VERSION_ONCE_DIRTY].contains(&version),
        };
        let in_range = (12..=21).contains(&layout.block_shift)
            && (1..u32::MAX).contains(&layout.slots)
            && (1..=REGION_PAGES_MAX).contains(&layout.region_pages)
            && (12..64).contains(&superblock.region_shift)
            && superblock.half < 2
            && superblock.sequence <= SEQUENCE_MAX
            && (superblock.session != 0) == has_sessions;
        if in_range { Header::Whole(superblock) } else { Header::Damaged }
    }

    pub fn read(fast: &dyn BlockDevice) -> io::Result<Header> {
        if fast.is_empty() {
            return Ok(Header::Blank);
        }
        let mut pages = AlignedBuffer::zeroed(2 * PAGE_BYTES);
        let length = fast.len().min(pages.len() as u64) as usize;
        let whole = length - length % fast.alignment();
        if whole < SECTOR_BYTES {
            return Ok(Header::Foreign);
        }
        fast.read_at(0, &mut pages[..whole])?;
        if whole < pages.len() {
            // Perhaps the rest of a cache, but unusable.
            return Ok(match Self::decode(&pages[..PAGE_BYTES]) {
                Header::Whole(_) => Header::Damaged,
                other => other,
            });
        }
        let (even, odd) = pages.split_at(PAGE_BYTES);
        Ok(match (Self::decode(even), Self::decode(odd)) {
            (Header::Whole(even), Header::Whole(odd)) => {
                Header::Whole(if even.sequence > odd.sequence { even } else { odd })
            }
            (Header::Whole(one), _) | (_, Header::Whole(one)) => Header::Whole(one),
            // Remains of a cache begin like a cache.
            (Header::Foreign, Header::Damaged) => Header::Foreign,
            // The first was torn before the second was ever written, or vice versa.
            (Header::Damaged, _) | (_, Header::Damaged) => Header::Damaged,
            (Header::OtherVersion(version), _) | (_, Header::OtherVersion(version)) => {
                Header::OtherVersion(version)
            }
            (Header::Reserved, _) | (_, Header::Reserved) => Header::Reserved,
            (Header::Blank, Header::Blank) => Header::Blank,
            _ => Header::Foreign,
        })
    }

    /// Durably writes one of the two, alternating.
    pub fn write(&self, fast: &dyn BlockDevice) -> io::Result<()> {
        fast.write_through_at((self.sequence & 1) * PAGE_BYTES as u64, &self.encode())
    }

    pub fn write_both(&self, fast: &dyn BlockDevice) -> io::Result<()> {
        self.write(fast)?;
        fast.write_through_at((!self.sequence & 1) * PAGE_BYTES as u64, &self.encode())
    }

    /// Durably reserves a file for a cache, before extending it.
    ///
    /// So a long file of zeros is no cache.
    pub fn reserve(fast: &dyn BlockDevice) -> io::Result<()> {
        if fast.len() < 2 * PAGE_BYTES as u64 {
            fast.set_len(2 * PAGE_BYTES as u64)?;
        }
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        page[..8].copy_from_slice(&MAGIC);
        page[8..12].copy_from_slice(&RESERVED.to_le_bytes());
        let check = checksum(&page[..CHECK_AT]);
        page[CHECK_AT..SECTOR_BYTES].copy_from_slice(&check.to_le_bytes());
        fast.write_through_at(0, &page)
    }

    /// Durably makes both unreadable, so that the cache is never used again.
    pub fn wipe(fast: &dyn BlockDevice) -> io::Result<()> {
        // Torn or whole, it begins like a superblock, so it is not taken for a foreign file.
        let mut wiped = AlignedBuffer::zeroed(PAGE_BYTES);
        wiped[..8].copy_from_slice(&MAGIC);
        fast.write_through_at(0, &wiped)?;
        fast.write_through_at(PAGE_BYTES as u64, &wiped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock(sequence: u64) -> Superblock {
        Superblock {
            layout: Layout { block_shift: 12, slots: 1000, region_pages: 1 },
            region_shift: 20,
            identity: [1; 16],
            power_cycle: [2; 16],
            sequence,
            generation: 3,
            half: 1,
            number: 9,
            pages: 2,
            session: 10,
            session_before: sequence,
            progress: 11,
            first_step: 12,
            is_dirty: sequence.is_multiple_of(2),
        }
    }

    #[test]
    fn the_newest_whole_superblock_counts() {
        let fast = terrace_io::MemoryDevice::new("fast", 1 << 20);
        assert_eq!(Superblock::read(&fast).unwrap(), Header::Blank);
        for sequence in 5..9 {
            superblock(sequence).write(&fast).unwrap();
            assert_eq!(Superblock::read(&fast).unwrap(), Header::Whole(superblock(sequence)));
        }
        fast.write_at(512, &AlignedBuffer::zeroed(512)).unwrap();
        assert_eq!(Superblock::read(&fast).unwrap(), Header::Whole(superblock(8)), "zeros over zeros");
        Superblock::wipe(&fast).unwrap();
        assert_eq!(Superblock::read(&fast).unwrap(), Header::Damaged);
    }

    #[test]
    fn a_torn_superblock_is_not_taken_for_somebody_elses_file() {
        let (old, new) = (superblock(4).encode(), superblock(6).encode());
        let mut wiped = AlignedBuffer::zeroed(PAGE_BYTES);
        wiped[..8].copy_from_slice(&MAGIC);
        let blank = AlignedBuffer::zeroed(PAGE_BYTES);
        for (before, after) in [(&blank, &new), (&old, &new), (&old, &wiped), (&wiped, &new)] {
            for sectors in 0..1_u32 << (PAGE_BYTES / 512) {
                let mut page = before.clone();
                for sector in (0..PAGE_BYTES / 512).filter(|sector| (sectors >> sector) & 1 == 1) {
                    page[sector * 512..][..512].copy_from_slice(&after[sector * 512..][..512]);
                }
                assert_ne!(Superblock::decode(&page), Header::Foreign, "sectors {sectors:b}");
            }
        }
    }

    #[test]
    fn a_flipped_bit_is_noticed_wherever_it_is() {
        let page = superblock(4).encode();
        for byte in (0..PAGE_BYTES).filter(|byte| *byte < SECTOR_BYTES || byte % 97 == 0) {
            let mut flipped = page.clone();
            flipped[byte] ^= 1 << (byte % 8);
            let found = Superblock::decode(&flipped);
            let expected = if byte < 8 { Header::Foreign } else { Header::Damaged };
            assert_eq!(found, expected, "byte {byte}");
        }
    }

    #[test]
    fn a_sequence_that_leaves_no_room_for_the_next_ones_is_damage() {
        assert!(matches!(Superblock::decode(&superblock(SEQUENCE_MAX).encode()), Header::Whole(_)));
        for sequence in [SEQUENCE_MAX + 1, u64::MAX] {
            assert_eq!(Superblock::decode(&superblock(sequence).encode()), Header::Damaged);
        }
    }

    #[test]
    fn parts_do_not_overlap() {
        for (block_shift, slots) in [(12, 1), (12, 1000), (21, 50), (12, u32::MAX - 1)] {
            let layout = Layout { block_shift, slots, region_pages: 3 };
            assert_eq!(layout.journal_offset(0, 0), 5 * 4096);
            assert_eq!(layout.journal_offset(0, layout.half_pages()), layout.journal_offset(1, 0));
            assert!(layout.slots_start() >= layout.journal_offset(1, layout.half_pages()));
            assert!(layout.half_pages() * PAGE_RECORDS as u64 > u64::from(slots));
        }
    }
}
