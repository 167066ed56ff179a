//! The survey: where the newest image of each page is, as far as anything still says so.
//!
//! Only what was read is kept, some fifty bytes a page, so that no number in a damaged file makes memory be taken.
//! Pages of chunks that are lost are looked for in the whole file. An image says itself whose it is, and so how long its page
//! is.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use terrace_block::AlignedBuffer;

use super::{CheckPage, Remains};
use crate::buffer::backup::copy_buffer;
use crate::buffer::mapping::{first_of, part_of, words_per_page};
use crate::buffer::table::{PAGES_MAX, indexes_max};
use crate::error::{Error, Result};
use crate::ids::{ByClass, Lsn, PageId, SizeClass};
use crate::store::image;
use crate::store::page::{self, HEADER_BYTES, Kind as PageKind};
use crate::store::place::{Extent, Mapped, PLACE_BYTES, places_of};
use crate::store::superblock::{SUPERBLOCK_BYTES, Slots, Superblock};
use crate::wal::{ALLOCATES, EpochRule, Geometry, LogScan, change_kind, read_header};

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
    words: HashMap<PageId, Mapped>,
}

/// What is known of a database's files.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) page_bytes: usize,
    pub(super) superblock: Option<Superblock>,
    pub(super) log: Option<WholeLog>,
    pub(super) found: HashSet<PageId>,
    pub(super) notes: Vec<String>,
    chunks: BTreeMap<PageId, Chunk>,
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

    /// The places of all images there should be, by page, with the page's class.
    pub(super) fn images(&self) -> impl Iterator<Item = (SizeClass, PageId, Mapped)> + '_ {
        self.chunks.values().flat_map(|chunk| {
            let words = chunk.words.iter().filter(|(_, word)| word.has_image());
            let mut images: Vec<_> =
                words.filter_map(|(&id, &word)| Some((possible_class(id)?, id, word))).collect();
            images.sort_unstable_by_key(|(_, id, _)| *id);
            images
        })
    }

    /// The largest class of which the superblock says that there are pages: the log may have more of them.
    pub(super) fn largest_named(&self) -> SizeClass {
        let ends =
            self.superblock.iter().flat_map(|superblock| SizeClass::all().zip(superblock.page_ids_end));
        let named = ends.filter(|(_, end)| *end > 1).map(|(class, _)| class);
        named.max().unwrap_or(SizeClass::SMALLEST)
    }

    /// In each class indexes from here on are not known to have been used.
    pub(super) fn ids_ends(&self) -> ByClass<u64> {
        let mut ends = [1; SizeClass::COUNT];
        for &id in self.chunks.values().flat_map(|chunk| chunk.words.keys()) {
            if let Some(class) = possible_class(id) {
                ends[class.index()] = ends[class.index()].max(id.index() + 1);
            }
        }
        ends
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
        let mut image = copy_buffer(self.page_bytes)?;
        let mut places: BTreeMap<PageId, Mapped> = BTreeMap::new();
        for (class, blocks) in SizeClass::all().zip(&superblock.directory) {
            for (number, &mapped) in (0..).zip(blocks) {
                let block = PageId::new(class, number);
                match read_part(remains, mapped, PageKind::Directory, block, &mut image) {
                    Ok(()) => places.extend(named(block, &image).filter(|(_, word)| word.has_image())),
                    Err(what) => {
                        self.notes.push(format!("directory block {block} of the page table is lost: {what}"));
                        self.lose_chunks(remains, block, superblock.page_ids_end[class.index()]);
                    }
                }
            }
        }
        if let Some(mut records) = self.records(remains)? {
            while let Some(record) = records.next()? {
                let entries = record.chunks().filter(|entry| entry.chunk.class().is_some());
                places.extend(entries.map(|entry| (entry.chunk, Mapped::at(entry.extent, entry.check))));
            }
        }
        for (name, mapped) in places {
            let chunk = match read_part(remains, mapped, PageKind::Chunk, name, &mut image) {
                Ok(()) => {
                    let words = named(name, &image).filter(|(_, word)| word.is_allocated()).collect();
                    Chunk { current: page::lsn(&image), lost: false, words }
                }
                Err(what) => {
                    self.notes.push(format!("chunk {name} of the page table is lost: {what}"));
                    Chunk { lost: true, ..Chunk::default() }
                }
            };
            self.chunks.insert(name, chunk);
        }
        self.apply_log(remains, per_page)
    }

    /// The chunks that a directory block names are lost with it: those of pages below `ids_end`, and only as many as a file
    /// of this length has room for.
    fn lose_chunks(&mut self, remains: &Remains, block: PageId, ids_end: u64) {
        let per_page = words_per_page(self.page_bytes);
        let Some(first) = first_of(block, per_page) else { return };
        let used = ids_end.div_ceil(per_page).saturating_sub(first.index());
        let most = remains.pages.len() / self.page_bytes as u64;
        for at in 0..per_page.min(used).min(most) {
            self.chunks.insert(PageId(first.0 + at), Chunk { lost: true, ..Chunk::default() });
        }
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
        let Some(name) = part_of(id, per_page) else { return };
        let chunk = self.chunks.entry(name).or_default();
        if lsn < chunk.current {
            return;
        }
        let unknown = if chunk.lost { None } else { Some(Mapped::FREE) };
        if let Some(word) = next(chunk.words.get(&id).copied().or(unknown)) {
            chunk.words.insert(id, word);
        }
    }

    /// Looks through the whole file for the newest images of pages of which nothing is known.
    fn look_for_images(&mut self, remains: &Remains, check: CheckPage) -> Result<()> {
        let per_page = words_per_page(self.page_bytes);
        let below = self.log.map_or(Lsn(u64::MAX), |log| log.end);
        let everything = self.log.is_none();
        let mut newest: HashMap<PageId, (Lsn, Mapped)> = HashMap::new();
        each_image(remains, check, |found, extent, image| {
            let (id, lsn) = (page::page_id(image), page::lsn(image));
            let chunk = part_of(id, per_page).and_then(|name| self.chunks.get(&name));
            let lost = chunk.is_some_and(|chunk| chunk.lost && !chunk.words.contains_key(&id));
            if !(everything || lost) || lsn >= below || matches!(found, Found::Part(_)) {
                return;
            }
            let mapped = Mapped::at(extent, page::checksum(image).0);
            let best = newest.entry(id).or_insert((lsn, mapped));
            if best.0 < lsn {
                *best = (lsn, mapped);
            }
        })?;
        for (id, (_, mapped)) in newest {
            self.found.insert(id);
            let name = part_of(id, per_page).expect("images that are found are of a class");
            self.chunks.entry(name).or_default().words.insert(id, mapped);
        }
        Ok(())
    }
}

