//! The file in a cache directory that records what the cache matches.
//!
//! It is one block with a checksum: magic, version, identity of the blocks, session of the cache,
//! and fingerprint of the database file. The session is that of the cache's latest open or close,
//! so an older copy of the blocks file does not match. A damaged block or another version counts as
//! none: the cache starts empty. A file with other content is refused.
//!
//! A fingerprint is not synced, because it need only outlive the process. After a power cut an
//! older block may return, but its fingerprint matches only a file unchanged since.

use std::io;
use std::sync::Arc;

use rand::RngExt;
use terrace_io::{AlignedBuffer, BlockDevice, Directory, OpenMode};

use crate::fingerprint::{Fingerprint, system_random};

const FILE: &str = "origin";
const BLOCK_BYTES: usize = 4096;
const MAGIC: &[u8; 16] = b"terrace origin 2";
/// Prefix of the magic in every version.
const MAGIC_EVER: &[u8] = b"terrace origin ";
const IDENTITY: std::ops::Range<usize> = 16..32;
const CHECKSUM: std::ops::Range<usize> = 32..40;
/// 1 if there is a fingerprint.
const KNOWN: usize = 40;
const FINGERPRINT: std::ops::Range<usize> = 41..41 + Fingerprint::BYTES;
const SESSION: std::ops::Range<usize> = FINGERPRINT.end..FINGERPRINT.end + 8;

pub(crate) struct Origin {
    device: Arc<dyn BlockDevice>,
    pub identity: [u8; 16],
    /// The session in which the cache was left.
    pub session: Option<u64>,
    /// The recorded fingerprint.
    recorded: Option<[u8; Fingerprint::BYTES]>,
}

impl Origin {
    /// Reads the file of a directory, or creates it.
    pub fn open(directory: &dyn Directory) -> io::Result<Origin> {
        let device = match directory.exists(FILE)? {
            true => directory.open(FILE, OpenMode::Write)?,
            false => directory.open(FILE, OpenMode::CreateNew)?,
        };
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
        let is_short = (1..BLOCK_BYTES as u64).contains(&device.len());
        if device.is_empty() {
            device.set_len(BLOCK_BYTES as u64)?;
        } else if !is_short {
            device.read_at(0, &mut block)?;
        }
        let is_blank = block.iter().all(|&byte| byte == 0) && device.len() == BLOCK_BYTES as u64;
        if is_short || !(is_blank || block.starts_with(MAGIC_EVER)) {
            let what = format!("{} is not a cache file; it is left as it is", device.name());
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let is_right = block.starts_with(MAGIC) && block[CHECKSUM] == checksum(&block);
        let mut origin = Origin { device, identity: system_random().random(), session: None, recorded: None };
        let session = u64::from_le_bytes(block[SESSION].try_into().expect("eight bytes"));
        if is_right && block[KNOWN] == 1 && session != 0 {
            origin.identity = block[IDENTITY].try_into().expect("sixteen bytes");
            origin.session = Some(session);
            origin.recorded = Some(block[FINGERPRINT].try_into().expect("as long as it is"));
        }
        Ok(origin)
    }

    /// Whether the cache matches a file with this fingerprint.
    pub fn is_of(&self, fingerprint: &Fingerprint) -> bool {
        self.recorded == Some(fingerprint.to_bytes())
    }

    /// Why it does not match the present file.
    pub fn why_other(&self) -> &'static str {
        match self.recorded {
            Some(_) => "the database file has changed since, or is another one",
            None => {
                "nobody knows which state of the database file it matches: the last process that used the cache \
                 was killed during a change, never filled it, or ended within 10 s after a change by others"
            }
        }
    }

    /// Starts over with a new identity.
    pub fn begin_anew(&mut self) -> io::Result<()> {
        self.identity = system_random().random();
        self.recorded = None;
        self.session = None;
        self.write()
    }

