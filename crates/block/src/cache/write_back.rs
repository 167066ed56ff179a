//! Write-back: writes that the fast device acknowledges and the slow one gets later.
//!
//! # A write
//! 1. Under the lock, each block of it gets a slot: its own, if it is there and clean, else another. One without a slot is
//!    linked as being written, so readers go to the slow device, which still has the bytes from before; one whose slot is dirty stays
//!    readable in that.
//! 2. The bytes go to the slots.
//! 3. Under the lock, the slots become dirty in the open epoch (`dirty.rs`), and the journal is told; its page is written
//!    before the write is acknowledged. So what was acknowledged outlives the process. What of the open epoch was written before in another
//!    slot is free then.
//!
//! A sync ends the epoch and makes the fast device durable, and the slow one if something went there directly.
//!
//! # Draining
//! The oldest epoch is written to the slow device, which is synced; then comes the next. When all are there the journal says so,
//! durably, and only then the slots are clean. It is done by [`Cached::tend`], when the dirty blocks have become too many, at
//! closing, and before a write that goes to the slow device directly: that must not overtake what was synced before it.
//! Such writes hold the *gate* while the slow device is written, and so does a drain, alone; and their blocks cannot become dirty
//! meanwhile.
//!
//! # When the fast device fails
//! Dirty blocks are then the only copies. The cache is given up, but not revoked: it is *stranded*. Writes and syncs first try to
//! bring the dirty blocks to the slow device, in order; as long as that fails they fail, too, and so do reads of those
//! blocks that cannot be read. Nothing is written to the slow device meanwhile, so if the fast device comes back the next opening finds all.
//!
//! # Lock order
//! `syncs`, `flagged`, `gate`, and then as in `cache.rs`. Who holds blocks of a write waits for `flagged`, so who has that waits for no
//! block.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::dirty::Version;
use super::guard::Revoked;
use super::index::State;
use super::placement::{Found, Placement};
use super::request::Starts;
use super::write::Writer;
use super::{CacheError, Cached, Piece, WriteMode, checksum};
use crate::planted::{CacheBug, planted};
use crate::policy::{Access, Relation};
use crate::{AlignedBuffer, Read, Write};

/// Bytes written to the slow device together.
const BATCH_BYTES: usize = 1 << 20;

/// What write-back has beside the rest of the cache.
#[derive(Debug)]
pub(super) struct Back {
    /// Whether some write may become dirty.
    is_on: AtomicBool,
    /// Held shared by who writes to the slow device directly, alone by who drains.
    gate: RwLock<()>,
    /// Whether fast device and guard say that there may be dirty blocks. Held while blocks become dirty.
    flagged: RwLock<bool>,
    /// The guard says, or may say, anything but that only this cache may be used: then to wipe it is not enough, or too much.
    is_needed: AtomicBool,
    /// The cache is given up with dirty blocks.
    is_stranded: AtomicBool,
    /// Something went to the slow device directly since it was last synced.
    is_slow_written: AtomicBool,
    /// A sync of the slow device has failed of which the next sync of the cache is to tell.
    owes_error: AtomicBool,
    /// What is done with writes of relations that were told apart.
    modes: RwLock<HashMap<Relation, WriteMode>>,
}

impl Back {
    pub fn new(mode: WriteMode, has_guard: bool) -> Self {
        Self {
            is_on: (mode == WriteMode::Back).into(),
            gate: RwLock::default(),
            flagged: RwLock::default(),
            is_needed: has_guard.into(),
            is_stranded: false.into(),
            is_slow_written: true.into(),
            owes_error: false.into(),
            modes: RwLock::default(),
        }
    }

    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    pub fn is_stranded(&self) -> bool {
        self.is_stranded.load(Ordering::Acquire)
    }

    /// The guard names this cache as the one that may be used, and no more.
    pub fn named(&self) {
        self.is_needed.store(false, Ordering::Release);
    }

    pub fn is_needed(&self) -> bool {
        self.is_needed.load(Ordering::Acquire)
    }

    pub fn strand(&self) {
        self.is_stranded.store(true, Ordering::Release);
    }
}

/// A block that is about to become dirty.
struct Held<'a> {
    access: Access,
    slot: u32,
    bytes: &'a [u8],
    how: How,
}

/// What its slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// That of the block before, which was clean.
    Own,
    /// A new one.
    New,
    /// A new one that nobody sees yet; the block has another.
    Spare,
}

