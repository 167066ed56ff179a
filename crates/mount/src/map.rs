//! The map: a file beside the cache that says which addresses hold which file, at which stamp.
//!
//! It is a header and records of 512 bytes, each with a checksum and rewritten where it is. Numbers
//! are little-endian. A record with a bad checksum is none. A header with one, or two records that
//! share an address, make the map start anew, under another identity, so that no block of the cache
//! counts any more.
//!
//! Nothing is synced: the map outlives its process, not the machine. After a restart of the machine
//! it starts anew. A power cut can keep the bytes of a write and lose its times, so no stamp would
//! prove anything.
//!
//! The header has the session of the cache, so a copy of either that was put back is noticed.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rand::TryRng;
use rand::rngs::SysRng;
use rustix::fs::FlockOperation;

use crate::extents::{EXTENTS_MAX, Extents, FIRST_BYTES};
use crate::stamp::{FileId, Stamp};

const RECORD_BYTES: usize = 512;
const RECORDS_START: u64 = 4096;
/// Most files with cached blocks.
pub(crate) const FILES_MAX: u32 = 1 << 18;
const MAGIC: [u8; 8] = *b"TERRMAP1";
const RECORD_MAGIC: [u8; 8] = *b"TERRFILE";
const CHECK_AT: usize = RECORD_BYTES - 4;
const CLEAN: u64 = 1;
const WRITING: u64 = 2;
/// A sync of the file failed, so nothing of it is cached until the machine restarts.
const IN_DOUBT: u64 = 3;

/// What a map belongs to. A map of anything else starts anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub power_cycle: [u8; 16],
    pub device: u64,
    pub inode: u64,
    pub block_bytes: u64,
}

/// The record of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub id: FileId,
    pub stamp: Stamp,
    /// Any change since the record shows in the stamp.
    pub is_distinct: bool,
    pub extents: Extents,
}

/// The open map.
#[derive(Debug)]
pub(crate) struct FileMap {
    file: File,
    owner: Owner,
    pub identity: [u8; 16],
    /// The cache's session; 0 for none.
    pub session: u64,
    /// All addresses from here on are unused.
    pub next: u64,
    free: Vec<u32>,
    slots: u32,
}

/// A map as it was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub map: FileMap,
    /// The whole records, with their slots.
    pub records: HashMap<FileId, (u32, Record)>,
    /// Unused ranges of addresses in which the cache may have blocks.
    pub gaps: Vec<(u64, u64)>,
    /// Files of which a sync failed since the machine was started.
    /// With their slots.
    pub in_doubt: HashMap<FileId, u32>,
    /// Why an existing map starts anew.
    pub anew: Option<&'static str>,
}

fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Writes fields one after the other into a sealed block.
struct Writer([u8; RECORD_BYTES], usize);

impl Writer {
    fn new(magic: [u8; 8]) -> Self {
        let mut writer = Writer([0; RECORD_BYTES], 0);
        writer.put(&magic);
        writer
    }

    fn put(&mut self, bytes: &[u8]) {
        self.0[self.1..self.1 + bytes.len()].copy_from_slice(bytes);
        self.1 += bytes.len();
    }

    fn put_all(&mut self, numbers: impl IntoIterator<Item = u64>) {
        numbers.into_iter().for_each(|number| self.put(&number.to_le_bytes()));
    }

    fn sealed(mut self) -> [u8; RECORD_BYTES] {
        let check = checksum(&self.0[..CHECK_AT]);
        self.0[CHECK_AT..].copy_from_slice(&check.to_le_bytes());
        self.0
    }
}

/// Reads fields one after the other.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// The fields of a block, if it is whole and has this magic.
    fn of(block: &'a [u8; RECORD_BYTES], magic: [u8; 8]) -> Option<Self> {
        let is_whole = block[CHECK_AT..] == checksum(&block[..CHECK_AT]).to_le_bytes();
        (is_whole && block[..8] == magic).then(|| Reader(&block[8..CHECK_AT]))
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.0.split_at(N);
        self.0 = rest;
        head.try_into().expect("its length is N")
    }

    fn number(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn time(&mut self) -> [i64; 2] {
        [self.number() as i64, self.number() as i64]
    }
}

fn encode(record: &Record, state: u64) -> [u8; RECORD_BYTES] {
    let mut writer = Writer::new(RECORD_MAGIC);
    let (id, stamp) = (&record.id, &record.stamp);
    writer.put_all([state, id.device, id.inode]);
    writer.put_all([id.born, stamp.modified, stamp.changed].into_iter().flatten().map(|part| part as u64));
    writer.put_all([stamp.bytes, u64::from(record.is_distinct)]);
    writer.put_all(record.extents.0);
    writer.sealed()
}

