//! Pages between DRAM, the middle tier and the store: each way once, and how often which is gone.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace_block::{MemoryDirectory, VirtualTime};

use super::evict::{Evicted, Leaving, To};
use super::frame_tests::{assert_is, change, look, make, options, pool_with, small};
use super::migration::{Access, CleanVictims, Policy};
use super::stripe::{is_middle, stripe_of};
use super::table::Location;
use super::view::View;
use super::{MiddleOptions, Mode, Pool, PoolOptions, frame_bytes, operation};
use crate::ids::{PageId, SizeClass};
use crate::migration::Choice;
use crate::replacement::Replacement;
use crate::stats::MiddleStats;
use crate::store::page;
use crate::{Db, Durability, RecordCache, Time};

/// One of the numbers of the middle tier, and what it is to be.
type Expected = (fn(&MiddleStats) -> u64, u64);

/// Frames in DRAM.
const DRAM_FRAMES: u32 = 40;

fn policy(dr: f64, dw: f64, nr: f64, nw: f64) -> Policy {
    Policy::new(dr, dw, nr, nw).unwrap()
}

fn pool(frames: u32, policy: Policy, clean_victims: CleanVictims) -> Pool {
    pool_of(DRAM_FRAMES, frames, policy, clean_victims)
}

fn pool_of(dram_frames: u32, frames: u32, policy: Policy, clean_victims: CleanVictims) -> Pool {
    pool_by(Replacement::Mark, dram_frames, frames, policy, clean_victims)
}

fn pool_by(
    replacement: Replacement,
    dram_frames: u32,
    frames: u32,
    policy: Policy,
    clean_victims: CleanVictims,
) -> Pool {
    let middle = MiddleOptions { frames, policy, clean_victims, queue_pages: None, adaptive: false };
    let options = options(frame_bytes(small(), dram_frames));
    pool_with(&PoolOptions { middle: Some(middle), replacement, ..options }).1
}

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Dram,
    Middle,
    Both,
    Store,
}

fn place(pool: &Pool, id: PageId) -> Place {
    match pool.table.entry(id).unwrap().location() {
        Location::Frame(frame) if is_middle(frame) => Place::Middle,
        Location::Frame(frame) if pool.frames.header(frame).below().is_some() => Place::Both,
        Location::Frame(_) => Place::Dram,
        Location::Store(_) => Place::Store,
        Location::Nowhere => panic!("page {id} is nowhere"),
    }
}

/// Has `id` leave its frame as the sweep would; whether it could.
fn evict(pool: &Pool, id: PageId) -> bool {
    evict_as(pool, id, true)
}

/// The same; `offered` if the sweep does not find it among pages that were sent to be written.
fn evict_as(pool: &Pool, id: PageId, offered: bool) -> bool {
    let entry = pool.table.entry(id).unwrap();
    let Location::Frame(frame) = entry.location() else { panic!("page {id} is in no frame") };
    let to = match pool.try_evict(id, entry, entry.latch().load(), frame, offered) {
        Evicted::Yes(to) => to,
        Evicted::Dirty | Evicted::No => return false,
    };
    pool.free(stripe_of(frame)).lock().queues.evicted(&pool.frames, frame, id);
    let mut leaving = [Leaving { id, entry, frame, to }];
    pool.leave(&mut leaving);
    if leaving[0].to == To::Stays {
        pool.free(stripe_of(frame)).lock().queues.launder(&pool.frames, frame);
        entry.latch().release_unchanged();
        return false;
    }
    pool.give_frame(frame);
    true
}

fn read(pool: &Pool, id: PageId) -> Vec<u8> {
    operation::begin(Access::Read);
    look(pool, id)
}

fn stats(pool: &Pool) -> MiddleStats {
    pool.middle_stats().unwrap()
}

