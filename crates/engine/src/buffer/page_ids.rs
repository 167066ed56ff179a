//! Which page ids are given out next: in each class those of pages that were freed, then those that were never used.

use std::collections::HashSet;

use super::pool::Pool;
use super::table::ENTRY_BYTES;
use crate::ids::{ByClass, PageId, SizeClass};

/// The ids that are not in use.
#[derive(Debug)]
pub(super) struct PageIds {
    classes: ByClass<ClassIds>,
}

/// Those of one class, as indexes.
#[derive(Debug)]
struct ClassIds {
    free: Vec<u64>,
    /// From here on none was ever used.
    end: u64,
}

/// The ids of every class from index 1 on and below that of `ends`, in their order.
pub(crate) fn ids_below(ends: ByClass<u64>) -> impl DoubleEndedIterator<Item = PageId> {
    SizeClass::all()
        .flat_map(move |class| (1..ends[class.index()]).map(move |index| PageId::new(class, index)))
}

/// How many those are.
pub(crate) fn id_count_below(ends: &ByClass<u64>) -> u64 {
    ends.iter().fold(0, |count, end| count.saturating_add(end.saturating_sub(1)))
}

impl PageIds {
    /// All of those below `ends`, which are at least 1, are in use.
    pub(super) fn used_below(ends: ByClass<u64>) -> PageIds {
        PageIds { classes: ends.map(|end| ClassIds { free: Vec::new(), end }) }
    }

    /// The next id of `class`, whose index is below `indexes_max`; none if all of them are in use.
    pub(super) fn take(&mut self, class: SizeClass, indexes_max: u64) -> Option<PageId> {
        let ids = &mut self.classes[class.index()];
        let index = match ids.free.pop() {
            Some(index) => index,
            None if ids.end < indexes_max => {
                ids.end += 1;
                ids.end - 1
            }
            None => return None,
        };
        Some(PageId::new(class, index))
    }

    /// This id is not in use any more. It is the next to be taken of its class.
    pub(super) fn give_back(&mut self, id: PageId) {
        self.classes[id.class_index()].free.push(id.index());
    }

    /// Sees to it that none of these ids is taken.
    pub(super) fn withhold(&mut self, withheld: &HashSet<PageId>) {
        for (class, ids) in SizeClass::all().zip(&mut self.classes) {
            ids.free.retain(|&index| !withheld.contains(&PageId::new(class, index)));
        }
    }

    /// From these indexes on none was ever used.
    pub(super) fn ends(&self) -> ByClass<u64> {
        std::array::from_fn(|class| self.classes[class].end)
    }

    /// How many are in use.
    pub(super) fn used(&self) -> u64 {
        self.classes.iter().map(|ids| ids.end - 1 - ids.free.len() as u64).sum()
    }

    /// Bytes of the page table for all there ever were, and of what is kept here.
    pub(super) fn bytes(&self) -> u64 {
        let of = |ids: &ClassIds| ids.end * ENTRY_BYTES + ids.free.capacity() as u64 * 8;
        self.classes.iter().filter(|ids| ids.end > 1).map(of).sum()
    }
}

impl Pool {
    /// All ids that were ever in use, in their order.
    pub(crate) fn page_ids(&self) -> impl DoubleEndedIterator<Item = PageId> + use<> {
        ids_below(self.ids.lock().ends())
    }

    /// What a superblock says about where the ids of each class end. Of a class in use it says so before there is any page of
    /// it: who opens the database makes the parts of its memory large enough by that, before it looks at the log.
    pub(super) fn ids_ends_to_name(&self) -> ByClass<u64> {
        let mut ends = self.ids.lock().ends();
        self.frames.classes().for_each(|class| ends[class.index()] = ends[class.index()].max(2));
        ends
    }

    /// How many those are.
    pub(crate) fn page_ids_used(&self) -> u64 {
        id_count_below(&self.ids.lock().ends())
    }
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
        assert_eq!(ids.take(small, 4), Some(PageId(2)), "the free one is of another class");
        ids.withhold(&HashSet::from([PageId(2), PageId::new(large, 1)]));
        assert_eq!(ids.take(large, 4), Some(PageId::new(large, 2)));
        ids.give_back(PageId::new(large, 2));
        ids.withhold(&HashSet::from([PageId::new(large, 2)]));
        assert_eq!(ids.take(large, 4), None, "it is withheld");
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
