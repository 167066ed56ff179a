//! Costs of accesses to a middle tier with simulated memory.
//!
//! A copy between tiers also costs CPU time. A copy from or to the store counts as disk time, as
//! with direct I/O to the frame. An access is a search, whose lines depend on index and key. It
//! charges [`LINES_PER_SEARCH`] lines: the first of the page, and others picked by the operation
//! number.
//!
//! Where the profile counts lines ([`Profile::counts_lines`](terrace_io::Profile::counts_lines)),
//! looks are repeated through a view that notes their lines ([`lines`](crate::pool::lines)). Those
//! are charged instead, adjacent ones together, and free if the worker's cache has them. A copy
//! goes on where its search ended, so it is sequential.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use terrace_io::{Charge, Direction, Pattern};

use super::line_counts::LINE_BYTES;
use super::middle::MiddleTier;
use super::operation;
use crate::ids::PageId;
use crate::pool::frames::partition::{class_of, is_middle};
use crate::pool::lines::LineSet;
use crate::pool::resident::Resident;
use crate::pool::view::Piece;

/// Lines per search: header and first slots, later slot, key, value.
pub(in crate::pool) const LINES_PER_SEARCH: u64 = 4;
const LINE_WORDS: usize = 8;

impl MiddleTier {
    pub(in crate::pool) fn charge_search(&self, frame: u32) {
        let Some(memory) = self.memory.as_ref().filter(|_| !self.counts_lines()) else { return };
        let lines = class_of(frame).page_bytes() as u64 / LINE_BYTES;
        let mut number = operation::current().number;
        let start = self.addresses.of(frame);
        memory.read(start, LINE_BYTES, Pattern::Random);
        for _ in 1..LINES_PER_SEARCH {
            number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
            memory.read(start + number % lines * LINE_BYTES, LINE_BYTES, Pattern::Random);
        }
    }

    /// Whether looks charge the lines that they touch.
    pub(in crate::pool) fn counts_lines(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.profile().counts_lines())
    }

    /// Charges a look at `lines` of the page in `frame`.
    pub(in crate::pool) fn charge_lines(&self, frame: u32, lines: &LineSet, pattern: Pattern) {
        let Some(memory) = &self.memory else { return };
        for run in lines.runs() {
            let at = self.addresses.of(frame) + run.start as u64 * LINE_BYTES;
            memory.look(at, run.len() as u64 * LINE_BYTES, pattern);
        }
    }

    pub(in crate::pool) fn charge_copied(&self, frame: u32, bytes: usize) {
        if let Some(memory) = &self.memory {
            memory.read(self.addresses.of(frame), bytes as u64, Pattern::Sequential);
        }
    }

    /// Charges the whole page in `frame`; nothing for DRAM.
    ///
    /// The charge lasts until the result is finished or dropped.
    pub(in crate::pool) fn charge_page(&self, frame: u32, direction: Direction) -> Option<Charge<'_>> {
        if !is_middle(frame) {
            return None;
        }
        let bytes = class_of(frame).page_bytes() as u64;
        match direction {
            Direction::Read => self.counts.read_bytes.fetch_add(bytes, Relaxed),
            Direction::Write => self.counts.written_bytes.fetch_add(bytes, Relaxed),
        };
        if let (Direction::Write, Some(line_counts)) = (direction, &self.line_counts) {
            line_counts.page_written(frame);
        }
        Some(self.memory.as_ref()?.begin(direction, self.addresses.of(frame), bytes, Pattern::Sequential))
    }

    /// Charges a load of `bytes` of the page in `frame` to a partial page.
    pub(in crate::pool) fn charge_load(&self, frame: u32, bytes: Range<usize>) {
        if let Some(memory) = &self.memory {
            memory.read(self.addresses.of(frame) + bytes.start as u64, bytes.len() as u64, Pattern::Random);
            memory.copy(bytes.len() as u64);
        }
    }

    /// Charges a look at `bytes` of the page in `frame`, below a mini page without room for them.
    pub(in crate::pool) fn charge_in_place(&self, frame: u32, bytes: Range<usize>) {
        if let Some(memory) = &self.memory {
            memory.read(self.addresses.of(frame) + bytes.start as u64, bytes.len() as u64, Pattern::Random);
        }
    }

    /// Charges `bytes` of a partial page copied to its middle frame, and counts their lines.
    pub(super) fn charge_demoted(&self, frame: u32, bytes: Range<usize>) {
        let (at, length) = (bytes.start as u64, bytes.len() as u64);
        if let Some(line_counts) = &self.line_counts {
            (at / LINE_BYTES..(at + length) / LINE_BYTES)
                .for_each(|line| line_counts.line_written(frame, line));
        }
        if let Some(memory) = &self.memory {
            memory.write(self.addresses.of(frame) + at, length, Pattern::Random);
            memory.copy(length);
        }
    }

    fn joins_writes(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.profile().joins_writes())
    }

    /// Charges a change of `lines` of the page in `frame` as one access.
    fn charge_changed(&self, frame: u32, lines: &Range<u64>) {
        if let Some(memory) = self.memory.as_ref().filter(|_| !lines.is_empty()) {
            let bytes = (lines.end - lines.start) * LINE_BYTES;
            memory.write(self.addresses.of(frame) + lines.start * LINE_BYTES, bytes, Pattern::Random);
        }
    }

    pub(in crate::pool) fn copy_page(&self, resident: &Resident, id: PageId, from: u32, to: u32) {
        let (middle, direction) =
            if is_middle(from) { (from, Direction::Read) } else { (to, Direction::Write) };
        let charge = self.charge_page(middle, direction);
        resident.frames.begin_stores(to);
        resident.frames.copy_page(id, from, to);
        resident.frames.end_stores(to);
        if let Some(memory) = &self.memory {
            memory.copy(class_of(from).page_bytes() as u64);
            memory.move_page();
        }
        charge.map(Charge::finish);
    }

    /// Replaces `pieces` of page `id` in `frame`, which are in its order.
    ///
    /// Stores words that differ and charges their lines, each once: by itself, or with adjoining
    /// ones where the profile joins writes. The caller holds the exclusive latch.
    pub(in crate::pool) fn change_in_place(
        &self,
        resident: &Resident,
        id: PageId,
        frame: u32,
        pieces: &[Piece<'_>],
    ) {
        resident.frames.begin_stores(frame);
        let words = resident.frames.words(id, frame);
        let (mut lines, mut last) = (0, None);
        let mut run = 0..0;
        let changes = pieces.iter().flat_map(|piece| (piece.at / 8..).zip(piece.bytes.chunks_exact(8)));
        for (at, bytes) in changes {
            let word = &words[at];
            let new = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
            if word.load(Relaxed) == new {
                continue;
            }
            word.store(new, Relaxed);
            let line = (at / LINE_WORDS) as u64;
            if last.replace(line) != Some(line) {
                lines += 1;
                if let Some(line_counts) = &self.line_counts {
                    line_counts.line_written(frame, line);
                }
                if line != run.end || !self.joins_writes() {
                    self.charge_changed(frame, &run);
                    run.start = line;
                }
                run.end = line + 1;
            }
        }
        self.charge_changed(frame, &run);
        resident.frames.end_stores(frame);
        self.counts.lines_written.fetch_add(lines, Relaxed);
    }
}
