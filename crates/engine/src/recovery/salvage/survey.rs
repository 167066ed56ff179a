//! Survey: finds the newest image of each page in damaged files.
//!
//! Memory grows only with the data read, about fifty bytes per page, so a damaged number cannot
//! take memory. For pages of lost chunks it searches the whole file.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use terrace_io::units::show_size;
use terrace_io::{AlignedBuffer, BlockDevice};

use crate::backup::copy_buffer;
use crate::error::{Error, Result};
use crate::ids::{ByClass, Lsn, PageId, SizeClass};
use crate::maintenance::{first_of, part_of, words_per_page};
use crate::pool::page_table::{PAGES_MAX, indexes_max};
use crate::store::image;
use crate::store::mapping_word::{BLOCK_BYTES, Extent, MappingWord, blocks_of};
use crate::store::page::{self, HEADER_BYTES, Kind as PageKind};
use crate::store::superblock::{SUPERBLOCK_BYTES, Slots, Superblock};
use crate::wal::{ALLOCATES, EpochRule, Geometry, LogScan, change_kind, check_not_outrun, read_header};

/// The files of a damaged database, read-only.
#[derive(Clone, Debug)]
pub(crate) struct Remains {
    pub(crate) pages: Arc<dyn BlockDevice>,
    pub(crate) log: Option<Arc<dyn BlockDevice>>,
}

pub(crate) type CheckPage = fn(&[u8]) -> Result<(), String>;

#[derive(Clone, Copy, Debug)]
pub(super) struct WholeLog {
    pub(super) geometry: Geometry,
    pub(super) largest: Geometry,
    rule: EpochRule,
    cut: Lsn,
    pub(super) end: Lsn,
}

/// State of the pages of a chunk.
#[derive(Debug, Default)]
struct Chunk {
    /// The LSN to which the image is current; none without an image.
    current: Lsn,
    lost: bool,
    words: HashMap<PageId, MappingWord>,
}

