//! What a database promises, held against it from outside: one program of all these tests, because each program is linked with the
//! whole engine, which takes as long as most of them run.
//!
//! In programs of their own, beside this folder, are the tests that other tests in the process would disturb: `fork` and `shared_writes`
//! fork while nobody holds a lock; `events` collects what the process tells, and `tracing` decides for the whole process, by the
//! thread that comes by first, whether anybody listens; `memory` looks at what a process takes; `numa` goes into a guest.

mod backend;
mod backup;
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
mod log_space;
mod lookup;
mod model;
mod named_snapshots;
mod page_sizes;
mod pages;
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
mod update;
mod value_pages;
mod verify;
