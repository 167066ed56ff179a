//! Pages of two sizes over one small budget: faults, batches, write-back, eviction, and how the bytes are divided.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace_block::{Directory, MemoryDirectory, OpenMode};

use super::patience::{WAIT_MAX, hasten};
use super::stats::PoolStats;
use super::view::View;
use super::{
    Edit, Files, Layout, Mode, NodeOptions, Pool, PoolOptions, Purpose, RecordCache, Stop, buffers_bytes,
    frame_cost,
};
use crate::error::Error;
use crate::ids::{Lsn, PageId, SizeClass, Timestamp};
use crate::index::NodeRedo;
use crate::planted::{Bug, plant};
use crate::replacement::Replacement;
use crate::store::image::COMPRESS;
use crate::store::page::{self, HEADER_BYTES, Kind};
use crate::wal::{ALLOCATES, RecordBuilder, change_kind};

pub(super) const BUDGET: u64 = 2 << 20;
const FLOOR: u32 = 12;
/// The part of a page that changes.
const CHANGING: std::ops::Range<usize> = HEADER_BYTES..HEADER_BYTES + 256;

fn class(bytes: u64) -> SizeClass {
    SizeClass::of_bytes(bytes).unwrap()
}

pub(super) fn small() -> SizeClass {
    class(4 << 10)
}

fn large() -> SizeClass {
    class(16 << 10)
}

pub(super) fn options(bytes: u64) -> PoolOptions {
    PoolOptions {
        frame_bytes: bytes,
        frame_bytes_max: 2 * BUDGET,
        frames_floor: FLOOR,
        log_buffer_bytes: 256 << 10,
        staging_bytes: 96 << 10,
        batch_bytes: 128 << 10,
        batch_least: 0,
        pages_max: 1 << 16,
        store_bytes_max: 256 << 20,
        record_cache: RecordCache::Off,
        backend: crate::Backend::of_environment().unwrap(),
        replacement: Default::default(),
        middle: crate::middle::options_of_environment(small()),
        middle_memory: None,
        nodes: NodeOptions::default(),
        time: terrace_block::Time::wall(),
        mode: Mode::Inline,
        in_memory: false,
    }
}

fn recover(files: &Files, options: &PoolOptions) -> Pool {
    let recovered = Pool::recover(files, options, &NodeRedo).unwrap();
    recovered.pool.recovery_done();
    recovered.pool
}

/// A pool without pages, whose own are small.
pub(super) fn pool() -> (Files, Pool) {
    pool_with(&options(BUDGET))
}

pub(super) fn pool_with(options: &PoolOptions) -> (Files, Pool) {
    pool_of_segments(options, 64)
}

pub(super) fn pool_of_segments(options: &PoolOptions, segment_places: u64) -> (Files, Pool) {
    let directory = MemoryDirectory::new();
    let open = |name| directory.open(name, OpenMode::CreateNew).unwrap();
    let files = Files::new(open("pages"), open("log"));
    let layout = Layout { uuid: [7; 16], page_bytes: 4096, segment_places, log_capacity: 4 << 20 };
    Pool::create(&files, &layout).unwrap();
    let pool = recover(&files, options);
    (files, pool)
}

/// What a page is after it was changed `round` times. Behind the part that changes is what makes an image longer or shorter.
fn content(id: PageId, round: u64) -> Vec<u8> {
    let mut content = vec![0; id.class().unwrap().page_bytes()];
    let noise = CHANGING.end..content.len() / (1 + id.index() as usize % 4);
    SmallRng::seed_from_u64(id.0).fill(&mut content[noise]);
    page::set_kind(&mut content, Kind::Raw);
    page::set_page_id(&mut content, id);
    content[page::LEVEL_AT] = if id.index().is_multiple_of(3) { 0 } else { COMPRESS };
    content[CHANGING].copy_from_slice(&changing(id, round));
    content
}

fn changing(id: PageId, round: u64) -> Vec<u8> {
    (id.0 ^ round << 32).to_le_bytes().repeat(CHANGING.len() / 8)
}

