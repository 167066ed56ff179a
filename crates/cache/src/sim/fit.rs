//! The blocks that a cache size means for a trace.

use super::error::SimError;
use super::size::{PERCENT_PARTS, Size};

impl Size {
    /// The size in blocks, for a trace of `footprint` distinct blocks.
    ///
    /// # Errors
    /// A fraction below one block, or a size above the footprint: probably a mistake, since all
    /// policies would be equal.
    pub fn blocks(&self, footprint: usize) -> Result<usize, SimError> {
        let blocks = match self {
            Size::Blocks(blocks) => *blocks,
            Size::Share(parts) => {
                (footprint as u128 * u128::from(*parts) / u128::from(100 * PERCENT_PARTS)) as usize
            }
        };
        match blocks {
            0 => Err(SimError::NoBlocks { size: *self, footprint }),
            blocks if blocks > footprint => Err(SimError::BeyondFootprint { size: *self, footprint }),
            blocks => Ok(blocks),
        }
    }
}
