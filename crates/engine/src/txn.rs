//! Transactions: multi-version, strict serializable, validated at commit. [`order`] has the other
//! protocol, in which a transaction reads and writes in its turn.
//!
//! A commit takes these steps in order:
//!
//! 1. [`gate`]: enter; wait a bounded time for reads protected by [`priority`] (see [`effort`]).
//! 2. [`locks`]: lock the write set in ascending slot order, so commits never wait in a circle.
//! 3. [`flight`]: announce the write set to validators of *ranges*. A single-key change skips this:
//!    it draws its timestamp under the leaf's latch, which they check.
//! 4. [`clock`]: draw the commit timestamp, which must then be completed in every case.
//! 5. `validate.rs`: validate the [`read_set`]. Points are unchanged and not locked by others.
//!    Ranges have unmoved leaves (or an equal digest on a second scan) and no foreign key in
//!    flight. Read the lock *before* the entry, the keys in flight before the leaves: a commit that
//!    ends in between was applied, and is seen.
//! 6. [`versions`]: push the old version, *then* change the page. Readers do the reverse, so they
//!    find one of the two.
//! 7. Complete the timestamp, end the flight, unlock, leave the gate; acknowledge once `visible`
//!    has passed it.
//!
//! Steps 2 to 4 precede step 5, with sequentially consistent operations. So of two commits that
//! each write what the other read, at least one sees the other's lock or key.
//!
//! [`commit`] and [`single`] walk these steps over [`mvcc`], the state that reads and commits
//! share; [`records`], [`chain`] and [`take_back`] are their parts. [`read`] and [`scan`] read.
//! [`catalog`], [`tables`] and [`counts`] keep tables by name, [`garbage`] and [`large`] pages
//! without an owner.
//!
//! [`snapshots`] bounds the versions to keep. [`write_set`] holds uncommitted changes, and
//! [`merge`] adds them to a scan. Lock order: gate, key locks, then at most one mutex of this
//! folder, never held across a call into another module.

pub(crate) mod catalog;
pub(crate) mod chain;
pub(crate) mod clock;
pub(crate) mod commit;
pub(crate) mod counters;
pub(crate) mod counts;
pub(crate) mod durability;
pub(crate) mod effort;
pub(crate) mod flight;
pub(crate) mod garbage;
pub(crate) mod gate;
pub(crate) mod large;
pub(crate) mod locks;
pub(crate) mod merge;
pub(crate) mod mvcc;
pub(crate) mod named;
pub(crate) mod order;
pub(crate) mod permits;
pub(crate) mod priority;
pub(crate) mod read;
pub(crate) mod read_set;
pub(crate) mod records;
pub(crate) mod scan;
pub(crate) mod settings;
pub(crate) mod single;
pub(crate) mod snapshots;
pub(crate) mod table;
pub(crate) mod table_count;
pub(crate) mod tables;
pub(crate) mod take_back;
pub(crate) mod undo;
pub(crate) mod validate;
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

/// A key shared by several structures: the write set, and scans that merge it.
pub(crate) type Key = Arc<[u8]>;

pub(crate) type KeyRange<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// Whether `range` can hold no key; ordered maps panic on such ranges.
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

/// Constant, so that a failing test's seed finds the same collisions again.
const HASH_SEED: u64 = 0x7465_7272_6163_6501;

/// Hash of a key. A collision costs a needless wait or conflict, never a wrong answer.
#[inline]
pub(crate) fn hash_key(table: TableId, key: &[u8]) -> u64 {
    let mut hasher = FixedState::with_seed(HASH_SEED).build_hasher();
    hasher.write_u64(table.0);
    hasher.write(key);
    hasher.finish()
}

/// Owners per block. 63 bits hold 2^53 blocks: 285 years at a million threads a second.
const OWNERS_BLOCK: u64 = 1 << 10;

thread_local! {
    /// The next owner of the thread's block, and the end of the block.
    static OWNERS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// A unique number for one attempt to commit. Never zero, top bit clear.
///
/// It comes from a block of the thread, because a shared counter would contend on every commit.
pub(crate) fn next_owner() -> u64 {
    static BLOCKS: AtomicU64 = AtomicU64::new(OWNERS_BLOCK);
    OWNERS.with(|owners| {
        let (mut next, mut end) = owners.get();
        if next == end {
            // Relaxed: the block need only be unique.
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
