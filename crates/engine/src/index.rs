//! The index: a B+-tree of pages called *nodes*, and the overflow pages of long values.
//!
//! Two layers, both without unsafe code. The lower one handles bytes only: no latches, faults or
//! log. Reads are generic over [`View`](crate::pool::view::View), so one search runs on a
//! changing frame and on a private copy. Changes work on a private copy, which the tree publishes.
//!
//! [`node`] is this layer.
//!
//! The upper layer is the tree over the buffer pool and the log:
//!
//! - `tree`: descents
//! - `change`: a change and its log record
//! - [`smo`], [`room`]: splits and merges
//! - [`get`], [`get_many`], [`read_leaf`], [`read_ahead`]: reads
//! - [`apply`], [`single`], [`in_place`], [`chain`]: changes of leaves and long values
//! - [`release`], [`size`], [`verify`]: freeing, counting and checking
//! - `raw`: a copy without a page table, for measurements

mod apply;
pub(crate) mod chain;
mod change;
mod get;
mod get_many;
mod in_place;
pub(crate) mod node;
mod part;
#[cfg(feature = "raw-frames")]
pub(crate) mod raw;
mod read_ahead;
mod read_leaf;
mod release;
mod room;
mod single;
mod size;
mod smo;
mod tree;
mod verify;

pub(crate) use change::{Change, NodeRedo, Write, log_bytes};
pub(crate) use get::{Copied, Found, Held, Stored};
pub(crate) use get_many::{Look, get_many, get_resident};
pub(crate) use node::{check_page, children, leaf_entries};
pub(crate) use part::{Part, Wanted, Whole};
pub(crate) use read_ahead::{Ahead, Toward};
pub(crate) use read_leaf::LeafRows;
pub(crate) use release::release_step;
pub(crate) use room::{CROWDED_MAX, crowded, make_room_for};
pub(crate) use single::{Before, New, Single, SingleOutcome, apply_single};
pub(crate) use size::{count_levels, count_pages};
pub(crate) use smo::{SPLIT_FRAMES, tidy};
pub(crate) use tree::{Seek, Tree};
pub(crate) use verify::{Met, verify, verify_released};

#[cfg(test)]
pub(crate) use pool_tests::overwrite;

#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod get_many_tests;
#[cfg(test)]
mod order_tests;
#[cfg(test)]
mod pool_tests;
#[cfg(test)]
mod race_tests;
#[cfg(test)]
mod read_leaf_tests;
#[cfg(test)]
mod record_tests;
#[cfg(test)]
mod tree_tests;
#[cfg(test)]
mod value_tests;
