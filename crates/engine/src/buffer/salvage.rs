//! Making a pool of whatever is still whole in the files of a damaged database, which are only read.
//!
//! 1. *Survey*: what superblock, page table and log say about where the newest image of each page is, and up to where
//!    the log is whole (`survey.rs`). Where the page table is lost, or all of the log does not read, the newest image
//!    that vouches for itself counts.
//! 2. The images that are whole, by their checksum and as pages of the index, are packed into a page file of their own,
//!    as in a backup, and the log is copied beside it. A page whose image is damaged is not there.
//! 3. *Recovery* runs over the copy as over any database: redo skips pages that are not there, unless the log brings
//!    them into being. Losers are undone where their pages are left; where not, the caller is told who they were.
//!
//! If the log is not whole from its cut to where it was durable, changes are missing between images and log, and redo
//! would be wrong: then there is none, the images count as they are, and nobody knows who the losers were.

mod survey;

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;

use terrace_block::{AlignedBuffer, BlockDevice};

use self::survey::Survey;
use super::backup::{BATCH_BYTES, PackedFile, StagedImage, copy_buffer, read_images};
use super::create::{Files, PoolOptions};
use super::pool::Pool;
use super::recovery::{Redo, Undo};
use crate::config::PageSizes;
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, SizeClass, Timestamp};
use crate::store::place::{Extent, Mapped, places_of};
use crate::store::space::Geometry as SpaceGeometry;
use crate::store::superblock::Superblock;
use crate::store::{image, page};
use crate::wal::{Geometry, LogCopy, LogHeader, Wal};

/// Places of a segment of the copy, and how many of the largest pages it has room for at least.
const SEGMENT_PLACES: u64 = 256;
const SEGMENT_PAGES_MIN: u64 = 4;
/// Bytes of the copy's log where the original's is of no use: 64 of the largest nodes.
const LOG_BYTES: u64 = 4 << 20;

/// The files of a damaged database, opened for reading.
#[derive(Clone, Debug)]
pub(crate) struct Remains {
    pub(crate) pages: Arc<dyn BlockDevice>,
    pub(crate) log: Option<Arc<dyn BlockDevice>>,
}

/// How a page is held against its structure.
pub(crate) type CheckPage = fn(&[u8]) -> Result<(), String>;

/// How what was left is made a pool of.
pub(crate) struct Means<'a> {
    pub(crate) check: CheckPage,
    pub(crate) redo: &'a dyn Redo,
    pub(crate) undo: &'a dyn Undo,
    /// Two new, empty files, in place of those given before.
    pub(crate) scratch: &'a dyn Fn() -> Result<Files>,
    /// The memory of a pool, given the sizes of its pages and how many the file has.
    pub(crate) options: &'a dyn Fn(PageSizes, u64) -> Result<PoolOptions>,
}

/// A page that is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) page: PageId,
    pub(crate) what: String,
}

/// A pool of what was left.
#[derive(Debug)]
pub(crate) struct Salvaged {
    pub(crate) pool: Pool,
    /// Pages there should be and are not.
    pub(crate) lost: Vec<Lost>,
    /// Transactions that had not committed. Entries of theirs that are left could not be undone.
    pub(crate) losers: HashSet<Timestamp>,
    /// Undo bytes of their changes that could not be undone.
    pub(crate) not_undone: Vec<Vec<u8>>,
    /// Whether page table and log are whole, so that pages belong together as they did.
    pub(crate) consistent: bool,
    /// Pages that the page table does not vouch for, only they themselves.
    pub(crate) found: HashSet<PageId>,
    /// Images looked at.
    pub(crate) images: u64,
    /// What was wrong with superblock, page table and log.
    pub(crate) notes: Vec<String>,
}

impl Salvaged {
    /// Makes a pool of what is left in `remains`.
    ///
    /// # Errors
    /// [`Error::NotADatabase`] if nothing is, [`Error::Version`]; failures of what is written.
    pub(crate) fn of(remains: &Remains, means: &Means<'_>) -> Result<Salvaged> {
        let survey = Survey::of(remains, means.check, true)?;
        let consistent = survey.log.is_some();
        match salvage(remains, survey, means) {
            // What every part vouches for does not go together: the images must do.
            Err(Error::Corrupt { what, .. }) if consistent => {
                let mut survey = Survey::of(remains, means.check, false)?;
                survey.notes.push(format!("recovery failed, the log is left out: {what}"));
                salvage(remains, survey, means)
            }
            other => other,
        }
    }
}