/// A direct write that is under way.
struct Direct<'a> {
    cached: &'a Cached,
    blocks: Vec<u64>,
    _gate: RwLockReadGuard<'a, ()>,
}

impl Drop for Direct<'_> {
    fn drop(&mut self) {
        let mut placement = self.cached.placement.lock();
        self.blocks.iter().for_each(|&block| placement.end_keep_clean(block));
        self.cached.settled.notify_all();
    }
}

impl Cached {
    /// What is to be done with writes of a relation, whatever is done with others: [`WriteMode::Back`] for temporary data, of which
    /// nobody minds that it is lost with the fast device. The order in which writes reach the slow device is kept among relations that are
    /// written back only; the others do not wait for them.
    ///
    /// # Errors
    /// [`CacheError::Config`] for [`WriteMode::Back`] without a [guard](super::CacheConfig::guard).
    pub fn write_mode(&self, relation: Relation, mode: WriteMode) -> Result<(), CacheError> {
        if mode == WriteMode::Back {
            self.config.check_back()?;
            self.back.is_on.store(true, Ordering::Release);
            // Who began to write when it was off is done when this has the gate.
            if !planted(CacheBug::BackAmidWrites) {
                drop(self.back.gate.write());
            }
        }
        self.back.modes.write().insert(relation, mode);
        Ok(())
    }

    pub(super) fn mode_of(&self, relation: Option<Relation>) -> WriteMode {
        let of_relation = relation.and_then(|relation| self.back.modes.read().get(&relation).copied());
        of_relation.unwrap_or(self.config.mode)
    }

    /// Writes all dirty blocks to the slow device, in order, and syncs it. Nothing is done where nothing is dirty.
    ///
    /// # Errors
    /// Those of the slow device, and one of the fast device if it cannot be read; what is not written stays dirty.
    pub fn drain(&self) -> io::Result<()> {
        let syncs = self.syncs.lock();
        self.drain_locked(&syncs)
    }

    /// What keeps writing back from beginning while it is held; nothing if it is on.
    pub(super) fn unless_back(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let gate = self.back.gate.read();
        (!self.back.is_on()).then_some(gate)
    }

    /// Writes where writes may become dirty.
    pub(super) fn write_where_asked(
        &self,
        writer: Writer,
        writes: &[Write<'_>],
        starts: Starts<'_>,
        slow: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let blocks = self.blocks_of(writes);
        if writer == Writer::Above && self.may_all_be_dirty(&blocks) && self.write_dirty(&blocks)? {
            return Ok(());
        }
        let _direct = self.begin_direct(&blocks)?;
        let outcome = self.write_directly(writer, writes, starts, slow);
        self.note_slow_written();
        outcome
    }

    /// Lets a direct write of `blocks` begin; none of them becomes dirty until what this gives is dropped. Else a block that does so in
    /// between would be taken for one that is written over, though the write may be of a part of it, or be lost when what is
    /// dirty has long been synced.
    fn begin_direct(&self, blocks: &BTreeMap<u64, Option<&[u8]>>) -> io::Result<Direct<'_>> {
        loop {
            let gate = self.gate(blocks.keys().copied())?;
            let mut placement = self.placement.lock();
            // Who holds one of these may want another, so all are kept at once, and not before all are free.
            while blocks.keys().any(|&block| placement.is_held(&self.index, block)) {
                self.settled.wait(&mut placement);
            }
            let is_clean = !blocks.keys().any(|&block| placement.dirty().has(block));
            if is_clean || planted(CacheBug::DirectBeforeEarlier) {
                let blocks: Vec<_> = blocks.keys().copied().collect();
                if !planted(CacheBug::DirtyWhileWritten) {
                    blocks.iter().for_each(|&block| placement.keep_clean(block));
                }
                return Ok(Direct { cached: self, blocks, _gate: gate });
            }
        }
    }

    /// The slow device has been changed directly. To be called after the change and before it is acknowledged: a sync in between must not make
    /// the next one believe that there is nothing to sync.
    pub(super) fn note_slow_written(&self) {
        self.back.is_slow_written.store(true, Ordering::Release);
    }

    fn may_all_be_dirty(&self, blocks: &BTreeMap<u64, Option<&[u8]>>) -> bool {
        !self.balance.is_aside()
            && !self.is_out_of_service()
            && blocks.len() <= self.config.dirty_blocks_max() as usize
            && blocks.iter().all(|(&block, bytes)| {
                bytes.is_some()
                    && self.is_whole(block)
                    && !self.is_in_doubt(block)
                    && self.mode_of(self.access(block, true).relation) == WriteMode::Back
            })
    }

