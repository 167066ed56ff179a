//! Compaction: freeing what is garbage first, then the pool's part.

use std::ops::ControlFlow;

use serde::Serialize;

use super::core::Shared;
use crate::error::Result;

/// What [`Db::compact`](crate::Db::compact) has done, or has done so far.
///
/// ```
/// use terrace::{Db, MemoryDirectory};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
/// let done = db.compact()?;
/// assert!(done.file_bytes_after <= done.file_bytes_before);
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Compaction {
    /// Bytes of the page file when it began.
    pub file_bytes_before: u64,
    /// Bytes of the page file now; while it is under way, up to the last segment that is in use.
    pub file_bytes_after: u64,
    /// Pages that were moved, those of the page table included.
    pub pages_moved: u64,
}

impl Shared {
    pub(crate) fn compact(
        &self,
        mut progress: impl FnMut(&Compaction) -> ControlFlow<()>,
    ) -> Result<Compaction> {
        self.check_writable()?;
        let mut done =
            Compaction { file_bytes_before: self.pool.footprint().file_bytes, ..Compaction::default() };
        self.collect();
        self.free_garbage_now()?;
        self.pool.checkpoint_now(true)?;
        done.pages_moved = self.pool.compact(&mut |pages_moved, file_bytes_after| {
            progress(&Compaction { pages_moved, file_bytes_after, ..done })
        })?;
        done.file_bytes_after = self.pool.footprint().file_bytes;
        Ok(done)
    }
}
