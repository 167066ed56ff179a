//! A log full to its last record when recovery begins.
//!
//! Redo and undo append, and the cut must not move past what they still read. So the log grows
//! during recovery, even beyond its largest capacity.

use std::rc::Rc;
use std::sync::Arc;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use terrace_io::{AlignedBuffer, CallKind, Directory, FaultPlan, OpenMode, SimulatedDisk};

use super::cycle::read_all;
use super::meanwhile;
use super::model::Pages;
use super::raw::{self, CELLS, Raw};
use super::tests::SIZES;
use super::{Sizes, create, open_with_ring};
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, Timestamp};
use crate::maintenance::{Maintenance, words_per_page};
use crate::planted::{Bug, plant};
use crate::pool::{Edit, Pool, PoolOptions};
use crate::recovery::{recover, undo_losers};
use crate::store::superblock::Slots;
use crate::wal::{BLOCK, Class, RecordBuilder};

/// The cleaner has nothing to do.
const FULL: Sizes = Sizes { frames: 12, store_segments: 64, ..SIZES };
const PAGES: u64 = 60;
/// Changes of the loser.
const LOST_CHANGES: u64 = 40;
const ENOSPC: i32 = 28;

/// How the log came to be full.
#[derive(Clone, Copy, Debug, Default)]
struct Case {
    /// The oldest records are those of a transaction that did not commit.
    has_loser: bool,
    has_ring: bool,
    /// The newest superblock is lost, and the other one has an older cut.
    loses_superblock: bool,
}

impl Case {
    fn sizes(self) -> Sizes {
        Sizes { ring: self.has_ring.then_some(16 << 10), ..FULL }
    }

    fn recover(self, disk: &SimulatedDisk) -> Result<Arc<Maintenance>> {
        recover_with(disk, &self.sizes(), &self.sizes().options())
    }

    /// Else redo finds the images of the first half, and when it logs, the cut may move.
    fn needs_longer_log(self) -> bool {
        self.has_loser || !self.loses_superblock
    }

    fn all() -> impl Iterator<Item = Case> {
        (0..8).map(|bits| Case {
            has_loser: bits & 1 > 0,
            has_ring: bits & 2 > 0,
            loses_superblock: bits & 4 > 0,
        })
    }
}

fn recover_with(disk: &SimulatedDisk, sizes: &Sizes, options: &PoolOptions) -> Result<Arc<Maintenance>> {
    let files = open_with_ring(disk, sizes)?;
    let recovered = recover(&files, options, &Raw)?;
    undo_losers(&recovered.maintenance, &files, recovered.losers, &Raw)?;
    Ok(recovered.maintenance)
}

/// Sets a cell to `value`, as a commit, or as a change of `loser` after its record `previous`.
fn write(
    pool: &Pool,
    id: PageId,
    (cell, value): (usize, u64),
    timestamp: u64,
    loser: Option<Lsn>,
) -> Result<Lsn> {
    let mut guards = raw::latch_all(pool, &[id]).unwrap_or_else(|stop| panic!("{stop:?}"));
    let mut copy = Vec::new();
    guards[0].copy(&mut copy);
    let old = raw::cells(&copy).unwrap()[cell];
    raw::set_cell(&mut copy, cell, value);
    let mut record = RecordBuilder::pages(Timestamp(timestamp), loser.unwrap_or(Lsn::NONE));
    if loser.is_none() {
        record.set_commit();
    } else {
        let mut undo = Vec::new();
        raw::undo_entry(&mut undo, id, cell, old);
        record.undo(&undo);
    }
    raw::note_write(&mut record, &copy, cell, old, value);
    pool.change(&mut record, None, [Edit::Update(&mut guards[0], &mut copy)]).map(|appended| appended.lsn)
}

fn create_page(pool: &Pool, number: u64) -> (PageId, [u64; CELLS]) {
    let new = pool.new_page(pool.class(), None).unwrap();
    let (id, cells) = (new.id(), [8 * number; CELLS]);
    let mut content = raw::content(id, &cells);
    let mut record = RecordBuilder::pages(Timestamp(number + 1), Lsn::NONE);
    raw::note_create(&mut record, id, &content);
    record.set_commit();
    let mut reservation = pool.reserve_log(record.len() as u64).unwrap();
    pool.change(&mut record, Some(&mut reservation), [Edit::Create(new, &mut content)]).unwrap();
    (id, cells)
}

