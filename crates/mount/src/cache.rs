//! The block cache before the files: blocks of each file, and when they are believed.
//!
//! One [`Cached`] has all blocks. Each file has extents of its address space (`extents.rs`). A
//! file's blocks belong to one *stamp* (`stamp.rs`):
//!
//! 1. Each read compares the stamp first. If it differs, the file was changed past the mount. All
//!    its extents are dropped, and nothing is cached until the change has settled.
//! 2. A change through the mount compares the stamp, records in the map that the file is being
//!    written, changes the file, and takes the new stamp. The last of several changes at a time
//!    records it.
//! 3. A change of part of a block, or one that moves or removes bytes, drops what it touched after
//!    the file has it and before the program learns of it.
//!
//! After a kill, a file counts if its stamp is the recorded one. The blocks are then as they were
//! at the record: a later change would have moved the stamp, or the record would say "being
//! written". `Cached` ensures for its part that its blocks are those of the last write through it.
//!
//! An address is never used again while the cache is open. A clean close empties all addresses
//! above the last one in use, and the next opening uses them again. So what an old fill or an old
//! journal says of a dropped extent harms nobody.
//!
//! After a failed fsync the kernel may show bytes that the disk does not have. Such a file is *in
//! doubt*: it is not cached until the machine restarts.
//!
//! Lock order: a file's state, then the map. No lock is held while a file is read or written.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use parking_lot::Mutex;
use terrace_cache::policy::Relation;
use terrace_cache::{CacheConfig, CacheError, CacheStats, Cached, RelationStats, Start};
use terrace_io::{AlignedBuffer, Directory};

use crate::counters::{Counters, Dropped};
use crate::extents::{EXTENTS_MAX, Extents, NOWHERE, extent_of, length_of, start_of};
use crate::file_state::{Change, FileState, Inner};
use crate::lower::Lower;
use crate::map::{FileMap, Found, Record};
use crate::planted::{MountBug, planted};
use crate::queries::QueryChange;
use crate::relations::Log;
use crate::slow::{LentRelations, SlowFiles, through};
use crate::slow_calls::AbortOnPanic;
use crate::space::Space;
use crate::stamp::{Clockwork, FileId};

mod transfers;

/// Longest that changes through the mount keep a file uncached after one from outside, in quiet
/// times.
const YOUNG_QUIETS_MAX: u32 = 3;
/// Bytes of the address space.
const SPACE_BYTES: u64 = 1 << 47;
/// Smaller files go past the cache: an open costs as much as what they hold.
pub(crate) const SMALL_BYTES: u64 = 16 << 10;
/// Largest range that is dropped block by block; of a larger one the whole extent is dropped.
const DROP_BYTES_MAX: u64 = 4 << 20;
const DROP_STEP_BYTES: u64 = 1 << 20;

#[derive(Debug)]
struct Known {
    slot: u32,
    record: Record,
}

/// The cache before all files of a mount.
pub(crate) struct FileCache {
    cached: Cached,
    map: Mutex<FileMap>,
    /// Files of the map that have no node.
    known: Mutex<HashMap<FileId, Known>>,
    /// Files of which a sync failed.
    in_doubt: Mutex<HashMap<FileId, u32>>,
    space: Space,
    clockwork: Clockwork,
    block_bytes: u64,
    /// The map cannot be written, so nothing is cached any more.
    is_broken: AtomicBool,
    /// All addresses or records are in use, so files that have none stay uncached.
    is_full: AtomicBool,
    counters: Arc<Counters>,
    kept_files: u64,
    /// Directories that were renamed, so that files below have other names.
    directory_renames: AtomicU64,
}

impl std::fmt::Debug for FileCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileCache").field("clockwork", &self.clockwork).finish_non_exhaustive()
    }
}