fn salvage(remains: &Remains, survey: Survey, means: &Means<'_>) -> Result<Salvaged> {
    let files = (means.scratch)()?;
    let mut lost = Vec::new();
    let images = pack(remains, &survey, means.check, &files, &mut lost)?;
    let options = (means.options)(
        PageSizes::of(&Pool::inspect(&files)?),
        files.pages.len() / survey.page_bytes as u64,
    )?;
    let consistent = survey.log.is_some();
    let recovered = Pool::recover(&files, &options, means.redo)?;
    let pool = recovered.pool;
    pool.withhold(lost.iter().map(|lost| lost.page));
    let mut notes = survey.notes;
    let losers: HashSet<Timestamp> = recovered.losers.iter().map(|loser| loser.transaction).collect();
    let undo = Tolerant { undo: means.undo, failed: RefCell::default() };
    match pool.undo_losers(&files, recovered.losers, &undo) {
        Err(Error::Corrupt { what, .. }) => notes.push(format!("undoing ended early: {what}")),
        other => other?,
    }
    let not_undone = undo.failed.into_inner();
    // What the log brought into being is not lost.
    lost.retain(|lost| !pool.exists(lost.page));
    Ok(Salvaged { pool, lost, losers, not_undone, consistent, found: survey.found, images, notes })
}

/// Copies the images that are whole, and the log if it is, into `files`. Returns how many were looked at.
fn pack(
    remains: &Remains,
    survey: &Survey,
    check: CheckPage,
    files: &Files,
    lost: &mut Vec<Lost>,
) -> Result<u64> {
    let page_bytes = survey.page_bytes;
    let longest = survey.images().map(|(class, ..)| class).max().unwrap_or(SizeClass::SMALLEST);
    let segment_places = SEGMENT_PLACES.max(SEGMENT_PAGES_MIN * survey.largest_named().max(longest).places());
    let geometry = SpaceGeometry { segment_places };
    let mut pages = PackedFile::new(files.pages.clone(), geometry, page_bytes)?;
    let mut content = vec![0; longest.page_bytes()];
    let mut staging = copy_buffer(BATCH_BYTES.max(longest.page_bytes()))?;
    let (mut images, mut newest) = (0, Lsn::NONE);
    let (mut batch, mut batch_bytes) = (Vec::new(), 0);
    let mut all = survey.images().peekable();
    while let Some((class, id, mapped)) = all.next() {
        batch.push(Wanted { id, mapped, page_bytes: class.page_bytes() });
        batch_bytes += class.page_bytes();
        let next_bytes = all.peek().map(|(class, ..)| class.page_bytes());
        if next_bytes.is_some_and(|bytes| batch_bytes + bytes <= staging.len()) {
            continue;
        }
        images += batch.len() as u64;
        read_all(&*remains.pages, &batch, &mut staging, |slot, outcome| {
            let Wanted { id, mapped, page_bytes } = batch[slot.index];
            let sound = outcome.and_then(|()| {
                let checksum = page::vouch(slot.bytes, id, mapped).map_err(str::to_owned)?;
                let page = image::unpack(slot.bytes, page_bytes, &mut content)?;
                check(page).map(|()| checksum)
            });
            match sound {
                Ok(checksum) => {
                    newest = newest.max(page::lsn(slot.bytes));
                    let places = places_of(slot.bytes.len());
                    pages.put(&[StagedImage { id, checksum, places, at: 0 }], slot.bytes)
                }
                Err(what) => {
                    lost.push(Lost { page: id, what });
                    Ok(())
                }
            }
        })?;
        batch.clear();
        batch_bytes = 0;
    }
    let ends = survey.ids_ends();
    let superblock = match (&survey.log, &survey.superblock) {
        (Some(log), Some(superblock)) => {
            let header = LogHeader {
                database: superblock.uuid,
                timeline: superblock.timeline,
                geometry: log.geometry,
            };
            Wal::create(&*files.log, &header)?;
            if let Some(records) = survey.records(remains)? {
                let mut copy = LogCopy::new(records, log.end, files.log.clone(), log.geometry)?;
                while copy.step()? {}
            }
            Superblock { log_end: log.end, page_ids_end: ends, ..superblock.clone() }
        }
        _ => {
            let geometry = Geometry::new(LOG_BYTES)?;
            Wal::create(&*files.log, &LogHeader { database: [0; 16], timeline: 1, geometry })?;
            // Above every image, and where a record may begin.
            let from = Lsn((newest.0 + 1).max(crate::wal::FIRST_LSN.0).next_multiple_of(crate::wal::BLOCK));
            Superblock {
                uuid: [0; 16],
                timeline: 1,
                sequence: 1,
                page_bytes: page_bytes as u32,
                segment_places: segment_places as u32,
                log_capacity: geometry.capacity(),
                epoch: 1,
                epoch_start: from,
                cut: from,
                log_end: from,
                highest_timestamp: Timestamp::NONE,
                page_ids_end: ends,
                segments: 0,
                directory: Default::default(),
            }
        }
    };
    let superblock = Superblock { segment_places: segment_places as u32, ..superblock };
    files.log.sync().map_err(|source| Error::io("sync", files.log.name(), None, source))?;
    pages.finish(superblock)?;
    Ok(images)
}

