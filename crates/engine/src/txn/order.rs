//! Timestamp ordering: what [`Concurrency::Mvto`](crate::Concurrency) keeps beside the locks.
//!
//! A transaction draws its timestamp `T` at its first read. It reads what was committed below `T`
//! and writes at `T`, so `T` is its turn in the serial order. The timestamp is decided at once, as
//! that of a commit without changes, so it holds up `visible` no longer than the commits before it
//! do. Its changes come later, below `visible`. Three rules make that safe:
//!
//! - **A read marks the key first**, then waits for the commit that holds the key's lock, then
//!   reads. A commit at `T` locks the key first and then looks at the mark. So one of the two sees
//!   the other, and no commit changes what a reader above `T` has seen. Marks are kept per slot of
//!   the lock table: a collision costs a needless conflict.
//! - **A commit is refused if a later one wrote the key.** So the timestamps of a key's versions
//!   rise in the order of the commits, as `versions.rs` requires.
//! - **A scan marks its table, a snapshot all tables** ([`TimestampOrder::scan`],
//!   [`TimestampOrder::freeze`]). Then it waits for the commits at work that are not above it.
//!   Commits ask for these marks and enter the list of those at work in one step, under the mutex.
//!
//! Commits that draw their timestamp under their locks (single changes, batches, transactions that
//! validate) find no mark above it. They note what they write, and enter the list for scans.
//!
//! A durable commit in a turn keeps its locks, and stays in the list, until it is durable. So a
//! reader that waits for it never returns what a crash may take back. For commits that draw their
//! timestamp, `visible` tells that, and the commit of a turn waits for `visible`.
//!
//! The versions that a commit at `T` replaces are superseded below `visible`. While it is at work
//! its timestamp bounds their collection ([`TimestampOrder::oldest`]): a taken back commit needs
//! them.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::{Condvar, Mutex};

use super::Padded;
use super::locks::LockTable;
use super::snapshots::SnapshotHandle;
use crate::planted::{Bug, planted};
use crate::{TableId, Timestamp};

/// Tables that have a mark of their own. Others share one, which costs needless conflicts.
const TABLE_MARKS: usize = 1024;

#[derive(Debug)]
pub(crate) struct TimestampOrder {
    keys: Box<[KeyMarks]>,
    commits: Mutex<Commits>,
    left: Condvar,
    /// Commits that were taken back. Every get reads it.
    taken_back: Padded<AtomicU64>,
    /// How often a scan or a snapshot waited for a commit.
    #[cfg(test)]
    waits: AtomicU64,
}

/// The lowest timestamp that may change what was read at `at`. It is that of the reader, if its
/// snapshot ends at `at`.
fn above(at: Timestamp) -> Timestamp {
    Timestamp(at.0.saturating_add(1))
}

/// The lowest timestamp that may change the keys of a slot because of reads, and the highest that
/// has changed them.
#[derive(Debug, Default)]
struct KeyMarks {
    read: AtomicU64,
    written: AtomicU64,
}

#[derive(Debug)]
struct Commits {
    /// Timestamps of the commits at work, or lower bounds of them, plus those of scans.
    at_work: Vec<Timestamp>,
    ended: u64,
    /// Commits up to this are refused.
    frozen: Timestamp,
    /// Per table, the lowest timestamp that may change it because of scans.
    scanned: Box<[Timestamp]>,
}

impl Commits {
    fn mark_of(&mut self, table: TableId) -> &mut Timestamp {
        let at = table.0 as usize % self.scanned.len();
        &mut self.scanned[at]
    }

    fn note_scan(&mut self, table: TableId, at: Timestamp) {
        let mark = self.mark_of(table);
        *mark = above(at).max(*mark);
    }
}

/// The turn of a transaction that has read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn<'a> {
    pub(crate) timestamp: Timestamp,
    /// What it read, and what it changes, was there.
    pub(crate) snapshot: &'a SnapshotHandle,
}

/// A commit at work; dropping it ends that.
#[derive(Debug)]
#[must_use]
pub(crate) struct AtWork<'a> {
    order: &'a TimestampOrder,
    timestamp: Timestamp,
}

