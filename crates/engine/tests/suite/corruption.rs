//! Damage in the files is found or has no effect: never a wrong answer, never a panic.
//!
//! A small database is damaged at one offset, opened and read. Checkpointed content must be right
//! or an error must name the fault. Changes that only the log has may be missing from some point
//! on, as after a power cut, because a damaged last record looks like an unfinished one. But the
//! content is the state after a whole commit, not older than the superblock's end of the log.
//!
//! `TERRACE_FLIP_STRIDE` is the distance of damaged bytes; 1 damages every byte. Sectors that are
//! not read when the undamaged database is opened, read and verified are skipped, except for a
//! sample: the engine runs inline and repeats the same reads. The cases share unchanged bytes and
//! run on all processors.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use terrace::{Compression, Db, Error, Mode, Result, SimulatedDisk};
use terrace_io::{AlignedBuffer, BlockDevice, DecoratedDirectory, Directory, OpenMode};

use super::common;

const PAGES: &str = "pages.terrace";
const LOG: &str = "log.terrace";
const PAGE_BYTES: usize = 4096;
const SECTOR_BYTES: usize = 512;
/// Of bytes in unread sectors, one in this many is damaged too.
const UNREAD_STRIDE: usize = 1009;

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// The two files.
#[derive(Clone)]
struct Files([Vec<u8>; 2]);

impl Files {
    fn of(disk: &SimulatedDisk) -> Files {
        Files([PAGES, LOG].map(|file| {
            let device = disk.open(file, OpenMode::Read).unwrap();
            let mut bytes = AlignedBuffer::zeroed(device.len() as usize);
            device.read_at(0, &mut bytes).unwrap();
            bytes.to_vec()
        }))
    }

    /// A disk with the files, all durable.
    fn disk(&self) -> SimulatedDisk {
        let disk = SimulatedDisk::new(1);
        for (file, content) in [PAGES, LOG].into_iter().zip(&self.0) {
            let device = disk.open(file, OpenMode::CreateNew).unwrap();
            device.set_len(content.len() as u64).unwrap();
            write(&*device, 0, content);
            device.sync().unwrap();
        }
        disk.sync().unwrap();
        disk.survivor(1)
    }

    /// Opens and reads the files after `damage`, and judges the result; returns whether it was
    /// found.
    fn is_found(&self, allowed: &[Content], damage: impl FnOnce(&mut Files)) -> bool {
        let mut damaged = self.clone();
        damage(&mut damaged);
        is_found(Arc::new(damaged.disk()), allowed)
    }

    /// Changes every `stride`th byte of `file` in three ways.
    fn flip_all(&self, allowed: &[Content], file: usize, stride: usize) {
        let (disk, name, content) = (self.disk(), [PAGES, LOG][file], &self.0[file]);
        let read = sectors_read(&disk, allowed, name);
        let (cases, found, unread) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let flip = |at: usize| {
            let old = content[at];
            if !read.contains(&(at / SECTOR_BYTES)) && !(at / stride).is_multiple_of(UNREAD_STRIDE) {
                unread.fetch_add(1, Ordering::Relaxed);
                return;
            }
            // The bits in turn, so that every stride covers all of them.
            let flipped = old ^ 1 << (at / stride % 8);
            for new in [flipped, 0x00, 0xff].into_iter().filter(|&new| new != old) {
                let _case = Case { name, at, new };
                let disk = disk.killed();
                let device = disk.open(name, OpenMode::Write).unwrap();
                let sector = at / SECTOR_BYTES * SECTOR_BYTES;
                let mut bytes = content[sector..sector + SECTOR_BYTES].to_vec();
                bytes[at - sector] = new;
                write(&*device, sector as u64, &bytes);
                cases.fetch_add(1, Ordering::Relaxed);
                found.fetch_add(u64::from(is_found(Arc::new(disk), allowed)), Ordering::Relaxed);
            }
        };
        let workers = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            for worker in 0..workers {
                let flip = &flip;
                scope.spawn(move || {
                    (worker * stride..content.len()).step_by(workers * stride).for_each(flip);
                });
            }
        });
        let (cases, found) = (cases.into_inner(), found.into_inner());
        println!(
            "{name}: {} bytes, one in {stride}: {cases} changes, {found} found, the others without effect; {} \
             bytes that nothing reads left alone",
            content.len(),
            unread.into_inner()
        );
        assert!(found > 0);
    }
}

