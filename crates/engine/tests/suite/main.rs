//! Tests of the public interface, in one program, because linking takes longer than most of them
//! run.
//!
//! Tests that others in the process would disturb are programs of their own. `fork` and
//! `shared_writes` fork while no thread holds a lock. `events` needs `tracing` for the whole
//! process, `memory` and `allocations` measure a process, and `numa` runs in a guest.

mod backend;
mod backup;
mod buffers;
mod close;
mod column;
mod common;
mod compact;
mod compression;
mod concurrency;
mod corruption;
mod count;
mod crash;
mod crowded;
mod delete_range;
mod faults;
mod format;
mod kill;
mod lines;
mod log_memory;
mod log_space;
mod lookup;
mod middle_file;
mod model;
mod named_snapshots;
mod old_parts;
mod page_sizes;
mod pages;
mod pages_tiers;
mod parts;
mod ranges;
mod read_ahead;
mod read_only;
mod record_cache;
mod recovery;
mod repair;
mod replacement;
mod resize;
mod statistics;
mod swap;
mod taken_back;
mod transactions;
mod typed;
mod update;
mod value_pages;
mod verify;
