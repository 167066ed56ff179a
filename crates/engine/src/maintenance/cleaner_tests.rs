//! The cleaner in a nearly full file of fixed length, with latched pages in its segments.

use std::ops::ControlFlow;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use terrace_io::AlignedBuffer;

use std::sync::Arc;

use super::Maintenance;
use crate::error::Error;
use crate::ids::PageId;
use crate::pool::frame_tests::{BUDGET, change, make, options, pool_of_segments, small};
use crate::pool::page_table::Location;
use crate::store::mapping_word::Extent;

const PAGES: usize = 1600;
const SEGMENT_BLOCKS: u64 = 16;
const TURNS: u64 = 10;

/// A pool with written pages in a file of fixed length, `fill` of it live.
fn limited(fill: f64) -> (Arc<Maintenance>, Vec<PageId>) {
    let pool = pool_of_segments(&options(BUDGET), SEGMENT_BLOCKS).1;
    let ids: Vec<PageId> = (0..PAGES).map(|_| make(&pool, small())).collect();
    pool.checkpoint_now(true).unwrap();
    super::compact(&pool, &mut |_, _| ControlFlow::Continue(())).unwrap();
    pool.limit_to_fill(fill).unwrap();
    (pool, ids)
}

fn extent_of(pool: &Maintenance, id: PageId) -> Option<Extent> {
    match pool.table.entry(id).unwrap().location() {
        Location::Frame(frame) | Location::Partial(frame) => pool.frames.header(frame).mapped().extent(),
        Location::Store(mapped) => mapped.extent(),
        Location::Nowhere => panic!("{id} is nowhere"),
    }
}

/// One page in each segment that the cleaner may empty and has not yet.
fn in_the_way(pool: &Maintenance, ids: &[PageId]) -> Vec<PageId> {
    let geometry = pool.space.geometry();
    let segment_of = |id| extent_of(pool, id).and_then(|extent| geometry.segment_with(extent));
    let (live, _) = pool.space.counts();
    let sparse = (0..).zip(live).filter(|&(_, live)| (4..SEGMENT_BLOCKS as u32).contains(&live));
    sparse
        .filter_map(|(segment, _)| ids.iter().copied().find(|&id| segment_of(id) == Some(segment)))
        .collect()
}

/// A segment with one latched page costs the room of all images moved out of it. Releasing the
/// latch returns that room.
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
            let made = pool.make_room(&mut pool.round_state.lock(), PAGES as u64);
            for outcome in [made, pool.checkpoint_now(false)] {
                match outcome {
                    Ok(()) | Err(Error::Full { .. }) => {}
                    Err(error) => panic!("turn {turn}: {error}"),
                }
            }
            let (left, room) = (pool.round_state.lock().left_alone.blocks(&pool.space), pool.space.room());
            assert!(left <= room, "turn {turn}: {left} blocks stayed behind, and there is room for {room}");
            drop(latched);
        }
        let written = pool.checkpoint_now(true);
        written.unwrap_or_else(|error| panic!("turn {turn}: {error}"));
    }
    assert_eq!(pool.audit(), [""; 0]);
}

/// The cleaner does not wait for a live image with a destroyed header.
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
