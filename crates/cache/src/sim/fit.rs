//! The blocks that a cache size means for a trace.

use super::error::SimError;
use super::size::{PERCENT_PARTS, Size};

impl Size {
    /// The size in blocks, for a trace of `footprint` distinct blocks of `block_bytes` bytes.
    ///
    /// # Errors
    /// A fraction below one block, or a size above the footprint: probably a mistake, since all
    /// policies would be equal.
    pub fn blocks(&self, footprint: usize, block_bytes: u32) -> Result<usize, SimError> {
        let blocks = match self {
            Size::Share(parts) => {
                (footprint as u128 * u128::from(*parts) / u128::from(100 * PERCENT_PARTS)) as usize
            }
            fixed => fixed.fixed_blocks(block_bytes).unwrap_or_default(),
        };
        match blocks {
            0 => Err(SimError::NoBlocks { size: *self, footprint, block_bytes }),
            blocks if blocks > footprint => Err(SimError::BeyondFootprint { size: *self, blocks, footprint }),
            blocks => Ok(blocks),
        }
    }
}