pub(super) fn make(pool: &Pool, class: SizeClass) -> PageId {
    let mut reservation = pool.reserve_log(2 * class.page_bytes() as u64 + 256).unwrap();
    let new = pool.new_page(class, None).unwrap();
    let id = new.id();
    assert_eq!(id.class(), Some(class));
    let mut content = content(id, 0);
    let mut record = RecordBuilder::pages(Timestamp::NONE, Lsn::NONE);
    record.change_with(id, change_kind::IMAGE, ALLOCATES, |out| {
        page::compact(&content, HEADER_BYTES..HEADER_BYTES, out);
    });
    pool.change(&mut record, Some(&mut reservation), [Edit::Create(new, &mut content)]).unwrap();
    id
}

pub(super) fn change(pool: &Pool, id: PageId, round: u64) {
    let mut reservation = pool.reserve_log(1024).unwrap();
    let mut guard = pool.latch(id).unwrap();
    let mut copy = Vec::new();
    guard.copy(&mut copy);
    let bytes = changing(id, round);
    copy[CHANGING].copy_from_slice(&bytes);
    let mut record = RecordBuilder::pages(Timestamp::NONE, Lsn::NONE);
    record.change_bytes(id, CHANGING.start as u32, &bytes);
    pool.change(&mut record, Some(&mut reservation), [Edit::Update(&mut guard, &mut copy)]).unwrap();
}

pub(super) fn free(pool: &Pool, id: PageId) {
    let mut reservation = pool.reserve_log(1024).unwrap();
    let guard = pool.latch(id).unwrap();
    let mut record = RecordBuilder::pages(Timestamp::NONE, Lsn::NONE);
    record.change(id, change_kind::FREE, 0, &[]);
    pool.change(&mut record, Some(&mut reservation), [Edit::Free(guard)]).unwrap();
}

pub(super) fn look(pool: &Pool, id: PageId) -> Vec<u8> {
    let mut copy = vec![0; id.class().unwrap().page_bytes()];
    loop {
        let guard = pool.read(id).unwrap();
        guard.view().copy_to(0, &mut copy);
        if guard.validate().is_ok() {
            return copy;
        }
    }
}

/// Everything but checksum and LSN.
pub(super) fn assert_is(found: &[u8], id: PageId, round: u64, what: &str) {
    let body = page::LSN_AT + 8;
    assert!(found[body..] == content(id, round)[body..], "{what}: page {id} is not as after {round} changes");
    assert_eq!(page::page_id(found), id, "{what}");
}

/// Bytes that frames take, and what they may; no class that is used has less than its floor.
fn assert_within_budget(pool: &Pool) {
    let (taken, budget) = (pool.bytes_of_frames(), pool.resizing.lock());
    assert!(taken <= budget.for_frames(pool.frames.largest()), "{taken} bytes");
    assert!(pool.frames.classes().all(|class| pool.frames.count(class) >= FLOOR));
}

fn bytes_of(pool: &Pool, class: SizeClass) -> u64 {
    u64::from(pool.frames.count(class)) * frame_cost(class)
}

