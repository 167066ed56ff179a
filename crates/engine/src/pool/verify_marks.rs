//! Verify marks: two bits per page, kept by a running verification.
//!
//! - *Unmet*: nothing is known. *Met*: the page was found where it belongs.
//! - *Renewed*: the page was created or freed since the beginning. Any owner is right. Ids beyond
//!   the former ends count as renewed.
//! - *Passed on*: a value's head or a table's root moved between table and garbage tree since. Then
//!   it proves nothing where the page, or pages below it, were met. Large values are written from
//!   end to beginning. A head that a new part replaces is passed on too.
//!
//! A change of owner is marked before it is made. So a thread that finds the page at its new owner
//! also finds the mark. The last change counts; *met* only counts without one.
//!
//! **The beginning.** A change that began before the marks were published sets none. The publisher
//! is alone inside the gate, so no commit is under way. Other changes have log tickets, and
//! `Maintenance::wait_for_changes` waits for those. A change draws its LSN and then looks for the
//! marks. The verification publishes them and then reads the end of the log. All this is
//! sequentially consistent. So a change that found no marks has its LSN, and its ticket, below that
//! end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use parking_lot::RwLock;

use super::page_ids::ids_below;
use crate::error::{Error, Result};
use crate::ids::{ByClass, PageId};
use crate::planted::{Bug, planted};

const PAGES_PER_WORD: u64 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Unmet,
    Met,
    Renewed,
    PassedOn,
}

impl Known {
    fn of(bits: u64) -> Known {
        [Known::Unmet, Known::Met, Known::Renewed, Known::PassedOn][bits as usize & 3]
    }
}

#[derive(Debug)]
pub(crate) struct VerifyMarks {
    classes: ByClass<ClassMarks>,
}

#[derive(Debug)]
struct ClassMarks {
    words: Box<[AtomicU64]>,
    /// Indexes from here on were unused at the beginning.
    end: u64,
}

impl ClassMarks {
    fn of(end: u64) -> Result<ClassMarks> {
        let count = end.div_ceil(PAGES_PER_WORD) as usize;
        let mut words = Vec::new();
        words.try_reserve_exact(count).map_err(|_| Error::Memory {
            bytes: count as u64 * 8,
            what: "a verification",
            source: std::io::ErrorKind::OutOfMemory.into(),
        })?;
        words.resize_with(count, AtomicU64::default);
        Ok(ClassMarks { words: words.into_boxed_slice(), end })
    }
}

impl VerifyMarks {
    fn of(ends: ByClass<u64>) -> Result<VerifyMarks> {
        let classes = ends.into_iter().map(ClassMarks::of).collect::<Result<Vec<_>>>()?;
        Ok(VerifyMarks { classes: classes.try_into().expect("one for each class") })
    }

    pub(crate) fn known(&self, id: PageId) -> Known {
        match self.word(id) {
            Some((word, shift)) => Known::of(word.load(SeqCst) >> shift),
            None => Known::Renewed,
        }
    }

    /// Notes that `id` was met; returns the former mark.
    pub(crate) fn meet(&self, id: PageId) -> Known {
        self.update(id, |known| if known == Known::Unmet { Known::Met } else { known })
    }

    /// Marks page `id` before it is created or freed.
    pub(crate) fn renew(&self, id: PageId) {
        self.update(id, |_| Known::Renewed);
    }

    /// Marks `head` before it changes owners, with all below it.
    pub(crate) fn pass_on(&self, head: PageId) {
        self.update(head, |_| Known::PassedOn);
    }

    fn update(&self, id: PageId, next: impl Fn(Known) -> Known) -> Known {
        let Some((word, shift)) = self.word(id) else { return Known::Renewed };
        let update = |bits: u64| {
            let next = next(Known::of(bits >> shift)) as u64;
            Some(bits & !(3 << shift) | next << shift)
        };
        let before = word.fetch_update(SeqCst, Relaxed, update);
        Known::of(before.unwrap_or_else(|bits| bits) >> shift)
    }

    pub(crate) fn passed_on(&self) -> impl Iterator<Item = PageId> + '_ {
        let ends = std::array::from_fn(|class| self.classes[class].end);
        ids_below(ends).filter(|&id| self.known(id) == Known::PassedOn)
    }

    /// The word and shift of `id`, which may be any number.
    fn word(&self, id: PageId) -> Option<(&AtomicU64, u64)> {
        let class = self.classes.get(id.class_index()).filter(|class| id.index() < class.end)?;
        let (word, at) = (id.index() / PAGES_PER_WORD, id.index() % PAGES_PER_WORD);
        Some((&class.words[word as usize], at * 2))
    }
}

/// Holds the verify marks while a verification runs.
#[derive(Debug, Default)]
pub(super) struct MarksSlot {
    is_there: AtomicBool,
    verify_marks: RwLock<Option<Arc<VerifyMarks>>>,
}

impl MarksSlot {
    #[inline]
    pub(super) fn get(&self) -> Option<Arc<VerifyMarks>> {
        if self.is_there.load(SeqCst) { self.verify_marks.read().clone() } else { None }
    }

    pub(super) fn note_renewed(&self, id: PageId) {
        if let Some(verify_marks) = self.get()
            && !planted(Bug::RenewalUntold)
        {
            verify_marks.renew(id);
        }
    }

    /// Publishes marks for pages with indexes below `ends`.
    pub(super) fn begin(&self, ends: ByClass<u64>) -> Result<Arc<VerifyMarks>> {
        let verify_marks = Arc::new(VerifyMarks::of(ends)?);
        *self.verify_marks.write() = Some(Arc::clone(&verify_marks));
        self.is_there.store(true, SeqCst);
        Ok(verify_marks)
    }

    pub(super) fn end(&self) {
        self.is_there.store(false, SeqCst);
        *self.verify_marks.write() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SizeClass;

    #[test]
    fn the_last_change_counts_and_a_meeting_only_without_one() {
        let ends = [100, 1, 40, 1, 3, 1, 5, 1, 1, 2];
        let verify_marks = VerifyMarks::of(ends).unwrap();
        for id in ids_below(ends) {
            assert_eq!(verify_marks.meet(id), Known::Unmet);
            assert_eq!(verify_marks.meet(id), Known::Met);
            verify_marks.renew(id);
            assert_eq!((verify_marks.meet(id), verify_marks.known(id)), (Known::Renewed, Known::Renewed));
            verify_marks.pass_on(id);
            assert_eq!((verify_marks.meet(id), verify_marks.known(id)), (Known::PassedOn, Known::PassedOn));
            assert!(verify_marks.passed_on().eq([id]), "neighbours are left alone");
            verify_marks.renew(id);
        }
        assert_eq!(verify_marks.passed_on().count(), 0);
        for (class, end) in SizeClass::all().zip(ends) {
            assert_eq!(verify_marks.meet(PageId::new(class, end)), Known::Renewed, "there was no such page");
        }
        assert_eq!(verify_marks.meet(PageId(u64::MAX)), Known::Renewed, "there can be no such page");
    }
}
