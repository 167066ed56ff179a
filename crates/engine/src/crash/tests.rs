//! Runs of the crash harness.

use terrace_io::SimulatedDisk;

use super::cycle::{self, Plan, Tally};
use super::raw::{self, CELLS, Raw};
use super::{Sizes, create, open};
use crate::ids::{Lsn, PageId, Timestamp};
use crate::pool::{Edit, Pool};
use crate::replacement::Replacement;
use crate::wal::RecordBuilder;

pub(super) const SIZES: Sizes = Sizes {
    page_bytes: 4096,
    other_page_bytes: None,
    frames: 16,
    log_capacity: 64 << 10,
    log_doublings: 0,
    log_buffer: 16 << 10,
    store_segments: 16,
    staging_pages: 8,
    replacement: Replacement::Mark,
    ring: None,
    middle: None,
    persistent: false,
};

#[test]
fn pages_survive_checkpoint_and_recovery() {
    let disk = SimulatedDisk::new(1);
    create(&disk, &SIZES);
    let files = open(&disk).unwrap();
    let mut ids = Vec::new();
    {
        let recovered = crate::recovery::recover(&files, &SIZES.options(), &Raw).unwrap();
        let pool = recovered.maintenance;
        crate::recovery::undo_losers(&pool, &files, recovered.losers, &Raw).unwrap();
        for number in 0..40u64 {
            let new = pool.new_page(pool.class(), None).unwrap();
            let id = new.id();
            let mut content = raw::content(id, &[number; CELLS]);
            let mut record = RecordBuilder::pages(Timestamp(number + 1), Lsn::NONE);
            raw::note_create(&mut record, id, &content);
            record.set_commit();
            let mut reservation = pool.reserve_log(record.len() as u64).unwrap();
            pool.change(&mut record, Some(&mut reservation), [Edit::Create(new, &mut content)]).unwrap();
            ids.push(id);
        }
        assert_eq!(pool.audit(), [""; 0]);
        pool.checkpoint_now(true).unwrap();
        assert_eq!(pool.audit(), [""; 0]);
        for (number, &id) in ids.iter().enumerate() {
            assert_eq!(raw::cells(&raw::read(&pool, id).unwrap()).unwrap(), [number as u64; CELLS]);
        }
        for &id in &ids {
            overwrite(&pool, id);
        }
        pool.wal().flush_to(pool.wal().tail()).unwrap();
    }
    let disk = disk.survivor(2);
    let files = open(&disk).unwrap();
    let recovered = crate::recovery::recover(&files, &SIZES.options(), &Raw).unwrap();
    let pool = recovered.maintenance;
    assert_eq!(recovered.losers, []);
    for (number, &id) in ids.iter().enumerate() {
        let number = number as u64;
        let expected = [number, number, 1001 + id.0, number, number, number];
        assert_eq!(raw::cells(&raw::read(&pool, id).unwrap()).unwrap(), expected, "page {id}");
    }
    assert_eq!(pool.audit(), [""; 0]);
}

pub(super) fn overwrite(pool: &Pool, id: PageId) {
    let mut guards = raw::latch_all(pool, &[id]).unwrap_or_else(|stop| panic!("{stop:?}"));
    let mut copy = Vec::new();
    guards[0].copy(&mut copy);
    let old = raw::cells(&copy).unwrap()[2];
    raw::set_cell(&mut copy, 2, 1001 + id.0);
    let mut record = RecordBuilder::pages(Timestamp(100 + id.0), Lsn::NONE);
    raw::note_write(&mut record, &copy, 2, old, 1001 + id.0);
    record.set_commit();
    pool.change(&mut record, None, [Edit::Update(&mut guards[0], &mut copy)]).unwrap();
}

/// Runs `plan`, with a panic as an error.
pub(super) fn live_caught(plan: Plan) -> Result<Tally, String> {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cycle::live(plan)));
    outcome.unwrap_or_else(|panic| {
        super::meanwhile::play(None);
        let said = panic.downcast_ref::<String>().cloned();
        Err(said.or_else(|| panic.downcast_ref::<&str>().map(|&said| said.into())).unwrap_or_default())
    })
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect("a number"))
}

