//! A FUSE mount that passes a directory through, with the block cache before reads of its files.
//!
//! `docs/mount.md` says what it is for and what it guarantees. Linux only.
//!
//! | file | contents |
//! |---|---|
//! | `mount.rs` | [`Mount`]: checks, the beginning, the end |
//! | `requests.rs`, `slow_calls.rs` | the kernel's requests; threads for fsync |
//! | `tree.rs`, `names.rs`, `node.rs` | open files and content; names and attributes; known files |
//! | `caller.rs`, `links.rs` | owners of new files; names of a file |
//! | `cache.rs`, `file_state.rs` | cached blocks of a file, and when they are believed |
//! | `cache/transfers.rs` | reads and writes of files |
//! | `map.rs`, `stamp.rs` | what outlives the process; unchanged files |
//! | `extents.rs`, `space.rs` | addresses of a file; of all files |
//! | `relations.rs` | tables and indexes by the names of files |
//! | `counters.rs`, `observer.rs` | statistics; what programs ask for |
//! | `queries.rs`, `hints.rs` | which queries run; what clients say of it |
//! | `read_times.rs` | whether a cache can help |
//! | `passthrough.rs`, `opens.rs` | files that the kernel reads and writes by itself; whether one is |
//! | `slow.rs`, `lower.rs` | files as the cache's slow device |

mod cache;
mod caller;
mod counters;
mod extents;
mod file_state;
mod hints;
mod links;
mod lower;
mod map;
mod mount;
mod names;
mod node;
mod observer;
mod opens;
mod passthrough;
mod planted;
mod queries;
mod read_times;
mod relations;
mod requests;
mod slow;
mod slow_calls;
mod space;
mod stamp;
mod tree;

pub use counters::{MountRelation, MountStats};
pub use hints::QueryHints;
pub use mount::{Mount, MountCache, MountConfig, MountError, Watch};
pub use observer::{Observed, Observer};
pub use read_times::ReadTimes;

/// Compiles the example of the package's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct PackageReadMe;
