//! The log's file: one header block, then a ring of `capacity` bytes.
//!
//! ```text
//!  0         8          12      16        32          40        48       52          4096
//!  | TERRLOG\0 | version | 0 u32 | database | timeline | largest | crc32c | zeros ... | ring ...
//! ```
//!
//! The byte with LSN n is at `4096 + n % capacity`. The superblock (capacity, cut, epoch, first LSN
//! of the epoch) and the records themselves define which part of the ring is valid.
//!
//! A new ring is short, and doubles until it has the capacity `largest` of the header. If recovery
//! finds no room, it doubles further. LSNs whose lap begins a lap of the new ring keep their
//! offsets. The others move behind the old end ([`Geometry::moved`]), so the old ring stays valid
//! until a superblock names the new capacity.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};

use terrace_io::{AlignedBuffer, BlockDevice};

use super::units::BLOCK;
use crate::error::{Error, Result};

pub(crate) const LOG_VERSION: u32 = 6;
/// The smallest useful ring: a block to write and one to keep.
pub(crate) const CAPACITY_MIN: u64 = 2 * BLOCK;

const MAGIC: &[u8; 8] = b"TERRLOG\0";
const CHECK_AT: usize = 48;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    capacity: u64,
}

impl Geometry {
    /// A ring of `capacity` bytes.
    ///
    /// # Errors
    /// [`Error::Config`] if it is not a multiple of the block size or too small.
    pub(crate) fn new(capacity: u64) -> Result<Self> {
        if capacity < CAPACITY_MIN || !capacity.is_multiple_of(BLOCK) || capacity > i64::MAX as u64 - BLOCK {
            return Err(Error::Config(format!(
                "a log of {capacity} bytes; it must be a multiple of {BLOCK}, at least {CAPACITY_MIN}"
            )));
        }
        Ok(Self { capacity })
    }

    pub(crate) fn capacity(self) -> u64 {
        self.capacity
    }

    /// The shortest ring that doubles to this one, but none shorter than `bytes`.
    pub(crate) fn starting_from(self, bytes: u64) -> Self {
        let mut capacity = self.capacity;
        while capacity.is_multiple_of(2 * BLOCK) && capacity / 2 >= bytes.max(CAPACITY_MIN) {
            capacity /= 2;
        }
        Self { capacity }
    }

    /// The ring that doubling reaches first with at least `bytes`, or else `largest`. `None` if
    /// doubling does not lead there.
    pub(crate) fn grown(self, bytes: u64, largest: Geometry) -> Option<Self> {
        if !self.doubles_to(largest) {
            return None;
        }
        let mut capacity = self.capacity * 2;
        while capacity < bytes.min(largest.capacity) {
            capacity *= 2;
        }
        Some(Self { capacity })
    }

    /// The ring of twice this capacity, whatever the largest is. `None` if there is none.
    pub(crate) fn doubled(self) -> Option<Self> {
        Geometry::new(self.capacity.checked_mul(2)?).ok()
    }

    /// This ring, doubled until it holds `bytes`.
    pub(crate) fn holding(self, bytes: u64) -> Option<Self> {
        if self.capacity >= bytes { Some(self) } else { self.doubled()?.holding(bytes) }
    }

    /// Whether doubling leads from `self` to a longer ring `other`.
    fn doubles_to(self, other: Geometry) -> bool {
        other.capacity.is_multiple_of(self.capacity)
            && (other.capacity / self.capacity).is_power_of_two()
            && other != self
    }

    /// The LSNs from `from` to `to` whose offsets change when the ring becomes `longer`. Both are
    /// block-aligned, and at most the capacity apart. So of two laps at most one stays.
    pub(super) fn moved(self, longer: Geometry, from: u64, to: u64) -> std::ops::Range<u64> {
        let stays = from % longer.capacity < self.capacity;
        let begins = if stays { (from / self.capacity + 1) * self.capacity } else { from };
        begins..to.min(begins.next_multiple_of(longer.capacity)).max(begins)
    }

    pub(crate) fn file_bytes(self) -> u64 {
        BLOCK + self.capacity
    }

    pub(super) fn offset(self, lsn: u64) -> u64 {
        BLOCK + lsn % self.capacity
    }

    /// Bytes from an LSN to the wrap of the file.
    pub(super) fn contiguous(self, lsn: u64) -> u64 {
        self.capacity - lsn % self.capacity
    }
}

/// The geometry of an open log, which may grow.
#[derive(Debug)]
pub(super) struct Present(AtomicU64);

impl Present {
    pub(super) fn new(geometry: Geometry) -> Self {
        Self(AtomicU64::new(geometry.capacity))
    }

