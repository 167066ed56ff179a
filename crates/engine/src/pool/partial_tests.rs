//! Partial pages of a pool, and planted bugs around them.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::acquire::{Leaf, access_leaf};
use super::frame_tests::{assert_is, change, look, make, options, pool_with, small};
use super::page_table::Location;
use super::partition::Partition;
use super::tier::migration::{Access, CleanVictims, Migration};
use super::tier_tests::{Whereabouts, evict, policy, stats, whereabouts};
use super::view::{Piece, View};
use super::{
    Edit, MiddleOptions, PartialGuard, Pool, PoolOptions, Retry, TierOptions, Unread, frame_bytes, operation,
};
use crate::backend::Backend;
use crate::ids::{Lsn, PageId, Timestamp};
use crate::maintenance::Maintenance;
use crate::migration::Choice;
use crate::planted::{Bug, plant};
use crate::stats::MiddleStats;
use crate::store::page::HEADER_BYTES;
use crate::wal::RecordBuilder;

thread_local! {
    static LOADING: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
    static LEAVING: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
}

/// Runs what a test has set, in the middle of the load of a line.
pub(super) fn while_loading() {
    let others = LOADING.take();
    others.iter().for_each(|others| others());
}

/// Runs what a test has set, while lines leave a partial page.
pub(super) fn while_leaving() {
    if let Some(others) = LEAVING.with_borrow(Option::clone) {
        others();
    }
}

pub(super) fn set_while_leaving(others: Option<Rc<dyn Fn()>>) {
    LEAVING.set(others);
}

const DRAM_FRAMES: u32 = 40;
/// Lines of 64 bytes in a small page.
const LINES: u64 = 64;

/// A pool whose pages go to a middle tier of `frames` frames, and to DRAM at each read.
fn pool_of(frames: u32) -> Arc<Maintenance> {
    pool_by_lines(frames, false)
}

/// Such a pool, also with mini pages.
pub(super) fn pool_by_lines(frames: u32, minis: bool) -> Arc<Maintenance> {
    let choice = Choice::Fixed(policy(1.0, 1.0, 1.0, 1.0));
    let migration = Migration { clean_victims: Some(CleanVictims::Always), ..choice.into() };
    let middle = MiddleOptions { class: small(), frames, migration, lines: Some(64), minis };
    let tiers = TierOptions { middle: Some(middle), ..TierOptions::default() };
    let options = options(frame_bytes(small(), DRAM_FRAMES));
    pool_with(&PoolOptions { tiers, backend: Backend::Frames, ..options }).1
}

/// A page in the middle tier after `rounds` changes, dirty.
pub(super) fn make_below(pool: &Pool, rounds: u64) -> PageId {
    let id = make(pool, small());
    (1..=rounds).for_each(|round| change(pool, id, round));
    assert!(evict(pool, id));
    assert_eq!(whereabouts(pool, id), Whereabouts::Middle);
    // The page's next frame has no bytes of it.
    make(pool, small());
    id
}

/// Accesses `id` for a point read; `None` if it is whole in DRAM, or in the store.
fn try_point(pool: &Pool, id: PageId) -> Result<Option<PartialGuard<'_>>, Retry> {
    operation::begin(Access::Read);
    if let Some(partial) = Unread::try_read(&pool.tiers, id)? {
        partial.mark();
        return Ok(Some(partial.open()));
    }
    let Some(guard) = pool.try_read(id).filter(|guard| guard.is_in_middle()) else { return Ok(None) };
    Ok(match access_leaf(pool, guard, false)? {
        Leaf::Partial(partial) => Some(partial.open()),
        Leaf::Whole(_) => None,
    })
}

pub(super) fn point(pool: &Pool, id: PageId) -> PartialGuard<'_> {
    try_point(pool, id).ok().flatten().expect("nobody else is here, and DRAM has frames")
}

pub(super) fn is_partial(pool: &Pool, id: PageId) -> bool {
    matches!(pool.table.entry(id).unwrap().location(), Location::Partial(_))
}

/// The word that says after how many changes `id` is, from line `line` of the part that changes.
pub(super) fn word(view: impl View, line: usize) -> u64 {
    view.u64(HEADER_BYTES + line * 64)
}

