//! Buffers of batches, and what becomes of pages that were read together before anybody looks at them.

use super::*;
use crate::buffer::PoolOptions;
use crate::buffer::frame_tests::{BUDGET, make, options, pool_with, small};

#[test]
fn buffers_are_as_many_as_there_is_memory_for_and_as_long_as_they_must_be() {
    for bytes in [128 << 10, 512 << 10, 2 << 20, 8 << 20, 16 << 20, 64 << 20] {
        for page_bytes in [4 << 10, 16 << 10, 64 << 10] {
            for least in [0, 256 << 10, 4 << 20] {
                let batches = Batches::new(bytes, page_bytes, least);
                let what = format!("{bytes} {page_bytes} {least}: {batches:?}");
                assert!(batches.bytes >= least.max(page_bytes), "{what}");
                assert!((1..=BATCHES_MAX).contains(&batches.most), "{what}");
                assert!(batches.bytes * batches.most <= bytes.max(batches.bytes), "{what}");
                assert!(batches.most >= 2 || bytes < 2 * least.max(page_bytes), "{what}");
            }
        }
    }
    let of_pages = Batches::new(8 << 20, 64 << 10, 128 << 10);
    assert_eq!((of_pages.bytes, of_pages.most), (2 << 20, 4));
}

fn is_in_frame(pool: &Pool, id: PageId) -> bool {
    matches!(pool.table.entry(id).unwrap().location(), Location::Frame(_))
}

/// How many of some pages that were read together, and that nobody has looked at, are still there when a few more others were read
/// than there are frames, which are all on probation, and when twice as many again were.
fn left(purpose: Purpose) -> [usize; 2] {
    // Where these are is a matter of one tier's queues.
    let (_files, pool) = pool_with(&PoolOptions { middle: None, ..options(BUDGET) });
    let frames = pool.frames.count(small()) as usize;
    let ids: Vec<PageId> = (0..6 * frames).map(|_| make(&pool, small())).collect();
    // All of them leave once, so that what is in memory then is clean.
    let look = |id: PageId| _ = pool.read(id).unwrap();
    ids.iter().copied().for_each(look);
    let away: Vec<PageId> = ids.iter().copied().filter(|&id| !is_in_frame(&pool, id)).collect();
    let (read, others) = away.split_at(8);
    assert_eq!(pool.fault_many(read, purpose, &mut |_, error| panic!("{error}")).unwrap(), 8);
    let mut others = others.iter();
    [frames + frames / 4, 2 * frames].map(|count| {
        others.by_ref().take(count).copied().for_each(look);
        read.iter().filter(|&&id| is_in_frame(&pool, id)).count()
    })
}

#[test]
fn what_is_wanted_stays_for_a_round_and_not_for_ever() {
    assert_eq!(left(Purpose::Wanted), [8, 0]);
    assert_eq!(left(Purpose::Ahead), [0, 0]);
}