#[test]
fn pages_of_two_sizes_are_what_was_written_whatever_goes_and_comes() {
    for seed in 0..8 {
        // The ways of replacement to compare with for every fourth.
        let replacement = match seed % 8 {
            3 => Replacement::FifoPaper,
            7 => Replacement::ClockPaper,
            _ => Replacement::Mark,
        };
        let options = PoolOptions { replacement, ..options(BUDGET) };
        let what = format!("seed {seed}");
        let mut random = SmallRng::seed_from_u64(seed);
        let (files, pool) = pool();
        drop(pool);
        let mut pool = recover(&files, &options);
        pool.use_class(large()).unwrap();
        let mut model: HashMap<PageId, u64> = HashMap::new();
        let mut ids: Vec<PageId> = Vec::new();
        let mut counts = [0; 4];
        for step in 0..6000 {
            let any = |random: &mut SmallRng| ids[random.random_range(0..ids.len())];
            match random.random_range(0..100) {
                _ if ids.len() < 50 || (step < 900 && step % 2 == 0) => {
                    let id = make(&pool, if random.random_range(0..3) == 0 { large() } else { small() });
                    assert_eq!(model.insert(id, 0), None, "{what}: {id} is in use");
                    ids.push(id);
                }
                0..30 => {
                    let id = any(&mut random);
                    let round = model.get_mut(&id).unwrap();
                    *round += 1;
                    change(&pool, id, *round);
                }
                30..60 => {
                    let id = any(&mut random);
                    assert_is(&look(&pool, id), id, model[&id], &what);
                }
                60..64 => {
                    let some: Vec<PageId> = (0..40).map(|_| any(&mut random)).collect();
                    let purpose = if step % 2 == 0 { Purpose::Wanted } else { Purpose::Ahead };
                    pool.fault_many(&some, purpose, &mut |_, error| panic!("{what}: {error}")).unwrap();
                    for id in some {
                        assert_is(&look(&pool, id), id, model[&id], &what);
                    }
                }
                64 => {
                    let id = ids.swap_remove(random.random_range(0..ids.len()));
                    free(&pool, id);
                    model.remove(&id);
                    assert!(matches!(pool.read(id), Err(Stop::Missing(_)) | Ok(_)));
                    pool.wal().flush_to(pool.wal().tail()).unwrap();
                    pool.round(false).unwrap();
                }
                65 => pool.round(step % 3 == 0).unwrap(),
                66 if step % 5 == 0 => pool.checkpoint_now(step % 2 == 0).unwrap(),
                67 => pool.resize(random.random_range(BUDGET / 2..2 * BUDGET)).unwrap(),
                _ => {}
            }
            assert_within_budget(&pool);
            if step % 1500 == 1400 {
                pool.wal().flush_to(pool.wal().tail()).unwrap();
                pool.round(false).unwrap();
                assert_eq!(pool.audit(), [""; 0], "{what}, step {step}");
                let PoolStats { evictions, images_written, images_compressed, batched_pages, .. } =
                    &pool.stats;
                let now = [evictions, images_written, images_compressed, batched_pages];
                counts.iter_mut().zip(now).for_each(|(count, now)| *count += now.load(Relaxed));
                drop(pool);
                pool = recover(&files, &options);
                assert_eq!(pool.frames.classes().collect::<Vec<_>>(), [small(), large()], "{what}");
                assert_eq!(pool.audit(), [""; 0], "{what}, step {step}");
            }
        }
        for (&id, &round) in &model {
            assert_is(&look(&pool, id), id, round, &what);
            pool.check_image(id).unwrap();
        }
        assert!(counts.into_iter().all(|count| count > 200), "{what}: {counts:?}");
    }
}

/// Reads pages of `ids`, most often the first ones, and says how many bytes were missed.
fn read_some(pool: &Pool, ids: &[PageId], reads: usize, random: &mut SmallRng) {
    for _ in 0..reads {
        let at = random.random_range(0..ids.len());
        let id = ids[random.random_range(0..=at)];
        pool.read(id).unwrap();
        assert_within_budget(pool);
    }
}

#[test]
fn frames_follow_the_load_and_stand_still_where_all_gain_alike() {
    // What is in a middle tier is not missed in DRAM.
    let (_files, pool) = pool_with(&PoolOptions { middle: None, ..options(BUDGET) });
    pool.use_class(large()).unwrap();
    let [few, many] = [(large(), 150), (small(), 600)]
        .map(|(class, count)| (0..count).map(|_| make(&pool, class)).collect::<Vec<_>>());
    pool.checkpoint_now(true).unwrap();
    let mut random = SmallRng::seed_from_u64(5);
    let all = pool.bytes_of_frames();
    // One class alone is read, which has more pages than the budget has room for; the other keeps little more than its floor.
    for (ids, mine, other) in [(&few, large(), small()), (&many, small(), large()), (&few, large(), small())]
    {
        read_some(&pool, ids, 20_000, &mut random);
        assert!(bytes_of(&pool, mine) * 10 > all * 8, "{:?}", pool.footprint().frames);
        assert!(pool.frames.count(other) < 4 * FLOOR, "{:?}", pool.footprint().frames);
        assert_eq!(pool.audit(), [""; 0]);
    }
    // Both, alike: they come to rest near the middle.
    let both = |reads: usize, random: &mut SmallRng| {
        for _ in 0..reads / 50 {
            read_some(&pool, &few, 10, random);
            read_some(&pool, &many, 40, random);
        }
    };
    both(40_000, &mut random);
    let moves = pool.stats.frame_moves.load(Relaxed);
    let before = bytes_of(&pool, small());
    assert!((all / 4..all * 3 / 4).contains(&before), "{:?}", pool.footprint().frames);
    let taken = pool.stats.taken_bytes();
    both(40_000, &mut random);
    let more = pool.stats.frame_moves.load(Relaxed) - moves;
    let steps = (pool.stats.taken_bytes() - taken) / (BUDGET / 64);
    assert!(more * 50 < steps, "{more} of {steps} steps moved something");
    assert!(bytes_of(&pool, small()).abs_diff(before) < all / 8, "{:?}", pool.footprint().frames);
}

