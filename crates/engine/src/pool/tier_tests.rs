//! Each move between DRAM, middle tier and store is counted.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::emptying;
use super::frame_tests::{assert_is, change, look, make, options, pool_with, small};
use super::page_table::Location;
use super::partition::{is_middle, is_mini, partition_of};
use super::replacement::victim::{Evicted, Leaving, To};
use super::tier::migration::{Access, CleanVictims, Migration, Policy};
use super::tier::partial;
use super::{MiddleOptions, Pool, PoolOptions, TierOptions, frame_bytes, operation};
use crate::ids::PageId;
use crate::maintenance::Maintenance;
use crate::migration::Choice;
use crate::replacement::Replacement;
use crate::stats::MiddleStats;

/// A count of the middle tier, and its expected value.
type Expected = (fn(&MiddleStats) -> u64, u64);

const DRAM_FRAMES: u32 = 40;

pub(super) fn policy(dr: f64, dw: f64, nr: f64, nw: f64) -> Policy {
    Policy::new(dr, dw, nr, nw).unwrap()
}

fn pool(frames: u32, policy: Policy, clean_victims: CleanVictims) -> Arc<Maintenance> {
    pool_of(DRAM_FRAMES, frames, policy, clean_victims)
}

pub(super) fn pool_of(
    dram_frames: u32,
    frames: u32,
    policy: Policy,
    clean_victims: CleanVictims,
) -> Arc<Maintenance> {
    pool_by(Replacement::Mark, dram_frames, frames, policy, clean_victims)
}

