//! The lines of a page that a look at it touches.

use std::cell::Cell;
use std::cmp::Ordering;
use std::ops::Range;

use super::view::{View, count_below};

pub(crate) const LINE_BYTES: usize = 64;
/// Lines of the largest node, by 64.
const WORDS: usize = (64 << 10) / LINE_BYTES / 64;

/// Lines of one page. Those behind 64 KiB are left out.
#[derive(Debug, Default)]
pub(crate) struct LineSet([Cell<u64>; WORDS]);

impl LineSet {
    pub(crate) fn add(&self, at: usize, bytes: usize) {
        let end = if bytes == 0 { 0 } else { at.saturating_add(bytes).div_ceil(LINE_BYTES) };
        for line in at / LINE_BYTES..end {
            let Some(word) = self.0.get(line / 64) else { return };
            word.set(word.get() | 1 << (line % 64));
        }
    }

    /// Takes out the lines of `other`.
    pub(crate) fn subtract(&self, other: &LineSet) {
        for (word, other) in self.0.iter().zip(&other.0) {
            word.set(word.get() & !other.get());
        }
    }

    fn has(&self, line: usize) -> bool {
        self.0.get(line / 64).is_some_and(|word| word.get() >> (line % 64) & 1 != 0)
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> u32 {
        self.0.iter().map(|word| word.get().count_ones()).sum()
    }

    /// Runs of adjacent lines, in order.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let start = (from..WORDS * 64).find(|&line| self.has(line))?;
            from = (start..WORDS * 64).find(|&line| !self.has(line)).unwrap_or(WORDS * 64);
            Some(start..from)
        })
    }
}

/// A view that notes the lines read through it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noting<'a, V> {
    view: V,
    lines: &'a LineSet,
}

impl<'a, V: View> Noting<'a, V> {
    pub(crate) fn new(view: V, lines: &'a LineSet) -> Self {
        Noting { view, lines }
    }

    fn note(&self, at: usize, bytes: usize) {
        self.lines.add(at, bytes.min(self.view.len().saturating_sub(at)));
    }
}

impl<V: View> View for Noting<'_, V> {
    fn len(&self) -> usize {
        self.view.len()
    }

    fn u64(&self, at: usize) -> u64 {
        self.note(at, 8);
        self.view.u64(at)
    }

    fn copy_to(&self, at: usize, to: &mut [u8]) {
        self.note(at, to.len());
        self.view.copy_to(at, to);
    }

    /// Notes the words up to the first that differs, which are those that a comparison reads.
    fn compare(&self, at: usize, length: usize, other: &[u8]) -> Ordering {
        let inside = length.min(self.len().saturating_sub(at));
        for (word, theirs) in other[..inside.min(other.len())].chunks(8).enumerate() {
            let at = at + word * 8;
            self.note(at, theirs.len());
            if self.view.compare(at, theirs.len(), theirs).is_ne() {
                break;
            }
        }
        self.view.compare(at, length, other)
    }

    fn count_below(&self, at: usize, count: usize, bound: u64) -> usize {
        let words = self.len().saturating_sub(at) / 8;
        count_below(count.min(words), bound, |index| self.u64(at + index * 8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_noted_once_and_come_in_runs() {
        let page: Vec<u8> = (0..16384u32).map(|byte| (byte * 7) as u8).collect();
        let lines = LineSet::default();
        let view = Noting::new(&page[..], &lines);
        assert_eq!(view.u64(60), View::u64(&&page[..], 60), "of two lines");
        view.u8(0);
        view.copy_to(300, &mut [0; 200]);
        view.copy_to(16380, &mut [0; 200]);
        view.copy_to(700, &mut []);
        view.u64(20_000);
        assert_eq!(lines.runs().collect::<Vec<_>>(), [0..2, 4..8, 255..256]);
        assert_eq!(lines.count(), 7);
        let others = LineSet::default();
        others.add(64, 1);
        others.add(320, 64);
        lines.subtract(&others);
        assert_eq!(lines.runs().collect::<Vec<_>>(), [0..1, 4..5, 6..8, 255..256]);
    }

    #[test]
    fn a_comparison_ends_at_the_first_word_that_differs() {
        let page = [1; 1024];
        let compared = |other: &[u8]| {
            let lines = LineSet::default();
            let order = Noting::new(&page[..], &lines).compare(60, 200, other);
            assert_eq!(order, page[60..260].cmp(other));
            lines.count()
        };
        assert_eq!(compared(&[1; 200]), 5);
        assert_eq!(compared(&[1; 3]), 1);
        assert_eq!(compared(&[1; 6]), 2);
        assert_eq!(compared(&[2; 200]), 2);
        assert_eq!(compared(&[]), 0);
    }

    /// A search by lines looks at one word of each, and at all of one.
    #[test]
    fn a_search_notes_the_words_that_it_looks_at() {
        let words: Vec<u8> = (0..2048u64).flat_map(u64::to_le_bytes).collect();
        for bound in [0, 1, 700, 2047, 5000] {
            let lines = LineSet::default();
            assert_eq!(
                Noting::new(&words[..], &lines).count_below(0, 2048, bound),
                (bound as usize).min(2048)
            );
            assert!((17..=22).contains(&lines.count()), "{bound}: {}", lines.count());
        }
    }
}
