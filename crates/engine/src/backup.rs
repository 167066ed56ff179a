//! Online backup: page images first, then the log that makes them consistent.
//!
//! 1. Copy the durable image of each page in small batches, under the maintenance lock. So no
//!    extent is reused while it is read (docs/durability.md, rule 15).
//! 2. In rounds, copy the pages written or freed since, until few are left. The log is cut as
//!    usual.
//! 3. Begin the last round and hold the cut. The log from there has every change that an image
//!    lacks.
//! 4. Choose an end of the log above every copied image, and make it durable. Copy the log up to
//!    it, without its mapping records. Then release the cut.
//!
//! The copy restores to the last commit below that end. It has every commit acknowledged before the
//! backup began, and with each commit all earlier ones.
//!
//! The source is not written. Writers that fill the log during the last round wait. After half of
//! their patience the backup releases the log, copies the changed pages and holds it again. It
//! fails after [`OUTRUN_MAX`] such rounds.
//!
//! | file         | contents                      |
//! |--------------|-------------------------------|
//! | `packed.rs`  | the page file of the copy     |
//! | `archive.rs` | checks and restores a copy    |

mod archive;
mod packed;

use std::io;
use std::ops::Range;

use parking_lot::MutexGuard;
use terrace_io::{AlignedBuffer, BlockDevice, Read};

pub(crate) use self::archive::{Archive, Tally, Visitor};
pub(crate) use self::packed::{PackedFile, StagedImage, copy_buffer};
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId};
use crate::maintenance::{BackupHold, Maintenance, PageSet};
use crate::planted::{Bug, planted};
use crate::store::files::Files;
use crate::store::mapping_word::{Extent, MappingWord};
use crate::store::page;
use crate::store::superblock::Superblock;
use crate::wal::{EpochRule, LogCopy, LogHeader, Wal, geometry_for};

/// Bytes of images copied at a time, unless one page is larger.
pub(crate) const BATCH_BYTES: usize = 256 << 10;
/// The last round begins when at most this many pages are left, or this share of all.
const LAST_PAGES: u64 = 64;
const LAST_SHARE: u64 = 256;
/// Rounds before the last one. A repeated last round gets half of them.
const ROUNDS_MAX: u32 = 16;

/// Maximum number of repeated last rounds.
const OUTRUN_MAX: u32 = 16;

/// Totals of a finished backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Copied {
    /// Pages with an image in the copy.
    pub(crate) images: u64,
    pub(crate) file_bytes: u64,
    /// Bytes of log to replay on restore.
    pub(crate) log_bytes: u64,
    /// End of the copied log.
    pub(crate) end: Lsn,
}

/// A running backup. An early drop releases the log and leaves useless files.
pub(crate) struct Backup<'m> {
    maintenance: &'m Maintenance,
    target: Files,
    pages: Option<PackedFile>,
    due: PageSet,
    /// Ids below this are not due.
    next: PageId,
    rounds: u32,
    /// Number of times the last round began again.
    outrun: u32,
    staging: AlignedBuffer,
    phase: Phase,
}

enum Phase {
    /// Copies images; the log may be cut.
    Ahead,
    /// Copies images of the last round; the log is held.
    Last {
        from: Lsn,
    },
    /// Copies the log.
    Log {
        from: Lsn,
        end: Lsn,
        copy: LogCopy,
    },
    Done(Copied),
}

impl<'m> Backup<'m> {
    /// Begins a backup into two empty files. Only one may run.
    pub(crate) fn begin(maintenance: &'m Maintenance, target: Files) -> Result<Backup<'m>> {
        let staging = copy_buffer(BATCH_BYTES)?;
        let pages = PackedFile::new(
            target.pages.clone(),
            maintenance.space.geometry(),
            maintenance.pool.page_bytes(),
        )?;
        let mut round_state = maintenance.round_state.lock();
        debug_assert!(round_state.backup.is_none(), "one backup at a time");
        round_state.backup =
            Some(BackupHold { changed: PageSet::default(), cut_max: Lsn(u64::MAX), outrun: 0 });
        let due = PageSet::below(maintenance.pool.ids.lock().ends());
        drop(round_state);
        Ok(Backup {
            maintenance,
            target,
            pages: Some(pages),
            due,
            next: PageId::NONE,
            rounds: 0,
            outrun: 0,
            staging,
            phase: Phase::Ahead,
        })
    }
}

/// Reads images in one batch, adjacent in `staging`. Returns range and outcome of each.
pub(crate) fn read_images(
    device: &dyn BlockDevice,
    extents: impl Iterator<Item = Extent>,
    staging: &mut [u8],
) -> Vec<(Range<usize>, io::Result<()>)> {
    let (mut ranges, mut reads, mut rest) = (Vec::new(), Vec::new(), staging);
    let mut at = 0;
    for extent in extents {
        let (slot, behind) = rest.split_at_mut(extent.bytes());
        reads.push(Read::new(extent.offset(), slot));
        ranges.push(at..at + extent.bytes());
        (rest, at) = (behind, at + extent.bytes());
    }
    device.read_batch(&mut reads);
    ranges.into_iter().zip(reads.into_iter().map(|read| read.result)).collect()
}

impl Drop for Backup<'_> {
    fn drop(&mut self) {
        self.maintenance.round_state.lock().backup = None;
    }
}

