//! Options of a table.

use crate::compression::Compression;

/// Options of a new table ([`crate::Db::create_table_with`]).
///
/// Options left out come from the database ([`crate::Builder`]).
///
/// ```
/// use terrace::{Compression, Db, MemoryDirectory, TableOptions};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(8 << 20).page_size(16 << 10).open("")?;
/// db.create_table_with("logs", &TableOptions::new().compression(Compression::Lz4))?;
/// db.create_table_with("users", &TableOptions::new().page_size(4 << 10))?;
/// let tables = db.table_stats()?;
/// assert_eq!((tables[0].compression, tables[0].page_bytes), (Compression::Lz4, 16 << 10));
/// assert_eq!((tables[1].compression, tables[1].page_bytes), (Compression::None, 4 << 10));
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableOptions {
    pub(crate) compression: Option<Compression>,
    pub(crate) page_size: Option<u64>,
    pub(crate) value_page_size_max: Option<u64>,
}

impl TableOptions {
    /// Options that all come from the database.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the compression of its pages, including those of large values.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = Some(compression);
        self
    }

    /// Sets the page size: a power of two from 4 KiB to 64 KiB.
    ///
    /// Small pages suit point reads, large ones long scans, values of some kilobytes, and
    /// compression. Memory moves to the page size that misses most.
    ///
    /// Pages larger than the database's need larger buffers; see [`crate::Builder::page_size_max`].
    pub fn page_size(mut self, bytes: u64) -> Self {
        self.page_size = Some(bytes);
        self
    }

    /// Sets the largest page size of long values, from the table's page size to 2 MiB.
    ///
    /// A value too long for a leaf goes to the smallest page that holds it and 32 bytes, for one
    /// I/O. A value above this limit is spread over pages of this size. Default: the table's page
    /// size.
    ///
    /// A size gets memory with the first value that needs it. Pages above 64 KiB need larger
    /// buffers, segments and log; see [`crate::Builder::value_page_size_max`].
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory, TableOptions};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let builder = Db::builder().directory(directory).dram(32 << 20);
    /// let db = builder.value_page_size_max(1 << 20).open("")?;
    /// let options = TableOptions::new().value_page_size_max(1 << 20);
    /// let table = db.create_table_with("pictures", &options)?;
    /// table.put("cat", vec![7; 1_000_000])?;
    /// assert_eq!(table.get("cat")?, Some(vec![7; 1_000_000]));
    /// assert_eq!(db.table_stats()?[0].value_page_bytes_max, 1 << 20);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn value_page_size_max(mut self, bytes: u64) -> Self {
        self.value_page_size_max = Some(bytes);
        self
    }
}
