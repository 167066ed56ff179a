//! A middle tier with pages of several sizes, and frames that go from one size to another.

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::frame_tests::{assert_is, change, make, options, pool_with, small};
use super::partial_tests::{change_by_lines, is_partial, make_below, point};
use super::partition::Partition;
use super::tier::migration::{CleanVictims, Migration, Policy};
use super::tier_tests::{Whereabouts, evict, policy, pool_of, read, stats, whereabouts};
use super::{MiddleOptions, Pool, PoolOptions, TierOptions, frame_bytes};
use crate::backend::Backend;
use crate::ids::{PageId, SizeClass};
use crate::maintenance::Maintenance;
use crate::migration::Choice;
use crate::planted::{Bug, plant};

const DRAM_FRAMES: u32 = 300;

fn large() -> SizeClass {
    SizeClass::of_bytes(16 << 10).unwrap()
}

fn stay() -> Policy {
    policy(0.0, 0.0, 1.0, 1.0)
}

fn move_up() -> Policy {
    policy(1.0, 1.0, 1.0, 1.0)
}

/// A pool with two sizes of pages, and a middle tier of `frames` small frames.
fn pool(frames: u32, policy: Policy) -> Arc<Maintenance> {
    let pool = pool_of(DRAM_FRAMES, frames, policy, CleanVictims::Always);
    pool.resizer().use_class(large()).unwrap();
    pool
}

/// Such a pool whose point reads promote pages of the own size without their lines.
fn pool_by_lines(frames: u32) -> Arc<Maintenance> {
    pool_by(Backend::Frames, frames, move_up(), Some(64))
}

fn pool_by(backend: Backend, frames: u32, policy: Policy, lines: Option<u32>) -> Arc<Maintenance> {
    let clean_victims = Some(CleanVictims::Always);
    let migration = Migration { clean_victims, ..Choice::Fixed(policy).into() };
    let middle = MiddleOptions { frames, migration, lines, minis: false };
    let tiers = TierOptions { middle: Some(middle), ..TierOptions::default() };
    let options = options(frame_bytes(small(), 2 * DRAM_FRAMES));
    let pool = pool_with(&PoolOptions { tiers, backend, ..options }).1;
    pool.resizer().use_class(large()).unwrap();
    pool
}

fn frames(pool: &Pool) -> Vec<u64> {
    stats(pool).classes.iter().map(|class| class.frames).collect()
}

fn assert_well(pool: &Maintenance, ids: &[PageId], what: &str) {
    assert_eq!(pool.audit(), [""; 0], "{what}");
    ids.iter().for_each(|&id| assert_is(&read(pool, id), id, 0, what));
}

#[test]
fn pages_of_each_size_go_all_ways() {
    let pool = pool(64, stay());
    assert_eq!((frames(&pool), stats(&pool).capacity_bytes), (vec![32, 8], 256 << 10));
    for class in [small(), large()] {
        let before = stats(&pool);
        let id = make(&pool, class);
        assert_eq!(whereabouts(&pool, id), Whereabouts::Middle);
        read(&pool, id);
        pool.set_policy(move_up());
        read(&pool, id);
        assert_ne!(whereabouts(&pool, id), Whereabouts::Middle);
        assert!(evict(&pool, id));
        assert_eq!(whereabouts(&pool, id), Whereabouts::Middle);
        pool.checkpoint_now(true).unwrap();
        assert!(evict(&pool, id));
        assert_eq!(whereabouts(&pool, id), Whereabouts::Store);
        pool.set_policy(stay());
        assert_is(&read(&pool, id), id, 0, "from the store");
        let ids = [id];
        pool.checkpoint_now(true).unwrap();
        assert!(evict(&pool, id));
        super::fault_many(&pool, &ids, super::ReadReason::Wanted, &mut |at, error| panic!("{at}: {error}"))
            .unwrap();
        assert_eq!(whereabouts(&pool, id), Whereabouts::Middle);
        let since = stats(&pool).since(&before);
        let moved = since.migrations;
        assert_eq!((since.writes.created, moved.store_to_middle, moved.middle_to_dram), (1, 2, 1));
        assert_eq!(moved.dram_to_middle + moved.dram_to_middle_uncopied, 1);
        assert_eq!((moved.middle_to_store, since.other_sizes), (2, 0));
        let page_bytes = class.page_bytes() as u64;
        // The promotion, and an image for a checkpoint.
        assert_eq!(since.read_bytes, 2 * page_bytes);
        assert_eq!(since.written_bytes, (3 + moved.dram_to_middle) * page_bytes);
    }
    let classes = stats(&pool).classes;
    assert!(classes.iter().all(|class| class.used == 1 && class.dram_used == 0), "{classes:?}");
    assert_eq!(pool.audit(), [""; 0]);
}

