//! Pages and guards of other structures, over memory that is many times too small.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace::pages::{PageAllocator, PageRef, PagesStats};
use terrace::{Directory, Error, MemoryDirectory, Mode, SimulatedDisk};
use terrace_io::{CallKind, FaultPlan, OpenMode};

use super::common;

pub const SIZES: [u64; 2] = [4 << 10, 16 << 10];
pub const BUDGET: u64 = 2 << 20;

fn open_on(directory: Arc<dyn Directory>, mode: Mode) -> PageAllocator {
    let builder = common::pages_builder().dram(BUDGET).page_sizes(&SIZES).mode(mode).directory(directory);
    builder.open("pages").unwrap()
}

fn open(mode: Mode) -> PageAllocator {
    open_on(Arc::new(MemoryDirectory::new()), mode)
}

fn is_missing<T>(outcome: Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::PageNotFound { .. }))
}

/// Memory in `stats`, bytes.
pub fn accounted(stats: &PagesStats) -> u64 {
    stats.frame_classes.iter().map(|class| class.bytes).sum::<u64>() + stats.table_bytes + stats.log_bytes
}

/// Fills a page with numbers that follow from `seed`.
fn fill(words: &[AtomicU64], seed: u64) {
    words.iter().zip(seed..).for_each(|(word, value)| word.store(value, Relaxed));
}

fn is_filled(words: &[AtomicU64], seed: u64) -> bool {
    words.iter().zip(seed..).all(|(word, value)| word.load(Relaxed) == value)
}

pub struct Model {
    sizes: Vec<u64>,
    pub pages: HashMap<PageRef, Vec<u8>>,
    names: Vec<PageRef>,
    freed: Vec<PageRef>,
}

impl Default for Model {
    fn default() -> Model {
        Model::of(&SIZES)
    }
}

impl Model {
    pub fn of(sizes: &[u64]) -> Model {
        let (pages, names, freed) = (HashMap::new(), Vec::new(), Vec::new());
        Model { sizes: sizes.to_vec(), pages, names, freed }
    }

    fn any(&self, random: &mut SmallRng) -> Option<PageRef> {
        (!self.names.is_empty()).then(|| self.names[random.random_range(0..self.names.len())])
    }

    pub fn step(&mut self, pages: &PageAllocator, random: &mut SmallRng) {
        let range = |capacity: usize, random: &mut SmallRng| {
            let at = random.random_range(0..capacity);
            at..at + random.random_range(0..=(capacity - at).min(300))
        };
        match random.random_range(0..100) {
            0..32 => {
                // Of many sizes, each is half as frequent as the one before.
                let which = match self.sizes.len() {
                    2 => random.random_range(0..2),
                    many => random.random_range(1..1u32 << many).leading_zeros() as usize + many - 32,
                };
                let mut new = pages.allocate(self.sizes[which]).unwrap();
                let mut bytes = vec![0; new.page().capacity()];
                let range = range(bytes.len(), random);
                random.fill(&mut bytes[range.clone()]);
                new.write(range.start, &bytes[range]);
                if random.random_range(0..4) == 0 {
                    self.freed.push(new.page());
                    return;
                }
                let name = new.keep();
                assert!(self.pages.insert(name, bytes).is_none());
                self.names.push(name);
            }
            32..50 => {
                let Some(name) = self.any(random) else { return };
                let bytes = self.pages.get_mut(&name).unwrap();
                let range = range(bytes.len(), random);
                random.fill(&mut bytes[range.clone()]);
                pages.write(name).unwrap().write(range.start, &bytes[range]);
            }
            50..84 => {
                let Some(name) = self.any(random) else { return };
                let bytes = &self.pages[&name];
                let range = range(bytes.len(), random);
                let mut read = vec![7; range.len()];
                pages.read(name).unwrap().copy_to(range.start, &mut read);
                assert_eq!(read, bytes[range]);
            }
            84..88 => {
                let several: Vec<PageRef> = (0..20).filter_map(|_| self.any(random)).collect();
                pages.prefetch(&several).unwrap();
            }
            88..96 => {
                let Some(name) = self.any(random) else { return };
                self.names.retain(|other| *other != name);
                self.pages.remove(&name);
                match random.random_range(0..2) {
                    0 => pages.free(name).unwrap(),
                    _ => pages.write(name).unwrap().free(),
                }
                self.freed.push(name);
            }
            _ => {
                let Some(&name) = self.freed.last() else { return };
                assert!(
                    is_missing(pages.read(name))
                        && is_missing(pages.write(name))
                        && is_missing(pages.free(name))
                );
                assert_eq!(pages.prefetch(&[name]).unwrap(), 0);
            }
        }
    }

