//! The buffer pool.
pub(crate) mod view;
