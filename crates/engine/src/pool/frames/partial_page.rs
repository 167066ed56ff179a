//! The part of a partial page that is in DRAM: a frame with some lines, or a mini page.

use std::ops::Range;
use std::sync::atomic::AtomicU64;

use super::line_masks::{LineMasks, runs};
use super::mini_pages::MiniPage;
use crate::pool::line_fault::MINI_LINES;

#[derive(Clone, Copy)]
pub(crate) struct PartialPage<'a> {
    masks: &'a LineMasks,
    part: Part<'a>,
}

#[derive(Clone, Copy)]
pub(crate) enum Part<'a> {
    /// Each line is where the page has it.
    Frame(u32, &'a [AtomicU64]),
    Mini(MiniPage<'a>),
}

impl<'a> PartialPage<'a> {
    pub(super) fn new(masks: &'a LineMasks, part: Part<'a>) -> Self {
        PartialPage { masks, part }
    }

    /// Line numbers and bytes.
    pub(crate) fn masks(&self) -> &'a LineMasks {
        self.masks
    }

    /// The words of the page, of which those of lines count.
    pub(crate) fn words(&self) -> Option<&'a [AtomicU64]> {
        match self.part {
            Part::Frame(_, words) => Some(words),
            Part::Mini(_) => None,
        }
    }

    /// Whether `line` may be read.
    #[inline]
    pub(crate) fn has(&self, line: usize) -> bool {
        match self.part {
            Part::Frame(frame, _) => self.masks.has(frame, line),
            Part::Mini(mini) => mini.line(line).is_some(),
        }
    }

    /// The words of `line`, if it may be read.
    pub(crate) fn line(&self, line: usize) -> Option<&'a [AtomicU64]> {
        match self.part {
            Part::Frame(frame, words) => self.masks.has(frame, line).then(|| &words[self.words_of(line)]),
            Part::Mini(mini) => mini.line(line),
        }
    }

    /// Numbers of the lines that it has.
    pub(crate) fn numbers(self) -> impl Iterator<Item = usize> {
        // In order of arrival; the order in a frame does not matter.
        let (mini, frame) = match self.part {
            Part::Frame(..) => (None, Some(self.masks.all().filter(move |&line| self.has(line)))),
            Part::Mini(mini) => (Some(mini.numbers()), None),
        };
        mini.into_iter().flatten().chain(frame.into_iter().flatten())
    }

    /// Positions of the words of `line` in a page.
    pub(crate) fn words_of(&self, line: usize) -> Range<usize> {
        let bytes = self.masks.bytes(line..line + 1);
        bytes.start / 8..bytes.end / 8
    }

    /// Whether it has room for those of `lines` that it lacks.
    pub(crate) fn has_room(&self, lines: Range<usize>) -> bool {
        match self.part {
            Part::Frame(..) => true,
            Part::Mini(mini) => {
                let absent = lines.filter(|&line| mini.line(line).is_none()).take(MINI_LINES + 1);
                mini.count() + absent.count() <= MINI_LINES
            }
        }
    }

    /// The words for `line`, which is absent and will be published after `ahead` others.
    pub(crate) fn words_for(&self, line: usize, ahead: usize) -> &'a [AtomicU64] {
        match self.part {
            Part::Frame(_, words) => &words[self.words_of(line)],
            Part::Mini(mini) => mini.next_line(ahead),
        }
    }

    /// Publishes `line`, whose bytes are in [`PartialPage::words_for`] it.
    pub(crate) fn publish(&self, line: usize) {
        match self.part {
            Part::Frame(frame, _) => self.masks.set(frame, line),
            Part::Mini(mini) => mini.publish(line),
        }
    }

    /// Whether `line` differs from the middle copy.
    pub(crate) fn is_dirty(&self, line: usize) -> bool {
        match self.part {
            Part::Frame(frame, _) => self.masks.is_dirty(frame, line),
            Part::Mini(mini) => mini.is_dirty(line),
        }
    }

    pub(crate) fn set_dirty(&self, line: usize) {
        match self.part {
            Part::Frame(frame, _) => self.masks.set_dirty(frame, line),
            Part::Mini(mini) => mini.set_dirty(line),
        }
    }

    /// Runs of those `lines` that it lacks.
    pub(crate) fn absent(self, lines: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        runs(lines, move |line| !self.has(line))
    }

    /// Runs of dirty lines.
    pub(crate) fn dirty(self) -> impl Iterator<Item = Range<usize>> {
        runs(self.masks.all(), move |line| self.is_dirty(line))
    }
}
