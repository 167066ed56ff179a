//! The process's own limit on addresses.

use rustix::process::{Resource, getrlimit};

/// How many addresses a process may have, and has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressLimit {
    /// Bytes of addresses it may have (`RLIMIT_AS`, `ulimit -v`).
    pub limit_bytes: u64,
    /// Bytes it has now; 0 where the system does not say.
    pub used_bytes: u64,
}

/// The limit on this process's addresses, if there is one.
///
/// ```
/// if let Some(limit) = terrace_block::address_limit() {
///     assert!(limit.used_bytes <= limit.limit_bytes);
/// }
/// ```
pub fn address_limit() -> Option<AddressLimit> {
    let limit_bytes = getrlimit(Resource::As).current?;
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = pages.split_whitespace().next().and_then(|pages| pages.parse::<u64>().ok());
    let used_bytes = pages.unwrap_or(0).saturating_mul(rustix::param::page_size() as u64);
    Some(AddressLimit { limit_bytes, used_bytes })
}
