//! The buffer pool: pages in frames over a store and a log.
//!
//! A file imports only files listed before it. One exception: `cost` takes a constant from
//! `replacement`.
//!
//! - Basics: `backoff`, `patience`, `view`, `latch`, `swips`, `hash_table`, `page_table`,
//!   `page_ids`, `verify_marks`, `retry`, `line` (waiting commits), `wake_up`
//! - Resident pages: `frames`, `requests` (to maintenance), `cost`, `stats`, `resident`
//! - Migration and eviction: `replacement`, `tier`, `tiers`, `emptying`, `evict`, `dirty`,
//!   `guard`
//! - Cached records: `record_cache`
//! - Numbers of frames: `options`, `budget`, `balance`, `resize`, `resize_middle`
//! - Partial pages: `partial`
//! - Images: `buffers`, `read_buffer`, `reread`, `images`
//! - The pool: `buffer_pool` (`Pool`, faults), `adopt`, `acquire`, `change`, `pin`,
//!   `batch`
//! - Above `Pool`: `page_sizes`, `counting` (verify marks), `inspect`, `assemble` (after recovery)

mod acquire;
pub(crate) mod adopt;
pub(crate) mod assemble;
#[cfg(test)]
mod audit;
pub(crate) mod backoff;
mod balance;
mod batch;
mod budget;
pub(crate) mod buffer_pool;
mod buffers;
mod change;
#[cfg(test)]
mod class_tests;
mod cost;
pub(crate) mod counting;
mod dirty;
mod emptying;
mod evict;
#[cfg(test)]
pub(crate) mod frame_tests;
pub(crate) mod frames;
mod guard;
mod hash_table;
mod images;
pub(crate) mod inspect;
pub(crate) mod latch;
mod line;
pub(crate) mod line_fault;
pub(crate) mod lines;
#[cfg(test)]
mod mini_tests;
#[cfg(test)]
mod node_tests;
pub(crate) mod options;
pub(crate) mod page_ids;
mod page_sizes;
pub(crate) mod page_table;
pub(crate) mod partial;
#[cfg(test)]
mod partial_tests;
pub(crate) mod patience;
mod pin;
mod read_buffer;
mod record_cache;
pub(crate) mod replacement;
#[cfg(test)]
pub(crate) mod replacement_tests;
pub(crate) mod requests;
pub(crate) mod reread;
pub(crate) mod resident;
mod resize;
mod resize_middle;
pub(crate) mod retry;
pub(crate) mod stats;
mod swips;
mod tier;
#[cfg(test)]
mod tier_class_tests;
#[cfg(test)]
mod tier_record_tests;
#[cfg(test)]
mod tier_tests;
#[cfg(test)]
mod tier_tree_tests;
mod tiers;
pub(crate) mod verify_marks;
pub(crate) mod view;
pub(crate) mod wake_up;

pub(crate) use acquire::{Leaf, access_leaf};
pub(crate) use batch::{batch_pages, fault_many};
pub(crate) use buffer_pool::Pool;
pub(crate) use buffers::{BATCH_PAGES_MAX, BATCHES_MAX};
pub(crate) use change::{Edit, Grant, NewPage};
#[cfg(test)]
pub(crate) use cost::frame_bytes;
pub(crate) use cost::{MIDDLE_FRAME_BYTES_BESIDE, VALUE_FRAMES_MIN, buffers_bytes, frame_cost};
pub(crate) use frames::partition::FRAMES_MAX;
pub(crate) use frames::residency::table_bytes_per_page;
pub(crate) use frames::{LINES_MAX, LineMasks, MiniPages, NodeOptions, ReadReason};
pub(crate) use guard::{ReadGuard, WriteGuard};
pub(crate) use hash_table::first_slots;
pub(crate) use options::{BufferSizes, PoolOptions};
pub(crate) use page_ids::id_count_below;
pub(crate) use page_table::PAGES_MAX;
pub(crate) use page_table::bytes_per_entry;
pub(crate) use page_table::indexes_max;
pub(crate) use partial::{PartialGuard, Unread};
pub(crate) use pin::{PINS_MAX, Pin};
pub use record_cache::RecordCache;
pub(crate) use record_cache::{BYTES_PER_FRAME as RECORD_BYTES_PER_FRAME, Looked, Record};
pub use retry::Mode;
pub(crate) use retry::Retry;
pub(crate) use swips::SwipSizes;
pub use tier::migration;
pub(crate) use tier::operation;
pub(crate) use tier::{MiddleOptions, SealLimits, TierOptions};

pub(crate) use self::frames::{partition, persistent};
