//! Salvage: builds a pool from the intact parts of a damaged database.
//!
//! 1. *Survey* (`survey.rs`): superblock, page table and log give the newest image of each page,
//!    and the intact part of the log. Without page table or whole log, the newest valid image
//!    counts, which is an old one if a newer one is damaged.
//! 2. Intact images, by checksum and index structure, are packed into a new page file. The log is
//!    copied beside it. Damaged pages are absent.
//! 3. *Recovery* runs over the copy. Redo skips absent pages unless the log creates them. Losers
//!    are undone where their pages remain, and reported where not.
//!
//! A log that is not whole up to its durable end lacks changes. Then there is no redo: images count
//! as they are, and the losers are unknown.

mod survey;

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;

use terrace_io::{AlignedBuffer, BlockDevice};

use self::survey::Survey;
pub(crate) use self::survey::{CheckPage, Remains};
use super::{Redo, Undo, recover, undo_losers};
use crate::backup::{BATCH_BYTES, PackedFile, StagedImage, copy_buffer, read_images};
use crate::config::PageSizes;
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, SizeClass, Timestamp};
use crate::maintenance::{Maintenance, inspect};
use crate::pool::{Pool, PoolOptions};
use crate::store::files::Files;
use crate::store::mapping_word::{Extent, MappingWord, blocks_of};
use crate::store::space::Geometry as SpaceGeometry;
use crate::store::superblock::Superblock;
use crate::store::{image, page};
use crate::wal::{Geometry, LogCopy, LogHeader, Wal};

/// Blocks per segment of the copy, and the minimum of largest pages in it.
const SEGMENT_BLOCKS: u64 = 256;
const SEGMENT_PAGES_MIN: u64 = 4;
/// Log bytes of the copy if the original log is unusable: 64 of the largest nodes.
const LOG_BYTES: u64 = 4 << 20;

/// Scratch files and options for the pool.
pub(crate) struct Means<'a> {
    pub(crate) check: CheckPage,
    pub(crate) redo: &'a dyn Redo,
    pub(crate) undo: &'a dyn Undo,
    /// Two empty files that replace earlier ones.
    pub(crate) scratch: &'a dyn Fn() -> Result<Files>,
    /// Options of a pool for these page sizes and this number of pages in the file.
    pub(crate) options: &'a dyn Fn(PageSizes, u64) -> Result<PoolOptions>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) page: PageId,
    pub(crate) what: String,
}

/// A pool of the salvaged pages.
#[derive(Debug)]
pub(crate) struct Salvaged {
    pub(crate) maintenance: Arc<Maintenance>,
    /// Missing pages.
    pub(crate) lost: Vec<Lost>,
    /// Uncommitted transactions. Their remaining entries could not be undone.
    pub(crate) losers: HashSet<Timestamp>,
    /// Undo bytes of changes that could not be undone.
    pub(crate) not_undone: Vec<Vec<u8>>,
    /// Whether page table and log are whole, so the pages form one state.
    pub(crate) consistent: bool,
    /// Pages that the page table does not confirm.
    pub(crate) found: HashSet<PageId>,
    /// Number of images checked.
    pub(crate) images: u64,
    /// Damage of superblock, page table and log.
    pub(crate) notes: Vec<String>,
}

