//! A block cache on a fast device, its policies, and trace simulation.
//!
//! [`Cached`] is a [`BlockDevice`](terrace_io::BlockDevice) that caches blocks of a slow device on
//! a fast one. Policies see slot numbers only, so the live cache and the simulator share them.
//!
//! | folder    | contents                                         |
//! |-----------|--------------------------------------------------|
//! | `cache/`  | the live block cache                             |
//! | `policy/` | eviction and admission policies                  |
//! | `trace/`  | block traces (feature `trace`)                   |
//! | `sim/`    | many caches over one trace (feature `simulator`) |
#![deny(unsafe_code)]

mod cache;
mod planted;
pub mod policy;
#[cfg(feature = "simulator")]
pub mod sim;
#[cfg(feature = "trace")]
pub mod trace;

pub use cache::{
    Bypass, CacheBypasses, CacheConfig, CacheError, CacheStats, CacheTrust, Cached, RelationStats, Relations,
    Start, WriteMode,
};

/// Runs the example of the cache's documentation.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/cache.md")]
struct CacheGuide;

/// Compiles the examples of the guide to simulation.
#[cfg(all(doctest, feature = "simulator"))]
#[doc = include_str!("../../../docs/guide/simulate.md")]
struct SimulateGuide;

/// Compiles the example of the package's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct PackageReadMe;