fn create_pages(pool: &Pool) -> (Vec<PageId>, Pages) {
    let created: Vec<_> = (0..PAGES).map(|number| create_page(pool, number)).collect();
    (created.iter().map(|(id, _)| *id).collect(), created.iter().map(|(id, cells)| (id.0, *cells)).collect())
}

fn left_above(pool: &Pool, cut: Lsn) -> u64 {
    cut.0 / BLOCK * BLOCK + pool.wal().capacity() - pool.wal().tail().0
}

fn fill_log(pool: &Pool) {
    let mut end = RecordBuilder::end(Timestamp(1), Lsn::NONE);
    while let Some(mut reservation) = pool.wal().reserve(end.len() as u64, Class::System) {
        pool.wal().append(&mut end, Some(&mut reservation)).unwrap();
    }
}

/// Commits changes, page after page, until at most `left` bytes remain above `cut`.
fn change_all(
    pool: &Pool,
    ids: &[PageId],
    expected: &mut Pages,
    (cut, left): (Lsn, u64),
    timestamp: &mut u64,
) {
    // Later changes of a page are redone too: each pass over the pages evicts all of them.
    for &id in ids.iter().cycle() {
        if left_above(pool, cut) <= left {
            return;
        }
        *timestamp += 1;
        let value = *timestamp * 8;
        write(pool, id, (2, value), *timestamp, None).unwrap();
        expected.get_mut(&id.0).unwrap()[2] = value;
    }
}

/// A disk with changes of more pages than there are frames, in a log that they fill, and the
/// expected content.
fn full(case: Case) -> (SimulatedDisk, Pages) {
    let disk = SimulatedDisk::new(1);
    create(&disk, &case.sizes());
    let pool = case.recover(&disk).unwrap();
    let (ids, mut expected) = create_pages(&pool);
    pool.checkpoint_now(true).unwrap();
    let wal = pool.wal();
    let (cut, mut timestamp) = (wal.cut(), PAGES + 1);
    let held = wal.enter();
    if case.has_loser {
        let mut previous = Lsn::NONE;
        for number in 0..LOST_CHANGES {
            let id = ids[number as usize % ids.len()];
            previous = write(&pool, id, (5, 8 * number + 16), PAGES + 1, Some(previous)).unwrap();
        }
    }
    if case.loses_superblock {
        change_all(&pool, &ids, &mut expected, (cut, wal.capacity() / 2), &mut timestamp);
        drop(held);
        // One superblock, with a later cut. The loser counts as ended, and only in this one.
        let target = wal.tail();
        wal.file_to(target).unwrap();
        pool.checkpoint_to(&mut pool.round_state.lock(), target).unwrap();
        assert!(wal.cut() > cut);
        change_all(&pool, &ids, &mut expected, (cut, 1 << 10), &mut timestamp);
    } else {
        change_all(&pool, &ids, &mut expected, (cut, 4 << 10), &mut timestamp);
        fill_log(&pool);
        drop(held);
    }
    wal.flush_to(wal.tail()).unwrap();
    assert!(left_above(&pool, cut) <= 1 << 10, "{} bytes of log are left", left_above(&pool, cut));
    drop(pool);
    let left = disk.survivor(1);
    if case.loses_superblock {
        damage_newest_superblock(&left);
    }
    (left, expected)
}

fn damage_newest_superblock(disk: &SimulatedDisk) {
    let pages = disk.open("pages", OpenMode::Write).unwrap();
    let sequence = |slot: u64| {
        let mut sector = AlignedBuffer::zeroed(512);
        pages.read_at(slot * (16 << 10), &mut sector).unwrap();
        u64::from_le_bytes(sector[40..48].try_into().unwrap())
    };
    let newest = u64::from(sequence(1) > sequence(0));
    let mut sector = AlignedBuffer::zeroed(512);
    sector.fill(0xa5);
    pages.write_at(newest * (16 << 10), &sector).unwrap();
    pages.sync().unwrap();
    let (slots, _) = Slots::open(pages).unwrap();
    assert!(slots.is_alone());
}

fn check(pool: &Arc<Maintenance>, expected: &Pages, what: &str) {
    assert_eq!(read_all(pool).unwrap(), *expected, "{what}");
    assert_eq!(pool.audit(), [""; 0], "{what}");
}