    /// Records the cache's session durably; the cache must not change before that.
    pub fn begin_session(&mut self, session: Option<u64>) -> io::Result<()> {
        self.session = session;
        self.device.write_through_at(0, &self.block())
    }

    /// Records that the cache matches a file with this fingerprint.
    pub fn record(&mut self, fingerprint: &Fingerprint) -> io::Result<()> {
        self.recorded = Some(fingerprint.to_bytes());
        self.write()
    }

    fn write(&self) -> io::Result<()> {
        self.device.write_at(0, &self.block())
    }

    fn block(&self) -> AlignedBuffer {
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
        block[..MAGIC.len()].copy_from_slice(MAGIC);
        block[IDENTITY].copy_from_slice(&self.identity);
        if let Some(recorded) = &self.recorded {
            block[KNOWN] = 1;
            block[FINGERPRINT].copy_from_slice(recorded);
        }
        block[SESSION].copy_from_slice(&self.session.unwrap_or(0).to_le_bytes());
        let sum = checksum(&block);
        block[CHECKSUM].copy_from_slice(&sum);
        block
    }
}

/// Checksum of a block without its own field.
fn checksum(block: &[u8]) -> [u8; 8] {
    let parts = [&block[..CHECKSUM.start], &block[CHECKSUM.end..]].concat();
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &parts).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::Header;
    use terrace_io::MemoryDirectory;

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
        assert!(!Origin::open(&directory).expect("the same").is_of(&fingerprint()), "without a session");
        origin.begin_session(Some(3)).expect("memory");
        let again = Origin::open(&directory).expect("the same");
        assert!(again.is_of(&fingerprint()) && again.identity == origin.identity);
        origin.begin_anew().expect("memory");
        let again = Origin::open(&directory).expect("the same");
        assert!(!again.is_of(&fingerprint()));
    }

    #[test]
    fn what_is_no_origin_is_left_as_it_is() {
        for length in [512, BLOCK_BYTES, 3 * BLOCK_BYTES] {
            let directory = MemoryDirectory::new();
            let device = directory.open(FILE, OpenMode::CreateNew).expect("a new one");
            device.set_len(length as u64).expect("memory");
            let mut bytes = AlignedBuffer::zeroed(length);
            bytes[length - 1] = 7;
            device.write_at(0, &bytes).expect("memory");
            let refused = Origin::open(&directory).err().expect("it is not ours").to_string();
            assert!(refused.contains("left as it is"), "{refused}");
            let mut after = AlignedBuffer::zeroed(length);
            device.read_at(0, &mut after).expect("memory");
            assert!(device.len() == length as u64 && after[..] == bytes[..]);
        }
    }

    #[test]
    fn a_session_is_kept_with_the_fingerprint() {
        let directory = MemoryDirectory::new();
        let mut origin = Origin::open(&directory).expect("a new one");
        origin.record(&fingerprint()).expect("memory");
        origin.begin_session(Some(9)).expect("memory");
        assert_eq!(Origin::open(&directory).expect("the same").session, Some(9));
        origin.begin_anew().expect("memory");
        assert_eq!(Origin::open(&directory).expect("the same").session, None);
    }

    #[test]
    fn no_flipped_byte_is_believed() {
        let directory = MemoryDirectory::new();
        let mut origin = Origin::open(&directory).expect("a new one");
        origin.begin_session(Some(3)).expect("memory");
        origin.record(&fingerprint()).expect("memory");
        assert!(Origin::open(&directory).expect("the same").is_of(&fingerprint()));
        let device = directory.open(FILE, OpenMode::Write).expect("it is there");
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
        device.read_at(0, &mut block).expect("memory");
        for at in 0..SESSION.end + 8 {
            let mut flipped = block.clone();
            flipped[at] ^= 1 << (at % 8);
            device.write_at(0, &flipped).expect("memory");
            // A wrong magic is refused.
            let is_believed = Origin::open(&directory).is_ok_and(|origin| origin.is_of(&fingerprint()));
            assert!(!is_believed, "byte {at}");
        }
    }
}
