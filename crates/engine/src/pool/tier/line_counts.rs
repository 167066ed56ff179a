//! Counts writes to each line of a simulated middle tier.
//!
//! Each frame counts whole pages written. Lines count changes in place, allocated at the first
//! change. So frames that are only read take 32 bytes, outside the budget. The frames of other
//! sizes than the own have counts from the first write to one of them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::ids::{ByClass, SizeClass};
use crate::pool::frames::partition::{class_of, index_of};
use crate::stats::{LineWrites, LinesOfSize};

pub(in crate::pool) const LINE_BYTES: u64 = 64;

#[derive(Debug)]
pub(in crate::pool) struct LineCounts {
    classes: ByClass<OnceLock<Box<[Frame]>>>,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Frame {
    pages: AtomicU32,
    lines: OnceLock<Box<[AtomicU32]>>,
}

impl LineCounts {
    /// For a tier of `frames` frames of the class `own`.
    pub(in crate::pool) fn new(own: SizeClass, frames: u32) -> LineCounts {
        let bytes = u64::from(frames) * own.page_bytes() as u64;
        let line_counts = LineCounts { classes: Default::default(), bytes };
        line_counts.of_class(own);
        line_counts
    }

    fn of_class(&self, class: SizeClass) -> &[Frame] {
        let frames = || (0..self.bytes / class.page_bytes() as u64).map(|_| Frame::default()).collect();
        self.classes[class.index()].get_or_init(frames)
    }

    pub(in crate::pool) fn page_written(&self, frame: u32) {
        self.of_class(class_of(frame))[index_of(frame) as usize].pages.fetch_add(1, Relaxed);
    }

    pub(in crate::pool) fn line_written(&self, frame: u32, line: u64) {
        let class = class_of(frame);
        let made = || (0..lines_per_page(class)).map(|_| AtomicU32::new(0)).collect();
        let frame = &self.of_class(class)[index_of(frame) as usize];
        frame.lines.get_or_init(made)[line as usize].fetch_add(1, Relaxed);
    }

    pub(in crate::pool) fn line_writes(&self) -> LineWrites {
        let frame = |frame: &Frame| {
            let lines = frame.lines.get().map(|lines| lines.iter().map(|line| line.load(Relaxed)).collect());
            (frame.pages.load(Relaxed), lines)
        };
        let of_class = |class: SizeClass| {
            let frames = self.classes[class.index()].get().map_or(&[][..], |frames| frames);
            LinesOfSize::new(lines_per_page(class), frames.iter().map(frame))
        };
        LineWrites::new(SizeClass::all().map(of_class).collect())
    }
}

fn lines_per_page(class: SizeClass) -> u64 {
    class.page_bytes() as u64 / LINE_BYTES
}