impl Backup<'_> {
    /// Returns the totals once all is durable.
    pub(crate) fn step(&mut self) -> Result<Option<Copied>> {
        // A failed or closed database reports its own error.
        let reads_log = self.due.len() == 0 && !matches!(self.phase, Phase::Ahead);
        let stepped = self.advance();
        self.maintenance.pool.check()?;
        // Reading fails when the log is cut below the reader; the next attempt reads another part.
        let again = self.last_round_again()?;
        if !(again && reads_log && self.pages.is_some()) {
            stepped?;
        }
        Ok(if let Phase::Done(copied) = self.phase { Some(copied) } else { None })
    }

    /// The end of the copied log, once known.
    #[cfg(test)]
    pub(crate) fn end(&self) -> Option<Lsn> {
        match self.phase {
            Phase::Ahead | Phase::Last { .. } => None,
            Phase::Log { end, .. } => Some(end),
            Phase::Done(copied) => Some(copied.end),
        }
    }

    /// Rounds left before the last one.
    #[cfg(test)]
    pub(crate) fn rounds_left(&self) -> u32 {
        ROUNDS_MAX.saturating_sub(self.rounds)
    }

    /// Makes the next round the last one.
    #[cfg(test)]
    pub(crate) fn use_up_rounds(&mut self) {
        self.rounds = ROUNDS_MAX;
    }

    /// Whether the cut of the log is held.
    #[cfg(test)]
    pub(crate) fn holds_log(&self) -> bool {
        !matches!(self.phase, Phase::Ahead)
    }

    fn advance(&mut self) -> Result<()> {
        match &mut self.phase {
            Phase::Ahead | Phase::Last { .. } => {
                // Larger pages may have appeared since.
                let longest = self.maintenance.pool.frames.largest().page_bytes();
                if self.staging.len() < longest {
                    self.staging = copy_buffer(longest)?;
                }
                let ids = self.due.take(self.next, self.staging.len());
                if let Some(&last) = ids.last() {
                    self.next = last;
                    return self.copy(&ids);
                }
                self.next_round()
            }
            Phase::Log { from, end, copy } => {
                if !copy.step()? {
                    let (from, end) = (*from, *end);
                    self.finish(from, end)?;
                }
                Ok(())
            }
            Phase::Done(_) => Ok(()),
        }
    }

    /// Begins the last round again if writers took the held log.
    ///
    /// # Errors
    /// [`Error::Io`] after too many attempts, or if the copy's log cannot be truncated.
    fn last_round_again(&mut self) -> Result<bool> {
        let outrun = self.maintenance.round_state.lock().backup.as_ref().map_or(0, |hold| hold.outrun);
        if outrun == self.outrun || matches!(self.phase, Phase::Done(_)) {
            return Ok(false);
        }
        self.outrun = outrun;
        if outrun > OUTRUN_MAX {
            let what = "writers needed the log before the last of it was copied, every time; use a faster destination \
                        or a larger log";
            return Err(Error::io(
                "back up",
                self.maintenance.pool.file(),
                None,
                std::io::Error::other(what),
            ));
        }
        // The hold has the pages that changed since. Records of two attempts must not mix.
        let log = &self.target.log;
        log.set_len(0).map_err(|source| Error::io("cut", log.name(), None, source))?;
        self.phase = Phase::Ahead;
        // Many pages may be due: run some rounds before the next last one.
        self.rounds = self.rounds.min(ROUNDS_MAX / 2);
        Ok(true)
    }

    /// Ends a round.
    fn next_round(&mut self) -> Result<()> {
        let maintenance = self.maintenance;
        if let Phase::Last { from } = self.phase {
            let mut end = maintenance.wal.tail();
            if planted(Bug::BackupEndsLogEarly) {
                end = maintenance.round_state.lock().superblock.log_end;
            }
            // The copy reads the log's file.
            if planted(Bug::BackupReadsUnfiled) {
                maintenance.wal.flush_to(end)?;
            } else {
                maintenance.wal.file_to(end)?;
            }
            return self.begin_log(from, end);
        }
        self.rounds += 1;
        self.next = PageId::NONE;
        let mut round_state = maintenance.round_state.lock();
        let hold = round_state.backup.as_mut().expect("held until the backup is dropped");
        self.due = std::mem::take(&mut hold.changed);
        if planted(Bug::BackupSkipsChangedPages) {
            self.due = PageSet::default();
        }
        let images = self.pages.as_ref().map_or(0, PackedFile::images);
        let few = LAST_PAGES.max(images / LAST_SHARE);
        if self.due.len() <= few || self.rounds >= ROUNDS_MAX {
            let from = maintenance.wal.cut();
            if !planted(Bug::BackupCutsLog) {
                hold.cut_max = from;
            }
            self.phase = Phase::Last { from };
        }
        MutexGuard::unlock_fair(round_state);
        Ok(())
    }

    /// Copies the current images of `ids`.
    fn copy(&mut self, ids: &[PageId]) -> Result<()> {
        let maintenance = self.maintenance;
        let mut round_state = maintenance.round_state.lock();
        // A closed database may have another owner, but not while this lock is held.
        maintenance.pool.check()?;
        let mapped: Vec<(PageId, MappingWord)> =
            ids.iter().map(|&id| (id, maintenance.durable_state(id))).collect();
        let there: Vec<(PageId, MappingWord, Extent)> = mapped
            .iter()
            .filter_map(|&(id, mapped)| mapped.extent().map(|extent| (id, mapped, extent)))
            .collect();
        if planted(Bug::BackupReadsFreedBlocks) {
            MutexGuard::unlocked(&mut round_state, || maintenance.checkpoint_now(true))?;
        }
        let extents = there.iter().map(|&(_, _, extent)| extent);
        let read = read_images(maintenance.file.slow(), extents, &mut self.staging);
        // Let the maintenance thread take the lock.
        MutexGuard::unlock_fair(round_state);
        let file = maintenance.pool.file();
        let mut images = Vec::with_capacity(there.len());
        for (&(id, mapped, extent), (staged, outcome)) in there.iter().zip(read) {
            let (offset, at) = (extent.offset(), staged.start);
            outcome.map_err(|source| Error::io("read", file, Some(offset), source))?;
            let checksum = page::verify_image(&self.staging[staged], id, mapped).map_err(|what| {
                Error::corrupt(file, Some(id.0), format!("{what} (byte {offset} of the file)"))
            })?;
            images.push(StagedImage { id, checksum, blocks: extent.blocks, at });
        }
        let pages = self.pages.as_mut().expect("taken at the end only");
        for (id, _) in mapped.iter().filter(|(_, mapped)| !mapped.has_image()) {
            pages.forget(*id)?;
        }
        pages.put(&images, &self.staging)
    }

    fn begin_log(&mut self, from: Lsn, end: Lsn) -> Result<()> {
        let superblock = self.superblock(from, end);
        let geometry = geometry_for(from, end)?;
        let header =
            LogHeader { database: superblock.uuid, timeline: superblock.timeline, largest: geometry };
        Wal::create(&*self.target.log, &header, geometry)?;
        let rule = EpochRule { epoch: superblock.epoch, first_lsn: superblock.epoch_start };
        let records = self.maintenance.wal.scan(from, rule)?;
        let copy = LogCopy::new(records, end, self.target.log.clone(), geometry)?;
        self.phase = Phase::Log { from, end, copy };
        Ok(())
    }

    fn finish(&mut self, from: Lsn, end: Lsn) -> Result<()> {
        let log = &self.target.log;
        log.sync().map_err(|source| Error::io("sync", log.name(), None, source))?;
        let superblock = self.superblock(from, end);
        let pages = self.pages.take().expect("finished once");
        let images = pages.images();
        let file_bytes = pages.finish(superblock)?;
        self.phase = Phase::Done(Copied { images, file_bytes, log_bytes: end.0 - from.0, end });
        Ok(())
    }

    /// The copy's superblock, without the numbers of its page file. Its capacity of the log is the
    /// one that the database's log may grow to for commits.
    fn superblock(&self, from: Lsn, end: Lsn) -> Superblock {
        let round_state = self.maintenance.round_state.lock();
        Superblock {
            cut: from,
            log_end: end,
            highest_timestamp: round_state
                .superblock
                .highest_timestamp
                .max(self.maintenance.pool.timestamp_now()),
            page_ids_end: self.maintenance.pool.ids_ends_to_name(),
            log_capacity: self.maintenance.wal.capacity_limit(),
            ring: None,
            ..round_state.superblock.clone()
        }
    }
}
