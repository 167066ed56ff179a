//! Sets of pages as bitmaps, 1/128 of the page table in size.

use crate::ids::{ByClass, PageId, SizeClass};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageSet {
    /// One bit per index.
    classes: ByClass<Vec<u64>>,
}

impl PageSet {
    /// All ids with an index from 1 up to, but excluding, that in `ends`.
    pub(crate) fn below(ends: ByClass<u64>) -> PageSet {
        PageSet { classes: ends.map(bits_below) }
    }

    pub(crate) fn insert(&mut self, id: PageId) {
        let words = &mut self.classes[id.class_index()];
        let at = (id.index() / 64) as usize;
        if words.len() <= at {
            words.resize(at + 1, 0);
        }
        words[at] |= 1 << (id.index() % 64);
    }

    pub(crate) fn len(&self) -> u64 {
        self.classes.iter().flatten().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Takes the lowest ids from `from` on, as many pages as fit `bytes`.
    pub(crate) fn take(&mut self, from: PageId, mut bytes: usize) -> Vec<PageId> {
        let mut taken = Vec::new();
        for class in SizeClass::all().skip(from.class_index()) {
            let skipped = if class.index() == from.class_index() { from.index() / 64 } else { 0 };
            let words = self.classes[class.index()].iter_mut().enumerate();
            for (at, word) in words.skip(skipped as usize) {
                while *word != 0 {
                    match bytes.checked_sub(class.page_bytes()) {
                        Some(left) => bytes = left,
                        None => return taken,
                    }
                    let bit = word.trailing_zeros();
                    *word &= *word - 1;
                    taken.push(PageId::new(class, at as u64 * 64 + u64::from(bit)));
                }
            }
        }
        taken
    }
}

/// Ones from 1 up to, but excluding, `end`.
fn bits_below(end: u64) -> Vec<u64> {
    let mut words = vec![u64::MAX; end.div_ceil(64) as usize];
    if let Some(last) = words.last_mut()
        && !end.is_multiple_of(64)
    {
        *last = (1 << (end % 64)) - 1;
    }
    if let Some(first) = words.first_mut() {
        *first &= !1;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::page_ids::{id_count_below, ids_below};

    #[test]
    fn ids_are_taken_once_in_their_order() {
        for end in [0, 1, 2, 63, 64, 65, 130] {
            for ends in [
                [end, 1, 1, 1, 1, 1, 1, 1, 1, 1],
                [1, 1, 1, 1, end, 1, 1, 1, 1, 1],
                [1, 1, 1, 1, 1, 1, 1, 1, 1, end],
                [end, 0, 70, end, 3, 1, 1, end, 1, 2],
            ] {
                let mut set = PageSet::below(ends);
                assert_eq!(set.len(), id_count_below(&ends), "{ends:?}");
                let (mut found, mut from) = (Vec::new(), PageId::NONE);
                loop {
                    let some = set.take(from, 2200 << 10);
                    assert!(some.iter().map(|id| 4096 << id.class_index()).sum::<usize>() <= 2200 << 10);
                    let Some(&last) = some.last() else { break };
                    from = last;
                    found.extend(some);
                }
                assert!(found.iter().copied().eq(ids_below(ends)), "{ends:?}: {found:?}");
                let late = PageId::new(SizeClass::LARGEST_NODE, 700);
                for id in [late, PageId(700), late] {
                    set.insert(id);
                }
                assert_eq!((set.len(), set.take(PageId::NONE, 64 << 10)), (2, vec![PageId(700)]));
                assert_eq!(set.take(PageId(700), 64 << 10), [late]);
                assert_eq!(set.len(), 0);
            }
        }
    }
}
