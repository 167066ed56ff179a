//! What a table is made with.

use serde::Serialize;

use crate::error::{Error, Result};
use crate::store::place::PLACE_BYTES;

/// How images of pages are written to the page file. What a page is in memory, and in the log, is not changed by it.
///
/// Pages are compressed when they are written back, and only if that saves at least 4 KiB; so pages of 4 KiB cannot be. Each
/// image says what it is: images of both kinds are read, whatever the settings are now. [`crate::Stats`] counts what was saved.
///
/// ```
/// use terrace::{Compression, Db, MemoryDirectory};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let builder = Db::builder().directory(directory).dram(8 << 20).page_size(16 << 10);
/// let db = builder.compression(Compression::Lz4).open("")?;
/// let table = db.create_table("t")?;
/// for key in 0..1000u32 {
///     table.put(key.to_be_bytes(), "something that is there again and again")?;
/// }
/// db.checkpoint()?;
/// let stats = db.stats();
/// assert!(stats.images_compressed > 0);
/// assert!(stats.compression_output_bytes < stats.compression_input_bytes);
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Compression {
    /// As they are.
    #[default]
    None,
    /// Compressed with LZ4, which costs a miss a few microseconds and a write of a page some more.
    Lz4,
}

impl Compression {
    /// As the catalog has it.
    pub(crate) fn encode(self) -> u8 {
        match self {
            Compression::None => 0,
            Compression::Lz4 => 1,
        }
    }

    pub(crate) fn decode(byte: u8) -> Option<Compression> {
        match byte {
            0 => Some(Compression::None),
            1 => Some(Compression::Lz4),
            _ => None,
        }
    }

    /// Refuses to compress what cannot become smaller.
    pub(crate) fn check(self, page_bytes: usize) -> Result<Compression> {
        if self == Compression::None || page_bytes > PLACE_BYTES {
            return Ok(self);
        }
        Err(Error::Config(format!(
            "LZ4 with pages of {page_bytes} bytes saves nothing: images are written in units of {PLACE_BYTES} bytes; \
             take larger pages, of 16 KiB for instance"
        )))
    }
}

impl std::fmt::Display for Compression {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(match self {
            Compression::None => "none",
            Compression::Lz4 => "lz4",
        })
    }
}

/// What a table is made with ([`crate::Db::create_table_with`]). What is not said is as the database has it
/// ([`crate::Builder`]).
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
    /// All as the database has it.
    pub fn new() -> Self {
        Self::default()
    }

    /// How its pages, those of large values included, are written.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = Some(compression);
        self
    }

    /// Bytes of its pages, a power of two from 4 KiB to 64 KiB. Small pages are best for
    /// reads of single entries of data larger than memory, large ones for long scans, for values of some kilobytes, and for
    /// compression. Tables with pages of several sizes share the budget: memory goes to that size which misses it most.
    ///
    /// Pages larger than the database's need larger buffers; [`crate::Builder::page_size_max`] says when that matters.
    pub fn page_size(mut self, bytes: u64) -> Self {
        self.page_size = Some(bytes);
        self
    }

    /// Bytes of the largest pages that its long values may have: a power of two from the size of its pages to 2 MiB. A value
    /// too long for the page of its key lies on one page of the smallest size that holds it and 32 bytes more, if that is no
    /// larger than this; of a longer one as much as possible is on pages of this size. So it is read and written as one piece.
    /// Default: the size of the table's pages.
    ///
    /// Memory is given to a size when the first value has such a page. Pages above 64 KiB need larger buffers, segments and a
    /// longer log than a database has by itself; [`crate::Builder::value_page_size_max`] makes them.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory, TableOptions};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(32 << 20).value_page_size_max(1 << 20).open("")?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_catalog_has_is_what_was_meant() {
        for compression in [Compression::None, Compression::Lz4] {
            assert_eq!(Compression::decode(compression.encode()), Some(compression));
        }
        assert_eq!(Compression::decode(2), None);
        assert!(Compression::Lz4.check(4096).unwrap_err().to_string().contains("larger pages"));
        assert!(Compression::Lz4.check(8192).is_ok() && Compression::None.check(4096).is_ok());
    }
}
