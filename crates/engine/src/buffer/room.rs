//! Waiting for log space, and for room in the page file.
//!
//! Commits that find no log space stand in line, so that one that needs much is not passed for ever by those that need
//! little. Only the first in line asks for the log to be cut. Structure modifications do not stand in line: a commit under
//! way, which holds the log, may be waiting for one.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::patience::{Patience, WAIT_MAX};
use super::pool::Pool;
use crate::error::{Error, Result};
use crate::wal::{Class, Reservation};

/// Rounds of the upkeep that a commit waits for room in the page file, which only a longer file brings, or what is freed,
/// or a latch that is let go of.
const ROOM_ROUNDS: u64 = 50;
/// And how long at least, since rounds may be short, and at most, since a device may hang.
const ROOM_WAIT: std::ops::RangeInclusive<Duration> = Duration::from_millis(250)..=Duration::from_secs(20);
/// The longest that somebody in line goes without looking.
const NAP: Duration = Duration::from_millis(5);

/// Those that wait for log space, the first to come first.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// How many there are, for those that come by.
    length: AtomicUsize,
    state: Mutex<LineState>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct LineState {
    numbers: VecDeque<u64>,
    next: u64,
}

/// A place in line. Dropping it leaves.
struct Turn<'l> {
    line: &'l Line,
    number: u64,
}

impl Line {
    fn is_empty(&self) -> bool {
        self.length.load(SeqCst) == 0
    }

    fn enter(&self) -> Turn<'_> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.numbers.push_back(number);
        self.length.store(state.numbers.len(), SeqCst);
        Turn { line: self, number }
    }
}

impl Turn<'_> {
    /// Whether this is the first in line, after a little while if it is not.
    fn has_come(&self) -> bool {
        let mut state = self.line.state.lock();
        let is_first = |state: &LineState| state.numbers.front() == Some(&self.number);
        if !is_first(&state) {
            self.line.moved.wait_for(&mut state, NAP);
        }
        is_first(&state)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.line.state.lock();
        state.numbers.retain(|&number| number != self.number);
        self.line.length.store(state.numbers.len(), SeqCst);
        drop(state);
        self.line.moved.notify_all();
    }
}

impl Pool {
    /// Waits for log space for `bytes` bytes of a commit, and until what is changed by now finds room in the page file. The
    /// caller holds no latch and nothing in flight.
    pub(crate) fn reserve_log(&self, bytes: u64) -> Result<Reservation<'_>> {
        if !self.changes_find_room() {
            self.wait_for_room()?;
        }
        self.reserve_log_to_free(bytes)
    }

    /// The same for what frees pages, and so may make that room.
    ///
    /// # Errors
    /// [`Error::TransactionTooLarge`]; [`Error::Full`] if the log cannot be cut because the disk is full;
    /// [`Error::OutOfLog`] if it cannot be cut for another reason for [`WAIT_MAX`]; [`Error::Poisoned`].
    pub(crate) fn reserve_log_to_free(&self, bytes: u64) -> Result<Reservation<'_>> {
        let most = self.wal.max_reservation();
        if bytes > most {
            return Err(Error::TransactionTooLarge { bytes, max: most });
        }
        if self.log_line.is_empty()
            && let Some(reservation) = self.wal.reserve(bytes, Class::Commit)
        {
            return Ok(reservation);
        }
        let turn = self.log_line.enter();
        self.wait_for_log(bytes, Class::Commit, || turn.has_come())
    }

    /// Log space for a change of a tree's structure, or of recovery. Waits; the caller holds no latch, but may have a
    /// transaction under way.
    ///
    /// # Errors
    /// As [`Pool::reserve_log_to_free`].
    pub(crate) fn reserve_log_for_structure(&self, bytes: u64) -> Result<Reservation<'_>> {
        let class = if self.is_recovering() { Class::System } else { Class::Structure };
        match self.wal.reserve(bytes, class) {
            Some(reservation) => Ok(reservation),
            None => self.check().and_then(|()| self.wait_for_log(bytes, class, || true)),
        }
    }

    /// Waits until there is log space, and it is the caller's turn to have it.
    fn wait_for_log(&self, bytes: u64, class: Class, has_turn: impl Fn() -> bool) -> Result<Reservation<'_>> {
        let mut patience = Patience::new(self.works_inline());
        let (mut full_since, mut asked_backup) = (None, false);
        loop {
            let spent = patience.spent(self.log_progress(), WAIT_MAX);
            let (rounds, is_full) = {
                let rung = self.bell.rung.lock();
                (rung.rounds, rung.is_full)
            };
            // The upkeep says so round after round, and nothing has moved since it first did.
            full_since = match full_since {
                _ if !is_full || spent == 0.0 => None,
                None => Some((rounds, Instant::now())),
                since => since,
            };
            let is_full_for_long = full_since.is_some_and(|(first, since)| {
                rounds >= first + ROOM_ROUNDS && since.elapsed() >= *ROOM_WAIT.start()
            });
            if is_full_for_long || is_full && spent >= 1.0 {
                let what = "the log cannot be cut, because changed pages find no room in the page file";
                return Err(Error::Full { what: what.into() });
            }
            if spent >= 1.0 {
                let held = self.wal.tail().0 - self.wal.cut().0;
                let what = format!("no {bytes} bytes of the log came free: {held} bytes of it are in use");
                return Err(Error::OutOfLog { what });
            }
            if spent > 0.5 && !std::mem::replace(&mut asked_backup, true) {
                self.take_log_from_backup();
            }
            if !has_turn() {
                self.check()?;
                continue;
            }
            if let Some(reservation) = self.wal.reserve(bytes, class) {
                return Ok(reservation);
            }
            self.wait_for_log_space()?;
        }
    }

    /// How far those have come who use log space or make it free.
    pub(super) fn log_progress(&self) -> (u64, u64, u64) {
        (self.wal.cut().0, self.wal.tail().0, self.stats.images_written.load(Relaxed))
    }

    /// Waits for rounds, not for a time alone: on a busy machine the thread that makes room may not have run once in that.
    fn wait_for_room(&self) -> Result<()> {
        let rounds = || self.bell.rung.lock().rounds;
        let (last, since) = (rounds() + ROOM_ROUNDS, Instant::now());
        let goes_on = || {
            let waited = since.elapsed();
            let is_soon = rounds() < last || waited < *ROOM_WAIT.start() && !self.works_inline();
            is_soon && waited < *ROOM_WAIT.end()
        };
        while goes_on() {
            self.wait_for_log_space()?;
            if self.changes_find_room() {
                return Ok(());
            }
        }
        let what = "changed pages have become longer, and find no room in the page file";
        Err(Error::Full { what: what.into() })
    }
}