/// A record and its state.
fn decode(block: &[u8; RECORD_BYTES]) -> Option<(u64, Record)> {
    let mut reader = Reader::of(block, RECORD_MAGIC)?;
    let state = reader.number();
    let (device, inode) = (reader.number(), reader.number());
    let (born, modified, changed) = (reader.time(), reader.time(), reader.time());
    let (bytes, is_distinct) = (reader.number(), reader.number() != 0);
    let extents = Extents(std::array::from_fn::<u64, EXTENTS_MAX, _>(|_| reader.number()));
    let id = FileId { device, inode, born };
    Some((state, Record { id, stamp: Stamp { bytes, modified, changed }, is_distinct, extents }))
}

impl Drop for FileMap {
    fn drop(&mut self) {
        // Closing is not enough if a forked child shares the open file.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

impl FileMap {
    /// Opens the map, creating it if needed, and locks it.
    ///
    /// # Errors
    /// `WouldBlock` if another process has it, `InvalidData` if the file is not a map; it is then
    /// left as it is.
    pub fn open(path: &Path, owner: Owner) -> io::Result<Found> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK).open(path)?;
        let foreign = || io::Error::new(io::ErrorKind::InvalidData, "it is not a map; left as it is");
        if !file.metadata()?.is_file() {
            return Err(foreign());
        }
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let length = file.metadata()?.len();
        let mut magic = [0; 8];
        if length > 0 && (file.read_exact_at(&mut magic, 0).is_err() || magic != MAGIC) {
            return Err(foreign());
        }
        let mut map =
            FileMap { file, owner, identity: [0; 16], session: 0, next: 0, free: Vec::new(), slots: 0 };
        let mut in_doubt = HashMap::new();
        let (records, anew) = match map.load(length, &mut in_doubt) {
            Ok(records) => (records, None),
            Err(reason) => {
                map.begin_anew(&mut in_doubt)?;
                (HashMap::new(), (length > 0).then_some(reason))
            }
        };
        let gaps = map.gaps(&records);
        Ok(Found { map, records, gaps, in_doubt, anew })
    }