/// What each step adds to what is counted, and where the page is after it.
#[test]
fn each_way_is_gone_and_counted_once() {
    if crate::Backend::of_environment().unwrap() == crate::Backend::Mapped {
        // One copy, so other ways: those below.
        return;
    }
    let pool = pool(8, policy(0.0, 0.0, 0.0, 1.0), CleanVictims::Drop);
    let id = make(&pool, small());
    let mut round = 0;
    let mut before = stats(&pool);
    let mut step = |what: &str, place_after: Place, expect: &[Expected]| {
        let now = stats(&pool);
        let since = now.since(&before);
        for (index, (field, count)) in expect.iter().enumerate() {
            assert_eq!(field(&since), *count, "{what}, the count {index}: {since:?}");
        }
        let moved = since.migrations;
        let all = moved.store_to_dram + moved.store_to_middle + moved.middle_to_dram + moved.dram_to_middle;
        let all = all + moved.dram_to_middle_uncopied + moved.dram_to_store + moved.middle_to_store;
        assert!(all <= 2, "{what}: {since:?}");
        assert_eq!(place(&pool, id), place_after, "{what}");
        assert_eq!(pool.audit(), [""; 0], "{what}");
        before = stats(&pool);
    };
    step("made in DRAM", Place::Dram, &[(|s| s.writes.created, 0)]);
    pool.checkpoint_now(true).unwrap();
    step("written from DRAM", Place::Dram, &[(|s| s.dram_flushes, 1), (|s| s.middle_flushes, 0)]);
    assert!(evict(&pool, id));
    step("clean, dropped", Place::Store, &[(|s| s.migrations.dram_to_store, 1)]);

    read(&pool, id);
    step("past the middle", Place::Dram, &[(|s| s.migrations.store_to_dram, 1)]);
    assert!(evict(&pool, id));
    step("clean again", Place::Store, &[(|s| s.migrations.dram_to_store, 1)]);

    pool.set_policy(policy(0.0, 0.0, 1.0, 1.0));
    read(&pool, id);
    let into: [Expected; 3] =
        [(|s| s.migrations.store_to_middle, 1), (|s| s.reads_in_place, 1), (|s| s.writes.from_store, 1)];
    step("to the middle", Place::Middle, &into);
    read(&pool, id);
    step("read in place", Place::Middle, &[(|s| s.reads_in_place, 1)]);

    pool.set_policy(policy(1.0, 0.0, 1.0, 1.0));
    assert_is(&read(&pool, id), id, round, "read");
    let up: [Expected; 2] = [(|s| s.migrations.middle_to_dram, 1), (|s| s.copies, 1)];
    step("brought up", Place::Both, &up);
    assert!(evict(&pool, id));
    let down: [Expected; 3] = [
        (|s| s.migrations.dram_to_middle_uncopied, 1),
        (|s| s.migrations.dram_to_middle, 0),
        (|s| s.copies, 0),
    ];
    step("dropped to its copy", Place::Middle, &down);

    pool.set_policy(policy(0.0, 1.0, 1.0, 0.0));
    round += 1;
    change(&pool, id, round);
    let up: [Expected; 2] = [(|s| s.migrations.middle_to_dram_for_writes, 1), (|s| s.writes_in_place, 0)];
    step("brought up to be written", Place::Both, &up);
    // It has its place there, whatever N_w is.
    assert!(evict(&pool, id));
    let down: [Expected; 2] = [(|s| s.migrations.dram_to_middle, 1), (|s| s.writes.from_dram, 1)];
    step("copied to its copy", Place::Middle, &down);
    pool.set_policy(policy(0.0, 0.0, 1.0, 0.0));
    assert_is(&read(&pool, id), id, round, "after it was copied down");
    round += 1;
    change(&pool, id, round);
    let written: [Expected; 2] = [(|s| s.writes_in_place, 1), (|s| u64::from(s.lines_written > 0), 1)];
    step("written in place", Place::Middle, &written);
    assert_is(&read(&pool, id), id, round, "after it was written in place");
    assert!(!evict(&pool, id), "it is dirty");
    pool.checkpoint_now(true).unwrap();
    step("written from the middle", Place::Middle, &[(|s| s.middle_flushes, 1), (|s| s.dram_flushes, 0)]);
    assert!(evict(&pool, id));
    step("left the middle", Place::Store, &[(|s| s.migrations.middle_to_store, 1)]);

    // Dirty, without a copy, and not admitted: it must be written, and is not offered again when it is clean.
    pool.set_policy(policy(0.0, 0.0, 0.0, 0.0));
    round += 1;
    change(&pool, id, round);
    assert!(!evict(&pool, id));
    step("sent to be written", Place::Dram, &[(|s| s.migrations.dram_to_middle, 0)]);
    pool.set_policy(policy(0.0, 0.0, 0.0, 1.0));
    assert!(evict(&pool, id));
    step("admitted", Place::Middle, &[(|s| s.migrations.dram_to_middle, 1), (|s| s.writes.from_dram, 1)]);
    assert_is(&read(&pool, id), id, round, "at last");

    // Up, and freed: the copy below goes with it.
    pool.set_policy(policy(0.0, 1.0, 0.0, 0.0));
    round += 1;
    change(&pool, id, round);
    assert_eq!(place(&pool, id), Place::Both);
    before = stats(&pool);
    super::frame_tests::free(&pool, id);
    pool.wal.flush_to(pool.wal.tail()).unwrap();
    pool.absorb_freed();
    let since = stats(&pool).since(&before);
    assert_eq!((since.copies_freed, since.migrations.dram_to_store), (1, 0), "{since:?}");
    assert_eq!((since.copies, since.used), (0, 0));
    pool.set_policy(policy(0.0, 0.0, 1.0, 0.0));
    let made = make(&pool, small());
    assert_eq!((place(&pool, made), stats(&pool).writes.created), (Place::Middle, 1));
    assert_eq!(pool.audit(), [""; 0]);
}