/// Names the current change if a test panics.
struct Case {
    name: &'static str,
    at: usize,
    new: u8,
}

impl Drop for Case {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("failed with byte {} of {} as {:#04x}", self.at, self.name, self.new);
        }
    }
}

/// Notes the sectors read from a device.
#[derive(Debug)]
struct Watched {
    device: Arc<dyn BlockDevice>,
    sectors: Arc<Mutex<BTreeSet<usize>>>,
}

impl BlockDevice for Watched {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn len(&self) -> u64 {
        self.device.len()
    }

    fn alignment(&self) -> usize {
        self.device.alignment()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let first = offset as usize / SECTOR_BYTES;
        self.sectors.lock().unwrap().extend(first..first + buffer.len() / SECTOR_BYTES);
        self.device.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.device.write_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.device.sync()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.device.set_len(bytes)
    }
}

/// Sectors of the file `name` that are read without damage.
fn sectors_read(disk: &SimulatedDisk, allowed: &[Content], name: &'static str) -> BTreeSet<usize> {
    let sectors = Arc::new(Mutex::new(BTreeSet::new()));
    let watched = DecoratedDirectory::new(Arc::new(disk.killed()), {
        let sectors = Arc::clone(&sectors);
        move |file, device| match file == name {
            true => Arc::new(Watched { device, sectors: Arc::clone(&sectors) }),
            false => device,
        }
    });
    assert!(!is_found(Arc::new(watched), allowed));
    let sectors = sectors.lock().unwrap();
    sectors.clone()
}

/// All entries of the database, or an error.
fn read(db: &Db) -> Result<Content> {
    let table = db.open_table("t")?;
    let found: Content = table.iter().collect::<Result<_>>()?;
    for (key, value) in &found {
        assert_eq!(table.get(key)?.as_ref(), Some(value), "a scan and a look-up differ");
    }
    Ok(found)
}

/// Opens, reads and verifies `directory`, and judges the result; returns whether damage was found.
fn is_found(directory: Arc<dyn Directory>, allowed: &[Content]) -> bool {
    let is_damage = |error: &Error| {
        matches!(error, Error::Corrupt { .. } | Error::NotADatabase { .. } | Error::Version { .. })
    };
    let db = match open(directory, 1) {
        Ok(db) => db,
        Err(error) if is_damage(&error) => return true,
        Err(error) => panic!("damage is reported as: {error}"),
    };
    let content = read(&db);
    let clean = match db.verify() {
        Ok(report) => report.errors.is_empty(),
        Err(error) if is_damage(&error) => false,
        Err(error) => panic!("verification ends with: {error}"),
    };
    match content {
        Ok(found) => {
            assert!(allowed.contains(&found), "{} entries, of no state there was", found.len());
            !clean
        }
        Err(Error::TableNotFound(_)) if allowed.iter().any(Content::is_empty) => !clean,
        Err(error) if is_damage(&error) => {
            assert!(!clean, "verification does not see what reading does: {error}");
            true
        }
        Err(error) => panic!("damage is reported as: {error}"),
    }
}

fn write(device: &dyn BlockDevice, at: u64, content: &[u8]) {
    let mut bytes = AlignedBuffer::zeroed(content.len());
    bytes.copy_from_slice(content);
    device.write_at(at, &bytes).unwrap();
}

fn open(directory: Arc<dyn Directory>, seed: u64) -> Result<Db> {
    let builder = common::builder().directory(directory).dram(2 << 20).page_size(PAGE_BYTES as u64);
    builder.log_max(256 << 10).mode(Mode::Inline).seed(seed).open("")
}

