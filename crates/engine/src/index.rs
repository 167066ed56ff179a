//! The index: a B+-tree whose pages are *nodes*, and the pages long values overflow to.
//!
//! It has two layers, and nothing in either is unsafe. The lower one knows bytes only; it neither latches, faults nor
//! logs. Reading is generic over [`View`](crate::buffer::view::View), so that the same search runs on a frame another
//! thread is changing and on a private copy; changing works on a private copy of a page, which the tree publishes.
//!
//! - [`node`]: the layout of a node, and reading one;
//! - [`edit`]: space inside a node: placing, removing, compacting;
//! - [`leaf`] and [`inner`]: what each kind stores, and its operations;
//! - [`split`]: splitting, merging, growing and shrinking the root;
//! - [`op`]: the operations as the log writes and redoes them, one code path for both;
//! - [`check`]: whether bytes that came from a disk are a node at all;
//! - [`overflow`]: the pages of long values.
//!
//! The upper one is the tree over the buffer pool and the log:
//!
//! - [`tree`]: descents, and what a change is told;
//! - [`get`], [`get_many`], [`read_leaf`]: reading a record, many of them, a leaf;
//! - [`read_ahead`]: the leaves that a scan comes to next;
//! - [`apply`]: changing a leaf;
//! - [`single`]: changing one entry, for a commit that changes nothing else;
//! - [`room`]: splits before a transaction begins;
//! - [`smo`]: splits and merges;
//! - [`chain`]: writing, reading and freeing the pages of a long value;
//! - [`release`]: freeing a tree;
//! - [`size`]: counting its pages;
//! - [`verify`]: whether a tree is one;
//! - `raw`: a copy of a tree without a page table, for measuring.

mod apply;
pub(crate) mod chain;
pub(crate) mod check;
pub(crate) mod edit;
mod get;
mod get_many;
pub(crate) mod inner;
pub(crate) mod leaf;
pub(crate) mod node;
pub(crate) mod op;
pub(crate) mod overflow;
#[cfg(feature = "raw-frames")]
pub(crate) mod raw;
mod read_ahead;
mod read_leaf;
mod release;
mod room;
mod single;
mod size;
mod smo;
pub(crate) mod split;
mod tree;
mod verify;

pub(crate) use get::{Found, Stored};
pub(crate) use get_many::{Look, get_many, get_resident};
pub(crate) use read_ahead::{Ahead, Toward};
pub(crate) use read_leaf::LeafRows;
pub(crate) use room::CROWDED_MAX;
pub(crate) use single::{Before, Single, SingleOutcome};
pub(crate) use smo::SPLIT_FRAMES;
pub(crate) use tree::{Change, NodeRedo, Seek, Tree, Write, log_bytes};
pub(crate) use verify::Met;

/// Whether bytes that came from a disk are a page of the index; says what does not hold.
pub(crate) fn check_page(page: &[u8]) -> Result<(), String> {
    check::check(page)
}

/// Entries of a sound page that is a leaf; of any other none.
pub(crate) fn leaf_entries(page: &[u8]) -> u64 {
    let node = node::Node::new(page);
    if node.is_leaf() { node.count() as u64 } else { 0 }
}

/// The children of a sound page that is an inner node; of any other none.
pub(crate) fn children(page: &[u8]) -> Vec<crate::PageId> {
    let node = node::Node::new(page);
    if node.is_leaf() { Vec::new() } else { (0..=node.count()).map(|index| node.child_at(index)).collect() }
}

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
mod tests;
#[cfg(test)]
mod tree_tests;
#[cfg(test)]
mod value_tests;
