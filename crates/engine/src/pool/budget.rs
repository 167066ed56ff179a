//! The budget of the frames, in bytes.

use super::cost::{VALUE_FRAMES_MIN, buffers_bytes, frame_cost};
use super::tier::MiddleOptions;
use crate::ids::{ByClass, SizeClass};

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
    pub(crate) middle: Option<MiddleBudget>,
}

/// The budget of the middle tier's frames, without their headers, which are in DRAM.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MiddleBudget {
    pub(crate) bytes: u64,
    /// The database's own class, or the smallest of an allocator.
    own: SizeClass,
    /// The classes that have frames, or are to have some.
    admitted: ByClass<bool>,
    /// Whether its frames are in a file, whose format knows the own class only.
    is_persistent: bool,
    /// Bytes of frames taken up to the last decision.
    pub(crate) taken: u64,
}

impl MiddleBudget {
    pub(crate) fn of(middle: &MiddleOptions, is_persistent: bool) -> MiddleBudget {
        MiddleBudget::new(middle.class, middle.frames, is_persistent)
    }

    /// All `frames`, of the own class.
    pub(crate) fn new(own: SizeClass, frames: u32, is_persistent: bool) -> MiddleBudget {
        let mut admitted = [false; SizeClass::COUNT];
        admitted[own.index()] = true;
        let bytes = u64::from(frames) * own.page_bytes() as u64;
        MiddleBudget { bytes, own, admitted, is_persistent, taken: 0 }
    }

    /// Bytes of the budget for a frame. The DRAM budget has headers for frames of the own class,
    /// so smaller ones cost as much.
    pub(crate) fn cost(&self, class: SizeClass) -> u64 {
        class.max(self.own).page_bytes() as u64
    }

    pub(crate) fn classes(&self) -> impl Iterator<Item = SizeClass> + use<> {
        let admitted = self.admitted;
        SizeClass::all().filter(move |class| admitted[class.index()])
    }

    /// Whether it has room for a frame of `class` beside one of each other class.
    pub(crate) fn admit(&mut self, class: SizeClass) -> bool {
        let floors: u64 = self.classes().map(|class| self.cost(class)).sum();
        let has_room = self.admitted[class.index()] || floors + self.cost(class) <= self.bytes;
        self.admitted[class.index()] = has_room && (class == self.own || !self.is_persistent);
        self.admitted[class.index()]
    }

    /// The most frames that each class may ever have.
    pub(crate) fn counts_max(&self) -> ByClass<u32> {
        let mut counts = [0; SizeClass::COUNT];
        for class in SizeClass::all().filter(|&class| class == self.own || !self.is_persistent) {
            counts[class.index()] = (self.bytes / self.cost(class)) as u32;
        }
        counts
    }
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
