//! Tests of the cache over a file in memory, and of its planted bugs.
//!
//! A directed script of each bug must fail with it and pass without.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace_io::{BlockDevice, DecoratedDirectory, Decorator, FileDirectory, Write};

use super::*;
use crate::links::Links;
use crate::map::{Owner, kill};
use crate::planted::plant;
use crate::stamp::Stamp;

const BLOCK: usize = 4096;
const FILE: usize = 32 * BLOCK;

/// A file in memory with a clock of its own.
#[derive(Debug)]
struct MemoryFile(Mutex<Content>);

#[derive(Debug)]
struct Content {
    bytes: Vec<u8>,
    stamp: Stamp,
    now: i64,
    /// Whole writes before one that stores half of its bytes and fails.
    writes_left: Option<usize>,
    /// Bytes from here on cannot be read.
    fails_from: Option<usize>,
    /// The next read says that it has begun, and waits.
    gate: Option<(Sender<()>, Receiver<()>)>,
}

impl MemoryFile {
    fn new(bytes: Vec<u8>) -> Arc<MemoryFile> {
        let stamp = Stamp { bytes: bytes.len() as u64, modified: [100, 0], changed: [100, 0] };
        Arc::new(MemoryFile(Mutex::new(Content {
            bytes,
            stamp,
            now: 100,
            writes_left: None,
            fails_from: None,
            gate: None,
        })))
    }

    /// A change past the mount.
    fn change(&self, act: impl FnOnce(&mut Vec<u8>)) {
        let mut content = self.0.lock();
        content.tick();
        act(&mut content.bytes);
        content.stamp.bytes = content.bytes.len() as u64;
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.lock().bytes.clone()
    }
}

impl Content {
    fn tick(&mut self) {
        self.now += 1;
        (self.stamp.modified, self.stamp.changed) = ([self.now, 0], [self.now, 0]);
    }
}

impl Lower for MemoryFile {
    fn stamp(&self) -> io::Result<Stamp> {
        Ok(self.0.lock().stamp)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let gate = self.0.lock().gate.take();
        if let Some((begun, wait)) = gate {
            begun.send(()).expect("the test listens");
            wait.recv().expect("the test ends the wait");
        }
        let content = self.0.lock();
        if content.fails_from.is_some_and(|from| from < offset as usize + buffer.len()) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let rest = content.bytes.get(offset as usize..).unwrap_or(&[]);
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        if kill::is_all_dead() {
            return Ok(bytes.len());
        }
        let mut content = self.0.lock();
        content.tick();
        let fails = content.writes_left.as_mut().is_some_and(|left| {
            *left = left.wrapping_sub(1);
            *left == usize::MAX
        });
        let stored = if fails { &bytes[..bytes.len() / 2] } else { bytes };
        let end = offset as usize + stored.len();
        if content.bytes.len() < end {
            content.bytes.resize(end, 0);
            content.stamp.bytes = end as u64;
        }
        content.bytes[offset as usize..end].copy_from_slice(stored);
        if fails { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(bytes.len()) }
    }
}

/// The cache's file, which a killed process writes no more.
#[derive(Debug)]
struct Mortal(Arc<dyn BlockDevice>);

impl Decorator for Mortal {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.0
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if kill::is_all_dead() { Ok(()) } else { self.0.write_at(offset, bytes) }
    }

    fn write_batch(&self, writes: &[Write<'_>]) -> io::Result<()> {
        writes.iter().try_for_each(|write| Decorator::write_at(self, write.offset, write.bytes))
    }

    fn write_through_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if kill::is_all_dead() { Ok(()) } else { self.0.write_through_at(offset, bytes) }
    }
}

/// A cache in a directory, and one file.
struct Scene {
    folder: tempfile::TempDir,
    quiet: Duration,
    /// The files are of a server.
    is_far: bool,
    lower: Arc<MemoryFile>,
    state: Arc<FileState>,
    cache: Option<FileCache>,
}

fn state(id: FileId, name: &str) -> Arc<FileState> {
    FileState::new(id, Links::new(&Arc::default(), name.as_ref()))
}

impl Scene {
    fn new(quiet: Duration) -> Scene {
        let folder = tempfile::tempdir().expect("a directory");
        let lower = MemoryFile::new((0..FILE).map(|at| (at / 100) as u8).collect());
        let state = state(FileId::default(), "a.db");
        let mut scene = Scene { folder, quiet, is_far: false, lower, state, cache: None };
        scene.open();
        scene
    }

