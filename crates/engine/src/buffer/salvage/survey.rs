//! The survey: where the newest image of each page is, as far as anything still says so.
//!
//! Only what was read is kept, some fifty bytes a page, so that no number in a damaged file makes memory be taken.
//! Pages of chunks that are lost are looked for in the whole file.

use std::collections::{BTreeMap, HashMap, HashSet};

use terrace_block::AlignedBuffer;

use super::{BATCH_BYTES, CheckPage, Remains};
use crate::buffer::backup::page_buffer;
use crate::buffer::mapping::words_per_page;
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId};
use crate::store::image;
use crate::store::page::{self, HEADER_BYTES, Kind as PageKind};
use crate::store::place::{Extent, Mapped, PLACE_BYTES, places_of};
use crate::store::superblock::{SUPERBLOCK_BYTES, Slots, Superblock};
use crate::wal::{ALLOCATES, EpochRule, Geometry, LogScan, change_kind, read_header};

/// No page has an id this high: more than any page table holds.
const IDS_MAX: u64 = 1 << 28;

/// A log that is whole from its cut on.
#[derive(Clone, Copy, Debug)]
pub(super) struct WholeLog {
    pub(super) geometry: Geometry,
    rule: EpochRule,
    cut: Lsn,
    pub(super) end: Lsn,
}

/// What is known of the pages of a chunk.
#[derive(Debug, Default)]
struct Chunk {
    /// Up to where in the log its image is current; none for a chunk that is lost, or had no image.
    current: Lsn,
    lost: bool,
    words: HashMap<u64, Mapped>,
}

/// What is known of a database's files.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) page_bytes: usize,
    pub(super) superblock: Option<Superblock>,
    pub(super) log: Option<WholeLog>,
    pub(super) found: HashSet<PageId>,
    pub(super) notes: Vec<String>,
    chunks: BTreeMap<u64, Chunk>,
}

impl Survey {
    /// Looks at the files. Without `use_log` the log is taken to be lost.
    pub(super) fn of(remains: &Remains, check: CheckPage, use_log: bool) -> Result<Survey> {
        let mut notes = Vec::new();
        let superblock = match Slots::open(remains.pages.clone()) {
            Ok((_, superblock)) => Some(superblock),
            Err(error @ Error::Version { .. }) => return Err(error),
            Err(error) => {
                notes.push(format!("no superblock: {error}"));
                None
            }
        };
        let page_bytes = match &superblock {
            Some(superblock) => superblock.page_bytes as usize,
            None => guess_page_bytes(remains, check)?,
        };
        let log = match &superblock {
            Some(superblock) if use_log => match whole_log(remains, superblock) {
                Ok(log) => Some(log),
                Err(error @ Error::Version { .. }) => return Err(error),
                Err(error) => {
                    notes.push(format!("the log is of no use: {error}"));
                    None
                }
            },
            _ => None,
        };
        let mut survey =
            Survey { page_bytes, superblock, log, found: HashSet::new(), notes, chunks: BTreeMap::new() };
        if survey.log.is_some() {
            survey.read_page_table(remains)?;
        }
        if survey.log.is_none() || survey.chunks.values().any(|chunk| chunk.lost) {
            survey.look_for_images(remains, check)?;
        }
        Ok(survey)
    }

