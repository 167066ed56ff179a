//! The budget of the frames, in bytes.

use super::cost::{VALUE_FRAMES_MIN, buffers_bytes, frame_cost};
use crate::ids::SizeClass;

/// Divisor of the budget for one step (`balance.rs`).
pub(crate) const STEP_SHARE: u64 = 64;

#[derive(Debug)]
pub(crate) struct FrameBudget {
    /// Includes overhead, and buffers as long as the largest page.
    pub(crate) bytes: u64,
    /// Least frames of a used class that nodes can have.
    pub(crate) floor: u32,
    /// Bytes of frames taken up to the last decision.
    pub(crate) taken: u64,
}

impl FrameBudget {
    /// Least ghost size: the frames of one step.
    pub(crate) fn ghost_least(&self, class: SizeClass) -> u32 {
        (self.bytes / STEP_SHARE / frame_cost(class)) as u32
    }

    pub(crate) fn floor(&self, class: SizeClass) -> u32 {
        if class.is_for_values() { VALUE_FRAMES_MIN } else { self.floor }
    }

    /// Bytes without the buffers.
    pub(crate) fn for_frames(&self, largest: SizeClass) -> u64 {
        self.bytes.saturating_sub(buffers_bytes(largest))
    }
}
