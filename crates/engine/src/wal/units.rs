//! Units and limits that all files of the log share.

use crate::ids::Lsn;

/// The log's write unit, and the size of its header.
pub(crate) const BLOCK: u64 = 4096;
/// The least capacity of a new log that may grow.
pub(crate) const CAPACITY_FIRST: u64 = 2 << 20;
/// The first record of a new log.
pub(crate) const FIRST_LSN: Lsn = Lsn(BLOCK);
pub(crate) const BUFFER_BYTES_MAX: u64 = 8 << 20;
/// The smallest buffer: a block to fill and one to keep.
pub(crate) const BUFFER_BYTES_MIN: usize = 2 * BLOCK as usize;

pub(super) const fn block_floor(lsn: u64) -> u64 {
    lsn - lsn % BLOCK
}