#[test]
fn the_same_load_moves_the_same_frames() {
    let run = || {
        let (_files, pool) = pool();
        pool.use_class(large()).unwrap();
        let ids: Vec<_> = (0..120).map(|_| make(&pool, large())).collect();
        read_some(&pool, &ids, 5000, &mut SmallRng::seed_from_u64(1));
        pool.footprint().frames
    };
    let first = run();
    assert!(first[1].gained > 10 && first[0].lost > 10, "{first:?}");
    assert_eq!(first, run());
}

#[test]
fn another_budget_is_divided_in_proportion_and_no_class_is_left_without() {
    let (_files, pool) = pool();
    pool.use_class(large()).unwrap();
    let ids: Vec<_> = (0..120).map(|_| make(&pool, large())).collect();
    let more: Vec<_> = (0..200).map(|_| make(&pool, small())).collect();
    read_some(&pool, &ids, 3000, &mut SmallRng::seed_from_u64(1));
    let counts = || [small(), large()].map(|class| pool.frames.count(class));
    let above = |count: u32| f64::from(count - FLOOR);
    let before = counts();
    assert!(before[0] > 2 * FLOOR && before[1] > 2 * FLOOR, "{before:?}");
    for bytes in [BUDGET * 3 / 4, 2 * BUDGET, BUDGET] {
        pool.resize(bytes).unwrap();
        assert_within_budget(&pool);
        let now = counts();
        let ratio = (above(now[0]) / above(now[1])) / (above(before[0]) / above(before[1]));
        assert!((0.8..1.25).contains(&ratio), "{before:?} became {now:?}");
        let budget = pool.resizing.lock().for_frames(large());
        assert!(pool.bytes_of_frames() + frame_cost(large()) > budget, "all of it is used");
    }
    // As little as there can be, and less.
    let floors = buffers_bytes(large()) + u64::from(FLOOR) * (frame_cost(small()) + frame_cost(large()));
    pool.resize(floors).unwrap();
    assert_eq!(counts(), [FLOOR, FLOOR]);
    let refused = pool.resize(floors - 1).unwrap_err();
    assert!(matches!(&refused, Error::Config(what) if what.contains("give it about")), "{refused}");
    assert_eq!(counts(), [FLOOR, FLOOR]);
    for (&id, round) in ids.iter().chain(&more).zip(std::iter::repeat(0)) {
        assert_is(&look(&pool, id), id, round, "at the floors");
    }
    pool.resize(BUDGET).unwrap();
    assert_eq!(
        counts()[1],
        FLOOR,
        "nobody has anything above the floors, so it is the database's own class's"
    );
    assert!(counts()[0] > before[0]);
    assert_eq!(pool.audit(), [""; 0]);
}

/// As threads hold them that each have some, and wait for more: what the class has alone would be enough for none.
#[test]
fn a_class_whose_frames_are_all_in_hands_is_given_others() {
    let (_files, pool) = pool();
    pool.use_class(large()).unwrap();
    assert_eq!(pool.frames.count(large()), FLOOR);
    let held: Vec<_> = (0..3 * FLOOR).map(|_| pool.new_page(large(), None).unwrap()).collect();
    assert_within_budget(&pool);
    drop(held);
    assert_eq!(pool.audit(), [""; 0]);
    // As long as others have more than their floor.
    let mut held = Vec::new();
    let refused = loop {
        match pool.new_page(large(), None) {
            Ok(new) => held.push(new),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::OutOfFrames { .. }), "{refused}");
    assert_eq!(held.len() as u32, pool.frames.count(large()));
    assert!(pool.frames.count(small()) <= FLOOR + 4, "{}", pool.frames.count(small()));
    drop(held);
    assert_within_budget(&pool);
    assert_eq!(pool.audit(), [""; 0]);
}

