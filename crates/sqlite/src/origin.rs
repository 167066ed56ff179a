//! The file in a cache's directory that says what the cache was made from.
//!
//! It is one block: magic, version, the identity under which the blocks were cached, and the fingerprint of the database file of
//! which they are right, all under a checksum. A file that is anything else counts as none: the cache then begins empty.
//!
//! The system's page cache holds it, for it must outlive the process, not the machine: after a power cut an older one may be
//! back, and an older fingerprint matches only a file that was not changed since.

use std::io;
use std::sync::Arc;

use rand::RngExt;
use terrace_block::{AlignedBuffer, BlockDevice, Directory, OpenMode};

use crate::fingerprint::Fingerprint;

const FILE: &str = "origin";
const BLOCK_BYTES: usize = 4096;
const MAGIC: &[u8; 16] = b"terrace origin 1";
const IDENTITY: std::ops::Range<usize> = 16..32;
const CHECKSUM: std::ops::Range<usize> = 32..40;
/// 1 where there is a fingerprint.
const KNOWN: usize = 40;
const FINGERPRINT: std::ops::Range<usize> = 41..41 + Fingerprint::BYTES;

/// What a cache was made from.
pub(crate) struct Origin {
    device: Arc<dyn BlockDevice>,
    pub identity: [u8; 16],
    /// The bytes of the fingerprint that was recorded.
    recorded: Option<[u8; Fingerprint::BYTES]>,
}

impl Origin {
    /// Reads the file of a directory, or begins one.
    pub fn open(directory: &dyn Directory) -> io::Result<Origin> {
        let device = match directory.exists(FILE)? {
            true => directory.open(FILE, OpenMode::Write)?,
            false => directory.open(FILE, OpenMode::CreateNew)?,
        };
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
        if device.len() < BLOCK_BYTES as u64 {
            device.set_len(BLOCK_BYTES as u64)?;
        } else {
            device.read_at(0, &mut block)?;
        }
        let is_right = block.starts_with(MAGIC) && block[CHECKSUM] == checksum(&block);
        let mut origin = Origin { device, identity: rand::rng().random(), recorded: None };
        if is_right && block[KNOWN] == 1 {
            origin.identity = block[IDENTITY].try_into().expect("sixteen bytes");
            origin.recorded = Some(block[FINGERPRINT].try_into().expect("as long as it is"));
        }
        Ok(origin)
    }

    /// Whether the cache was made from a file with this fingerprint.
    pub fn is_of(&self, fingerprint: &Fingerprint) -> bool {
        self.recorded == Some(fingerprint.to_bytes())
    }

    /// From now on the cache is made from something else.
    pub fn begin_anew(&mut self) -> io::Result<()> {
        self.identity = rand::rng().random();
        self.recorded = None;
        self.write()
    }

    /// The cache is right of a file with this fingerprint.
    pub fn record(&mut self, fingerprint: &Fingerprint) -> io::Result<()> {
        self.recorded = Some(fingerprint.to_bytes());
        self.write()
    }

    fn write(&self) -> io::Result<()> {
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
        block[..MAGIC.len()].copy_from_slice(MAGIC);
        block[IDENTITY].copy_from_slice(&self.identity);
        if let Some(recorded) = &self.recorded {
            block[KNOWN] = 1;
            block[FINGERPRINT].copy_from_slice(recorded);
        }
        let sum = checksum(&block);
        block[CHECKSUM].copy_from_slice(&sum);
        self.device.write_at(0, &block)
    }
}

/// The checksum of a block, without its own place.
fn checksum(block: &[u8]) -> [u8; 8] {
    let parts = [&block[..CHECKSUM.start], &block[CHECKSUM.end..]].concat();
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &parts).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::Header;
    use terrace_block::MemoryDirectory;

    fn fingerprint() -> Fingerprint {
        let header = Header { page_bytes: 4096, is_wal: true, version: [7; 16] };
        Fingerprint { inode: 1, bytes: 2, modified: [3, 4], changed: [5, 6], header, power_cycle: [8; 16] }
    }

    #[test]
    fn it_is_as_it_was_left() {
        let directory = MemoryDirectory::new();
        let mut origin = Origin::open(&directory).expect("a new one");
        assert!(!origin.is_of(&fingerprint()));
        origin.record(&fingerprint()).expect("memory");
        let again = Origin::open(&directory).expect("the same");
        assert!(again.is_of(&fingerprint()) && again.identity == origin.identity);
        origin.begin_anew().expect("memory");
        let again = Origin::open(&directory).expect("the same");
        assert!(!again.is_of(&fingerprint()));
    }

    #[test]
    fn no_flipped_byte_is_believed() {
        let directory = MemoryDirectory::new();
        Origin::open(&directory).expect("a new one").record(&fingerprint()).expect("memory");
        let device = directory.open(FILE, OpenMode::Write).expect("it is there");
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
        device.read_at(0, &mut block).expect("memory");
        for place in 0..FINGERPRINT.end + 8 {
            let mut flipped = block.clone();
            flipped[place] ^= 1 << (place % 8);
            device.write_at(0, &flipped).expect("memory");
            let origin = Origin::open(&directory).expect("it can be read");
            assert!(!origin.is_of(&fingerprint()), "byte {place}");
        }
        device.set_len(512).expect("memory");
        assert!(!Origin::open(&directory).expect("it is short").is_of(&fingerprint()));
    }
}
