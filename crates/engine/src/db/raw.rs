//! Measurements only: gets without a page table.

use std::sync::Arc;

use super::core::Shared;
use super::table::Table;
use crate::error::{Error, Result};
use crate::index::raw::RawTree;
use crate::txn::table::TableState;

/// A copy of a table with frame pointers, to measure the page table's cost.
///
/// Only with the feature `raw-frames`, and not for production. The copy never changes, and takes
/// memory beyond the budget. A get differs from [`Table::get`] only in the lookup of pages.
///
/// ```
/// use terrace::{Db, MemoryDirectory, RawFrames};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
/// let table = db.create_table("t")?;
/// table.put("a", "1")?;
/// let raw = RawFrames::of(&table)?;
/// table.put("a", "2")?;
/// assert_eq!(raw.get("a")?.as_deref(), Some(&b"1"[..]));
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Debug)]
pub struct RawFrames {
    shared: Arc<Shared>,
    state: Arc<TableState>,
    tree: RawTree,
}

impl RawFrames {
    /// Copies `table`, which must not change meanwhile.
    ///
    /// # Errors
    /// [`Error::Memory`], and those of [`Table::get`].
    pub fn of(table: &Table) -> Result<RawFrames> {
        let (shared, state) = (Arc::clone(table.shared()), Arc::clone(table.state()));
        let tree = RawTree::of(&shared.pool, state.tree)?;
        Ok(RawFrames { shared, state, tree })
    }

    /// Returns the value that `key` had.
    ///
    /// # Errors
    /// Those of [`Table::get`], and [`Error::Config`] for a value of more than a page.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let visible = self.shared.clock.visible();
        self.shared.check()?;
        self.state.check()?;
        let found = self.tree.get(key.as_ref())?;
        match self.shared.decided(&self.state, found, visible) {
            Some(answer) => self.state.check().map(|()| answer),
            None => Err(Error::Config("this value is not in the copy".to_owned())),
        }
    }
}
