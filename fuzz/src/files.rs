//! The files of a database as bytes, and how to make the checksums of changed ones hold again: an attacker can do that,
//! and a fuzzer that cannot would only ever test the checksum.

use std::sync::Arc;

use terrace_block::{AlignedBuffer, Directory, MemoryDirectory, OpenMode};

const PAGES: &str = "pages.terrace";
const LOG: &str = "log.terrace";

const SLOT_BYTES: usize = 16 << 10;
const BLOCKS_AT: usize = 192;
const CLASSES: usize = 10;
const DIRECTORY_AT: usize = 256;
const LOG_HEADER_BYTES: u64 = 4096;
const PLACE_BYTES: usize = 4096;
const PLACE_MASK: u64 = (1 << 34) - 1;
const LENGTH_SHIFT: u32 = 34;
const LONG: u64 = 1 << 62;
const LONG_PLACES: usize = 32;
const CHECK_SHIFT: u32 = 38;
const CHECK_MASK: u64 = (1 << 24) - 1;
const PAGE_HEADER_BYTES: usize = 24;

/// Both files.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) pages: Vec<u8>,
    pub(crate) log: Vec<u8>,
}

fn crc(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn seal(bytes: &mut [u8]) -> u32 {
    let checksum = crc(&bytes[4..]);
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
    checksum
}

impl Files {
    /// What is in `directory` now.
    pub(crate) fn of(directory: &MemoryDirectory) -> Files {
        let read = |name| {
            let device = directory.open(name, OpenMode::Read).expect("the file is there");
            let mut bytes = AlignedBuffer::zeroed(device.len() as usize);
            device.read_at(0, &mut bytes).expect("memory can be read");
            bytes.to_vec()
        };
        Files { pages: read(PAGES), log: read(LOG) }
    }

    /// A directory with these files.
    pub(crate) fn directory(&self) -> Arc<MemoryDirectory> {
        let directory = MemoryDirectory::new();
        for (name, content) in [(PAGES, &self.pages), (LOG, &self.log)] {
            let device = directory.open(name, OpenMode::CreateNew).expect("the directory is empty");
            device.set_len(content.len() as u64).expect("memory can grow");
            let mut bytes = AlignedBuffer::zeroed(content.len());
            bytes.copy_from_slice(content);
            device.write_at(0, &bytes).expect("memory can be written");
        }
        Arc::new(directory)
    }

    /// The newer slot of the superblock, by its sequence alone.
    fn newest_slot(&self) -> usize {
        usize::from(u64_at(&self.pages, SLOT_BYTES + 40) > u64_at(&self.pages, 40))
    }

    /// Where in the log's file recovery begins to read.
    pub(crate) fn log_start(&self) -> u64 {
        let cut = u64_at(&self.pages, self.newest_slot() * SLOT_BYTES + 72);
        let capacity = self.log.len() as u64 - LOG_HEADER_BYTES;
        LOG_HEADER_BYTES + cut % capacity
    }

    /// Makes the checksums hold again, from the pages up to both superblocks.
    pub(crate) fn mend_pages(&mut self) {
        for slot in [0, 1] {
            let page_bytes = u32_at(&self.pages, slot * SLOT_BYTES + 48) as usize;
            if page_bytes.is_power_of_two() && (4096..=65536).contains(&page_bytes) {
                let blocks = |class| u32_at(&self.pages, slot * SLOT_BYTES + BLOCKS_AT + class * 4) as usize;
                let blocks: usize = (0..CLASSES).map(blocks).sum();
                for block in 0..blocks.min((SLOT_BYTES - DIRECTORY_AT) / 8) {
                    self.mend_below(slot * SLOT_BYTES + DIRECTORY_AT + block * 8, 2);
                }
            }
            seal(&mut self.pages[slot * SLOT_BYTES..(slot + 1) * SLOT_BYTES]);
        }
    }

    /// Mends the image that the mapping word at `at` names, after those that it names itself.
    fn mend_below(&mut self, at: usize, levels: u32) {
        let word = u64_at(&self.pages, at);
        let Some(place) = (word & PLACE_MASK).checked_sub(1) else { return };
        let unit = if word & LONG == 0 { PLACE_BYTES } else { LONG_PLACES * PLACE_BYTES };
        let (start, length) =
            (place as usize * PLACE_BYTES, ((word >> LENGTH_SHIFT) as usize % 16 + 1) * unit);
        let inside = start >= 2 * SLOT_BYTES && start + length <= self.pages.len();
        if !inside {
            return;
        }
        if levels > 0 {
            for word in (start + PAGE_HEADER_BYTES..start + length - 7).step_by(8) {
                self.mend_below(word, levels - 1);
            }
        }
        let checksum = seal(&mut self.pages[start..start + length]);
        let word = word & !(CHECK_MASK << CHECK_SHIFT) | (u64::from(checksum) & CHECK_MASK) << CHECK_SHIFT;
        self.pages[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    /// Makes the checksums of the log's header and of its records hold again, as far as their lengths lead.
    pub(crate) fn mend_log(&mut self) {
        let check = crc(&self.log[..48]);
        self.log[48..52].copy_from_slice(&check.to_le_bytes());
        let end = self.log.len();
        let mut at = self.log_start() as usize;
        while at + 40 <= end {
            let length = u32_at(&self.log, at + 4) as usize;
            if length < 40 || !length.is_multiple_of(8) || length > end - at {
                return;
            }
            seal(&mut self.log[at..at + length]);
            at += length;
        }
    }
}