pub(super) fn word_after(id: PageId, round: u64) -> u64 {
    id.0 ^ round << 32
}

/// Changes `id` as [`change`] does, by its lines. Whether the page was partial, or to become so.
pub(super) fn change_by_lines(pool: &Pool, id: PageId, round: u64) -> bool {
    let mut reservation = pool.reserve_log(1024).unwrap();
    let Ok(Some(partial)) = try_point(pool, id) else { return false };
    word(partial.view(), 0);
    partial.load_for_change(HEADER_BYTES, 256);
    let Ok(mut guard) = partial.upgrade() else { return false };
    let bytes = word_after(id, round).to_le_bytes().repeat(32);
    let mut record = RecordBuilder::pages(Timestamp::NONE, Lsn::NONE);
    record.change_bytes(id, HEADER_BYTES as u32, &bytes);
    let pieces = [Piece { at: HEADER_BYTES, bytes: &bytes }];
    let edit = Edit::Patch(&mut guard, &pieces);
    pool.change(&mut record, Some(&mut reservation), [edit]).unwrap();
    true
}

/// Lines that such a change dirties, the one with the LSN among them.
pub(super) const LINES_CHANGED: u64 = 5;

#[test]
fn a_change_by_lines_demotes_the_lines_that_differ() {
    let pool = pool_of(8);
    let id = make_below(&pool, 1);
    let before = stats(&pool);
    for round in 2..5 {
        assert!(change_by_lines(&pool, id, round));
        assert!(is_partial(&pool, id));
        assert_eq!(pool.audit(), [""; 0]);
    }
    let now = stats(&pool).since(&before);
    assert_eq!((now.lines_loaded, now.lines_demoted, now.made_whole), (LINES_CHANGED, 0, 0));
    assert_eq!(word(point(&pool, id).view(), 3), word_after(id, 4));
    assert!(evict(&pool, id));
    let now = stats(&pool).since(&before);
    assert_eq!((now.lines_demoted, now.migrations.dram_to_middle), (LINES_CHANGED, 0));
    assert_is(&look(&pool, id), id, 4, "promoted again");
    assert_eq!(pool.audit(), [""; 0]);
}

/// Its changes are in lines only, and all other ways of the page start there.
fn changes_by_lines_stay() {
    let pool = pool_of(8);
    let ids = [(); 4].map(|()| make_below(&pool, 1));
    ids.iter().for_each(|&id| assert!(change_by_lines(&pool, id, 2)));
    // Made whole; demoted; written, then demoted; below an image that is older.
    assert_is(&look(&pool, ids[0]), ids[0], 2, "whole");
    change(&pool, ids[0], 3);
    assert!(evict(&pool, ids[0]) && evict(&pool, ids[1]));
    pool.write_back(&mut pool.round_state.lock(), &ids[2..]).unwrap();
    assert!(is_partial(&pool, ids[2]) && is_partial(&pool, ids[3]));
    assert!(change_by_lines(&pool, ids[3], 3));
    assert_eq!(pool.audit(), [""; 0]);
    ids[2..].iter().for_each(|&id| pool.check_image(id).unwrap());
    assert!(evict(&pool, ids[2]) && evict(&pool, ids[2]) && evict(&pool, ids[3]));
    assert_eq!(whereabouts(&pool, ids[2]), Whereabouts::Store);
    ids.iter().zip([3, 2, 2, 3]).for_each(|(&id, round)| assert_is(&look(&pool, id), id, round, "later"));
    assert_eq!(pool.audit(), [""; 0]);
}

#[test]
fn changes_by_lines_are_where_the_page_goes() {
    changes_by_lines_stay();
}

#[test]
fn catches_dirty_line_forgotten() {
    caught(Bug::DirtyLineForgotten, changes_by_lines_stay);
}

