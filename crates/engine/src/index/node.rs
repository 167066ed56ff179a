//! Pages as bytes: no latches, faults or log.
//!
//! | file          | contents                                                    |
//! |---------------|-------------------------------------------------------------|
//! | `layout.rs`   | layout of a node, and searches                              |
//! | `edit.rs`     | changes that leaves and inner nodes share                   |
//! | `leaf.rs`     | entries of leaves                                           |
//! | `inner.rs`    | separators and children                                     |
//! | `split.rs`    | splits and merges                                           |
//! | `op.rs`       | logged operations: one code path for change and redo        |
//! | `overflow.rs` | pages of long values                                        |
//! | `check.rs`    | validates bytes from a disk                                 |

pub(crate) mod check;
pub(crate) mod edit;
pub(crate) mod inner;
pub(crate) mod layout;
pub(crate) mod leaf;
pub(crate) mod op;
pub(crate) mod overflow;
pub(crate) mod split;

pub(crate) use check::check as check_page;
pub(crate) use layout::*;

#[cfg(test)]
mod tests;
