//! Mini pages of a pool, and planted bugs around them.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::frame_tests::{assert_is, look};
use super::frames::partition::is_mini;
use super::page_table::Location;
use super::partial_tests::{
    LINES_CHANGED, caught, change_by_lines, is_partial, make_below, point, pool_by_lines, set_while_leaving,
    word, word_after,
};
use super::partition::{Partition, partition_of};
use super::resident::class_of_page;
use super::tier_tests::{Whereabouts, evict, stats, whereabouts};
use super::view::View;
use super::{Pool, Unread};
use crate::ids::PageId;
use crate::planted::Bug;

fn is_mini_page(pool: &Pool, id: PageId) -> bool {
    matches!(pool.table.entry(id).unwrap().location(), Location::Partial(frame) if is_mini(frame))
}

fn mini_of(pool: &Pool, id: PageId) -> u32 {
    pool.table.entry(id).unwrap().location().frame().filter(|&frame| is_mini(frame)).unwrap()
}

/// Reads one byte of each of `lines`.
fn read_lines(pool: &Pool, id: PageId, lines: std::ops::Range<usize>) {
    for line in lines {
        let partial = point(pool, id);
        partial.view().u8(line * 64);
    }
}

/// Small pages have room for three in a frame.
const SLOTS: usize = 3;

#[test]
fn a_seventeenth_line_gives_a_mini_page_a_frame() {
    let pool = pool_by_lines(8, true);
    let id = make_below(&pool, 1);
    let before = stats(&pool);
    read_lines(&pool, id, 20..36);
    let partial = point(&pool, id);
    assert!(is_mini_page(&pool, id));
    let now = stats(&pool).since(&before);
    assert_eq!((now.promoted_partial, now.promoted_mini, now.widened, now.lines_loaded), (1, 1, 0, 16));
    assert_eq!(pool.audit(), [""; 0]);

    assert_eq!(word(partial.view(), 0), 0, "there is no room for it");
    assert!(partial.validate().is_err());
    assert!(is_partial(&pool, id) && !is_mini_page(&pool, id));
    let partial = point(&pool, id);
    assert_eq!(word(partial.view(), 0), word_after(id, 1));
    read_lines(&pool, id, 20..36);
    partial.validate().unwrap();
    let now = stats(&pool).since(&before);
    assert_eq!((now.widened, now.lines_loaded), (1, 17));
    assert_eq!(pool.audit(), [""; 0]);
    assert_is(&look(&pool, id), id, 1, "whole");
}

/// All frames of DRAM: those of mini pages, which no sweep finds, and all others, which are empty.
struct NoFrames<'p> {
    pool: &'p Pool,
    holding: Vec<u32>,
    taken: Vec<u32>,
}

impl<'p> NoFrames<'p> {
    fn of(pool: &'p Pool, id: PageId) -> Self {
        let class = class_of_page(id);
        let holds = |frame: &u32| pool.frames.header(*frame).page() == PageId::MINI_PAGES;
        let holding: Vec<u32> = pool.frames.all().filter(holds).collect();
        for &frame in &holding {
            pool.replacer.free(class).lock().queues.remove(&pool.frames, frame);
        }
        let taken = std::iter::from_fn(|| pool.take_frame_now(class.into(), PageId::NONE).unwrap());
        NoFrames { pool, holding, taken: taken.collect() }
    }
}

impl Drop for NoFrames<'_> {
    fn drop(&mut self) {
        for &frame in &self.holding {
            let mut free = self.pool.replacer.free(partition_of(frame)).lock();
            free.queues.enter_main(&self.pool.frames, frame, 0);
        }
        self.taken.iter().for_each(|&frame| self.pool.give_frame(frame));
    }
}

/// Some lines are in the mini page, two of them changed, and the others are read in place.
#[test]
fn a_full_mini_page_stays_while_no_frame_is_free() {
    let pool = pool_by_lines(8, true);
    let id = make_below(&pool, 1);
    assert!(change_by_lines(&pool, id, 2));
    read_lines(&pool, id, 20..31);
    let whole = pool.tiers.frames.words(id, pool.frames.header(mini_of(&pool, id)).middle_copy().unwrap());
    let below: Vec<u8> = whole.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
    let frames = NoFrames::of(&pool, id);
    let before = stats(&pool);
    for _ in 0..3 {
        let partial = point(&pool, id);
        assert_eq!(word(partial.view(), 3), word_after(id, 2), "a changed line");
        assert_eq!(partial.view().u64(40 * 64), (&below[..]).u64(40 * 64), "an absent line");
        let mut bytes = [0; 300];
        partial.view().copy_to(30 * 64 + 5, &mut bytes);
        let expected = &below[30 * 64 + 5..][..300];
        assert_eq!(bytes, expected);
        assert!(partial.view().compare(30 * 64 + 5, 300, expected).is_eq());
        assert_eq!(word(partial.view(), 1), word_after(id, 2), "a changed line after others");
        partial.validate().unwrap();
        assert!(is_mini_page(&pool, id));
    }
    let now = stats(&pool).since(&before);
    assert_eq!((now.reads_in_place, now.lines_loaded, now.lines_demoted), (3, 0, 0));
    assert!(change_by_lines(&pool, id, 3), "it has the lines");
    assert!(is_mini_page(&pool, id));
    // A look that began before a change reads old lines, and does not count.
    let late = point(&pool, id);
    late.view().u64(40 * 64);
    assert!(change_by_lines(&pool, id, 4));
    word(late.view(), 0);
    assert!(late.validate().is_err());
    drop(frames);
    assert_is(&look(&pool, id), id, 4, "whole");
    assert_eq!(pool.audit(), [""; 0]);
}

