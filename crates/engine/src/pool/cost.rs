//! Bytes of frames and buffers in the budget.

use super::frames::HEADER_BYTES;
use super::replacement::queues::GHOST_BYTES;
use crate::ids::SizeClass;
use crate::store::image::packer_bytes;

/// A frame's header and ghost share.
const FRAME_HEADER_BYTES: u64 = HEADER_BYTES + GHOST_BYTES;
/// DRAM beside a middle frame.
pub(crate) const MIDDLE_FRAME_BYTES_BESIDE: u64 = FRAME_HEADER_BYTES;
/// Buffers for images; pages above 64 KiB use those of batches.
pub(super) const READ_BUFFERS: usize = 8;
/// An image and its page in each.
const READ_BUFFER_PAGES: u64 = 2 * READ_BUFFERS as u64;
/// Least frames of a used class for values. A thread holds at most one, and none while waiting.
pub(crate) const VALUE_FRAMES_MIN: u32 = 4;

/// Bytes of a frame with overhead.
pub(crate) fn frame_cost(class: SizeClass) -> u64 {
    class.page_bytes() as u64 + FRAME_HEADER_BYTES
}

/// Budget of a pool with one class.
#[cfg(test)]
pub(crate) fn frame_bytes(class: SizeClass, frames: u32) -> u64 {
    buffers_bytes(class) + u64::from(frames) * frame_cost(class)
}

/// Bytes of buffers that grow with the largest class.
pub(crate) fn buffers_bytes(class: SizeClass) -> u64 {
    let read = class.min(SizeClass::LARGEST_NODE);
    READ_BUFFER_PAGES * read.page_bytes() as u64 + packer_bytes(class.page_bytes()) as u64
}
