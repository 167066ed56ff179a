//! Advice for errors caused by limits of the process.
//!
//! Page table, frames and old versions reserve address space for their largest size. So a limit on
//! address space (`RLIMIT_AS`) can refuse a small budget, and a smaller one would not help.

use std::io;

use terrace_io::BlockDevice;

use super::budget::old_version_bytes_reserved;
use crate::config::Split;
use crate::error::{AddressLimit, Error};
use crate::pool::PoolOptions;
use crate::wal::read_header;

/// Address space beyond the database: stacks, allocator arenas, program.
const BESIDE_BYTES: u64 = 1 << 30;

/// Adds advice to an error caused by too little address space.
pub(super) fn explained(
    error: Error,
    options: &PoolOptions,
    split: Split,
    dram_max: u64,
    log: &dyn BlockDevice,
) -> Error {
    let Some(limit) = terrace_io::address_limit() else { return error };
    match error {
        Error::Memory { bytes, what, source } if source.kind() == io::ErrorKind::OutOfMemory => {
            // An error met before this one would be no lack of memory.
            let log_bytes = read_header(log).map_or(0, |header| header.largest.capacity());
            let versions = old_version_bytes_reserved(split, dram_max, log_bytes);
            let addresses = options.address_bytes().saturating_add(versions).saturating_add(split.total);
            let needed = addresses.saturating_add(limit.used_bytes).saturating_add(BESIDE_BYTES);
            let needed_bytes = needed.checked_next_multiple_of(1 << 30).unwrap_or(u64::MAX);
            if needed_bytes <= limit.limit_bytes {
                return Error::Memory { bytes, what, source };
            }
            let source = AddressLimit { limit_bytes: limit.limit_bytes, needed_bytes, source };
            Error::Memory { bytes, what, source: io::Error::new(io::ErrorKind::OutOfMemory, source) }
        }
        other => other,
    }
}