/// A look may read lines in place that a change then needs.
#[test]
fn a_change_of_lines_without_room_begins_in_the_middle_tier() {
    let pool = pool_by_lines(8, true);
    let id = make_below(&pool, 1);
    read_lines(&pool, id, 20..36);
    let frames = NoFrames::of(&pool, id);
    assert!(!change_by_lines(&pool, id, 2));
    assert_eq!(whereabouts(&pool, id), Whereabouts::Middle);
    drop(frames);
    assert!(change_by_lines(&pool, id, 2));
    assert_is(&look(&pool, id), id, 2, "whole");
}

/// A look at all of the page, and a sweep of the middle tier, which wants the frame below.
#[test]
fn each_page_that_leaves_its_lines_counts_as_evicted() {
    let pool = pool_by_lines(8, true);
    let ids = [(); 2].map(|()| make_below(&pool, 1));
    let evictions = || pool.stats.evictions.load(Relaxed);
    for id in ids {
        assert_eq!(word(point(&pool, id).view(), 0), word_after(id, 1));
    }
    let frames = NoFrames::of(&pool, ids[0]);
    let before = evictions();
    assert_is(&look(&pool, ids[0]), ids[0], 1, "in the middle tier");
    assert_eq!((evictions() - before, stats(&pool).mini_pages), (1, 1));
    pool.table.entry(ids[1]).unwrap().latch().unmark();
    let middle = Partition::middle(class_of_page(ids[1]));
    let below = (0..8).map_while(|_| pool.take_frame_now(middle, PageId::NONE).unwrap()).collect::<Vec<_>>();
    assert_eq!(stats(&pool).mini_pages, 0);
    assert!(!below.is_empty());
    below.into_iter().for_each(|frame| pool.give_frame(frame));
    drop(frames);
    assert_eq!(pool.audit(), [""; 0]);
}

/// Two sweeps of DRAM, which demote and move mini pages, and one of the middle tier.
#[test]
fn lines_are_copied_without_the_lock_of_the_free_frames() {
    let pool = pool_by_lines(20, true);
    let ids: Vec<PageId> = (0..3 * SLOTS).map(|_| make_below(&pool, 1)).collect();
    ids.iter().for_each(|&id| assert!(change_by_lines(&pool, id, 2)));
    let class = class_of_page(ids[0]);
    let tiers = [Partition::from(class), Partition::middle(class)];
    let copied = Rc::new(Cell::new(0));
    set_while_leaving(Some({
        let (copied, pool) = (Rc::clone(&copied), Arc::clone(&pool));
        Rc::new(move || {
            copied.set(copied.get() + 1);
            for tier in tiers {
                assert!(pool.replacer.free(tier).try_lock().is_some(), "{tier:?}");
            }
        })
    }));
    // One page of each frame was accessed once more than the others.
    (0..3).for_each(|frame| point(&pool, ids[frame * SLOTS]).validate().unwrap());
    let class = class_of_page(ids[0]);
    let mut taken = Vec::new();
    while stats(&pool).mini_pages > SLOTS as u64 {
        taken.push(pool.take_frame_now(class.into(), PageId::NONE).unwrap().expect("there are others"));
    }
    let copied_by_dram = copied.get();
    assert!(copied_by_dram >= 2 * SLOTS, "{copied_by_dram}");
    ids.iter().for_each(|&id| pool.table.entry(id).unwrap().latch().unmark());
    let mut below = Vec::new();
    while stats(&pool).mini_pages > 0 {
        below.extend(pool.take_frame_now(Partition::middle(class), PageId::NONE).unwrap());
    }
    assert_eq!(copied.get(), copied_by_dram + SLOTS);
    set_while_leaving(None);
    taken.into_iter().chain(below).for_each(|frame| pool.give_frame(frame));
    assert_eq!(pool.audit(), [""; 0]);
    ids.iter().for_each(|&id| assert_is(&look(&pool, id), id, 2, "later"));
}