fn pool_by(
    replacement: Replacement,
    dram_frames: u32,
    frames: u32,
    policy: Policy,
    clean_victims: CleanVictims,
) -> Arc<Maintenance> {
    let migration = Migration { clean_victims: Some(clean_victims), ..Choice::Fixed(policy).into() };
    let middle = MiddleOptions { class: small(), frames, migration, lines: None, minis: false };
    let tiers = TierOptions { middle: Some(middle), ..TierOptions::default() };
    let options = options(frame_bytes(small(), dram_frames));
    pool_with(&PoolOptions { tiers, replacement, ..options }).1
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whereabouts {
    Dram,
    Middle,
    Both,
    Store,
}

pub(super) fn whereabouts(pool: &Pool, id: PageId) -> Whereabouts {
    match pool.table.entry(id).unwrap().location() {
        Location::Frame(frame) if is_middle(frame) => Whereabouts::Middle,
        Location::Partial(_) => Whereabouts::Both,
        Location::Frame(frame) if pool.frames.header(frame).middle_copy().is_some() => Whereabouts::Both,
        Location::Frame(_) => Whereabouts::Dram,
        Location::Store(_) => Whereabouts::Store,
        Location::Nowhere => panic!("page {id} is nowhere"),
    }
}

/// Evicts `id` as the sweep would; whether it could.
pub(super) fn evict(pool: &Pool, id: PageId) -> bool {
    evict_as(pool, id, true)
}

/// Evicts `id`. If `offered`, the middle tier may take a page without a copy there.
fn evict_as(pool: &Pool, id: PageId, offered: bool) -> bool {
    let entry = pool.table.entry(id).unwrap();
    let frame = entry.location().frame().unwrap_or_else(|| panic!("page {id} is in no frame"));
    if is_mini(frame) {
        let page = emptying::page_of(pool, frame);
        return page.is_some_and(|page| partial::demote_mini(pool.middle_of_frame(), &pool.resident, page));
    }
    let to = match pool.try_evict(id, entry, entry.latch().load(), frame, offered) {
        Evicted::Yes(to) => to,
        Evicted::Dirty | Evicted::No => return false,
    };
    pool.replacer.free(partition_of(frame)).lock().queues.evicted(&pool.frames, frame, id);
    let mut leaving = [Leaving { id, entry, frame, to }];
    pool.finish_evictions(&mut leaving);
    if leaving[0].to == To::Stays {
        pool.replacer.free(partition_of(frame)).lock().queues.enter_dirty_queue(&pool.frames, frame);
        entry.latch().release_unchanged();
        return false;
    }
    pool.give_frame(frame);
    true
}

pub(super) fn read(pool: &Pool, id: PageId) -> Vec<u8> {
    operation::begin(Access::Read);
    look(pool, id)
}

pub(super) fn stats(pool: &Pool) -> MiddleStats {
    pool.middle_stats().unwrap()
}

/// A page that moves between the tiers, and the counts after its last step.
struct Way {
    pool: Arc<Maintenance>,
    id: PageId,
    round: u64,
    before: MiddleStats,
}

impl Way {
    /// Checks what was counted since the last step, and the page's location.
    fn step(&mut self, what: &str, after: Whereabouts, expect: &[Expected]) {
        let now = stats(&self.pool);
        let since = now.since(&self.before);
        for (index, (field, count)) in expect.iter().enumerate() {
            assert_eq!(field(&since), *count, "{what}, the count {index}: {since:?}");
        }
        let moved = since.migrations;
        let all = moved.store_to_dram + moved.store_to_middle + moved.middle_to_dram + moved.dram_to_middle;
        let all = all + moved.dram_to_middle_uncopied + moved.dram_to_store + moved.middle_to_store;
        assert!(all <= 2, "{what}: {since:?}");
        assert_eq!(whereabouts(&self.pool, self.id), after, "{what}");
        assert_eq!(self.pool.audit(), [""; 0], "{what}");
        self.before = now;
    }
}

/// Checks counts and location after each step.
#[test]
fn each_way_is_gone_and_counted_once() {
    if crate::Backend::of_environment().unwrap() == crate::Backend::Mapped {
        // One copy, so other moves. Tests below cover them.
        return;
    }
    let pool = pool(8, policy(0.0, 0.0, 0.0, 1.0), CleanVictims::Drop);
    let id = make(&pool, small());
    let before = stats(&pool);
    let mut way = Way { pool, id, round: 0, before };
    clean_and_dropped(&mut way);
    through_the_middle(&mut way);
    written_in_the_middle(&mut way);
    refused_admitted_and_freed(&mut way);
}

fn clean_and_dropped(way: &mut Way) {
    way.step("made in DRAM", Whereabouts::Dram, &[(|s| s.writes.created, 0)]);
    way.pool.checkpoint_now(true).unwrap();
    way.step("written from DRAM", Whereabouts::Dram, &[(|s| s.dram_flushes, 1), (|s| s.middle_flushes, 0)]);
    assert!(evict(&way.pool, way.id));
    way.step("clean, dropped", Whereabouts::Store, &[(|s| s.migrations.dram_to_store, 1)]);

    read(&way.pool, way.id);
    way.step("past the middle", Whereabouts::Dram, &[(|s| s.migrations.store_to_dram, 1)]);
    assert!(evict(&way.pool, way.id));
    way.step("clean again", Whereabouts::Store, &[(|s| s.migrations.dram_to_store, 1)]);
}

fn through_the_middle(way: &mut Way) {
    way.pool.set_policy(policy(0.0, 0.0, 1.0, 1.0));
    read(&way.pool, way.id);
    let into: [Expected; 3] =
        [(|s| s.migrations.store_to_middle, 1), (|s| s.reads_in_place, 1), (|s| s.writes.from_store, 1)];
    way.step("to the middle", Whereabouts::Middle, &into);
    read(&way.pool, way.id);
    way.step("read in place", Whereabouts::Middle, &[(|s| s.reads_in_place, 1)]);

    way.pool.set_policy(policy(1.0, 0.0, 1.0, 1.0));
    assert_is(&read(&way.pool, way.id), way.id, way.round, "read");
    let up: [Expected; 2] = [(|s| s.migrations.middle_to_dram, 1), (|s| s.copies, 1)];
    way.step("brought up", Whereabouts::Both, &up);
    assert!(evict(&way.pool, way.id));
    let down: [Expected; 3] = [
        (|s| s.migrations.dram_to_middle_uncopied, 1),
        (|s| s.migrations.dram_to_middle, 0),
        (|s| s.copies, 0),
    ];
    way.step("dropped to its copy", Whereabouts::Middle, &down);
}

fn written_in_the_middle(way: &mut Way) {
    way.pool.set_policy(policy(0.0, 1.0, 1.0, 0.0));
    way.round += 1;
    change(&way.pool, way.id, way.round);
    let up: [Expected; 2] = [(|s| s.migrations.middle_to_dram_for_writes, 1), (|s| s.writes_in_place, 0)];
    way.step("brought up to be written", Whereabouts::Both, &up);
    // It returns to its middle copy, whatever N_w is.
    assert!(evict(&way.pool, way.id));
    let down: [Expected; 2] = [(|s| s.migrations.dram_to_middle, 1), (|s| s.writes.from_dram, 1)];
    way.step("copied to its copy", Whereabouts::Middle, &down);
    way.pool.set_policy(policy(0.0, 0.0, 1.0, 0.0));
    assert_is(&read(&way.pool, way.id), way.id, way.round, "after it was copied down");
    way.round += 1;
    change(&way.pool, way.id, way.round);
    let written: [Expected; 2] = [(|s| s.writes_in_place, 1), (|s| u64::from(s.lines_written > 0), 1)];
    way.step("written in place", Whereabouts::Middle, &written);
    assert_is(&read(&way.pool, way.id), way.id, way.round, "after it was written in place");
    assert!(!evict(&way.pool, way.id), "it is dirty");
    way.pool.checkpoint_now(true).unwrap();
    way.step(
        "written from the middle",
        Whereabouts::Middle,
        &[(|s| s.middle_flushes, 1), (|s| s.dram_flushes, 0)],
    );
    assert!(evict(&way.pool, way.id));
    way.step("left the middle", Whereabouts::Store, &[(|s| s.migrations.middle_to_store, 1)]);
}

fn refused_admitted_and_freed(way: &mut Way) {
    // Dirty, without a copy, and not admitted: it must be written.
    way.pool.set_policy(policy(0.0, 0.0, 0.0, 0.0));
    way.round += 1;
    change(&way.pool, way.id, way.round);
    assert!(!evict(&way.pool, way.id));
    way.step("sent to be written", Whereabouts::Dram, &[(|s| s.migrations.dram_to_middle, 0)]);
    way.pool.set_policy(policy(0.0, 0.0, 0.0, 1.0));
    assert!(evict(&way.pool, way.id));
    way.step(
        "admitted",
        Whereabouts::Middle,
        &[(|s| s.migrations.dram_to_middle, 1), (|s| s.writes.from_dram, 1)],
    );
    assert_is(&read(&way.pool, way.id), way.id, way.round, "at last");

    // Promoted and freed: the middle copy is freed with it.
    way.pool.set_policy(policy(0.0, 1.0, 0.0, 0.0));
    way.round += 1;
    change(&way.pool, way.id, way.round);
    assert_eq!(whereabouts(&way.pool, way.id), Whereabouts::Both);
    way.before = stats(&way.pool);
    super::frame_tests::free(&way.pool, way.id);
    way.pool.wal.flush_to(way.pool.wal.tail()).unwrap();
    way.pool.requests.maintainer().absorb_freed();
    let since = stats(&way.pool).since(&way.before);
    assert_eq!((since.copies_freed, since.migrations.dram_to_store), (1, 0), "{since:?}");
    assert_eq!((since.copies, since.used), (0, 0));
    way.pool.set_policy(policy(0.0, 0.0, 1.0, 0.0));
    let made = make(&way.pool, small());
    assert_eq!((whereabouts(&way.pool, made), stats(&way.pool).writes.created), (Whereabouts::Middle, 1));
    assert_eq!(way.pool.audit(), [""; 0]);
}

/// A clean page above an older middle copy returns to that copy. Neither admission nor the kind of
/// eviction changes that.
#[test]
fn a_page_that_was_written_stays_in_the_middle_tier() {
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
            assert_eq!(whereabouts(&pool, id), Whereabouts::Middle);
            pool.set_policy(policy(0.0, 1.0, 1.0, 0.0));
            change(&pool, id, 1);
            pool.checkpoint_now(true).unwrap();
            assert_eq!(whereabouts(&pool, id), Whereabouts::Both);
            let before = stats(&pool);
            assert!(evict_as(&pool, id, *offered));
            let since = stats(&pool).since(&before);
            let what = format!("{clean_victims}, offered {offered}, {replacement}: {since:?}");
            assert_eq!(whereabouts(&pool, id), Whereabouts::Middle, "{what}");
            assert_eq!((since.writes.from_dram_clean, since.migrations.dram_to_store), (1, 0), "{what}");
            pool.set_policy(policy(0.0, 0.0, 1.0, 0.0));
            assert_is(&read(&pool, id), id, 1, &what);
            assert_eq!(pool.audit(), [""; 0], "{what}");
        }
    }
}