impl FileCache {
    /// Opens the cache in the file `name` of `directory` for the files of `found`.
    ///
    /// # Errors
    /// As [`Cached::open_in`], and those of the map as [`CacheError::Slow`].
    pub fn open(
        found: Found,
        directory: &dyn Directory,
        name: &str,
        config: CacheConfig,
        clockwork: Clockwork,
        counters: Arc<Counters>,
    ) -> Result<FileCache, CacheError> {
        let of_map = |source| CacheError::Slow { device: format!("{name}.map"), source };
        let Found { mut map, mut records, mut gaps, mut in_doubt, anew } = found;
        if let Some(reason) = anew {
            tracing::warn!(reason, "the cache starts empty");
        }
        if map.next > SPACE_BYTES / 2 {
            map.begin_anew(&mut in_doubt).map_err(of_map)?;
            (records, gaps) = (HashMap::new(), Vec::new());
        }
        let block_bytes = config.block_bytes as u64;
        let session = (map.session != 0).then_some(map.session);
        let relations = Arc::new(LentRelations { block_bytes });
        let config = config.identity(map.identity).relations(relations);
        let config = CacheConfig { session, ..config };
        let slow = Arc::new(SlowFiles::new(format!("the files before {name}"), SPACE_BYTES));
        let cached = Cached::open_in(slow, directory, name, config)?;
        if !matches!(cached.start(), Start::Warm { .. }) {
            for (slot, _) in records.drain().map(|(_, record)| record) {
                map.erase(slot).map_err(of_map)?;
            }
            gaps.clear();
        }
        map.session = cached.session().unwrap_or(0);
        map.write_header().map_err(of_map)?;
        cached.session_noted();
        let kept_files = records.len() as u64;
        let known = records.into_iter().map(|(id, (slot, record))| (id, Known { slot, record })).collect();
        Ok(FileCache {
            cached,
            map: Mutex::new(map),
            known: Mutex::new(known),
            in_doubt: Mutex::new(in_doubt),
            space: Space::new(block_bytes, gaps),
            clockwork,
            block_bytes,
            is_broken: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            counters,
            kept_files,
            directory_renames: AtomicU64::new(0),
        })
    }

    pub fn stats(&self) -> (CacheStats, u64) {
        (self.cached.stats(), self.kept_files)
    }

    /// The events of each relation, with its name.
    pub fn relation_stats(&self) -> Vec<(Arc<str>, RelationStats)> {
        self.space.relation_stats(&self.cached)
    }

    /// The relation that a file belongs to, if blocks of it are or were cached.
    pub fn relation_of(&self, path: &Path) -> Option<Relation> {
        self.space.relation_of(path)
    }

    /// A query begins or ends.
    pub fn note_query(&self, change: &QueryChange) {
        match change {
            QueryChange::Began(query, relations) => self.cached.query_begins(*query, relations),
            QueryChange::Ended(query) => self.cached.query_ends(*query),
        }
    }

    /// The file has another name now.
    pub fn renamed(&self, state: &FileState) {
        self.take_part(state, &mut state.lock());
    }

    /// A directory has another name now. Files below find out at their next access.
    pub fn directory_renamed(&self) {
        // Release: pairs with the acquire below, so that those find the new name.
        self.directory_renames.fetch_add(1, Ordering::Release);
    }

    /// Finds the relation of a file with extents, if it may be another one than before.
    fn update_part(&self, state: &FileState, inner: &mut Inner) {
        let is_old = inner.directory_renames != self.directory_renames.load(Ordering::Acquire);
        if inner.part.is_none() || is_old {
            self.take_part(state, inner);
        }
    }

    fn take_part(&self, state: &FileState, inner: &mut Inner) {
        let before = inner.part.take();
        if !inner.extents.is_empty() {
            inner.directory_renames = self.directory_renames.load(Ordering::Acquire);
            let length = inner.stamp.map_or(0, |stamp| stamp.bytes);
            inner.part = Some(self.space.take_part(&self.cached, &state.path(), length));
        }
        // Afterwards, so that a relation does not lose its number meanwhile.
        before.into_iter().for_each(|before| self.space.let_go(before));
    }

    fn is_usable(&self) -> bool {
        // Acquire: pairs with the release in `break_map`, which has written all it could.
        !self.is_broken.load(Ordering::Acquire) && self.cached.is_in_service()
    }

    fn break_map(&self, error: &io::Error) {
        if !self.is_broken.swap(true, Ordering::AcqRel) {
            tracing::warn!(%error, "the map of the cache cannot be written; the mount goes on without the cache");
        }
    }