    pub fn check(&self, pages: &PageAllocator) {
        assert_eq!(pages.stats().pages, self.pages.len() as u64);
        for (&name, bytes) in &self.pages {
            let mut read = vec![7; bytes.len()];
            pages.read(name).unwrap().copy_to(0, &mut read);
            assert_eq!(read, *bytes, "{name:?}");
        }
        self.freed.iter().for_each(|&name| assert!(is_missing(pages.read(name))));
    }
}

#[test]
fn pages_are_what_was_written_to_them() {
    for seed in 0..6 {
        println!("seed {seed}");
        let mut random = SmallRng::seed_from_u64(seed);
        let pages = open(if seed % 3 == 2 { Mode::Background } else { Mode::Inline });
        let mut model = Model::default();
        for _ in 0..6000 {
            model.step(&pages, &mut random);
        }
        model.check(&pages);
        let stats = pages.stats();
        assert!(stats.faults > 500 && stats.evictions > 500, "{stats:?}");
        assert!(accounted(&stats) <= BUDGET, "{stats:?}");
        let bytes: u64 = model.pages.keys().map(|name| name.page_bytes() as u64).sum();
        assert!(bytes > 3 * BUDGET, "{bytes} bytes fit");
    }
}

/// Threads add to counters that fill whole pages, so that lost or torn changes show.
#[test]
fn guards_keep_threads_apart() {
    for mode in [Mode::Background, Mode::Inline] {
        const PAGES: usize = 900;
        const THREADS: u64 = 4;
        const STEPS: u64 = 4000;
        let pages = open(mode);
        let names: Vec<PageRef> = (0..PAGES).map(|_| pages.allocate(4096).unwrap().keep()).collect();
        let added = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (pages, names, added) = (&pages, &names, &added);
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(thread);
                    for _ in 0..STEPS {
                        // Some pages are shared by all threads.
                        let most = if random.random_range(0..2) == 0 { 10 } else { PAGES };
                        let name = names[random.random_range(0..most)];
                        if random.random_range(0..3) == 0 {
                            let mut guard = pages.write(name).unwrap();
                            for word in guard.words_mut() {
                                // Not atomic: only the guard protects it.
                                word.store(word.load(Relaxed) + 1, Relaxed);
                            }
                            added.fetch_add(1, Relaxed);
                        } else {
                            let guard = pages.read(name).unwrap();
                            let first = guard.words()[0].load(Relaxed);
                            assert!(guard.words().iter().all(|word| word.load(Relaxed) == first), "torn");
                        }
                    }
                });
            }
        });
        let sum = |name: &PageRef| pages.read(*name).unwrap().words()[0].load(Relaxed);
        assert_eq!(names.iter().map(sum).sum::<u64>(), added.load(Relaxed), "{mode:?}");
        assert!(pages.stats().evictions > 1000, "{:?}", pages.stats());
    }
}

#[test]
fn a_page_under_a_guard_stays_where_it_is() {
    for mode in [Mode::Inline, Mode::Background] {
        let pages = open(mode);
        let held: Vec<PageRef> = (0..10)
            .map(|seed| {
                let mut new = pages.allocate(4096).unwrap();
                fill(new.words_mut(), seed * 1000);
                new.keep()
            })
            .collect();
        let guards: Vec<_> = held.iter().map(|&name| pages.read(name).unwrap()).collect();
        let mut writing = pages.allocate(4096).unwrap();
        let addresses: Vec<_> = guards.iter().map(|guard| guard.words().as_ptr()).collect();
        for seed in 0..3000 {
            let mut other = pages.allocate(4096).unwrap();
            fill(other.words_mut(), seed);
            let _ = other.keep();
            // Maintenance writes the page repeatedly during these changes.
            writing.words_mut()[seed as usize % 500].store(seed, Relaxed);
        }
        assert!(pages.stats().evictions > 1000);
        for ((guard, address), seed) in guards.iter().zip(addresses).zip(0..) {
            assert_eq!(guard.words().as_ptr(), address);
            assert!(is_filled(guard.words(), seed * 1000));
        }
        let written = writing.keep();
        drop(guards);
        for seed in 0..1000 {
            fill(pages.allocate(4096).unwrap().words_mut(), seed);
        }
        let guard = pages.read(written).unwrap();
        let right = |(at, word): (usize, &AtomicU64)| word.load(Relaxed) == 2500 + at as u64;
        assert!(guard.words()[..500].iter().enumerate().all(right), "{mode:?}");
    }
}

