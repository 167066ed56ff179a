//! Why an attempt at a page failed, and the mode of background work. `index/tree.rs` retries.

use crate::error::Error;
use crate::ids::PageId;

/// Why an attempt at a page or a tree has no result.
#[derive(Debug)]
pub(crate) enum Retry {
    /// Something changed meanwhile: start again.
    Restart,
    /// No such page. After a stale pointer, start again; a valid pointer to it is damage.
    Missing(PageId),
    /// The attempt failed for good.
    Fail(Error),
}

impl From<Error> for Retry {
    fn from(error: Error) -> Self {
        Retry::Fail(error)
    }
}

/// Which thread does the background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A thread of the database.
    Background,
    /// The thread that needs it. The database starts no threads, so tests replay exactly.
    Inline,
}
