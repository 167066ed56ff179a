//! Pages of two sizes share one small budget.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace_io::{Directory, MemoryDirectory, OpenMode};

use super::partition::Partition;
use super::patience::{WAIT_MAX, hasten};
use super::stats::PoolStats;
use super::view::View;
use super::{
    BufferSizes, Edit, Mode, Pool, PoolOptions, ReadReason, RecordCache, Retry, TierOptions, buffers_bytes,
    frame_cost,
};
use crate::error::Error;
use crate::ids::{Lsn, PageId, SizeClass, Timestamp};
use crate::index::NodeRedo;
use crate::maintenance::Layout;
use crate::maintenance::Maintenance;
use crate::planted::{Bug, plant};
use crate::replacement::Replacement;
use crate::store::files::Files;
use crate::store::image::COMPRESS;
use crate::store::page::{self, HEADER_BYTES, Kind};
use crate::wal::{ALLOCATES, RecordBuilder, change_kind};
use std::sync::Arc;

pub(crate) const BUDGET: u64 = 2 << 20;
const FLOOR: u32 = 12;
/// The part of a page that changes.
const CHANGING: std::ops::Range<usize> = HEADER_BYTES..HEADER_BYTES + 256;

fn class(bytes: u64) -> SizeClass {
    SizeClass::of_bytes(bytes).unwrap()
}

pub(crate) fn small() -> SizeClass {
    class(4 << 10)
}

fn large() -> SizeClass {
    class(16 << 10)
}

pub(crate) fn options(bytes: u64) -> PoolOptions {
    PoolOptions {
        frame_bytes: bytes,
        frame_bytes_max: 2 * BUDGET,
        frames_floor: FLOOR,
        buffers: BufferSizes { log: 256 << 10, staging: 96 << 10, batches: 128 << 10, batch_least: 0 },
        pages_max: 1 << 16,
        hash: crate::config::hash_of_environment(),
        store_bytes_max: 256 << 20,
        record_cache: RecordCache::Off,
        backend: crate::Backend::of_environment().unwrap(),
        replacement: Default::default(),
        tiers: TierOptions {
            middle: crate::middle::options_of_environment(small()),
            ..TierOptions::default()
        },
        mode: Mode::Inline,
        in_memory: false,
        hints: true,
    }
}

fn recover(files: &Files, options: &PoolOptions) -> Arc<Maintenance> {
    let recovered = crate::recovery::recover(files, options, &NodeRedo).unwrap();
    recovered.maintenance.recovery_done();
    recovered.maintenance
}

/// A pool without pages, whose own class is small.
pub(super) fn pool() -> (Files, Arc<Maintenance>) {
    pool_with(&options(BUDGET))
}

pub(super) fn pool_with(options: &PoolOptions) -> (Files, Arc<Maintenance>) {
    pool_of_segments(options, 64)
}

pub(crate) fn pool_of_segments(options: &PoolOptions, segment_blocks: u64) -> (Files, Arc<Maintenance>) {
    let directory = MemoryDirectory::new();
    let open = |name| directory.open(name, OpenMode::CreateNew).unwrap();
    let files = Files::new(open("pages"), open("log"));
    let layout =
        Layout { uuid: [7; 16], page_bytes: 4096, segment_blocks, log_max: 4 << 20, log_first: 4 << 20 };
    crate::maintenance::create(&files, &layout).unwrap();
    let pool = recover(&files, options);
    (files, pool)
}

/// The content of page `id` after `round` changes. Noise after the changing part varies the image's
/// length.
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