/// It was changed in DRAM and has been written to the store since: clean, and above a copy that is older. That copy is its place in
/// the middle tier, whatever is said about admission, and however it comes to leave DRAM.
#[test]
fn a_page_that_was_written_keeps_its_place_in_the_middle_tier() {
    // A mapped page has one copy.
    if crate::Backend::of_environment().unwrap() == crate::Backend::Mapped {
        return;
    }
    for (clean_victims, offered) in
        CleanVictims::ALL.map(|clean| [(clean, true), (clean, false)]).as_flattened()
    {
        for replacement in [Replacement::Mark, Replacement::ClockPaper] {
            let pool = pool_by(replacement, DRAM_FRAMES, 8, policy(0.0, 0.0, 1.0, 0.0), *clean_victims);
            let id = make(&pool, small());
            assert_eq!(place(&pool, id), Place::Middle);
            pool.set_policy(policy(0.0, 1.0, 1.0, 0.0));
            change(&pool, id, 1);
            pool.checkpoint_now(true).unwrap();
            assert_eq!(place(&pool, id), Place::Both);
            let before = stats(&pool);
            assert!(evict_as(&pool, id, *offered));
            let since = stats(&pool).since(&before);
            let what = format!("{clean_victims}, offered {offered}, {replacement}: {since:?}");
            assert_eq!(place(&pool, id), Place::Middle, "{what}");
            assert_eq!((since.writes.from_dram_clean, since.migrations.dram_to_store), (1, 0), "{what}");
            pool.set_policy(policy(0.0, 0.0, 1.0, 0.0));
            assert_is(&read(&pool, id), id, 1, &what);
            assert_eq!(pool.audit(), [""; 0], "{what}");
        }
    }
}

#[test]
fn pages_of_other_sizes_than_the_tiers_are_counted() {
    let pool = pool_of(10 * DRAM_FRAMES, 8, policy(0.0, 0.0, 1.0, 1.0), CleanVictims::Always);
    let large = SizeClass::of_bytes(16 << 10).unwrap();
    pool.use_class(large).unwrap();
    let (own, other) = (make(&pool, small()), make(&pool, large));
    assert_eq!((place(&pool, own), place(&pool, other)), (Place::Middle, Place::Dram));
    pool.checkpoint_now(true).unwrap();
    assert!(evict(&pool, other));
    assert_eq!((place(&pool, other), stats(&pool).other_sizes), (Place::Store, 1));
    read(&pool, other);
    pool.checkpoint_now(true).unwrap();
    assert!(evict(&pool, other));
    pool.fault_many(&[other], super::Purpose::Wanted, &mut |at, error| panic!("{at}: {error}")).unwrap();
    let stats = stats(&pool);
    assert_eq!((place(&pool, other), stats.other_sizes), (Place::Dram, 3));
    assert_eq!((stats.page_bytes, stats.used), (4096, 1));
}

#[test]
fn clean_pages_are_dropped_offered_or_taken_as_was_said() {
    for (clean_victims, nw, expected) in [
        (CleanVictims::Drop, 1.0, Place::Store),
        (CleanVictims::Offer, 0.0, Place::Store),
        (CleanVictims::Offer, 1.0, Place::Middle),
        (CleanVictims::Always, 0.0, Place::Middle),
    ] {
        let pool = pool(8, policy(0.0, 0.0, 0.0, nw), clean_victims);
        let id = make(&pool, small());
        pool.checkpoint_now(true).unwrap();
        assert!(evict(&pool, id));
        assert_eq!(place(&pool, id), expected, "{clean_victims} with {nw}");
        assert_is(&read(&pool, id), id, 0, "wherever it is");
        assert_eq!(pool.audit(), [""; 0]);
    }
}