#[test]
fn readers_go_together_and_writers_alone() {
    let pages = open(Mode::Background);
    let name = pages.allocate(4096).unwrap().keep();
    // More than the maximum at once: the others wait.
    let (at_once, most) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let guards: Vec<_> = (0..20).map(|_| pages.read(name).unwrap()).collect();
                    most.fetch_max(at_once.fetch_add(20, Relaxed) + 20, Relaxed);
                    at_once.fetch_sub(20, Relaxed);
                    drop(guards);
                }
            });
        }
    });
    assert!((20..=200).contains(&most.load(Relaxed)));
    let reading = pages.read(name).unwrap();
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pages.write(name).unwrap().words_mut()[0].store(5, Relaxed);
            written.store(1, Relaxed);
        });
        for _ in 0..1000 {
            assert_eq!(reading.words()[0].load(Relaxed), 0);
            std::thread::yield_now();
        }
        assert_eq!(written.load(Relaxed), 0, "a writer does not come between readers");
        drop(reading);
    });
    assert_eq!(pages.read(name).unwrap().words()[0].load(Relaxed), 5);
}

#[test]
fn one_shared_guard_too_many_is_refused_and_the_page_goes_on() {
    let pages = open(Mode::Inline);
    let name = pages.allocate(4096).unwrap().keep();
    let mut guards: Vec<_> = (0..200).map(|_| pages.read(name).unwrap()).collect();
    let refused = pages.read(name).unwrap_err();
    assert!(matches!(refused, Error::TooManyGuards { max: 200, .. }), "{refused}");
    guards.pop();
    guards.push(pages.read(name).unwrap());
    drop(guards);
    pages.write(name).unwrap().free();
    assert!(is_missing(pages.read(name)));
}

#[test]
fn names_of_other_pages_are_refused() {
    let (one, other) = (open(Mode::Inline), open(Mode::Inline));
    let (mine, theirs) = (one.allocate(4096).unwrap().keep(), other.allocate(4096).unwrap().keep());
    assert_eq!(mine.id(), theirs.id());
    assert!(is_missing(one.read(theirs)) && is_missing(other.read(mine)) && is_missing(one.free(theirs)));
    one.free(mine).unwrap();
    assert!(is_missing(one.free(mine)));
    let again = one.allocate(4096).unwrap().keep();
    assert_eq!(again.id(), mine.id(), "the id is used again");
    assert!(is_missing(one.read(mine)) && one.read(again).is_ok());
    for bytes in [0, 5000, 8 << 10, 1 << 30] {
        assert!(matches!(one.allocate(bytes), Err(Error::Config(_))), "{bytes}");
    }
}

#[test]
#[should_panic(expected = "10 bytes at 4070 of a page that has 4072")]
fn bytes_that_a_page_does_not_have_are_refused() {
    let pages = open(Mode::Inline);
    pages.allocate(4096).unwrap().write(4070, &[0; 10]);
}

#[test]
fn guards_of_all_pages_in_memory_leave_none_for_another() {
    let pages = open(Mode::Inline);
    let frames = |stats: PagesStats| stats.frame_classes.iter().map(|class| class.frames).max().unwrap();
    let mut guards = Vec::new();
    let error = loop {
        match pages.allocate(16 << 10) {
            Ok(guard) => guards.push(guard),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::OutOfFrames { .. }), "{error}");
    assert!(guards.len() >= 24 && guards.len() as u64 <= frames(pages.stats()));
    guards.pop();
    assert!(pages.allocate(16 << 10).is_ok());
    drop(guards);
    assert_eq!(pages.stats().pages, 0);
}