#[test]
fn a_size_without_room_for_a_page_of_each_is_counted() {
    let pool = pool(4, stay());
    let other = make(&pool, large());
    assert_eq!((whereabouts(&pool, other), stats(&pool).other_sizes), (Whereabouts::Dram, 1));
    pool.checkpoint_now(true).unwrap();
    assert!(evict(&pool, other));
    assert_eq!(whereabouts(&pool, other), Whereabouts::Store);
    read(&pool, other);
    assert_eq!((stats(&pool).other_sizes, frames(&pool)), (2, vec![4]));
}

/// A size that comes late finds all frames with memory: it gets one, and the others by its misses.
#[test]
fn a_size_that_comes_late_gets_its_first_frame_from_others() {
    let pool = pool_of(DRAM_FRAMES, 16, stay(), CleanVictims::Always);
    let ids: Vec<PageId> = (0..16).map(|_| make(&pool, small())).collect();
    pool.resizer().use_class(large()).unwrap();
    assert_eq!(frames(&pool), [12, 1]);
    let there = |id: &&PageId| whereabouts(&pool, **id) == Whereabouts::Middle;
    assert_eq!(ids.iter().filter(there).count(), 12);
    assert_well(&pool, &ids, "a page was written for the frame");
}

/// Reads pages of `class` out of many, until frames have moved to it.
fn read_until_gained(pool: &Pool, ids: &[PageId], seed: u64) -> u64 {
    let class = ids[0].class().unwrap();
    let gained =
        || stats(pool).classes.iter().find(|one| one.page_bytes == class.page_bytes() as u64).unwrap().gained;
    let (before, mut random) = (gained(), SmallRng::seed_from_u64(seed));
    for _ in 0..20_000 {
        let id = ids[random.random_range(0..ids.len())];
        assert_is(&read(pool, id), id, 0, &format!("seed {seed}"));
        if gained() > before {
            break;
        }
    }
    gained() - before
}

#[test]
fn large_pages_make_room_for_small_ones_and_small_ones_for_large_ones() {
    for frames_of_tier in [64, 256] {
        let pool = pool(frames_of_tier, stay());
        let of_class = |class, count| -> Vec<PageId> { (0..count).map(|_| make(&pool, class)).collect() };
        let (large_ids, small_ids) =
            (of_class(large(), frames_of_tier / 2), of_class(small(), 2 * frames_of_tier));
        let even = frames(&pool);
        assert!(read_until_gained(&pool, &large_ids, 1) > 0, "{:?}", stats(&pool).classes);
        let after = frames(&pool);
        assert!(after[1] > even[1] && after[0] < even[0], "{even:?} {after:?}");
        assert!(read_until_gained(&pool, &small_ids, 2) > 0, "{:?}", stats(&pool).classes);
        assert!(frames(&pool)[0] > after[0], "{after:?} {:?}", stats(&pool).classes);
        assert_well(&pool, &[large_ids, small_ids].concat(), "frames moved");
    }
}

/// Moves frames under pages in every state. Returns the faults that an audit finds afterwards, or
/// pages with other content.
fn moved_under_pages(bug: Option<Bug>) -> Vec<String> {
    let pool = pool(64, stay());
    let ids: Vec<PageId> = (0..32).map(|_| make(&pool, small())).collect();
    // A third is clean, a third has a copy in each tier, one of these older than the page.
    pool.checkpoint_now(true).unwrap();
    pool.set_policy(move_up());
    ids.iter().step_by(3).for_each(|&id| _ = read(&pool, id));
    pool.set_policy(stay());
    ids.iter().skip(1).step_by(3).for_each(|&id| change(&pool, id, 1));
    change(&pool, ids[0], 1);
    plant(bug);
    let moved = pool.resizer().move_step_in_middle(small(), large(), 31 * 4096);
    plant(None);
    moved.unwrap();
    let now = stats(&pool);
    assert!(bug.is_some() || frames(&pool) == [1, 15], "{now:?}");
    let mut faults = pool.audit();
    for _ in 0..2 {
        for (number, &id) in ids.iter().enumerate() {
            let round = u64::from(number == 0 || number % 3 == 1);
            let content = read(&pool, id);
            if content[24..32] != (id.0 ^ round << 32).to_le_bytes() {
                faults.push(format!("page {id} is older"));
            }
        }
        pool.set_policy(policy(0.0, 0.0, 0.0, 1.0));
    }
    faults
}

#[test]
fn frames_go_to_another_size_under_pages_in_every_state() {
    assert_eq!(moved_under_pages(None), [""; 0]);
}

#[test]
fn catches_keep_copy_in_removed_frame() {
    let pool = pool(8, stay());
    if pool.backend() == Backend::Mapped {
        return; // A mapped page has one copy.
    }
    assert!(!moved_under_pages(Some(Bug::KeepCopyInRemovedFrame)).is_empty());
}

#[test]
fn catches_middle_beyond_budget() {
    let faults = moved_under_pages(Some(Bug::MiddleBeyondBudget));
    assert!(faults.iter().any(|fault| fault.contains("middle tier take")), "{faults:?}");
}