    /// Compares the stamp; returns whether blocks may be used.
    fn verify(&self, state: &FileState, inner: &mut Inner, lower: &dyn Lower) -> io::Result<bool> {
        let stamp = lower.stamp()?;
        if !inner.is_known {
            inner.is_known = true;
            inner.is_in_doubt = self.in_doubt.lock().contains_key(&state.id);
            if let Some(Known { slot, record }) = self.known.lock().remove(&state.id) {
                inner.slot = Some(slot);
                inner.extents = record.extents;
                inner.is_recorded = true;
                let is_believed = record.is_distinct || planted(MountBug::NoCheckAtOpen);
                if is_believed {
                    inner.take_stamp(record.stamp);
                }
                if planted(MountBug::NoCheckAtOpen) {
                    inner.stamp = Some(stamp);
                }
            }
        }
        if inner.stamp != Some(stamp) {
            if planted(MountBug::RecordBeforeDrop) {
                (inner.stamp, inner.is_recorded) = (Some(stamp), false);
                self.record(state, inner);
            }
            self.drop_all(state, inner, Dropped::Outside);
            inner.take_stamp(stamp);
            let is_settled = self.clockwork.is_settled(&stamp, SystemTime::now());
            inner.young_since = (!is_settled).then(Instant::now);
            inner.young_until = inner.young_since.map(|since| since + self.clockwork.quiet);
        }
        if planted(MountBug::TrustYoung) {
            inner.young_until = None;
        }
        if inner.young_until.is_some_and(|until| Instant::now() < until) {
            return Ok(false);
        }
        inner.young_until = None;
        Ok(inner.left.is_none() && !inner.is_in_doubt && self.is_usable())
    }

    /// Whether blocks may be used now, for a read.
    fn is_trusted(&self, state: &FileState, inner: &mut Inner, lower: &dyn Lower) -> io::Result<bool> {
        let is_checked = inner.stamp.is_some() && planted(MountBug::NoCheckAtRead);
        match inner.writers {
            0 if !is_checked => self.verify(state, inner, lower),
            _ => Ok(self.is_believed(inner)),
        }
    }

    /// Whether blocks may be used by the last comparison of stamps.
    fn is_believed(&self, inner: &Inner) -> bool {
        let is_believed = inner.stamp.is_some() && inner.young_until.is_none();
        is_believed && inner.left.is_none() && !inner.is_in_doubt && self.is_usable()
    }

    /// Leaves a `log` alone, if no block is cached, nor was when the cache was closed. No block is
    /// cached from now on. Returns the log that the file is left as, also by an earlier name.
    pub fn leave(&self, state: &FileState, lower: &dyn Lower, log: Option<Log>) -> Option<Log> {
        let mut inner = state.lock();
        if log.is_some() && self.is_trusted(state, &mut inner, lower).is_ok() && inner.extents.is_empty() {
            inner.left = log;
        }
        inner.left
    }

    /// Drops all extents of a file.
    fn drop_all(&self, state: &FileState, inner: &mut Inner, reason: Dropped) {
        if inner.extents.is_empty() {
            return;
        }
        self.counters.dropped(reason);
        self.space.give_back(inner.extents.ranges());
        inner.extents = Extents::default();
        self.erase_record(state, inner);
    }

    /// A file without extents needs neither a record nor a relation.
    fn erase_record(&self, state: &FileState, inner: &mut Inner) {
        inner.part.take().into_iter().for_each(|part| self.space.let_go(part));
        inner.is_recorded = false;
        if let Some(slot) = inner.slot.take()
            && let Err(error) = self.map.lock().erase(slot)
        {
            tracing::debug!(file = ?state.id, "its record cannot be erased");
            self.break_map(&error);
        }
    }

    fn drop_extent(&self, inner: &mut Inner, extent: usize) {
        let address = std::mem::replace(&mut inner.extents.0[extent], NOWHERE);
        if address != NOWHERE {
            self.space.give_back([(address, length_of(extent))]);
            inner.is_recorded = false;
        }
    }

    /// The address of `offset`, taking a new extent if needed.
    fn address(&self, state: &FileState, inner: &mut Inner, offset: u64) -> Option<u64> {
        let extent = extent_of(offset)?;
        if inner.extents.0[extent] == NOWHERE {
            let mut map = self.map.lock();
            inner.slot = inner.slot.or_else(|| map.take_slot());
            let Some(_) = inner.slot else { return self.full("records") };
            let taken = map.take_addresses(length_of(extent), SPACE_BYTES);
            drop(map);
            match taken {
                Ok(Some(address)) => {
                    inner.extents.0[extent] = address;
                    self.take_part(state, inner);
                }
                Ok(None) => return self.full("addresses"),
                Err(error) => {
                    self.break_map(&error);
                    return None;
                }
            }
            inner.is_recorded = false;
        }
        inner.extents.address(offset)
    }

    fn full(&self, what: &str) -> Option<u64> {
        // Relaxed: it only keeps the warning from coming again.
        if !self.is_full.swap(true, Ordering::Relaxed) {
            tracing::warn!("the map has no {what} left; further files are cached after a remount");
        }
        None
    }

