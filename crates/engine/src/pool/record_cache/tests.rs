//! The record cache alone: against a map, with threads, with reused memory.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace_io::{Directory, MemoryDirectory, OpenMode};

use super::{Looked, Record, RecordCache, Source};
use crate::ids::{PageId, SizeClass, Timestamp};
use crate::index::NodeRedo;
use crate::maintenance::Layout;
use crate::maintenance::Maintenance;
use crate::pool::{BufferSizes, Mode, Pool, PoolOptions, TierOptions, frame_bytes};
use crate::store::files::Files;
use crate::store::mapping_word::{Extent, MappingWord};
use std::sync::Arc;

type Others = Rc<dyn Fn()>;

thread_local! {
    static OTHERS: RefCell<Option<Others>> = const { RefCell::new(None) };
    static READERS: RefCell<Option<Others>> = const { RefCell::new(None) };
}

/// Hook before a record is copied.
pub(super) fn while_copying() {
    if let Some(others) = OTHERS.with_borrow_mut(Option::take) {
        others();
    }
}

/// Hook after the sequence has moved.
pub(super) fn when_moved_on() {
    if let Some(readers) = READERS.with_borrow_mut(Option::take) {
        readers();
    }
}

/// The budget of `frames` frames.
fn bytes(frames: u32) -> u64 {
    frame_bytes(SizeClass::SMALLEST, frames)
}

/// A pool without pages.
fn pool(frames: u32, record_cache: RecordCache) -> Arc<Maintenance> {
    let directory = MemoryDirectory::new();
    let open = |name| directory.open(name, OpenMode::CreateNew).unwrap();
    let files = Files::new(open("pages.terrace"), open("log.terrace"));
    let layout =
        Layout { uuid: [7; 16], page_bytes: 4096, segment_blocks: 16, log_max: 1 << 20, log_first: 1 << 20 };
    let options = PoolOptions {
        frame_bytes: bytes(frames),
        frame_bytes_max: bytes(frames),
        frames_floor: 24,
        buffers: BufferSizes { log: 128 << 10, staging: 64 << 10, batches: 64 << 10, batch_least: 0 },
        pages_max: 1 << 20,
        hash: crate::config::hash_of_environment(),
        store_bytes_max: 256 << 20,
        record_cache,
        backend: crate::Backend::of_environment().unwrap(),
        replacement: Default::default(),
        tiers: TierOptions::default(),
        mode: Mode::Inline,
        in_memory: false,
        hints: true,
    };
    crate::maintenance::create(&files, &layout).unwrap();
    let recovered = crate::recovery::recover(&files, &options, &NodeRedo).unwrap();
    recovered.maintenance.recovery_done();
    recovered.maintenance
}

fn source(page: u64, image: u64) -> Source {
    let mapped = MappingWord::at(Extent { first: image, blocks: 1 }, image as u32);
    Source::of_image(PageId(page), mapped, image as u32)
}

fn key(number: u64) -> Vec<u8> {
    format!("{number:0width$}", width = 1 + number as usize % 40).into_bytes()
}

/// A value that identifies its record, shorter than 900 bytes.
fn value(page: u64, number: u64, image: u64) -> Option<Vec<u8>> {
    let length = (number * 131 + image * 17) % 900;
    let own = page << 40 | number << 20 | image;
    (!number.is_multiple_of(7)).then(|| own.to_le_bytes().into_iter().cycle().take(length as usize).collect())
}

fn put(pool: &Pool, page: u64, number: u64, image: u64) {
    let value = value(page, number, image);
    assert!(pool.records.takes(&key(number), value.as_deref()));
    pool.records.insert(pool, source(page, image), &key(number), Timestamp(image), value.as_deref(), true);
}

/// Whether the record is there; it must be the one inserted.
fn is_there(pool: &Pool, page: u64, number: u64, image: u64) -> bool {
    let found = pool.records.find(&pool.frames, &[source(page, image)], &key(number));
    let Looked::Found(found) = found else { return false };
    assert_eq!(found.timestamp, Timestamp(image), "page {page}, record {number}");
    assert_eq!(found.value, value(page, number, image), "page {page}, record {number}, image {image}");
    true
}

