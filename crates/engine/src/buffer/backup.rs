//! Copying a database while it is used: images first, then the log that makes one state of them.
//!
//! 1. Every page is copied as its durable image stands, a few at a time, under the upkeep's lock: so no place that is
//!    read can be used again meanwhile, and none has to be kept from being used for longer (durability, rule 15).
//! 2. Pages that got another image since, or were freed, are copied again, in rounds, until few are left. All the while
//!    the log is cut as ever.
//! 3. The last round begins by holding the cut of the log where it is. Whatever image a page then has in the copy, the
//!    log from there on says all that it lacks: it was in force when the round began, or was copied later.
//! 4. The end of the log is drawn and made durable. It lies above every image that was copied. The log is copied from
//!    the cut to there, without what it says about places. Then the cut is let go.
//!
//! What comes back is the state after the last commit below that end: every commit that was acknowledged before the
//! copying began is in it, and with any commit all that were before it.
//!
//! Nothing is written to the source, and nothing but the cut is held back; a copy that fails leaves it as it was.
//! Writers that outrun the last round wait for log space as they do for a checkpoint. When they have waited for half of
//! what they may, the backup lets the log go and they go on. It then copies the pages that changed meanwhile and holds the
//! log anew; after [`OUTRUN_MAX`] such rounds it fails.
//!
//! | file         | what is in it                                       |
//! |--------------|-----------------------------------------------------|
//! | `changed.rs` | sets of pages                                       |
//! | `packed.rs`  | the page file of the copy                           |
//! | `archive.rs` | reading the copy back: checking it, restoring it    |

mod archive;
mod changed;
mod packed;

use std::io;
use std::ops::Range;

use parking_lot::MutexGuard;
use terrace_block::{AlignedBuffer, BlockDevice, Read};

pub(crate) use self::archive::{Archive, Tally, Visitor};
pub(crate) use self::changed::PageSet;
pub(crate) use self::packed::{PackedFile, StagedImage, copy_buffer};
use super::create::Files;
use super::pool::Pool;
use super::upkeep::Upkeep;
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId};
use crate::planted::{Bug, planted};
use crate::store::page;
use crate::store::place::{Extent, Mapped};
use crate::store::superblock::Superblock;
use crate::wal::{EpochRule, LogCopy, LogHeader, Wal, geometry_for};

/// Bytes of images copied at a time: several of the largest nodes, or one page that is larger.
pub(super) const BATCH_BYTES: usize = 256 << 10;
/// The last round begins when no more pages than this are left, or one in so many of all.
const LAST_PAGES: u64 = 64;
const LAST_SHARE: u64 = 256;
/// Rounds, at most: then the next one is the last. Half as many when the last round has to begin again.
const ROUNDS_MAX: u32 = 16;

/// Times that a backup may lose the log it holds and begin its last round again.
const OUTRUN_MAX: u32 = 16;

/// What the background work has to know of a backup under way.
#[derive(Debug)]
pub(crate) struct BackupHold {
    /// Pages that got another image, or were freed, since the last round began.
    pub(super) changed: PageSet,
    /// The log is not cut beyond this.
    pub(super) floor: Lsn,
    /// Times that writers needed the log while it was held.
    outrun: u32,
}

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Copied {
    /// Pages that have an image in the copy.
    pub(crate) images: u64,
    /// Bytes of the copy's page file.
    pub(crate) file_bytes: u64,
    /// Bytes of log that restoring replays.
    pub(crate) log_bytes: u64,
    /// Where the log of the copy ends.
    pub(crate) end: Lsn,
}

/// A backup under way. Dropped before it is done, it lets go of the log; the files are then good for nothing.
pub(crate) struct Backup<'p> {
    pool: &'p Pool,
    target: Files,
    pages: Option<PackedFile>,
    due: PageSet,
    /// Ids below this are not due.
    next: PageId,
    rounds: u32,
    /// Times that this backup has begun its last round again.
    outrun: u32,
    staging: AlignedBuffer,
    phase: Phase,
}

enum Phase {
    /// Images, while the log may be cut.
    Ahead,
    /// Images of the last round: the log is held from here on. The end is only set early by a planted bug.
    Last {
        from: Lsn,
        end: Option<Lsn>,
    },
    /// The log.
    Log {
        from: Lsn,
        end: Lsn,
        copy: LogCopy,
    },
    Done(Copied),
}