/// All middle frames are below mini pages, whose marks no sweep of DRAM clears.
#[test]
fn mini_pages_in_use_give_up_the_middle_tier_when_they_are_used_no_more() {
    let pool = pool_by_lines(8, true);
    let ids = [(); 8].map(|()| make_below(&pool, 1));
    let middle = Partition::middle(class_of_page(ids[0]));
    let take = || pool.take_frame_now(middle, PageId::NONE).unwrap();
    let used = &ids[..3];
    for id in ids {
        point(&pool, id).validate().unwrap();
        point(&pool, id).validate().unwrap();
        assert!(is_mini_page(&pool, id) && pool.table.entry(id).unwrap().latch().load().is_marked());
    }
    let mut taken = Vec::new();
    for round in 0.. {
        assert!(round < 20, "{} frames", taken.len());
        used.iter().for_each(|&id| point(&pool, id).validate().unwrap());
        taken.extend(take());
        if taken.len() == 3 {
            break;
        }
    }
    assert!(used.iter().all(|&id| is_mini_page(&pool, id)), "they are in use");
    taken.into_iter().for_each(|frame| pool.give_frame(frame));
    assert_eq!(pool.audit(), [""; 0]);
    ids.iter().for_each(|&id| assert_is(&look(&pool, id), id, 1, "later"));
}

/// Bytes of several lines, at any position, as a whole page has them.
#[test]
fn looks_at_mini_pages_find_what_pages_have() {
    let pool = pool_by_lines(8, true);
    let id = make_below(&pool, 3);
    let whole = look(&pool, id);
    assert!(evict(&pool, id));
    for (at, length) in [(0, 8), (61, 7), (64, 64), (60, 300), (4000, 96), (4090, 20), (5000, 4)] {
        let partial = point(&pool, id);
        let mut bytes = vec![7; length];
        partial.view().copy_to(at, &mut bytes);
        let end = (at + length).min(whole.len());
        let mut expected = whole[at.min(end)..end].to_vec();
        assert_eq!(partial.view().compare(at, length, &expected), std::cmp::Ordering::Equal, "{at}");
        if let Some(last) = expected.last_mut() {
            *last = last.wrapping_add(1);
            let expected = &expected[..];
            let order = whole[at..end].cmp(expected);
            assert_eq!(partial.view().compare(at, length, expected), order, "{at}");
            assert_eq!(
                partial.view().compare(at, length, &expected[..expected.len() - 1]),
                std::cmp::Ordering::Greater
            );
        }
        expected = whole[at.min(end)..end].to_vec();
        expected.resize(length, 0);
        assert_eq!(bytes, expected, "{length} bytes at {at}");
        assert_eq!(partial.view().u64(at), (&whole[..]).u64(at));
        partial.validate().unwrap();
        assert!(is_mini_page(&pool, id), "at {at}");
        assert!(evict(&pool, id));
    }
}

fn changes_go_down() {
    let pool = pool_by_lines(8, true);
    let id = make_below(&pool, 1);
    let before = stats(&pool);
    for round in 2..5 {
        assert!(change_by_lines(&pool, id, round));
        assert!(is_mini_page(&pool, id));
        assert_eq!(pool.audit(), [""; 0]);
    }
    assert!(evict(&pool, id));
    let now = stats(&pool).since(&before);
    assert_eq!((now.lines_loaded, now.widened, now.made_whole), (LINES_CHANGED, 0, 0));
    assert_eq!(whereabouts(&pool, id), Whereabouts::Middle);
    assert_is(&look(&pool, id), id, 4, "promoted again");
    assert_eq!(pool.audit(), [""; 0]);
    assert_eq!((now.lines_demoted, now.migrations.dram_to_middle), (LINES_CHANGED, 0));
}

#[test]
fn changed_lines_of_a_mini_page_go_down() {
    changes_go_down();
}

#[test]
fn catches_mini_evicted_unwritten() {
    caught(Bug::MiniEvictedUnwritten, changes_go_down);
}

