//! A middle tier with pages of several sizes, and frames that go from one size to another.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace_io::{Profile, SimulatedMemory, Time, VirtualTime};

use super::frame_tests::{assert_is, change, make, options, pool_with, small};
use super::frames::residency_tests::refuse_growths;
use super::partial_tests::{change_by_lines, is_partial, make_below, point};
use super::partition::Partition;
use super::pin::Pin;
use super::resize::Writes;
use super::tier::migration::{Access, CleanVictims, Migration, Policy};
use super::tier_tests::{Whereabouts, evict, policy, pool_of, read, stats, whereabouts};
use super::{MiddleOptions, Pool, PoolOptions, TierOptions, frame_bytes};
use crate::backend::Backend;
use crate::error::Error;
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
    let middle = MiddleOptions { class: small(), frames, migration, lines, minis: false };
    let tiers = TierOptions { middle: Some(middle), ..TierOptions::default() };
    let options = options(frame_bytes(small(), 2 * DRAM_FRAMES));
    let pool = pool_with(&PoolOptions { tiers, backend, ..options }).1;
    pool.resizer().use_class(large()).unwrap();
    pool
}

/// Such a pool over simulated memory with a direct-mapped cache of as many bytes.
fn pool_behind_a_cache(frames: u32) -> Arc<Maintenance> {
    let migration = Choice::Fixed(stay()).into();
    let middle = MiddleOptions { class: small(), frames, migration, lines: None, minis: false };
    let profile = Profile::named("optane").unwrap().with_cache_bytes(0);
    let profile = profile.with_dram_cache_bytes(u64::from(frames) * 4096);
    let memory = SimulatedMemory::new(profile, Time::Virtual(Arc::new(VirtualTime::new(1))));
    let tiers =
        TierOptions { middle: Some(middle), memory: Some(Arc::new(memory)), ..TierOptions::default() };
    let pool = pool_with(&PoolOptions { tiers, ..options(frame_bytes(small(), 2 * DRAM_FRAMES)) }).1;
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

fn read_some(pool: &Pool, ids: &[PageId], reads: usize, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    (0..reads).for_each(|_| _ = read(pool, ids[random.random_range(0..ids.len())]));
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

/// The page in a middle frame.
fn page_in(pool: &Pool, class: SizeClass, index: u32) -> PageId {
    pool.frames.header(Partition::middle(class).frame(index)).page()
}

/// Pins the page in a middle frame, after reads of `ids` have put one there.
fn pin_in<'p>(pool: &'p Pool, ids: &[PageId], index: u32) -> Pin<'p> {
    let class = ids[0].class().unwrap();
    let mut reads = ids.iter().cycle().take(1000);
    while page_in(pool, class, index).is_none() {
        read(pool, *reads.next().expect("the frame gets a page"));
    }
    pool.pin(page_in(pool, class, index), Access::Read).unwrap()
}

#[test]
fn a_pinned_page_keeps_its_frame_and_the_step_is_given_up() {
    let pool = pool(64, stay());
    let ids: Vec<PageId> = (0..32).map(|_| make(&pool, small())).collect();
    let last = page_in(&pool, small(), 31);
    let pin = pin_in(&pool, &ids, 31);
    let written = pool.stats.images_written.load(Relaxed);
    let refused = pool.resizer().move_step_in_middle(small(), large(), 4096 * 8);
    assert!(matches!(refused, Err(Error::OutOfFrames { .. })), "{refused:?}");
    assert_eq!((frames(&pool), page_in(&pool, small(), 31)), (vec![32, 8], last));
    // No other page has left for it, or was written.
    assert_eq!((stats(&pool).classes[0].used, pool.stats.images_written.load(Relaxed)), (32, written));
    drop(pin);
    pool.resizer().move_step_in_middle(small(), large(), 4096 * 8).unwrap();
    assert_eq!(frames(&pool), [24, 10]);
    assert_well(&pool, &ids, "after the step");
}

