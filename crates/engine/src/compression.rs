//! Compression of page images: the setting.

use serde::Serialize;

use crate::error::{Error, Result};
use crate::ids::BLOCK_BYTES;

/// Compression of page images in the page file.
///
/// Pages are compressed at write-back, and only if that saves at least 4 KiB. So pages of 4 KiB are
/// never compressed. Pages in memory and in the log are uncompressed. Each image names its kind, so
/// images of both kinds stay readable. [`crate::Stats`] counts the savings.
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
    /// No compression.
    #[default]
    None,
    /// LZ4: adds a few microseconds to a miss, and some more to a page write.
    Lz4,
}

impl Compression {
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

    pub(crate) fn check(self, page_bytes: usize) -> Result<Compression> {
        if self == Compression::None || page_bytes > BLOCK_BYTES {
            return Ok(self);
        }
        Err(Error::Config(format!(
            "LZ4 with pages of {page_bytes} bytes saves nothing: images are written in units of {BLOCK_BYTES} bytes; \
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
