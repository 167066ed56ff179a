//! What the process's own limits refuse, and which limit would do.
//!
//! Page table, frames and old versions have addresses set aside for as many of them as there may ever be, many times the
//! memory they get. So a limit on addresses (`RLIMIT_AS`) refuses a database whose budget it has room for several times
//! over, and a smaller budget would not help.

use std::io;

use super::open::old_version_bytes_reserved;
use crate::buffer::{Pool, PoolOptions};
use crate::config::Split;
use crate::error::{AddressLimit, Error};

/// Addresses that a process takes beside: stacks, arenas of the allocator for some threads, and room for what the program
/// does itself.
const BESIDE_BYTES: u64 = 1 << 30;

/// The same error, with what would help if it is for want of addresses.
pub(super) fn explained(
    error: Error,
    options: &PoolOptions,
    split: Split,
    dram_max: u64,
    log_bytes: u64,
) -> Error {
    let Some(limit) = terrace_block::address_limit() else { return error };
    match error {
        Error::Memory { bytes, what, source } if source.kind() == io::ErrorKind::OutOfMemory => {
            let versions = old_version_bytes_reserved(split, dram_max, log_bytes);
            let addresses = Pool::address_bytes(options).saturating_add(versions).saturating_add(split.total);
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