#[test]
fn a_point_read_loads_the_lines_that_it_touches_and_others_the_rest() {
    let pool = pool_of(8);
    let id = make_below(&pool, 1);
    let before = stats(&pool);
    let partial = point(&pool, id);
    assert_eq!(stats(&pool).since(&before).lines_loaded, 0);
    assert_eq!(word(partial.view(), 2), word_after(id, 1));
    let mut bytes = [0; 100];
    partial.view().copy_to(600, &mut bytes);
    assert_eq!(word(partial.view(), 2), word_after(id, 1));
    partial.validate().unwrap();
    let now = stats(&pool).since(&before);
    assert_eq!((now.promoted_partial, now.lines_loaded, now.made_whole), (1, 3, 0));
    assert!(is_partial(&pool, id));
    assert_eq!(pool.audit(), [""; 0]);

    assert_is(&look(&pool, id), id, 1, "whole");
    let now = stats(&pool).since(&before);
    assert_eq!((now.lines_loaded, now.made_whole), (LINES, 1));
    // No byte changed that the first look has read.
    partial.validate().unwrap();
    assert_eq!(word(partial.view(), 0), word_after(id, 1));
    assert_eq!((whereabouts(&pool, id), is_partial(&pool, id)), (Whereabouts::Both, false));

    change(&pool, id, 2);
    assert!(partial.validate().is_err());
    assert!(evict(&pool, id));
    assert_eq!(word(point(&pool, id).view(), 1), word_after(id, 2));
    assert_eq!(pool.audit(), [""; 0]);
}

/// Its middle copy has all, so nothing is copied down.
#[test]
fn a_partial_page_leaves_dram_without_a_copy() {
    let pool = pool_of(8);
    let id = make_below(&pool, 3);
    let partial = point(&pool, id);
    assert_eq!(word(partial.view(), 3), word_after(id, 3));
    let before = stats(&pool);
    assert!(evict(&pool, id));
    let now = stats(&pool).since(&before).migrations;
    assert_eq!((now.dram_to_middle_uncopied, now.dram_to_middle), (1, 0));
    assert!(partial.validate().is_err());
    assert_eq!(whereabouts(&pool, id), Whereabouts::Middle);
    assert_is(&look(&pool, id), id, 3, "after it came back");
    assert_eq!(pool.audit(), [""; 0]);
}

/// A reader that was refused a line must not count, though the page has the version it saw.
#[test]
fn a_look_beside_a_shared_latch_restarts() {
    let pool = pool_of(8);
    let id = make_below(&pool, 0);
    let (partial, latch) = (point(&pool, id), pool.table.entry(id).unwrap().latch());
    assert!(latch.try_share());
    assert_eq!(word(partial.view(), 0), 0);
    latch.unshare();
    assert!(partial.validate().is_err());
    let again = point(&pool, id);
    assert_eq!(word(again.view(), 0), word_after(id, 0));
    again.validate().unwrap();
}

/// A comparison loads no line behind the first difference.
#[test]
fn a_comparison_loads_lines_up_to_the_first_difference() {
    for minis in [false, true] {
        let pool = pool_by_lines(8, minis);
        let id = make_below(&pool, 1);
        let whole = look(&pool, id);
        assert!(evict(&pool, id));
        let mut other = whole[32..232].to_vec();
        other[50] ^= 1;
        let order = whole[32..232].cmp(&other);
        let partial = point(&pool, id);
        let before = stats(&pool);
        assert_eq!(partial.view().compare(32, 200, &other), order);
        assert_eq!(stats(&pool).since(&before).lines_loaded, 2, "the second line differs");
        assert_eq!(partial.view().compare(32, 200, &whole[32..232]), std::cmp::Ordering::Equal);
        assert_eq!(stats(&pool).since(&before).lines_loaded, 4);
        partial.validate().unwrap();
    }
}

/// The middle tier's hand demotes partial pages before it takes their frames, and spares marked
/// ones.
#[test]
fn a_middle_copy_goes_only_after_the_partial_page_above() {
    let pool = pool_of(2);
    let take = || pool.take_frame_now(Partition::middle(small()), PageId::NONE).unwrap();
    let ids = [make_below(&pool, 1), make_below(&pool, 2)];
    pool.checkpoint_now(true).unwrap();
    ids.iter().for_each(|&id| assert_ne!(word(point(&pool, id).view(), 0), 0));
    ids.iter().for_each(|&id| point(&pool, id).validate().unwrap());
    assert!(take().is_none(), "both pages were accessed twice");
    assert!(ids.iter().all(|&id| is_partial(&pool, id)));
    ids.iter().for_each(|&id| pool.table.entry(id).unwrap().latch().unmark());
    let frames = [0, 1].map(|at| {
        assert!(ids[at..].iter().all(|&id| is_partial(&pool, id)));
        let frame = take().expect("both pages are clean");
        assert_eq!(whereabouts(&pool, ids[at]), Whereabouts::Store);
        frame
    });
    frames.into_iter().for_each(|frame| pool.give_frame(frame));
    assert_eq!(pool.audit(), [""; 0]);
    ids.iter().zip(1..).for_each(|(&id, round)| assert_is(&look(&pool, id), id, round, "later"));
    assert_eq!(pool.audit(), [""; 0]);
}