    /// Records the file as it is now; returns the record if it was written.
    fn record(&self, state: &FileState, inner: &mut Inner) -> Option<Known> {
        if inner.extents.is_empty() {
            self.erase_record(state, inner);
            return None;
        }
        let (slot, stamp) = (inner.slot?, inner.stamp?);
        // After a failure of the fast device the file stays recorded as being written.
        if inner.is_recorded || !self.is_usable() {
            return None;
        }
        let is_distinct = self.clockwork.is_distinct(&stamp, inner.watched(), SystemTime::now());
        let record = Record { id: state.id, stamp, is_distinct, extents: inner.extents };
        if let Err(error) = self.map.lock().write_clean(slot, &record) {
            self.break_map(&error);
            return None;
        }
        // If not distinct yet, a later access records it again.
        inner.is_recorded = is_distinct;
        Some(Known { slot, record })
    }

    /// Begins a change of the file through the mount.
    pub fn begin(&self, state: &FileState, lower: &dyn Lower) -> io::Result<Change> {
        let mut inner = state.lock();
        let is_trusted = match inner.writers {
            0 => self.verify(state, &mut inner, lower)?,
            _ => self.is_believed(&inner),
        };
        inner.writers += 1;
        self.update_part(state, &mut inner);
        if let (1, Some(slot), Some(stamp)) = (inner.writers, inner.slot, inner.stamp)
            && !planted(MountBug::NoWritingRecord)
        {
            let record = Record { id: state.id, stamp, is_distinct: false, extents: inner.extents };
            inner.is_recorded = false;
            if let Err(error) = self.map.lock().write_writing(slot, &record) {
                self.break_map(&error);
            }
        }
        Ok(Change { _guard: AbortOnPanic, seen: inner.extents, is_trusted, part: inner.part })
    }

    /// Ends a change of `offset..end`.
    ///
    /// An extent that somebody took since the beginning may have bytes from before the change.
    pub fn finish(&self, state: &FileState, lower: &dyn Lower, change: &Change, changed: Option<(u64, u64)>) {
        let mut inner = state.lock();
        if let Some((offset, end)) = changed {
            for extent in 0..EXTENTS_MAX {
                let (start, after) = (start_of(extent), start_of(extent) + length_of(extent));
                if start < end && offset < after && inner.extents.0[extent] != change.seen.0[extent] {
                    self.drop_extent(&mut inner, extent);
                }
            }
        }
        inner.writers -= 1;
        if inner.writers > 0 {
            return;
        }
        inner.is_recorded = false;
        match lower.stamp() {
            Ok(stamp) => {
                inner.take_stamp(stamp);
                // A change from outside may have begun meanwhile, and this stamp hides it. Programs
                // that never pause must not keep the file out for ever.
                if let (Some(_), Some(since)) = (inner.young_until, inner.young_since) {
                    let latest = since + YOUNG_QUIETS_MAX * self.clockwork.quiet;
                    inner.young_until = Some(latest.min(Instant::now() + self.clockwork.quiet));
                }
                self.record(state, &mut inner);
            }
            Err(_) => {
                self.drop_all(state, &mut inner, Dropped::Failed);
                inner.stamp = None;
            }
        }
    }

    /// Does `act`, which changes the file's times but not its content.
    pub fn around<T>(
        &self,
        state: &FileState,
        lower: &dyn Lower,
        act: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        // If the stamp cannot be read, the next read compares it anyhow.
        let Ok(change) = self.begin(state, lower) else { return act() };
        let outcome = act();
        self.finish(state, lower, &change, None);
        outcome
    }

    /// Does `act`, which changes the bytes of `offset..end`, and drops them.
    pub fn change<T>(
        &self,
        state: &FileState,
        lower: &dyn Lower,
        (offset, end): (u64, u64),
        act: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let change = self.begin(state, lower)?;
        let outcome = act();
        if !planted(MountBug::ForgetTruncate) {
            if !change.seen.is_empty() {
                self.counters.dropped(Dropped::Changed);
            }
            self.drop_range(state, &change.seen, offset, end);
        }
        self.finish(state, lower, &change, Some((offset, end)));
        outcome
    }

    /// Drops the blocks of `offset..end` at the extents `seen`.
    fn drop_range(&self, state: &FileState, seen: &Extents, offset: u64, end: u64) {
        for extent in 0..EXTENTS_MAX {
            let (start, after) = (start_of(extent), start_of(extent) + length_of(extent));
            let (from, to) = (offset.max(start), end.min(after));
            if from >= to || seen.0[extent] == NOWHERE {
                continue;
            }
            let (from, to) = (from - from % self.block_bytes, to.next_multiple_of(self.block_bytes));
            if to - from > DROP_BYTES_MAX || !self.drop_blocks(seen.0[extent] + (from - start), to - from) {
                let mut inner = state.lock();
                if inner.extents.0[extent] == seen.0[extent] {
                    self.drop_extent(&mut inner, extent);
                }
            }
        }
    }