/// Seeds of a test: the requested ones, or `count`, or the requested share of them.
pub(super) fn seeds(count: u64) -> std::ops::Range<u64> {
    let share = number("TERRACE_CRASH_SHARE").unwrap_or(1);
    match (number("TERRACE_CRASH_SEED"), number("TERRACE_CRASH_CYCLES")) {
        (Some(seed), cycles) => seed..seed + cycles.unwrap_or(1),
        (None, cycles) => 0..cycles.unwrap_or(count.div_ceil(share)),
    }
}

#[test]
fn nothing_is_lost_in_random_lives() {
    let seeds = seeds(160);
    let start = std::time::Instant::now();
    let mut tally = Tally::default();
    for seed in seeds.clone() {
        let plan = Plan::random(seed);
        match live_caught(plan) {
            Ok(more) => tally += more,
            Err(what) => panic!("TERRACE_CRASH_SEED={seed} replays this: {what}"),
        }
    }
    report(&tally, start);
    assert!(
        tally.compressed > 100 && tally.log_growths > 100 || seeds.end - seeds.start < 100,
        "images of every length, and growing logs, are what was tested: {tally:?}"
    );
}

#[test]
fn nothing_is_lost_with_the_log_in_persistent_memory() {
    let start = std::time::Instant::now();
    let mut tally = Tally::default();
    for seed in seeds(160) {
        let plan = if seed % 8 == 7 { Plan::aligned_ring(seed) } else { Plan::ring(seed) };
        match live_caught(plan) {
            Ok(more) => tally += more,
            Err(what) => panic!("TERRACE_CRASH_SEED={seed} replays this: {what}"),
        }
    }
    report(&tally, start);
}

#[test]
fn nothing_is_lost_with_hardly_any_log() {
    let start = std::time::Instant::now();
    let mut tally = Tally::default();
    let seeds = seeds(120);
    for seed in seeds.clone() {
        match live_caught(Plan::tight(seed)) {
            Ok(more) => tally += more,
            Err(what) => panic!("TERRACE_CRASH_SEED={seed} replays this: {what}"),
        }
    }
    report(&tally, start);
    println!("{} logs made longer in recovery", tally.log_extensions);
    assert!(tally.log_extensions > 10 || seeds.end - seeds.start < 100, "{tally:?}");
}