/// One frame or a few below two dozen, pages that are changed, freed, read alone and together, with any policy, and with each way of
/// replacement.
#[test]
fn pages_keep_their_content_wherever_they_go() {
    for seed in 0..12 {
        let mut random = SmallRng::seed_from_u64(seed);
        let frames = [1, 2, 7, 40][seed as usize % 4];
        let replacement = if seed % 2 == 1 { Replacement::ClockPaper } else { Replacement::Mark };
        let pool =
            pool_by(replacement, DRAM_FRAMES, frames, Policy::EAGER, CleanVictims::ALL[seed as usize % 3]);
        let mut rounds: HashMap<PageId, u64> = HashMap::new();
        for step in 0..1500 {
            if step % 100 == 0 {
                let mut probability = || [0.0, 0.1, 0.5, 1.0][random.random_range(0..4)];
                pool.set_policy(policy(probability(), probability(), probability(), probability()));
            }
            let mut ids: Vec<PageId> = rounds.keys().copied().collect();
            ids.sort_unstable();
            let one = |random: &mut SmallRng| ids[random.random_range(0..ids.len())];
            match random.random_range(0..10) {
                0..2 if ids.len() < 150 => {
                    rounds.insert(make(&pool, small()), 0);
                }
                2..5 if !ids.is_empty() => {
                    let id = one(&mut random);
                    *rounds.get_mut(&id).unwrap() += 1;
                    change(&pool, id, rounds[&id]);
                }
                5 if ids.len() > 100 => {
                    let id = one(&mut random);
                    super::frame_tests::free(&pool, id);
                    pool.wal.flush_to(pool.wal.tail()).unwrap();
                    pool.absorb_freed();
                    rounds.remove(&id);
                }
                6 if !ids.is_empty() => {
                    let wanted: Vec<PageId> = (0..8).map(|_| one(&mut random)).collect();
                    pool.fault_many(&wanted, super::Purpose::Wanted, &mut |at, error| {
                        panic!("{at}: {error}")
                    })
                    .unwrap();
                }
                _ if !ids.is_empty() => {
                    let id = one(&mut random);
                    assert_is(&read(&pool, id), id, rounds[&id], &format!("seed {seed}, step {step}"));
                }
                _ => {}
            }
            if step % 250 == 249 {
                pool.wal.flush_to(pool.wal.tail()).unwrap();
                pool.absorb_freed();
                assert_eq!(pool.audit(), [""; 0], "seed {seed}, step {step}");
            }
        }
        let moved = stats(&pool).migrations;
        assert!(moved.middle_to_dram > 10 && moved.dram_to_middle > 10, "seed {seed}: {moved:?}");
        for (&id, &round) in &rounds {
            assert_is(&read(&pool, id), id, round, &format!("seed {seed}, at the end"));
        }
    }
}

#[test]
fn a_page_that_cannot_go_down_is_latched_until_its_frame_is_in_the_laundry() {
    let pool = pool(1, policy(0.0, 0.0, 1.0, 1.0), CleanVictims::Drop);
    let held = make(&pool, small());
    assert_eq!(place(&pool, held), Place::Middle);
    assert!(pool.table.entry(held).unwrap().latch().try_share());
    let id = make(&pool, small());
    let entry = pool.table.entry(id).unwrap();
    let Location::Frame(frame) = entry.location() else { panic!("it has just been made") };
    let Evicted::Yes(to) = pool.try_evict(id, entry, entry.latch().load(), frame, true) else {
        panic!("it is to go down")
    };
    let mut leaving = [Leaving { id, entry, frame, to }];
    pool.leave(&mut leaving);
    assert!(leaving[0].to == To::Stays && pool.is_latched(id));
    entry.latch().release_unchanged();
    pool.table.entry(held).unwrap().latch().unshare();
    assert_eq!(pool.audit(), [""; 0]);
}

/// A pool of 160 frames in DRAM, all taken, eight of them by pages to be written, and of 32 in the middle tier, of which none can be
/// had: the pages in them are latched. Gives the pages in the store, and those that are latched.
fn crowded() -> (Pool, Vec<PageId>, Vec<PageId>) {
    let pool = pool_of(160, 32, policy(0.0, 0.0, 0.0, 0.0), CleanVictims::Drop);
    let ids: Vec<PageId> = (0..72).map(|_| make(&pool, small())).collect();
    pool.checkpoint_now(true).unwrap();
    assert!(ids.iter().all(|&id| evict(&pool, id)));
    let (away, held) = ids.split_at(40);
    pool.set_policy(policy(0.0, 0.0, 1.0, 0.0));
    for &id in held {
        read(&pool, id);
        assert_eq!(place(&pool, id), Place::Middle);
        assert!(pool.table.entry(id).unwrap().latch().try_share());
    }
    pool.set_policy(policy(0.0, 0.0, 0.0, 0.0));
    let near: Vec<PageId> = (0..160).map(|_| make(&pool, small())).collect();
    pool.checkpoint_now(true).unwrap();
    for &id in &near[..8] {
        change(&pool, id, 1);
        pool.table.entry(id).unwrap().latch().unmark();
    }
    pool.set_policy(policy(0.0, 0.0, 1.0, 0.0));
    operation::begin(Access::Read);
    (pool, away.to_vec(), held.to_vec())
}