#[test]
fn finds_what_was_put_for_the_image_it_is_asked_for() {
    for seed in 0..20 {
        let pool = pool(256, RecordCache::Percent(60));
        let mut random = SmallRng::seed_from_u64(seed);
        let mut images: HashMap<(u64, u64), u64> = HashMap::new();
        let (mut found, mut asked) = (0, 0);
        for step in 0..6000 {
            let (page, number) = (random.random_range(0..8u64) + 1, random.random_range(0..60u64).pow(2) / 6);
            match random.random_range(0..10) {
                0 => {
                    *images.entry((page, number)).or_default() += 1;
                }
                1..=3 => put(&pool, page, number, images.get(&(page, number)).copied().unwrap_or(0)),
                _ => {
                    let image = images.get(&(page, number)).copied().unwrap_or(0);
                    asked += 1;
                    found += u64::from(is_there(&pool, page, number, image));
                    assert!(!is_there(&pool, page, number, image + 1), "seed {seed}, step {step}");
                }
            }
            if step % 1500 == 700 {
                pool.resizer().resize(bytes([128, 256, 90, 200][step / 1500])).unwrap();
                assert_eq!(pool.audit(), Vec::<String>::new(), "seed {seed}, step {step}");
            }
        }
        let stats = pool.records.stats(&pool);
        assert!(found * 4 > asked, "seed {seed}: {found} of {asked}, {stats:?}");
        assert!(stats.evicted > 100 && stats.replaced > 10 && stats.stale > 100, "seed {seed}: {stats:?}");
        pool.resizer().resize(bytes(64)).unwrap();
        assert_eq!(pool.records.stats(&pool).entries + u64::from(pool.replacer.lent()), 0, "seed {seed}");
        assert_eq!(pool.audit(), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn records_that_are_read_outlive_those_that_are_not() {
    let pool = pool(512, RecordCache::Percent(80));
    (0..50).for_each(|number| put(&pool, 1, number, 1));
    let mut lost = 0;
    for other in 0..20_000 {
        put(&pool, 2, other, 1);
        if !is_there(&pool, 1, other % 50, 1) {
            lost += 1;
            put(&pool, 1, other % 50, 1);
        }
    }
    let stats = pool.records.stats(&pool);
    assert!(stats.evicted > 10_000 && lost <= 5, "{lost} were lost, {stats:?}");
    assert!(stats.crowded < stats.inserted / 50, "{stats:?}");
}

#[test]
fn records_stay_when_frames_at_the_end_of_the_range_go() {
    for seed in 0..10 {
        let pool = pool(256, RecordCache::Percent(60));
        let mut random = SmallRng::seed_from_u64(seed);
        for number in 0..3000 {
            put(&pool, 1, number, 1);
        }
        let (mut frames, mut there) =
            (256, (0..3000).filter(|&number| is_there(&pool, 1, number, 1)).count());
        assert!(there > 700, "seed {seed}: {there}");
        let before = pool.records.stats(&pool);
        for _ in 0..4 {
            // The share of records kept is at least that of frames kept.
            let held = pool.replacer.lent();
            frames -= random.random_range(1..16);
            pool.resizer().resize(bytes(frames)).unwrap();
            let now = (0..3000).filter(|&number| is_there(&pool, 1, number, 1)).count();
            let least = there * pool.replacer.lent() as usize / held as usize;
            assert!(now * 10 > least * 9, "seed {seed}: {now} of {there}, of {held} frames");
            assert!(pool.replacer.lent() <= frames * 6 / 10, "seed {seed}");
            assert_eq!(pool.audit(), Vec::<String>::new(), "seed {seed}");
            there = now;
        }
        assert_eq!(pool.records.stats(&pool).inserted, before.inserted);
        // The replacement frames are used again like any others.
        (0..3000).for_each(|number| put(&pool, 2, number, 1));
        assert!((0..3000).filter(|&number| is_there(&pool, 2, number, 1)).count() > 20, "seed {seed}");
    }
}

/// The frame is exchanged and reused between header check and copy.
#[test]
fn a_record_that_moves_while_it_is_read_is_whole_or_not_found() {
    let mut found = 0;
    for number in 0..20 {
        let pool = Rc::new(pool(256, RecordCache::Percent(60)));
        (0..3000).for_each(|number| put(&pool, 1, number, 1));
        let there: Vec<u64> = (0..3000).filter(|&number| is_there(&pool, 1, number, 1)).collect();
        let others = Rc::clone(&pool);
        OTHERS.set(Some(Rc::new(move || {
            others.resizer().resize(bytes(200)).unwrap();
            others.resizer().resize(bytes(256)).unwrap();
            others.frames.all().for_each(|frame| {
                if let Some(page) =
                    others.replacer.free(others.class()).lock().list.iter().find(|&&free| free == frame)
                {
                    others.frames.own_words(*page).iter().for_each(|word| word.store(u64::MAX, Relaxed));
                }
            });
        })));
        let number = there[number * there.len() / 20];
        found += usize::from(is_there(&pool, 1, number, 1));
        assert!(OTHERS.take().is_none(), "the record was there");
    }
    assert!(found > 5, "{found} of 20");
}

/// Other records reuse the memory between header check and copy.
fn memory_changes_hands() -> bool {
    let pool = Rc::new(pool(128, RecordCache::Percent(30)));
    (0..20).for_each(|number| put(&pool, 1, number, 1));
    let others = Rc::clone(&pool);
    OTHERS.set(Some(Rc::new(move || {
        (0..2000).for_each(|number| put(&others, 2, number * 7 + 1, 1));
    })));
    let found = pool.records.find(&pool.frames, &[source(1, 1)], &key(3));
    assert!(OTHERS.take().is_none(), "the record was there");
    let own = Record { timestamp: Timestamp(1), value: value(1, 3, 1) };
    matches!(found, Looked::Unknown) || found == Looked::Found(own)
}

#[test]
fn a_record_whose_memory_is_used_again_is_not_found() {
    assert!(memory_changes_hands());
}

/// Returning frames moves the sequence once. A later reader must not be led to them, since it could
/// not detect their reuse.
#[test]
fn who_begins_while_all_is_given_back_finds_nothing_to_look_through() {
    let pool = Rc::new(pool(128, RecordCache::Percent(30)));
    (0..20).for_each(|number| put(&pool, 1, number, 1));
    let slots = |pool: &Pool| pool.records.index(&pool.frames).slots;
    assert!(slots(&pool) > 0);
    let seen = Rc::new(RefCell::new(None));
    let (others, told) = (Rc::clone(&pool), Rc::clone(&seen));
    READERS.set(Some(Rc::new(move || {
        let found = others.records.find(&others.frames, &[source(1, 1)], &key(3));
        assert_eq!(found, Looked::Unknown);
        *told.borrow_mut() = Some(slots(&others));
    })));
    pool.resizer().resize(bytes(pool.replacer.lent() / 2)).unwrap();
    assert_eq!(*seen.borrow(), Some(0), "slots of an index whose frames are being given back");
    assert_eq!(pool.audit(), Vec::<String>::new());
}

#[test]
fn catches_record_of_reused_memory() {
    use crate::planted::{Bug, plant};
    plant(Some(Bug::RecordOfReusedMemory));
    let held = std::panic::catch_unwind(memory_changes_hands);
    plant(None);
    assert!(!matches!(held, Ok(true)), "was not noticed");
    assert!(memory_changes_hands());
}

#[test]
fn threads_find_whole_records_while_others_come_and_go() {
    let pool = pool(160, RecordCache::Percent(60));
    let (done, found) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (pool, done, found) = (&pool, &done, &found);
        let writers: Vec<_> = (0..2u64)
            .map(|thread| {
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(thread);
                    for step in 0..20_000 {
                        put(pool, 1 + thread, random.random_range(0..300u64), random.random_range(0..3u64));
                        if thread == 0 && step % 4000 == 0 {
                            pool.resizer().resize(bytes(if step % 8000 == 0 { 100 } else { 160 })).unwrap();
                        }
                    }
                })
            })
            .collect();
        for thread in 0..2 {
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(100 + thread);
                while !done.load(Relaxed) {
                    let (page, image) = (1 + random.random_range(0..2u64), random.random_range(0..3u64));
                    found.fetch_add(
                        is_there(pool, page, random.random_range(0..300u64), image).into(),
                        Relaxed,
                    );
                }
            });
        }
        let outcomes: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Relaxed);
        assert!(outcomes.iter().all(Result::is_ok));
    });
    assert!(found.load(Relaxed) > 0);
    assert_eq!(pool.audit(), Vec::<String>::new());
}