    fn open(&mut self) {
        let owner = Owner { power_cycle: [1; 16], device: 1, inode: 2, block_bytes: BLOCK as u64 };
        let found = FileMap::open(&self.folder.path().join("cache.map"), owner).expect("a map");
        let directory = Arc::new(FileDirectory::open(self.folder.path()).expect("a directory"));
        let directory = DecoratedDirectory::new(directory, |_, device| Arc::new(Mortal(device)));
        let config = CacheConfig::new(64).power_cycle(Some([1; 16]));
        let is_near = !self.is_far;
        let clockwork = Clockwork { quiet: self.quiet, is_fine: is_near, is_local: is_near };
        let counters = Arc::new(Counters::default());
        let cache = FileCache::open(found, &directory, "cache", config, clockwork, counters);
        self.cache = Some(cache.expect("a cache"));
        self.state = state(FileId { device: 1, inode: 3, born: [0; 2] }, "b.db");
    }

    /// Ends without a close, as after a kill, and opens again.
    fn kill(&mut self) {
        self.cache = None;
        kill::after(u64::MAX);
        self.open();
    }

    fn reopen(&mut self) {
        let cache = self.cache.take().expect("a cache");
        cache.forget(&self.state, false);
        cache.close().expect("closed");
        drop(cache);
        self.open();
    }

    fn cache(&self) -> &FileCache {
        self.cache.as_ref().expect("a cache")
    }

    fn lower(&self) -> Arc<dyn Lower> {
        Arc::clone(&self.lower) as Arc<dyn Lower>
    }

    fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let read = self.cache().read(&self.state, &self.lower(), offset as u64, length);
        read.expect("read").as_slice().to_vec()
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> io::Result<usize> {
        self.cache().write(&self.state, &self.lower(), offset as u64, bytes)
    }

    fn truncate(&self, bytes: usize) {
        let act = || {
            self.lower.change(|content| content.truncate(bytes));
            Ok(())
        };
        let range = (bytes as u64, u64::MAX);
        self.cache().change(&self.state, &*self.lower, range, act).expect("truncated");
    }

    /// Compares all bytes, twice so that the cache serves them.
    fn check(&self) {
        for _ in 0..2 {
            assert!(self.read(0, FILE + BLOCK) == self.lower.bytes(), "a read is stale");
        }
    }

    fn hits(&self) -> u64 {
        self.cache().stats().0.hits
    }
}

/// The script holds, and fails with the bug.
fn catches(bug: MountBug, script: impl Fn()) {
    script();
    plant(Some(bug));
    let caught = catch_unwind(AssertUnwindSafe(&script)).is_err();
    plant(None);
    kill::after(u64::MAX);
    assert!(caught, "{bug:?} was not caught");
}

const AT_ONCE: Duration = Duration::ZERO;

#[test]
fn blocks_are_served_from_the_cache_and_stay_over_a_close() {
    let mut scene = Scene::new(AT_ONCE);
    scene.check();
    assert!(scene.hits() >= 32);
    scene.write(BLOCK, &[5; 2 * BLOCK]).expect("written");
    scene.write(10, &[6; 20]).expect("written");
    scene.check();
    scene.reopen();
    let before = scene.hits();
    scene.read(0, FILE);
    assert!(scene.hits() >= before + 32, "it is not warm");
    scene.kill();
    scene.read(0, FILE);
    assert!(scene.hits() >= 31, "it is not warm after a kill");
    scene.check();
}

/// The clock of a file server may be wrong, so the mount must have seen that the file rests.
#[test]
fn a_file_of_a_server_is_warm_if_it_was_watched() {
    let mut scene = Scene::new(AT_ONCE);
    scene.is_far = true;
    for (seconds, is_warm) in [(0, false), (5, true), (0, false)] {
        scene.reopen();
        scene.check();
        let watched_since = Instant::now().checked_sub(Duration::from_secs(seconds));
        scene.state.lock().stamped = Some(watched_since.expect("the machine has run for seconds"));
        scene.reopen();
        let before = scene.hits();
        scene.read(0, FILE);
        assert_eq!(scene.hits() >= before + 31, is_warm, "watched for {seconds} s");
    }
}

#[test]
fn catches_no_check_at_read() {
    catches(MountBug::NoCheckAtRead, || {
        let scene = Scene::new(AT_ONCE);
        scene.check();
        scene.lower.change(|bytes| bytes[5000..6000].fill(77));
        scene.check();
    });
}