    /// Drops blocks so that they stay dropped after a kill; returns whether that worked.
    fn drop_blocks(&self, address: u64, bytes: u64) -> bool {
        if !self.cached.is_in_service() {
            return false;
        }
        // A write past the cache drops blocks and says so in the journal. The file has the bytes.
        let nothing = AlignedBuffer::zeroed(bytes.min(DROP_STEP_BYTES) as usize);
        (0..bytes).step_by(DROP_STEP_BYTES as usize).all(|done| {
            let step = &nothing[..(bytes - done).min(DROP_STEP_BYTES) as usize];
            through(None, None, (0, 0), || self.cached.write_past(address + done, step)).0.is_ok()
        })
    }

    /// Drops all blocks of a file after a failed sync, and caches none until the machine restarts.
    pub fn distrust(&self, state: &FileState) {
        if planted(MountBug::TrustFailedSync) {
            return;
        }
        let mut inner = state.lock();
        self.drop_all(state, &mut inner, Dropped::Failed);
        inner.stamp = None;
        inner.is_in_doubt = true;
        let mut in_doubt = self.in_doubt.lock();
        if in_doubt.contains_key(&state.id) {
            return;
        }
        let mut map = self.map.lock();
        let noted = match map.take_slot() {
            Some(slot) => {
                in_doubt.insert(state.id, slot);
                map.write_in_doubt(slot, state.id)
            }
            None => Err(io::Error::other("too many files")),
        };
        drop((map, in_doubt));
        if let Err(error) = noted {
            self.break_map(&error);
        }
    }

    /// The file is no more.
    fn believe_again(&self, file: FileId) {
        if let Some(slot) = self.in_doubt.lock().remove(&file)
            && let Err(error) = self.map.lock().erase(slot)
        {
            self.break_map(&error);
        }
    }

    /// Takes note of a file that was made through the mount just now.
    pub fn created(&self, state: &FileState, lower: &dyn Lower) {
        let mut inner = state.lock();
        // Somebody else wrote bytes in it, and may go on.
        let Some(stamp) = lower.stamp().ok().filter(|stamp| stamp.bytes == 0) else { return };
        if inner.stamp.is_none() && inner.writers == 0 && !self.known.lock().contains_key(&state.id) {
            inner.is_known = true;
            inner.take_stamp(stamp);
        }
    }

    /// Puts a file's state away because nobody has the file any more.
    pub fn forget(&self, state: &FileState, is_deleted: bool) {
        let mut inner = state.lock();
        if is_deleted {
            self.drop_all(state, &mut inner, Dropped::Deleted);
            self.believe_again(state.id);
        }
        if inner.extents.is_empty() {
            self.erase_record(state, &mut inner);
            return;
        }
        if inner.writers > 0 {
            // The stamp of the end will not be known here.
            self.drop_all(state, &mut inner, Dropped::Failed);
            return;
        }
        inner.is_recorded = false;
        match self.record(state, &mut inner) {
            Some(known) => {
                self.known.lock().insert(state.id, known);
                inner.part.take().into_iter().for_each(|part| self.space.let_go(part));
                *inner = Inner::default();
            }
            None => self.drop_all(state, &mut inner, Dropped::Failed),
        }
    }

    /// Frees unused addresses and lets the cache maintain itself. Call it about once a second.
    pub fn maintain(&self) {
        self.space.free_unused(&self.cached);
        self.cached.maintain_if_needed();
    }

    /// Closes the cache so that the next opening is warm. All files were forgotten before.
    pub fn close(&self) -> Result<(), CacheError> {
        self.space.free_unused(&self.cached);
        let was_usable = self.is_usable();
        let mut map = self.map.lock();
        let known = self.known.lock();
        let ends = known.values().flat_map(|known| known.record.extents.ranges());
        let next = ends.map(|(address, bytes)| address + bytes).max().unwrap_or(0);
        if !planted(MountBug::ReuseFilled) {
            // A late fill may have come after its extent was freed.
            self.cached.free(next, SPACE_BYTES - next);
        }
        let closed = self.cached.retire();
        map.session = if was_usable { self.cached.session().unwrap_or(map.session) } else { 0 };
        if closed.is_ok() && was_usable {
            map.next = next;
        }
        // A map that cannot be written keeps a session that the cache may refuse: then it is cold.
        if let Err(error) = map.write_header() {
            tracing::warn!(%error, "the map of the cache cannot be written");
        }
        closed
    }
}

#[cfg(test)]
mod tests;