#[test]
fn a_pinned_page_keeps_its_frame_and_the_step_is_given_up() {
    let pool = pool(64, stay());
    let ids: Vec<PageId> = (0..32).map(|_| make(&pool, small())).collect();
    let held = |index: u32| pool.frames.header(Partition::middle(small()).frame(index)).page();
    let last = held(31);
    let pin = pool.pin(last, super::tier::migration::Access::Read).unwrap();
    let refused = pool.resizer().move_step_in_middle(small(), large(), 4096 * 8);
    assert!(matches!(refused, Err(crate::Error::OutOfFrames { .. })), "{refused:?}");
    assert_eq!((frames(&pool), held(31)), (vec![32, 8], last));
    drop(pin);
    pool.resizer().move_step_in_middle(small(), large(), 4096 * 8).unwrap();
    assert_eq!(frames(&pool), [24, 10]);
    assert_well(&pool, &ids, "after the step");
}

#[test]
fn frames_below_partial_pages_are_removed_with_both() {
    let pool = pool_by_lines(16);
    let all = frames(&pool);
    let ids: Vec<PageId> = (0..4).map(|_| make_below(&pool, 1)).collect();
    for &id in &ids {
        assert!(change_by_lines(&pool, id, 2) && is_partial(&pool, id));
    }
    pool.resizer().move_step_in_middle(small(), large(), (all[0] - 1) * 4096).unwrap();
    assert_eq!(frames(&pool)[0], 1);
    assert_eq!(pool.audit(), [""; 0]);
    ids.iter().for_each(|&id| assert_is(&read(&pool, id), id, 2, "a line was changed"));
}

/// Where a large page is after a point read that is to promote it.
fn large_after_point(bug: Option<Bug>) -> bool {
    let pool = pool_by_lines(64);
    pool.set_policy(stay());
    let id = make(&pool, large());
    pool.set_policy(move_up());
    plant(bug);
    let guard = pool.try_read(id).filter(|guard| guard.is_in_middle()).unwrap();
    let leaf = super::access_leaf(&pool, guard, false);
    plant(None);
    drop(leaf);
    is_partial(&pool, id)
}

#[test]
fn catches_partial_of_other_size() {
    assert!(!large_after_point(None));
    assert!(large_after_point(Some(Bug::PartialOfOtherSize)));
    // Pages of the own size still are.
    let pool = pool_by_lines(64);
    let id = make_below(&pool, 1);
    _ = point(&pool, id);
    assert!(is_partial(&pool, id));
}

/// Frames of sizes below the own cost as much as of that: the DRAM budget has no more headers.
#[test]
fn smaller_pages_than_the_own_have_no_more_frames_than_there_are_headers() {
    let middle = super::budget::MiddleBudget::new(large(), 10, false);
    assert_eq!((middle.cost(small()), middle.counts_max()[0]), (16 << 10, 10));
    let mut persistent = super::budget::MiddleBudget::new(large(), 10, true);
    assert!(!persistent.admit(small()) && persistent.admit(large()));
    assert_eq!(persistent.counts_max().iter().sum::<u32>(), 10);
}

#[test]
fn pages_of_several_sizes_keep_their_content_wherever_they_go() {
    for backend in Backend::ALL {
        for seed in 0..6 {
            let pool = pool_by(backend, 100, policy(0.3, 0.5, 0.7, 0.7), None);
            let classes: Vec<SizeClass> = SizeClass::all().take(4).collect();
            let mut random = SmallRng::seed_from_u64(seed);
            let mut pages: Vec<(PageId, u64)> = Vec::new();
            for step in 0..4000 {
                let class = classes[random.random_range(0..4)];
                match random.random_range(0..100) {
                    0..12 => {
                        pool.resizer().use_class(class).unwrap();
                        pages.push((make(&pool, class), 0));
                    }
                    12..16 => {
                        let others = classes.iter().filter(|&&other| other != class);
                        let other = *others.clone().nth(random.random_range(0..3)).unwrap();
                        let step = random.random_range(0..64 << 10);
                        pool.resizer().move_step_in_middle(class, other, step).unwrap();
                    }
                    16..40 if !pages.is_empty() => {
                        let at = random.random_range(0..pages.len());
                        pages[at].1 += 1;
                        change(&pool, pages[at].0, pages[at].1);
                    }
                    _ if pages.is_empty() => {}
                    _ => {
                        let (id, round) = pages[random.random_range(0..pages.len())];
                        assert_is(&read(&pool, id), id, round, &format!("{backend} seed {seed} step {step}"));
                    }
                }
            }
            let moved = stats(&pool).migrations;
            assert!(moved.middle_to_dram > 50 && moved.middle_to_store > 50, "seed {seed}: {moved:?}");
            assert_eq!(pool.audit(), [""; 0], "{backend} seed {seed}");
            for (id, round) in pages {
                assert_is(&read(&pool, id), id, round, &format!("{backend} seed {seed} at the end"));
            }
        }
    }
}