#[test]
fn catches_no_check_at_open() {
    catches(MountBug::NoCheckAtOpen, || {
        let mut scene = Scene::new(AT_ONCE);
        scene.check();
        scene.reopen();
        scene.lower.change(|bytes| bytes[5000..6000].fill(77));
        scene.check();
    });
}

/// A long write from outside sets the times at its beginning and goes on.
#[test]
fn catches_trust_young() {
    catches(MountBug::TrustYoung, || {
        let scene = Scene::new(Duration::from_secs(3600));
        // The file is old.
        scene.check();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        scene.lower.0.lock().now = now.as_secs() as i64;
        scene.lower.change(|bytes| bytes[0] = 1);
        scene.check();
        scene.lower.0.lock().bytes[9000] ^= 255;
        scene.check();
    });
}

#[test]
fn catches_forget_truncate() {
    catches(MountBug::ForgetTruncate, || {
        let scene = Scene::new(AT_ONCE);
        scene.check();
        scene.truncate(5 * BLOCK + 5);
        scene.check();
        scene.write(FILE - 1, &[1]).expect("written");
        scene.check();
    });
}

#[test]
fn catches_keep_failed_write() {
    catches(MountBug::KeepFailedWrite, || {
        let scene = Scene::new(AT_ONCE);
        scene.check();
        scene.lower.0.lock().writes_left = Some(0);
        assert!(scene.write(2 * BLOCK, &[9; 4 * BLOCK]).is_err());
        scene.lower.0.lock().writes_left = None;
        scene.check();
    });
}

/// A kill between any two writes of the map leaves it true.
#[test]
fn catches_record_before_drop() {
    catches(MountBug::RecordBeforeDrop, || {
        for writes in 0..6 {
            let mut scene = Scene::new(AT_ONCE);
            scene.check();
            scene.lower.change(|bytes| bytes[5000..6000].fill(77));
            kill::after(writes);
            scene.read(0, 10);
            scene.kill();
            scene.check();
        }
    });
}

/// The bytes that a failed fsync lost come back from the disk without a new time.
#[test]
fn catches_trust_failed_sync() {
    catches(MountBug::TrustFailedSync, || {
        let scene = Scene::new(AT_ONCE);
        scene.check();
        let before = scene.lower.bytes();
        scene.write(BLOCK, &[9; BLOCK]).expect("written");
        scene.cache().distrust(&scene.state);
        scene.lower.0.lock().bytes = before;
        scene.check();
    });
}

/// What the kernel shows after a failed sync may be lost, also when it looks like an old change.
#[test]
fn a_file_in_doubt_is_not_cached_until_the_machine_restarts() {
    let mut scene = Scene::new(AT_ONCE);
    scene.check();
    scene.cache().distrust(&scene.state);
    let is_cached = |scene: &Scene| {
        let before = scene.hits();
        scene.check();
        scene.hits() > before
    };
    assert!(!is_cached(&scene));
    scene.reopen();
    assert!(!is_cached(&scene), "a remount believes the file");
    scene.kill();
    assert!(!is_cached(&scene), "a remount after a kill believes the file");
}

/// A read that began before its extent was dropped fills it after maintenance has freed it.
#[test]
fn catches_reuse_filled() {
    catches(MountBug::ReuseFilled, || {
        let mut scene = Scene::new(AT_ONCE);
        scene.check();
        let address = scene.state.lock().extents.0[0];
        scene.lower.change(|content| content.fill(1));
        // The extent is dropped, and freed.
        scene.read(0, 10);
        scene.state.lock().extents = Extents::default();
        scene.cache().maintain();
        let lower = scene.lower();
        let mut late = AlignedBuffer::zeroed(FILE / BLOCK * BLOCK);
        let filled =
            through(Some(&lower), None, (0, address), || scene.cache().cached.read_at(address, &mut late));
        filled.0.expect("read");
        scene.lower.change(|content| content.fill(2));
        scene.read(0, 10);
        scene.state.lock().extents = Extents::default();
        scene.reopen();
        // Another file, perhaps at the address that was freed.
        scene.state = state(FileId { device: 1, inode: 4, born: [0; 2] }, "b.db");
        scene.check();
    });
}

