//! The bytes of a value that a read wants.

use std::ops::{Bound, Range, RangeBounds};

use crate::error::{Error, Result};

pub(crate) trait Wanted: Copy {
    fn part(self) -> Part;

    /// Offset of the first of them.
    fn start(self) -> usize {
        self.part().start
    }

    /// The wanted bytes of a value of `length` bytes; `None` if they are not inside.
    #[inline]
    fn of(self, length: usize) -> Option<Range<usize>> {
        self.part().of(length)
    }

    /// Whether it is all of a value of any length.
    fn is_all(self) -> bool {
        self.of(usize::MAX) == Some(0..usize::MAX)
    }

    /// [`Wanted::of`], or why there are none.
    #[inline]
    fn inside(self, length: usize) -> Result<Range<usize>> {
        self.of(length).ok_or_else(|| self.part().outside(length))
    }
}

/// The whole value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole;

impl Wanted for Whole {
    fn part(self) -> Part {
        Part { start: 0, end: None }
    }

    #[inline]
    fn of(self, length: usize) -> Option<Range<usize>> {
        Some(0..length)
    }
}

/// A range of bytes; without an end, up to the end of the value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    start: usize,
    end: Option<usize>,
}

impl Part {
    /// `bytes` bytes from offset `at` on.
    pub(crate) fn at(at: usize, bytes: usize) -> Part {
        // No value is so long that this end is inside.
        Part { start: at, end: Some(at.saturating_add(bytes)) }
    }

    #[inline]
    pub(crate) fn new(range: &impl RangeBounds<usize>) -> Part {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => Some(last.saturating_add(1)),
            Bound::Excluded(&end) => Some(end),
            Bound::Unbounded => None,
        };
        Part { start, end }
    }

    #[inline]
    fn of(self, length: usize) -> Option<Range<usize>> {
        let end = self.end.unwrap_or(length);
        (self.start <= end && end <= length).then_some(self.start..end)
    }

    #[cold]
    fn outside(self, length: usize) -> Error {
        let end = self.end.unwrap_or(length.max(self.start));
        Error::OutsideValue { start: self.start, end, length }
    }
}

impl Wanted for Part {
    fn part(self) -> Part {
        self
    }
}
