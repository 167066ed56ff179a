//! Counters of commits, conflicts, old versions and recovery.

use std::sync::atomic::AtomicU64;

use crate::ids::Lsn;
use crate::threads::Tally;

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) commits: Tally,
    pub(crate) aborts: AtomicU64,
    pub(crate) conflicts: AtomicU64,
    pub(crate) alone: AtomicU64,
    pub(crate) versions_dropped: AtomicU64,
    pub(crate) given_up_for_age: AtomicU64,
    pub(crate) given_up_for_memory: AtomicU64,
    pub(crate) losers_undone: AtomicU64,
    pub(crate) changes_redone: AtomicU64,
    /// Read-only open: the range of the log on disk, whatever was recovered in memory.
    pub(crate) log_on_disk: Option<(Lsn, Lsn)>,
}