/// The result of the survey.
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
    /// Surveys the files. Without `use_log` the log counts as lost.
    pub(super) fn of(remains: &Remains, check: CheckPage, use_log: bool) -> Result<Survey> {
        let (mut notes, mut is_alone) = (Vec::new(), false);
        let superblock = match Slots::open(remains.pages.clone()) {
            Ok((slots, superblock)) => {
                is_alone = slots.is_alone();
                Some(superblock)
            }
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
            Some(superblock) if use_log => match whole_log(remains, superblock, is_alone) {
                Ok(log) => Some(log),
                Err(error @ Error::Version { .. }) => return Err(error),
                Err(error) => {
                    notes.push(format!("the log is of no use: {error}"));
                    None
                }
            },
            _ => None,
        };
        if let Some(ring) = superblock.as_ref().and_then(|superblock| superblock.ring) {
            let from = log
                .as_ref()
                .map_or_else(|| "the last checkpoint".to_owned(), |log| format!("LSN {}", log.end));
            notes.push(format!(
                "the newest part of the log was in persistent memory of {} (id {:016x}), which a repair does not read: \
                 commits after {from} are lost; to keep them, open the database with that memory",
                show_size(ring.bytes),
                ring.id
            ));
        }
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

    pub(super) fn images(&self) -> impl Iterator<Item = (SizeClass, PageId, MappingWord)> + '_ {
        self.chunks.values().flat_map(|chunk| {
            let words = chunk.words.iter().filter(|(_, word)| word.has_image());
            let mut images: Vec<_> =
                words.filter_map(|(&id, &word)| Some((possible_class(id)?, id, word))).collect();
            images.sort_unstable_by_key(|(_, id, _)| *id);
            images
        })
    }

    /// The log may have larger ones.
    pub(super) fn largest_named(&self) -> SizeClass {
        let ends =
            self.superblock.iter().flat_map(|superblock| SizeClass::all().zip(superblock.page_ids_end));
        let named = ends.filter(|(_, end)| *end > 1).map(|(class, _)| class);
        named.max().unwrap_or(SizeClass::SMALLEST)
    }

    /// The end of used indexes in each class, as far as known.
    pub(super) fn ids_ends(&self) -> ByClass<u64> {
        let mut ends = [1; SizeClass::COUNT];
        for &id in self.chunks.values().flat_map(|chunk| chunk.words.keys()) {
            if let Some(class) = possible_class(id) {
                ends[class.index()] = ends[class.index()].max(id.index() + 1);
            }
        }
        ends
    }

    pub(super) fn records(&self, remains: &Remains) -> Result<Option<LogScan>> {
        match (&self.log, &remains.log) {
            (Some(log), Some(device)) if log.end > log.cut => {
                LogScan::new(device.clone(), log.geometry, log.cut, log.rule).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Reads the page table like recovery, except for lost parts.
    fn read_page_table(&mut self, remains: &Remains) -> Result<()> {
        let per_page = words_per_page(self.page_bytes);
        let superblock = self.superblock.clone().expect("a log that counts is one that a superblock names");
        let mut image = copy_buffer(self.page_bytes)?;
        let mut named_images: BTreeMap<PageId, MappingWord> = BTreeMap::new();
        for (class, blocks) in SizeClass::all().zip(&superblock.directory) {
            for (number, &mapped) in (0..).zip(blocks) {
                let block = PageId::new(class, number);
                match read_part(remains, mapped, PageKind::Directory, block, &mut image) {
                    Ok(()) => named_images.extend(named(block, &image).filter(|(_, word)| word.has_image())),
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
                named_images
                    .extend(entries.map(|entry| (entry.chunk, MappingWord::at(entry.extent, entry.check))));
            }
        }
        for (name, mapped) in named_images {
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

    /// Marks the chunks of a lost directory block as lost, up to `ids_end` and the length of the
    /// file.
    fn lose_chunks(&mut self, remains: &Remains, block: PageId, ids_end: u64) {
        let per_page = words_per_page(self.page_bytes);
        let Some(first) = first_of(block, per_page) else { return };
        let used = ids_end.div_ceil(per_page).saturating_sub(first.index());
        let most = remains.pages.len() / self.page_bytes as u64;
        for at in 0..per_page.min(used).min(most) {
            self.chunks.insert(PageId(first.0 + at), Chunk { lost: true, ..Chunk::default() });
        }
    }

    /// Applies allocations, frees and extents from the log.
    fn apply_log(&mut self, remains: &Remains, per_page: u64) -> Result<()> {
        let Some(mut records) = self.records(remains)? else { return Ok(()) };
        while let Some(record) = records.next()? {
            let lsn = record.lsn();
            for change in record.changes() {
                let allocates = change.kind == change_kind::IMAGE && change.flags & ALLOCATES != 0;
                if allocates || change.kind == change_kind::FREE {
                    let word = if allocates { MappingWord::UNWRITTEN } else { MappingWord::FREE };
                    self.apply(change.page, lsn, per_page, |_| Some(word));
                }
            }
            for entry in record.mappings() {
                let word = MappingWord::at(entry.extent, entry.check);
                // The page was freed while this image was in flight.
                self.apply(entry.page, lsn, per_page, |old| match old {
                    Some(old) if !old.is_allocated() => None,
                    _ => Some(word),
                });
            }
        }
        Ok(())
    }

    /// Replaces the word of `id` by the result of `next`, if the chunk's image lacks the record at
    /// `lsn`. A lost chunk has no words.
    fn apply(
        &mut self,
        id: PageId,
        lsn: Lsn,
        per_page: u64,
        next: impl FnOnce(Option<MappingWord>) -> Option<MappingWord>,
    ) {
        let Some(name) = part_of(id, per_page) else { return };
        let chunk = self.chunks.entry(name).or_default();
        if lsn < chunk.current {
            return;
        }
        let unknown = if chunk.lost { None } else { Some(MappingWord::FREE) };
        if let Some(word) = next(chunk.words.get(&id).copied().or(unknown)) {
            chunk.words.insert(id, word);
        }
    }

    /// Searches the whole file for the newest images of unknown pages.
    fn look_for_images(&mut self, remains: &Remains, check: CheckPage) -> Result<()> {
        let per_page = words_per_page(self.page_bytes);
        let below = self.log.map_or(Lsn(u64::MAX), |log| log.end);
        let everything = self.log.is_none();
        let mut newest: HashMap<PageId, (Lsn, MappingWord)> = HashMap::new();
        each_image(remains, check, |found, extent, image| {
            let (id, lsn) = (page::page_id(image), page::lsn(image));
            let chunk = part_of(id, per_page).and_then(|name| self.chunks.get(&name));
            let lost = chunk.is_some_and(|chunk| chunk.lost && !chunk.words.contains_key(&id));
            if !(everything || lost) || lsn >= below || matches!(found, Found::Part(_)) {
                return;
            }
            let mapped = MappingWord::at(extent, page::checksum(image).0);
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

fn possible_class(id: PageId) -> Option<SizeClass> {
    id.class().filter(|&class| (1..indexes_max(PAGES_MAX, class)).contains(&id.index()))
}

fn read_part(
    remains: &Remains,
    mapped: MappingWord,
    kind: PageKind,
    name: PageId,
    image: &mut AlignedBuffer,
) -> Result<(), String> {
    let extent = mapped.extent().filter(|extent| extent.bytes() == image.len());
    let offset = extent.ok_or("it has no blocks, or not as many as it takes")?.offset();
    remains.pages.read_at(offset, image).map_err(|error| format!("byte {offset} of the file: {error}"))?;
    page::verify_image(image, name, mapped)?;
    if page::kind(image) != kind as u8 {
        return Err("it is something else".into());
    }
    Ok(())
}

fn named(name: PageId, image: &[u8]) -> impl Iterator<Item = (PageId, MappingWord)> + '_ {
    let words = image[HEADER_BYTES..].chunks_exact(8);
    let words = words.map(|word| MappingWord(u64::from_le_bytes(word.try_into().expect("eight bytes"))));
    // A number beyond all ids names no part.
    let first = first_of(name, words_per_page(image.len()));
    first.into_iter().flat_map(|first| (first.0..).map(PageId)).zip(words)
}

/// The log, if it belongs to this database and is whole from its cut to its durable end.
fn whole_log(remains: &Remains, superblock: &Superblock, is_alone: bool) -> Result<WholeLog> {
    let rule = EpochRule { epoch: superblock.epoch, first_lsn: superblock.epoch_start };
    let Superblock { cut, log_end, log_capacity, .. } = *superblock;
    let geometry = Geometry::new(log_capacity)?;
    let mut log = WholeLog { geometry, largest: geometry, rule, cut, end: log_end };
    // Even if the superblock needs no log: commits may have followed the superblock.
    let Some(device) = remains.log.clone() else {
        return Err(Error::corrupt("the log", None, "it cannot be opened, or is missing"));
    };
    let damaged = |what: String| Error::corrupt(device.name(), None, what);
    match read_header(&*device) {
        Ok(header) if header.database != superblock.uuid || header.timeline != superblock.timeline => {
            return Err(damaged("it belongs to another database".into()));
        }
        Ok(header) => {
            log.geometry = header.ring(&*device, log_capacity)?;
            log.largest = header.largest;
        }
        Err(error @ Error::Version { .. }) => return Err(error),
        // The superblock repeats the header, and every record has a checksum.
        Err(_) if device.len() >= log.geometry.file_bytes() => {}
        Err(error) => return Err(error),
    }
    if is_alone {
        check_not_outrun(device.clone(), log.geometry, cut, rule)?;
    }
    log.end = LogScan::new(device.clone(), log.geometry, cut, rule)?.finish()?;
    if log.end < log_end {
        return Err(damaged(format!("it ends at {}, but it was durable up to {log_end}", log.end)));
    }
    Ok(log)
}

/// Guesses the page size: the length of page table parts, else the size of most pages in the file.
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
            what: "it has neither a superblock nor a page that is whole; restore a backup".into(),
        }),
    }
}

/// The owner of an image in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// An index page of this class.
    Page(SizeClass),
    /// A page table part, as long as pages of this class.
    Part(SizeClass),
}

/// The valid image at `start`: owner and bytes. `content` has room for the longest page.
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

/// Calls back with each valid image, its owner and extent. Skips unreadable parts. An image may
/// begin at any block.
fn each_image(remains: &Remains, check: CheckPage, mut each: impl FnMut(Found, Extent, &[u8])) -> Result<()> {
    let longest = SizeClass::LARGEST.page_bytes();
    // The longest image may begin at the last block examined, so each read has twice that length.
    let mut staging = copy_buffer(2 * longest)?;
    let mut content = vec![0; longest];
    let end = remains.pages.len() / BLOCK_BYTES as u64;
    let mut next_block = SUPERBLOCK_BYTES / BLOCK_BYTES as u64;
    while next_block < end {
        let read = Extent { first: next_block, blocks: blocks_of(staging.len()).min(end - next_block) };
        let bytes = &mut staging[..read.bytes()];
        if remains.pages.read_at(read.offset(), bytes).is_err() {
            // Partly unreadable: read block by block, and zero what fails, so no old bytes remain.
            for (next_block, part) in (read.first..).zip(bytes.chunks_exact_mut(BLOCK_BYTES)) {
                if remains.pages.read_at(next_block * BLOCK_BYTES as u64, part).is_err() {
                    part.fill(0);
                }
            }
        }
        // An image that may go on behind this read is examined with the next one.
        while next_block < read.end() && (read.end() == end || read.end() - next_block >= blocks_of(longest))
        {
            let start = &bytes[(next_block - read.first) as usize * BLOCK_BYTES..];
            next_block += match image_at(start, check, &mut content) {
                Some((found, length)) => {
                    let extent = Extent { first: next_block, blocks: blocks_of(length) };
                    each(found, extent, &start[..length]);
                    extent.blocks
                }
                None => 1,
            };
        }
    }
    Ok(())
}