impl Salvaged {
    /// Builds a pool from `remains`.
    ///
    /// # Errors
    /// [`Error::NotADatabase`] if nothing is left, [`Error::Version`], and write errors.
    pub(crate) fn of(remains: &Remains, means: &Means<'_>) -> Result<Salvaged> {
        let survey = Survey::of(remains, means.check, true)?;
        let uses_log = survey.log.is_some();
        match salvage(remains, survey, means) {
            // The parts are valid but contradict each other: use the images alone.
            Err(Error::Corrupt { what, .. }) if uses_log => {
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
    let options =
        (means.options)(PageSizes::of(&inspect(&files)?), files.pages.len() / survey.page_bytes as u64)?;
    let consistent = survey.log.is_some() && survey.found.is_empty();
    let recovered = recover(&files, &options, means.redo)?;
    let maintenance = recovered.maintenance;
    maintenance.withhold(lost.iter().map(|lost| lost.page));
    let mut notes = survey.notes;
    let losers: HashSet<Timestamp> = recovered.losers.iter().map(|loser| loser.transaction).collect();
    let undo = Tolerant { undo: means.undo, failed: RefCell::default() };
    match undo_losers(&maintenance, &files, recovered.losers, &undo) {
        Err(Error::Corrupt { what, .. }) => notes.push(format!("undoing ended early: {what}")),
        other => other?,
    }
    let not_undone = undo.failed.into_inner();
    // Pages that the log created are not lost.
    lost.retain(|lost| !maintenance.pool.exists(lost.page));
    Ok(Salvaged { maintenance, lost, losers, not_undone, consistent, found: survey.found, images, notes })
}

/// Copies intact images, and a whole log, into `files`. Returns the number of images checked.
fn pack(
    remains: &Remains,
    survey: &Survey,
    check: CheckPage,
    files: &Files,
    lost: &mut Vec<Lost>,
) -> Result<u64> {
    let page_bytes = survey.page_bytes;
    let longest = survey.images().map(|(class, ..)| class).max().unwrap_or(SizeClass::SMALLEST);
    let segment_blocks = SEGMENT_BLOCKS.max(SEGMENT_PAGES_MIN * survey.largest_named().max(longest).blocks());
    let geometry = SpaceGeometry { segment_blocks };
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
                let checksum = page::verify_image(slot.bytes, id, mapped).map_err(str::to_owned)?;
                let page = image::unpack(slot.bytes, page_bytes, &mut content)?;
                check(page).map(|()| checksum)
            });
            match sound {
                Ok(checksum) => {
                    newest = newest.max(page::lsn(slot.bytes));
                    let blocks = blocks_of(slot.bytes.len());
                    pages.put(&[StagedImage { id, checksum, blocks, at: 0 }], slot.bytes)
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
    let superblock = copy_log(remains, survey, files, newest)?;
    let superblock = Superblock { segment_blocks: segment_blocks as u32, ..superblock };
    files.log.sync().map_err(|source| Error::io("sync", files.log.name(), None, source))?;
    pages.finish(superblock)?;
    Ok(images)
}

/// Copies the log, or creates an empty one above `newest` if it is not whole. Returns its
/// superblock.
fn copy_log(remains: &Remains, survey: &Survey, files: &Files, newest: Lsn) -> Result<Superblock> {
    let ends = survey.ids_ends();
    Ok(match (&survey.log, &survey.superblock) {
        (Some(log), Some(superblock)) => {
            let header =
                LogHeader { database: superblock.uuid, timeline: superblock.timeline, largest: log.largest };
            Wal::create(&*files.log, &header, log.geometry)?;
            if let Some(records) = survey.records(remains)? {
                let mut copy = LogCopy::new(records, log.end, files.log.clone(), log.geometry)?;
                while copy.step()? {}
            }
            Superblock { log_end: log.end, page_ids_end: ends, ring: None, ..superblock.clone() }
        }
        _ => {
            let geometry = Geometry::new(LOG_BYTES)?;
            let header = LogHeader { database: [0; 16], timeline: 1, largest: geometry };
            Wal::create(&*files.log, &header, geometry)?;
            // Above every image, at a valid start of a record.
            let from = Lsn((newest.0 + 1).max(crate::wal::FIRST_LSN.0).next_multiple_of(crate::wal::BLOCK));
            Superblock {
                uuid: [0; 16],
                timeline: 1,
                sequence: 1,
                page_bytes: survey.page_bytes as u32,
                segment_blocks: 0,
                log_capacity: geometry.capacity(),
                epoch: 1,
                epoch_start: from,
                cut: from,
                log_end: from,
                highest_timestamp: Timestamp::NONE,
                page_ids_end: ends,
                segments: 0,
                life: 0,
                ring: None,
                directory: Default::default(),
            }
        }
    })
}

/// An image that was read.
struct Slot<'a> {
    index: usize,
    bytes: &'a [u8],
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    id: PageId,
    mapped: MappingWord,
    page_bytes: usize,
}

impl Wanted {
    /// The extent of the image. `None` if it is longer than its page.
    fn extent(&self) -> Option<Extent> {
        self.mapped.extent().filter(|extent| extent.suits(self.page_bytes))
    }
}

/// Reads images together and passes each, or its error, to `each`. Their pages fit `staging`.
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
                Err("the page table names blocks that no image of such a page can have".into()),
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
