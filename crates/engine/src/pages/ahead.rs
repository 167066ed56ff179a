//! Read-ahead of a scan: other threads load the next parts.
//!
//! A part waits for the disk only half of the time, so [`READERS`] threads keep the disk busy.
//!
//! ```text
//!   parts      0    1    2    3    4    5    6
//!              shown    shows  <-- DEPTH -->
//!                       k      k + 1  k + 2    not before k was shown
//! ```
//!
//! Readers take parts in order, under the lock. The scan takes its own next part if no reader has,
//! so it proceeds without threads. It reads the outcomes in order, and so no error behind the part
//! at which it ends. No part is taken [`DEPTH`] or more ahead: it would be evicted before use.
//!
//! [`Ahead::stop`] runs whenever the scan ends, even by a panic. The scan waits for the readers,
//! since they borrow from it. If a reader panics, so does the scan at that part.
//!
//! The lock is held briefly, and never together with another.

use parking_lot::{Condvar, Mutex};

use crate::error::Result;

pub(super) const READERS: usize = 2;
/// Parts in use at once: one for each reader, and one for the scan.
pub(super) const DEPTH: usize = READERS + 1;

#[derive(Debug)]
pub(super) struct Ahead {
    count: usize,
    state: Mutex<State>,
    shown: Condvar,
    there: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The first part not taken.
    next: usize,
    /// Parts shown: the scan is at the next.
    shown: usize,
    /// Outcomes of the parts from there, at their number modulo `DEPTH`.
    outcomes: [Option<Result<()>>; DEPTH],
    stopped: bool,
    broken: bool,
}

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

pub(super) struct Retry<'a>(&'a Ahead);

impl Drop for Retry<'_> {
    fn drop(&mut self) {
        self.0.state.lock().stopped = true;
        self.0.shown.notify_all();
    }
}

impl Ahead {
    pub(super) fn of(count: usize) -> Ahead {
        Ahead { count, state: Mutex::default(), shown: Condvar::new(), there: Condvar::new() }
    }

    /// Ends the readers when the result is dropped.
    pub(super) fn stop(&self) -> Retry<'_> {
        Retry(self)
    }

    /// A reader's loop: calls `bring` for each part until the scan ends.
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

    /// Waits until a reader or this call has loaded the next part.
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

    /// Scans `count` parts with `readers` threads; returns those loaded and shown.
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
        // The scan or a reader may load it.
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