pub(crate) fn make(pool: &Pool, class: SizeClass) -> PageId {
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

pub(crate) fn change(pool: &Pool, id: PageId, round: u64) {
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

/// Compares everything but checksum and LSN.
pub(super) fn assert_is(found: &[u8], id: PageId, round: u64, what: &str) {
    let body = page::LSN_AT + 8;
    assert!(found[body..] == content(id, round)[body..], "{what}: page {id} is not as after {round} changes");
    assert_eq!(page::page_id(found), id, "{what}");
}

/// Checks that frames keep to the budget and to the floors.
fn assert_within_budget(pool: &Pool) {
    let (taken, budget) = (pool.bytes_of_frames(), pool.resizing.lock());
    assert!(taken <= budget.for_frames(pool.frames.largest()), "{taken} bytes");
    assert!(pool.frames.classes().all(|class| pool.frames.count(class) >= FLOOR));
}

fn bytes_of(pool: &Pool, class: SizeClass) -> u64 {
    u64::from(pool.frames.count(class)) * frame_cost(class)
}

/// Faults `ids` together and compares each page with the model.
fn look_at_many(
    pool: &Pool,
    ids: &[PageId],
    read_reason: ReadReason,
    model: &HashMap<PageId, u64>,
    what: &str,
) {
    super::fault_many(pool, ids, read_reason, &mut |_, error| panic!("{what}: {error}")).unwrap();
    for &id in ids {
        assert_is(&look(pool, id), id, model[&id], what);
    }
}

/// The kind of replacement of a seed: a baseline for every fourth.
fn replacement_of(seed: u64) -> Replacement {
    match seed % 8 {
        3 => Replacement::FifoPaper,
        7 => Replacement::ClockPaper,
        _ => Replacement::Mark,
    }
}

/// Counts that each run must raise.
fn counts_of(pool: &Pool) -> [u64; 4] {
    let PoolStats { evictions, images_written, images_compressed, batched_pages, .. } = &pool.stats;
    [evictions, images_written, images_compressed, batched_pages].map(|count| count.load(Relaxed))
}

#[test]
fn pages_of_two_sizes_are_what_was_written_whatever_goes_and_comes() {
    for seed in 0..8 {
        let options = PoolOptions { replacement: replacement_of(seed), ..options(BUDGET) };
        let what = format!("seed {seed}");
        let mut random = SmallRng::seed_from_u64(seed);
        let (files, pool) = pool();
        drop(pool);
        let mut pool = recover(&files, &options);
        pool.resizer().use_class(large()).unwrap();
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
                    let read_reason = if step % 2 == 0 { ReadReason::Wanted } else { ReadReason::Ahead };
                    look_at_many(&pool, &some, read_reason, &model, &what);
                }
                64 => {
                    let id = ids.swap_remove(random.random_range(0..ids.len()));
                    free(&pool, id);
                    model.remove(&id);
                    assert!(matches!(pool.read(id), Err(Retry::Missing(_)) | Ok(_)));
                    pool.wal().flush_to(pool.wal().tail()).unwrap();
                    pool.round(false).unwrap();
                }
                65 => pool.round(step % 3 == 0).unwrap(),
                66 if step % 5 == 0 => pool.checkpoint_now(step % 2 == 0).unwrap(),
                67 => pool.resizer().resize(random.random_range(BUDGET / 2..2 * BUDGET)).unwrap(),
                _ => {}
            }
            assert_within_budget(&pool);
            if step % 1500 == 1400 {
                pool.wal().flush_to(pool.wal().tail()).unwrap();
                pool.round(false).unwrap();
                assert_eq!(pool.audit(), [""; 0], "{what}, step {step}");
                counts.iter_mut().zip(counts_of(&pool)).for_each(|(count, now)| *count += now);
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

/// Reads pages of `ids`, most often the first ones.
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
    // A page in a middle tier is not missed in DRAM.
    let (_files, pool) = pool_with(&PoolOptions { tiers: TierOptions::default(), ..options(BUDGET) });
    pool.resizer().use_class(large()).unwrap();
    let [few, many] = [(large(), 150), (small(), 600)]
        .map(|(class, count)| (0..count).map(|_| make(&pool, class)).collect::<Vec<_>>());
    pool.checkpoint_now(true).unwrap();
    let mut random = SmallRng::seed_from_u64(5);
    let all = pool.bytes_of_frames();
    // Only one class is read, with more pages than the budget holds. The other keeps little more
    // than its floor.
    for (ids, mine, other) in [(&few, large(), small()), (&many, small(), large()), (&few, large(), small())]
    {
        read_some(&pool, ids, 20_000, &mut random);
        assert!(
            bytes_of(&pool, mine) * 10 > all * 8,
            "{:?}",
            crate::pool::inspect::Footprint::of(&pool).frames
        );
        assert!(
            pool.frames.count(other) < 4 * FLOOR,
            "{:?}",
            crate::pool::inspect::Footprint::of(&pool).frames
        );
        assert_eq!(pool.audit(), [""; 0]);
    }
    // Both are read alike, and end near the middle.
    let both = |reads: usize, random: &mut SmallRng| {
        for _ in 0..reads / 50 {
            read_some(&pool, &few, 10, random);
            read_some(&pool, &many, 40, random);
        }
    };
    both(40_000, &mut random);
    let moves = pool.stats.frame_moves.load(Relaxed);
    let before = bytes_of(&pool, small());
    assert!(
        (all / 4..all * 3 / 4).contains(&before),
        "{:?}",
        crate::pool::inspect::Footprint::of(&pool).frames
    );
    let taken = pool.stats.taken_bytes();
    both(40_000, &mut random);
    let more = pool.stats.frame_moves.load(Relaxed) - moves;
    let steps = (pool.stats.taken_bytes() - taken) / (BUDGET / 64);
    assert!(more * 50 < steps, "{more} of {steps} steps moved something");
    assert!(
        bytes_of(&pool, small()).abs_diff(before) < all / 8,
        "{:?}",
        crate::pool::inspect::Footprint::of(&pool).frames
    );
}

#[test]
fn dirty_pages_are_written_ahead_only_of_a_sweep_that_is_near() {
    let (_files, pool) = pool();
    let pool = &pool.pool;
    let partition: Partition = small().into();
    let idle = || pool.replacer.free(partition).lock().idle(&pool.frames);
    let ahead = |urgent| pool.dirty_ahead(partition, urgent, true, 8).len();
    make(pool, small());
    assert!(idle() > 200);
    assert_eq!((ahead(false), ahead(true)), (0, 1));
    while idle() > 60 {
        make(pool, small());
    }
    assert!(ahead(false) > 0);
}

#[test]
fn the_same_load_moves_the_same_frames() {
    let run = || {
        let (_files, pool) = pool();
        pool.resizer().use_class(large()).unwrap();
        let ids: Vec<_> = (0..120).map(|_| make(&pool, large())).collect();
        read_some(&pool, &ids, 5000, &mut SmallRng::seed_from_u64(1));
        crate::pool::inspect::Footprint::of(&pool).frames
    };
    let first = run();
    assert!(first[1].gained > 10 && first[0].lost > 10, "{first:?}");
    assert_eq!(first, run());
}

#[test]
fn another_budget_is_divided_in_proportion_and_no_class_is_left_without() {
    let (_files, pool) = pool();
    pool.resizer().use_class(large()).unwrap();
    let ids: Vec<_> = (0..120).map(|_| make(&pool, large())).collect();
    let more: Vec<_> = (0..200).map(|_| make(&pool, small())).collect();
    read_some(&pool, &ids, 3000, &mut SmallRng::seed_from_u64(1));
    let counts = || [small(), large()].map(|class| pool.frames.count(class));
    let above = |count: u32| f64::from(count - FLOOR);
    let before = counts();
    assert!(before[0] > 2 * FLOOR && before[1] > 2 * FLOOR, "{before:?}");
    for bytes in [BUDGET * 3 / 4, 2 * BUDGET, BUDGET] {
        pool.resizer().resize(bytes).unwrap();
        assert_within_budget(&pool);
        let now = counts();
        let ratio = (above(now[0]) / above(now[1])) / (above(before[0]) / above(before[1]));
        assert!((0.8..1.25).contains(&ratio), "{before:?} became {now:?}");
        let budget = pool.resizing.lock().for_frames(large());
        assert!(pool.bytes_of_frames() + frame_cost(large()) > budget, "all of it is used");
    }
    // The least possible budget, and one byte less.
    let floors = buffers_bytes(large()) + u64::from(FLOOR) * (frame_cost(small()) + frame_cost(large()));
    pool.resizer().resize(floors).unwrap();
    assert_eq!(counts(), [FLOOR, FLOOR]);
    let refused = pool.resizer().resize(floors - 1).unwrap_err();
    assert!(matches!(&refused, Error::Config(what) if what.contains("give it about")), "{refused}");
    assert_eq!(counts(), [FLOOR, FLOOR]);
    for (&id, round) in ids.iter().chain(&more).zip(std::iter::repeat(0)) {
        assert_is(&look(&pool, id), id, round, "at the floors");
    }
    pool.resizer().resize(BUDGET).unwrap();
    assert_eq!(
        counts()[1],
        FLOOR,
        "nobody has anything above the floors, so it is the database's own class's"
    );
    assert!(counts()[0] > before[0]);
    assert_eq!(pool.audit(), [""; 0]);
}

/// Several threads may hold a few frames each and wait for more. The class alone has too few for
/// any of them.
#[test]
fn a_class_whose_frames_are_all_in_hands_is_given_others() {
    // A middle tier has frames for such pages, too.
    let (_files, pool) = pool_with(&PoolOptions { tiers: TierOptions::default(), ..options(BUDGET) });
    pool.resizer().use_class(large()).unwrap();
    assert_eq!(pool.frames.count(large()), FLOOR);
    let held: Vec<_> = (0..3 * FLOOR).map(|_| pool.new_page(large(), None).unwrap()).collect();
    assert_within_budget(&pool);
    drop(held);
    assert_eq!(pool.audit(), [""; 0]);
    // This ends when other classes are near their floors.
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
    pool.resizer().resize(too_little).unwrap();
    let count = pool.frames.count(small());
    let largest = class(64 << 10);
    let refused = pool.resizer().use_class(largest).unwrap_err();
    assert!(matches!(&refused, Error::Config(what) if what.contains("give it about")), "{refused}");
    pool.resizer().resize(2 * BUDGET).unwrap();
    pool.resizer().use_class(largest).unwrap();
    pool.resizer().use_class(largest).unwrap();
    assert_eq!((pool.frames.count(largest), pool.frames.classes().count()), (FLOOR, 2));
    let id = make(&pool, largest);
    assert_is(&look(&pool, id), id, 0, "the largest");
    // The budget that was too little before is refused now, and the frames stay.
    let before = pool.frames.count(small());
    assert!(before > count && matches!(pool.resizer().resize(too_little), Err(Error::Config(_))));
    assert_eq!((pool.frames.count(small()), pool.frames.count(largest)), (before, FLOOR));
    assert_eq!(pool.audit(), [""; 0]);
}

#[test]
fn a_class_longer_than_a_buffer_is_refused() {
    let directory = MemoryDirectory::new();
    let open = |name| directory.open(name, OpenMode::CreateNew).unwrap();
    let files = Files::new(open("pages"), open("log"));
    let layout =
        Layout { uuid: [7; 16], page_bytes: 4096, segment_blocks: 8, log_max: 1 << 20, log_first: 1 << 20 };
    crate::maintenance::create(&files, &layout).unwrap();
    let sizes = options(2 * BUDGET).buffers;
    let narrow = [
        BufferSizes { staging: 32 << 10, batches: 256 << 10, ..sizes },
        BufferSizes { staging: 64 << 10, batches: 64 << 10, ..sizes },
        BufferSizes { staging: 64 << 10, batches: 256 << 10, ..sizes },
    ];
    for buffers in narrow {
        let pool = recover(&files, &PoolOptions { buffers, ..options(2 * BUDGET) });
        let refused = pool.resizer().use_class(class(64 << 10)).unwrap_err();
        assert!(matches!(&refused, Error::Config(what) if what.contains("page_size_max")), "{refused}");
        assert_eq!(pool.frames.classes().count(), 1);
        pool.resizer().use_class(class(32 << 10)).unwrap();
    }
}

#[test]
fn threads_find_whole_pages_of_both_sizes_while_frames_change_hands() {
    let (_files, pool) = pool();
    pool.resizer().use_class(large()).unwrap();
    let ids: Vec<PageId> =
        (0..500).map(|number| make(&pool, if number % 4 == 0 { large() } else { small() })).collect();
    let rounds: Vec<Mutex<u64>> = ids.iter().map(|_| Mutex::new(0)).collect();
    let (done, looks) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (pool, ids, rounds, done, looks) = (&pool, &ids, &rounds, &done, &looks);
        let round_state = scope.spawn(move || pool.run_maintenance());
        let others: Vec<_> = (0..3)
            .map(|seed| {
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(seed);
                    for step in 0..6000 {
                        // Alternate between the two sizes.
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
                pool.resizer().resize(random.random_range(BUDGET / 2..2 * BUDGET)).unwrap();
                std::thread::yield_now();
            }
        });
        let outcomes: Vec<_> = others.into_iter().map(|thread| thread.join()).collect();
        done.store(true, Relaxed);
        let resized = resizer.join();
        pool.stop_maintenance();
        assert!(round_state.join().is_ok() && resized.is_ok());
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

/// Whether two reservations above the reservable half enter together.
fn passes_the_line(bug: Option<Bug>) -> bool {
    let (_files, pool) = pool();
    pool.resizer().use_class(large()).unwrap();
    let half = pool.frames.count(large()) / 2;
    let first = pool.reserve_frames(large_frames(half - 1)).unwrap();
    let (entered, small_entered) = (AtomicBool::new(false), AtomicBool::new(false));
    let waiting = || pool.stats.frame_reservation_waits.load(Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            plant(bug);
            // More than half is granted only alone.
            let second = pool.reserve_frames(large_frames(half + 1)).unwrap();
            assert_eq!(second.of(large()), half + 1);
            entered.store(true, Relaxed);
        });
        while waiting() == 0 && !entered.load(Relaxed) {
            std::thread::yield_now();
        }
        let passed = entered.load(Relaxed);
        if !passed {
            // One frame would fit, but the line is not empty.
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

/// The maintenance thread does nothing: neither frames nor reservations come free.
#[test]
fn waits_end_when_nothing_has_moved_for_the_stated_time() {
    // A middle tier has frames for such pages, too.
    let (_files, pool) = pool_with(&PoolOptions { tiers: TierOptions::default(), ..options(BUDGET) });
    pool.resizer().use_class(large()).unwrap();
    let held: Vec<_> = (0..FLOOR).map(|_| pool.new_page(large(), None).unwrap()).collect();
    let _reserved = pool.reserve_frames(large_frames(FLOOR)).unwrap();
    pool.requests.maintenance_runs.store(true, Relaxed);
    hasten(WAIT_MAX / 20);
    let waits = pool.stats.frame_waits.load(Relaxed);
    let refused = pool.new_page(large(), None).unwrap_err();
    assert!(matches!(refused, Error::OutOfFrames { .. }), "{refused}");
    let looks = pool.stats.frame_waits.load(Relaxed) - waits;
    assert!((20..30).contains(&looks), "{looks} looks in twenty twentieths of the time");
    let refused = pool.reserve_frames(large_frames(1)).unwrap_err();
    assert!(matches!(refused, Error::OutOfFrames { .. }), "{refused}");
    // Most of the log is reserved and stays so.
    let all = pool.wal.max_reservation();
    let _most = pool.reserve_log(all).unwrap();
    let refused = pool.reserve_log(all).unwrap_err();
    assert!(matches!(refused, Error::OutOfLog { .. }), "{refused}");
    // A full page file is reported to any waiting commit.
    pool.requests.wake_up.state.lock().is_full = true;
    let refused = pool.reserve_log(all).unwrap_err();
    assert!(matches!(refused, Error::Full { .. }), "{refused}");
    pool.requests.wake_up.state.lock().is_full = false;
    hasten(std::time::Duration::ZERO);
    pool.requests.maintenance_runs.store(false, Relaxed);
    // The failed waits did no harm.
    drop(held);
    assert_eq!(pool.check().map_err(|error| error.to_string()), Ok(()));
    make(&pool, large());
    assert_eq!(pool.audit(), [""; 0]);
}
