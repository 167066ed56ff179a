//! The state of reads and commits: the pool, the clock, the locks and the old versions.
//!
//! Reads, commits, scans and garbage work on [`Mvcc`]. It knows no handle of a user.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::clock::Clock;
use super::counters::Counters;
use super::flight::InFlight;
use super::garbage::Garbage;
use super::gate::Gate;
use super::locks::LockTable;
use super::named::NamedSnapshots;
use super::order::TimestampOrder;
use super::permits::Permits;
use super::read_set::ReadMemory;
use super::settings::Settings;
use super::snapshots::{SnapshotHandle, Snapshots};
use super::table::TableState;
use super::versions::Versions;
use crate::error::{Error, Result};
use crate::ids::Timestamp;
use crate::pool::Pool;

/// What reads and commits share.
pub(crate) struct Mvcc {
    pub(crate) pool: Arc<Pool>,
    pub(crate) clock: Clock,
    pub(crate) gate: Gate,
    pub(crate) locks: LockTable,
    /// With [`crate::Concurrency::Mvto`].
    pub(crate) order: Option<TimestampOrder>,
    pub(crate) flight: InFlight,
    pub(crate) versions: Versions,
    pub(crate) read_memory: ReadMemory,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) named: NamedSnapshots,
    /// The table of table names.
    pub(crate) catalog: Arc<TableState>,
    pub(crate) garbage: Garbage,
    pub(crate) chains: Permits,
    pub(crate) counters: Counters,
    pub(crate) settings: Settings,
}

impl std::fmt::Debug for Mvcc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mvcc").field("name", &self.settings.name).finish_non_exhaustive()
    }
}

impl Mvcc {
    /// Fails if the log has failed or is closed.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        self.pool.check()
    }

    /// Fails if changes are not allowed.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.settings.read_only { Err(Error::ReadOnly) } else { self.pool.check() }
    }

    /// Advances `visible` for waiting threads.
    pub(crate) fn advance(&self) -> Result<()> {
        self.pool.check()?;
        self.clock.advance(self.pool.wal().persistent());
        Ok(())
    }

    /// The oldest timestamp at which a reader may still read.
    ///
    /// With timestamp ordering also below the commits at work. These are asked second: one that has
    /// begun looks whether its own snapshot still holds.
    pub(crate) fn oldest(&self) -> Timestamp {
        let oldest = self.snapshots.oldest(&self.clock);
        let at_work = self.order.as_ref().and_then(TimestampOrder::oldest);
        at_work.map_or(oldest, |at_work| oldest.min(at_work))
    }

    /// Registers a snapshot of all that has committed.
    pub(crate) fn snapshot(&self, kept: bool) -> SnapshotHandle {
        let snapshot = match kept {
            true => self.snapshots.register_kept(&self.clock),
            false => self.snapshots.register(&self.clock),
        };
        if let Some(order) = &self.order {
            order.freeze(snapshot.timestamp());
        }
        snapshot
    }

    /// [`Mvcc::snapshot`] of one table.
    pub(crate) fn snapshot_of(&self, table: &TableState) -> SnapshotHandle {
        let snapshot = self.snapshots.register(&self.clock);
        if let Some(order) = &self.order {
            order.scan(table.id, snapshot.timestamp());
        }
        snapshot
    }

    /// The highest timestamp drawn and the number of commits, if none is at work: equal ones at two
    /// moments tell that nothing was committed between.
    pub(crate) fn quiet(&self) -> Option<(Timestamp, u64)> {
        let drawn = self.clock.highest_drawn();
        let ended = self.order.as_ref().map_or(Some(0), TimestampOrder::ended_if_idle)?;
        (self.clock.visible() == drawn).then_some((drawn, ended))
    }

    /// How often a read waited for the end of a commit.
    #[cfg(test)]
    pub(crate) fn waits_in_turn(&self) -> u64 {
        self.locks.waits() + self.order.as_ref().map_or(0, TimestampOrder::waits)
    }

    pub(crate) fn alone<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check_writable()?;
        let _alone = (!self.gate.is_mine()).then(|| self.gate.enter_alone());
        work()
    }

    /// Drops old versions that no snapshot needs; their values become garbage.
    ///
    /// Gives up snapshots if old versions take too much room.
    pub(crate) fn collect(&self) {
        self.named.give_up(&self.versions, &self.counters.given_up_for_memory);
        let mut freed = Vec::new();
        loop {
            let (oldest, visible) = (self.oldest(), self.clock.visible());
            let collected = self.versions.collect(oldest, visible, &mut freed);
            self.counters.versions_dropped.fetch_add(collected.versions as u64, Relaxed);
            if !self.versions.is_over_limit(self.read_memory.used()) {
                break;
            }
            match self.snapshots.give_up_oldest() {
                0 => break,
                given_up => self.note_given_up(given_up, &self.counters.given_up_for_memory, "memory"),
            }
        }
        self.garbage.add_values(freed);
    }

    pub(crate) fn note_given_up(&self, snapshots: usize, counter: &AtomicU64, reason: &str) {
        if snapshots > 0 {
            counter.fetch_add(snapshots as u64, Relaxed);
            tracing::warn!(database = self.settings.name, snapshots, reason, "snapshots given up");
        }
    }

    /// Drops unneeded old versions of this thread: less than [`Mvcc::collect`], and cheaper.
    pub(crate) fn collect_own(&self) {
        let mut freed = Vec::new();
        let (oldest, visible) = (self.oldest(), self.clock.visible());
        let collected = self.versions.collect_own(oldest, visible, &mut freed);
        self.counters.versions_dropped.fetch_add(collected.versions as u64, Relaxed);
        if !freed.is_empty() {
            self.garbage.add_values(freed);
        }
        if self.versions.is_over_limit(self.read_memory.used()) {
            self.collect();
        }
    }
}