#[test]
fn a_class_for_which_there_is_no_room_is_refused() {
    let (_files, pool) = pool();
    let too_little = BUDGET * 3 / 4;
    pool.resize(too_little).unwrap();
    let count = pool.frames.count(small());
    let largest = class(64 << 10);
    let refused = pool.use_class(largest).unwrap_err();
    assert!(matches!(&refused, Error::Config(what) if what.contains("give it about")), "{refused}");
    pool.resize(2 * BUDGET).unwrap();
    pool.use_class(largest).unwrap();
    pool.use_class(largest).unwrap();
    assert_eq!((pool.frames.count(largest), pool.frames.classes().count()), (FLOOR, 2));
    let id = make(&pool, largest);
    assert_is(&look(&pool, id), id, 0, "the largest");
    // The budget at which it was refused is refused now, and what there is stays.
    let before = pool.frames.count(small());
    assert!(before > count && matches!(pool.resize(too_little), Err(Error::Config(_))));
    assert_eq!((pool.frames.count(small()), pool.frames.count(largest)), (before, FLOOR));
    assert_eq!(pool.audit(), [""; 0]);
}

#[test]
fn a_class_longer_than_a_buffer_is_refused() {
    let directory = MemoryDirectory::new();
    let open = |name| directory.open(name, OpenMode::CreateNew).unwrap();
    let files = Files::new(open("pages"), open("log"));
    let layout = Layout { uuid: [7; 16], page_bytes: 4096, segment_places: 8, log_capacity: 1 << 20 };
    Pool::create(&files, &layout).unwrap();
    let narrow = [
        PoolOptions { staging_bytes: 32 << 10, batch_bytes: 256 << 10, ..options(2 * BUDGET) },
        PoolOptions { staging_bytes: 64 << 10, batch_bytes: 64 << 10, ..options(2 * BUDGET) },
        PoolOptions { staging_bytes: 64 << 10, batch_bytes: 256 << 10, ..options(2 * BUDGET) },
    ];
    for options in narrow {
        let pool = recover(&files, &options);
        let refused = pool.use_class(class(64 << 10)).unwrap_err();
        assert!(matches!(&refused, Error::Config(what) if what.contains("page_size_max")), "{refused}");
        assert_eq!(pool.frames.classes().count(), 1);
        pool.use_class(class(32 << 10)).unwrap();
    }
}

#[test]
fn threads_find_whole_pages_of_both_sizes_while_frames_change_hands() {
    let (_files, pool) = pool();
    pool.use_class(large()).unwrap();
    let ids: Vec<PageId> =
        (0..500).map(|number| make(&pool, if number % 4 == 0 { large() } else { small() })).collect();
    let rounds: Vec<Mutex<u64>> = ids.iter().map(|_| Mutex::new(0)).collect();
    let (done, looks) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (pool, ids, rounds, done, looks) = (&pool, &ids, &rounds, &done, &looks);
        let upkeep = scope.spawn(move || pool.run_upkeep());
        let others: Vec<_> = (0..3)
            .map(|seed| {
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(seed);
                    for step in 0..6000 {
                        // Now of this size, now of that.
                        let at = random.random_range(0..ids.len()) & !3;
                        let at = if step / 1500 % 2 == 0 { at } else { at + 1 + step % 3 };
                        let mut round = rounds[at].lock();
                        assert_is(&look(pool, ids[at]), ids[at], *round, "a thread");
                        if step % 4 == 0 {
                            *round += 1;
                            change(pool, ids[at], *round);
                        }
                        looks.fetch_add(1, Relaxed);
                    }
                })
            })
            .collect();
        let resizer = scope.spawn(move || {
            let mut random = SmallRng::seed_from_u64(9);
            while !done.load(Relaxed) {
                pool.resize(random.random_range(BUDGET / 2..2 * BUDGET)).unwrap();
                std::thread::yield_now();
            }
        });
        let outcomes: Vec<_> = others.into_iter().map(|thread| thread.join()).collect();
        done.store(true, Relaxed);
        let resized = resizer.join();
        pool.stop_upkeep();
        assert!(upkeep.join().is_ok() && resized.is_ok());
        assert!(outcomes.iter().all(Result::is_ok));
    });
    assert_eq!(looks.load(Relaxed), 18_000);
    assert_within_budget(&pool);
    assert_eq!(pool.audit(), [""; 0]);
    for (&id, round) in ids.iter().zip(&rounds) {
        assert_is(&look(&pool, id), id, *round.lock(), "at the end");
    }
}