#[test]
fn clean_pages_are_dropped_offered_or_taken_as_was_said() {
    for (clean_victims, nw, expected) in [
        (CleanVictims::Drop, 1.0, Whereabouts::Store),
        (CleanVictims::Offer, 0.0, Whereabouts::Store),
        (CleanVictims::Offer, 1.0, Whereabouts::Middle),
        (CleanVictims::Always, 0.0, Whereabouts::Middle),
    ] {
        let pool = pool(8, policy(0.0, 0.0, 0.0, nw), clean_victims);
        let id = make(&pool, small());
        pool.checkpoint_now(true).unwrap();
        assert!(evict(&pool, id));
        assert_eq!(whereabouts(&pool, id), expected, "{clean_victims} with {nw}");
        assert_is(&read(&pool, id), id, 0, "wherever it is");
        assert_eq!(pool.audit(), [""; 0]);
    }
}

/// Pages change, are freed and are read under random policies. The middle tier has 1 to 40 frames.
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
                    pool.requests.maintainer().absorb_freed();
                    rounds.remove(&id);
                }
                6 if !ids.is_empty() => {
                    let wanted: Vec<PageId> = (0..8).map(|_| one(&mut random)).collect();
                    super::fault_many(&pool, &wanted, super::ReadReason::Wanted, &mut |at, error| {
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
                pool.requests.maintainer().absorb_freed();
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
fn a_page_that_cannot_go_down_is_latched_until_its_frame_is_in_the_dirty_queue() {
    let pool = pool(1, policy(0.0, 0.0, 1.0, 1.0), CleanVictims::Drop);
    let held = make(&pool, small());
    assert_eq!(whereabouts(&pool, held), Whereabouts::Middle);
    assert!(pool.table.entry(held).unwrap().latch().try_share());
    let id = make(&pool, small());
    let entry = pool.table.entry(id).unwrap();
    let Location::Frame(frame) = entry.location() else { panic!("it has just been made") };
    let Evicted::Yes(to) = pool.try_evict(id, entry, entry.latch().load(), frame, true) else {
        panic!("it is to go down")
    };
    let mut leaving = [Leaving { id, entry, frame, to }];
    pool.finish_evictions(&mut leaving);
    assert!(leaving[0].to == To::Stays && pool.is_latched(id));
    entry.latch().release_unchanged();
    pool.table.entry(held).unwrap().latch().unshare();
    assert_eq!(pool.audit(), [""; 0]);
}

/// A pool with full DRAM and latched pages in the middle tier. Eight DRAM pages are dirty. Returns
/// the pages in the store and the latched ones.
fn crowded() -> (Arc<Maintenance>, Vec<PageId>, Vec<PageId>) {
    let pool = pool_of(160, 32, policy(0.0, 0.0, 0.0, 0.0), CleanVictims::Drop);
    let ids: Vec<PageId> = (0..72).map(|_| make(&pool, small())).collect();
    pool.checkpoint_now(true).unwrap();
    assert!(ids.iter().all(|&id| evict(&pool, id)));
    let (away, held) = ids.split_at(40);
    pool.set_policy(policy(0.0, 0.0, 1.0, 0.0));
    for &id in held {
        read(&pool, id);
        assert_eq!(whereabouts(&pool, id), Whereabouts::Middle);
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

/// Pages per batch buffer under `options`.
const BUFFER_PAGES: usize = 16;

fn bring(pool: &Pool, ids: &[PageId]) -> usize {
    super::fault_many(pool, ids, super::ReadReason::Wanted, &mut |at, error| panic!("{at}: {error}")).unwrap()
}

/// The middle tier gets free frames only after DRAM gave one.
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
    assert_eq!(
        away.iter().filter(|&&id| whereabouts(&pool, id) == Whereabouts::Middle).count(),
        4,
        "an eighth of it"
    );
    assert_eq!(pool.audit(), [""; 0]);
    away.iter().chain(&held).for_each(|&id| assert_is(&read(&pool, id), id, 0, "after the batch"));
}

#[test]
fn a_batch_goes_past_a_middle_tier_that_has_no_frame() {
    let (pool, away, held) = crowded();
    assert_eq!(bring(&pool, &away), BUFFER_PAGES);
    assert_eq!(away.iter().filter(|&&id| whereabouts(&pool, id) == Whereabouts::Dram).count(), BUFFER_PAGES);
    held.iter().for_each(|&id| pool.table.entry(id).unwrap().latch().unshare());
    assert_eq!(pool.audit(), [""; 0]);
}

/// The frame's header notes changes during the flight. In another frame the page would lose that
/// note, and the applied image would make it clean.
#[test]
fn pages_whose_image_is_in_flight_stay_where_they_are_and_dirty() {
    let pool = pool(8, policy(0.0, 0.0, 1.0, 1.0), CleanVictims::Always);
    let far = make(&pool, small());
    pool.set_policy(policy(0.0, 0.0, 0.0, 1.0));
    let near = make(&pool, small());
    pool.set_policy(policy(1.0, 1.0, 1.0, 1.0));
    assert_eq!((whereabouts(&pool, far), whereabouts(&pool, near)), (Whereabouts::Middle, Whereabouts::Dram));
    let was_there = std::rc::Rc::new(std::cell::Cell::new(false));
    let noted = was_there.clone();
    crate::crash::play(Some(std::rc::Rc::new(move |pool: &Pool| {
        if !noted.replace(true) {
            [far, near].iter().for_each(|&id| change(pool, id, 1));
            assert_is(&read(pool, far), far, 1, "in flight");
            assert!(!evict(pool, near) && !evict(pool, far));
            assert_eq!(
                (whereabouts(pool, far), whereabouts(pool, near)),
                (Whereabouts::Middle, Whereabouts::Dram)
            );
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
    assert_eq!(whereabouts(&pool, far), Whereabouts::Store);
    [far, near].iter().for_each(|&id| assert_is(&read(&pool, id), id, 1, "after both"));
    assert_eq!(pool.audit(), [""; 0]);
}

/// Reads that began before a move fail validation. Dropping a middle copy does not affect them.
#[test]
fn who_looks_at_a_page_that_changes_tiers_notices() {
    let pool = pool(8, policy(0.0, 0.0, 0.0, 1.0), CleanVictims::Always);
    let id = make(&pool, small());
    for turn in 0..3 {
        let look = pool.try_read(id).unwrap();
        assert!(look.validate().is_ok());
        assert!(evict(&pool, id), "{turn}");
        assert!(look.validate().is_err() && whereabouts(&pool, id) == Whereabouts::Middle, "down, {turn}");
        pool.set_policy(policy(1.0, 1.0, 0.0, 1.0));
        let look = pool.try_read(id).unwrap();
        read(&pool, id);
        assert!(look.validate().is_err() && whereabouts(&pool, id) != Whereabouts::Middle, "up, {turn}");
        let (look, entry) = (pool.try_read(id).unwrap(), pool.table.entry(id).unwrap());
        let Location::Frame(above) = entry.location() else { panic!("it is in DRAM") };
        // Drop the copy, so that the last turn copies the page again.
        if let Some(below) = pool.frames.header(above).middle_copy().filter(|_| turn == 1) {
            assert!(pool.middle_of_frame().drop_below(
                &pool.resident,
                id,
                entry,
                entry.latch().load(),
                above,
                below
            ));
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
    pool.write_back(&mut pool.round_state.lock(), &[clean]).unwrap();
    let alone = pool.middle_of_frame().moving.write();
    read(&pool, far);
    assert!(!evict(&pool, near) && evict(&pool, clean));
    assert_eq!(
        [far, near, clean].map(|id| whereabouts(&pool, id)),
        [Whereabouts::Middle, Whereabouts::Dram, Whereabouts::Middle]
    );
    drop(alone);
    read(&pool, far);
    assert_ne!(whereabouts(&pool, far), Whereabouts::Middle);
    assert_eq!(pool.audit(), [""; 0]);
}

/// No thread waits for clean middle frames; only the sweep of DRAM asks.
#[test]
fn dirty_pages_of_the_middle_tier_are_written_for_those_that_are_to_go_down() {
    let pool = pool(8, policy(0.0, 0.0, 0.0, 1.0), CleanVictims::Drop);
    let ids: Vec<PageId> = (0..300).map(|_| make(&pool, small())).collect();
    let now = stats(&pool);
    // More pages than the middle tier has frames.
    assert!(now.migrations.dram_to_middle > 8 && now.middle_flushes > 0, "{now:?}");
    assert_eq!(pool.audit(), [""; 0]);
    ids.iter().for_each(|&id| assert_is(&read(&pool, id), id, 0, "wherever it is"));
}

#[test]
fn while_images_find_no_room_dirty_pages_stay_in_the_middle_tier() {
    let pool = pool(8, policy(0.0, 0.0, 1.0, 1.0), CleanVictims::Drop);
    let ids: Vec<PageId> = (0..8).map(|_| make(&pool, small())).collect();
    assert!(ids.iter().all(|&id| whereabouts(&pool, id) == Whereabouts::Middle));
    pool.requests.without_room.store(1, Relaxed);
    assert!(pool.room.changes_find_room(), "dirty pages in the middle tier are in nobody's way");
    pool.requests.without_room.store(1, Relaxed);
    pool.set_policy(policy(1.0, 1.0, 1.0, 1.0));
    read(&pool, ids[0]);
    assert_eq!((whereabouts(&pool, ids[0]), stats(&pool).up_refused), (Whereabouts::Middle, 1));
    pool.requests.without_room.store(0, Relaxed);
    read(&pool, ids[0]);
    assert_ne!(whereabouts(&pool, ids[0]), Whereabouts::Middle);
    assert_eq!(pool.audit(), [""; 0]);
}

/// The share of DRAM pages with a middle copy, after random reads. The pages exceed both tiers.
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
    let both = ids.iter().filter(|&&id| whereabouts(&pool, id) == Whereabouts::Both).count();
    let near = ids.iter().filter(|&&id| whereabouts(&pool, id) == Whereabouts::Dram).count();
    both as f64 / (both + near) as f64
}

/// Spitfire, Table 2: D = N = 1 keeps a quarter in both tiers. DRAM is a quarter of the middle
/// tier.
#[test]
fn clocks_that_do_not_know_of_each_other_keep_copies_and_ours_lets_them_go() {
    if crate::Backend::of_environment().unwrap() == crate::Backend::Mapped {
        assert_eq!(Replacement::ALL.map(share_with_copies), [0.0; 3], "one copy of each");
        return;
    }
    let [ours, fifo, clock] = Replacement::ALL.map(share_with_copies);
    assert!(clock > 0.95 && ours < 0.9 && fifo == 0.0, "{clock} {ours} {fifo}");
}

/// The promoting read marked the page. The hand clears the mark in its first turn and takes the
/// copy in its second. A page that leaves DRAM before that keeps its mark.
#[test]
fn a_middle_copy_has_its_own_mark_and_queue() {
    if crate::Backend::of_environment().unwrap() == crate::Backend::Mapped {
        return;
    }
    let clock = || {
        let pool = pool_by(Replacement::ClockPaper, DRAM_FRAMES, 2, Policy::EAGER, CleanVictims::Drop);
        let (one, other) = (make(&pool, small()), make(&pool, small()));
        pool.checkpoint_now(true).unwrap();
        assert!(evict(&pool, one) && evict(&pool, other));
        [one, other].iter().for_each(|&id| _ = read(&pool, id));
        assert_eq!([one, other].map(|id| whereabouts(&pool, id)), [Whereabouts::Both; 2]);
        (pool, one, other)
    };
    let take = |pool: &Pool| {
        pool.take_frame_now(super::partition::Partition::middle(small()), PageId::NONE).unwrap()
    };
    let (pool, one, other) = clock();
    let (entry, frame) = (pool.table.entry(one).unwrap(), take(&pool).expect("the hand goes round twice"));
    assert_eq!([one, other].map(|id| whereabouts(&pool, id)), [Whereabouts::Dram, Whereabouts::Both]);
    assert!(!entry.latch().load().is_marked(), "marks of the upper copies are none of its business");
    pool.give_frame(frame);

    let (pool, one, other) = clock();
    assert!(evict(&pool, one));
    assert!(
        pool.table.entry(one).unwrap().latch().load().is_marked()
            && whereabouts(&pool, one) == Whereabouts::Middle
    );
    // Its frame comes before the other's, and the hand has cleared both marks when it returns.
    let frame = take(&pool).expect("nothing is dirty");
    assert_eq!([one, other].map(|id| whereabouts(&pool, id)), [Whereabouts::Store, Whereabouts::Both]);
    pool.give_frame(frame);
    assert_eq!(pool.audit(), [""; 0]);
}