/// An image that was read.
struct Slot<'a> {
    index: usize,
    bytes: &'a [u8],
}

/// An image to be read, of a page of so many bytes.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    id: PageId,
    mapped: Mapped,
    page_bytes: usize,
}

impl Wanted {
    /// Where it is. No image is longer than its page; what says so has no places that can be read.
    fn extent(&self) -> Option<Extent> {
        self.mapped.extent().filter(|extent| extent.suits(self.page_bytes))
    }
}

/// Reads images at the same time and hands them over one after the other, or says why one could not be read. Their pages fit
/// `staging` together.
fn read_all(
    device: &dyn BlockDevice,
    images: &[Wanted],
    staging: &mut AlignedBuffer,
    mut each: impl FnMut(Slot<'_>, Result<(), String>) -> Result<()>,
) -> Result<()> {
    let read = read_images(device, images.iter().filter_map(Wanted::extent), staging);
    let mut read = read.into_iter();
    for (index, wanted) in images.iter().enumerate() {
        let Some(extent) = wanted.extent() else {
            each(
                Slot { index, bytes: &[] },
                Err("the page table names places that no image of such a page can have".into()),
            )?;
            continue;
        };
        let (staged, outcome) = read.next().expect("each was read");
        let offset = extent.offset();
        let outcome = outcome.map_err(|error| format!("byte {offset} of the file cannot be read: {error}"));
        each(Slot { index, bytes: &staging[staged] }, outcome)?;
    }
    Ok(())
}

/// Undoes what can be undone.
struct Tolerant<'a> {
    undo: &'a dyn Undo,
    failed: RefCell<Vec<Vec<u8>>>,
}

impl Undo for Tolerant<'_> {
    fn undo(&self, pool: &Pool, loser: Timestamp, previous: Lsn, undo_next: Lsn, undo: &[u8]) -> Result<Lsn> {
        match self.undo.undo(pool, loser, previous, undo_next, undo) {
            Err(Error::Corrupt { .. }) => {
                self.failed.borrow_mut().push(undo.to_vec());
                Ok(previous)
            }
            other => other,
        }
    }
}

impl Pool {
    /// All pages that exist, once everything freed is gone.
    pub(crate) fn existing(&self) -> Result<Vec<PageId>> {
        self.wal.flush_to(self.wal.tail())?;
        let mut upkeep = self.upkeep.lock();
        self.absorb(&mut upkeep);
        Ok(self.page_ids().filter(|&id| self.exists(id)).collect())
    }

    /// Sees to it that none of these ids is given to a new page: something may still refer to the old one.
    fn withhold(&self, ids: impl Iterator<Item = PageId>) {
        self.ids.lock().withhold(&ids.collect());
    }
}