fn large_frames(count: u32) -> [u32; SizeClass::COUNT] {
    let mut frames = [0; SizeClass::COUNT];
    frames[large().index()] = count;
    frames
}

/// Half of the frames are for makers of pages: whether one comes in that wants more than is left, before the other leaves.
fn passes_the_line(bug: Option<Bug>) -> bool {
    let (_files, pool) = pool();
    pool.use_class(large()).unwrap();
    let half = pool.frames.count(large()) / 2;
    let first = pool.reserve_frames(large_frames(half - 1)).unwrap();
    let (entered, small_entered) = (AtomicBool::new(false), AtomicBool::new(false));
    let waiting = || pool.stats.frame_reservation_waits.load(Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            plant(bug);
            // More than half: only alone.
            let second = pool.reserve_frames(large_frames(half + 1)).unwrap();
            assert_eq!(second.of(large()), half + 1);
            entered.store(true, Relaxed);
        });
        while waiting() == 0 && !entered.load(Relaxed) {
            std::thread::yield_now();
        }
        let passed = entered.load(Relaxed);
        if !passed {
            // For one there would be room, but it stands behind the other.
            scope.spawn(|| {
                drop(pool.reserve_frames(large_frames(1)).unwrap());
                small_entered.store(true, Relaxed);
            });
            while waiting() == 1 {
                std::thread::yield_now();
            }
            assert!(!small_entered.load(Relaxed) && !entered.load(Relaxed));
        }
        drop(first);
        passed
    })
}

#[test]
fn makers_of_pages_come_one_after_the_other_where_frames_are_few() {
    assert!(!passes_the_line(None));
}

#[test]
fn catches_reserve_beyond_frames() {
    assert!(passes_the_line(Some(Bug::ReserveBeyondFrames)));
}

/// With a thread for the upkeep that does nothing: neither frames nor what is reserved of them comes free.
#[test]
fn waits_end_when_nothing_has_moved_for_the_stated_time() {
    let (_files, pool) = pool();
    pool.use_class(large()).unwrap();
    let held: Vec<_> = (0..FLOOR).map(|_| pool.new_page(large(), None).unwrap()).collect();
    let _reserved = pool.reserve_frames(large_frames(FLOOR)).unwrap();
    pool.upkeep_runs.store(true, Relaxed);
    hasten(WAIT_MAX / 20);
    let waits = pool.stats.frame_waits.load(Relaxed);
    let refused = pool.new_page(large(), None).unwrap_err();
    assert!(matches!(refused, Error::OutOfFrames { .. }), "{refused}");
    let looks = pool.stats.frame_waits.load(Relaxed) - waits;
    assert!((20..30).contains(&looks), "{looks} looks in twenty twentieths of the time");
    let refused = pool.reserve_frames(large_frames(1)).unwrap_err();
    assert!(matches!(refused, Error::OutOfFrames { .. }), "{refused}");
    // Most of the log is taken, and what has been promised stays.
    let all = pool.wal.max_reservation();
    let _most = pool.reserve_log(all).unwrap();
    let refused = pool.reserve_log(all).unwrap_err();
    assert!(matches!(refused, Error::OutOfLog { .. }), "{refused}");
    // What the upkeep has found is said, whoever is first in line.
    pool.bell.rung.lock().is_full = true;
    let refused = pool.reserve_log(all).unwrap_err();
    assert!(matches!(refused, Error::Full { .. }), "{refused}");
    pool.bell.rung.lock().is_full = false;
    hasten(std::time::Duration::ZERO);
    pool.upkeep_runs.store(false, Relaxed);
    // Nothing of it has done any harm.
    drop(held);
    assert_eq!(pool.check().map_err(|error| error.to_string()), Ok(()));
    make(&pool, large());
    assert_eq!(pool.audit(), [""; 0]);
}
