//! What a verification knows of each page, while others go on changing them: two bits a page.
//!
//! ```text
//!   unmet  <  met  <  passed on  <  renewed
//! ```
//!
//! - *Met*: it was found where it belongs.
//! - *Passed on*: the head of a long value, or the root of a table, that has changed hands since the verification
//!   began: between its table and the garbage tree. Which of the two it, and what is under it, was met in, if any, says
//!   nothing then.
//! - *Renewed*: it came into being or was freed since. Whoever it belonged to when it was met, or will belong to, all of
//!   that is right. So are pages that there was no id for when the verification began.
//!
//! What is known only ever goes up. Who changes a page's owner says so before the change is made, so whoever finds the
//! page where it is now finds that, too.
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
use super::pool::Pool;
use crate::error::{Error, Result};
use crate::ids::PageId;

const PAGES_PER_WORD: u64 = 32;

/// What is known of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Known {
    Unmet,
    Met,
    PassedOn,
    Renewed,
}

impl Known {
    fn of(bits: u64) -> Known {
        [Known::Unmet, Known::Met, Known::PassedOn, Known::Renewed][bits as usize & 3]
    }
}

/// What is known of all pages.
#[derive(Debug)]
pub(crate) struct Census {
    words: Box<[AtomicU64]>,
    /// Ids from here on were not in use when it began.
    end: u64,
}

impl Census {
    fn of(end: u64) -> Result<Census> {
        let count = end.div_ceil(PAGES_PER_WORD) as usize;
        let mut words = Vec::new();
        words.try_reserve_exact(count).map_err(|_| Error::Memory {
            bytes: count as u64 * 8,
            what: "a verification",
            source: std::io::ErrorKind::OutOfMemory.into(),
        })?;
        words.resize_with(count, AtomicU64::default);
        Ok(Census { words: words.into_boxed_slice(), end })
    }

    /// What is known of page `id`.
    pub(crate) fn known(&self, id: PageId) -> Known {
        match self.word(id) {
            Some((word, shift)) => Known::of(word.load(SeqCst) >> shift),
            None => Known::Renewed,
        }
    }

    /// Notes that page `id` is `now`, unless more is known; returns what was known.
    pub(crate) fn note(&self, id: PageId, now: Known) -> Known {
        let Some((word, shift)) = self.word(id) else { return Known::Renewed };
        let raise = |bits: u64| {
            let raised = (now as u64).max(bits >> shift & 3);
            Some(bits & !(3 << shift) | raised << shift)
        };
        let before = word.fetch_update(SeqCst, Relaxed, raise);
        Known::of(before.unwrap_or_else(|bits| bits) >> shift)
    }

    /// The pages that were passed on.
    pub(crate) fn passed_on(&self) -> impl Iterator<Item = PageId> + '_ {
        (1..self.end).map(PageId).filter(|&id| self.known(id) == Known::PassedOn)
    }

    fn word(&self, id: PageId) -> Option<(&AtomicU64, u64)> {
        (id.0 < self.end).then(|| (&self.words[(id.0 / PAGES_PER_WORD) as usize], id.0 % PAGES_PER_WORD * 2))
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
        let end = self.ids.lock().end;
        let census = Arc::new(Census::of(end)?);
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

    #[test]
    fn what_is_known_only_goes_up() {
        let census = Census::of(100).unwrap();
        let all = [Known::Unmet, Known::Met, Known::PassedOn, Known::Renewed];
        for (number, first) in (1..).zip(all) {
            for (offset, second) in (0..).zip(all) {
                let id = PageId(number * 10 + offset);
                assert_eq!(census.note(id, first), Known::Unmet);
                assert_eq!(census.note(id, second), first);
                assert_eq!(census.known(id), first.max(second));
            }
        }
        assert_eq!(census.known(PageId(15)), Known::Unmet, "neighbours are left alone");
        assert_eq!(census.note(PageId(100), Known::Met), Known::Renewed, "there was no such page");
        assert_eq!(census.passed_on().count(), 5);
    }
}
