//! A database's files as bytes, and code to recompute their checksums. An attacker can do that;
//! without it a fuzzer tests only the checksum.

use std::sync::Arc;

use terrace_io::{AlignedBuffer, Directory, MemoryDirectory, OpenMode};

/// Names of the page file and the log.
pub(crate) type Names = [&'static str; 2];
/// Names in a database.
pub(crate) const DATABASE: Names = ["pages.terrace", "log.terrace"];
/// Names in a backup.
pub(crate) const BACKUP: Names = ["pages.backup", "log.backup"];

const SLOT_BYTES: usize = 16 << 10;
const BLOCKS_AT: usize = 192;
const CLASSES: usize = 10;
const DIRECTORY_AT: usize = 256;
const LOG_HEADER_BYTES: u64 = 4096;
const BLOCK_BYTES: usize = 4096;
const BLOCK_MASK: u64 = (1 << 34) - 1;
const LENGTH_SHIFT: u32 = 34;
const LONG: u64 = 1 << 62;
const LONG_BLOCKS: usize = 32;
const CHECK_SHIFT: u32 = 38;
const CHECK_MASK: u64 = (1 << 24) - 1;
const PAGE_HEADER_BYTES: usize = 24;

/// Page file and log.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) pages: Vec<u8>,
    pub(crate) log: Vec<u8>,
}

fn crc(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// An image in the page file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Image {
    pub(crate) start: usize,
    pub(crate) length: usize,
    /// Header fields: the kind, without the compression bit, and the page id.
    pub(crate) kind: u8,
    pub(crate) id: u64,
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
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
    /// The current files in `directory`.
    pub(crate) fn of(directory: &MemoryDirectory, [pages, log]: Names) -> Files {
        let read = |name| {
            let device = directory.open(name, OpenMode::Read).expect("the file is there");
            let mut bytes = AlignedBuffer::zeroed(device.len() as usize);
            device.read_at(0, &mut bytes).expect("memory can be read");
            bytes.to_vec()
        };
        Files { pages: read(pages), log: read(log) }
    }

    /// A directory with these files.
    pub(crate) fn directory(&self, [pages, log]: Names) -> Arc<MemoryDirectory> {
        let directory = MemoryDirectory::new();
        for (name, content) in [(pages, &self.pages), (log, &self.log)] {
            let device = directory.open(name, OpenMode::CreateNew).expect("the directory is empty");
            device.set_len(content.len() as u64).expect("memory can grow");
            let mut bytes = AlignedBuffer::zeroed(content.len());
            bytes.copy_from_slice(content);
            device.write_at(0, &bytes).expect("memory can be written");
        }
        Arc::new(directory)
    }

    /// The superblock slot with the higher sequence number.
    fn newest_slot(&self) -> usize {
        usize::from(u64_at(&self.pages, SLOT_BYTES + 40) > u64_at(&self.pages, 40))
    }

    /// File offset in the log where recovery starts.
    pub(crate) fn log_start(&self) -> u64 {
        let cut = u64_at(&self.pages, self.newest_slot() * SLOT_BYTES + 72);
        let capacity = self.log.len() as u64 - LOG_HEADER_BYTES;
        LOG_HEADER_BYTES + cut % capacity
    }

    /// Offset and length of a mapping word's image, if it is inside the file.
    fn extent(&self, word: u64) -> Option<(usize, usize)> {
        let block = (word & BLOCK_MASK).checked_sub(1)?;
        let unit = if word & LONG == 0 { BLOCK_BYTES } else { LONG_BLOCKS * BLOCK_BYTES };
        let start = usize::try_from(block).ok()?.checked_mul(BLOCK_BYTES)?;
        let length = ((word >> LENGTH_SHIFT) as usize % 16 + 1) * unit;
        (start >= 2 * SLOT_BYTES && start + length <= self.pages.len()).then_some((start, length))
    }

    /// Directory blocks named by the superblock at `slot`.
    fn block_count(&self, slot: usize) -> usize {
        let blocks = |class| u32_at(&self.pages, slot + BLOCKS_AT + class * 4) as usize;
        (0..CLASSES).map(blocks).sum::<usize>().min((SLOT_BYTES - DIRECTORY_AT) / 8)
    }

    /// Images reachable from the newest superblock: directory blocks, chunks, pages.
    pub(crate) fn images(&self) -> [Vec<Image>; 3] {
        let slot = self.newest_slot() * SLOT_BYTES;
        let image = |word_at: usize| {
            let (start, length) = self.extent(u64_at(&self.pages, word_at))?;
            let (kind, id) = (self.pages[start + 4] & 0x7f, u64_at(&self.pages, start + 8));
            Some(Image { start, length, kind, id })
        };
        let below = |images: &[Image]| -> Vec<Image> {
            let words = |of: &Image| (of.start + PAGE_HEADER_BYTES..of.start + of.length - 7).step_by(8);
            images.iter().flat_map(words).filter_map(image).collect()
        };
        let words = (0..self.block_count(slot)).map(|block| slot + DIRECTORY_AT + block * 8);
        let blocks: Vec<Image> = words.filter_map(image).collect();
        let chunks = below(&blocks);
        let pages = below(&chunks);
        [blocks, chunks, pages]
    }

    /// Offsets and lengths of the valid log records that do not wrap.
    pub(crate) fn records(&self) -> Vec<(usize, usize)> {
        let (mut at, mut found) = (self.log_start() as usize, Vec::new());
        while at + 40 <= self.log.len() {
            let length = u32_at(&self.log, at + 4) as usize;
            let is_one = length >= 40 && length.is_multiple_of(8) && length <= self.log.len() - at;
            if !is_one || u32_at(&self.log, at) != crc(&self.log[at + 4..at + length]) {
                break;
            }
            found.push((at, length));
            at += length;
        }
        found
    }

    /// Recomputes a record's checksum.
    pub(crate) fn seal_record(&mut self, at: usize, length: usize) {
        seal(&mut self.log[at..at + length]);
    }

    /// Recomputes checksums from the pages up to both superblocks.
    pub(crate) fn mend_pages(&mut self) {
        for slot in [0, 1] {
            let page_bytes = u32_at(&self.pages, slot * SLOT_BYTES + 48) as usize;
            if page_bytes.is_power_of_two() && (4096..=65536).contains(&page_bytes) {
                for block in 0..self.block_count(slot * SLOT_BYTES) {
                    self.mend_below(slot * SLOT_BYTES + DIRECTORY_AT + block * 8, 2);
                }
            }
            seal(&mut self.pages[slot * SLOT_BYTES..(slot + 1) * SLOT_BYTES]);
        }
    }

    /// Recomputes the image at a mapping word, after the images it refers to.
    fn mend_below(&mut self, at: usize, levels: u32) {
        let word = u64_at(&self.pages, at);
        let Some((start, length)) = self.extent(word) else { return };
        if levels > 0 {
            for word in (start + PAGE_HEADER_BYTES..start + length - 7).step_by(8) {
                self.mend_below(word, levels - 1);
            }
        }
        let checksum = seal(&mut self.pages[start..start + length]);
        let word = word & !(CHECK_MASK << CHECK_SHIFT) | (u64::from(checksum) & CHECK_MASK) << CHECK_SHIFT;
        self.pages[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    /// Recomputes checksums of the log's header and of the records its lengths lead to.
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
