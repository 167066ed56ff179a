//! The head of a database file, as far as it shows changes.
//!
//! SQLite's "Database File Format", section 1.3. In rollback mode every change increments bytes 24
//! to 27. SQLite itself compares bytes 24 to 39 to check its pages in memory.

use crate::below::Below;

pub(crate) type Head = [u8; 100];

const MAGIC: &[u8; 16] = b"SQLite format 3\0";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub page_bytes: u32,
    /// Changes go to a write-ahead log first.
    pub is_wal: bool,
    /// Change counter, size in pages, and start and length of the free list.
    pub version: [u8; 16],
}

impl Header {
    /// Length of its encoding.
    pub const BYTES: usize = 4 + 1 + 16;

    /// Reads the head past the cache; `None` if invalid.
    pub fn read(below: &Below) -> Option<(Header, Head)> {
        let mut bytes = [0; 100];
        below.read(&mut bytes, 0).ok()?;
        Some((Header::parse(&bytes)?, bytes))
    }

    pub fn parse(bytes: &Head) -> Option<Header> {
        let page_bytes = match u16::from_be_bytes([bytes[16], bytes[17]]) {
            1 => 1 << 16,
            power if power >= 512 && power.is_power_of_two() => u32::from(power),
            _ => return None,
        };
        let version = bytes[24..40].try_into().expect("sixteen bytes");
        bytes.starts_with(MAGIC).then_some(Header {
            page_bytes,
            is_wal: bytes[18] == 2 || bytes[19] == 2,
            version,
        })
    }

    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.page_bytes.to_le_bytes());
        bytes[4] = self.is_wal.into();
        bytes[5..].copy_from_slice(&self.version);
        bytes
    }
}