/// The class of `id`, if there can be such a page.
fn possible_class(id: PageId) -> Option<SizeClass> {
    id.class().filter(|&class| (1..indexes_max(PAGES_MAX, class)).contains(&id.index()))
}

/// Reads a part of the page table; what is wrong with it.
fn read_part(
    remains: &Remains,
    mapped: Mapped,
    kind: PageKind,
    name: PageId,
    image: &mut AlignedBuffer,
) -> Result<(), String> {
    let extent = mapped.extent().filter(|extent| extent.bytes() == image.len());
    let offset = extent.ok_or("it has no places, or not as many as it takes")?.offset();
    remains.pages.read_at(offset, image).map_err(|error| format!("byte {offset} of the file: {error}"))?;
    page::vouch(image, name, mapped)?;
    if page::kind(image) != kind as u8 {
        return Err("it is something else".into());
    }
    Ok(())
}

/// The words of the part of this name, whose image this is, with what they are about.
fn named(name: PageId, image: &[u8]) -> impl Iterator<Item = (PageId, Mapped)> + '_ {
    let words = image[HEADER_BYTES..].chunks_exact(8);
    let words = words.map(|word| Mapped(u64::from_le_bytes(word.try_into().expect("eight bytes"))));
    // Nothing is about a part whose number is beyond all ids.
    let first = first_of(name, words_per_page(image.len()));
    first.into_iter().flat_map(|first| (first.0..).map(PageId)).zip(words)
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

/// Without a superblock: the size of the database's own pages. Parts of the page table are as long as those. Where there are
/// none, it is the size that most of the file is pages of.
fn guess_page_bytes(remains: &Remains, check: CheckPage) -> Result<usize> {
    let (mut parts, mut covered) = (ByClass::<usize>::default(), ByClass::<usize>::default());
    each_image(remains, check, |found, _, image| match found {
        Found::Part(class) => parts[class.index()] += 1,
        Found::Page(class) => covered[class.index()] += image.len(),
    })?;
    let most = SizeClass::all().max_by_key(|class| {
        let class = class.index();
        (parts[class], covered[class], Reverse(class))
    });
    match most {
        Some(class) if (parts[class.index()], covered[class.index()]) > (0, 0) => Ok(class.page_bytes()),
        _ => Err(Error::NotADatabase {
            path: remains.pages.name().to_owned(),
            what: "it has neither a superblock nor a page that is whole".into(),
        }),
    }
}

/// Whose image it is that was found in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// That of a page of the index, of this class.
    Page(SizeClass),
    /// That of a part of the page table, as long as pages of this class.
    Part(SizeClass),
}

/// The image that begins here, if it is whole: whose it is, and its bytes. `content` has room for the longest page.
fn image_at(start: &[u8], check: CheckPage, content: &mut [u8]) -> Option<(Found, usize)> {
    let whole = |bytes: usize| start.get(..bytes).filter(|image| page::checksum(image).1);
    match page::kind(start) {
        1..=4 => {
            let class = possible_class(page::page_id(start))?;
            page::check_kind(start, page::page_id(start)).ok()?;
            let image = whole(image::claimed_bytes(start, class.page_bytes())?)?;
            let page = image::unpack(image, class.page_bytes(), content).ok()?;
            check(page).ok().map(|()| (Found::Page(class), image.len()))
        }
        kind if kind == PageKind::Chunk as u8 || kind == PageKind::Directory as u8 => {
            let nodes = SizeClass::all().filter(|class| !class.is_for_values());
            let class = nodes.into_iter().find(|class| whole(class.page_bytes()).is_some())?;
            Some((Found::Part(class), class.page_bytes()))
        }
        _ => None,
    }
}

/// Calls back with every image that is whole, whose it is and its places. What cannot be read is passed over. An image may
/// begin at any place.
fn each_image(remains: &Remains, check: CheckPage, mut each: impl FnMut(Found, Extent, &[u8])) -> Result<()> {
    let longest = SizeClass::LARGEST.page_bytes();
    // What is looked at next may be the beginning of the longest image; so much and as much again is read at once.
    let mut staging = copy_buffer(2 * longest)?;
    let mut content = vec![0; longest];
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
        // What may go on behind what was read is looked at with that.
        while place < read.end() && (read.end() == end || read.end() - place >= places_of(longest)) {
            let start = &bytes[(place - read.first) as usize * PLACE_BYTES..];
            place += match image_at(start, check, &mut content) {
                Some((found, length)) => {
                    let extent = Extent { first: place, places: places_of(length) };
                    each(found, extent, &start[..length]);
                    extent.places
                }
                None => 1,
            };
        }
    }
    Ok(())
}
