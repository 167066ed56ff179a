//! The cleaner in a file that is nearly full and may not grow, while pages in the segments that it empties are latched.

use std::ops::ControlFlow;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use terrace_block::AlignedBuffer;

use super::Pool;
use super::frame_tests::{BUDGET, change, make, options, pool_of_segments, small};
use super::table::Location;
use crate::error::Error;
use crate::ids::PageId;
use crate::store::place::Extent;

const PAGES: usize = 1600;
const SEGMENT_PLACES: u64 = 16;
const TURNS: u64 = 10;

/// A pool whose pages are written, in a file of which so much is live, and which may not grow.
fn limited(fill: f64) -> (Pool, Vec<PageId>) {
    let pool = pool_of_segments(&options(BUDGET), SEGMENT_PLACES).1;
    let ids: Vec<PageId> = (0..PAGES).map(|_| make(&pool, small())).collect();
    pool.checkpoint_now(true).unwrap();
    pool.compact(&mut |_, _| ControlFlow::Continue(())).unwrap();
    pool.limit_to_fill(fill).unwrap();
    (pool, ids)
}

/// Where the image of `id` is.
fn extent_of(pool: &Pool, id: PageId) -> Option<Extent> {
    match pool.table.entry(id).unwrap().location() {
        Location::Frame(frame) => pool.frames.header(frame).mapped().extent(),
        Location::Store(mapped) => mapped.extent(),
        Location::Nowhere => panic!("{id} is nowhere"),
    }
}

/// A page in each segment that the cleaner may empty, and has not yet.
fn in_the_way(pool: &Pool, ids: &[PageId]) -> Vec<PageId> {
    let geometry = pool.space.geometry();
    let segment_of = |id| extent_of(pool, id).and_then(|extent| geometry.segment_with(extent));
    let (live, _) = pool.space.counts();
    let sparse = (0..).zip(live).filter(|&(_, live)| (4..SEGMENT_PLACES as u32).contains(&live));
    sparse
        .filter_map(|(segment, _)| ids.iter().copied().find(|&id| segment_of(id) == Some(segment)))
        .collect()
}

/// Each segment that could not be emptied for one latched page takes the room of all that was moved out of it. When the latch is let go
/// of, that room comes back.
#[test]
fn segments_that_were_left_for_one_latched_page_are_emptied_later() {
    let (pool, mut ids) = limited(0.84);
    let mut random = SmallRng::seed_from_u64(4);
    for turn in 0..TURNS {
        ids.shuffle(&mut random);
        ids[..PAGES / 4].iter().for_each(|&id| change(&pool, id, turn));
        pool.checkpoint_now(true).unwrap();
        for _ in 0..12 {
            let held = in_the_way(&pool, &ids);
            held.iter().for_each(|&id| change(&pool, id, turn));
            let latched: Vec<_> = held.iter().map(|&id| pool.latch(id).unwrap()).collect();
            let made = pool.make_room(&mut pool.upkeep.lock(), PAGES as u64);
            for outcome in [made, pool.checkpoint_now(false)] {
                match outcome {
                    Ok(()) | Err(Error::Full { .. }) => {}
                    Err(error) => panic!("turn {turn}: {error}"),
                }
            }
            let (left, room) = (pool.upkeep.lock().left_alone.places(&pool.space), pool.space.room());
            assert!(left <= room, "turn {turn}: {left} places stayed behind, and there is room for {room}");
            drop(latched);
        }
        let written = pool.checkpoint_now(true);
        written.unwrap_or_else(|error| panic!("turn {turn}: {error}"));
    }
    assert_eq!(pool.audit(), [""; 0]);
}

/// What is live and cannot be told from the bytes of its segment, because the header of its image was destroyed, is not waited for.
#[test]
fn images_without_a_header_do_not_keep_other_segments_from_being_emptied() {
    let (pool, mut ids) = limited(0.4);
    let mut random = SmallRng::seed_from_u64(5);
    ids.shuffle(&mut random);
    let lost = ids.split_off(PAGES - PAGES / 16);
    for &id in &lost {
        let extent = extent_of(&pool, id).unwrap();
        pool.device.write_at(extent.offset(), &AlignedBuffer::zeroed(extent.bytes())).unwrap();
    }
    let bytes = pool.device.len();
    for turn in 0..TURNS {
        ids.shuffle(&mut random);
        ids[..PAGES / 4].iter().for_each(|&id| change(&pool, id, turn));
        pool.checkpoint_now(true).unwrap_or_else(|error| panic!("turn {turn}: {error}"));
    }
    assert_eq!(pool.device.len(), bytes);
}