fn the_cut_sees_mini_pages() {
    let pool = pool_by_lines(8, true);
    let id = make_below(&pool, 1);
    assert_eq!(word(point(&pool, id).view(), 0), word_after(id, 1));
    pool.checkpoint_now(true).unwrap();
    assert!(pool.oldest_rec_lsn().is_none() && is_mini_page(&pool, id));
    let begun = pool.wal.tail();
    assert!(change_by_lines(&pool, id, 2));
    assert!(pool.oldest_rec_lsn().is_some_and(|lsn| lsn >= begun), "it is dirty in its mini page");
    assert_eq!(pool.pages_dirty_before(pool.wal.tail()), [id]);
    pool.checkpoint_now(true).unwrap();
    assert!(pool.oldest_rec_lsn().is_none() && is_mini_page(&pool, id));
    pool.check_image(id).unwrap();
    assert!(evict(&pool, id) && evict(&pool, id));
    assert_eq!(whereabouts(&pool, id), Whereabouts::Store);
    assert_is(&look(&pool, id), id, 2, "from its image");
    assert_eq!(pool.audit(), [""; 0]);
}

#[test]
fn checkpoints_write_mini_pages() {
    the_cut_sees_mini_pages();
}

#[test]
fn catches_cut_forgets_mini() {
    caught(Bug::CutForgetsMini, the_cut_sees_mini_pages);
}

/// A dirty mini page gets a frame, for more lines or for all.
fn dirty_lines_move_to_a_frame() {
    let pool = pool_by_lines(8, true);
    let ids = [(); 2].map(|()| make_below(&pool, 1));
    for id in ids {
        assert!(change_by_lines(&pool, id, 2));
        assert!(is_mini_page(&pool, id));
    }
    pool.checkpoint_now(true).unwrap();
    assert!(change_by_lines(&pool, ids[0], 3) && change_by_lines(&pool, ids[1], 3));
    assert_is(&look(&pool, ids[1]), ids[1], 3, "whole");
    read_lines(&pool, ids[0], 20..40);
    assert!(is_partial(&pool, ids[0]) && !is_mini_page(&pool, ids[0]));
    assert_eq!(word(point(&pool, ids[0]).view(), 1), word_after(ids[0], 3));
    for id in ids {
        assert!(pool.pages_dirty_before(pool.wal.tail()).contains(&id));
        assert!(evict(&pool, id));
        assert_is(&look(&pool, id), id, 3, "later");
    }
    assert_eq!(pool.audit(), [""; 0]);
}

#[test]
fn a_mini_page_takes_its_changes_to_a_frame() {
    dirty_lines_move_to_a_frame();
}

#[test]
fn catches_promotion_loses_dirty() {
    caught(Bug::PromotionLosesDirty, dirty_lines_move_to_a_frame);
}

/// A page leaves its mini page to another one; a late look may count nothing of it.
#[test]
fn a_slot_that_another_page_has_got_does_not_count() {
    let pool = pool_by_lines(8, true);
    let ids = [make_below(&pool, 1), make_below(&pool, 2)];
    let late = point(&pool, ids[0]);
    let unread = Unread::try_read(&pool.tiers, ids[0]).ok().flatten().unwrap();
    assert_eq!(word(late.view(), 1), word_after(ids[0], 1));
    let slot = pool.table.entry(ids[0]).unwrap().location();
    assert!(evict(&pool, ids[0]));
    assert_eq!(word(point(&pool, ids[1]).view(), 1), word_after(ids[1], 2));
    assert_eq!(pool.table.entry(ids[1]).unwrap().location(), slot);
    word(late.view(), 1);
    assert!(late.validate().is_err());
    unread.mark();
    assert_eq!(pool.audit(), [""; 0]);
}

/// Frames of mini pages are few; the hand takes the unmarked pages of one, and the frame if it is
/// empty then.
#[test]
fn the_hand_takes_unmarked_mini_pages_and_empty_frames() {
    let pool = pool_by_lines(20, true);
    let class = class_of_page(make_below(&pool, 0));
    let ids: Vec<PageId> = (0..2 * SLOTS).map(|_| make_below(&pool, 1)).collect();
    ids.iter().for_each(|&id| assert_eq!(word(point(&pool, id).view(), 0), word_after(id, 1)));
    assert!(ids.iter().all(|&id| is_mini_page(&pool, id)));
    assert_eq!(stats(&pool).mini_page_frames, 2);
    // Each page but the first two of the first frame was accessed once more.
    ids[2..].iter().for_each(|&id| point(&pool, id).validate().unwrap());
    assert_eq!(stats(&pool).mini_pages, 2 * SLOTS as u64);
    // Until all other frames are in use.
    let mut taken = Vec::new();
    while stats(&pool).mini_pages > 0 {
        taken.push(pool.take_frame_now(class.into(), PageId::NONE).unwrap().expect("there are others"));
        assert!(taken.len() < 100);
    }
    assert_eq!(stats(&pool).mini_page_frames, 0);
    taken.into_iter().for_each(|frame| pool.give_frame(frame));
    assert_eq!(pool.audit(), [""; 0]);
    ids.iter().for_each(|&id| assert_is(&look(&pool, id), id, 1, "later"));
}
