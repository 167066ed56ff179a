//! Errors of a simulation.

use crate::trace::TraceError;

use super::size::Size;

/// An error of a simulation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// The trace is unreadable.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// There are no requests.
    #[error("the trace has no requests")]
    Empty,
    /// No request is for a sampled block.
    #[error("none of the trace's blocks is in a sample of {share}; give a larger one")]
    EmptySample {
        /// The requested fraction of the blocks.
        share: f64,
    },
    /// A size without blocks in the sample.
    #[error(
        "a cache of {} has no block in a sample of {share}; give a larger size or sample",
        size.words_with(*blocks)
    )]
    NoBlocksInSample {
        /// The requested size.
        size: Size,
        /// The size in blocks of the trace.
        blocks: usize,
        /// The simulated fraction of the blocks.
        share: f64,
        /// Distinct blocks of the trace, estimated.
        footprint: usize,
    },
    /// A size below one block.
    #[error("a cache of {} has no blocks: {}; give a larger size", size.words(), why_none(*size, *footprint, *block_bytes))]
    NoBlocks {
        /// The requested size.
        size: Size,
        /// Distinct blocks of the trace.
        footprint: usize,
        /// Bytes per block.
        block_bytes: u32,
    },
    /// A size at which all policies are equal.
    #[error(
        "a cache of {} is larger than the trace's footprint of {}; give at most that, or a share such as 10%",
        size.words_with(*blocks),
        Size::Blocks(*footprint).words()
    )]
    BeyondFootprint {
        /// The requested size.
        size: Size,
        /// The size in blocks.
        blocks: usize,
        /// Distinct blocks of the trace.
        footprint: usize,
    },
    /// A limit is exceeded.
    #[error("the trace has more than {max} {what}")]
    TooMany {
        /// The maximum.
        max: usize,
        /// The limited resource.
        what: &'static str,
    },
    /// A request that needs all of a trace in memory, or twice.
    #[error("{what} needs {needs}, and the trace has more than {max} requests")]
    TooLong {
        /// The request.
        what: String,
        /// Its need.
        needs: &'static str,
        /// The most requests.
        max: u64,
    },
}

fn why_none(size: Size, footprint: usize, block_bytes: u32) -> String {
    match size.is_relative() {
        true => format!("the trace has {} of {block_bytes} bytes", Size::Blocks(footprint).words()),
        // The trace may not be read yet.
        false => format!("a block has {block_bytes} bytes"),
    }
}