/// A closed database and its content.
fn closed(seed: u64) -> (Files, Content) {
    let disk = SimulatedDisk::new(1);
    let db = open(Arc::new(disk.clone()), seed).unwrap();
    filled(disk, db, seed)
}

/// A closed database with larger, mostly compressed pages.
fn compressed() -> (Files, Content) {
    let disk = SimulatedDisk::new(1);
    let builder = common::builder().directory(Arc::new(disk.clone())).dram(2 << 20).page_size(8192);
    let builder = builder.log_max(512 << 10).mode(Mode::Inline).seed(1).compression(Compression::Lz4);
    let (files, content) = filled(disk, builder.open("").unwrap(), 1);
    // The damage hits compressed bytes.
    let is_compressed = |head: &[u8]| head[4] & 0x80 != 0 && (1..=4).contains(&(head[4] & 0x7f));
    let images = files.0[0][32 << 10..].chunks(4096).filter(|head| is_compressed(head)).count();
    assert!(images >= 4, "{images} compressed images");
    (files, content)
}

fn filled(disk: SimulatedDisk, db: Db, seed: u64) -> (Files, Content) {
    let table = db.create_table("t").unwrap();
    let mut content = Content::new();
    for number in 0..200u32 {
        let value = vec![number as u8 ^ seed as u8; if number == 77 { 9000 } else { 60 }];
        table.put(number.to_be_bytes(), &value).unwrap();
        content.insert(number.to_be_bytes().to_vec(), value);
    }
    db.close().unwrap();
    (Files::of(&disk), content)
}

/// A database that was checkpointed, changed and killed; its states from the checkpoint on.
fn killed() -> (Files, Vec<Content>) {
    let (files, mut content) = closed(1);
    let disk = files.disk();
    let db = open(Arc::new(disk.clone()), 1).unwrap();
    let table = db.open_table("t").unwrap();
    let mut states = vec![content.clone()];
    for number in 0..40u32 {
        let (key, value) = ((number * 5).to_be_bytes(), vec![number as u8; 100]);
        table.put(key, &value).unwrap();
        content.insert(key.to_vec(), value);
        states.push(content.clone());
    }
    let files = Files::of(&disk);
    assert!(!is_found(Arc::new(files.disk()), &[content]));
    (files, states)
}

fn stride(default: usize) -> usize {
    std::env::var("TERRACE_FLIP_STRIDE").map_or(default, |text| text.parse().unwrap())
}

#[test]
fn no_changed_byte_of_the_page_file_goes_wrong() {
    let (files, content) = closed(1);
    files.flip_all(&[content], 0, stride(1021));
}

#[test]
fn no_changed_byte_of_compressed_images_goes_wrong() {
    let (files, content) = compressed();
    files.flip_all(&[content], 0, stride(509));
}

#[test]
fn no_changed_byte_of_the_log_goes_wrong() {
    let (files, states) = killed();
    files.flip_all(&states, 1, stride(251));
    files.flip_all(&states, 0, stride(2039));
}

#[test]
fn swapped_pages_are_found() {
    let (files, content) = closed(1);
    let pages: Vec<usize> = (32 << 10..files.0[0].len()).step_by(PAGE_BYTES).collect();
    let used = |at: &usize| files.0[0][*at..*at + PAGE_BYTES].iter().any(|&byte| byte != 0);
    let pages: Vec<usize> = pages.into_iter().filter(used).collect();
    let mut found = 0;
    for pair in pages.windows(2) {
        found += usize::from(files.is_found(std::slice::from_ref(&content), |files| {
            let (low, high) = files.0[0].split_at_mut(pair[1]);
            low[pair[0]..pair[0] + PAGE_BYTES].swap_with_slice(&mut high[..PAGE_BYTES]);
        }));
    }
    println!("{found} of {} swaps", pages.len() - 1);
    assert!(found > 5);
}

