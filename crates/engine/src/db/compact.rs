//! Compaction: frees garbage, then lets the pool move pages.

use std::ops::ControlFlow;

use serde::Serialize;

use super::core::Shared;
use crate::error::Result;
use crate::maintenance;
use crate::pool::inspect::Footprint;

/// Progress or result of [`Db::compact`](crate::Db::compact).
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
    /// Bytes of the page file at the beginning.
    pub file_bytes_before: u64,
    /// Bytes of the page file now; during compaction, up to the last segment in use.
    pub file_bytes_after: u64,
    /// Pages moved, including those of the page table.
    pub pages_moved: u64,
}

impl Shared {
    pub(crate) fn compact(
        &self,
        mut progress: impl FnMut(&Compaction) -> ControlFlow<()>,
    ) -> Result<Compaction> {
        self.check_writable()?;
        let mut done =
            Compaction { file_bytes_before: Footprint::of(&self.pool).file_bytes, ..Compaction::default() };
        self.collect();
        self.garbage.free_now(&self.pool, &|| self.oldest())?;
        self.maintenance.checkpoint_now(true)?;
        done.pages_moved = maintenance::compact(&self.maintenance, &mut |pages_moved, file_bytes_after| {
            progress(&Compaction { pages_moved, file_bytes_after, ..done })
        })?;
        done.file_bytes_after = Footprint::of(&self.pool).file_bytes;
        Ok(done)
    }
}