/// Pages of one buffer of those for batches, as `options` has them.
const BUFFER_PAGES: usize = 16;

fn bring(pool: &Pool, ids: &[PageId]) -> usize {
    pool.fault_many(ids, super::Purpose::Wanted, &mut |at, error| panic!("{at}: {error}")).unwrap()
}

/// The middle tier has no frame for the first page of a batch, and when DRAM has given one, it has some.
#[test]
fn a_batch_has_no_more_frames_than_its_buffer_has_room_for_pages() {
    let (pool, away, held) = crowded();
    let unlatched = std::cell::Cell::new(false);
    let ids = held.clone();
    crate::crash::play(Some(std::rc::Rc::new(move |pool: &Pool| {
        if !unlatched.replace(true) {
            ids.iter().for_each(|&id| pool.table.entry(id).unwrap().latch().unshare());
        }
    })));
    let brought = bring(&pool, &away);
    crate::crash::play(None);
    assert!(!pool.is_latched(held[0]), "DRAM gave a frame after a page was written");
    assert_eq!(brought, BUFFER_PAGES);
    assert_eq!(away.iter().filter(|&&id| place(&pool, id) == Place::Middle).count(), 4, "an eighth of it");
    assert_eq!(pool.audit(), [""; 0]);
    away.iter().chain(&held).for_each(|&id| assert_is(&read(&pool, id), id, 0, "after the batch"));
}

#[test]
fn a_batch_goes_past_a_middle_tier_that_has_no_frame() {
    let (pool, away, held) = crowded();
    assert_eq!(bring(&pool, &away), BUFFER_PAGES);
    assert_eq!(away.iter().filter(|&&id| place(&pool, id) == Place::Dram).count(), BUFFER_PAGES);
    held.iter().for_each(|&id| pool.table.entry(id).unwrap().latch().unshare());
    assert_eq!(pool.audit(), [""; 0]);
}

/// What is changed meanwhile would be lost: the frame knows it, and the image in force would make the page clean.
#[test]
fn pages_whose_image_is_in_flight_stay_where_they_are_and_dirty() {
    let pool = pool(8, policy(0.0, 0.0, 1.0, 1.0), CleanVictims::Always);
    let far = make(&pool, small());
    pool.set_policy(policy(0.0, 0.0, 0.0, 1.0));
    let near = make(&pool, small());
    pool.set_policy(policy(1.0, 1.0, 1.0, 1.0));
    assert_eq!((place(&pool, far), place(&pool, near)), (Place::Middle, Place::Dram));
    let was_there = std::rc::Rc::new(std::cell::Cell::new(false));
    let noted = was_there.clone();
    crate::crash::play(Some(std::rc::Rc::new(move |pool: &Pool| {
        if !noted.replace(true) {
            [far, near].iter().for_each(|&id| change(pool, id, 1));
            assert_is(&read(pool, far), far, 1, "in flight");
            assert!(!evict(pool, near) && !evict(pool, far));
            assert_eq!((place(pool, far), place(pool, near)), (Place::Middle, Place::Dram));
        }
    })));
    pool.checkpoint_now(true).unwrap();
    crate::crash::play(None);
    assert!(was_there.get());
    for id in [far, near] {
        assert!(pool.table.entry(id).unwrap().latch().load().is_dirty(), "{id}");
    }
    pool.checkpoint_now(true).unwrap();
    pool.set_policy(policy(0.0, 0.0, 1.0, 0.0));
    assert!(evict(&pool, far));
    assert_eq!(place(&pool, far), Place::Store);
    [far, near].iter().for_each(|&id| assert_is(&read(&pool, id), id, 1, "after both"));
    assert_eq!(pool.audit(), [""; 0]);
}