/// A page that is partial and dirty has an image of all of it.
fn image_of_a_partial_page() {
    let pool = pool_of(8);
    let id = make_below(&pool, 2);
    assert_eq!(word(point(&pool, id).view(), 1), word_after(id, 2));
    assert!(pool.table.entry(id).unwrap().latch().load().is_dirty());
    pool.write_back(&mut pool.round_state.lock(), &[id]).unwrap();
    assert!(is_partial(&pool, id) && !pool.table.entry(id).unwrap().latch().load().is_dirty());
    assert_eq!(pool.audit(), [""; 0]);
    pool.check_image(id).unwrap();
    // To the store and back.
    assert!(evict(&pool, id) && evict(&pool, id));
    assert_eq!(whereabouts(&pool, id), Whereabouts::Store);
    assert_is(&look(&pool, id), id, 2, "from its image");
}

#[test]
fn the_image_of_a_partial_page_has_all_lines() {
    image_of_a_partial_page();
}

/// Whether a read counts that found bytes of a line before they were loaded.
fn counts_half_a_line() -> bool {
    let pool = pool_of(8);
    let id = make_below(&pool, 1);
    let (loader, (go, may_go)) = (point(&pool, id), channel());
    let ((looked, has_looked), (done, is_done)) = (channel(), channel::<()>());
    std::thread::scope(|scope| {
        let pool = &pool;
        let reader = scope.spawn(move || {
            let partial = point(pool, id);
            looked.send(()).unwrap();
            may_go.recv().unwrap();
            let found = word(partial.view(), 2);
            looked.send(()).unwrap();
            is_done.recv().unwrap();
            partial.validate().is_ok() && found != word_after(id, 1)
        });
        has_looked.recv().unwrap();
        LOADING.set(Some(Rc::new(move || {
            go.send(()).unwrap();
            has_looked.recv().unwrap();
        })));
        assert_eq!(word(loader.view(), 2), word_after(id, 1));
        done.send(()).unwrap();
        reader.join().unwrap()
    })
}

/// A page leaves its frame to another one, which changes. The look that follows may not load a
/// line.
fn late_load() {
    let pool = pool_of(8);
    let (id, other) = (make_below(&pool, 1), make_below(&pool, 1));
    let late = point(&pool, id);
    let frame = pool.table.entry(id).unwrap().location().frame();
    assert!(evict(&pool, id));
    assert_is(&look(&pool, other), other, 1, "whole");
    assert_eq!(pool.table.entry(other).unwrap().location().frame(), frame);
    change(&pool, other, 2);
    word(late.view(), 1);
    assert!(late.validate().is_err());
    assert_is(&look(&pool, other), other, 2, "beside a late reader");
}

/// Two pages are partial in one frame, one after the other.
fn lines_of_two_pages_in_a_frame() {
    let pool = pool_of(8);
    let ids = [make_below(&pool, 1), make_below(&pool, 2)];
    let frames = [(ids[0], 1), (ids[1], 2)].map(|(id, round)| {
        let partial = point(&pool, id);
        assert_eq!(word(partial.view(), 3), word_after(id, round));
        partial.validate().unwrap();
        let frame = pool.table.entry(id).unwrap().location().frame();
        assert!(evict(&pool, id));
        frame
    });
    assert_eq!(frames[0], frames[1]);
}

