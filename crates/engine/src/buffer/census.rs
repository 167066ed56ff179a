//! What a verification knows of each page, while others go on changing them: two bits a page.
//!
//! - *Unmet*: nothing, or *met*: it was found where it belongs.
//! - *Renewed*: it came into being or was freed since the verification began. Whoever it belonged to when it was met, or
//!   will belong to, all of that is right. So are pages that there was no id for then.
//! - *Passed on*: the head of a long value, or the root of a table, that has changed hands since: between its table and the
//!   garbage tree. Which of the two it, and what is under it, was met in, if any, says nothing then. A head is also passed
//!   on when one of a longer part of its value, which is written from its end to its beginning, takes its place.
//!
//! Who changes a page's owner says so before the change is made, so whoever finds the page where it is now finds that,
//! too. Of these changes the last one counts; that a page is met counts only where there was none.
//!
//! **The beginning.** A change that began before the census was there does not tell it. Commits are kept out while it is
//! put there (the caller is alone inside the gate), and are few microseconds of waiting for others; changes outside of
//! commits have tickets of the log, for which [`Counting::settle`] waits. A change looks for the census after it has
//! drawn its LSN, and the end of the log is read after the census is there, all of it sequentially consistent: so a
//! change that found none has an LSN, and a ticket, below that end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use parking_lot::RwLock;

use super::backoff::Backoff;
use super::page_ids::ids_below;
use super::pool::Pool;
use crate::error::{Error, Result};
use crate::ids::{ByClass, PageId};

const PAGES_PER_WORD: u64 = 32;

/// What is known of a page.
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

/// What is known of all pages.
#[derive(Debug)]
pub(crate) struct Census {
    classes: ByClass<ClassCensus>,
}

/// What is known of those of one class.
#[derive(Debug)]
struct ClassCensus {
    words: Box<[AtomicU64]>,
    /// Indexes from here on were not in use when it began.
    end: u64,
}

impl ClassCensus {
    fn of(end: u64) -> Result<ClassCensus> {
        let count = end.div_ceil(PAGES_PER_WORD) as usize;
        let mut words = Vec::new();
        words.try_reserve_exact(count).map_err(|_| Error::Memory {
            bytes: count as u64 * 8,
            what: "a verification",
            source: std::io::ErrorKind::OutOfMemory.into(),
        })?;
        words.resize_with(count, AtomicU64::default);
        Ok(ClassCensus { words: words.into_boxed_slice(), end })
    }
}

impl Census {
    fn of(ends: ByClass<u64>) -> Result<Census> {
        let classes = ends.into_iter().map(ClassCensus::of).collect::<Result<Vec<_>>>()?;
        Ok(Census { classes: classes.try_into().expect("one for each class") })
    }

    /// What is known of page `id`.
    pub(crate) fn known(&self, id: PageId) -> Known {
        match self.word(id) {
            Some((word, shift)) => Known::of(word.load(SeqCst) >> shift),
            None => Known::Renewed,
        }
    }

    /// Page `id` was met; returns what was known of it.
    pub(crate) fn meet(&self, id: PageId) -> Known {
        self.update(id, |known| if known == Known::Unmet { Known::Met } else { known })
    }

    /// Page `id` is about to come into being, or to be freed.
    pub(crate) fn renew(&self, id: PageId) {
        self.update(id, |_| Known::Renewed);
    }

    /// Page `head` is about to change hands with all that is under it.
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

    /// The pages that were passed on.
    pub(crate) fn passed_on(&self) -> impl Iterator<Item = PageId> + '_ {
        let ends = std::array::from_fn(|class| self.classes[class].end);
        ids_below(ends).filter(|&id| self.known(id) == Known::PassedOn)
    }

    /// The word of `id`, which may be any number, and where in it.
    fn word(&self, id: PageId) -> Option<(&AtomicU64, u64)> {
        let class = self.classes.get(id.class_index()).filter(|class| id.index() < class.end)?;
        let (word, at) = (id.index() / PAGES_PER_WORD, id.index() % PAGES_PER_WORD);
        Some((&class.words[word as usize], at * 2))
    }
}

/// Where those who change pages find the census, if there is one.
#[derive(Debug, Default)]
pub(super) struct CensusPlace {
    is_there: AtomicBool,
    census: RwLock<Option<Arc<Census>>>,
}

/// A census that is being kept; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Counting<'p> {
    pool: &'p Pool,
    pub(crate) census: Arc<Census>,
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        self.pool.census.is_there.store(false, SeqCst);
        *self.pool.census.census.write() = None;
    }
}

impl Pool {
    /// The census that is being kept, to be told of what changes hands.
    #[inline]
    pub(crate) fn census(&self) -> Option<Arc<Census>> {
        if self.census.is_there.load(SeqCst) { self.census.census.read().clone() } else { None }
    }

    /// Begins a census of all pages there are. One at a time; no commit is under way, and no page is being freed.
    pub(crate) fn count_pages(&self) -> Result<Counting<'_>> {
        let ends = self.ids.lock().ends();
        let census = Arc::new(Census::of(ends)?);
        *self.census.census.write() = Some(Arc::clone(&census));
        self.census.is_there.store(true, SeqCst);
        Ok(Counting { pool: self, census })
    }
}

impl Counting<'_> {
    /// Waits until every change is over that may not have told the census, and everything freed before it is gone.
    pub(crate) fn settle(&self) -> Result<()> {
        let pool = self.pool;
        let end = pool.wal.tail();
        let mut backoff = Backoff::new();
        loop {
            pool.check()?;
            pool.wal.flush_to(end)?;
            if pool.absorb(&mut pool.upkeep.lock()) >= end {
                return Ok(());
            }
            backoff.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SizeClass;

    #[test]
    fn the_last_change_counts_and_a_meeting_only_without_one() {
        let ends = [100, 1, 40, 1, 3, 1, 5, 1, 1, 2];
        let census = Census::of(ends).unwrap();
        for id in ids_below(ends) {
            assert_eq!(census.meet(id), Known::Unmet);
            assert_eq!(census.meet(id), Known::Met);
            census.renew(id);
            assert_eq!((census.meet(id), census.known(id)), (Known::Renewed, Known::Renewed));
            census.pass_on(id);
            assert_eq!((census.meet(id), census.known(id)), (Known::PassedOn, Known::PassedOn));
            assert!(census.passed_on().eq([id]), "neighbours are left alone");
            census.renew(id);
        }
        assert_eq!(census.passed_on().count(), 0);
        for (class, end) in SizeClass::all().zip(ends) {
            assert_eq!(census.meet(PageId::new(class, end)), Known::Renewed, "there was no such page");
        }
        assert_eq!(census.meet(PageId(u64::MAX)), Known::Renewed, "there can be no such page");
    }
}
