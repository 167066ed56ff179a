//! The log's ring in persistent memory: scripts for the bugs that random lives may miss.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use terrace_io::{Directory, OpenMode, SimulatedDisk};

use super::backup::{empty, restore};
use super::cycle::{Plan, read_all};
use super::raw::{self, CELLS, Raw};
use super::tests::SIZES;
use super::{Sizes, create, open, open_with_ring};
use crate::backup::Backup;
use crate::error::{Error, Result};
use crate::ids::{Lsn, Timestamp};
use crate::maintenance::Maintenance;
use crate::planted::{Bug, plant};
use crate::pool::Edit;
use crate::recovery::{leave_ring, recover, undo_losers};
use crate::store::files::Files;
use crate::store::ring::RING_AT;
use crate::wal::RecordBuilder;

const WITH_RING: Sizes = Sizes { ring: Some(16 << 10), ..SIZES };
const SEEDS: u64 = 20;

fn new_disk() -> SimulatedDisk {
    let disk = SimulatedDisk::new(1);
    create(&disk, &WITH_RING);
    disk
}

fn live_on(files: &Files) -> Result<Arc<Maintenance>> {
    let recovered = recover(files, &WITH_RING.options(), &Raw)?;
    undo_losers(&recovered.maintenance, files, recovered.losers, &Raw)?;
    Ok(recovered.maintenance)
}

fn live(disk: &SimulatedDisk) -> Result<Arc<Maintenance>> {
    live_on(&open_with_ring(disk, &WITH_RING)?)
}

/// Commits a page of `number` and waits for its acknowledgement.
fn commit(pool: &Maintenance, number: u64) -> Result<()> {
    let new = pool.new_page(pool.class(), None)?;
    let mut content = raw::content(new.id(), &[number; CELLS]);
    let mut record = RecordBuilder::pages(Timestamp(number), Lsn::NONE);
    raw::note_create(&mut record, new.id(), &content);
    record.set_commit();
    let mut reservation = pool.reserve_log(record.len() as u64)?;
    let appended = pool.change(&mut record, Some(&mut reservation), [Edit::Create(new, &mut content)])?;
    pool.wal().acknowledge(appended.end)
}

/// Whether the pages are exactly those of `numbers`.
fn has(pool: &Maintenance, numbers: &[u64]) -> bool {
    let found = read_all(pool).unwrap_or_default();
    found.into_values().eq(numbers.iter().map(|&number| [number; CELLS]))
}

fn ring_words(disk: &SimulatedDisk) -> Vec<u64> {
    let memory = disk.open_memory("ring", 0, OpenMode::Write).unwrap();
    memory.words(0..memory.len()).iter().map(|word| word.load(Relaxed)).collect()
}

fn put_ring(disk: &SimulatedDisk, words: &[u64]) {
    let memory = disk.open_memory("ring", 0, OpenMode::Write).unwrap();
    memory.note(0..memory.len());
    memory.words(0..memory.len()).iter().zip(words).for_each(|(word, &to)| word.store(to, Relaxed));
    memory.persist(0..memory.len()).unwrap();
}

/// Runs `script` without and with `bug`, which must make it fail.
pub(super) fn catches(bug: Bug, script: fn() -> bool) {
    assert!(script(), "it holds without the bug");
    plant(Some(bug));
    let outcome = std::panic::catch_unwind(script);
    plant(None);
    assert!(!outcome.unwrap_or(false), "{bug:?} was not caught");
}

/// Commits that only the ring has, and a power cut.
fn acknowledged_commits_survive() -> bool {
    (0..SEEDS).all(|seed| {
        let disk = new_disk();
        let pool = live(&disk).unwrap();
        for number in 1..=3 {
            commit(&pool, number).unwrap();
        }
        assert!(pool.wal().filed() < pool.wal().persistent(), "nothing was to be filed yet");
        drop(pool);
        live(&disk.survivor(seed)).is_ok_and(|pool| has(&pool, &[1, 2, 3]))
    })
}

