//! Allocation of page ids: per class, freed ids first, then unused ones.

use std::collections::HashSet;
use std::ops::Range;

use crate::ids::{ByClass, PageId, SizeClass};

#[derive(Debug)]
pub(crate) struct PageIds {
    classes: ByClass<ClassIds>,
}

/// The free indexes of one class.
#[derive(Debug)]
struct ClassIds {
    /// A stack of runs. The gap between two ids of a damaged file takes one run.
    free: Vec<Range<u64>>,
    /// Indexes in all runs.
    free_count: u64,
    /// First index that was never used.
    end: u64,
}

impl ClassIds {
    fn take(&mut self) -> Option<u64> {
        let run = self.free.last_mut()?;
        let index = run.start;
        run.start += 1;
        if run.is_empty() {
            self.free.pop();
        }
        self.free_count -= 1;
        Some(index)
    }

    fn give_back(&mut self, index: u64) {
        match self.free.last_mut() {
            Some(run) if run.start == index + 1 => run.start = index,
            _ => self.free.push(index..index + 1),
        }
        self.free_count += 1;
    }
}

/// The ids of every class from index 1 to below `ends`, ascending.
pub(crate) fn ids_below(ends: ByClass<u64>) -> impl DoubleEndedIterator<Item = PageId> {
    SizeClass::all()
        .flat_map(move |class| (1..ends[class.index()]).map(move |index| PageId::new(class, index)))
}

/// The length of `ids_below(ends)`.
pub(crate) fn id_count_below(ends: &ByClass<u64>) -> u64 {
    ends.iter().fold(0, |count, end| count.saturating_add(end.saturating_sub(1)))
}

impl PageIds {
    /// Starts with all ids below `ends` in use. Each end is at least 1.
    pub(crate) fn used_below(ends: ByClass<u64>) -> PageIds {
        PageIds { classes: ends.map(|end| ClassIds { free: Vec::new(), free_count: 0, end }) }
    }

    /// Takes the next id of `class` with an index below `indexes_max`.
    pub(crate) fn take(&mut self, class: SizeClass, indexes_max: u64) -> Option<PageId> {
        let ids = &mut self.classes[class.index()];
        let index = match ids.take() {
            Some(index) => index,
            None if ids.end < indexes_max => {
                ids.end += 1;
                ids.end - 1
            }
            None => return None,
        };
        Some(PageId::new(class, index))
    }

    /// Frees `id`, which is the next one taken of its class.
    pub(crate) fn give_back(&mut self, id: PageId) {
        self.classes[id.class_index()].give_back(id.index());
    }

    /// Keeps the `withheld` ids from being taken.
    pub(crate) fn withhold(&mut self, withheld: &HashSet<PageId>) {
        for (class, ids) in SizeClass::all().zip(&mut self.classes) {
            let mut of_class: Vec<u64> =
                withheld.iter().filter(|id| id.class() == Some(class)).map(|id| id.index()).collect();
            of_class.sort_unstable();
            let runs = std::mem::take(&mut ids.free);
            ids.free = runs.into_iter().flat_map(|run| without(run, &of_class)).collect();
            ids.free_count = ids.free.iter().map(|run| run.end - run.start).sum();
        }
    }

    /// The first never-used index of each class.
    pub(crate) fn ends(&self) -> ByClass<u64> {
        std::array::from_fn(|class| self.classes[class].end)
    }

    /// The number of ids in use.
    pub(crate) fn used(&self) -> u64 {
        self.classes.iter().map(|ids| ids.end - 1 - ids.free_count).sum()
    }

    /// The ids in use, by class and ascending.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = PageId> {
        SizeClass::all().zip(&self.classes).flat_map(|(class, ids)| {
            let mut free = ids.free.clone();
            free.sort_unstable_by_key(|run| run.start);
            free.push(ids.end..ids.end);
            let mut start = 1;
            let between = move |run: Range<u64>| std::mem::replace(&mut start, run.end)..run.start;
            free.into_iter().flat_map(between).map(move |index| PageId::new(class, index))
        })
    }

    /// Entries of the page table, if it is an array.
    pub(crate) fn entries(&self) -> u64 {
        self.classes.iter().filter(|ids| ids.end > 1).map(|ids| ids.end).sum()
    }

    /// Bytes of the free ids.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.classes.iter().map(|ids| (ids.free.capacity() * size_of::<Range<u64>>()) as u64).sum()
    }
}

