//! Durability and service: syncs, journal, marks, and giving up.
//!
//! Failed reads of the fast device, and failed writes of blocks, cost only the slot. After a
//! failure of a mark, a sync or a journal page, the next run could serve outdated blocks. The cache
//! is then *given up*: revoked, so that nothing on the fast device is ever used again.

use std::io;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::CacheError;
use super::blocks::Blocks;
use super::guard::{GuardState, Name};
use super::index::State;
use super::journal::Journal;
use super::layout::Superblock;
use super::regions::{Mark, Regions};
use crate::planted::{CacheBug, planted};
use terrace_io::Write;

const FAST_ERRORS_MAX: u64 = 1000;

pub(super) struct Service {
    blocks: Arc<Blocks>,
    pub regions: Regions,
    pub journal: Journal,
    has_journal: bool,
    outage: OnceLock<String>,
    /// The cache is given up, and neither fast device nor guard could record it.
    is_unrevoked: AtomicBool,
    /// False while the guard says that only this cache is usable.
    ///
    /// Otherwise revocation goes through the guard: wiping the cache is not enough, or too much.
    is_needed: AtomicBool,
    is_stranded: AtomicBool,
}

impl Service {
    pub fn new(blocks: Arc<Blocks>, regions: Regions, journal: Journal, has_journal: bool) -> Self {
        let is_needed = blocks.config.guard.is_some().into();
        Self {
            blocks,
            regions,
            journal,
            has_journal,
            outage: OnceLock::new(),
            is_unrevoked: AtomicBool::new(false),
            is_needed,
            is_stranded: AtomicBool::new(false),
        }
    }

    pub fn is_out_of_service(&self) -> bool {
        self.outage.get().is_some()
    }

    pub fn is_in_doubt(&self, block: u64) -> bool {
        !planted(CacheBug::TrustFailedSync)
            && self.regions.is_in_doubt(block << self.blocks.shape.block_shift)
    }

    pub fn outage(&self) -> Option<&String> {
        self.outage.get()
    }

    pub fn retire(&self) {
        self.outage.get_or_init(|| "closed".to_owned());
    }

    pub fn is_stranded(&self) -> bool {
        self.is_stranded.load(Ordering::Acquire)
    }

    pub fn end_stranding(&self) {
        self.is_stranded.store(false, Ordering::Release);
    }

    pub fn needed(&self) {
        self.is_needed.store(true, Ordering::Release);
    }

    /// Writes the first state of the cache to the fast device, and names it in the guard.
    pub fn enter_service(&self) -> Result<(), CacheError> {
        self.journal.draw_session();
        let made = self.journal.begin_half(&*self.blocks.fast, &self.blocks.index, &self.blocks.placement);
        match made.and_then(|()| self.regions.write_all(&*self.blocks.fast)) {
            Ok(()) => {}
            Err(error) => {
                self.give_up("beginning the journal", &error);
                return Ok(());
            }
        }
        let device =
            || self.blocks.config.guard.as_ref().map_or_else(String::new, |guard| guard.name().to_owned());
        self.name_in_guard().map_err(|source| CacheError::Slow { device: device(), source })
    }

    /// The guard's name for the cache, if the fast device was usable at open.
    pub fn guard_name(&self) -> Option<Name> {
        self.has_journal.then(|| self.journal.name())
    }

    /// Names the cache as the only usable one, with its session.
    pub fn name_in_guard(&self) -> io::Result<()> {
        let (Some(guard), Some(name)) = (&self.blocks.config.guard, self.guard_name()) else { return Ok(()) };
        // Not during a revocation, which this would undo.
        let said = self.journal.unless_stopped(|| GuardState::Only(name).write(&**guard));
        let Some(said) = said else { return Ok(()) };
        said.inspect(|()| self.is_needed.store(false, Ordering::Release))?;
        self.session_noted();
        Ok(())
    }

