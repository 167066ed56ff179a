//! Write-back: the fast device acknowledges writes, and the slow one gets them later.
//!
//! A write takes three steps:
//! 1. Under the lock, each block gets a slot: its own if clean, else another. Readers use the slow
//!    device, or the old slot if it is dirty.
//! 2. The bytes go to the slots.
//! 3. Under the lock, the slots become dirty in the open epoch (`dirty.rs`), and older slots of
//!    that epoch free. The journal is written before the acknowledgement.
//!
//! A drain writes each epoch to the slow device and syncs it, oldest first. Slots become clean once
//! the journal durably says so. Direct writes must not overtake earlier synced ones: they drain
//! first if necessary, hold the *gate* shared (a drain holds it alone), and keep their blocks
//! clean.
//!
//! If the fast device fails with dirty blocks, the cache is *stranded*, not revoked. Writes and
//! syncs try to drain, and fail if that fails. Nothing else reaches the slow device, so if the fast
//! one returns, the next opening finds all blocks.
//!
//! Lock order: `syncs`, `flagged`, `gate`, then as in `cache.rs`. Writers that hold blocks wait for
//! `flagged`, so its holder waits for no block.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::blocks::Blocks;
use super::checksum::checksum;
use super::dirty::Version;
use super::guard::GuardState;
use super::index::State;
use super::placement::{Found, Placement};
use super::service::Service;
use super::{CacheError, WriteMode};
use crate::planted::{CacheBug, planted};
use crate::policy::{Access, Relation};
use terrace_io::{AlignedBuffer, Read, Write};

const BATCH_BYTES: usize = 1 << 20;

pub(super) struct WriteBack {
    blocks: Arc<Blocks>,
    service: Arc<Service>,
    /// Allows one sync of the slow device at a time; holds the time of the last round.
    pub syncs: Mutex<Duration>,
    is_on: AtomicBool,
    /// Shared by direct writes to the slow device, exclusive for drains.
    gate_lock: RwLock<()>,
    /// Whether fast device and guard allow dirty blocks; held while blocks become dirty.
    flagged: RwLock<bool>,
    /// Whether the slow device was written directly since its last sync.
    is_slow_written: AtomicBool,
    /// Whether the next sync of the cache must report a failed sync.
    owes_error: AtomicBool,
    modes: RwLock<HashMap<Relation, WriteMode>>,
}

struct Held<'a> {
    access: Access,
    slot: u32,
    bytes: &'a [u8],
    how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Own,
    New,
    /// A new slot that is not visible yet; the block has another.
    Spare,
}

pub(super) struct Direct<'a> {
    held: &'a Blocks,
    blocks: Vec<u64>,
    _gate: RwLockReadGuard<'a, ()>,
}

impl Drop for Direct<'_> {
    fn drop(&mut self) {
        let mut placement = self.held.placement.lock();
        self.blocks.iter().for_each(|&block| placement.end_keep_clean(block));
        self.held.settled.notify_all();
    }
}

impl WriteBack {
    pub fn new(blocks: Arc<Blocks>, service: Arc<Service>) -> Self {
        Self {
            syncs: Mutex::new(blocks.config.clock.now()),
            is_on: (blocks.config.mode == WriteMode::Back).into(),
            gate_lock: RwLock::default(),
            flagged: RwLock::default(),
            is_slow_written: true.into(),
            owes_error: false.into(),
            modes: RwLock::default(),
            blocks,
            service,
        }
    }

    pub fn set_mode(&self, relation: Relation, mode: WriteMode) -> Result<(), CacheError> {
        if mode == WriteMode::Back {
            self.blocks.config.check_back()?;
            self.is_on.store(true, Ordering::Release);
            // Waits for writes that began with write-back off.
            if !planted(CacheBug::BackAmidWrites) {
                drop(self.gate_lock.write());
            }
        }
        self.modes.write().insert(relation, mode);
        Ok(())
    }

    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    pub fn mode_of(&self, relation: Option<Relation>) -> WriteMode {
        let of_relation = relation.and_then(|relation| self.modes.read().get(&relation).copied());
        of_relation.unwrap_or(self.blocks.config.mode)
    }

    /// Keeps write-back off while held; `None` if it is on.
    pub fn unless_back(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let gate = self.gate_lock.read();
        (!self.is_on()).then_some(gate)
    }