#[test]
fn catches_acknowledge_before_ring_fence() {
    catches(Bug::AcknowledgeBeforeRingFence, acknowledged_commits_survive);
}

#[test]
fn catches_ring_unnamed() {
    catches(Bug::RingUnnamed, acknowledged_commits_survive);
}

#[test]
fn catches_analysis_without_ring() {
    catches(Bug::AnalysisWithoutRing, acknowledged_commits_survive);
}

#[test]
fn catches_append_before_filing() {
    catches(Bug::AppendBeforeFiling, acknowledged_commits_survive);
}

fn is_refused(opened: Result<Arc<Maintenance>>, why: &str) -> bool {
    match opened {
        Err(Error::LogMemory { what, .. }) => what.contains(why),
        _ => false,
    }
}

fn a_missing_ring_is_refused() -> bool {
    let disk = new_disk();
    commit(&live(&disk).unwrap(), 1).unwrap();
    let disk = disk.survivor(1);
    let refused = is_refused(live_on(&open(&disk).unwrap()), "--log-memory");
    refused && live(&disk).is_ok_and(|pool| has(&pool, &[1]))
}

#[test]
fn catches_missing_ring_accepted() {
    catches(Bug::MissingRingAccepted, a_missing_ring_is_refused);
}

fn an_older_copy_of_the_ring_is_refused() -> bool {
    let disk = new_disk();
    commit(&live(&disk).unwrap(), 1).unwrap();
    let disk = disk.survivor(1);
    let old = ring_words(&disk);
    commit(&live(&disk).unwrap(), 2).unwrap();
    let disk = disk.survivor(2);
    let new = ring_words(&disk);
    put_ring(&disk, &old);
    let refused = is_refused(live(&disk), "an older copy");
    put_ring(&disk, &new);
    refused && live(&disk).is_ok_and(|pool| has(&pool, &[1, 2]))
}

#[test]
fn catches_ring_of_earlier_life() {
    catches(Bug::RingOfEarlierLife, an_older_copy_of_the_ring_is_refused);
}

/// Two copies of a database use one ring in turn, with the same LSNs and epochs.
fn another_copys_records_do_not_come_back() -> bool {
    let disk = new_disk();
    let copy = disk.survivor(1);
    let pool = live(&disk).unwrap();
    for number in 1..=3 {
        commit(&pool, number).unwrap();
    }
    pool.release_ring().unwrap();
    drop(pool);
    put_ring(&copy, &ring_words(&disk));
    commit(&live(&copy).unwrap(), 9).unwrap();
    live(&copy.survivor(2)).is_ok_and(|pool| has(&pool, &[9]))
}

#[test]
fn catches_ring_not_cleared() {
    catches(Bug::RingNotCleared, another_copys_records_do_not_come_back);
}

/// Gives the ring up, cut off at each call, and opens without it as soon as allowed.
fn a_released_ring_is_not_needed() -> bool {
    (0..40).all(|call| {
        let disk = new_disk();
        let pool = live(&disk).unwrap();
        commit(&pool, 1).unwrap();
        disk.crash_at(disk.calls() + 1 + call);
        let released = pool.release_ring();
        drop(pool);
        let disk = disk.survivor(call);
        match live_on(&open(&disk).unwrap()) {
            Ok(pool) => has(&pool, &[1]),
            Err(Error::LogMemory { .. }) => {
                released.is_err() && live(&disk).is_ok_and(|pool| has(&pool, &[1]))
            }
            Err(_) => false,
        }
    })
}

#[test]
fn catches_release_before_filing() {
    catches(Bug::ReleaseBeforeFiling, a_released_ring_is_not_needed);
}

