//! Write batches.

use super::table::Table;

/// Changes that [`crate::Db::write`] applies atomically.
///
/// A batch reads nothing, so it never meets a conflict.
///
/// ```
/// use terrace::{Db, Durability, MemoryDirectory, WriteBatch};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
/// let table = db.create_table("t")?;
/// let mut batch = WriteBatch::new();
/// batch.put(&table, "a", "1").put(&table, "b", "2").delete(&table, "a");
/// db.write(batch, Durability::Sync)?;
/// assert_eq!(table.first()?, Some((b"b".to_vec(), b"2".to_vec())));
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct WriteBatch {
    pub(crate) changes: Vec<BatchChange>,
}

/// One change; a value of `None` is a removal.
#[derive(Clone, Debug)]
pub(crate) struct BatchChange {
    pub(crate) table: Table,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Option<Vec<u8>>,
}

impl WriteBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a change that sets `key` to `value`.
    pub fn put(&mut self, table: &Table, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> &mut Self {
        self.change(table, key.as_ref(), Some(value.as_ref().to_vec()))
    }

    /// Adds a change that removes `key`.
    pub fn delete(&mut self, table: &Table, key: impl AsRef<[u8]>) -> &mut Self {
        self.change(table, key.as_ref(), None)
    }

    /// Number of changes. Of several changes of one key the last counts.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether the batch has no changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    fn change(&mut self, table: &Table, key: &[u8], value: Option<Vec<u8>>) -> &mut Self {
        self.changes.push(BatchChange { table: table.clone(), key: key.to_vec(), value });
        self
    }
}
