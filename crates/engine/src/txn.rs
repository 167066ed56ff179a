//! Transactions: multi-version, ordered by commit timestamp, validated when they commit, strict serializable.
//!
//! This folder holds the parts a commit is made of. A commit walks them in this order:
//!
//! 1. [`gate`]: enter. A commit that writes what a transaction with [`priority`] has read waits before, for a bounded time;
//!    [`effort`] says which transactions have priority.
//! 2. [`locks`]: lock the write set's keys, slots in ascending order, so that two commits never wait in a circle.
//! 3. [`flight`]: announce the write set, so that validators of *ranges* see keys that no page holds yet. The change
//!    of a single key skips this: it draws its timestamp under the leaf's latch, which those validators look at.
//! 4. [`clock`]: draw the commit timestamp. From here on it must be completed, whatever happens.
//! 5. [`read_set`]: validate. Every point is unchanged and not locked by others; every range has unmoved leaves
//!    (or the same digest when it is scanned again) and no foreign key in flight.
//!    The lock is looked at *before* the entry, the keys in flight before the leaves: a commit that ends in between has
//!    then been applied, and is seen. The other way round it would slip through.
//! 6. [`versions`]: push what each page entry was, *then* change the page. A reader reads the page first and the
//!    old versions second, so it finds one of the two.
//! 7. Complete the timestamp, take the keys out of flight, unlock, leave the gate; acknowledge once the clock's
//!    `visible` has passed the timestamp.
//!
//! Steps 2 to 4 come before step 5 in every commit that has one, with sequentially consistent operations. So of two commits
//! that each write what the other one read, at least one sees the other's lock or key in flight.
//!
//! [`snapshots`] knows the oldest time anybody still reads at, and with it `versions` gives up what nobody can see.
//! A transaction's own uncommitted changes are in [`write_set`], and [`merge`] lays them over a scan of the tree.
//!
//! Lock order: gate, key locks, then at most one mutex of this folder at a time; none of those is held across a call
//! into another module.

pub(crate) mod clock;
pub(crate) mod effort;
pub(crate) mod flight;
pub(crate) mod gate;
pub(crate) mod locks;
pub(crate) mod merge;
pub(crate) mod priority;
pub(crate) mod read_set;
pub(crate) mod snapshots;
pub(crate) mod versions;
pub(crate) mod write_set;

#[cfg(test)]
mod stress;

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use foldhash::quality::FixedState;

pub(crate) use crate::threads::{Padded, thread_number};

use crate::TableId;

/// A key that several structures hold at once: the write set, and scans that merge it in.
pub(crate) type Key = Arc<[u8]>;

/// A range of keys, either end included, excluded or open.
pub(crate) type KeyRange<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// Whether no key can lie in `range`. Ordered maps panic on such ranges, so they are sorted out before.
pub(crate) fn is_empty_range(range: KeyRange<'_>) -> bool {
    match range {
        // No key is below the empty one.
        (_, Bound::Excluded([])) => true,
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => {
            low >= high
        }
        _ => false,
    }
}

/// The same in every run, so that a failing test's seed finds the same collisions again.
const HASH_SEED: u64 = 0x7465_7272_6163_6501;

/// Where a key belongs in hashed structures. A colliding key costs a needless wait or conflict, never a wrong answer.
#[inline]
pub(crate) fn hash_key(table: TableId, key: &[u8]) -> u64 {
    let mut hasher = FixedState::with_seed(HASH_SEED).build_hasher();
    hasher.write_u64(table.0);
    hasher.write(key);
    hasher.finish()
}

/// Owners that a thread takes at a time. Of 63 bits, 2^53 such blocks are there to be taken, which would last a million
/// threads a second for 285 years.
const OWNERS_BLOCK: u64 = 1 << 10;

thread_local! {
    /// The next owner of the thread's block, and the end of the block.
    static OWNERS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// A number that names one attempt to commit in the lock table and among the keys in flight: never zero, the top
/// bit clear, and never drawn again. Drawn from a block of the thread's own, because the commit timestamp does not exist
/// yet and another shared counter would be one more contended line per commit.
pub(crate) fn next_owner() -> u64 {
    static BLOCKS: AtomicU64 = AtomicU64::new(OWNERS_BLOCK);
    OWNERS.with(|owners| {
        let (mut next, mut end) = owners.get();
        if next == end {
            // Relaxed: only that no other thread has the block, nothing is published with it.
            next = BLOCKS.fetch_add(OWNERS_BLOCK, Relaxed);
            end = next + OWNERS_BLOCK;
        }
        owners.set((next + 1, end));
        next
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_after_two_billion_others_draws_owners() {
        crate::threads::skip_numbers_to((1 << 31) - 2);
        let owners = |_| std::thread::spawn(|| (thread_number(), next_owner())).join().unwrap();
        let drawn: Vec<(u64, u64)> = (0..4).map(owners).collect();
        assert!(drawn.iter().all(|&(_, owner)| owner != 0 && owner < 1 << 63), "{drawn:?}");
        assert!(drawn[3].0 >= 1 << 31, "{drawn:?}");
    }

    #[test]
    fn owners_are_unique_across_threads() {
        let mut owners: Vec<u64> = std::thread::scope(|scope| {
            let draw = || (0..3 * OWNERS_BLOCK as usize).map(|_| next_owner()).collect::<Vec<_>>();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(draw)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        owners.sort_unstable();
        owners.dedup();
        assert_eq!(owners.len(), 12 * OWNERS_BLOCK as usize);
        assert!(owners.iter().all(|&owner| owner != 0 && owner < 1 << 63));
    }

    #[test]
    fn empty_ranges_are_recognised() {
        let (a, b): (&[u8], &[u8]) = (b"a", b"b");
        assert!(!is_empty_range((Bound::Included(a), Bound::Included(a))));
        assert!(is_empty_range((Bound::Included(a), Bound::Excluded(a))));
        assert!(is_empty_range((Bound::Excluded(a), Bound::Included(a))));
        assert!(is_empty_range((Bound::Excluded(a), Bound::Excluded(a))));
        assert!(is_empty_range((Bound::Included(b), Bound::Included(a))));
        assert!(is_empty_range((Bound::Unbounded, Bound::Excluded(b""))));
        assert!(!is_empty_range((Bound::Unbounded, Bound::Included(b""))));
        assert!(!is_empty_range((Bound::Excluded(b""), Bound::Unbounded)));
        assert!(!is_empty_range((Bound::Excluded(a), Bound::Excluded(b))));
    }
}
