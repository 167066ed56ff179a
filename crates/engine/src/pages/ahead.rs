//! Reading ahead of a scan: parts of what is scanned are brought into memory by other threads while one looks at the parts before.
//!
//! A part on its way waits for the disk for half of its time only; before that memory is found for it, afterwards it is checked and
//! copied. So one part at a time leaves the disk idle for the other half, and a scan has [`READERS`] threads that each
//! bring in a part: one has the disk busy while the other does not.
//!
//! ```text
//!   parts      0    1    2    3    4    5    6
//!              shown    shows  <-- DEPTH -->
//!                       k      k + 1  k + 2    not before k was shown
//! ```
//!
//! **Protocol.** Parts are taken in their order, under the lock, by a reader or by the scan itself, which takes the one it is about to
//! look at if nobody has: so a scan goes on where no thread can be had. What became of a part is noted when it is there, and the scan
//! takes the notes in order; it learns of what went wrong with a part when it comes to it, and of nothing behind the part
//! at which it ends. No part is taken that is [`DEPTH`] or more behind the one that is looked at, since what is brought in
//! too early is gone again when it is wanted, and takes the memory of others.
//!
//! **End.** [`Ahead::stop`] is called when the scan ends, however it does, also by a panic of what is shown; readers then finish the
//! part that they are at and return. The scan waits for them, since they borrow what it borrows. A reader that panics has the
//! scan panic when it comes to that part, and not wait for ever.
//!
//! The lock is held for looking at numbers only, and never together with another.

use parking_lot::{Condvar, Mutex};

use crate::error::Result;

/// Threads that read ahead of one scan.
pub(super) const READERS: usize = 2;
/// Parts that are looked at or on their way at the same time: one for each reader, and the one the scan looks at.
pub(super) const DEPTH: usize = READERS + 1;

/// How far the scan and its readers are.
#[derive(Debug)]
pub(super) struct Ahead {
    /// Parts there are.
    count: usize,
    state: Mutex<State>,
    /// A part was shown, or the scan is over.
    shown: Condvar,
    /// A part is there.
    there: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The first part that nobody has taken.
    next: usize,
    /// Parts that were shown: the scan is at the next.
    shown: usize,
    /// What became of the parts from there on, each at its number modulo `DEPTH`.
    outcomes: [Option<Result<()>>; DEPTH],
    stopped: bool,
    /// A reader has panicked.
    broken: bool,
}

/// A part that somebody is bringing in.
struct Taken<'a> {
    ahead: &'a Ahead,
    part: usize,
}

impl Taken<'_> {
    fn ended(self, outcome: Result<()>) {
        self.ahead.state.lock().outcomes[self.part % DEPTH] = Some(outcome);
        self.ahead.there.notify_all();
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.ahead.state.lock().broken = true;
            self.ahead.there.notify_all();
        }
    }
}

/// Tells the readers that the scan is over when dropped.
pub(super) struct Stop<'a>(&'a Ahead);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.state.lock().stopped = true;
        self.0.shown.notify_all();
    }
}

impl Ahead {
    /// Of a scan of so many parts.
    pub(super) fn of(count: usize) -> Ahead {
        Ahead { count, state: Mutex::default(), shown: Condvar::new(), there: Condvar::new() }
    }

    /// Ends the readers when it is dropped.
    pub(super) fn stop(&self) -> Stop<'_> {
        Stop(self)
    }

    /// What a reader does: it has `bring` bring in one part after the other until there are no more, or the scan is over.
    pub(super) fn read(&self, bring: impl Fn(usize) -> Result<()>) {
        while let Some(taken) = self.take() {
            let outcome = bring(taken.part);
            taken.ended(outcome);
        }
    }

    fn take(&self) -> Option<Taken<'_>> {
        let mut state = self.state.lock();
        while !state.stopped && state.next < self.count && state.next >= state.shown + DEPTH {
            self.shown.wait(&mut state);
        }
        let part = state.next;
        if state.stopped || part >= self.count {
            return None;
        }
        state.next += 1;
        Some(Taken { ahead: self, part })
    }

    /// Returns when the part that the scan comes to is there: brought in by a reader, or here.
    ///
    /// # Errors
    /// Those of `bring`.
    pub(super) fn wait(&self, bring: impl Fn(usize) -> Result<()>) -> Result<()> {
        let mut state = self.state.lock();
        let part = state.shown;
        if state.next == part {
            state.next += 1;
            drop(state);
            return bring(part);
        }
        loop {
            if let Some(outcome) = state.outcomes[part % DEPTH].take() {
                return outcome;
            }
            assert!(!state.broken, "a thread that read ahead of a scan panicked");
            self.there.wait(&mut state);
        }
    }

    /// The part that was waited for has been looked at.
    pub(super) fn shown(&self) {
        self.state.lock().shown += 1;
        self.shown.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::thread;

    use super::*;
    use crate::error::Error;

    /// Scans `count` parts with so many readers; what each was brought and shown as, until one fails.
    fn scan(
        count: usize,
        readers: usize,
        bring: impl Fn(usize) -> Result<()> + Sync,
        mut show: impl FnMut(usize),
    ) -> Result<usize> {
        let ahead = Ahead::of(count);
        thread::scope(|scope| {
            let _stop = ahead.stop();
            for _ in 0..readers {
                scope.spawn(|| ahead.read(&bring));
            }
            for part in 0..count {
                ahead.wait(&bring)?;
                show(part);
                ahead.shown();
            }
            Ok(count)
        })
    }

    #[test]
    fn each_part_is_brought_once_and_before_it_is_shown_and_none_too_early() {
        for readers in 0..4 {
            for count in [0, 1, 2, DEPTH, 100] {
                let brought: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                let at = AtomicUsize::new(0);
                let bring = |part: usize| {
                    assert!(part < at.load(SeqCst) + DEPTH, "part {part} while part {at:?} is shown");
                    thread::yield_now();
                    brought[part].fetch_add(1, SeqCst);
                    Ok(())
                };
                let show = |part: usize| {
                    assert_eq!(brought[part].load(SeqCst), 1);
                    at.store(part + 1, SeqCst);
                };
                assert_eq!(scan(count, readers, bring, show).unwrap(), count);
                assert!(brought.iter().all(|times| times.load(SeqCst) == 1));
            }
        }
    }

    #[test]
    fn a_part_that_fails_ends_the_scan_there_and_its_readers() {
        for readers in 0..3 {
            let bring = |part: usize| match part {
                7 | 8 => Err(Error::PageNotFound { page: part as u64 }),
                _ => Ok(()),
            };
            let mut shown = Vec::new();
            let ended = scan(20, readers, bring, |part| shown.push(part));
            assert!(matches!(ended, Err(Error::PageNotFound { page: 7 })), "{readers} {ended:?}");
            assert_eq!(shown, (0..7).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_panic_of_whoever_shows_or_reads_ends_both() {
        let shows = thread::spawn(|| scan(50, READERS, |_| Ok(()), |part| assert!(part < 5, "shown")));
        assert!(shows.join().is_err());
        // The scan may be the one that brings it, or a reader.
        let reads = thread::spawn(|| {
            let bring = |part: usize| {
                assert!(part < 5, "read");
                Ok(())
            };
            scan(50, READERS, bring, |part| assert!(part < 5))
        });
        assert!(reads.join().is_err());
    }
}