/// Of what a look that began before has read, nothing counts; a copy below is no part of it.
#[test]
fn who_looks_at_a_page_that_changes_tiers_notices() {
    let pool = pool(8, policy(0.0, 0.0, 0.0, 1.0), CleanVictims::Always);
    let id = make(&pool, small());
    for turn in 0..3 {
        let look = pool.glance(id).unwrap();
        assert!(look.validate().is_ok());
        assert!(evict(&pool, id), "{turn}");
        assert!(look.validate().is_err() && place(&pool, id) == Place::Middle, "down, {turn}");
        pool.set_policy(policy(1.0, 1.0, 0.0, 1.0));
        let look = pool.glance(id).unwrap();
        read(&pool, id);
        assert!(look.validate().is_err() && place(&pool, id) != Place::Middle, "up, {turn}");
        let (look, entry) = (pool.glance(id).unwrap(), pool.table.entry(id).unwrap());
        let Location::Frame(above) = entry.location() else { panic!("it is in DRAM") };
        // In the last turn it is copied down anew.
        if let Some(below) = pool.frames.header(above).below().filter(|_| turn == 1) {
            assert!(pool.drop_below(id, entry, entry.latch().load(), above, below));
            pool.give_frame(below);
        }
        assert!(look.validate().is_ok());
    }
    assert_eq!(pool.audit(), [""; 0]);
}

#[test]
fn no_dirty_page_changes_tiers_while_the_cut_of_the_log_is_computed() {
    let pool = pool(8, policy(0.0, 0.0, 1.0, 1.0), CleanVictims::Always);
    let far = make(&pool, small());
    pool.set_policy(policy(1.0, 1.0, 0.0, 1.0));
    let (near, clean) = (make(&pool, small()), make(&pool, small()));
    pool.write_back(&mut pool.upkeep.lock(), &[clean]).unwrap();
    let alone = pool.moving.write();
    read(&pool, far);
    assert!(!evict(&pool, near) && evict(&pool, clean));
    assert_eq!([far, near, clean].map(|id| place(&pool, id)), [Place::Middle, Place::Dram, Place::Middle]);
    drop(alone);
    read(&pool, far);
    assert_ne!(place(&pool, far), Place::Middle);
    assert_eq!(pool.audit(), [""; 0]);
}

/// Nobody waits for them, and nothing but the sweep of DRAM asks for them.
#[test]
fn dirty_pages_of_the_middle_tier_are_written_for_those_that_are_to_go_down() {
    let pool = pool(8, policy(0.0, 0.0, 0.0, 1.0), CleanVictims::Drop);
    let ids: Vec<PageId> = (0..300).map(|_| make(&pool, small())).collect();
    let now = stats(&pool);
    // More than it has frames.
    assert!(now.migrations.dram_to_middle > 8 && now.middle_flushes > 0, "{now:?}");
    assert_eq!(pool.audit(), [""; 0]);
    ids.iter().for_each(|&id| assert_is(&read(&pool, id), id, 0, "wherever it is"));
}

#[test]
fn while_images_find_no_room_dirty_pages_stay_in_the_middle_tier() {
    let pool = pool(8, policy(0.0, 0.0, 1.0, 1.0), CleanVictims::Drop);
    let ids: Vec<PageId> = (0..8).map(|_| make(&pool, small())).collect();
    assert!(ids.iter().all(|&id| place(&pool, id) == Place::Middle));
    pool.without_room.store(1, Relaxed);
    assert!(pool.changes_find_room(), "dirty pages in the middle tier are in nobody's way");
    pool.without_room.store(1, Relaxed);
    pool.set_policy(policy(1.0, 1.0, 1.0, 1.0));
    read(&pool, ids[0]);
    assert_eq!((place(&pool, ids[0]), stats(&pool).up_refused), (Place::Middle, 1));
    pool.without_room.store(0, Relaxed);
    read(&pool, ids[0]);
    assert_ne!(place(&pool, ids[0]), Place::Middle);
    assert_eq!(pool.audit(), [""; 0]);
}

/// Of the pages in DRAM that were read at random, from more pages than both tiers have room for, how many have a copy below.
fn share_with_copies(replacement: Replacement) -> f64 {
    let pool = pool_by(replacement, DRAM_FRAMES, 4 * DRAM_FRAMES, Policy::EAGER, CleanVictims::Drop);
    let ids: Vec<PageId> = (0..8 * DRAM_FRAMES).map(|_| make(&pool, small())).collect();
    pool.checkpoint_now(true).unwrap();
    let mut random = SmallRng::seed_from_u64(5);
    for _ in 0..4000 {
        let id = ids[random.random_range(0..ids.len())];
        assert_is(&read(&pool, id), id, 0, "seed 5");
    }
    assert_eq!(pool.audit(), [""; 0]);
    let both = ids.iter().filter(|&&id| place(&pool, id) == Place::Both).count();
    let near = ids.iter().filter(|&&id| place(&pool, id) == Place::Dram).count();
    both as f64 / (both + near) as f64
}

