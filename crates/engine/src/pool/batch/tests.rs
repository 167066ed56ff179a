//! Batch buffers, and how long batched pages stay without an access.

use super::*;
use crate::pool::buffers::{BATCHES_MAX, Batches};
use crate::pool::frame_tests::{BUDGET, make, options, pool_with, small};
use crate::pool::{PoolOptions, TierOptions};

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

/// Counts batched pages that stay without an access while others are read. First a quarter more
/// others than frames, all on probation; then twice as many as frames.
fn left(read_reason: ReadReason) -> [usize; 2] {
    // One tier, since its queues decide.
    let (_files, pool) = pool_with(&PoolOptions { tiers: TierOptions::default(), ..options(BUDGET) });
    let frames = pool.frames.count(small()) as usize;
    let ids: Vec<PageId> = (0..6 * frames).map(|_| make(&pool, small())).collect();
    // Every page leaves once, so that memory holds only clean pages.
    let look = |id: PageId| _ = pool.read(id).unwrap();
    ids.iter().copied().for_each(look);
    let away: Vec<PageId> = ids.iter().copied().filter(|&id| !is_in_frame(&pool, id)).collect();
    let (read, others) = away.split_at(8);
    assert_eq!(fault_many(&pool, read, read_reason, &mut |_, error| panic!("{error}")).unwrap(), 8);
    let mut others = others.iter();
    [frames + frames / 4, 2 * frames].map(|count| {
        others.by_ref().take(count).copied().for_each(look);
        read.iter().filter(|&&id| is_in_frame(&pool, id)).count()
    })
}

#[test]
fn what_is_wanted_stays_for_a_round_and_not_for_ever() {
    assert_eq!(left(ReadReason::Wanted), [8, 0]);
    assert_eq!(left(ReadReason::Ahead), [0, 0]);
}
