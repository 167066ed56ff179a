//! The pool's requests to the layer above, and their shared state.
//!
//! The pool needs frames, log space, and room in the page file from `maintenance/`. It reads flags
//! in [`Requests`] without a call. Work goes through [`Maintainer`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use super::line::Line;
use super::partition::Partition;
use super::wake_up::WakeUp;
use crate::error::Result;
use crate::ids::{Lsn, PageId, SizeClass};

/// An attempt at log space; true if it succeeded.
pub(crate) type Attempt<'a> = &'a mut dyn FnMut() -> bool;

/// The work that the pool asks for, done in the caller's thread.
pub(crate) trait Maintainer: std::fmt::Debug + Send + Sync {
    /// Writes dirty pages ahead of the sweep; any of them if `urgent`.
    fn clean_frames(&self, partition: Partition, urgent: bool) -> Result<()>;

    /// Writes the dirty ones of `pages`, which fit the staging buffer. Keeps the log from filling
    /// up.
    fn write_out(&self, pages: &[PageId]) -> Result<()>;

    /// Returns when `attempt` has succeeded; commits in line pass `turn`. Grows a log in which
    /// `bytes` can never fit.
    ///
    /// # Errors
    /// [`Full`](crate::Error::Full), [`OutOfLog`](crate::Error::OutOfLog),
    /// [`Poisoned`](crate::Error::Poisoned).
    fn wait_for_log(&self, bytes: u64, turn: &dyn Fn() -> bool, attempt: Attempt<'_>) -> Result<()>;

    /// Returns when changed pages find room in the page file.
    ///
    /// # Errors
    /// [`Full`](crate::Error::Full), [`Poisoned`](crate::Error::Poisoned).
    fn wait_for_room(&self) -> Result<()>;

    /// Applies durable allocations and frees at once.
    fn absorb_freed(&self);

    /// Names `class` durably in the superblock, if it is not there.
    fn announce(&self, class: SizeClass) -> Result<()>;

    /// Grows the log to `bytes` bytes, or as far as it may.
    ///
    /// # Errors
    /// [`Full`](crate::Error::Full) without space for it, and those of writes.
    fn ensure_log_capacity(&self, bytes: u64) -> Result<()>;

    #[cfg(test)]
    fn is_busy(&self) -> bool;
}

/// An allocation or free whose record may not be durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) lsn: Lsn,
    pub(crate) page: PageId,
    pub(crate) allocated: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Requests {
    maintainer: OnceLock<Weak<dyn Maintainer>>,
    /// Allocations and frees not yet applied.
    pub(crate) events: Mutex<Vec<Event>>,
    pub(crate) wake_up: Arc<WakeUp>,
    /// While false, as in recovery, threads do the maintenance they need.
    pub(crate) maintenance_runs: AtomicBool,
    /// Blocks that write-back lacked; 0 while it finds room.
    pub(crate) without_room: AtomicU64,
    /// Whether the page file is too full and could not grow.
    pub(crate) is_tight: AtomicBool,
    /// Recovery needs the log from here on; the cut stays below.
    pub(crate) recovery_floor: AtomicU64,
    pub(crate) log_line: Line,
}

impl Requests {
    /// Requests of a pool whose recovery reads the log from `floor`.
    pub(crate) fn recovering_from(floor: Lsn) -> Requests {
        Requests { recovery_floor: AtomicU64::new(floor.0), ..Requests::default() }
    }

    /// Sets the maintainer once. Weak, since it holds the pool.
    pub(crate) fn set_maintainer(&self, maintainer: Weak<dyn Maintainer>) {
        self.maintainer.set(maintainer).expect("a pool gets its maintainer once");
    }

    /// Returns the maintainer. Counts a reference, so not for hot paths.
    pub(crate) fn maintainer(&self) -> Arc<dyn Maintainer> {
        let maintainer = self.maintainer.get().and_then(Weak::upgrade);
        maintainer.expect("a pool is used as long as its maintainer is there")
    }

    /// Notes an allocation or free by the record at `lsn`.
    pub(crate) fn note(&self, lsn: Lsn, page: PageId, allocated: bool) {
        self.events.lock().push(Event { lsn, page, allocated });
    }

    /// Inline: cleans frames for the sweep; any frames if `urgent`.
    pub(crate) fn clean_frames(&self, partition: Partition, urgent: bool) -> Result<()> {
        self.maintainer().clean_frames(partition, urgent)
    }

    /// Whether threads do the maintenance they need.
    pub(crate) fn works_inline(&self) -> bool {
        !self.maintenance_runs.load(Relaxed)
    }

    /// Whether changed pages may lack room. Then dirty pages are not promoted, since half of the
    /// DRAM frames stay clean.
    pub(crate) fn is_short_of_room(&self) -> bool {
        self.without_room.load(Relaxed) > 0 || self.is_tight.load(Relaxed)
    }

    /// Whether losers remain to be undone, which may fill the log.
    pub(crate) fn is_recovering(&self) -> bool {
        self.recovery_floor.load(Relaxed) != u64::MAX
    }
}
