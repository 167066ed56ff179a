//! One word per page: whether the page exists, and its guards.
//!
//! ```text
//!   63..16                               15         14..0
//!   number, 0: there is no such page     exclusive  shared guards
//! ```
//!
//! The number is unique within the process and part of every page name. So one comparison detects
//! the name of a freed page, even if its id was reused, and of another allocator's page. Threads
//! wait for guards here, since the pool's latches are held only briefly (`pool/pin.rs`). They
//! wait without a timeout for an exclusive guard to end, but only a while for one of [`PINS_MAX`]
//! shared ones: the thread itself may hold them all.

use std::io;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use std::time::{Duration, Instant};

use terrace_io::Region;

use crate::ids::{PageId, SizeClass};
use crate::pool::PINS_MAX;
use crate::pool::backoff::Backoff;

const NUMBER_SHIFT: u32 = 16;
const EXCLUSIVE: u64 = 1 << 15;
const SHARED: u64 = EXCLUSIVE - 1;
pub(super) const WORD_BYTES: u64 = 8;

/// The words of all pages, by class and index. Reserves addresses for all possible pages; only used
/// ones take memory.
#[derive(Debug)]
pub(super) struct PageWords(Vec<Region>);

/// A guard's hold on the word of its page.
#[derive(Debug)]
pub(super) struct Hold<'a> {
    word: &'a AtomicU64,
    exclusive: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The page does not have this number.
    Missing,
    /// The page kept [`PINS_MAX`] shared guards.
    Crowded,
}

/// A new number. At a million pages a second they last nine years.
pub(super) fn next_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    // Relaxed: the number only has to be unique.
    NUMBERS.fetch_add(1, Relaxed)
}

impl PageWords {
    /// Reserves words for `indexes_max` pages of each class.
    ///
    /// # Errors
    /// Those of [`Region::reserve_writable`].
    pub(super) fn reserve(indexes_max: impl Fn(SizeClass) -> u64) -> io::Result<PageWords> {
        let one = |class| Region::reserve_writable((indexes_max(class) * WORD_BYTES) as usize);
        Ok(PageWords(SizeClass::all().map(one).collect::<io::Result<_>>()?))
    }

    fn word(&self, id: PageId) -> Option<&AtomicU64> {
        let region = self.0.get(id.class_index())?;
        let at = usize::try_from(id.index().checked_mul(WORD_BYTES)?).ok()?;
        if at >= region.len() {
            return None;
        }
        region.words(at..at + WORD_BYTES as usize).first()
    }

    pub(super) fn begin(&self, id: PageId, number: u64) -> Hold<'_> {
        let word = self.word(id).expect("ids given out are within the words");
        debug_assert_eq!(word.load(Relaxed), 0);
        word.store(number << NUMBER_SHIFT | EXCLUSIVE, Release);
        Hold { word, exclusive: true }
    }

    pub(super) fn number(&self, id: PageId) -> Option<u64> {
        Some(self.word(id)?.load(Acquire) >> NUMBER_SHIFT).filter(|&number| number > 0)
    }

    pub(super) fn is(&self, id: PageId, number: u64) -> bool {
        self.word(id).is_some_and(|word| word.load(Acquire) >> NUMBER_SHIFT == number)
    }

    /// Takes a shared hold on page `id`.
    ///
    /// Waits for an exclusive one without a timeout, and for one of too many shared ones for
    /// `patience`.
    pub(super) fn share(&self, id: PageId, number: u64, patience: Duration) -> Result<Hold<'_>, Refused> {
        let mut crowded_since = None;
        let next = |word| {
            if word & EXCLUSIVE != 0 {
                crowded_since = None;
                Next::Wait
            } else if word & SHARED < PINS_MAX {
                crowded_since = None;
                Next::Take(word + 1)
            } else if crowded_since.get_or_insert_with(Instant::now).elapsed() >= patience {
                Next::GiveUp
            } else {
                Next::Wait
            }
        };
        let word = self.acquire(id, number, next)?;
        Ok(Hold { word, exclusive: false })
    }

    /// The exclusive hold on page `id`; waits for all others.
    pub(super) fn exclude(&self, id: PageId, number: u64) -> Result<Hold<'_>, Refused> {
        let next = |word| match word & (EXCLUSIVE | SHARED) {
            0 => Next::Take(word | EXCLUSIVE),
            _ => Next::Wait,
        };
        let word = self.acquire(id, number, next)?;
        Ok(Hold { word, exclusive: true })
    }

    /// Acquire: pairs with the Release of the previous guard's end, and so shows its writes.
    fn acquire(
        &self,
        id: PageId,
        number: u64,
        mut next: impl FnMut(u64) -> Next,
    ) -> Result<&AtomicU64, Refused> {
        let word = self.word(id).ok_or(Refused::Missing)?;
        let mut backoff = Backoff::new();
        let mut now = word.load(Relaxed);
        loop {
            if now >> NUMBER_SHIFT != number {
                return Err(Refused::Missing);
            }
            match next(now) {
                Next::Take(next) => match word.compare_exchange_weak(now, next, AcqRel, Relaxed) {
                    Ok(_) => return Ok(word),
                    Err(other) => now = other,
                },
                Next::Wait => {
                    backoff.wait();
                    now = word.load(Relaxed);
                }
                Next::GiveUp => return Err(Refused::Crowded),
            }
        }
    }
}