/// A backup whose last records are in the ring alone when it comes to copy the log.
fn a_backup_has_what_only_the_ring_holds() -> bool {
    let pool = live(&new_disk()).unwrap();
    commit(&pool, 1).unwrap();
    pool.checkpoint_now(true).unwrap();
    let (target, files) = empty(1);
    let mut backup = Backup::begin(&pool, files).unwrap();
    while !backup.holds_log() {
        backup.step().unwrap();
    }
    commit(&pool, 2).unwrap();
    assert!(pool.wal().filed() < pool.wal().persistent(), "nothing was to be filed yet");
    let done = (0..100).find_map(|_| backup.step().transpose());
    let plan = Plan { sizes: WITH_RING, ..Plan::ring(1) };
    done.is_some_and(|copied| copied.is_ok())
        && restore(&plan, &target.survivor(1)).is_ok_and(|pool| has(&pool, &[1, 2]))
}

#[test]
fn catches_backup_reads_unfiled() {
    catches(Bug::BackupReadsUnfiled, a_backup_has_what_only_the_ring_holds);
}

/// The header is whole, and the records of the log are gone.
#[test]
fn a_ring_without_its_records_is_named() {
    let lost = |disk: &SimulatedDisk| {
        let mut words = ring_words(disk);
        words[RING_AT / 8..].fill(0);
        put_ring(disk, &words);
    };
    // By the superblock, and by images whose blocks may be reused before the next superblock.
    for checkpoints in [true, false] {
        let disk = new_disk();
        let pool = live(&disk).unwrap();
        (1..=3).for_each(|number| commit(&pool, number).unwrap());
        match checkpoints {
            true => pool.checkpoint_now(true).unwrap(),
            false => {
                let dirty = pool.pages_dirty_before(pool.wal().tail());
                assert_eq!(pool.write_back(&mut pool.round_state.lock(), &dirty).unwrap(), 3);
            }
        }
        commit(&pool, 4).unwrap();
        assert!(pool.wal().filed() < pool.wal().persistent(), "the ring has the end of the log");
        drop(pool);
        let disk = disk.survivor(1);
        let words = ring_words(&disk);
        lost(&disk);
        let opened = live(&disk);
        assert!(is_refused(opened, "lost records"), "with checkpoint: {checkpoints}");
        put_ring(&disk, &words);
        assert!(has(&live(&disk).unwrap(), &[1, 2, 3, 4]));
    }
}

fn a_ring_that_another_copy_has_used_is_refused() -> bool {
    let disk = new_disk();
    commit(&live(&disk).unwrap(), 1).unwrap();
    let (one, other) = (disk.survivor(1), disk.survivor(1));
    let files = open_with_ring(&other, &WITH_RING).unwrap().with_life(4711);
    commit(&live_on(&files).unwrap(), 2).unwrap();
    drop(files);
    let mine = ring_words(&one);
    put_ring(&one, &ring_words(&other));
    let refused = is_refused(live(&one), "another copy");
    put_ring(&one, &mine);
    assert!(has(&live(&one).unwrap(), &[1]));
    // The other copy was closed in the meantime, and this one never named the ring.
    let fresh = new_disk();
    put_ring(&fresh, &ring_words(&other));
    refused && is_refused(live(&fresh), "another copy")
}

#[test]
fn catches_keep_old_ring_life() {
    catches(Bug::KeepOldRingLife, a_ring_that_another_copy_has_used_is_refused);
}

/// The files are put back as they were within this life, and the ring has gone on.
fn older_files_of_the_same_life_are_refused() -> bool {
    let disk = new_disk();
    let pool = live(&disk).unwrap();
    commit(&pool, 1).unwrap();
    let older = disk.killed();
    let mut number = 1;
    while pool.wal().filed().0 < 4 * (16 << 10) {
        number += 1;
        commit(&pool, number).unwrap();
    }
    drop(pool);
    put_ring(&older, &ring_words(&disk));
    matches!(live(&older), Err(Error::Corrupt { what, .. }) if what.contains("older copy"))
}