impl TimestampOrder {
    pub(crate) fn new(locks: &LockTable) -> Self {
        TimestampOrder {
            keys: (0..locks.slots()).map(|_| KeyMarks::default()).collect(),
            commits: Mutex::new(Commits {
                at_work: Vec::new(),
                ended: 0,
                frozen: Timestamp::NONE,
                scanned: vec![Timestamp::NONE; TABLE_MARKS].into(),
            }),
            left: Condvar::new(),
            taken_back: Padded::default(),
            #[cfg(test)]
            waits: AtomicU64::new(0),
        }
    }

    /// Bytes for a lock table of `slots` slots.
    pub(crate) const fn bytes(slots: usize) -> usize {
        slots * size_of::<KeyMarks>() + TABLE_MARKS * size_of::<Timestamp>()
    }

    pub(crate) fn size_bytes(&self) -> usize {
        TimestampOrder::bytes(self.keys.len())
    }

    /// Marks a key whose state at `at` is about to be read. The caller waits for its lock
    /// afterwards, and then reads.
    pub(crate) fn read(&self, slot: u32, at: Timestamp) {
        if !planted(Bug::NoReadMark) {
            self.keys[slot as usize].read.fetch_max(above(at).0, SeqCst);
        }
    }

    /// Whether no later transaction has read or written the keys of `slots`, which are locked.
    pub(super) fn admits(&self, slots: &[u32], at: Timestamp) -> bool {
        slots.iter().map(|&slot| &self.keys[slot as usize]).all(|marks| {
            marks.read.load(SeqCst) <= at.0
                && (marks.written.load(SeqCst) <= at.0 || planted(Bug::WriteBelowNewer))
        })
    }

    /// Notes that the keys of `slots`, which are locked, were written at `at`.
    pub(super) fn wrote(&self, slots: &[u32], at: Timestamp) {
        for &slot in slots {
            self.keys[slot as usize].written.fetch_max(at.0, SeqCst);
        }
    }