    pub fn sync_slow(&self) -> io::Result<()> {
        let number = self.regions.begin_sync();
        match self.blocks.slow.sync() {
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

    pub fn doubt(&self) {
        if planted(CacheBug::TrustFailedSync) {
            return;
        }
        self.regions.sync_failed();
        for slot in 0..self.blocks.index.slots() {
            let mut placement = self.blocks.placement.lock();
            let word = self.blocks.index.word(slot);
            let offset = word.block() << self.blocks.shape.block_shift;
            if word.state() != State::Free && !word.is_dirty() && self.regions.mark(offset) == Mark::Doubt {
                self.blocks.invalidate_slot(&mut placement, slot);
            }
        }
        if self.is_out_of_service() {
            return;
        }
        let written = self.regions.write_all(&*self.blocks.fast).and_then(|()| self.blocks.fast.sync());
        match written {
            Ok(()) => self.write_journal(),
            Err(error) => self.give_up("noting what is in doubt", &error),
        }
    }

    /// Makes a round: removes marks of durable regions that are quiet, unless `even_recent`.
    pub fn remove_marks(&self, even_recent: bool) {
        if self.is_out_of_service() {
            return;
        }
        if planted(CacheBug::UnmarkBeforeSync) {
            self.regions.synced(u64::MAX);
        }
        let settled = self.regions.settled(even_recent);
        let is_told = !self.regions.is_loose() && self.journal.is_recorded_durable();
        if is_told && settled.is_empty() && self.blocks.placement.lock().pending().len() == 0 {
            return;
        }
        if !planted(CacheBug::UnmarkBeforeData) {
            self.write_data();
        }
        if self.is_out_of_service() {
            return;
        }
        if let Err(error) = self.regions.unmark(&*self.blocks.fast, &settled) {
            self.give_up("taking marks off", &error);
        }
    }

    /// Makes journal and blocks durable, and says so in the superblock.
    fn write_data(&self) {
        self.write_journal();
        if self.is_out_of_service() {
            return;
        }
        let written = self.journal.written();
        if let Err(error) = self.blocks.fast.sync() {
            return self.give_up("a sync", &error);
        }
        self.regions.tighten();
        if let Err(error) = self.journal.record_durable(&*self.blocks.fast, written) {
            self.give_up("writing the superblock", &error);
        }
    }

    pub fn write_journal(&self) {
        self.write_journal_from(1);
    }

    pub fn write_journal_if_due(&self) {
        let due = self.journal.due();
        if self.blocks.placement.lock().pending().len() >= due {
            self.write_journal_from(due);
        }
    }

    /// Durably drops the previous session, once the current one is stored.
    pub fn session_noted(&self) {
        if self.is_out_of_service() || planted(CacheBug::KeepSession) {
            return;
        }
        if let Err(error) = self.journal.end_session_before(&*self.blocks.fast) {
            self.give_up("writing the superblock", &error);
        }
    }

    fn write_journal_from(&self, least: usize) {
        if self.is_out_of_service() {
            return;
        }
        if let Err(error) =
            self.journal.flush(&*self.blocks.fast, &self.blocks.index, &self.blocks.placement, least)
        {
            self.give_up("writing the journal", &error);
        }
    }

    pub fn mark(&self, regions: &[usize]) {
        if let Err(error) = self.regions.begin(&*self.blocks.fast, regions) {
            self.give_up("marking a region", &error);
        }
    }

    pub fn write_slots(&self, what: &str, writes: &[Write<'_>]) -> bool {
        if self.blocks.fast.len()
            < self.blocks.shape.slots_start
                + (u64::from(self.blocks.index.slots()) << self.blocks.shape.block_shift)
        {
            // A write would extend a truncated file again, with zeros in the gap.
            let error = io::ErrorKind::UnexpectedEof.into();
            self.give_up("use of a device that has been cut short", &error);
            return false;
        }
        let outcome = match writes {
            [write] => self.blocks.fast.write_at(write.offset, write.bytes),
            _ => self.blocks.fast.write_batch(writes),
        };
        outcome.inspect_err(|error| self.fast_error(what, error)).is_ok()
    }

    /// Writes the journal if these checksums match outdated claims of their slots.
    pub fn end_claims(&self, sums: &[(u32, u32)]) {
        let mut placement = self.blocks.placement.lock();
        let pending = placement.pending();
        let any_fits = sums.iter().any(|&(slot, sum)| pending.fits_ended_claim(slot, sum));
        drop(placement);
        if any_fits && !planted(CacheBug::ForgetEndedClaims) {
            self.write_journal();
        }
    }

    /// Puts the cache out of service before the slow device gets an unrecorded write.
    pub fn give_up(&self, what: &str, error: &io::Error) {
        self.blocks.counters.errors.add(1);
        self.journal.stop(|| {
            tracing::warn!(device = self.blocks.fast.name(), what, %error, "the cache is given up");
            match self.blocks.placement.lock().dirty().is_empty() {
                true => self.revoke(),
                false => self.is_stranded.store(true, Ordering::Release),
            }
            self.outage.get_or_init(|| format!("{what} failed: {error}"));
        });
    }

    /// Refuses writes of the slow device while a revocation is not recorded.
    ///
    /// The guard is written again; it fails only with the slow device.
    pub fn check_revoked(&self) -> io::Result<()> {
        if self.is_stranded() {
            return Err(self.stranded());
        }
        if let Some(guard) = &self.blocks.config.guard
            && self.is_unrevoked.load(Ordering::Acquire)
        {
            GuardState::NoCache.write(&**guard)?;
            self.is_unrevoked.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Ensures that nothing on the fast device is used again.
    pub fn revoke(&self) {
        // A cache that the guard calls needed must not be wiped.
        if !self.is_needed.load(Ordering::Acquire)
            && (planted(CacheBug::ForgetRevoked) || Superblock::wipe(&*self.blocks.fast).is_ok())
        {
            return;
        }
        match self.blocks.config.guard.as_ref().map(|guard| GuardState::NoCache.write(&**guard)) {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::error!(%error, device = self.blocks.fast.name(), "the guard cannot be written; writes are refused");
                self.is_unrevoked.store(true, Ordering::Release);
            }
            None => {
                tracing::error!(
                    device = self.blocks.fast.name(),
                    "there is no guard; this cache must not be used again"
                );
            }
        }
    }

    /// Handles an error of the fast device that costs no correctness.
    pub fn fast_error(&self, what: &str, error: &io::Error) {
        if self.blocks.counters.errors.get() == 0 {
            tracing::warn!(device = self.blocks.fast.name(), what, %error, "the cache's device fails; going on without");
        }
        self.blocks.counters.errors.add(1);
        if self.blocks.counters.errors.get() >= FAST_ERRORS_MAX {
            self.give_up(what, error);
        }
    }

    /// The error for a dirty block that is damaged or unreadable.
    pub fn lost(&self, block: u64, what: &str) -> io::Error {
        let (slow, fast) = (self.blocks.slow.name(), self.blocks.fast.name());
        let what = format!(
            "{fast} {what}: it has the only copy of block {block} of {slow}, which was to be written back"
        );
        let advice = "bring back a whole copy of that cache, or restore a backup of both";
        io::Error::new(io::ErrorKind::InvalidData, format!("{what}; {advice}"))
    }

    pub fn stranded(&self) -> io::Error {
        let why = self.outage.get().map_or("", |why| why.as_str());
        let (slow, fast) = (self.blocks.slow.name(), self.blocks.fast.name());
        io::Error::other(format!(
            "{slow} is not complete: blocks of it are in the cache {fast} only, where {why}"
        ))
    }
}
