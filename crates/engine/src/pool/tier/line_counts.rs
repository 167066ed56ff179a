//! MiddleCounts writes to each line of a simulated middle tier.
//!
//! Each frame counts whole pages written. Lines count changes in place, allocated at the first
//! change. So frames that are only read take 32 bytes, outside the budget.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::stats::LineWrites;

pub(in crate::pool) const LINE_BYTES: u64 = 64;

#[derive(Debug)]
pub(in crate::pool) struct LineCounts {
    frames: Box<[Frame]>,
    lines_per_page: usize,
}

#[derive(Debug, Default)]
struct Frame {
    pages: AtomicU32,
    lines: OnceLock<Box<[AtomicU32]>>,
}

impl LineCounts {
    pub(in crate::pool) fn new(frames: u32, page_bytes: usize) -> LineCounts {
        let frames = (0..frames).map(|_| Frame::default()).collect();
        LineCounts { frames, lines_per_page: page_bytes / LINE_BYTES as usize }
    }

    pub(in crate::pool) fn page_written(&self, index: u32) {
        self.frames[index as usize].pages.fetch_add(1, Relaxed);
    }

    pub(in crate::pool) fn line_written(&self, index: u32, line: u64) {
        let made = || (0..self.lines_per_page).map(|_| AtomicU32::new(0)).collect();
        self.frames[index as usize].lines.get_or_init(made)[line as usize].fetch_add(1, Relaxed);
    }

    pub(in crate::pool) fn line_writes(&self) -> LineWrites {
        let frame = |frame: &Frame| {
            let lines = frame.lines.get().map(|lines| lines.iter().map(|line| line.load(Relaxed)).collect());
            (frame.pages.load(Relaxed), lines)
        };
        LineWrites::new(self.lines_per_page as u64, self.frames.iter().map(frame))
    }
}