/// The parts of `run` outside `withheld`, which is sorted. The highest part comes first, as in the
/// stack.
fn without(run: Range<u64>, withheld: &[u64]) -> Vec<Range<u64>> {
    let inside = withheld.partition_point(|&index| index < run.start)
        ..withheld.partition_point(|&index| index < run.end);
    let mut parts = Vec::new();
    let mut end = run.end;
    for &index in withheld[inside].iter().rev() {
        parts.push(index + 1..end);
        end = index;
    }
    parts.push(run.start..end);
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_give_ids_of_their_own_and_take_them_back() {
        let (small, large) = (SizeClass::SMALLEST, SizeClass::LARGEST);
        let mut ids = PageIds::used_below([1, 1, 1, 1, 1, 1, 1, 1, 1, 3]);
        assert_eq!(ids.take(large, 4), Some(PageId::new(large, 3)));
        assert_eq!(ids.take(large, 4), None, "there are no more");
        assert_eq!(ids.take(small, 4), Some(PageId(1)));
        assert_eq!(ids.used(), 4);
        ids.give_back(PageId::new(large, 2));
        assert_eq!((ids.used(), ids.ends()), (3, [2, 1, 1, 1, 1, 1, 1, 1, 1, 4]));
        assert!(ids.in_use().eq([PageId(1), PageId::new(large, 1), PageId::new(large, 3)]));
        assert_eq!(ids.take(small, 4), Some(PageId(2)), "the free one is of another class");
        ids.withhold(&HashSet::from([PageId(2), PageId::new(large, 1)]));
        assert_eq!(ids.take(large, 4), Some(PageId::new(large, 2)));
        ids.give_back(PageId::new(large, 2));
        ids.withhold(&HashSet::from([PageId::new(large, 2)]));
        assert_eq!(ids.take(large, 4), None, "it is withheld");
    }

    /// A file may name one page far beyond all others.
    #[test]
    fn a_gap_between_ids_takes_no_memory() {
        let mut ids = PageIds::used_below([1 << 24, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        let empty = ids.free_bytes();
        (1..1 << 24).rev().for_each(|index| ids.give_back(PageId(index)));
        assert_eq!(ids.used(), 0);
        assert!(ids.free_bytes() - empty < 1024, "{} bytes more", ids.free_bytes() - empty);
        ids.withhold(&HashSet::from([PageId(1), PageId(4), PageId((1 << 24) - 1)]));
        assert_eq!(ids.used(), 3);
        let first: Vec<_> = (0..4).filter_map(|_| ids.take(SizeClass::SMALLEST, 1 << 24)).collect();
        assert_eq!(first, [PageId(2), PageId(3), PageId(5), PageId(6)]);
        assert!(ids.in_use().eq((1..7).chain([(1 << 24) - 1]).map(PageId)), "withheld ones count as used");
        (0..(1 << 24) - 8).for_each(|_| assert!(ids.take(SizeClass::SMALLEST, 1 << 24).is_some()));
        assert_eq!(ids.take(SizeClass::SMALLEST, 1 << 24), None, "all others are in use or withheld");
    }

    #[test]
    fn ids_come_in_their_order() {
        let ends = [3, 1, 0, 2, 1, 1, 1, 1, 1, 2];
        let all: Vec<PageId> = ids_below(ends).collect();
        let expected = [(0, 1), (0, 2), (3, 1), (9, 1)];
        let expected = expected
            .map(|(class, index)| PageId::new(SizeClass::from_index(class).expect("one there is"), index));
        assert_eq!((all.as_slice(), id_count_below(&ends)), (&expected[..], 4));
        assert!(all.is_sorted());
        assert!(ids_below(ends).rev().eq(all.into_iter().rev()));
    }
}
