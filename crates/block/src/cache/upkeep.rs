//! Syncs, the journal's pages, the marks of regions, and what is done when the fast device fails.
//!
//! A failing read of the fast device costs the block its slot and nothing else, and neither does a failing write of a
//! block. What must not fail is what keeps the next life of the cache from serving old blocks: a mark, a page of the journal that says
//! that a block has left its slot, a sync. If one of these fails, the cache is *given up*: it is revoked, so that nothing on
//! the fast device is ever used again, and from then on everything goes to the slow device.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::MutexGuard;

use super::guard::{Name, Revoked};
use super::index::{BLOCKS_MAX, State};
use super::layout::Superblock;
use super::regions::Mark;
use super::{CacheError, Cached};
use crate::BlockDevice;
use crate::planted::{CacheBug, planted};

/// Marks are taken off at most once in this time.
const SETTLE_INTERVAL: Duration = Duration::from_secs(5);

/// Errors of the fast device after which it is not asked any more.
const FAST_ERRORS_MAX: u64 = 1000;

impl Cached {
    /// Whether everything goes to the slow device.
    pub(super) fn is_out_of_service(&self) -> bool {
        self.service.get().is_some()
    }

    pub(super) fn is_in_doubt(&self, block: u64) -> bool {
        !planted(CacheBug::TrustFailedSync) && self.regions.is_in_doubt(block << self.block_shift)
    }

    /// Makes the fast device say what the cache begins with.
    pub(super) fn enter_service(&self) -> Result<(), CacheError> {
        self.journal.draw_session();
        let made = self.journal.begin_half(&*self.fast, &self.index, &self.placement);
        match made.and_then(|()| self.regions.write_all(&*self.fast)) {
            Ok(()) => {}
            Err(error) => {
                self.give_up("beginning the journal", &error);
                return Ok(());
            }
        }
        let device = || self.config.guard.as_ref().map_or_else(String::new, |guard| guard.name().to_owned());
        self.name_in_guard().map_err(|source| CacheError::Slow { device: device(), source })
    }

    /// What the guard calls the cache, unless the fast device could not be used from the start.
    pub(super) fn guard_name(&self) -> Option<Name> {
        self.has_journal.then(|| self.journal.name())
    }

    /// The cache's session: a number that is drawn at each opening and each close. Who has no [guard](super::CacheConfig::guard)
    /// keeps it where a copy of the cache's file put back is not, durably before the slow device is written, then calls
    /// [`Cached::session_noted`], and gives it to the next opening ([`CacheConfig::session`](super::CacheConfig::session)). `None` for
    /// a cache whose device cannot be used.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use terrace_block::{CacheConfig, Cached, MemoryDevice};
    ///
    /// let slow = Arc::new(MemoryDevice::new("database", 1 << 20));
    /// let fast = Arc::new(MemoryDevice::new("cache", 0));
    /// let cached = Cached::open(slow.clone(), fast.clone(), CacheConfig::new(64))?;
    /// cached.session_noted();
    /// cached.close()?;
    /// let config = CacheConfig { session: cached.session(), ..CacheConfig::new(64) };
    /// let again = Cached::open(slow, fast, config)?;
    /// assert_ne!(again.session(), cached.session());
    /// # Ok::<(), terrace_block::CacheError>(())
    /// ```
    pub fn session(&self) -> Option<u64> {
        self.guard_name().map(|name| name.session)
    }

    /// [`Cached::session`] has been noted durably: the cache does not fit the session before any more.
    pub fn session_noted(&self) {
        if self.is_out_of_service() || planted(CacheBug::KeepSession) {
            return;
        }
        if let Err(error) = self.journal.end_session_before(&*self.fast) {
            self.give_up("writing the superblock", &error);
        }
    }

    /// The number that the first step of the slow device has in this opening; 0 after that, and for owners that do not count
    /// ([`CacheConfig::progress`](super::CacheConfig::progress)).
    pub fn first_step(&self) -> u64 {
        self.journal.first_step()
    }

    /// The slow device has made a step: see [`CacheConfig::progress`](super::CacheConfig::progress). Durable on the fast device
    /// when this returns. To be called when the step is durable, and before the next is begun.
    pub fn progress(&self, progress: u64) {
        if self.is_out_of_service() {
            return;
        }
        if let Err(error) = self.journal.set_progress(&*self.fast, progress) {
            self.give_up("writing the superblock", &error);
        }
    }