#[test]
fn nothing_comes_back_from_earlier_epochs() {
    for seed in 0..100 {
        live_caught(Plan::aligned(seed)).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
}

#[test]
fn nothing_is_lost_while_the_number_of_frames_changes() {
    let start = std::time::Instant::now();
    let mut tally = Tally::default();
    for seed in seeds(100) {
        match live_caught(Plan::resizing(seed)) {
            Ok(more) => tally += more,
            Err(what) => panic!("TERRACE_CRASH_SEED={seed} replays this: {what}"),
        }
    }
    report(&tally, start);
}

#[test]
fn nothing_is_lost_over_three_tiers() {
    let start = std::time::Instant::now();
    let mut tally = Tally::default();
    for seed in seeds(150) {
        match live_caught(Plan::tiers(seed)) {
            Ok(more) => tally += more,
            Err(what) => panic!("TERRACE_CRASH_SEED={seed} replays this: {what}"),
        }
    }
    report(&tally, start);
}

#[test]
fn nothing_is_lost_with_tier_and_log_in_persistent_memory() {
    let start = std::time::Instant::now();
    let mut tally = Tally::default();
    for seed in seeds(100) {
        match live_caught(Plan::persistent_with_ring(seed)) {
            Ok(more) => tally += more,
            Err(what) => panic!("TERRACE_CRASH_SEED={seed} replays this: {what}"),
        }
    }
    report(&tally, start);
    println!("{} frames adopted", tally.adopted);
}

#[test]
fn nothing_is_lost_over_a_persistent_middle_tier() {
    let start = std::time::Instant::now();
    let mut tally = Tally::default();
    let seeds = seeds(100);
    for seed in seeds.clone() {
        match live_caught(Plan::persistent(seed)) {
            Ok(more) => tally += more,
            Err(what) => panic!("TERRACE_CRASH_SEED={seed} replays this: {what}"),
        }
    }
    report(&tally, start);
    println!("{} frames adopted", tally.adopted);
    assert!(tally.adopted > seeds.end - seeds.start || seeds.end - seeds.start < 100, "{tally:?}");
}

#[test]
fn nothing_is_lost_with_pages_of_two_sizes() {
    let start = std::time::Instant::now();
    let (mut tally, mut larger) = (Tally::default(), 0);
    let seeds = seeds(120);
    for seed in seeds.clone() {
        match live_caught(Plan::mixed(seed)) {
            Ok(more) => {
                tally += more;
                larger += if Plan::mixed(seed).sizes.page_bytes == 4096 { more.compressed } else { 0 };
            }
            Err(what) => panic!("TERRACE_CRASH_SEED={seed} replays this: {what}"),
        }
    }
    report(&tally, start);
    // Pages of 4 KiB cannot be compressed.
    assert!(larger > 50 || seeds.end - seeds.start < 100, "{larger} images of pages of the other size");
    assert!(tally.states < 1000 || tally.frame_moves > 500, "frames change hands: {tally:?}");
}

#[test]
fn nothing_is_lost_with_pages_for_values() {
    let start = std::time::Instant::now();
    let mut tally = Tally::default();
    for seed in seeds(24) {
        match live_caught(Plan::values(seed)) {
            Ok(more) => tally += more,
            Err(what) => panic!("TERRACE_CRASH_SEED={seed} replays this: {what}"),
        }
    }
    report(&tally, start);
}

/// One fixed script per seed, cut off at each of its calls in turn.
#[test]
fn nothing_is_lost_at_any_call_of_a_script() {
    let start = std::time::Instant::now();
    let mut tally = Tally::default();
    let plans = [Plan::random(0), Plan::random(1), Plan::random(2), Plan::mixed(4)];
    for plan in plans {
        let (plan, seed) = (Plan { lives: 1, steps: 120, ..plan }, plan.seed);
        let calls = live_caught(Plan { crash_at: Some(u64::MAX >> 1), ..plan }).unwrap().first_life_calls;
        for call in 1..=calls {
            match live_caught(Plan { crash_at: Some(call), ..plan }) {
                Ok(more) => tally += more,
                Err(what) => panic!("seed {seed}, call {call} of {calls}: {what}"),
            }
        }
    }
    report(&tally, start);
}

/// A compaction, cut off at each of its calls in turn.
#[test]
fn nothing_is_lost_at_any_call_of_a_compaction() {
    let start = std::time::Instant::now();
    let (mut tally, mut cuts) = (Tally::default(), 0);
    for seed in 0..3 {
        // The last of three has pages of two sizes.
        let plan = if seed % 3 == 2 { Plan::mixed(seed) } else { Plan::random(seed) };
        let mut plan = Plan { lives: 1, steps: 30, compacts: true, ..plan };
        plan.sizes.store_segments = 64;
        let whole = live_caught(Plan { crash_at: Some(u64::MAX >> 1), ..plan }).unwrap();
        for call in whole.calls_before_compaction + 1..=whole.first_life_calls {
            cuts += 1;
            match live_caught(Plan { crash_at: Some(call), ..plan }) {
                Ok(more) => tally += more,
                Err(what) => panic!("seed {seed}, call {call}: {what}"),
            }
        }
    }
    println!("{cuts} calls");
    assert!(cuts > 60, "{cuts} calls are no compaction");
    report(&tally, start);
}

fn report(tally: &Tally, start: std::time::Instant) {
    let seconds = start.elapsed().as_secs_f64();
    let (states, per_second) = (tally.states, tally.states as f64 / seconds);
    println!("{states} crash states, {per_second:.0} per second; {} compressed images", tally.compressed);
}
