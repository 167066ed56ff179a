//! The keys in flight: what commits are about to write, in key order.
//!
//! The leaves of a scanned range do not show a key that a commit with a lower timestamp will
//! insert: a phantom. So every commit announces its write set *before* it draws its timestamp, and
//! withdraws it after applying it. Every validation of a range looks for foreign keys in flight. A
//! commit that announces later has a higher timestamp, so its insert comes after the scan.
//!
//! A single-key change outside a transaction is not announced. It holds the leaf's latch from
//! before its timestamp until it is applied, and a latched leaf counts as moved (`txn/single.rs`).
//!
//! A commit puts a reference to its ordered write set into its thread's slot; asking searches all
//! slots. A count per slot spares the mutex of empty ones. It is raised under the mutex, so a
//! thread that sees it raised waits for the write set. Raising and reading it is sequentially
//! consistent: of two commits that announce and then ask, at least one sees the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use parking_lot::Mutex;

use super::write_set::WriteSet;
use super::{KeyRange, Padded, thread_number};
use crate::TableId;
use crate::planted::{Bug, planted};

const SLOTS: usize = 64;

/// The write sets of all commits between their announcement and their end.
#[derive(Debug)]
pub(crate) struct InFlight {
    slots: Box<[Padded<Slot>]>,
}

#[derive(Debug, Default)]
struct Slot {
    count: AtomicUsize,
    commits: Mutex<Vec<(u64, Arc<WriteSet>)>>,
}

/// An announced write set; dropping it withdraws it.
#[derive(Debug)]
pub(crate) struct FlightGuard<'a> {
    slot: &'a Slot,
    owner: u64,
}

impl InFlight {
    pub(crate) fn new() -> Self {
        InFlight { slots: (0..SLOTS).map(|_| Padded::default()).collect() }
    }

    pub(crate) fn size_bytes(&self) -> usize {
        size_of_val(&*self.slots)
    }

    /// Announces all keys of `writes` before their commit draws its timestamp.
    pub(crate) fn announce(&self, owner: u64, writes: Arc<WriteSet>) -> FlightGuard<'_> {
        let slot = &*self.slots[thread_number() as usize % SLOTS];
        let mut commits = slot.commits.lock();
        slot.count.fetch_add(1, SeqCst);
        commits.push((owner, writes));
        drop(commits);
        FlightGuard { slot, owner }
    }

    /// Whether a commit other than `me` will write a key in `range`.
    pub(crate) fn any_foreign_in(&self, table: TableId, range: KeyRange<'_>, me: u64) -> bool {
        if planted(Bug::NoRangeCheck) {
            return false;
        }
        self.slots.iter().any(|slot| {
            slot.count.load(SeqCst) > 0
                && slot
                    .commits
                    .lock()
                    .iter()
                    .any(|(owner, writes)| *owner != me && writes.touches(table, range))
        })
    }
}

impl Drop for FlightGuard<'_> {
    fn drop(&mut self) {
        let mut commits = self.slot.commits.lock();
        let rank = commits.iter().position(|(owner, _)| *owner == self.owner);
        let gone = rank.map(|rank| commits.swap_remove(rank));
        self.slot.count.fetch_sub(1, SeqCst);
        drop(commits);
        // After the mutex, since this may free the write set.
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound::{Excluded, Included, Unbounded};

    use super::super::next_owner;
    use super::super::write_set::NewValue;
    use super::*;

    const TABLE: TableId = TableId(3);

    fn writes(keys: &[&[u8]]) -> Arc<WriteSet> {
        let mut writes = WriteSet::default();
        for key in keys {
            writes.put(TABLE, key, NewValue::inline(b"value"));
        }
        Arc::new(writes)
    }

    #[test]
    fn only_foreign_keys_inside_the_range_count() {
        let flight = InFlight::new();
        let (me, other) = (next_owner(), next_owner());
        let guard = flight.announce(other, writes(&[b"d", b"m"]));
        let range: KeyRange<'_> = (Included(b"e"), Excluded(b"n"));
        assert!(flight.any_foreign_in(TABLE, range, me));
        assert!(!flight.any_foreign_in(TABLE, range, other), "its own keys are not foreign");
        assert!(!flight.any_foreign_in(TableId(4), range, me));
        assert!(!flight.any_foreign_in(TABLE, (Excluded(b"d"), Excluded(b"m")), me));
        assert!(
            !flight.any_foreign_in(TABLE, (Included(b"z"), Included(b"a")), me),
            "an inverted range is empty"
        );
        let mine = flight.announce(me, writes(&[b"f"]));
        assert!(flight.any_foreign_in(TABLE, (Unbounded, Unbounded), other));
        drop(guard);
        assert!(!flight.any_foreign_in(TABLE, (Unbounded, Unbounded), me));
        drop(mine);
        assert!(!flight.any_foreign_in(TABLE, (Unbounded, Unbounded), other));
    }

    /// Two threads announce one key each, then ask for the other's. Two answers of "none" would be
    /// a phantom.
    #[test]
    fn of_two_commits_one_sees_the_other() {
        let flight = InFlight::new();
        let barrier = std::sync::Barrier::new(2);
        let missed = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..5000 {
                        let owner = next_owner();
                        let writes = writes(&[b"k"]);
                        barrier.wait();
                        let guard = flight.announce(owner, writes);
                        if !flight.any_foreign_in(TABLE, (Included(b"a"), Unbounded), owner) {
                            missed.fetch_add(1, SeqCst);
                        }
                        barrier.wait();
                        assert!(missed.load(SeqCst) < 2, "neither commit saw the other");
                        barrier.wait();
                        missed.store(0, SeqCst);
                        drop(guard);
                    }
                });
            }
        });
    }
}
