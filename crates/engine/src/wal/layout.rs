//! The log's file: one header block, then a ring of `capacity` bytes.
//!
//! ```text
//!  0         8          12      16        32          40         48       52          4096
//!  | TERRLOG\0 | version | 0 u32 | database | timeline | capacity | crc32c | zeros ... | ring ...
//! ```
//!
//! The byte of the log with LSN n is at `4096 + n % capacity`. What of the ring is valid is not said here but by the
//! superblock (cut, epoch, first LSN of the epoch) and by the records themselves.

use std::io;

use terrace_block::{AlignedBuffer, BlockDevice};

use super::BLOCK;
use crate::error::{Error, Result};

/// The version of the log's format that this build writes and reads.
pub(crate) const LOG_VERSION: u32 = 4;
/// The smallest ring that can be useful: a block to write and one to keep.
pub(crate) const CAPACITY_MIN: u64 = 2 * BLOCK;

const MAGIC: &[u8; 8] = b"TERRLOG\0";
const CHECK_AT: usize = 48;

/// Where LSNs are in the file.
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

    /// Bytes of the ring.
    pub(crate) fn capacity(self) -> u64 {
        self.capacity
    }

    /// Bytes of the file.
    pub(crate) fn file_bytes(self) -> u64 {
        BLOCK + self.capacity
    }

    /// Where in the file an LSN is.
    pub(super) fn offset(self, lsn: u64) -> u64 {
        BLOCK + lsn % self.capacity
    }

    /// How many bytes follow an LSN before the file wraps.
    pub(super) fn contiguous(self, lsn: u64) -> u64 {
        self.capacity - lsn % self.capacity
    }
}

/// What the header block says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogHeader {
    /// The database it belongs to.
    pub(crate) database: [u8; 16],
    /// Changes when a backup is restored or a log thrown away by hand.
    pub(crate) timeline: u64,
    /// Where LSNs are.
    pub(crate) geometry: Geometry,
}

/// Writes the header block, so that it is durable.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn write_header(device: &dyn BlockDevice, header: &LogHeader) -> Result<()> {
    let mut block = AlignedBuffer::zeroed(BLOCK as usize);
    block[..8].copy_from_slice(MAGIC);
    block[8..12].copy_from_slice(&LOG_VERSION.to_le_bytes());
    block[16..32].copy_from_slice(&header.database);
    block[32..40].copy_from_slice(&header.timeline.to_le_bytes());
    block[40..48].copy_from_slice(&header.geometry.capacity.to_le_bytes());
    let check = crc_fast::crc32_iscsi(&block[..CHECK_AT]);
    block[CHECK_AT..CHECK_AT + 4].copy_from_slice(&check.to_le_bytes());
    device.write_through_at(0, &block).map_err(|source| Error::io("write", device.name(), Some(0), source))
}

/// Reads the header block.
///
/// # Errors
/// [`Error::NotADatabase`] for a file that is no log, [`Error::Version`] for one of another format, [`Error::Corrupt`] for
/// a damaged or shortened one, [`Error::Io`].
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
    let geometry = Geometry::new(capacity)
        .map_err(|_| damaged(format!("the log's header gives it a capacity of {capacity} bytes")))?;
    if device.len() < geometry.file_bytes() {
        let (is, should) = (device.len(), geometry.file_bytes());
        return Err(damaged(format!("the log has {is} bytes, its header says {should}")));
    }
    let database = block[16..32].try_into().expect("sixteen bytes");
    Ok(LogHeader { database, timeline: u64_at(32), geometry })
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_block::MemoryDevice;

    fn header() -> LogHeader {
        LogHeader { database: [7; 16], timeline: 3, geometry: Geometry::new(8192).unwrap() }
    }

    fn patched(at: usize, byte: u8) -> Error {
        let device = MemoryDevice::new("log", header().geometry.file_bytes());
        write_header(&device, &header()).unwrap();
        let mut block = AlignedBuffer::zeroed(BLOCK as usize);
        device.read_at(0, &mut block).unwrap();
        block[at] ^= byte;
        device.write_at(0, &block).unwrap();
        read_header(&device).unwrap_err()
    }

    #[test]
    fn a_header_comes_back() {
        let device = MemoryDevice::new("log", header().geometry.file_bytes());
        write_header(&device, &header()).unwrap();
        assert_eq!(read_header(&device).unwrap(), header());
    }

    #[test]
    fn foreign_newer_damaged_and_short_files_are_told_apart() {
        assert!(matches!(patched(0, 1), Error::NotADatabase { .. }));
        assert!(matches!(patched(8, 1), Error::Version { found: 5, supported: LOG_VERSION, .. }));
        for at in [20, 35, 41, 50] {
            assert!(matches!(patched(at, 1), Error::Corrupt { .. }), "byte {at}");
        }
        let empty = MemoryDevice::new("log", 0);
        assert!(matches!(read_header(&empty), Err(Error::NotADatabase { .. })));
        let short = MemoryDevice::new("log", 8192);
        write_header(&short, &header()).unwrap();
        assert!(matches!(read_header(&short), Err(Error::Corrupt { .. })));
    }

    #[test]
    fn capacities_that_cannot_be_are_refused() {
        for capacity in [0, 4096, 8191, 12289, u64::MAX - 4095] {
            assert!(matches!(Geometry::new(capacity), Err(Error::Config(_))), "{capacity}");
        }
    }

    #[test]
    fn lsns_wrap_in_the_file() {
        let geometry = Geometry::new(12288).unwrap();
        assert_eq!([4096, 12287, 12288, 16384].map(|lsn| geometry.offset(lsn)), [8192, 16383, 4096, 8192]);
        assert_eq!([4096, 12280, 12288].map(|lsn| geometry.contiguous(lsn)), [8192, 8, 12288]);
    }
}
