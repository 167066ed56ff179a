//! What accesses to the middle tier cost, where its memory is simulated.
//!
//! Everything that is charged comes through here: a look at a page where it is, values copied out of it, lines of it that are changed,
//! and whole pages that are copied up, down, in from the store and out to it. A copy between tiers also takes a core its time; in from
//! the store and out to it, where this code copies too, it counts as the disk's, as with direct I/O to the frame. A look is a search: which lines it touches is the
//! index's affair and different for each key, so [`LINES_PER_SEARCH`] are charged, the first of the page, with its header and the
//! first slots, and others by the operation's number. Of what is changed only words that differ are stored, and only their lines charged.
//! Memory that is what it says has nothing here but a branch.

use std::sync::atomic::Ordering::Relaxed;

use terrace_block::{Charge, Direction, Pattern};

use super::operation;
use super::pool::Pool;
use super::stripe::{class_of, index_of, is_middle};
use crate::ids::PageId;

/// Lines of memory that a search in a page touches: its header and first slots, one of the slots further on, and the key and the
/// value that it ends at.
pub(super) const LINES_PER_SEARCH: u64 = 4;
/// Bytes of a line, and words of it.
pub(super) const LINE_BYTES: u64 = 64;
const LINE_WORDS: usize = 8;

impl Pool {
    /// A search in the page in `frame`, of the middle tier, which goes to other lines in each operation.
    pub(super) fn charge_search(&self, frame: u32) {
        let Some(memory) = self.middle.as_ref().and_then(|middle| middle.memory.as_ref()) else { return };
        let lines = class_of(frame).page_bytes() as u64 / LINE_BYTES;
        let mut number = operation::current().number;
        memory.read(address(frame), LINE_BYTES, Pattern::Random);
        for _ in 1..LINES_PER_SEARCH {
            number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
            memory.read(address(frame) + number % lines * LINE_BYTES, LINE_BYTES, Pattern::Random);
        }
    }

    /// `bytes` bytes copied out of the page in `frame`, if that is one of the middle tier.
    #[cold]
    pub(super) fn charge_copied(&self, frame: u32, bytes: usize) {
        if let Some(memory) = self.middle.as_ref().and_then(|middle| middle.memory.as_ref()) {
            memory.read(address(frame), bytes as u64, Pattern::Sequential);
        }
    }

    /// The whole page in `frame`, from now until what is returned is finished or dropped; nothing in DRAM.
    pub(super) fn charge_page(&self, frame: u32, direction: Direction) -> Option<Charge<'_>> {
        let middle = self.middle.as_ref().filter(|_| is_middle(frame))?;
        let bytes = class_of(frame).page_bytes() as u64;
        if let (Direction::Write, Some(wear)) = (direction, &middle.wear) {
            wear.page_written(index_of(frame));
        }
        Some(middle.memory.as_ref()?.begin(direction, address(frame), bytes, Pattern::Sequential))
    }

    /// Copies the page `id` from one frame to another, one of which is of the middle tier.
    pub(super) fn copy_page(&self, id: PageId, from: u32, to: u32) {
        let (middle, direction) =
            if is_middle(from) { (from, Direction::Read) } else { (to, Direction::Write) };
        let charge = self.charge_page(middle, direction);
        self.frames.copy_page(id, from, to);
        if let Some(memory) = self.middle.as_ref().and_then(|middle| middle.memory.as_ref()) {
            memory.copy(class_of(from).page_bytes() as u64);
        }
        charge.map(Charge::finish);
    }

    /// Stores the content of the page `id`, which comes into `frame`, as [`Frames::fill`](super::frames::Frames::fill).
    pub(super) fn fill(&self, id: PageId, frame: u32, content: &[u8]) {
        let charge = self.charge_page(frame, Direction::Write);
        self.frames.fill(id, frame, content);
        charge.map(Charge::finish);
    }

    /// Replaces what is in the page `id` from word `first` on, in `frame`, of the middle tier: stores the words that differ, and
    /// charges for their lines. The caller holds the exclusive latch.
    pub(super) fn change_in_middle(&self, id: PageId, frame: u32, first: usize, content: &[u8]) {
        let middle = self.middle.as_ref().expect("there is a frame of it");
        let words = &self.frames.words(id, frame)[first..first + content.len() / 8];
        let (mut lines, mut last) = (0, None);
        for (at, (word, bytes)) in (first..).zip(words.iter().zip(content.chunks_exact(8))) {
            let new = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
            if word.load(Relaxed) == new {
                continue;
            }
            word.store(new, Relaxed);
            let line = (at / LINE_WORDS) as u64;
            if last.replace(line) != Some(line) {
                lines += 1;
                if let Some(wear) = &middle.wear {
                    wear.line_written(index_of(frame), line);
                }
                if let Some(memory) = &middle.memory {
                    memory.write(address(frame) + line * LINE_BYTES, LINE_BYTES, Pattern::Random);
                }
            }
        }
        middle.counts.lines_written.fetch_add(lines, Relaxed);
    }
}

/// Where `frame` is in the memory of the tier, all of whose frames are of one size.
fn address(frame: u32) -> u64 {
    u64::from(index_of(frame)) * class_of(frame).page_bytes() as u64
}
