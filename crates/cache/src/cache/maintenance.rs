//! Syncs, maintenance, closing and sessions.

use std::io;
use std::time::Duration;

use parking_lot::MutexGuard;

use super::guard::GuardState;
use super::{CacheError, Cached};
use terrace_io::BlockDevice;

const ROUND_INTERVAL: Duration = Duration::from_secs(5);

impl Cached {
    /// Makes all writes durable: on the slow device, or with write-back on the fast one.
    ///
    /// Also makes a round if one is due, which syncs the fast device.
    ///
    /// # Errors
    /// Errors of the slow device; writes since the last sync are then in doubt and no longer
    /// cached. Also fails if dirty blocks are on a failed fast device.
    pub fn flush(&self) -> io::Result<()> {
        let mut last = self.back.syncs.lock();
        match self.back.is_on() {
            true => self.back.sync_where_asked(&last)?,
            false => self.service.sync_slow()?,
        }
        let now = self.blocks.config.clock.now();
        // With write-back, leave the round to `maintain`, which also writes dirty blocks back.
        let interval = if self.back.is_on() { 2 * ROUND_INTERVAL } else { ROUND_INTERVAL };
        if now.saturating_sub(*last) >= interval {
            *last = now;
            self.service.remove_marks(false);
        }
        Ok(())
    }

    /// Reports hits, writes dirty blocks back, and makes a round.
    ///
    /// After this, blocks not written lately stay warm even if the power fails. Call it from time
    /// to time if syncs are rare or blocks are written back.
    pub fn maintain(&self) {
        self.maintain_locked(&mut self.back.syncs.lock());
    }

    /// Like [`Cached::maintain`], at most every five seconds, and in one thread at a time.
    ///
    /// Rounds of [`Cached::flush`] count. Call it as often as convenient.
    pub fn maintain_if_needed(&self) {
        if let Some(mut last) = self.back.syncs.try_lock()
            && self.blocks.config.clock.now().saturating_sub(*last) >= ROUND_INTERVAL
        {
            self.maintain_locked(&mut last);
        }
    }

    fn maintain_locked(&self, last: &mut MutexGuard<'_, Duration>) {
        **last = self.blocks.config.clock.now();
        if let Err(error) = self.back.drain_locked(last) {
            tracing::warn!(%error, "dirty blocks cannot be written back");
        }
        self.blocks.report_hits();
        self.service.remove_marks(false);
    }

    /// Makes all writes durable on both devices, so that the next opening is warm.
    ///
    /// The cache remains usable.
    ///
    /// # Errors
    /// [`CacheError::Slow`] when the slow device fails.
    pub fn close(&self) -> Result<(), CacheError> {
        let syncs = self.back.syncs.lock();
        let of_slow = |source| CacheError::Slow { device: self.blocks.slow.name().to_owned(), source };
        let flagged = self.back.drain_for_good(&syncs).map_err(of_slow)?;
        self.service.sync_slow().and_then(|()| self.back.pay_error()).map_err(of_slow)?;
        self.service.remove_marks(true);
        self.blocks.report_hits();
        // A copy made while the cache was open must not count as its present state.
        self.service.journal.draw_session();
        // Only a new half records which blocks were hit. It also syncs the marks.
        if let Err(error) =
            self.service.journal.begin_half(&*self.blocks.fast, &self.blocks.index, &self.blocks.placement)
        {
            self.service.give_up("closing the journal", &error);
        }
        self.back.unflag(flagged).map_err(of_slow)
    }

    /// Like [`Cached::close`], but puts the cache out of service and unlocks its file.
    ///
    /// Remaining handles of this cache must not write.
    ///
    /// # Errors
    /// As [`Cached::close`]. Even then the cache is out of service, unless it has dirty blocks.
    pub fn retire(&self) -> Result<(), CacheError> {
        let closed = self.close();
        if closed.is_err()
            && !self.service.is_out_of_service()
            && !self.blocks.placement.lock().dirty().is_empty()
        {
            // The slow device alone would be outdated, so remaining users need the cache.
            return closed;
        }
        self.service.retire();
        self.lock.lock().take();
        closed
    }

    /// The cache's session, a random number for each opening and close.
    ///
    /// Without a [guard](super::CacheConfig::guard), store it durably before the slow device is
    /// written, where it is not restored with the cache's file. Then call
    /// [`Cached::session_noted`], and pass it to the next opening
    /// ([`CacheConfig::session`](super::CacheConfig::session)). `None` if the cache's device is
    /// unusable.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use terrace_cache::{CacheConfig, Cached};
    /// use terrace_io::MemoryDevice;
    ///
    /// let slow = Arc::new(MemoryDevice::new("database", 1 << 20));
    /// let fast = Arc::new(MemoryDevice::new("cache", 0));
    /// let cached = Cached::open(slow.clone(), fast.clone(), CacheConfig::new(64))?;
    /// cached.session_noted();
    /// cached.close()?;
    /// let config = CacheConfig { session: cached.session(), ..CacheConfig::new(64) };
    /// let again = Cached::open(slow, fast, config)?;
    /// assert_ne!(again.session(), cached.session());
    /// # Ok::<(), terrace_cache::CacheError>(())
    /// ```
    pub fn session(&self) -> Option<u64> {
        self.service.guard_name().map(|name| name.session)
    }

    /// Whether the fast device is in use; it no longer is after it has failed.
    pub fn is_in_service(&self) -> bool {
        !self.service.is_out_of_service()
    }

    /// Reports that [`Cached::session`] is stored durably; the previous session expires.
    pub fn session_noted(&self) {
        self.service.session_noted();
    }

    /// The number of this opening's first step; afterwards 0.
    ///
    /// Also 0 for owners that do not count
    /// ([`CacheConfig::progress`](super::CacheConfig::progress)).
    pub fn first_step(&self) -> u64 {
        self.service.journal.first_step()
    }

    /// Reports a step of the slow device ([`CacheConfig::progress`](super::CacheConfig::progress)).
    ///
    /// Durable on the fast device on return. Call it when the step is durable and before the next
    /// one begins.
    pub fn progress(&self, progress: u64) {
        if self.service.is_out_of_service() {
            return;
        }
        if let Err(error) = self.service.journal.set_progress(&*self.blocks.fast, progress) {
            self.service.give_up("writing the superblock", &error);
        }
    }

    /// Revokes all caches of `guard`, durably, before the slow device is written without one.
    ///
    /// # Errors
    /// Errors of `guard`. Also fails if the slow device needs its cache; then do not write to it.
    pub fn revoke_all(guard: &dyn BlockDevice) -> io::Result<()> {
        match GuardState::read(guard)? {
            GuardState::NoCache => Ok(()),
            guard_says if guard_says.needed().is_some() => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "{}: a block cache has blocks that were not yet written back; open it with that cache",
                    guard.name()
                ),
            )),
            GuardState::Damaged => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{}: damaged; if no block cache writes back it may be removed", guard.name()),
            )),
            _ => GuardState::NoCache.write(guard),
        }
    }
}