/// The size that is read would get a step again and again, from frames that cannot all be emptied.
#[test]
fn a_page_held_for_long_has_no_others_leave_in_vain() {
    let pool = pool(64, stay());
    let small_ids: Vec<PageId> = (0..64).map(|_| make(&pool, small())).collect();
    let large_ids: Vec<PageId> = (0..32).map(|_| make(&pool, large())).collect();
    let there = || small_ids.iter().filter(|&&id| whereabouts(&pool, id) == Whereabouts::Middle).count();
    let pin = pin_in(&pool, &small_ids, 31);
    let before = there();
    assert!(before > 16, "{before}");
    read_some(&pool, &large_ids, 2000, 1);
    let classes = stats(&pool).classes;
    assert_eq!((there(), classes[0].frames, classes[0].lost), (before, 32, 0), "{classes:?}");
    drop(pin);
    // Frames above a held one can go.
    let pin = pin_in(&pool, &small_ids, 20);
    assert!(read_until_gained(&pool, &large_ids, 2) > 0);
    drop(pin);
    assert_well(&pool, &[small_ids, large_ids].concat(), "after the step");
}

/// The largest size gets no frame: held pages keep all but 16 KiB. Another size gets those.
#[test]
fn a_size_that_cannot_be_served_does_not_stop_the_others() {
    let pool = pool_by(Backend::Frames, 64, stay(), None);
    let small_ids: Vec<PageId> = (0..128).map(|_| make(&pool, small())).collect();
    let large_ids: Vec<PageId> = (0..16).map(|_| make(&pool, large())).collect();
    let pins = [pin_in(&pool, &small_ids, 31), pin_in(&pool, &large_ids, 6)];
    pool.resizer().use_class(SizeClass::of_bytes(32 << 10).unwrap()).unwrap();
    assert_eq!(frames(&pool), [32, 8]);
    assert!(read_until_gained(&pool, &small_ids, 1) > 0, "{:?}", stats(&pool).classes);
    assert_eq!(frames(&pool), [36, 7]);
    drop(pins);
    // Now it can be.
    read_until_gained(&pool, &small_ids, 2);
    assert_eq!(frames(&pool).len(), 3);
    assert_well(&pool, &[small_ids, large_ids].concat(), "three sizes");
}

#[test]
fn a_dirty_page_in_dram_is_not_written_to_drop_its_middle_copy() {
    let pool = pool_by(Backend::Frames, 64, stay(), None);
    let ids: Vec<PageId> = (0..32).map(|_| make(&pool, small())).collect();
    pool.checkpoint_now(true).unwrap();
    pool.set_policy(move_up());
    for &id in &ids {
        read(&pool, id);
        change(&pool, id, 1);
        assert_eq!(whereabouts(&pool, id), Whereabouts::Both);
    }
    let written = pool.stats.images_written.load(Relaxed);
    pool.resizer().move_step_in_middle(small(), large(), 31 * 4096).unwrap();
    assert_eq!((frames(&pool), pool.stats.images_written.load(Relaxed)), (vec![1, 15], written));
    assert_eq!(pool.audit(), [""; 0]);
    ids.iter().for_each(|&id| assert_is(&read(&pool, id), id, 1, "only DRAM had the change"));
}

/// What was taken and could not be given goes to the next step.
#[test]
fn frames_that_cannot_grow_leave_their_bytes_to_the_next_step() {
    let pool = pool(64, stay());
    let ids: Vec<PageId> = (0..32).map(|_| make(&pool, small())).collect();
    refuse_growths(1);
    let refused = pool.resizer().move_step_in_middle(small(), large(), 4096 * 8);
    assert!(matches!(refused, Err(Error::Memory { .. })), "{refused:?}");
    let now = stats(&pool);
    let counts = (now.classes[0].lost, now.classes[1].gained, now.frame_moves);
    assert_eq!((frames(&pool), counts), (vec![24, 8], (8, 0, 0)));
    assert_well(&pool, &ids, "small ones have left");
    pool.resizer().move_step_in_middle(small(), large(), 4096 * 8).unwrap();
    let now = stats(&pool);
    let counts = (now.classes[0].lost, now.classes[1].gained, now.frame_moves);
    assert_eq!((frames(&pool), counts), (vec![24, 10], (8, 2, 1)));
    assert_eq!(pool.stats.frame_moves.load(Relaxed), 0, "DRAM has its own count");
    assert_well(&pool, &ids, "after both");
}

