//! The index: a B+-tree whose pages are *nodes*, and the pages long values overflow to.
//!
//! This layer knows bytes only. Nothing in it latches, faults or logs, and nothing in it is unsafe: reading is
//! generic over [`View`](crate::buffer::view::View), so that the same search runs on a frame another thread is
//! changing and on a private copy; changing works on a private copy of a page, which the tree publishes.
//!
//! - [`node`]: the layout of a node, and reading one;
//! - [`edit`]: space inside a node: placing, removing, compacting;
//! - [`leaf`] and [`inner`]: what each kind stores, and its operations;
//! - [`split`]: splitting, merging, growing and shrinking the root;
//! - [`op`]: the operations as the log writes and redoes them, one code path for both;
//! - [`check`]: whether bytes that came from a disk are a node at all;
//! - [`overflow`]: the pages of long values.

pub(crate) mod check;
pub(crate) mod edit;
pub(crate) mod inner;
pub(crate) mod leaf;
pub(crate) mod node;
pub(crate) mod op;
pub(crate) mod overflow;
pub(crate) mod split;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tree_tests;
