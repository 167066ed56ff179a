//! The record cache: hot records of cold pages, inside the budget (`records.rs`).

mod ghost;
mod index;
mod log;
mod records;
mod shape;
mod share;
#[cfg(test)]
mod tests;
mod words;
mod writer;

pub(crate) use records::{BYTES_PER_FRAME, Looked, Records};
pub(crate) use shape::{Record, Source};
pub use share::RecordCache;
