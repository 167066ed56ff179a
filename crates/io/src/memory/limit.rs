//! The process's limit on address space.

use rustix::process::{Resource, getrlimit};

/// The limit on address space, and the present use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressLimit {
    /// Most bytes of address space (`RLIMIT_AS`, `ulimit -v`).
    pub limit_bytes: u64,
    /// Bytes in use; 0 if unknown.
    pub used_bytes: u64,
}

/// The limit on this process's address space, if any.
///
/// ```
/// if let Some(limit) = terrace_io::address_limit() {
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
