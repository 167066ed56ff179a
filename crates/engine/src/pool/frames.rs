//! Frames: room for pages in DRAM and in the middle tier.

mod arena;
mod fixed;
mod header;
mod line_masks;
mod links;
mod mapped;
mod mini_pages;
mod nodes;
mod partial_page;
pub(crate) mod partition;
pub(crate) mod persistent;
mod read_reason;
pub(crate) mod residency;
#[cfg(test)]
pub(in crate::pool) mod residency_tests;

pub(crate) use arena::Frames;
pub(crate) use header::{HEADER_BYTES, Header};
pub(crate) use line_masks::{LINES_MAX, LineMasks};
pub(in crate::pool) use links::{Queue, link};
pub(crate) use mini_pages::MiniPages;
pub(crate) use nodes::NodeOptions;
pub(crate) use partial_page::PartialPage;
pub(crate) use read_reason::ReadReason;