    /// The slow device is about to be written without a cache: none that was used with this `guard` is used with what it has
    /// now. Durable when this returns.
    ///
    /// # Errors
    /// Those of `guard`, and one if the slow device is not complete without its cache; then the slow device must not be written.
    pub fn revoke_all(guard: &dyn BlockDevice) -> io::Result<()> {
        match Revoked::read(guard)? {
            Revoked::All => Ok(()),
            guard_says if guard_says.needed().is_some() => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "{}: a block cache has blocks that were not yet written back; open it with that cache",
                    guard.name()
                ),
            )),
            Revoked::Unknown => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{}: damaged; if no block cache writes back it may be removed", guard.name()),
            )),
            _ => Revoked::All.write(guard),
        }
    }

    /// Makes everything that was written durable: on the slow device, or, where it was asked to be written back, on the fast
    /// one. Now and then takes marks off, which takes a sync of the fast device.
    ///
    /// # Errors
    /// Those of the slow device. What was written since the last sync is then in doubt, and is not cached any more. And one if blocks
    /// that were to be written back are on a fast device that has failed.
    pub fn flush(&self) -> io::Result<()> {
        let mut last = self.syncs.lock();
        match self.back.is_on() {
            true => self.sync_where_asked(&last)?,
            false => self.sync_slow()?,
        }
        let now = self.config.clock.now();
        // Where blocks are written back the round is left to who tends, if somebody does: it has them written, too.
        let interval = if self.back.is_on() { 2 * SETTLE_INTERVAL } else { SETTLE_INTERVAL };
        if now.saturating_sub(*last) >= interval {
            *last = now;
            self.settle(false);
        }
        Ok(())
    }

    /// Reports hits to the policy, and makes what the cache knows durable: after this, what has not been written lately is warm
    /// again even if the power goes. Writes dirty blocks back. To be called from time to time where syncs are rare, or where blocks are
    /// written back; a background thread may.
    pub fn tend(&self) {
        self.tend_locked(&mut self.syncs.lock());
    }

    /// As [`Cached::tend`], but at most once in five seconds, a sync that takes marks off counted, and not while another is at it. To
    /// be called as often as is convenient by who has a thread that goes around.
    pub fn tend_if_due(&self) {
        if let Some(mut last) = self.syncs.try_lock()
            && self.config.clock.now().saturating_sub(*last) >= SETTLE_INTERVAL
        {
            self.tend_locked(&mut last);
        }
    }

    fn tend_locked(&self, last: &mut MutexGuard<'_, Duration>) {
        **last = self.config.clock.now();
        if let Err(error) = self.drain_locked(last) {
            tracing::warn!(%error, "dirty blocks cannot be written back");
        }
        self.report_hits();
        self.settle(false);
    }

    /// Reports the hits of all threads to the policy.
    pub(super) fn report_hits(&self) {
        let mut placement = self.placement.lock();
        for lane in self.recent.lanes() {
            placement.hits(&self.index, &mut lane.waiting());
        }
    }

    /// Makes everything that was written durable, on both devices, so that the next life of the cache begins with all of it.
    /// The cache can be used after that, too.
    ///
    /// # Errors
    /// [`CacheError::Slow`] when the slow device reports one.
    pub fn close(&self) -> Result<(), CacheError> {
        let syncs = self.syncs.lock();
        let of_slow = |source| CacheError::Slow { device: self.slow.name().to_owned(), source };
        let flagged = self.drain_for_good(&syncs).map_err(of_slow)?;
        self.sync_slow().and_then(|()| self.pay_error()).map_err(of_slow)?;
        self.settle(true);
        self.report_hits();
        // A copy that was made while the cache was open is not to be taken for what it is now.
        self.journal.draw_session();
        // Which blocks were hit is in the records of a new half only. It syncs the marks, too.
        if let Err(error) = self.journal.begin_half(&*self.fast, &self.index, &self.placement) {
            self.give_up("closing the journal", &error);
        }
        self.unflag(flagged).map_err(of_slow)
    }

    /// As [`Cached::close`], and the cache is out of service from then on and has let go of its file, which others may use now, though
    /// there are still handles of this one: nobody writes through them any more.
    ///
    /// # Errors
    /// As [`Cached::close`]; it is out of service all the same, unless it has blocks that are still to be written back.
    pub fn retire(&self) -> Result<(), CacheError> {
        let closed = self.close();
        if closed.is_err() && !self.is_out_of_service() && !self.placement.lock().dirty().is_empty() {
            // The slow device alone would be read as it was: whoever is left goes on with the cache.
            return closed;
        }
        self.service.get_or_init(|| "closed".to_owned());
        self.lock.lock().take();
        closed
    }

    pub(super) fn sync_slow(&self) -> io::Result<()> {
        let number = self.regions.begin_sync();
        match self.slow.sync() {
            Ok(()) => {
                self.regions.synced(number);
                Ok(())
            }
            Err(error) => {
                self.doubt();
                Err(error)
            }
        }
    }

    /// A sync of the slow device has failed.
    pub(super) fn doubt(&self) {
        if planted(CacheBug::TrustFailedSync) {
            return;
        }
        self.regions.sync_failed();
        for slot in 0..self.index.slots() {
            let mut placement = self.placement.lock();
            let word = self.index.word(slot);
            let offset = word.block() << self.block_shift;
            if word.state() != State::Free && !word.is_dirty() && self.regions.mark(offset) == Mark::Doubt {
                self.invalidate_slot(&mut placement, slot);
            }
        }
        if self.is_out_of_service() {
            return;
        }
        let written = self.regions.write_all(&*self.fast).and_then(|()| self.fast.sync());
        match written {
            Ok(()) => self.write_journal(),
            Err(error) => self.give_up("noting what is in doubt", &error),
        }
    }

    /// Takes the marks off regions that are durable and have been quiet since the last time, or off all that are durable.
    fn settle(&self, even_recent: bool) {
        if self.is_out_of_service() {
            return;
        }
        if planted(CacheBug::UnmarkBeforeSync) {
            self.regions.synced(u64::MAX);
        }
        let settled = self.regions.settled(even_recent);
        let is_told = !self.regions.is_loose() && self.journal.is_vouched();
        if is_told && settled.is_empty() && self.placement.lock().pending().len() == 0 {
            // Nothing has happened of which the fast device does not know durably.
            return;
        }
        let mut durable = None;
        if !planted(CacheBug::UnmarkBeforeData) {
            self.write_journal();
            if self.is_out_of_service() {
                return;
            }
            durable = Some(self.journal.written());
            if let Err(error) = self.fast.sync() {
                return self.give_up("a sync", &error);
            }
            self.regions.tighten();
        }
        if let Err(error) = durable.map_or(Ok(()), |written| self.journal.vouch(&*self.fast, written)) {
            return self.give_up("writing the superblock", &error);
        }
        if let Err(error) = self.regions.unmark(&*self.fast, &settled) {
            self.give_up("taking marks off", &error);
        }
    }

    /// Writes what the journal has yet to be told.
    pub(super) fn write_journal(&self) {
        self.write_journal_from(1);
    }

    /// The same, if there is so much that it is time.
    pub(super) fn write_journal_if_due(&self) {
        let due = self.journal.due();
        if self.placement.lock().pending().len() >= due {
            self.write_journal_from(due);
        }
    }

    fn write_journal_from(&self, least: usize) {
        if self.is_out_of_service() {
            return;
        }
        if let Err(error) = self.journal.flush(&*self.fast, &self.index, &self.placement, least) {
            self.give_up("writing the journal", &error);
        }
    }

    /// Changes the slow device's length. What is cut off leaves the cache, and the journal says so, before it is gone.
    pub(super) fn change_len(&self, bytes: u64) -> io::Result<()> {
        if self.is_out_of_service() {
            self.check_stranded()?;
            return self.check_revoked().and_then(|()| self.slow.set_len(bytes));
        }
        if self.back.is_on() {
            self.drain()?;
        }
        let _gate = if self.back.is_on() { Some(self.gate(std::iter::empty())?) } else { None };
        let before = self.slow.len();
        let (shorter, longer) = (bytes.min(before), bytes.max(before));
        let regions = self.regions.of([(shorter, longer - shorter)].into_iter());
        self.mark(&regions);
        if !planted(CacheBug::ForgetTruncate) {
            self.invalidate(shorter >> self.block_shift, BLOCKS_MAX);
            self.write_journal();
        }
        let outcome = self.check_revoked().and_then(|()| self.slow.set_len(bytes));
        if !planted(CacheBug::ForgetTruncate) {
            self.invalidate(shorter >> self.block_shift, BLOCKS_MAX);
        }
        self.regions.end(&regions);
        self.note_slow_written();
        outcome
    }

    /// Puts the cache out of service for good, before anything goes to the slow device that the fast one does not know of.
    pub(super) fn give_up(&self, what: &str, error: &io::Error) {
        self.counters.fast_errors.add(1);
        self.journal.stop(|| {
            tracing::warn!(device = self.fast.name(), what, %error, "the cache is given up");
            match self.placement.lock().dirty().is_empty() {
                true => self.revoke(),
                false => self.back.strand(),
            }
            self.service.get_or_init(|| format!("{what} failed: {error}"));
        });
    }

    /// Refuses a write of the slow device while a cache is given up and the guard could not be told: the guard fails only
    /// with the slow device.
    pub(super) fn check_revoked(&self) -> io::Result<()> {
        if self.back.is_stranded() {
            return Err(self.stranded());
        }
        if let Some(guard) = &self.config.guard
            && self.is_unrevoked.load(Ordering::Acquire)
        {
            Revoked::All.write(&**guard)?;
            self.is_unrevoked.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Makes sure that nothing on the fast device is used again.
    pub(super) fn revoke(&self) {
        // As long as the guard says that it is needed it must not be wiped.
        if !self.back.is_needed()
            && (planted(CacheBug::ForgetRevoked) || Superblock::wipe(&*self.fast).is_ok())
        {
            return;
        }
        match self.config.guard.as_ref().map(|guard| Revoked::All.write(&**guard)) {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::error!(%error, device = self.fast.name(), "the guard cannot be written; writes are refused");
                self.is_unrevoked.store(true, Ordering::Release);
            }
            None => {
                tracing::error!(
                    device = self.fast.name(),
                    "there is no guard; this cache must not be used again"
                );
            }
        }
    }

    /// The fast device has failed in what can be done without.
    pub(super) fn fast_error(&self, what: &str, error: &io::Error) {
        if self.counters.fast_errors.get() == 0 {
            tracing::warn!(device = self.fast.name(), what, %error, "the cache's device fails; going on without");
        }
        self.counters.fast_errors.add(1);
        if self.counters.fast_errors.get() >= FAST_ERRORS_MAX {
            self.give_up(what, error);
        }
    }
}