/// A page file that is full.
struct NoRoom;

impl Writes for NoRoom {
    fn check_buffers(&self, _: SizeClass) -> Result<(), Error> {
        Ok(())
    }

    fn mix_images(&self, _: SizeClass) -> Result<(), Error> {
        Ok(())
    }

    fn announce(&self, _: SizeClass) -> Result<(), Error> {
        Ok(())
    }

    fn clean(&self, _: SizeClass) -> Result<(), Error> {
        self.write_dirty_from(Partition::middle(small()), 0)
    }

    fn write_dirty_from(&self, _: Partition, _: u32) -> Result<(), Error> {
        Err(Error::Full { what: "the test's page file".to_owned() })
    }

    fn is_without_room(&self) -> bool {
        true
    }
}

#[test]
fn a_step_waits_for_room_on_disk() {
    let pool = pool(64, stay());
    let small_ids: Vec<PageId> = (0..64).map(|_| make(&pool, small())).collect();
    let large_ids: Vec<PageId> = (0..32).map(|_| make(&pool, large())).collect();
    let before = stats(&pool).classes[0].used;
    let full = pool.resizing.of(&pool.tiers, &pool.records, pool.class(), &NoRoom);
    let refused = full.move_step_in_middle(small(), large(), 4096 * 8);
    assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
    assert_eq!((frames(&pool), stats(&pool).classes[0].used), (vec![32, 8], before));
    // Balancing gives up the step and all hits, and tries again after as many.
    let hits = || pool.replacer.free(Partition::middle(large())).lock().queues.hits().0;
    let budget = pool.resizing.lock();
    read_some(&pool, &large_ids, 500, 1);
    drop(budget);
    assert!(hits() >= 16, "{}", hits());
    full.balance_middle().unwrap();
    assert_eq!((frames(&pool), hits()), (vec![32, 8], 0));
    assert!(read_until_gained(&pool, &large_ids, 1) > 0);
    assert_well(&pool, &[small_ids, large_ids].concat(), "there was room");
}

/// Pages that fill the tier are all in a cache of its size, however it is divided.
#[test]
fn a_cache_as_large_as_the_simulated_tier_has_room_for_all_sizes() {
    let pool = pool_behind_a_cache(64);
    let mut ids: Vec<PageId> = (0..32).map(|_| make(&pool, small())).collect();
    ids.extend((0..8).map(|_| make(&pool, large())));
    let misses_of_reads = |ids: &[PageId]| {
        let there = ids.iter().filter(|&&id| whereabouts(&pool, id) == Whereabouts::Middle);
        let there: Vec<PageId> = there.copied().collect();
        let misses = || stats(&pool).dram_cache.unwrap().misses;
        let before = misses();
        (0..100).for_each(|_| there.iter().for_each(|&id| _ = read(&pool, id)));
        (there.len(), misses() - before)
    };
    assert_eq!(misses_of_reads(&ids), (40, 0));
    pool.resizer().move_step_in_middle(small(), large(), 12 * 4096).unwrap();
    ids.extend((0..3).map(|_| make(&pool, large())));
    assert_eq!(frames(&pool), [20, 11]);
    assert_eq!(misses_of_reads(&ids), (31, 0));
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
                        let moved = pool.resizer().move_step_in_middle(class, other, step);
                        assert!(matches!(moved, Ok(()) | Err(Error::OutOfFrames { .. })), "{moved:?}");
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