#[test]
fn a_full_disk_is_reported_and_freeing_makes_room() {
    for mode in [Mode::Inline, Mode::Background] {
        let disk = SimulatedDisk::new(1);
        let pages = open_on(Arc::new(disk.clone()), mode);
        disk.set_capacity(8 << 20);
        let mut names = Vec::new();
        let error = loop {
            match pages.allocate(4096) {
                Ok(mut new) => {
                    fill(new.words_mut(), names.len() as u64);
                    names.push(new.keep());
                }
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::Full { .. }), "{error}");
        assert!(names.len() > 1000, "{} pages", names.len());
        for (seed, &name) in names.iter().enumerate() {
            assert!(is_filled(pages.read(name).unwrap().words(), seed as u64));
        }
        for name in names.drain(..100) {
            pages.free(name).unwrap();
        }
        for _ in 0..90 {
            names.push(pages.allocate(4096).unwrap().keep());
        }
    }
}

#[test]
fn a_failed_read_is_reported_and_the_page_is_there_afterwards() {
    let disk = SimulatedDisk::new(1);
    let pages = open_on(Arc::new(disk.clone()), Mode::Inline);
    let names: Vec<PageRef> = (0..2000)
        .map(|seed| {
            let mut new = pages.allocate(4096).unwrap();
            fill(new.words_mut(), seed);
            new.keep()
        })
        .collect();
    disk.fail(FaultPlan::from_then_on(CallKind::Read, 1, libc::EIO));
    let failed = names.iter().filter(|&&name| match pages.read(name) {
        Ok(_) => false,
        Err(error) => {
            assert!(matches!(&error, Error::Io { operation: "read", .. }), "{error}");
            true
        }
    });
    assert!(failed.count() > 1000);
    assert_eq!(pages.prefetch(&names).unwrap(), 0);
    disk.mend();
    for (seed, &name) in names.iter().enumerate() {
        assert!(is_filled(pages.read(name).unwrap().words(), seed as u64));
    }
}

/// A page size that nodes can have, and a larger one.
#[test]
fn as_many_pages_as_it_says_are_read_together() {
    for (page_bytes, together) in [(16 << 10, 16), (128 << 10, 2)] {
        let directory = Arc::new(MemoryDirectory::new());
        let builder = common::pages_builder().dram(8 << 20).page_sizes(&[page_bytes]).mode(Mode::Inline);
        let pages = builder.directory(directory).open("pages").unwrap();
        let names: Vec<PageRef> = (0..(24 << 20) / page_bytes)
            .map(|seed| {
                let mut new = pages.allocate(page_bytes).unwrap();
                fill(new.words_mut(), seed);
                new.keep()
            })
            .collect();
        assert_eq!(pages.prefetch_pages_max(page_bytes), together);
        let mut most = 0;
        for (window, names) in names.chunks(together).enumerate() {
            // Some of them may be in memory.
            let read = pages.stats().read_bytes;
            let brought = pages.prefetch(names).unwrap();
            most = most.max(brought);
            for (seed, &name) in (window * together..).zip(names) {
                assert!(is_filled(pages.read(name).unwrap().words(), seed as u64));
            }
            assert_eq!(pages.stats().read_bytes - read, brought as u64 * page_bytes, "each was read once");
        }
        assert_eq!(most, together);
    }
}

#[test]
fn a_failed_write_stops_changes_and_not_reads() {
    for mode in [Mode::Inline, Mode::Background] {
        let disk = SimulatedDisk::new(1);
        let pages = open_on(Arc::new(disk.clone()), mode);
        let name = pages.allocate(4096).unwrap().keep();
        disk.fail(FaultPlan::once(CallKind::Write, 1, libc::EIO));
        let error = (0..5000).find_map(|_| pages.allocate(4096).map(|new| new.keep()).err());
        let error = error.expect("an allocation that needs another page written");
        assert!(matches!(error, Error::Io { .. } | Error::Poisoned { .. }), "{mode:?}: {error}");
        assert!(matches!(pages.allocate(4096), Err(Error::Poisoned { .. })), "{mode:?}");
        assert!(matches!(pages.write(name), Err(Error::Poisoned { .. })), "{mode:?}");
        // It may have left memory before, and be read into the frame of a written page.
        match pages.read(name) {
            Ok(guard) => assert!(guard.words().iter().all(|word| word.load(Relaxed) == 0)),
            Err(error) => assert!(matches!(error, Error::Poisoned { .. }), "{mode:?}: {error}"),
        }
    }
}