    pub(super) fn get(&self) -> Geometry {
        // Acquire pairs with `set`: the space behind the old end is there.
        Geometry { capacity: self.0.load(Acquire) }
    }

    /// The caller leads, so nothing is being written.
    pub(super) fn set(&self, geometry: Geometry) {
        self.0.store(geometry.capacity, Release);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogHeader {
    pub(crate) database: [u8; 16],
    /// Changes when a backup is restored or a log is discarded by hand.
    pub(crate) timeline: u64,
    /// The ring that commits may let it grow to. The superblock names the present one.
    pub(crate) largest: Geometry,
}

impl LogHeader {
    /// The ring that a superblock names.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it contradicts the header, or the file is too short for it.
    pub(crate) fn ring(&self, device: &dyn BlockDevice, capacity: u64) -> Result<Geometry> {
        let damaged = |what: String| Error::corrupt(device.name(), None, what);
        // Recovery may have doubled it further.
        let may_be =
            |ring: &Geometry| ring.capacity <= self.largest.capacity || self.largest.doubles_to(*ring);
        let ring = Geometry::new(capacity).ok().filter(may_be).ok_or_else(|| {
            let most = self.largest.capacity;
            damaged(format!("the log holds {most} bytes, the page file's superblock says {capacity}"))
        })?;
        let (is, should) = (device.len(), ring.file_bytes());
        if is < should {
            return Err(damaged(format!("the log has {is} bytes, the page file's superblock says {should}")));
        }
        Ok(ring)
    }
}

/// Durably writes the header block.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn write_header(device: &dyn BlockDevice, header: &LogHeader) -> Result<()> {
    let mut block = AlignedBuffer::zeroed(BLOCK as usize);
    block[..8].copy_from_slice(MAGIC);
    block[8..12].copy_from_slice(&LOG_VERSION.to_le_bytes());
    block[16..32].copy_from_slice(&header.database);
    block[32..40].copy_from_slice(&header.timeline.to_le_bytes());
    block[40..48].copy_from_slice(&header.largest.capacity.to_le_bytes());
    let check = crc_fast::crc32_iscsi(&block[..CHECK_AT]);
    block[CHECK_AT..CHECK_AT + 4].copy_from_slice(&check.to_le_bytes());
    device.write_through_at(0, &block).map_err(|source| Error::io("write", device.name(), Some(0), source))
}

/// Reads the header block.
///
/// # Errors
/// [`Error::NotADatabase`] for a file that is no log, [`Error::Version`] for one of another format,
/// [`Error::Corrupt`] for a damaged one, [`Error::Io`].
pub(crate) fn read_header(device: &dyn BlockDevice) -> Result<LogHeader> {
    let foreign = |what: &str| Error::NotADatabase { path: device.name().to_owned(), what: what.to_owned() };
    let mut block = AlignedBuffer::zeroed(BLOCK as usize);
    match device.read_at(0, &mut block) {
        Ok(()) => {}
        Err(source) if source.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(foreign("the file is too short to be a log"));
        }
        Err(source) => return Err(Error::io("read", device.name(), Some(0), source)),
    }
    if !block.starts_with(MAGIC) {
        return Err(foreign("the file does not begin as a log does"));
    }
    let u32_at = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
    let found = u32_at(8);
    if found != LOG_VERSION {
        let file = device.name().to_owned();
        return Err(Error::Version { file, found, supported: LOG_VERSION });
    }
    let damaged = |what: String| Error::corrupt(device.name(), None, what);
    if u32_at(CHECK_AT) != crc_fast::crc32_iscsi(&block[..CHECK_AT]) {
        return Err(damaged("the log's header has a wrong checksum".into()));
    }
    let capacity = u64_at(40);
    let largest = Geometry::new(capacity)
        .map_err(|_| damaged(format!("the log's header gives it a capacity of {capacity} bytes")))?;
    let database = block[16..32].try_into().expect("sixteen bytes");
    Ok(LogHeader { database, timeline: u64_at(32), largest })
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_io::MemoryDevice;

    fn header() -> LogHeader {
        LogHeader { database: [7; 16], timeline: 3, largest: Geometry::new(8192).unwrap() }
    }

    fn patched(at: usize, byte: u8) -> Error {
        let device = MemoryDevice::new("log", header().largest.file_bytes());
        write_header(&device, &header()).unwrap();
        let mut block = AlignedBuffer::zeroed(BLOCK as usize);
        device.read_at(0, &mut block).unwrap();
        block[at] ^= byte;
        device.write_at(0, &block).unwrap();
        read_header(&device).unwrap_err()
    }