    /// The places of all images there should be, by page.
    pub(super) fn images(&self) -> impl Iterator<Item = (PageId, Mapped)> + '_ {
        self.chunks.values().flat_map(|chunk| {
            let mut images: Vec<_> = chunk
                .words
                .iter()
                .filter(|(id, word)| (1..IDS_MAX).contains(*id) && word.has_image())
                .map(|(&id, &word)| (PageId(id), word))
                .collect();
            images.sort_unstable_by_key(|(id, _)| *id);
            images
        })
    }

    /// Ids from here on are not known to have been used.
    pub(super) fn ids_end(&self) -> u64 {
        let highest = self.chunks.values().flat_map(|chunk| chunk.words.keys()).max();
        highest.map_or(1, |&id| id.min(IDS_MAX - 1) + 1)
    }

    /// The records of the log that count, if there are any.
    pub(super) fn records(&self, remains: &Remains) -> Result<Option<LogScan>> {
        match (&self.log, &remains.log) {
            (Some(log), Some(device)) if log.end > log.cut => {
                LogScan::new(device.clone(), log.geometry, log.cut, log.rule).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Reads the page table as recovery does, but for what of it is lost.
    fn read_page_table(&mut self, remains: &Remains) -> Result<()> {
        let per_page = words_per_page(self.page_bytes);
        let superblock = self.superblock.clone().expect("a log that counts is one that a superblock names");
        let mut image = page_buffer(self.page_bytes, 1)?;
        let mut places: BTreeMap<u64, Mapped> = BTreeMap::new();
        let used = superblock.page_ids_end.div_ceil(per_page);
        for (block, &mapped) in superblock.directory.iter().enumerate() {
            let first = block as u64 * per_page;
            match read_part(remains, mapped, PageKind::Directory, block as u64, &mut image) {
                Ok(()) => places.extend((first..).zip(words(&image)).filter(|(_, word)| word.has_image())),
                Err(what) => {
                    self.notes.push(format!("directory block {block} of the page table is lost: {what}"));
                    // Only chunks that a file of this length has room for.
                    let most = remains.pages.len() / self.page_bytes as u64;
                    for number in first..(first + per_page).min(used).min(first + most) {
                        self.chunks.insert(number, Chunk { lost: true, ..Chunk::default() });
                    }
                }
            }
        }
        if let Some(mut records) = self.records(remains)? {
            while let Some(record) = records.next()? {
                places.extend(
                    record.chunks().map(|entry| (entry.chunk, Mapped::at(entry.extent, entry.check))),
                );
            }
        }
        for (number, mapped) in places {
            let chunk = match read_part(remains, mapped, PageKind::Chunk, number, &mut image) {
                Ok(()) => {
                    let ids = number.saturating_mul(per_page)..;
                    let words = ids.zip(words(&image)).filter(|(_, word)| word.is_allocated()).collect();
                    Chunk { current: page::lsn(&image), lost: false, words }
                }
                Err(what) => {
                    self.notes.push(format!("chunk {number} of the page table is lost: {what}"));
                    Chunk { lost: true, ..Chunk::default() }
                }
            };
            self.chunks.insert(number, chunk);
        }
        self.apply_log(remains, per_page)
    }

    /// Applies what the log says about allocations, frees and places.
    fn apply_log(&mut self, remains: &Remains, per_page: u64) -> Result<()> {
        let Some(mut records) = self.records(remains)? else { return Ok(()) };
        while let Some(record) = records.next()? {
            let lsn = record.lsn();
            for change in record.changes() {
                let allocates = change.kind == change_kind::IMAGE && change.flags & ALLOCATES != 0;
                if allocates || change.kind == change_kind::FREE {
                    let word = if allocates { Mapped::UNWRITTEN } else { Mapped::FREE };
                    self.apply(change.page, lsn, per_page, |_| Some(word));
                }
            }
            for entry in record.mappings() {
                let word = Mapped::at(entry.extent, entry.check);
                // An image that was in flight while its page was freed is nobody's.
                self.apply(entry.page, lsn, per_page, |old| match old {
                    Some(old) if !old.is_allocated() => None,
                    _ => Some(word),
                });
            }
        }
        Ok(())
    }

    /// Replaces the word of `id` by what `next` makes of it, if the chunk's image does not know the record at `lsn`. Of
    /// a page that is nowhere the word is FREE, unless its chunk is lost: then there is none.
    fn apply(
        &mut self,
        id: PageId,
        lsn: Lsn,
        per_page: u64,
        next: impl FnOnce(Option<Mapped>) -> Option<Mapped>,
    ) {
        let chunk = self.chunks.entry(id.0 / per_page).or_default();
        if lsn < chunk.current {
            return;
        }
        let unknown = if chunk.lost { None } else { Some(Mapped::FREE) };
        if let Some(word) = next(chunk.words.get(&id.0).copied().or(unknown)) {
            chunk.words.insert(id.0, word);
        }
    }

    /// Looks through the whole file for the newest images of pages of which nothing is known.
    fn look_for_images(&mut self, remains: &Remains, check: CheckPage) -> Result<()> {
        let per_page = words_per_page(self.page_bytes);
        let below = self.log.map_or(Lsn(u64::MAX), |log| log.end);
        let everything = self.log.is_none();
        let mut newest: HashMap<u64, (Lsn, Mapped)> = HashMap::new();
        each_image(remains, self.page_bytes, check, |extent, image| {
            let (id, lsn) = (page::page_id(image), page::lsn(image));
            let chunk = self.chunks.get(&(id.0 / per_page));
            let lost = chunk.is_some_and(|chunk| chunk.lost && !chunk.words.contains_key(&id.0));
            if !(everything || lost) || lsn >= below || id.is_none() {
                return;
            }
            let mapped = Mapped::at(extent, page::checksum(image).0);
            let best = newest.entry(id.0).or_insert((lsn, mapped));
            if best.0 < lsn {
                *best = (lsn, mapped);
            }
        })?;
        for (id, (_, mapped)) in newest {
            self.found.insert(PageId(id));
            self.chunks.entry(id / per_page).or_default().words.insert(id, mapped);
        }
        Ok(())
    }
}

/// Reads a part of the page table; what is wrong with it.
fn read_part(
    remains: &Remains,
    mapped: Mapped,
    kind: PageKind,
    number: u64,
    image: &mut AlignedBuffer,
) -> Result<(), String> {
    let extent = mapped.extent().filter(|extent| extent.bytes() == image.len());
    let offset = extent.ok_or("it has no places, or not as many as it takes")?.offset();
    remains.pages.read_at(offset, image).map_err(|error| format!("byte {offset} of the file: {error}"))?;
    page::vouch(image, PageId(number), mapped)?;
    if page::kind(image) != kind as u8 {
        return Err("it is something else".into());
    }
    Ok(())
}

fn words(image: &[u8]) -> impl Iterator<Item = Mapped> + '_ {
    let words = image[HEADER_BYTES..].chunks_exact(8);
    words.map(|word| Mapped(u64::from_le_bytes(word.try_into().expect("eight bytes"))))
}

/// The log, if it is this database's and whole from its cut to where it was durable.
fn whole_log(remains: &Remains, superblock: &Superblock) -> Result<WholeLog> {
    let rule = EpochRule { epoch: superblock.epoch, first_lsn: superblock.epoch_start };
    let Superblock { cut, log_end, log_capacity, .. } = *superblock;
    let mut log = WholeLog { geometry: Geometry::new(log_capacity)?, rule, cut, end: log_end };
    // Even if the superblock needs nothing of it: there may have been commits after the superblock was written.
    let Some(device) = remains.log.clone() else {
        return Err(Error::corrupt("the log", None, "it cannot be opened, or is missing"));
    };
    let damaged = |what: String| Error::corrupt(device.name(), None, what);
    match read_header(&*device) {
        Ok(header) if header.database != superblock.uuid || header.timeline != superblock.timeline => {
            return Err(damaged("it belongs to another database".into()));
        }
        Ok(header) if header.geometry != log.geometry => return Err(damaged("it has another length".into())),
        Ok(_) => {}
        Err(error @ Error::Version { .. }) => return Err(error),
        // The superblock knows what the header says, and every record vouches for itself.
        Err(_) if device.len() >= log.geometry.file_bytes() => {}
        Err(error) => return Err(error),
    }
    log.end = LogScan::new(device.clone(), log.geometry, cut, rule)?.finish()?;
    if log.end < log_end {
        return Err(damaged(format!("it ends at {}, but it was durable up to {log_end}", log.end)));
    }
    Ok(log)
}

/// Without a superblock: the page size with which most of the file is pages.
fn guess_page_bytes(remains: &Remains, check: CheckPage) -> Result<usize> {
    let mut best = (0, 0);
    for page_bytes in (12..=16).map(|bits| 1 << bits) {
        let mut covered = 0;
        each_image(remains, page_bytes, check, |_, _| covered += page_bytes)?;
        if covered > best.0 {
            best = (covered, page_bytes);
        }
    }
    match best {
        (0, _) => Err(Error::NotADatabase {
            path: remains.pages.name().to_owned(),
            what: "it has neither a superblock nor a page that is whole".into(),
        }),
        (_, page_bytes) => Ok(page_bytes),
    }
}

/// Calls back with every image of a page of the index that is whole, and its places. What cannot be read is passed over.
/// An image may begin at any place.
fn each_image(
    remains: &Remains,
    page_bytes: usize,
    check: CheckPage,
    mut each: impl FnMut(Extent, &[u8]),
) -> Result<()> {
    let mut staging = page_buffer(page_bytes, (BATCH_BYTES / page_bytes).max(2))?;
    let mut content = vec![0; page_bytes];
    let end = remains.pages.len() / PLACE_BYTES as u64;
    let mut place = SUPERBLOCK_BYTES / PLACE_BYTES as u64;
    while place < end {
        let read = Extent { first: place, places: places_of(staging.len()).min(end - place) };
        let bytes = &mut staging[..read.bytes()];
        if remains.pages.read_at(read.offset(), bytes).is_err() {
            // Some of it cannot be read: one by one, and nothing old in place of what cannot.
            for (place, part) in (read.first..).zip(bytes.chunks_exact_mut(PLACE_BYTES)) {
                if remains.pages.read_at(place * PLACE_BYTES as u64, part).is_err() {
                    part.fill(0);
                }
            }
        }
        while place < read.end() {
            let start = &bytes[(place - read.first) as usize * PLACE_BYTES..];
            let of_index = (1..=4).contains(&page::kind(start));
            let claimed = image::claimed_bytes(start, page_bytes).filter(|_| of_index);
            // What goes on behind what was read is looked at again from its beginning.
            if claimed.is_some_and(|bytes| bytes > start.len()) && place > read.first && read.end() < end {
                break;
            }
            let image = claimed.and_then(|bytes| start.get(..bytes)).filter(|image| page::checksum(image).1);
            let sound = image.is_some_and(|image| {
                image::unpack(image, &mut content).is_ok_and(|page| check(page).is_ok())
            });
            place += match image.filter(|_| sound) {
                Some(image) => {
                    let extent = Extent { first: place, places: places_of(image.len()) };
                    each(extent, image);
                    extent.places
                }
                None => 1,
            };
        }
    }
    Ok(())
}