/// A file whose extents are all gone leaves no second record, which would make the next start cold.
#[test]
fn a_file_without_extents_leaves_no_record() {
    let mut scene = Scene::new(AT_ONCE);
    let change = scene.cache().begin(&scene.state, &*scene.lower).expect("begun");
    // A read takes an extent in the middle of a write, whose end drops it.
    scene.read(0, FILE);
    scene.cache().finish(&scene.state, &*scene.lower, &change, Some((0, FILE as u64)));
    assert!(scene.state.lock().extents.is_empty());
    scene.cache().forget(&scene.state, false);
    scene.state = state(scene.state.id, "a.db");
    scene.check();
    scene.reopen();
    let before = scene.hits();
    scene.read(0, FILE);
    assert!(scene.hits() > before, "it is not warm");
}

#[test]
fn an_error_after_some_bytes_is_not_the_end_of_the_file() {
    let scene = Scene::new(AT_ONCE);
    scene.lower.0.lock().fails_from = Some(3 * BLOCK);
    let read = scene.cache().read(&scene.state, &scene.lower(), 0, FILE);
    assert_eq!(read.expect_err("a bad block").raw_os_error(), Some(libc::EIO));
    assert_eq!(scene.read(0, 2 * BLOCK), scene.lower.bytes()[..2 * BLOCK]);
}

/// Whether the cache had all bytes.
fn is_cached(scene: &Scene, offset: usize, length: usize) -> bool {
    let read = scene.cache().read(&scene.state, &scene.lower(), offset as u64, length);
    read.expect("read").is_cached
}

#[test]
fn a_read_to_the_end_of_a_cached_file_needs_only_the_cache() {
    let scene = Scene::new(AT_ONCE);
    assert!(!is_cached(&scene, 0, FILE + BLOCK));
    assert!(is_cached(&scene, 0, FILE + BLOCK) && is_cached(&scene, FILE - BLOCK, 3 * BLOCK));
    // The last block is not whole, so it is not cached.
    scene.lower.change(|bytes| bytes.push(1));
    assert!(!is_cached(&scene, 0, FILE + BLOCK));
    assert!(!is_cached(&scene, 0, FILE + BLOCK) && is_cached(&scene, 0, FILE));
}

/// Waits until a thread of this process sleeps.
fn wait_for_sleep(thread: rustix::process::Pid) {
    let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    let sleeps = || std::fs::read_to_string(&path).expect("a thread").contains(") S ");
    // Once may be the wait for a short lock.
    while !(0..10).all(|_| sleeps()) {
        std::thread::yield_now();
    }
}

#[test]
fn a_read_that_waits_for_the_same_blocks_is_not_one_of_the_cache() {
    let scene = Scene::new(AT_ONCE);
    let ((begun, has_begun), (release, wait)) = (channel(), channel());
    scene.lower.0.lock().gate = Some((begun, wait));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| is_cached(&scene, 0, 4 * BLOCK));
        has_begun.recv().expect("the first read");
        let (tell, thread) = channel();
        let scene = &scene;
        let second = scope.spawn(move || {
            tell.send(rustix::thread::gettid()).expect("the test listens");
            is_cached(scene, 0, 4 * BLOCK)
        });
        wait_for_sleep(thread.recv().expect("the second read"));
        release.send(()).expect("the first read waits");
        assert!(!first.join().expect("read") && !second.join().expect("read"));
    });
    // The wait was for the first one, not for the file.
    assert!(is_cached(&scene, 0, 4 * BLOCK));
    assert_eq!(scene.cache().stats().0.misses, 4);
}

/// A relation without cached files gives its number back, and is counted on if it returns.
#[test]
fn files_without_cached_blocks_hold_no_number() {
    let scene = Scene::new(AT_ONCE);
    let cache = scene.cache();
    let held = || cache.space.relations.numbers_with_files();
    let ends: [&dyn Fn(&FileState); 5] = [
        &|file| cache.forget(file, false),
        &|file| cache.distrust(file),
        // A change past the mount; a read behind the last block takes no extent.
        &|file| {
            scene.lower.change(|bytes| bytes[0] += 1);
            cache.read(file, &scene.lower(), FILE as u64, 1).expect("read");
        },
        // The last extent goes at the end of a change.
        &|file| {
            let change = cache.begin(file, &*scene.lower).expect("begun");
            file.lock().extents = Extents::default();
            cache.finish(file, &*scene.lower, &change, None);
        },
        &|file| cache.forget(file, true),
    ];
    for (number, end) in ends.iter().enumerate() {
        let file = state(FileId { device: 1, inode: 50 + number as u64, born: [0; 2] }, "a.db");
        cache.read(&file, &scene.lower(), 0, BLOCK).expect("read");
        assert_eq!(held(), 1, "{number}");
        // Another name is another relation.
        file.links.renamed(None, (&Arc::default(), "b.db".as_ref()));
        cache.renamed(&file);
        assert_eq!(held(), 1, "{number}");
        end(&file);
        assert_eq!(held(), 0, "{number}");
    }
    let relations = cache.relation_stats();
    assert_eq!((relations.len(), &*relations[0].0, relations[0].1.misses), (1, "a.db", 5));
}