impl Pool {
    /// Begins a backup into two empty files. One at a time: the caller sees to that.
    pub(crate) fn begin_backup(&self, target: Files) -> Result<Backup<'_>> {
        let staging = copy_buffer(BATCH_BYTES)?;
        let pages = PackedFile::new(target.pages.clone(), self.space.geometry(), self.page_bytes)?;
        let mut upkeep = self.upkeep.lock();
        debug_assert!(upkeep.backup.is_none(), "one backup at a time");
        upkeep.backup = Some(BackupHold { changed: PageSet::default(), floor: Lsn(u64::MAX), outrun: 0 });
        let due = PageSet::below(self.ids.lock().ends());
        drop(upkeep);
        Ok(Backup {
            pool: self,
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

impl Pool {
    /// Takes the log from a backup that holds it while commits have waited for long: the backup repeats its last round.
    pub(crate) fn take_log_from_backup(&self) {
        self.release_log(&mut self.upkeep.lock());
    }

    /// The same before the log is so full that what makes room in it finds none for its own records.
    pub(super) fn keep_log_for_upkeep(&self, upkeep: &mut Upkeep) {
        if self.wal.tail().0 - self.wal.cut().0 > self.log_capacity / 16 * 13 {
            self.release_log(upkeep);
        }
    }

    fn release_log(&self, upkeep: &mut Upkeep) {
        if let Some(backup) = upkeep.backup.as_mut().filter(|backup| backup.floor != Lsn(u64::MAX)) {
            tracing::warn!("a backup repeats its last round: commits wait for the log that it holds");
            backup.floor = Lsn(u64::MAX);
            backup.outrun += 1;
        }
    }
}

/// Reads the images at these places at once, one behind the other into `staging`, which is long enough. Where in it each is,
/// and what became of it.
pub(super) fn read_images(
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
        self.pool.upkeep.lock().backup = None;
    }
}

impl Backup<'_> {
    /// Copies a little more. What was copied, when all is and everything is durable.
    pub(crate) fn step(&mut self) -> Result<Option<Copied>> {
        // Whatever goes wrong in a database that has failed or was closed: that is why.
        let reads_log = self.due.len() == 0 && !matches!(self.phase, Phase::Ahead);
        let stepped = self.advance();
        self.pool.check()?;
        // A reader of the log fails when the log is cut below it; the next attempt reads another part. Pages that could
        // not be copied are an error all the same, as is a page file that could not be finished.
        let again = self.last_round_again()?;
        if !(again && reads_log && self.pages.is_some()) {
            stepped?;
        }
        Ok(if let Phase::Done(copied) = self.phase { Some(copied) } else { None })
    }

    /// Where the log of the copy ends, once that is known.
    #[cfg(test)]
    pub(crate) fn end(&self) -> Option<Lsn> {
        match self.phase {
            Phase::Ahead | Phase::Last { .. } => None,
            Phase::Log { end, .. } => Some(end),
            Phase::Done(copied) => Some(copied.end),
        }
    }

    /// Rounds there may be yet before the last one.
    #[cfg(test)]
    pub(crate) fn rounds_left(&self) -> u32 {
        ROUNDS_MAX.saturating_sub(self.rounds)
    }

    /// Has the next round be the last one, as after very many.
    #[cfg(test)]
    pub(crate) fn use_up_rounds(&mut self) {
        self.rounds = ROUNDS_MAX;
    }

    /// Whether the log is being held from being cut.
    #[cfg(test)]
    pub(crate) fn holds_log(&self) -> bool {
        !matches!(self.phase, Phase::Ahead)
    }

    fn advance(&mut self) -> Result<()> {
        match &mut self.phase {
            Phase::Ahead | Phase::Last { .. } => {
                // Larger pages may have come into use meanwhile.
                let longest = self.pool.frames.largest().page_bytes();
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

    /// Begins the last round again if writers needed the log that it held.
    ///
    /// # Errors
    /// [`Error::Io`] when that happened too often, or emptying the copy's log failed.
    fn last_round_again(&mut self) -> Result<bool> {
        let outrun = self.pool.upkeep.lock().backup.as_ref().map_or(0, |hold| hold.outrun);
        if outrun == self.outrun || matches!(self.phase, Phase::Done(_)) {
            return Ok(false);
        }
        self.outrun = outrun;
        if outrun > OUTRUN_MAX {
            let what = "writers needed the log before the last of it was copied, every time; use a faster destination \
                        or a larger log";
            return Err(Error::io("back up", self.pool.file(), None, std::io::Error::other(what)));
        }
        // What was left of `due` stays due, and the pages that changed since are in the hold. Records of the first
        // attempt must not follow those of the next.
        let log = &self.target.log;
        log.set_len(0).map_err(|source| Error::io("cut", log.name(), None, source))?;
        self.phase = Phase::Ahead;
        // More pages may be due by now than the next last round could copy in time: some rounds ahead of it again.
        self.rounds = self.rounds.min(ROUNDS_MAX / 2);
        Ok(true)
    }

    /// All that was due is copied.
    fn next_round(&mut self) -> Result<()> {
        let pool = self.pool;
        if let Phase::Last { from, end } = self.phase {
            let end = match end {
                Some(early) => early,
                None => pool.wal.tail(),
            };
            pool.wal.flush_to(end)?;
            return self.begin_log(from, end);
        }
        self.rounds += 1;
        self.next = PageId::NONE;
        let mut upkeep = pool.upkeep.lock();
        let hold = upkeep.backup.as_mut().expect("held until the backup is dropped");
        self.due = std::mem::take(&mut hold.changed);
        let images = self.pages.as_ref().map_or(0, PackedFile::images);
        let few = LAST_PAGES.max(images / LAST_SHARE);
        if self.due.len() <= few || self.rounds >= ROUNDS_MAX || planted(Bug::BackupSkipsChangedPages) {
            let from = pool.wal.cut();
            if !planted(Bug::BackupCutsLog) {
                hold.floor = from;
            }
            if planted(Bug::BackupSkipsChangedPages) {
                self.due = PageSet::default();
            }
            let end = planted(Bug::BackupEndsLogEarly).then(|| pool.wal.tail());
            self.phase = Phase::Last { from, end };
        }
        MutexGuard::unlock_fair(upkeep);
        Ok(())
    }

    /// Copies the images that `ids` have now.
    fn copy(&mut self, ids: &[PageId]) -> Result<()> {
        let pool = self.pool;
        let mut upkeep = pool.upkeep.lock();
        // Another owner may come to the files of a closed database, but not while this lock is held.
        pool.check()?;
        let mapped: Vec<(PageId, Mapped)> = ids.iter().map(|&id| (id, pool.durable_state(id))).collect();
        let there: Vec<(PageId, Mapped, Extent)> = mapped
            .iter()
            .filter_map(|&(id, mapped)| mapped.extent().map(|extent| (id, mapped, extent)))
            .collect();
        if planted(Bug::BackupReadsFreedPlaces) {
            drop(upkeep);
            pool.meanwhile();
            pool.checkpoint_now(true)?;
            pool.checkpoint_now(true)?;
            upkeep = pool.upkeep.lock();
        }
        let extents = there.iter().map(|&(_, _, extent)| extent);
        let read = read_images(pool.slow(), extents, &mut self.staging);
        // The upkeep must not wait for as long as this thread comes again and again.
        MutexGuard::unlock_fair(upkeep);
        let file = pool.device.name();
        let mut images = Vec::with_capacity(there.len());
        for (&(id, mapped, extent), (staged, outcome)) in there.iter().zip(read) {
            let (offset, at) = (extent.offset(), staged.start);
            outcome.map_err(|source| Error::io("read", file, Some(offset), source))?;
            let checksum = page::vouch(&self.staging[staged], id, mapped).map_err(|what| {
                Error::corrupt(file, Some(id.0), format!("{what} (byte {offset} of the file)"))
            })?;
            images.push(StagedImage { id, checksum, places: extent.places, at });
        }
        let pages = self.pages.as_mut().expect("taken at the end only");
        for (id, _) in mapped.iter().filter(|(_, mapped)| !mapped.has_image()) {
            pages.forget(*id)?;
        }
        pages.put(&images, &self.staging)
    }

    /// The log from `from` to `end` is what is left to be copied.
    fn begin_log(&mut self, from: Lsn, end: Lsn) -> Result<()> {
        let superblock = self.superblock(from, end);
        let geometry = geometry_for(from, end)?;
        let (database, timeline) = (superblock.uuid, superblock.timeline);
        Wal::create(&*self.target.log, &LogHeader { database, timeline, geometry })?;
        let rule = EpochRule { epoch: superblock.epoch, first_lsn: superblock.epoch_start };
        let records = self.pool.wal.scan(from, rule)?;
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

    /// What the copy's superblock says. Its page file adds its own numbers.
    fn superblock(&self, from: Lsn, end: Lsn) -> Superblock {
        let upkeep = self.pool.upkeep.lock();
        Superblock {
            cut: from,
            log_end: end,
            highest_timestamp: upkeep.superblock.highest_timestamp.max(self.pool.timestamp_now()),
            page_ids_end: self.pool.ids_ends_to_name(),
            ..upkeep.superblock.clone()
        }
    }
}
