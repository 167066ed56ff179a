//! Serves the pool's requests for frames, log space and room.

use std::time::{Duration, Instant};

use super::rounds::Maintenance;
use crate::error::{Error, Result};
use crate::ids::{PageId, SizeClass};
use crate::pool::partition::Partition;
use crate::pool::patience::{Patience, WAIT_MAX};
use crate::pool::requests::{Attempt, Maintainer};

const ROOM_ROUNDS: u64 = 50;
/// Minimum wait, since rounds may be short, and maximum wait, since a device may hang.
const ROOM_WAIT: std::ops::RangeInclusive<Duration> = Duration::from_millis(250)..=Duration::from_secs(20);

impl Maintainer for Maintenance {
    fn clean_frames(&self, partition: Partition, urgent: bool) -> Result<()> {
        let mut round_state = self.round_state.lock();
        self.clean_ahead_of(&mut round_state, partition, urgent)
    }

    fn write_out(&self, pages: &[PageId]) -> Result<()> {
        let mut round_state = self.round_state.lock();
        self.write_back(&mut round_state, pages)?;
        // Each batch logs its mapping, and inline no other thread cuts the log.
        self.checkpoint_step(&mut round_state)
    }

    /// `turn`: whether the caller is first in line; sleeps briefly if not. `attempt` tries the
    /// reservation. A log in which it can never fit grows first.
    fn wait_for_log(&self, bytes: u64, turn: &dyn Fn() -> bool, attempt: Attempt<'_>) -> Result<()> {
        if self.requests.is_recovering() {
            return self.find_log_in_recovery(attempt);
        }
        if bytes > self.wal.max_reservation_now() {
            self.lengthen_log(bytes.saturating_mul(2))?;
        }
        let mut patience = Patience::new(self.requests.works_inline());
        let (mut full_since, mut asked_backup) = (None, false);
        loop {
            let spent = patience.spent(self.pool.log_progress(), WAIT_MAX);
            let (rounds, is_full) = {
                let state = self.requests.wake_up.state.lock();
                (state.rounds, state.is_full)
            };
            // Reported only after several rounds without progress.
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
            if !turn() {
                self.pool.check()?;
                continue;
            }
            if attempt() {
                return Ok(());
            }
            self.wait_for_log_space()?;
        }
    }

    /// Waits for rounds too: on a busy machine the maintenance thread may not run in that time.
    fn wait_for_room(&self) -> Result<()> {
        if self.room.changes_find_room() {
            return Ok(());
        }
        let rounds = || self.requests.wake_up.state.lock().rounds;
        let (last, since) = (rounds() + ROOM_ROUNDS, Instant::now());
        let goes_on = || {
            let waited = since.elapsed();
            let is_soon = rounds() < last || waited < *ROOM_WAIT.start() && !self.requests.works_inline();
            is_soon && waited < *ROOM_WAIT.end()
        };
        while goes_on() {
            self.wait_for_log_space()?;
            if self.room.changes_find_room() {
                return Ok(());
            }
        }
        let what = "changed pages have become longer, and find no room in the page file";
        Err(Error::Full { what: what.into() })
    }

    fn absorb_freed(&self) {
        self.absorb(&mut self.round_state.lock());
    }

    // The next owner needs the class before it reads the log, which may be the only record of it.
    fn announce(&self, class: SizeClass) -> Result<()> {
        let mut round_state = self.round_state.lock();
        if round_state.superblock.page_ids_end[class.index()] > 1 {
            return Ok(());
        }
        let cut = self.wal.cut();
        self.put_superblock(&mut round_state, cut)
    }

    fn ensure_log_capacity(&self, bytes: u64) -> Result<()> {
        self.lengthen_log(bytes)
    }

    #[cfg(test)]
    fn is_busy(&self) -> bool {
        self.round_state.try_lock().is_none()
    }
}