    /// Begins a commit at `at`, unless a later scan or snapshot has seen one of its tables.
    pub(super) fn begin(
        &self,
        at: Timestamp,
        tables: impl IntoIterator<Item = TableId>,
    ) -> Option<AtWork<'_>> {
        let mut commits = self.commits.lock();
        let is_late = at <= commits.frozen || tables.into_iter().any(|table| at < *commits.mark_of(table));
        if is_late && !planted(Bug::NoTableMark) {
            return None;
        }
        commits.at_work.push(at);
        Some(AtWork { order: self, timestamp: at })
    }

    /// Begins a commit whose timestamp will be drawn, above `drawn`.
    pub(super) fn begin_above(&self, drawn: Timestamp) -> AtWork<'_> {
        let timestamp = Timestamp(drawn.0 + 1);
        self.commits.lock().at_work.push(timestamp);
        AtWork { order: self, timestamp }
    }

    /// Marks `table`, whose state at `at` was read. Commits up to it that began before are in
    /// flight.
    pub(super) fn note_scan(&self, table: TableId, at: Timestamp) {
        self.commits.lock().note_scan(table, at);
    }

    /// Marks `table`, whose state at `at` is about to be read, and waits for the commits up to it.
    pub(crate) fn scan(&self, table: TableId, at: Timestamp) {
        self.mark(at, |commits| commits.note_scan(table, at));
    }

    /// Keeps everything as it is at `at`: refuses the changes of all transactions that are not
    /// above it.
    pub(crate) fn freeze(&self, at: Timestamp) {
        self.mark(at, |commits| commits.frozen = at.max(commits.frozen));
    }

    /// Waits for the commits at work up to `at`: a turn's is visible before it is durable.
    pub(super) fn wait_for(&self, at: Timestamp) {
        self.mark(at, |_| {});
    }

    fn mark(&self, at: Timestamp, mark: impl FnOnce(&mut Commits)) {
        let mut commits = self.commits.lock();
        mark(&mut commits);
        if planted(Bug::ScanBesideCommit) {
            return;
        }
        while commits.at_work.iter().any(|&commit| commit <= at) {
            #[cfg(test)]
            self.waits.fetch_add(1, SeqCst);
            self.left.wait(&mut commits);
        }
    }

    /// How often a scan or a snapshot waited for a commit.
    #[cfg(test)]
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(SeqCst)
    }

    /// A lower bound of the timestamps of all commits at work.
    pub(crate) fn oldest(&self) -> Option<Timestamp> {
        self.commits.lock().at_work.iter().min().map(|at| Timestamp(at.0 - 1))
    }

    /// The number of commits that ended, if none is at work.
    pub(crate) fn ended_if_idle(&self) -> Option<u64> {
        let commits = self.commits.lock();
        commits.at_work.is_empty().then_some(commits.ended)
    }

    /// Notes that a commit was taken back, before it unlocks its keys.
    pub(super) fn note_taken_back(&self) {
        self.taken_back.fetch_add(1, SeqCst);
    }

    /// The number of commits that were taken back.
    pub(crate) fn taken_back(&self) -> u64 {
        self.taken_back.load(SeqCst)
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        let mut commits = self.order.commits.lock();
        let rank = commits.at_work.iter().position(|&at| at == self.timestamp);
        commits.at_work.swap_remove(rank.expect("it entered the list"));
        commits.ended += 1;
        drop(commits);
        self.order.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: TableId = TableId(20);
    const OTHER: TableId = TableId(21);

    fn order() -> TimestampOrder {
        TimestampOrder::new(&LockTable::new(64))
    }

    #[test]
    fn a_commit_below_a_read_or_a_write_of_its_key_is_refused() {
        let order = order();
        order.read(3, Timestamp(9));
        order.read(3, Timestamp(7));
        assert!(!order.admits(&[1, 3], Timestamp(9)), "the state at 9 was read");
        assert!(order.admits(&[1, 3], Timestamp(10)), "it may have read itself");
        assert!(order.admits(&[1, 2], Timestamp(5)), "another key");
        order.wrote(&[1, 2], Timestamp(12));
        assert!(!order.admits(&[2], Timestamp(11)));
        assert!(order.admits(&[2], Timestamp(13)));
    }

    #[test]
    fn a_commit_below_a_scan_of_its_table_or_a_snapshot_is_refused() {
        let order = order();
        order.scan(TABLE, Timestamp(9));
        assert!(order.begin(Timestamp(9), [OTHER, TABLE]).is_none());
        drop(order.begin(Timestamp(9), [OTHER]).expect("nobody scanned it"));
        drop(order.begin(Timestamp(10), [TABLE]).expect("it may have scanned the table itself"));
        order.freeze(Timestamp(20));
        assert!(order.begin(Timestamp(20), [OTHER]).is_none(), "a snapshot has what is up to it");
        drop(order.begin(Timestamp(21), [TABLE, OTHER]).expect("it is later than all marks"));
        assert_eq!(order.ended_if_idle(), Some(3));
    }

    #[test]
    fn a_commit_at_work_bounds_the_collection_below_its_timestamp() {
        let order = order();
        assert_eq!(order.oldest(), None);
        let (late, early) = (order.begin_above(Timestamp(29)), order.begin(Timestamp(12), [TABLE]).unwrap());
        assert_eq!(order.oldest(), Some(Timestamp(11)));
        drop(early);
        assert_eq!(order.oldest(), Some(Timestamp(29)));
        assert_eq!(order.ended_if_idle(), None);
        drop(late);
        assert_eq!(order.ended_if_idle(), Some(2));
    }

    /// A scan waits for the commit below it, and not for the one above.
    #[test]
    fn a_scan_waits_for_the_commits_that_it_must_see() {
        let order = order();
        let above = order.begin(Timestamp(11), [TABLE]).unwrap();
        order.scan(OTHER, Timestamp(10));
        let below = order.begin(Timestamp(10), [TABLE]).unwrap();
        let ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (order, ended) = (&order, &ended);
            let scan = scope.spawn(move || {
                order.scan(TABLE, Timestamp(10));
                assert!(ended.load(SeqCst), "it ended before the commit");
            });
            std::thread::yield_now();
            ended.store(true, SeqCst);
            drop(below);
            scan.join().unwrap();
        });
        drop(above);
    }
}