    #[test]
    fn a_header_comes_back() {
        let device = MemoryDevice::new("log", header().largest.file_bytes());
        write_header(&device, &header()).unwrap();
        assert_eq!(read_header(&device).unwrap(), header());
    }

    #[test]
    fn foreign_newer_damaged_and_short_files_are_told_apart() {
        assert!(matches!(patched(0, 1), Error::NotADatabase { .. }));
        assert!(matches!(patched(8, 1), Error::Version { found: 7, supported: LOG_VERSION, .. }));
        for at in [20, 35, 41, 50] {
            assert!(matches!(patched(at, 1), Error::Corrupt { .. }), "byte {at}");
        }
        let empty = MemoryDevice::new("log", 0);
        assert!(matches!(read_header(&empty), Err(Error::NotADatabase { .. })));
        let short = MemoryDevice::new("log", 8192);
        write_header(&short, &header()).unwrap();
        let header = read_header(&short).unwrap();
        for capacity in [0, 8192, 12288, 16384] {
            assert!(matches!(header.ring(&short, capacity), Err(Error::Corrupt { .. })), "{capacity}");
        }
    }

    #[test]
    fn a_superblock_may_name_a_ring_that_doubling_leads_to() {
        let device = MemoryDevice::new("log", 64 << 10);
        for (capacity, may_be) in [(4, false), (8, true), (12, false), (16, true), (24, false), (32, true)] {
            let ring = header().ring(&device, capacity << 10);
            assert_eq!(ring.map(Geometry::capacity).ok(), may_be.then_some(capacity << 10), "{capacity}");
        }
        assert_eq!(header().largest.holding(17 << 10).unwrap().capacity(), 32 << 10);
        assert_eq!(Geometry::new(3 << 61).unwrap().doubled(), None);
    }

    #[test]
    fn capacities_that_cannot_be_are_refused() {
        for capacity in [0, 4096, 8191, 12289, u64::MAX - 4095] {
            assert!(matches!(Geometry::new(capacity), Err(Error::Config(_))), "{capacity}");
        }
    }

    #[test]
    fn a_ring_doubles_until_it_is_the_largest() {
        let ring = |blocks: u64| Geometry::new(blocks * BLOCK).unwrap();
        assert_eq!(ring(64).starting_from(10 * BLOCK), ring(16));
        assert_eq!(ring(12).starting_from(0), ring(3));
        assert_eq!(ring(2).starting_from(0), ring(2));
        for (blocks, grown) in [(0, 32), (32, 32), (33, 64), (64, 64), (65, 64), (1 << 40, 64)] {
            assert_eq!(ring(16).grown(blocks * BLOCK, ring(64)), Some(ring(grown)), "{blocks}");
        }
        assert_eq!(ring(3).grown(0, ring(12)), Some(ring(6)));
        for (ring, largest) in [(ring(64), ring(64)), (ring(64), ring(32)), (ring(16), ring(48))] {
            assert_eq!(ring.grown(0, largest), None);
        }
    }

    /// For every live part of a ring: what moves goes behind the old end, all else stays.
    #[test]
    fn lsns_that_move_when_a_ring_grows_do_so_behind_its_end() {
        const BLOCKS: u64 = 4;
        let ring = |times: u64| Geometry::new(times * BLOCKS * BLOCK).unwrap();
        let from_and_to = (0..10 * BLOCKS)
            .flat_map(|from| (from..=from + BLOCKS).map(move |to| (from * BLOCK, to * BLOCK)));
        for (times, (from, to)) in
            [2, 4, 8].into_iter().flat_map(|n| from_and_to.clone().map(move |at| (n, at)))
        {
            let (old, new) = (ring(1), ring(times));
            let moved = old.moved(new, from, to);
            for lsn in (from..to).step_by(BLOCK as usize) {
                let (before, after) = (old.offset(lsn), new.offset(lsn));
                match moved.contains(&lsn) {
                    true => assert!(after >= old.file_bytes(), "{times} times, {from} to {to}: {lsn}"),
                    false => assert_eq!(after, before, "{times} times, {from} to {to}: {lsn}"),
                }
            }
        }
    }

    #[test]
    fn lsns_wrap_in_the_file() {
        let geometry = Geometry::new(12288).unwrap();
        assert_eq!([4096, 12287, 12288, 16384].map(|lsn| geometry.offset(lsn)), [8192, 16383, 4096, 8192]);
        assert_eq!([4096, 12280, 12288].map(|lsn| geometry.contiguous(lsn)), [8192, 8, 12288]);
    }
}