/// The database goes on with its longer log, and so does the next life.
fn go_on(disk: &SimulatedDisk, pool: Arc<Maintenance>, expected: &mut Pages, case: Case) {
    let capacity = pool.wal().capacity();
    assert_eq!(pool.wal().stats().capacity_max, capacity, "{case:?}");
    let ids: Vec<PageId> = expected.keys().map(|&id| PageId(id)).collect();
    for (number, &id) in (1..2000).zip(ids.iter().cycle()) {
        drop(pool.reserve_log(1 << 10).unwrap());
        write(&pool, id, (3, number * 8), 5000 + number, None).unwrap();
        expected.get_mut(&id.0).unwrap()[3] = number * 8;
    }
    pool.wal().flush_to(pool.wal().tail()).unwrap();
    check(&pool, expected, "later");
    assert_eq!(pool.wal().capacity(), capacity, "{case:?}: commits let it grow no further");
    drop(pool);
    let pool = case.recover(&disk.survivor(2)).unwrap();
    check(&pool, expected, "in the next life");
    assert_eq!(pool.wal().capacity(), capacity, "{case:?}");
}

#[test]
fn recovery_of_a_full_log_finds_room() {
    for case in Case::all() {
        let (disk, mut expected) = full(case);
        let pool = case.recover(&disk).unwrap_or_else(|error| panic!("{case:?}: {error}"));
        check(&pool, &expected, &format!("{case:?}"));
        assert_eq!(pool.wal().capacity() == 2 * FULL.log_capacity, case.needs_longer_log(), "{case:?}");
        go_on(&disk, pool, &mut expected, case);
    }
}

/// Commits after the log has grown, and the superblock that names the longer ring is lost.
#[test]
fn a_longer_ring_that_no_superblock_names_any_more_is_told() {
    let outcome = |is_used: bool| {
        let disk = SimulatedDisk::new(1);
        create(&disk, &FULL);
        let case = Case::default();
        let pool = case.recover(&disk).unwrap();
        let (ids, mut expected) = create_pages(&pool);
        let wal = pool.wal();
        // In the second lap, records have other offsets in the longer ring.
        for number in 1.. {
            drop(pool.reserve_log(1 << 10).unwrap());
            write(&pool, ids[0], (2, number * 8), 900, None).unwrap();
            expected.get_mut(&ids[0].0).unwrap()[2] = number * 8;
            let at = wal.tail().0 % (2 * FULL.log_capacity);
            if (FULL.log_capacity..FULL.log_capacity * 5 / 4).contains(&at) {
                break;
            }
        }
        let _held = wal.enter();
        pool.checkpoint_now(true).unwrap();
        pool.extend_log(&mut pool.round_state.lock()).unwrap();
        let cut = wal.cut();
        assert_eq!(cut.0 / FULL.log_capacity % 2, 1);
        let left = wal.capacity() - if is_used { FULL.log_capacity / 2 } else { 0 };
        change_all(&pool, &ids, &mut expected, (cut, left), &mut 1000);
        wal.flush_to(wal.tail()).unwrap();
        let left = disk.survivor(1);
        damage_newest_superblock(&left);
        case.recover(&left).map(|pool| read_all(&pool).unwrap() == expected)
    };
    assert!(outcome(false).is_ok_and(|is_whole| is_whole));
    assert!(matches!(outcome(true), Err(Error::Corrupt { .. })));
}

/// Each try goes on with the disk that the one before has left.
fn cut_at_each_call(case: Case) {
    let (mut disk, expected) = full(case);
    for call in 1.. {
        disk.crash_at(disk.calls() + call);
        match case.recover(&disk) {
            Ok(pool) => {
                disk.crash_at(u64::MAX);
                println!("{case:?}: {call} tries, {} bytes", pool.wal().capacity());
                assert!(
                    call > 30 && pool.wal().capacity() <= 4 * FULL.log_capacity,
                    "{case:?}: {call} tries"
                );
                return check(&pool, &expected, &format!("{case:?}"));
            }
            Err(error) => assert!(disk.crashed().is_some(), "{case:?}, try {call}: {error}"),
        }
        disk = if call % 3 == 0 { disk.killed() } else { disk.survivor(call) };
    }
}

#[test]
fn a_recovery_that_is_cut_off_at_each_call_ends_at_last() {
    Case::all().for_each(cut_at_each_call);
}

#[test]
fn a_disk_without_room_for_a_longer_log_loses_nothing() {
    for case in Case::all() {
        let (disk, expected) = full(case);
        for _ in 0..3 {
            disk.fail(FaultPlan::from_then_on(CallKind::SetLen, 1, ENOSPC));
            let error = case.recover(&disk).err();
            let is_told =
                matches!(&error, Some(Error::Full { what }) if what.contains("the log has to grow"));
            assert_eq!(is_told, case.needs_longer_log(), "{case:?}: {error:?}");
            disk.mend();
        }
        check(&case.recover(&disk.survivor(4)).unwrap(), &expected, &format!("{case:?}"));
    }
}