/// The middle tier needs a frame that is below a partial page.
fn frame_below_a_partial_page() {
    let pool = pool_of(1);
    let id = make_below(&pool, 1);
    assert_eq!(word(point(&pool, id).view(), 0), word_after(id, 1));
    pool.checkpoint_now(true).unwrap();
    let frame = pool.take_frame_now(Partition::middle(small()), PageId::NONE).unwrap();
    frame.into_iter().for_each(|frame| pool.give_frame(frame));
    assert_eq!(pool.audit(), [""; 0]);
    assert_is(&look(&pool, id), id, 1, "after its middle copy went");
}

pub(super) fn caught(bug: Bug, check: impl Fn()) {
    plant(Some(bug));
    let outcome = catch_unwind(AssertUnwindSafe(&check));
    plant(None);
    LOADING.set(None);
    assert!(outcome.is_err(), "{bug:?} was not noticed");
    check();
}

#[test]
fn catches_line_bit_before_line() {
    caught(Bug::LineBitBeforeLine, || assert!(!counts_half_a_line()));
}

#[test]
fn catches_load_under_shared_latch() {
    caught(Bug::LoadUnderSharedLatch, late_load);
}

#[test]
fn catches_keep_line_bits() {
    caught(Bug::KeepLineBits, lines_of_two_pages_in_a_frame);
}

#[test]
fn catches_drop_below_partial() {
    caught(Bug::DropBelowPartial, frame_below_a_partial_page);
}

#[test]
fn catches_image_of_half_a_page() {
    caught(Bug::ImageOfHalfAPage, image_of_a_partial_page);
}

/// More pages than both tiers hold. Readers by lines hold no lock, so they check that two lines are
/// of one state of the page.
#[test]
fn threads_find_lines_of_one_state_while_pages_change_and_move() {
    lines_are_of_one_state(&pool_of(60));
}

#[test]
fn threads_find_lines_of_mini_pages_of_one_state() {
    let pool = pool_by_lines(60, true);
    lines_are_of_one_state(&pool);
    let MiddleStats { promoted_mini, widened, .. } = stats(&pool);
    assert!(promoted_mini > 0 && widened > 0, "{:?}", stats(&pool));
}

fn lines_are_of_one_state(pool: &Maintenance) {
    let ids: Vec<PageId> = (0..200).map(|_| make(pool, small())).collect();
    let rounds: Vec<Mutex<u64>> = ids.iter().map(|_| Mutex::new(0)).collect();
    let partial_looks = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (ids, rounds, partial_looks) = (&ids, &rounds, &partial_looks);
        let maintenance = scope.spawn(move || pool.run_maintenance());
        let others: Vec<_> = (0..4)
            .map(|seed| {
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(seed);
                    for step in 0..8000 {
                        // A few pages are hot, so that threads meet there.
                        let at = random.random_range(0..if step % 2 == 0 { 6 } else { ids.len() });
                        let id = ids[at];
                        if step % 16 < 2 {
                            let mut round = rounds[at].lock();
                            *round += 1;
                            if step % 32 < 16 || !change_by_lines(pool, id, *round) {
                                change(pool, id, *round);
                            }
                            if step % 64 < 32 {
                                assert_is(&look(pool, id), id, *round, "whole");
                            }
                        }
                        let Ok(Some(partial)) = try_point(pool, id) else {
                            pool.read(id).map_err(|_| "missing").unwrap();
                            continue;
                        };
                        let lines = [random.random_range(0..4), random.random_range(0..4)];
                        let found = lines.map(|line| word(partial.view(), line));
                        if partial.validate().is_ok() {
                            assert_eq!(found[0], found[1], "page {id}, lines {lines:?}");
                            assert_eq!(found[0] as u32, id.0 as u32);
                            partial_looks.fetch_add(1, Relaxed);
                        }
                    }
                })
            })
            .collect();
        let outcomes: Vec<_> = others.into_iter().map(|thread| thread.join()).collect();
        pool.stop_maintenance();
        assert!(maintenance.join().is_ok() && outcomes.iter().all(Result::is_ok));
    });
    // How often threads meet is up to the scheduler.
    assert!(partial_looks.load(Relaxed) > 0, "{partial_looks:?} {:?}", stats(pool));
    assert!(stats(pool).made_whole > 0, "{:?}", stats(pool));
    assert_eq!(pool.audit(), [""; 0]);
    for (&id, round) in ids.iter().zip(&rounds) {
        assert_is(&look(pool, id), id, *round.lock(), "at the end");
    }
}