#[test]
fn catches_ring_forgets_filed() {
    catches(Bug::RingForgetsFiled, older_files_of_the_same_life_are_refused);
}

#[test]
fn a_ring_of_another_length_is_refused() {
    let disk = new_disk();
    commit(&live(&disk).unwrap(), 1).unwrap();
    let disk = disk.survivor(1);
    let words = ring_words(&disk);
    disk.remove("ring").unwrap();
    let longer = disk.open_memory("ring", 4096 + (32 << 10), OpenMode::CreateNew).unwrap();
    let head = 0..words.len() * 8;
    longer.words(head).iter().zip(&words).for_each(|(word, &to)| word.store(to, Relaxed));
    drop(longer);
    assert!(is_refused(live(&disk), "length"));
}

#[test]
fn a_ring_that_is_left_goes_to_the_file_at_any_call() {
    let mut left = 0;
    for call in 0..40 {
        let disk = new_disk();
        let pool = live(&disk).unwrap();
        (1..=3).for_each(|number| commit(&pool, number).unwrap());
        drop(pool);
        let disk = disk.survivor(call);
        disk.crash_at(disk.calls() + 1 + call);
        let outcome = open_with_ring(&disk, &WITH_RING).and_then(|files| leave_ring(&files));
        left += u64::from(outcome.is_ok());
        let disk = disk.survivor(call);
        let pool = match outcome {
            Ok(()) => live_on(&open(&disk).unwrap()),
            Err(_) => live(&disk),
        };
        assert!(has(&pool.unwrap(), &[1, 2, 3]), "call {call}");
    }
    assert!((1..40).contains(&left), "{left} of 40");
}

/// A kill leaves a superblock that a power cut takes back, after the next process has cleared the
/// ring.
#[test]
fn a_ring_that_is_left_twice_is_still_there_for_the_superblock_that_names_it() {
    for (first, second) in (0..20).flat_map(|first| (0..12).map(move |second| (first, second))) {
        let mut disk = new_disk();
        commit(&live(&disk).unwrap(), 1).unwrap();
        for (kills, call) in [(true, first), (false, second)] {
            disk.crash_at(disk.calls() + 1 + call);
            let _ = open_with_ring(&disk, &WITH_RING).and_then(|files| leave_ring(&files));
            disk = if kills { disk.killed() } else { disk.survivor(first * 31 + second) };
        }
        let pool = live(&disk).unwrap_or_else(|error| panic!("calls {first}, {second}: {error}"));
        assert!(has(&pool, &[1]), "calls {first}, {second}");
    }
}

#[test]
fn what_is_no_ring_is_refused_and_not_written() {
    for (at, word, why) in [(0, 1, "something else"), (7, 0, "")] {
        let disk = new_disk();
        let mut words = ring_words(&disk);
        words[at] = word;
        put_ring(&disk, &words);
        let opened = live(&disk);
        match why {
            "" => assert!(opened.is_ok()),
            why => {
                assert!(is_refused(opened, why));
                assert_eq!(ring_words(&disk), words);
            }
        }
    }
}

#[test]
fn commits_survive_a_failing_file_of_the_log() {
    let disk = new_disk();
    let pool = live(&disk).unwrap();
    commit(&pool, 1).unwrap();
    disk.fail(terrace_io::FaultPlan::from_then_on(terrace_io::CallKind::Any, 1, 5));
    // More than the ring holds: at some point nothing can be filed.
    let failed = (2..100).find_map(|number| commit(&pool, number).err().map(|error| (number, error)));
    let (number, error) = failed.expect("the ring is smaller");
    assert!(number > 3 && matches!(error, Error::Io { operation: "write", .. }), "{number}: {error}");
    assert!(matches!(commit(&pool, 100), Err(Error::Poisoned { .. })));
    drop(pool);
    disk.mend();
    let kept: Vec<u64> = (1..number).collect();
    assert!(has(&live(&disk.survivor(3)).unwrap(), &kept));
}