/// Pages of as many chunks, whose images are scattered.
const SCATTERED: u64 = 100;
const SCATTERED_LOG: u64 = 256 << 10;
/// The least that these pages and chunks can have.
const SEGMENTS: u64 = 33;

fn scattered() -> (Sizes, PoolOptions) {
    let sizes = Sizes { store_segments: SEGMENTS, log_capacity: SCATTERED_LOG, ..FULL };
    (sizes, PoolOptions { pages_max: 1 << 17, ..sizes.options() })
}

/// A full page file, whose changed pages are each of another chunk.
fn full_disk(seed: u64, is_log_full: bool) -> (SimulatedDisk, Pages) {
    let (sizes, options) = scattered();
    let disk = SimulatedDisk::new(seed);
    create(&disk, &sizes);
    let pool = recover_with(&disk, &sizes, &options).unwrap();
    let (mut ids, mut expected) = (Vec::new(), Pages::new());
    for number in 0..SCATTERED {
        // Ids that were taken, but never used.
        (1..words_per_page(FULL.page_bytes)).for_each(|_| _ = pool.ids.lock().take(pool.class(), 1 << 17));
        let (id, cells) = create_page(&pool, number);
        ids.push(id);
        expected.insert(id.0, cells);
    }
    pool.checkpoint_now(true).unwrap();
    let (mut random, mut timestamp) = (SmallRng::seed_from_u64(seed), SCATTERED);
    let mut change = || {
        let id = *ids.choose(&mut random).unwrap();
        timestamp += 1;
        write(&pool, id, (2, timestamp * 8), timestamp, None).unwrap();
        expected.get_mut(&id.0).unwrap()[2] = timestamp * 8;
    };
    for _ in 0..100 {
        (0..10).for_each(|_| change());
        pool.checkpoint_now(true).unwrap();
    }
    let wal = pool.wal();
    let _held = wal.enter();
    let most = if is_log_full { wal.capacity() - (8 << 10) } else { wal.capacity() / 4 };
    while wal.tail().0 - wal.cut().0 < most {
        change();
    }
    if is_log_full {
        fill_log(&pool);
    }
    wal.flush_to(wal.tail()).unwrap();
    (disk.survivor(seed), expected)
}

fn recover_full_disks(is_log_full: bool) {
    let (sizes, options) = scattered();
    for seed in 0..20 {
        let (disk, expected) = full_disk(seed, is_log_full);
        if !is_log_full {
            // Not even the log finds room, and it needs none.
            disk.fail(FaultPlan::from_then_on(CallKind::SetLen, 1, ENOSPC));
        }
        let pool =
            recover_with(&disk, &sizes, &options).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        check(&pool, &expected, &format!("seed {seed}"));
        assert_eq!(pool.wal().capacity() > SCATTERED_LOG, is_log_full, "seed {seed}");
    }
}

#[test]
fn recovery_with_a_full_page_file_needs_no_longer_log() {
    recover_full_disks(false);
}

#[test]
fn recovery_with_a_full_page_file_and_a_full_log_makes_the_log_longer() {
    recover_full_disks(true);
}

/// Recovers while maintenance logs more than redo reads, so that the log has taken the old blocks
/// of records before they are read.
fn recovers_beside_many_records() -> bool {
    let case = Case { has_loser: true, ..Case::default() };
    let (disk, expected) = full(case);
    meanwhile::play(Some(Rc::new(|pool: &Pool| {
        let mut end = RecordBuilder::end(Timestamp(1), Lsn::NONE);
        while pool.wal().capacity() > FULL.log_capacity && left_above(pool, pool.wal().cut()) > 16 << 10 {
            pool.wal().append(&mut end, None).unwrap();
        }
    })));
    let recovered = case.recover(&disk);
    meanwhile::play(None);
    recovered.is_ok_and(|pool| read_all(&pool).is_ok_and(|pages| pages == expected))
}

#[test]
fn catches_read_old_ring() {
    assert!(recovers_beside_many_records());
    plant(Some(Bug::ReadOldRing));
    let outcome = std::panic::catch_unwind(recovers_beside_many_records);
    plant(None);
    meanwhile::play(None);
    assert!(!outcome.unwrap_or(false));
}