#[test]
fn the_file_is_its_owners_alone_and_goes_with_the_allocator() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pages");
    let open = || common::pages_builder().dram(BUDGET).page_sizes(&SIZES).open(&path);
    let pages = open().unwrap();
    let another = pages.clone();
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert!(matches!(open(), Err(Error::Busy { .. })));
    drop(pages);
    let name = another.allocate(4096).unwrap().keep();
    drop(another.read(name).unwrap());
    assert!(path.exists());
    drop(another);
    assert!(!path.exists());
    // Foreign files stay.
    std::fs::write(&path, [1; 100_000]).unwrap();
    let error = open().unwrap_err();
    assert!(matches!(&error, Error::Config(what) if what.contains("not a file of pages")), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), [1; 100_000]);
    let database = common::builder().dram(8 << 20).open(folder.path().join("db")).unwrap();
    database.close().unwrap();
    let pages = folder.path().join("db/pages.terrace");
    assert!(matches!(common::pages_builder().dram(64 << 20).open(&pages), Err(Error::Config(_))));
    assert!(matches!(common::pages_builder().dram(64 << 20).open("/"), Err(Error::Config(_))));
    let nowhere = folder.path().join("no/such/pages");
    assert!(matches!(common::pages_builder().dram(64 << 20).open(nowhere), Err(Error::Io { .. })));
}

#[test]
fn what_a_killed_process_left_is_replaced() {
    for seed in 0..20 {
        let disk = SimulatedDisk::new(seed);
        let pages = open_on(Arc::new(disk.clone()), Mode::Inline);
        for _ in 0..seed * 100 {
            let _ = pages.allocate(4096).unwrap().keep();
        }
        for left in [disk.killed(), disk.survivor(seed)] {
            assert!(left.exists("pages").unwrap(), "seed {seed}");
            let again = open_on(Arc::new(left.clone()), Mode::Inline);
            assert_eq!(again.stats().pages, 0);
            drop(again);
            assert!(!left.exists("pages").unwrap());
        }
    }
    // A file left by a process killed before it wrote anything.
    let directory = Arc::new(MemoryDirectory::new());
    directory.open("pages", OpenMode::CreateNew).unwrap();
    assert!(open_on(directory, Mode::Inline).allocate(4096).is_ok());
}

#[test]
fn settings_that_cannot_be_say_what_can() {
    let open = |dram, sizes: &[u64]| {
        let directory = Arc::new(MemoryDirectory::new());
        common::pages_builder().dram(dram).page_sizes(sizes).directory(directory).open("pages").map(drop)
    };
    for (dram, sizes, says) in [
        (1 << 20, &[64 << 10][..], "give it about"),
        (64 << 20, &[5000][..], "power of two"),
        (64 << 20, &[][..], "no sizes"),
        (1000, &[4096][..], "1 MiB"),
    ] {
        let error = open(dram, sizes).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    assert!(open(1 << 20, &[4096]).is_ok());
}

/// Nothing commits and so waits for log space: a thread that needs frames provides it.
#[test]
fn the_log_has_room_for_all_that_leaves_memory() {
    for mode in [Mode::Inline, Mode::Background] {
        let pages = open(mode);
        let mut names = Vec::new();
        for number in 0..30_000 {
            let mut new = pages.allocate(4096).unwrap();
            fill(new.words_mut(), number);
            names.push(new.keep());
        }
        for (number, &name) in names.iter().enumerate().step_by(7) {
            assert!(is_filled(pages.read(name).unwrap().words(), number as u64), "{mode:?} {number}");
        }
        for round in 0..2 {
            for (number, &name) in names.iter().enumerate().skip(round).step_by(3) {
                fill(pages.write(name).unwrap().words_mut(), number as u64 + 1);
            }
        }
        let addresses = |bytes: u64| bytes / 4096 * 28;
        assert!(addresses(pages.stats().written_bytes) > 4 * pages.stats().log_bytes, "the log went round");
    }
}

#[test]
fn there_are_no_pages_of_sizes_that_were_not_asked_for() {
    let builder = common::pages_builder().dram(32 << 20).page_sizes(&[128 << 10, 1 << 20]);
    let pages = builder.directory(Arc::new(MemoryDirectory::new())).open("pages").unwrap();
    assert_eq!(pages.page_sizes(), [128 << 10, 1 << 20]);
    // The smallest size belongs to the page table.
    assert!(matches!(pages.allocate(4096), Err(Error::Config(_))));
    assert!(pages.allocate(128 << 10).is_ok() && pages.allocate(1 << 20).is_ok());
}