    /// Begins a direct write; its blocks stay clean until the result is dropped.
    ///
    /// Otherwise a block that became dirty meanwhile would count as overwritten, and its bytes be
    /// lost.
    pub fn begin_direct(&self, blocks: &BTreeMap<u64, Option<&[u8]>>) -> io::Result<Direct<'_>> {
        loop {
            let gate = self.gate(blocks.keys().copied())?;
            let mut placement = self.blocks.placement.lock();
            // A holder of one block may want another, so wait until all are free and keep all at
            // once.
            while blocks.keys().any(|&block| placement.is_held(&self.blocks.index, block)) {
                self.blocks.settled.wait(&mut placement);
            }
            let is_clean = !blocks.keys().any(|&block| placement.dirty().has(block));
            if is_clean || planted(CacheBug::DirectBeforeEarlier) {
                let blocks: Vec<_> = blocks.keys().copied().collect();
                if !planted(CacheBug::DirtyWhileWritten) {
                    blocks.iter().for_each(|&block| placement.keep_clean(block));
                }
                return Ok(Direct { held: &self.blocks, blocks, _gate: gate });
            }
        }
    }

    /// Records a direct change of the slow device.
    ///
    /// Call it after the change and before the acknowledgement: a sync in between clears the flag.
    pub fn note_slow_written(&self) {
        self.is_slow_written.store(true, Ordering::Release);
    }

    pub fn may_all_be_dirty(&self, blocks: &BTreeMap<u64, Option<&[u8]>>) -> bool {
        !self.blocks.balance.is_aside()
            && !self.service.is_out_of_service()
            && blocks.len() <= self.blocks.config.dirty_blocks_max() as usize
            && blocks.iter().all(|(&block, bytes)| {
                bytes.is_some()
                    && self.blocks.is_whole(block)
                    && !self.service.is_in_doubt(block)
                    && self.mode_of(self.blocks.access(block, true).relation) == WriteMode::Back
            })
    }

    /// Begins a direct write of `blocks`, after writing back what must precede it.
    pub fn gate(&self, blocks: impl Iterator<Item = u64> + Clone) -> io::Result<RwLockReadGuard<'_, ()>> {
        let must_wait = |even_sealed: bool| {
            let mut placement = self.blocks.placement.lock();
            let dirty = placement.dirty();
            (even_sealed && dirty.any_sealed())
                || (!dirty.is_empty() && blocks.clone().any(|block| dirty.has(block)))
        };
        let in_order = self.blocks.config.mode == WriteMode::Back;
        let gate = self.gate_lock.read();
        if !must_wait(in_order) || planted(CacheBug::DirectBeforeEarlier) {
            return Ok(gate);
        }
        drop(gate);
        loop {
            let syncs = self.syncs.lock();
            self.drain_locked(&syncs)?;
            // No epoch ends while `syncs` is held.
            let gate = self.gate_lock.read();
            if !must_wait(false) {
                return Ok(gate);
            }
        }
    }

    pub fn write_dirty(&self, blocks: &BTreeMap<u64, Option<&[u8]>>) -> io::Result<bool> {
        for _ in 0..2 {
            if let Some(holds) = self.hold_dirty(blocks) {
                return self.fill_dirty(&holds);
            }
            self.drain()?;
        }
        Ok(false)
    }

    /// Holds all blocks, or none if there is no room.
    fn hold_dirty<'a>(&self, blocks: &BTreeMap<u64, Option<&'a [u8]>>) -> Option<Vec<Held<'a>>> {
        let mut placement = self.blocks.placement.lock();
        placement.hits(&self.blocks.index, &mut self.blocks.recent.lane().waiting());
        let dirty = placement.dirty();
        if dirty.len() + blocks.len() > self.blocks.config.dirty_blocks_max() as usize || dirty.is_used_up() {
            return None;
        }
        let mut holds = Vec::with_capacity(blocks.len());
        for (&block, bytes) in blocks {
            let access = self.blocks.access(block, true);
            let found = loop {
                let found = placement.find(&self.blocks.index, block);
                let is_free = matches!(found, Found::Slot(_, word) if word.state() == State::Valid);
                let is_free = is_free || found == Found::Nothing;
                if placement.is_kept_clean(block) || placement.is_entered(block) || !is_free {
                    self.blocks.settled.wait(&mut placement);
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
                if planted(CacheBug::OverwriteDirty) {
                    let lost = placement.dirty().forget(access.block);
                    lost.into_iter().for_each(|slot| placement.dirty().settled((access.block, slot)));
                }
                placement.policy().hit(crate::policy::Slot(slot), access);
                self.blocks.index.begin_writing(slot);
                Some((slot, How::Own))
            }
            Found::Slot(before, _) => placement.spare(&self.blocks.index, access).ok().map(|slot| {
                placement.begin_write(access.block);
                // This very block may have been evicted for that slot.
                match self.blocks.index.word(before).is_doomed() {
                    false => placement.policy().hit(crate::policy::Slot(before), access),
                    true => placement.policy().miss(access),
                }
                (slot, How::Spare)
            }),
            // Without a slot the caller tries again, and reports the miss then.
            _ => placement.spare(&self.blocks.index, access).ok().map(|slot| {
                placement.policy().miss(access);
                placement.admit_dirty(&self.blocks.index, access, slot);
                (slot, How::New)
            }),
        };
        let is_miss = matches!(held, Some((_, How::New)));
        match held {
            Some(_) if is_miss => {
                self.blocks.counters.write_misses.add(1);
                self.blocks.counters.admissions.add(1);
            }
            Some(_) => self.blocks.counters.write_hits.add(1),
            None => {}
        }
        placement.count(access.relation, |stats| stats.writes += u64::from(held.is_some()));
        held
    }

    fn let_go(&self, holds: &[Held<'_>]) {
        let mut placement = self.blocks.placement.lock();
        for held in holds {
            match held.how {
                // The old checksum still applies, but must be verified again.
                How::Own if !self.blocks.index.word(held.slot).is_doomed() => {
                    self.blocks.index.set_claimed(held.slot, self.blocks.index.checksum(held.slot));
                }
                How::Own | How::New => {
                    placement.finish(&self.blocks.index, held.slot, None);
                }
                How::Spare => {
                    placement.end_write(held.access.block);
                    placement.give_back(&self.blocks.index, held.slot);
                }
            }
        }
        self.blocks.settled.notify_all();
    }

    /// Releases blocks whose slots may be partly written.
    fn drop_touched(&self, holds: &[Held<'_>]) {
        let mut placement = self.blocks.placement.lock();
        for held in holds {
            match held.how {
                How::Spare => {
                    placement.end_write(held.access.block);
                    placement.give_back(&self.blocks.index, held.slot);
                }
                _ => drop(placement.finish(&self.blocks.index, held.slot, None)),
            }
        }
        self.blocks.settled.notify_all();
    }

    fn fill_dirty(&self, holds: &[Held<'_>]) -> io::Result<bool> {
        let sums: Vec<_> = holds.iter().map(|held| (held.slot, checksum(held.bytes))).collect();
        self.service.end_claims(&sums);
        let Some(flagged) = self.flag_dirty() else {
            self.let_go(holds);
            return Ok(false);
        };
        let flagged = (!planted(CacheBug::DirtyWhileClosed)).then_some(flagged);
        let writes: Vec<_> = holds
            .iter()
            .map(|held| Write::new(self.blocks.shape.slot_offset(held.slot), held.bytes))
            .collect();
        if !self.service.write_slots("write of a block to be written back", &writes) {
            self.drop_touched(holds);
            return Ok(false);
        }
        let mut unneeded = Vec::new();
        {
            let mut placement = self.blocks.placement.lock();
            for (held, &(slot, sum)) in holds.iter().zip(&sums) {
                if held.how == How::Spare {
                    placement.replace(&self.blocks.index, slot, held.access);
                }
                unneeded.extend(placement.publish_dirty(&self.blocks.index, slot, sum));
            }
            self.blocks.settled.notify_all();
        }
        if !planted(CacheBug::AcknowledgeBeforeJournal) {
            self.service.write_journal();
        }
        drop(flagged);
        if self.service.is_out_of_service() {
            return Err(self.service.stranded());
        }
        if !unneeded.is_empty() {
            let mut placement = self.blocks.placement.lock();
            unneeded.into_iter().for_each(|slot| placement.give_back(&self.blocks.index, slot));
        }
        Ok(true)
    }

    /// Makes fast device and guard allow dirty blocks while the result is held.
    fn flag_dirty(&self) -> Option<RwLockReadGuard<'_, bool>> {
        let flagged = self.flagged.read();
        if *flagged {
            return Some(flagged);
        }
        drop(flagged);
        let mut flagged = self.flagged.write();
        if !*flagged {
            let (guard, name) = (self.blocks.config.guard.as_ref()?, self.service.guard_name()?);
            // Not during a revocation, which this would undo.
            let said = self.service.journal.unless_stopped(|| {
                self.service.needed();
                GuardState::Needs(name).write(&**guard)
            });
            if let Err(error) = said? {
                tracing::warn!(device = guard.name(), %error, "the guard cannot be written; writes go through");
                return None;
            }
            match self.service.journal.begin_dirty(&*self.blocks.fast) {
                Ok(()) => {}
                Err(error) => {
                    drop(flagged);
                    self.service.give_up("writing the superblock", &error);
                    return None;
                }
            }
            *flagged = true;
        }
        Some(RwLockWriteGuard::downgrade(flagged))
    }

    /// Drains, and keeps all blocks clean while the result is held.
    pub fn drain_for_good(&self, syncs: &MutexGuard<'_, Duration>) -> io::Result<RwLockWriteGuard<'_, bool>> {
        loop {
            self.drain_locked(syncs)?;
            // A holder of `flagged` waits for no thread that may wait for it.
            let flagged = self.flagged.write();
            if self.service.is_out_of_service() || self.blocks.placement.lock().dirty().is_empty() {
                return Ok(flagged);
            }
        }
    }

    /// Gives the guard the session of a cache without dirty blocks.
    pub fn unflag(&self, mut flagged: RwLockWriteGuard<'_, bool>) -> io::Result<()> {
        // The superblock already says so, and the next dirty block sets both flags again.
        *flagged = false;
        self.service.name_in_guard()
    }

    pub fn drain(&self) -> io::Result<()> {
        let syncs = self.syncs.lock();
        self.drain_locked(&syncs)
    }

    pub fn drain_locked(&self, syncs: &MutexGuard<'_, Duration>) -> io::Result<()> {
        if !self.is_on() {
            return Ok(());
        }
        if self.service.is_out_of_service() {
            return if self.service.is_stranded() { self.rescue(syncs) } else { Ok(()) };
        }
        self.blocks.placement.lock().dirty().seal();
        self.write_epochs()?;
        let settling = self.blocks.placement.lock().dirty().settling();
        if settling.is_empty() {
            return Ok(());
        }
        self.service.write_journal();
        if self.service.is_out_of_service() {
            return Err(self.service.stranded());
        }
        self.sync_fast()?;
        let mut placement = self.blocks.placement.lock();
        let epoch = placement.dirty().open() - 1;
        placement.dirty().set_durable(epoch);
        placement.settled(&self.blocks.index, &settling);
        Ok(())
    }

    fn sync_fast(&self) -> io::Result<()> {
        self.blocks.fast.sync().map_err(|error| {
            self.service.give_up("a sync", &error);
            self.service.stranded()
        })
    }

    fn write_epochs(&self) -> io::Result<()> {
        loop {
            let oldest = self.blocks.placement.lock().dirty().oldest();
            let Some((epoch, versions)) = oldest else { return Ok(()) };
            {
                let _gate = self.gate_lock.write();
                let blocks_max = (BATCH_BYTES / self.blocks.shape.block_bytes()).max(1);
                versions.chunks(blocks_max).try_for_each(|versions| self.write_versions(versions))?;
            }
            if !planted(CacheBug::CleanBeforeSync) {
                self.sync_below()?;
            }
            let count = self.blocks.placement.lock().epoch_written(&self.blocks.index, epoch);
            self.blocks.counters.written_back.add(count as u64);
        }
    }

    /// Syncs the slow device without a caller's request.
    ///
    /// If it fails, direct writes may be lost, so the next requested sync must fail, too.
    fn sync_below(&self) -> io::Result<()> {
        let is_written = self.is_slow_written.swap(false, Ordering::AcqRel);
        self.service.sync_slow().inspect_err(|_| {
            self.is_slow_written.fetch_or(is_written, Ordering::AcqRel);
            self.owes_error.fetch_or(is_written, Ordering::AcqRel);
        })
    }

    pub fn pay_error(&self) -> io::Result<()> {
        if self.owes_error.swap(false, Ordering::AcqRel) {
            let what = "a sync of it has failed since the last one that was asked for";
            return Err(io::Error::other(format!("{}: {what}", self.blocks.slow.name())));
        }
        Ok(())
    }

    fn write_versions(&self, versions: &[Version]) -> io::Result<()> {
        // Skips blocks cut off meanwhile.
        let versions: Vec<_> =
            versions.iter().copied().filter(|&(block, _)| self.blocks.is_whole(block)).collect();
        let mut buffers: Vec<_> =
            versions.iter().map(|_| AlignedBuffer::zeroed(self.blocks.shape.block_bytes())).collect();
        let mut reads: Vec<_> = versions
            .iter()
            .zip(&mut buffers)
            .map(|(&(_, slot), buffer)| Read::new(self.blocks.shape.slot_offset(slot), buffer))
            .collect();
        self.blocks.fast.read_batch(&mut reads);
        for (&(block, slot), read) in versions.iter().zip(reads) {
            let what = match read.result {
                Ok(()) if checksum(read.buffer) == self.blocks.index.checksum(slot) => continue,
                Ok(()) => "is damaged".to_owned(),
                Err(error) => format!("cannot be read: {error}"),
            };
            self.blocks.counters.errors.add(1);
            return Err(self.service.lost(block, &what));
        }
        let writes: Vec<_> = versions
            .iter()
            .zip(&buffers)
            .map(|(&(block, _), buffer)| Write::new(block << self.blocks.shape.block_shift, buffer))
            .collect();
        let regions =
            self.service.regions.of(writes.iter().map(|write| (write.offset, write.bytes.len() as u64)));
        if self.service.is_out_of_service() {
            // Without marks: nothing on the fast device is used again once all are written.
            return self.blocks.slow.write_batch(&writes);
        }
        self.service.mark(&regions);
        let outcome = match self.service.is_out_of_service() {
            true => Err(self.service.stranded()),
            false => self.blocks.slow.write_batch(&writes),
        };
        self.service.regions.end(&regions);
        outcome
    }

    pub fn sync_where_asked(&self, syncs: &MutexGuard<'_, Duration>) -> io::Result<()> {
        self.pay_error()?;
        if self.service.is_out_of_service() {
            self.drain_locked(syncs)?;
            return self.service.sync_slow();
        }
        let epoch = self.blocks.placement.lock().dirty().seal();
        if self.is_slow_written.swap(false, Ordering::AcqRel) {
            self.service.sync_slow().inspect_err(|_| self.is_slow_written.store(true, Ordering::Release))?;
        }
        if self.blocks.placement.lock().dirty().durable() >= epoch {
            return Ok(());
        }
        self.service.write_journal();
        if self.service.is_out_of_service() {
            self.drain_locked(syncs)?;
            return self.service.sync_slow();
        }
        if !planted(CacheBug::SyncWithoutFast) {
            self.sync_fast()?;
        }
        let mut placement = self.blocks.placement.lock();
        placement.dirty().set_durable(epoch);
        placement.pending().durable(epoch);
        Ok(())
    }

    fn rescue(&self, _syncs: &MutexGuard<'_, Duration>) -> io::Result<()> {
        // Marks are impossible now, so clean blocks may become older than the slow device.
        if let (Some(guard), Some(name)) = (&self.blocks.config.guard, self.service.guard_name()) {
            GuardState::OnlyDirtyOf(name).write(&**guard)?;
        }
        self.blocks.placement.lock().dirty().seal();
        self.write_epochs()?;
        let mut placement = self.blocks.placement.lock();
        let settling = placement.dirty().settling();
        placement.settled(&self.blocks.index, &settling);
        drop(placement);
        tracing::info!(
            device = self.blocks.fast.name(),
            "all blocks of the cache that was given up were saved"
        );
        self.service.revoke();
        self.service.end_stranding();
        self.service.check_revoked()
    }

    /// Fails while dirty blocks prevent writes of the slow device.
    pub fn check_stranded(&self) -> io::Result<()> {
        if self.service.is_stranded() {
            let syncs = self.syncs.lock();
            self.drain_locked(&syncs)?;
        }
        Ok(())
    }
}