    /// Lets a direct write of `blocks` begin: what must be on the slow device before it is there.
    pub(super) fn gate(
        &self,
        blocks: impl Iterator<Item = u64> + Clone,
    ) -> io::Result<RwLockReadGuard<'_, ()>> {
        let must_wait = |even_sealed: bool| {
            let mut placement = self.placement.lock();
            let dirty = placement.dirty();
            (even_sealed && dirty.any_sealed())
                || (!dirty.is_empty() && blocks.clone().any(|block| dirty.has(block)))
        };
        let in_order = self.config.mode == WriteMode::Back;
        let gate = self.back.gate.read();
        if !must_wait(in_order) || planted(CacheBug::DirectBeforeEarlier) {
            return Ok(gate);
        }
        drop(gate);
        loop {
            let syncs = self.syncs.lock();
            self.drain_locked(&syncs)?;
            // Nobody ends an epoch while this has the syncs.
            let gate = self.back.gate.read();
            if !must_wait(false) {
                return Ok(gate);
            }
        }
    }

    /// Writes blocks to slots only. Says whether it could be done.
    fn write_dirty(&self, blocks: &BTreeMap<u64, Option<&[u8]>>) -> io::Result<bool> {
        for _ in 0..2 {
            if let Some(holds) = self.hold_dirty(blocks) {
                return self.fill_dirty(&holds);
            }
            self.drain()?;
        }
        Ok(false)
    }

    /// Takes hold of all blocks, or of none if there is no room.
    fn hold_dirty<'a>(&self, blocks: &BTreeMap<u64, Option<&'a [u8]>>) -> Option<Vec<Held<'a>>> {
        let mut placement = self.placement.lock();
        placement.hits(&self.index, &mut self.recent.lane().waiting());
        let dirty = placement.dirty();
        if dirty.len() + blocks.len() > self.config.dirty_blocks_max() as usize || dirty.is_used_up() {
            return None;
        }
        let mut holds = Vec::with_capacity(blocks.len());
        for (&block, bytes) in blocks {
            let access = self.access(block, true);
            let found = loop {
                let found = placement.find(&self.index, block);
                let is_free = matches!(found, Found::Slot(_, word) if word.state() == State::Valid);
                let is_free = is_free || found == Found::Nothing;
                if placement.is_kept_clean(block) || placement.is_entered(block) || !is_free {
                    self.settled.wait(&mut placement);
                    continue;
                }
                break found;
            };
            let held = self.hold_one_dirty(&mut placement, access, found);
            let (Some((slot, how)), &Some(bytes)) = (held, bytes) else {
                drop(placement);
                self.let_go(&holds);
                return None;
            };
            holds.push(Held { access, slot, bytes, how });
        }
        Some(holds)
    }

    fn hold_one_dirty(&self, placement: &mut Placement, access: Access, found: Found) -> Option<(u32, How)> {
        let held = match found {
            Found::Slot(slot, word)
                if !word.is_dirty() || (!word.is_doomed() && planted(CacheBug::OverwriteDirty)) =>
            {
                if word.is_dirty() {
                    placement.dirty().lose(access.block);
                }
                placement.policy().hit(crate::policy::Slot(slot), access);
                self.index.begin_writing(slot);
                Some((slot, How::Own))
            }
            Found::Slot(before, _) => placement.spare(&self.index, access).ok().map(|slot| {
                placement.begin_write(access.block);
                // What had to leave for that slot may have been this very block.
                match self.index.word(before).is_doomed() {
                    false => placement.policy().hit(crate::policy::Slot(before), access),
                    true => placement.policy().miss(access),
                }
                (slot, How::Spare)
            }),
            // Without a slot it is tried again, and told then.
            _ => placement.spare(&self.index, access).ok().map(|slot| {
                placement.policy().miss(access);
                placement.admit_dirty(&self.index, access, slot);
                (slot, How::New)
            }),
        };
        let is_miss = matches!(held, Some((_, How::New)));
        match held {
            Some(_) if is_miss => {
                self.counters.write_misses.add(1);
                self.counters.admissions.add(1);
            }
            Some(_) => self.counters.write_hits.add(1),
            None => {}
        }
        placement.count(access.relation, |stats| stats.writes += u64::from(held.is_some()));
        held
    }

    /// Gives up blocks whose slots have not been touched.
    fn let_go(&self, holds: &[Held<'_>]) {
        let mut placement = self.placement.lock();
        for held in holds {
            match held.how {
                // What was said of it still is, and is compared again.
                How::Own if !self.index.word(held.slot).is_doomed() => {
                    self.index.set_claimed(held.slot, self.index.checksum(held.slot));
                }
                How::Own | How::New => {
                    placement.finish(&self.index, held.slot, None);
                }
                How::Spare => {
                    placement.end_write(held.access.block);
                    placement.give_back(&self.index, held.slot);
                }
            }
        }
        self.settled.notify_all();
    }

    /// The slots of these may have been written in part.
    fn drop_touched(&self, holds: &[Held<'_>]) {
        let mut placement = self.placement.lock();
        for held in holds {
            match held.how {
                How::Spare => {
                    placement.end_write(held.access.block);
                    placement.give_back(&self.index, held.slot);
                }
                _ => drop(placement.finish(&self.index, held.slot, None)),
            }
        }
        self.settled.notify_all();
    }

    fn fill_dirty(&self, holds: &[Held<'_>]) -> io::Result<bool> {
        let sums: Vec<_> = holds.iter().map(|held| (held.slot, checksum(held.bytes))).collect();
        self.end_claims(&sums);
        let Some(flagged) = self.flag_dirty() else {
            self.let_go(holds);
            return Ok(false);
        };
        let flagged = (!planted(CacheBug::DirtyWhileClosed)).then_some(flagged);
        let writes: Vec<_> =
            holds.iter().map(|held| Write::new(self.slot_offset(held.slot), held.bytes)).collect();
        if !self.write_slots("write of a block to be written back", &writes) {
            self.drop_touched(holds);
            return Ok(false);
        }
        let mut unneeded = Vec::new();
        {
            let mut placement = self.placement.lock();
            for (held, &(slot, sum)) in holds.iter().zip(&sums) {
                if held.how == How::Spare {
                    placement.replace(&self.index, slot, held.access);
                }
                unneeded.extend(placement.publish_dirty(&self.index, slot, sum));
            }
            self.settled.notify_all();
        }
        if !planted(CacheBug::AcknowledgeBeforeJournal) {
            self.write_journal();
        }
        drop(flagged);
        if self.is_out_of_service() {
            return Err(self.stranded());
        }
        if !unneeded.is_empty() {
            let mut placement = self.placement.lock();
            unneeded.into_iter().for_each(|slot| placement.give_back(&self.index, slot));
        }
        Ok(true)
    }

    /// Makes fast device and guard say that there may be dirty blocks; that stays so until the guard that this gives is dropped.
    fn flag_dirty(&self) -> Option<RwLockReadGuard<'_, bool>> {
        let flagged = self.back.flagged.read();
        if *flagged {
            return Some(flagged);
        }
        drop(flagged);
        let mut flagged = self.back.flagged.write();
        if !*flagged {
            let (guard, name) = (self.config.guard.as_ref()?, self.guard_name()?);
            // Not beside a revocation, which would be forgotten.
            let said = self.journal.unless_stopped(|| {
                self.back.is_needed.store(true, Ordering::Release);
                Revoked::AllButNeeded(name).write(&**guard)
            });
            if let Err(error) = said? {
                tracing::warn!(device = guard.name(), %error, "the guard cannot be written; writes go through");
                return None;
            }
            match self.journal.begin_dirty(&*self.fast) {
                Ok(()) => {}
                Err(error) => {
                    drop(flagged);
                    self.give_up("writing the superblock", &error);
                    return None;
                }
            }
            *flagged = true;
        }
        Some(RwLockWriteGuard::downgrade(flagged))
    }

    /// Nothing is dirty, and nothing becomes so as long as what this gives is kept.
    pub(super) fn drain_for_good(
        &self,
        syncs: &MutexGuard<'_, Duration>,
    ) -> io::Result<RwLockWriteGuard<'_, bool>> {
        loop {
            self.drain_locked(syncs)?;
            // Who has this waits for nobody who may wait for it.
            let flagged = self.back.flagged.write();
            if self.is_out_of_service() || self.placement.lock().dirty().is_empty() {
                return Ok(flagged);
            }
        }
    }

    /// The fast device says durably that nothing is dirty, and has a new session: so does the guard.
    pub(super) fn unflag(&self, mut flagged: RwLockWriteGuard<'_, bool>) -> io::Result<()> {
        // The superblock says it already: whatever becomes of this, the next dirty block has both say the contrary again.
        *flagged = false;
        self.name_in_guard()
    }

    /// Names the cache in the guard, and no more, by the session that its superblock has; then the session before is over.
    pub(super) fn name_in_guard(&self) -> io::Result<()> {
        let (Some(guard), Some(name)) = (&self.config.guard, self.guard_name()) else { return Ok(()) };
        // Not beside a revocation, which would be forgotten.
        let said = self.journal.unless_stopped(|| Revoked::AllBut(name).write(&**guard));
        let Some(said) = said else { return Ok(()) };
        said.inspect(|()| self.back.named())?;
        self.session_noted();
        Ok(())
    }

    pub(super) fn drain_locked(&self, syncs: &MutexGuard<'_, Duration>) -> io::Result<()> {
        if !self.back.is_on() {
            return Ok(());
        }
        if self.is_out_of_service() {
            return if self.back.is_stranded() { self.rescue(syncs) } else { Ok(()) };
        }
        self.placement.lock().dirty().seal();
        self.write_epochs()?;
        let settling = self.placement.lock().dirty().settling();
        if settling.is_empty() {
            return Ok(());
        }
        self.write_journal();
        if self.is_out_of_service() {
            return Err(self.stranded());
        }
        self.sync_fast()?;
        let mut placement = self.placement.lock();
        let epoch = placement.dirty().open() - 1;
        placement.dirty().set_durable(epoch);
        placement.settled(&self.index, &settling);
        Ok(())
    }

    fn sync_fast(&self) -> io::Result<()> {
        self.fast.sync().map_err(|error| {
            self.give_up("a sync", &error);
            self.stranded()
        })
    }

    /// Writes all epochs that have ended to the slow device, and syncs it after each.
    fn write_epochs(&self) -> io::Result<()> {
        loop {
            let in_order = !planted(CacheBug::DrainOutOfOrder);
            let oldest = self.placement.lock().dirty().oldest(in_order);
            let Some((epoch, versions)) = oldest else { return Ok(()) };
            {
                let _gate = self.back.gate.write();
                let blocks_max = (BATCH_BYTES / self.block_bytes()).max(1);
                versions.chunks(blocks_max).try_for_each(|versions| self.write_versions(versions))?;
            }
            if !planted(CacheBug::CleanBeforeSync) {
                self.sync_below()?;
            }
            let count = self.placement.lock().epoch_written(&self.index, epoch);
            self.counters.written_back.add(count as u64);
        }
    }

    /// A sync of the slow device that nobody asked for. What was written there directly may be lost if it fails, so the next that is asked for
    /// must fail, too.
    fn sync_below(&self) -> io::Result<()> {
        let is_written = self.back.is_slow_written.swap(false, Ordering::AcqRel);
        self.sync_slow().inspect_err(|_| {
            self.back.is_slow_written.fetch_or(is_written, Ordering::AcqRel);
            self.back.owes_error.fetch_or(is_written, Ordering::AcqRel);
        })
    }

    /// Reports what is owed.
    pub(super) fn pay_error(&self) -> io::Result<()> {
        if self.back.owes_error.swap(false, Ordering::AcqRel) {
            let what = "a sync of it has failed since the last one that was asked for";
            return Err(io::Error::other(format!("{}: {what}", self.slow.name())));
        }
        Ok(())
    }

    /// Copies slots to where their blocks are on the slow device.
    fn write_versions(&self, versions: &[Version]) -> io::Result<()> {
        // What was cut off in the midst of its being written has no place any more.
        let versions: Vec<_> = versions.iter().copied().filter(|&(block, _)| self.is_whole(block)).collect();
        let mut buffers: Vec<_> =
            versions.iter().map(|_| AlignedBuffer::zeroed(self.block_bytes())).collect();
        let mut reads: Vec<_> = versions
            .iter()
            .zip(&mut buffers)
            .map(|(&(_, slot), buffer)| Read::new(self.slot_offset(slot), buffer))
            .collect();
        self.fast.read_batch(&mut reads);
        for (&(block, slot), read) in versions.iter().zip(reads) {
            let what = match read.result {
                Ok(()) if checksum(read.buffer) == self.index.checksum(slot) => continue,
                Ok(()) => "is damaged".to_owned(),
                Err(error) => format!("cannot be read: {error}"),
            };
            self.counters.fast_errors.add(1);
            return Err(self.lost(block, &what));
        }
        let writes: Vec<_> = versions
            .iter()
            .zip(&buffers)
            .map(|(&(block, _), buffer)| Write::new(block << self.block_shift, buffer))
            .collect();
        let regions = self.regions.of(writes.iter().map(|write| (write.offset, write.bytes.len() as u64)));
        if self.is_out_of_service() {
            // Nothing on the fast device will be used again once all are written.
            return self.slow.write_batch(&writes);
        }
        self.mark(&regions);
        let outcome = match self.is_out_of_service() {
            true => Err(self.stranded()),
            false => self.slow.write_batch(&writes),
        };
        self.regions.end(&regions);
        outcome
    }

    /// A block that was to be written back cannot be: it is the cache's file that is damaged.
    pub(super) fn lost(&self, block: u64, what: &str) -> io::Error {
        let (slow, fast) = (self.slow.name(), self.fast.name());
        let what = format!(
            "{fast} {what}: it has the only copy of block {block} of {slow}, which was to be written back"
        );
        let advice = "bring back a whole copy of that cache, or restore a backup of both";
        io::Error::new(io::ErrorKind::InvalidData, format!("{what}; {advice}"))
    }

    pub(super) fn stranded(&self) -> io::Error {
        let why = self.service.get().map_or("", |why| why.as_str());
        let (slow, fast) = (self.slow.name(), self.fast.name());
        io::Error::other(format!(
            "{slow} is not complete: blocks of it are in the cache {fast} only, where {why}"
        ))
    }

    /// The sync of a cache that may have dirty blocks.
    pub(super) fn sync_where_asked(&self, syncs: &MutexGuard<'_, Duration>) -> io::Result<()> {
        self.pay_error()?;
        if self.is_out_of_service() {
            self.drain_locked(syncs)?;
            return self.sync_slow();
        }
        let epoch = self.placement.lock().dirty().seal();
        if self.back.is_slow_written.swap(false, Ordering::AcqRel) {
            self.sync_slow().inspect_err(|_| self.back.is_slow_written.store(true, Ordering::Release))?;
        }
        if self.placement.lock().dirty().durable() >= epoch {
            return Ok(());
        }
        self.write_journal();
        if self.is_out_of_service() {
            self.drain_locked(syncs)?;
            return self.sync_slow();
        }
        if !planted(CacheBug::SyncWithoutFast) {
            self.sync_fast()?;
        }
        let mut placement = self.placement.lock();
        placement.dirty().set_durable(epoch);
        placement.pending().durable(epoch);
        Ok(())
    }

    /// Brings the dirty blocks of a cache that was given up to the slow device, which is then complete, and revokes the cache.
    fn rescue(&self, _syncs: &MutexGuard<'_, Duration>) -> io::Result<()> {
        // Nothing can be marked any more: what is clean there may be older than the slow device once that is written.
        if let (Some(guard), Some(name)) = (&self.config.guard, self.guard_name()) {
            Revoked::AllButDirty(name).write(&**guard)?;
        }
        self.placement.lock().dirty().seal();
        self.write_epochs()?;
        let mut placement = self.placement.lock();
        let settling = placement.dirty().settling();
        placement.settled(&self.index, &settling);
        drop(placement);
        tracing::info!(device = self.fast.name(), "all blocks of the cache that was given up were saved");
        self.revoke();
        self.back.is_stranded.store(false, Ordering::Release);
        self.check_revoked()
    }

    /// Whether dirty blocks keep the slow device from being written.
    pub(super) fn check_stranded(&self) -> io::Result<()> {
        if self.back.is_stranded() {
            let syncs = self.syncs.lock();
            self.drain_locked(&syncs)?;
        }
        Ok(())
    }

    /// Reads a piece while the cache is given up with dirty blocks.
    pub(super) fn read_stranded(&self, piece: Piece, target: &mut [u8]) -> io::Result<()> {
        let offset = (piece.block << self.block_shift) + piece.within;
        let placement = self.placement.lock();
        let Some((slot, _)) = self.index.get(piece.block).filter(|(_, word)| word.is_dirty()) else {
            drop(placement);
            self.count_unserved(&self.counters.misses, 1);
            return self.slow.read_at(offset, target);
        };
        let mut bytes = AlignedBuffer::zeroed(self.block_bytes());
        let read = self.fast.read_at(self.slot_offset(slot), &mut bytes);
        match read {
            Ok(()) if checksum(&bytes) == self.index.checksum(slot) => {
                target.copy_from_slice(&bytes[piece.within as usize..][..piece.length]);
                self.recent.count_hit();
                Ok(())
            }
            Ok(()) => Err(self.lost(piece.block, "is damaged")),
            Err(error) => Err(self.lost(piece.block, &format!("cannot be read: {error}"))),
        }
    }
}