/// Spitfire, Table 2: with D = N = 1 a quarter of the pages are in both tiers, of which one is a quarter of the other.
#[test]
fn clocks_that_do_not_know_of_each_other_keep_copies_and_ours_lets_them_go() {
    if crate::Backend::of_environment().unwrap() == crate::Backend::Mapped {
        assert_eq!(Replacement::ALL.map(share_with_copies), [0.0; 3], "one copy of each");
        return;
    }
    let [ours, fifo, clock] = Replacement::ALL.map(share_with_copies);
    assert!(clock > 0.95 && ours < 0.9 && fifo == 0.0, "{clock} {ours} {fifo}");
}

/// It is marked by the look that brought the page up: its first turn takes the mark, its second the copy. What leaves DRAM before
/// that has the mark with it.
#[test]
fn a_copy_below_another_has_a_mark_and_a_place_of_its_own() {
    if crate::Backend::of_environment().unwrap() == crate::Backend::Mapped {
        return;
    }
    let clock = || {
        let pool = pool_by(Replacement::ClockPaper, DRAM_FRAMES, 2, Policy::EAGER, CleanVictims::Drop);
        let (one, other) = (make(&pool, small()), make(&pool, small()));
        pool.checkpoint_now(true).unwrap();
        assert!(evict(&pool, one) && evict(&pool, other));
        [one, other].iter().for_each(|&id| _ = read(&pool, id));
        assert_eq!([one, other].map(|id| place(&pool, id)), [Place::Both; 2]);
        (pool, one, other)
    };
    let take =
        |pool: &Pool| pool.take_frame_now(super::stripe::Stripe::middle(small()), PageId::NONE).unwrap();
    let (pool, one, other) = clock();
    let (entry, frame) = (pool.table.entry(one).unwrap(), take(&pool).expect("the hand goes round twice"));
    assert_eq!([one, other].map(|id| place(&pool, id)), [Place::Dram, Place::Both]);
    assert!(!entry.latch().load().is_marked(), "marks of the upper copies are none of its business");
    pool.give_frame(frame);

    let (pool, one, other) = clock();
    assert!(evict(&pool, one));
    assert!(pool.table.entry(one).unwrap().latch().load().is_marked() && place(&pool, one) == Place::Middle);
    // Its place is before the other's, and both have lost their marks when the hand comes to it again.
    let frame = take(&pool).expect("nothing is dirty");
    assert_eq!([one, other].map(|id| place(&pool, id)), [Place::Store, Place::Both]);
    pool.give_frame(frame);
    assert_eq!(pool.audit(), [""; 0]);
}

/// A page of the tree in each leaf, so that a get looks at one leaf.
fn rows(dram: u64, middle: u64, choice: Choice, time: Time) -> (Db, crate::Table) {
    let directory = Arc::new(MemoryDirectory::new());
    let builder = Db::builder().directory(directory).dram(dram).page_size(4096).mode(Mode::Inline).seed(3);
    let middle = format!("simulated:optane,{middle}B").parse().unwrap();
    let builder = builder.middle(middle).policy(choice).simulated_time(time);
    let db = builder.record_cache(RecordCache::Off).durability(Durability::Buffered).open("").unwrap();
    let table = db.create_table("t").unwrap();
    (db, table)
}

/// Spitfire, section 3.5: after n reads a page is in DRAM with a probability of 1 - (1 - D_r)^n.
#[test]
fn reads_bring_pages_of_a_tree_to_dram_with_the_probability_of_the_paper() {
    const ROWS: u32 = 1500;
    for (dr, reads) in [(0.0, 3), (0.02, 1), (0.02, 20), (0.1, 5), (0.3, 2), (0.5, 4), (1.0, 1)] {
        let time = Time::Virtual(Arc::new(VirtualTime::new(1)));
        let (db, table) = rows(16 << 20, 16 << 20, "0,0,1,1".parse().unwrap(), time);
        (0..ROWS).for_each(|key| table.put(key.to_be_bytes(), [7; 2500]).unwrap());
        let pool = &db.shared.pool;
        let leaves_in = |wanted: Place| {
            let is_leaf = |id: &PageId| {
                let Location::Frame(frame) = pool.table.entry(*id).unwrap().location() else { return false };
                let view = pool.frames.view(*id, frame);
                view.u8(page::LEVEL_AT) == 0
            };
            pool.page_ids().filter(is_leaf).filter(|&id| place(pool, id) == wanted).count() as f64
        };
        let all = leaves_in(Place::Middle);
        assert!(
            all >= f64::from(ROWS) * 0.9 && leaves_in(Place::Both) + leaves_in(Place::Dram) == 0.0,
            "{all} leaves"
        );
        db.set_policy(policy(dr, 0.0, 1.0, 1.0));
        for _ in 0..reads {
            (0..ROWS).for_each(|key| assert!(table.get(key.to_be_bytes()).unwrap().is_some()));
        }
        let expected = 1.0 - (1.0 - dr).powi(reads);
        let share = (leaves_in(Place::Both) + leaves_in(Place::Dram)) / all;
        let slack = 5.0 * (expected * (1.0 - expected) / all).sqrt() + 0.01;
        assert!((share - expected).abs() <= slack, "{share} for {expected}: D_r {dr}, {reads} reads");
        assert_eq!(pool.audit(), [""; 0]);
    }
}

