//! How often each line of a simulated middle tier was written: what memory that wears out would have to bear.
//!
//! Counted by frame and line, in a number for each frame of whole pages that came into it, and one for each of its lines that was
//! changed in place, which are made when the first of them is. So a page that comes in is one count, not one for each line, and frames
//! that are only read take 32 bytes. It is kept where memory is simulated, and is no part of the budget, as the model of the cache is
//! none: memory that is what it says would wear by itself, and pays for no count.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::charge::LINE_BYTES;
use crate::stats::LineWrites;

/// The counts of all frames.
#[derive(Debug)]
pub(super) struct Wear {
    frames: Box<[Frame]>,
    lines_per_page: usize,
}

#[derive(Debug, Default)]
struct Frame {
    /// Times that all of it was written.
    pages: AtomicU32,
    /// And each line by itself.
    lines: OnceLock<Box<[AtomicU32]>>,
}

impl Wear {
    /// Counts for `frames` frames with pages of `page_bytes`.
    pub(super) fn new(frames: u32, page_bytes: usize) -> Wear {
        let frames = (0..frames).map(|_| Frame::default()).collect();
        Wear { frames, lines_per_page: page_bytes / LINE_BYTES as usize }
    }

    /// All lines of the frame with this index were written.
    pub(super) fn page_written(&self, index: u32) {
        self.frames[index as usize].pages.fetch_add(1, Relaxed);
    }

    /// One of its lines was.
    pub(super) fn line_written(&self, index: u32, line: u64) {
        let made = || (0..self.lines_per_page).map(|_| AtomicU32::new(0)).collect();
        self.frames[index as usize].lines.get_or_init(made)[line as usize].fetch_add(1, Relaxed);
    }

    /// What was counted so far.
    pub(super) fn line_writes(&self) -> LineWrites {
        let frame = |frame: &Frame| {
            let lines = frame.lines.get().map(|lines| lines.iter().map(|line| line.load(Relaxed)).collect());
            (frame.pages.load(Relaxed), lines)
        };
        LineWrites::new(self.lines_per_page as u64, self.frames.iter().map(frame))
    }
}
