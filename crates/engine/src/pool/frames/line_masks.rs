//! Which lines of partial pages are in DRAM, and which are dirty: two bits per line and frame.
//!
//! The bits of a frame count only while the page table names it as that of a partial page. They
//! change under that page's exclusive latch.

use std::io;
use std::ops::Range;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

#[cfg(loom)]
use loom::sync::atomic::AtomicU64;
use terrace_io::Region;

use super::partition::index_of;
use crate::ids::SizeClass;
use crate::pool::line_fault;

/// Most lines of a page.
pub(crate) const LINES_MAX: usize = 256;

#[derive(Debug)]
pub(crate) struct LineMasks {
    region: Region,
    line_bytes: usize,
    /// Lines of a page.
    lines: usize,
}

impl LineMasks {
    /// Masks of up to `frames` DRAM frames of `class`. They get memory with the first write.
    pub(super) fn reserve(class: SizeClass, line_bytes: usize, frames: u32) -> io::Result<LineMasks> {
        let bytes = LineMasks::bytes_per_frame(class, line_bytes) * u64::from(frames);
        let region = Region::reserve_writable(bytes as usize)?;
        Ok(LineMasks { region, line_bytes, lines: class.page_bytes() / line_bytes })
    }

    pub(crate) fn bytes_per_frame(class: SizeClass, line_bytes: usize) -> u64 {
        2 * (class.page_bytes() / line_bytes).div_ceil(64) as u64 * 8
    }

    /// The bits of lines in `frame`, then those of dirty ones.
    fn masks(&self, frame: u32) -> (&[AtomicU64], &[AtomicU64]) {
        let words = self.lines.div_ceil(64);
        let at = index_of(frame) as usize * 2 * words * 8;
        #[cfg(not(loom))]
        return self.region.words(at..at + 2 * words * 8).split_at(words);
        #[cfg(loom)]
        unreachable!("loom checks masks of its own, not those at {at} of {:?}", self.region);
    }

    /// Forgets all lines of `frame`.
    pub(crate) fn clear(&self, frame: u32) {
        let (resident, dirty) = self.masks(frame);
        line_fault::forget(resident);
        line_fault::forget(dirty);
    }

    /// Whether `line` may be read from `frame`.
    #[inline]
    pub(crate) fn has(&self, frame: u32, line: usize) -> bool {
        line_fault::has(self.masks(frame).0, line)
    }

    /// Whether `line` differs from the middle copy.
    pub(crate) fn is_dirty(&self, frame: u32, line: usize) -> bool {
        self.masks(frame).1[line / 64].load(Relaxed) >> (line % 64) & 1 != 0
    }

    pub(crate) fn set_dirty(&self, frame: u32, line: usize) {
        self.masks(frame).1[line / 64].fetch_or(1 << (line % 64), Relaxed);
    }

    /// Publishes `line`, whose bytes are in `frame`.
    pub(crate) fn set(&self, frame: u32, line: usize) {
        line_fault::publish(self.masks(frame).0, line);
    }

    /// All lines of a page.
    pub(crate) fn all(&self) -> Range<usize> {
        0..self.lines
    }

    /// The lines of `bytes` bytes at `at`, as far as they are inside the page.
    #[inline]
    pub(crate) fn of(&self, at: usize, bytes: usize) -> Range<usize> {
        let end = if bytes == 0 { 0 } else { at.saturating_add(bytes).div_ceil(self.line_bytes) };
        (at / self.line_bytes).min(self.lines)..end.min(self.lines)
    }

    /// The bytes of `lines`.
    pub(crate) fn bytes(&self, lines: Range<usize>) -> Range<usize> {
        lines.start * self.line_bytes..lines.end * self.line_bytes
    }
}

/// Runs of those `lines` that `is_wanted`.
pub(super) fn runs(
    lines: Range<usize>,
    is_wanted: impl Fn(usize) -> bool,
) -> impl Iterator<Item = Range<usize>> {
    let mut from = lines.start;
    std::iter::from_fn(move || {
        let start = (from..lines.end).find(|&line| is_wanted(line))?;
        from = (start..lines.end).find(|&line| !is_wanted(line)).unwrap_or(lines.end);
        Some(start..from)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_the_bytes_and_absent_ones_come_in_runs() {
        let class = SizeClass::of_bytes(16 << 10).unwrap();
        for (line_bytes, lines) in [(64, 256), (128, 128), (256, 64), (512, 32)] {
            let masks = LineMasks::reserve(class, line_bytes, 3).unwrap();
            assert_eq!(LineMasks::bytes_per_frame(class, line_bytes), 2 * (lines as u64 / 8).max(8));
            assert_eq!((masks.all(), masks.of(0, 0).len()), (0..lines, 0));
            assert_eq!(masks.of(line_bytes - 1, 2), 0..2);
            assert_eq!(masks.of((16 << 10) - 1, 100), lines - 1..lines);
            assert!(masks.of(17 << 10, 8).is_empty());
            [0, 1, 5, lines - 1].iter().for_each(|&line| masks.set(1, line));
            let lines_of = &masks;
            let absent = |frame: u32, lines| runs(lines, move |line| !lines_of.has(frame, line));
            let dirty = |frame: u32| runs(masks.all(), move |line| lines_of.is_dirty(frame, line));
            let found: Vec<_> = absent(1, masks.all()).collect();
            assert_eq!(found, [2..5, 6..lines - 1]);
            assert_eq!(absent(1, 0..2).count(), 0);
            assert_eq!(masks.bytes(2..5), 2 * line_bytes..5 * line_bytes);
            // Neighbours keep their bits.
            assert!([0, 2].iter().all(|&frame| masks.all().all(|line| !masks.has(frame, line))));
            [3, 4, 7].iter().for_each(|&line| masks.set_dirty(1, line));
            assert_eq!(dirty(1).collect::<Vec<_>>(), [3..5, 7..8]);
            assert_eq!([0, 2].map(|frame| dirty(frame).count()), [0, 0]);
            masks.clear(1);
            assert_eq!(dirty(1).count(), 0);
            assert!(masks.all().all(|line| !masks.has(1, line)));
        }
    }
}
