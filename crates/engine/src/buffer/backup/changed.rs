//! Which pages are to be copied: one bit for each, a hundred-and-twenty-eighth of what the page table takes.

use crate::ids::PageId;

/// A set of page ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageSet {
    words: Vec<u64>,
}

impl PageSet {
    /// The ids from 1 up to and without `end`.
    pub(crate) fn below(end: u64) -> PageSet {
        let mut words = vec![u64::MAX; end.div_ceil(64) as usize];
        if let Some(last) = words.last_mut()
            && !end.is_multiple_of(64)
        {
            *last = (1 << (end % 64)) - 1;
        }
        if let Some(first) = words.first_mut() {
            *first &= !1;
        }
        PageSet { words }
    }

    pub(crate) fn insert(&mut self, id: PageId) {
        let at = (id.0 / 64) as usize;
        if self.words.len() <= at {
            self.words.resize(at + 1, 0);
        }
        self.words[at] |= 1 << (id.0 % 64);
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Takes the lowest ids out, at most `most`, none of which is below `from`: that is where it begins to look.
    pub(crate) fn take(&mut self, from: u64, most: usize) -> Vec<PageId> {
        let mut taken = Vec::with_capacity(most);
        for (at, word) in self.words.iter_mut().enumerate().skip((from / 64) as usize) {
            while *word != 0 {
                if taken.len() == most {
                    return taken;
                }
                let bit = word.trailing_zeros();
                *word &= *word - 1;
                taken.push(PageId(at as u64 * 64 + u64::from(bit)));
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_taken_once_in_their_order() {
        for end in [0, 1, 2, 63, 64, 65, 130] {
            let mut set = PageSet::below(end);
            assert_eq!(set.len(), end.saturating_sub(1), "{end}");
            let (mut found, mut from) = (Vec::new(), 0);
            loop {
                let some = set.take(from, 7);
                let Some(last) = some.last() else { break };
                from = last.0;
                found.extend(some.into_iter().map(|id| id.0));
            }
            assert!(found.iter().copied().eq(1..end.max(1)), "{end}: {found:?}");
            set.insert(PageId(700));
            set.insert(PageId(700));
            assert_eq!((set.len(), set.take(0, 2)), (1, vec![PageId(700)]));
        }
    }
}