/// The same program has the same figures in every run.
#[test]
fn simulated_time_is_the_same_each_time_and_counts_what_is_in_the_middle() {
    fn run(choice: Choice) -> (u64, MiddleStats) {
        let time = Arc::new(VirtualTime::new(1));
        let (db, table) = rows(2 << 20, 8 << 20, choice, Time::Virtual(Arc::clone(&time)));
        (0..1000u32).for_each(|key| table.put(key.to_be_bytes(), [7; 1000]).unwrap());
        let loaded = time.elapsed_ns();
        let mut random = SmallRng::seed_from_u64(1);
        (0..5000).for_each(|_| _ = table.get(random.random_range(0..1000u32).to_be_bytes()).unwrap());
        (time.elapsed_ns() - loaded, db.stats().middle.unwrap())
    }
    // What is done now and then a thread counts for itself: each run has one of its own.
    let run = |policy: &'static str| {
        std::thread::spawn(move || run(policy.parse().unwrap())).join().expect("the run panics by itself")
    };
    let (in_place, stats) = run("0,0,1,1");
    assert_eq!((in_place, &stats), (run("0,0,1,1").0, &run("0,0,1,1").1));
    assert!(stats.reads_in_place > 5000 && in_place > 5000 * 320, "{in_place} ns, {stats:?}");
    assert_eq!(run("0,0,0,0").0, 0, "nothing is ever in the middle tier");
}

#[test]
fn threads_read_and_change_over_tiers_of_fewer_frames_than_there_are_threads() {
    for (frames, text) in [(1u64, "1,1,1,1"), (3, "0.5,0.5,0.5,0.5"), (3, "0,0,1,1"), (64, "0.3,0.3,0.7,0.7")]
    {
        let directory = Arc::new(MemoryDirectory::new());
        let builder = Db::builder().directory(directory).dram(1 << 20).page_size(4096);
        let middle = format!("simulated:dram,{}B", frames * 4096).parse().unwrap();
        let builder = builder.middle(middle).policy(text.parse().unwrap()).durability(Durability::Buffered);
        let db = builder.record_cache(RecordCache::Off).open("").unwrap();
        let table = db.create_table("t").unwrap();
        let counters: Vec<AtomicU64> = (0..600).map(|_| AtomicU64::new(0)).collect();
        (0..600u64).for_each(|key| table.put(key.to_be_bytes(), [0; 1500]).unwrap());
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (table, counters) = (&table, &counters);
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(thread);
                    for _ in 0..1500 {
                        // Each thread has keys of its own to change, and reads all.
                        let key = random.random_range(0..100) * 6 + thread;
                        let count = counters[key as usize].fetch_add(1, Relaxed) + 1;
                        let mut value = vec![count as u8; 1500];
                        value[..8].copy_from_slice(&count.to_le_bytes());
                        table.put(key.to_be_bytes(), value).unwrap();
                        let other = random.random_range(0..600u64);
                        let value = table.get(other.to_be_bytes()).unwrap().unwrap();
                        assert!(value[8..].iter().all(|byte| *byte == value[0]), "{other}: torn");
                    }
                });
            }
        });
        for (key, counter) in (0u64..).zip(&counters) {
            let value = table.get(key.to_be_bytes()).unwrap().unwrap();
            assert_eq!(
                u64::from_le_bytes(value[..8].try_into().unwrap()),
                counter.load(Relaxed),
                "{text}: {key}"
            );
        }
        assert!(db.verify().unwrap().is_ok());
        db.checkpoint().unwrap();
        assert_eq!(db.shared.pool.audit(), [""; 0], "{text}");
    }
}