    /// Reads the map; the error says why it must start anew.
    fn load(
        &mut self,
        length: u64,
        in_doubt: &mut HashMap<FileId, u32>,
    ) -> Result<HashMap<FileId, (u32, Record)>, &'static str> {
        let mut block = [0; RECORD_BYTES];
        self.file.read_exact_at(&mut block, 0).map_err(|_| "the map is truncated")?;
        let mut header = Reader::of(&block, MAGIC).ok_or("the map is damaged")?;
        let owner = Owner {
            power_cycle: header.take(),
            device: header.number(),
            inode: header.number(),
            block_bytes: header.number(),
        };
        (self.identity, self.session, self.next) = (header.take(), header.number(), header.number());
        if owner.power_cycle != self.owner.power_cycle {
            return Err("the machine was restarted");
        }
        let slots = length.saturating_sub(RECORDS_START) / RECORD_BYTES as u64;
        self.slots = u32::try_from(slots).unwrap_or(u32::MAX).min(FILES_MAX);
        for slot in 0..self.slots {
            self.file.read_exact_at(&mut block, at(slot)).map_err(|_| "the map cannot be read")?;
            if let Some((IN_DOUBT, record)) = decode(&block) {
                in_doubt.insert(record.id, slot);
            }
        }
        if owner.block_bytes != self.owner.block_bytes {
            return Err("it has blocks of another size");
        }
        if owner != self.owner {
            return Err("it belongs to another directory");
        }
        if self.session == 0 {
            return Err("the cache was out of service");
        }
        let mut records = HashMap::new();
        for slot in 0..self.slots {
            self.file.read_exact_at(&mut block, at(slot)).map_err(|_| "the map cannot be read")?;
            match decode(&block) {
                Some((CLEAN, record)) => {
                    if records.insert(record.id, (slot, record)).is_some() {
                        return Err("two records are of one file");
                    }
                }
                // It keeps its slot.
                Some((IN_DOUBT, _)) => {}
                _ => self.free.push(slot),
            }
        }
        let mut ranges: Vec<_> = records.values().flat_map(|(_, record)| record.extents.ranges()).collect();
        ranges.sort_unstable();
        let mut before = 0;
        for (address, bytes) in ranges {
            if address < before || address % FIRST_BYTES != 0 || address > self.next.saturating_sub(bytes) {
                return Err("records share addresses");
            }
            before = address + bytes;
        }
        Ok(records)
    }

    fn gaps(&self, records: &HashMap<FileId, (u32, Record)>) -> Vec<(u64, u64)> {
        let mut ranges: Vec<_> = records.values().flat_map(|(_, record)| record.extents.ranges()).collect();
        ranges.sort_unstable();
        ranges.push((self.next, 0));
        let (mut gaps, mut before) = (Vec::new(), 0);
        for (address, bytes) in ranges {
            if address > before {
                gaps.push((before, address - before));
            }
            before = address + bytes;
        }
        gaps
    }

    /// Forgets all files but those in doubt, under a new identity.
    pub fn begin_anew(&mut self, in_doubt: &mut HashMap<FileId, u32>) -> io::Result<()> {
        SysRng.try_fill_bytes(&mut self.identity).map_err(io::Error::other)?;
        (self.session, self.next, self.slots) = (0, 0, 0);
        self.free.clear();
        self.file.set_len(0)?;
        self.write_header()?;
        for (&file, slot) in in_doubt {
            *slot = self.take_slot().ok_or_else(|| io::Error::other("too many files are in doubt"))?;
            self.write_in_doubt(*slot, file)?;
        }
        Ok(())
    }

    pub fn write_header(&self) -> io::Result<()> {
        let mut writer = Writer::new(MAGIC);
        writer.put(&self.owner.power_cycle);
        writer.put_all([self.owner.device, self.owner.inode, self.owner.block_bytes]);
        writer.put(&self.identity);
        writer.put_all([self.session, self.next]);
        self.put(&writer.sealed(), 0)
    }

    fn put(&self, block: &[u8; RECORD_BYTES], at: u64) -> io::Result<()> {
        #[cfg(test)]
        if kill::is_dead() {
            return Ok(());
        }
        self.file.write_all_at(block, at)
    }

    /// Takes unused addresses; `None` if there are none below `end`.
    ///
    /// The header says so before they are used.
    pub fn take_addresses(&mut self, bytes: u64, end: u64) -> io::Result<Option<u64>> {
        let address = self.next;
        if address.checked_add(bytes).is_none_or(|after| after > end) {
            return Ok(None);
        }
        self.next += bytes;
        self.write_header()?;
        Ok(Some(address))
    }

    /// Takes a slot for a record; `None` if there are too many files.
    pub fn take_slot(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let slot = (self.slots < FILES_MAX).then_some(self.slots)?;
            self.slots += 1;
            Some(slot)
        })
    }

    /// Records a file that is not being written.
    pub fn write_clean(&self, slot: u32, record: &Record) -> io::Result<()> {
        self.put(&encode(record, CLEAN), at(slot))
    }

    /// Records that a file is being written: its blocks count only after the next clean record.
    pub fn write_writing(&self, slot: u32, record: &Record) -> io::Result<()> {
        self.put(&encode(record, WRITING), at(slot))
    }

    /// Records that a sync of a file failed; the slot is used up.
    pub fn write_in_doubt(&self, slot: u32, id: FileId) -> io::Result<()> {
        let (stamp, extents) = (Stamp::default(), Extents::default());
        self.put(&encode(&Record { id, stamp, is_distinct: false, extents }, IN_DOUBT), at(slot))
    }

    /// Removes a record.
    pub fn erase(&mut self, slot: u32) -> io::Result<()> {
        self.put(&[0; RECORD_BYTES], at(slot))?;
        self.free.push(slot);
        Ok(())
    }
}

fn at(slot: u32) -> u64 {
    RECORDS_START + u64::from(slot) * RECORD_BYTES as u64
}

/// A kill of the process, as the map sees it: its writes end.
#[cfg(test)]
pub(crate) mod kill {
    use std::cell::Cell;

    thread_local! {
        static WRITES_LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
        static ENDS_ALL: Cell<bool> = const { Cell::new(false) };
    }

    /// Lets this thread write the map `writes` more times; `u64::MAX` means for ever.
    pub fn after(writes: u64) {
        WRITES_LEFT.set(writes);
        ENDS_ALL.set(false);
    }

    /// Lets this thread write map, cache and files `writes` more times in all.
    pub fn all_after(writes: u64) {
        WRITES_LEFT.set(writes);
        ENDS_ALL.set(true);
    }

    /// Whether a write of cache or file comes too late.
    pub fn is_all_dead() -> bool {
        ENDS_ALL.get() && is_dead()
    }