/// A new name of a file that is not cached takes no number.
#[test]
fn an_uncached_file_takes_no_number_when_it_is_renamed() {
    let scene = Scene::new(AT_ONCE);
    scene.cache().renamed(&scene.state);
    assert_eq!(scene.cache().space.relations.numbers_with_files(), 0);
}

/// The cache counts 4096 numbers, one of which is that of no relation.
#[test]
fn more_relations_than_numbers_are_counted_as_others() {
    let scene = Scene::new(AT_ONCE);
    let (lower, mut block) = (scene.lower(), AlignedBuffer::zeroed(BLOCK));
    let read = through(Some(&lower), None, (0, 1 << 40), || {
        scene.cache().cached.read_at(1 << 40, &mut block).expect("read");
    });
    assert!(read.1.was_read);
    for inode in 100..4200 {
        let file = state(FileId { device: 1, inode, born: [0; 2] }, &format!("{inode}.db"));
        scene.cache().read(&file, &scene.lower(), 0, BLOCK).expect("read");
    }
    let relations = scene.cache().relation_stats();
    let others = relations.iter().find(|(name, _)| &**name == "(others)").expect("others");
    assert_eq!((others.1.misses, relations.len()), (6, 4095));
    assert!(relations.iter().all(|(name, stats)| stats.misses == 1 || &**name == "(others)"));
}

/// A kill in the middle of a write, within one tick of the clock.
#[test]
fn catches_no_writing_record() {
    catches(MountBug::NoWritingRecord, || {
        let mut scene = Scene::new(AT_ONCE);
        scene.check();
        let change = scene.cache().begin(&scene.state, &*scene.lower).expect("begun");
        assert!(change.is_trusted);
        // Without an end, as after a kill.
        std::mem::forget(change);
        scene.lower.0.lock().bytes[5000..6000].fill(77);
        scene.kill();
        scene.check();
    });
}

#[test]
fn catches_keep_partly_written() {
    catches(MountBug::KeepPartlyWritten, || {
        let scene = Scene::new(AT_ONCE);
        scene.check();
        scene.write(5000, &[9; 100]).expect("written");
        scene.check();
    });
}

/// Random reads and changes through and past the mount, closes and kills at any write.
#[test]
fn random_lives_serve_no_stale_byte() {
    let seed = std::env::var("TERRACE_SEED")
        .map_or_else(|_| rand::rng().random(), |seed| seed.parse().expect("a seed"));
    println!("TERRACE_SEED={seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    for _ in 0..20 {
        let mut scene = Scene::new(AT_ONCE);
        for step in 0..60 {
            let offset = random.random_range(0..FILE - 3 * BLOCK);
            let aligned = offset / BLOCK * BLOCK;
            match random.random_range(0..9) {
                0..3 => {
                    let length = random.random_range(1..3 * BLOCK);
                    let expected = scene.lower.bytes();
                    let end = (offset + length).min(expected.len());
                    let expected = expected.get(offset..end).unwrap_or(&[]);
                    assert!(scene.read(offset, length) == expected, "step {step}");
                }
                3 => drop(scene.write(aligned, &[step as u8; 3 * BLOCK]).expect("written")),
                4 => {
                    let length = random.random_range(1..2 * BLOCK);
                    scene.write(offset, &vec![step as u8; length]).expect("written");
                }
                5 => scene.lower.change(|bytes| bytes.resize(FILE, 3)),
                6 => scene.truncate(random.random_range(0..FILE)),
                7 => scene.reopen(),
                _ => {
                    kill::all_after(random.random_range(0..16));
                    scene.write(aligned, &[step as u8; BLOCK]).expect("written");
                    scene.kill();
                }
            }
        }
        scene.check();
    }
}