enum Next {
    Take(u64),
    Wait,
    GiveUp,
}

impl Hold<'_> {
    /// Ends the page; threads that wait for it are refused.
    pub(super) fn end(self) {
        debug_assert!(self.exclusive);
        self.word.store(0, Release);
        std::mem::forget(self);
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if self.exclusive {
            self.word.fetch_and(!EXCLUSIVE, Release);
        } else {
            self.word.fetch_sub(1, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_knows_its_page_and_who_holds_it() {
        let words = PageWords::reserve(|_| 1024).unwrap();
        let id = PageId::new(SizeClass::SMALLEST, 7);
        let share = |number| words.share(id, number, Duration::ZERO);
        assert!(!words.is(id, 3) && share(3).is_err());
        let begun = words.begin(id, 3);
        assert!(words.is(id, 3) && !words.is(id, 4));
        drop(begun);
        let shared = [share(3).unwrap(), share(3).unwrap()];
        assert_eq!(words.word(id).unwrap().load(Relaxed), 3 << NUMBER_SHIFT | 2);
        drop(shared);
        words.exclude(id, 3).unwrap().end();
        assert!(share(3).is_err() && words.exclude(id, 3).is_err());
        words.begin(id, 4);
        assert_eq!(share(3).unwrap_err(), Refused::Missing, "the id is another page's");
    }

    #[test]
    fn one_shared_hold_too_many_is_refused_after_a_while_and_given_when_another_goes() {
        let words = PageWords::reserve(|_| 1024).unwrap();
        let id = PageId::new(SizeClass::SMALLEST, 7);
        drop(words.begin(id, 3));
        let mut holds: Vec<Hold> =
            (0..PINS_MAX).map(|_| words.share(id, 3, Duration::ZERO).unwrap()).collect();
        for patience in [Duration::ZERO, Duration::from_millis(1)] {
            assert_eq!(words.share(id, 3, patience).unwrap_err(), Refused::Crowded);
        }
        // Refused holds took nothing, and a waiting one gets the next release.
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| words.share(id, 3, Duration::MAX).map(drop));
            holds.pop();
            assert_eq!(waiting.join().unwrap(), Ok(()));
        });
        drop(holds);
        words.exclude(id, 3).unwrap().end();
    }

    #[test]
    fn ids_that_no_page_can_have_have_no_word() {
        let words = PageWords::reserve(|_| 1024).unwrap();
        for index in [1024, 1 << 40, (1 << 56) - 1] {
            let share = words.share(PageId::new(SizeClass::LARGEST, index), 1, Duration::ZERO);
            assert_eq!(share.unwrap_err(), Refused::Missing);
        }
        assert!(words.share(PageId(u64::MAX), 1, Duration::ZERO).is_err());
    }
}