    pub fn is_dead() -> bool {
        let left = WRITES_LEFT.get();
        WRITES_LEFT.set(if left == u64::MAX { left } else { left.saturating_sub(1) });
        left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner = Owner { power_cycle: [3; 16], device: 1, inode: 2, block_bytes: 4096 };

    fn record(inode: u64, address: u64) -> Record {
        let mut extents = Extents::default();
        extents.0[0] = address;
        let id = FileId { device: 1, inode, born: [5, 6] };
        let stamp = Stamp { bytes: 70_000, modified: [-7, 8], changed: [9, 10] };
        Record { id, stamp, is_distinct: true, extents }
    }

    /// A map with two files in a temporary directory.
    fn two_files() -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("map");
        let mut map = FileMap::open(&path, OWNER).expect("a new map").map;
        map.session = 11;
        for inode in [20, 21] {
            let address = map.take_addresses(FIRST_BYTES, 1 << 40).expect("written").expect("room");
            let slot = map.take_slot().expect("room");
            map.write_clean(slot, &record(inode, address)).expect("written");
        }
        (folder, path)
    }

    #[test]
    fn records_return_unless_the_file_is_being_written() {
        let (_folder, path) = two_files();
        let found = FileMap::open(&path, OWNER).expect("a map");
        assert_eq!((found.records.len(), found.anew, found.map.session), (2, None, 11));
        assert!(found.gaps.is_empty());
        let (slot, first) = found.records[&record(20, 0).id];
        assert_eq!(first, record(20, 0));
        found.map.write_writing(slot, &first).expect("written");
        drop(found);
        let found = FileMap::open(&path, OWNER).expect("a map");
        assert_eq!((found.records.len(), found.gaps), (1, vec![(0, FIRST_BYTES)]));
    }

    #[test]
    fn a_map_of_something_else_starts_anew() {
        let others = [
            Owner { power_cycle: [4; 16], ..OWNER },
            Owner { inode: 9, ..OWNER },
            Owner { block_bytes: 8192, ..OWNER },
        ];
        for other in others {
            let (_folder, path) = two_files();
            let before = FileMap::open(&path, OWNER).expect("a map").map.identity;
            let found = FileMap::open(&path, other).expect("a map");
            assert!(found.records.is_empty() && found.anew.is_some());
            assert_ne!(found.map.identity, before);
        }
    }

    #[test]
    fn no_flipped_bit_is_believed() {
        let (_folder, path) = two_files();
        let whole = std::fs::read(&path).expect("the map");
        for byte in (0..RECORD_BYTES).chain(4096..4096 + RECORD_BYTES) {
            let mut bytes = whole.clone();
            bytes[byte] ^= 1 << (byte % 8);
            std::fs::write(&path, &bytes).expect("the map");
            match FileMap::open(&path, OWNER) {
                Ok(found) if byte < 8 => panic!("a foreign file became {found:?}"),
                Ok(found) => assert!(found.records.len() < 2, "byte {byte}"),
                Err(error) => assert!(byte < 8, "byte {byte}: {error}"),
            }
        }
    }

    #[test]
    fn hostile_maps_are_refused_or_start_anew() {
        let (_folder, path) = two_files();
        let whole = std::fs::read(&path).expect("the map");
        for length in [0, 1, 8, 511, 512, 4096, 4097, 4608] {
            std::fs::write(&path, &whole[..length]).expect("the map");
            let is_whole = FileMap::open(&path, OWNER).map(|found| found.records.len());
            assert!(is_whole.is_err() == (1..8).contains(&length) && is_whole.unwrap_or(0) < 2, "{length}");
        }
        // Two files at one address, an address beyond the end, and an odd one.
        for address in [0, 2 * FIRST_BYTES, u64::MAX - 1, 4096] {
            std::fs::write(&path, &whole).expect("the map");
            let found = FileMap::open(&path, OWNER).expect("a map");
            let slot = found.records[&record(21, 0).id].0;
            found.map.write_clean(slot, &record(21, address)).expect("written");
            drop(found);
            let found = FileMap::open(&path, OWNER).expect("a map");
            assert!(found.records.is_empty() && found.anew.is_some(), "{address}");
        }
        std::fs::write(&path, "somebody's notes").expect("a file");
        assert_eq!(FileMap::open(&path, OWNER).expect_err("foreign").kind(), io::ErrorKind::InvalidData);
        assert_eq!(std::fs::read(&path).expect("the file"), b"somebody's notes");
    }

    #[test]
    fn one_process_has_the_map_and_only_its_user_reads_it() {
        use std::os::unix::fs::PermissionsExt;
        let (_folder, path) = two_files();
        let _first = FileMap::open(&path, OWNER).expect("a map");
        assert_eq!(FileMap::open(&path, OWNER).expect_err("in use").kind(), io::ErrorKind::WouldBlock);
        assert_eq!(std::fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
    }
}