#[test]
fn a_write_that_was_lost_is_found() {
    let disk = closed(1).0.disk();
    let db = open(Arc::new(disk.clone()), 1).unwrap();
    let table = db.open_table("t").unwrap();
    let mut olds = Vec::new();
    for round in 0..120u8 {
        for number in 0..200u32 {
            table.put(number.to_be_bytes(), [round; 60]).unwrap();
        }
        db.checkpoint().unwrap();
        olds.push(Files::of(&disk));
    }
    let content: Content = table.iter().collect::<Result<_>>().unwrap();
    drop(table);
    db.close().unwrap();
    let new = Files::of(&disk);
    let (mut tried, mut found) = (0, 0);
    for at in (32 << 10..olds[0].0[0].len()).step_by(PAGE_BYTES) {
        let page = at..at + PAGE_BYTES;
        // The previous content of the block.
        let stale =
            olds.iter().rev().map(|old| &old.0[0][page.clone()]).find(|old| **old != new.0[0][page.clone()]);
        let Some(stale) = stale else { continue };
        tried += 1;
        found += usize::from(new.is_found(std::slice::from_ref(&content), |files| {
            files.0[0][page].copy_from_slice(stale);
        }));
    }
    println!("{found} of {tried} stale images are of pages in use");
    assert!(found > 3);
}

#[test]
fn short_files_are_refused() {
    let (files, states) = killed();
    for file in [0, 1] {
        let whole = files.0[file].len();
        for left in [0, 4096, 16 << 10, 32 << 10, whole / 2, whole - PAGE_BYTES] {
            let found = files.is_found(&[], |files| files.0[file].truncate(left));
            assert!(found, "{left} of {whole} bytes of file {file}");
        }
    }
    assert!(!files.is_found(&states[40..], |_| {}));
}

#[test]
fn the_files_of_another_database_are_refused() {
    let ((one, content), (two, other)) = (closed(1), closed(2));
    assert_ne!(content, other);
    assert!(one.is_found(&[], |files| files.0[1] = two.0[1].clone()));
    assert!(one.is_found(&[], |files| files.0[0] = two.0[0].clone()));
}

/// Each finding was compared with all earlier ones, and all were kept.
#[test]
fn of_much_damage_the_first_findings_are_kept_and_the_rest_is_counted() {
    const LEAVES: u32 = 1500;
    let disk = SimulatedDisk::new(1);
    let builder = || {
        let builder =
            common::builder().directory(Arc::new(disk.clone())).dram(4 << 20).page_size(PAGE_BYTES as u64);
        builder.mode(Mode::Inline).durability(terrace::Durability::Buffered)
    };
    let db = builder().open("").unwrap();
    let table = db.create_table("t").unwrap();
    // Three entries per leaf.
    (0..LEAVES * 3).for_each(|number| table.put(number.to_be_bytes(), [number as u8; 1200]).unwrap());
    drop(table);
    db.close().unwrap();
    let device = disk.open(PAGES, OpenMode::Write).unwrap();
    let mut bytes = AlignedBuffer::zeroed(device.len() as usize);
    device.read_at(0, &mut bytes).unwrap();
    let mut damaged = BTreeSet::new();
    for image in bytes.chunks_exact_mut(PAGE_BYTES).skip(8) {
        let (kind, id) = (image[4], u64::from_le_bytes(image[8..16].try_into().unwrap()));
        // Leaves, except those of the database itself.
        if kind == 1 && id > 4 {
            image[2048..2560].fill(0);
            damaged.insert(id);
        }
    }
    device.write_at(0, &bytes).unwrap();
    let report = builder().open("").unwrap().verify().unwrap();
    let named: BTreeSet<u64> = report.errors.iter().filter_map(|damage| damage.page).collect();
    assert_eq!((report.errors.len(), named.len()), (1000, 1000), "no page twice");
    assert!(named.is_subset(&damaged) && !report.is_ok());
    // Some images are outdated: their pages were written again elsewhere.
    let found = report.errors.len() as u64 + report.more_errors;
    assert!(
        (u64::from(LEAVES) - 100..=damaged.len() as u64).contains(&found),
        "{found} of {}",
        damaged.len()
    );
}
