//! Analysis: reads superblock, mapping chunks and log before anything relies on them.
//!
//! The first pass finds losers and the newest image of each chunk. The second replays newer mapping
//! and allocation records. Only then are the extents of base images final.
//!
//! A checksum does not show all damage, so every number is checked first: an id's class exists, a
//! segment has room for its pages.

use std::collections::{HashMap, HashSet};

use terrace_io::AlignedBuffer;

use crate::error::{Error, Result};
use crate::ids::{ByClass, Lsn, PageId, SizeClass, Timestamp};
use crate::maintenance::{Mapping, Part, Parts};
use crate::planted::{Bug, planted};
use crate::pool::PoolOptions;
use crate::pool::page_table::{Location, PageTable};
use crate::pool::persistent::{Adopted, Attached, Dropped};
use crate::pool::reread::reread;
use crate::store::files::Files;
use crate::store::mapping_word::MappingWord;
use crate::store::page::{self, HEADER_BYTES, Kind as PageKind};
use crate::store::superblock::Superblock;
use crate::wal::{ALLOCATES, Kind, LogScan, RecordView, change_kind};

/// Beyond any clock's reach, with room for later timestamps.
const TIMESTAMP_MAX: u64 = 1 << 62;
/// Minimum log bytes of an allocation.
const ALLOCATION_BYTES_MIN: u64 = 16;
/// Upper bound of page ids that threads held, unlogged, when the database stopped.
const IDS_HELD_MAX: u64 = 1 << 16;

/// A transaction with records in the log, but neither a commit nor an end record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loser {
    pub(crate) transaction: Timestamp,
    /// First record.
    pub(crate) first: Lsn,
    /// Last record, compensations included.
    pub(crate) last: Lsn,
}

pub(super) struct Analysis<'a> {
    pub(super) files: &'a Files,
    pub(super) page_bytes: usize,
    pub(super) table: PageTable,
    pub(super) mapping: Mapping,
    /// The LSN to which each chunk's image is current.
    chunk_current: HashMap<PageId, Lsn>,
    chunk_named: HashMap<PageId, (Lsn, MappingWord)>,
    pub(super) open: HashMap<u64, Loser>,
    /// Pages allocated or freed in the log, with the last such LSN.
    pub(super) born: HashMap<PageId, Lsn>,
    /// The highest LSN of a page's images in mapping records.
    imaged: HashMap<PageId, Lsn>,
    pub(super) highest: Timestamp,
    pub(super) ids_end: ByClass<u64>,
    /// Upper bound of allocated indexes: ids are issued in turn, each by a log record.
    ids_limit: ByClass<u64>,
    pub(super) segments: u64,
    pub(super) segment_blocks: u64,
    pub(super) unwritten: HashSet<PageId>,
}

impl<'a> Analysis<'a> {
    pub(super) fn of(
        files: &'a Files,
        options: &PoolOptions,
        superblock: &Superblock,
        scan: impl Fn(Lsn) -> Result<LogScan>,
    ) -> Result<Self> {
        let mut analysis = Analysis::new(files, options, superblock)?;
        let mut records = scan(superblock.cut)?;
        while let Some(record) = records.next()? {
            analysis.note_owner(&record);
        }
        if analysis.highest.0 > TIMESTAMP_MAX {
            let what = format!("timestamp {} was never drawn", analysis.highest);
            return Err(Error::corrupt(files.log.name(), None, what));
        }
        analysis.load_chunks()?;
        let mut records = scan(superblock.cut)?;
        while let Some(record) = records.next()? {
            analysis.apply_mapping(&record)?;
        }
        analysis.finish_mapping()?;
        Ok(analysis)
    }

    fn new(files: &'a Files, options: &PoolOptions, superblock: &Superblock) -> Result<Self> {
        let page_bytes = superblock.page_bytes as usize;
        let table = PageTable::reserve(options.pages_max).map_err(|source| Error::Memory {
            bytes: PageTable::reserved_bytes(options.pages_max),
            what: "the page table's addresses",
            source,
        })?;
        let mut mapping = Mapping::new(page_bytes);
        for (class, blocks) in SizeClass::all().zip(&superblock.directory) {
            for (number, &image) in (0..).zip(blocks) {
                *mapping.blocks_mut().entry(PageId::new(class, number)) = Part { image, dirty: Lsn::NONE };
            }
        }
        let ids_limit = |class: SizeClass| {
            superblock.page_ids_end[class.index()]
                .saturating_add(superblock.log_capacity / ALLOCATION_BYTES_MIN + IDS_HELD_MAX)
                .min(table.indexes_max(class))
        };
        let ids_limit = SizeClass::all().map(ids_limit).collect::<Vec<_>>().try_into();
        let ids_limit = ids_limit.expect("one for each class");
        Ok(Analysis {
            files,
            page_bytes,
            table,
            mapping,
            chunk_current: HashMap::new(),
            chunk_named: HashMap::new(),
            open: HashMap::new(),
            born: HashMap::new(),
            imaged: HashMap::new(),
            highest: superblock.highest_timestamp,
            ids_end: superblock.page_ids_end,
            ids_limit,
            segments: superblock.segments,
            segment_blocks: u64::from(superblock.segment_blocks),
            unwritten: HashSet::new(),
        })
    }

    /// First pass: finds losers, and the newest image of each chunk.
    fn note_owner(&mut self, record: &RecordView<'_>) {
        let transaction = record.transaction();
        self.highest = self.highest.max(transaction);
        match record.kind() {
            Kind::Commit | Kind::End => {
                self.open.remove(&transaction.0);
            }
            Kind::Pages if record.commits() => {
                self.open.remove(&transaction.0);
            }
            Kind::Pages if !transaction.is_none() => {
                let loser = self.open.entry(transaction.0);
                let first = record.lsn();
                loser.or_insert(Loser { transaction, first, last: first }).last = first;
            }
            Kind::Chunk => {
                for entry in record.chunks() {
                    self.chunk_named
                        .insert(entry.chunk, (record.lsn(), MappingWord::at(entry.extent, entry.check)));
                }
            }
            _ => {}
        }
    }

    /// Reads the directory and the newest image of every chunk into the table.
    fn load_chunks(&mut self) -> Result<()> {
        let mut image = AlignedBuffer::zeroed(self.page_bytes);
        for (block, mapped) in images(self.mapping.blocks()) {
            self.read(mapped, PageKind::Directory, block, &mut image)?;
            let first = self.mapping.first_of(block);
            for (at, mapped) in words(&image).filter(|(_, mapped)| mapped.has_image()) {
                let chunk = PageId::new(self.class_of(first)?, first.index() + at);
                self.check_chunk(chunk, self.files.pages.name())?;
                self.mapping.chunks_mut().entry(chunk).image = mapped;
            }
        }
        for (chunk, (lsn, mapped)) in std::mem::take(&mut self.chunk_named) {
            self.check_chunk(chunk, "the log")?;
            self.mapping.chunks_mut().entry(chunk).image = mapped;
            self.mapping.dirty_block_of(chunk, lsn);
        }
        for (chunk, mapped) in images(self.mapping.chunks()) {
            if !mapped.has_image() {
                continue;
            }
            self.read(mapped, PageKind::Chunk, chunk, &mut image)?;
            self.chunk_current.insert(chunk, page::lsn(&image));
            let first = self.mapping.first_of(chunk);
            for (at, mapped) in words(&image).filter(|(_, mapped)| mapped.is_allocated()) {
                self.set(PageId(first.0 + at), mapped)?;
            }
        }
        Ok(())
    }

    fn class_of(&self, id: PageId) -> Result<SizeClass> {
        let class = id.class().filter(|class| class.blocks() <= self.segment_blocks);
        class.ok_or_else(|| {
            Error::corrupt(self.files.pages.name(), Some(id.0), "a page is named that is of no size there is")
        })
    }

    fn check_chunk(&self, chunk: PageId, by: &str) -> Result<()> {
        let class = self.class_of(chunk)?;
        if chunk.index() <= self.table.indexes_max(class) / self.mapping.words() {
            return Ok(());
        }
        let what = format!("chunk {} of pages of {} bytes is named", chunk.index(), class.page_bytes());
        Err(Error::corrupt(by, None, format!("{what}, which cannot be")))
    }

    fn read(&self, mapped: MappingWord, kind: PageKind, name: PageId, image: &mut [u8]) -> Result<()> {
        let file = self.files.pages.name();
        let extent =
            mapped.extent().ok_or_else(|| Error::corrupt(file, None, "the page table has a hole"))?;
        if !extent.is_within(self.files.pages.len()) || extent.bytes() != image.len() {
            let what = format!("a part of the page table is said to be at {extent:?}, which cannot be");
            return Err(Error::corrupt(file, None, what));
        }
        let offset = extent.offset();
        let read = self.files.pages.read_at(offset, image);
        read.map_err(|source| Error::io("read", file, Some(offset), source))?;
        let is_right = |image: &[u8]| {
            let (checksum, holds) = page::checksum(image);
            let is_it = page::kind(image) == kind as u8 && page::page_id(image) == name;
            holds && is_it && mapped.verifies_for(checksum)
        };
        if !is_right(image) && !reread(self.files.cache.as_deref(), file, offset, image, is_right)? {
            return Err(Error::corrupt(
                file,
                None,
                format!("{kind:?} image {name} at byte {offset} is not what was written"),
            ));
        }
        Ok(())
    }

    /// Sets a page's durable state. Collects unwritten pages, which have no location.
    fn set(&mut self, id: PageId, mapped: MappingWord) -> Result<()> {
        let class = self.class_of(id)?;
        let entry = self.table.entry(id).filter(|_| id.index() > 0).ok_or_else(|| {
            Error::corrupt(self.files.pages.name(), Some(id.0), "the page table names a page that cannot be")
        })?;
        if mapped.extent().is_some_and(|extent| !extent.suits(class.page_bytes())) {
            let what = "the page table names blocks that no image of such a page can have";
            return Err(Error::corrupt(self.files.pages.name(), Some(id.0), what));
        }
        if !mapped.has_image() && mapped != MappingWord::UNWRITTEN && mapped != MappingWord::FREE {
            let what = "the page table says of a page that it has no image, and how long that is";
            return Err(Error::corrupt(self.files.pages.name(), Some(id.0), what));
        }
        let ids_end = &mut self.ids_end[class.index()];
        *ids_end = (*ids_end).max(id.index() + 1);
        self.unwritten.remove(&id);
        entry.set_location(match mapped.has_image() {
            true => Location::Store(mapped),
            false => Location::Nowhere,
        });
        if mapped == MappingWord::UNWRITTEN {
            self.unwritten.insert(id);
        }
        Ok(())
    }

    fn is_allocated(&self, id: PageId) -> bool {
        let stored = self.table.entry(id).is_some_and(|entry| entry.location() != Location::Nowhere);
        stored || self.unwritten.contains(&id)
    }

    /// Second pass: applies what the chunk images lack, in log order.
    fn apply_mapping(&mut self, record: &RecordView<'_>) -> Result<()> {
        let lsn = record.lsn();
        match record.kind() {
            Kind::Pages => {
                for change in record.changes() {
                    let allocates = change.kind == change_kind::IMAGE && change.flags & ALLOCATES != 0;
                    if !allocates && change.kind != change_kind::FREE {
                        continue;
                    }
                    self.born.insert(change.page, lsn);
                    if self.is_news(change.page, lsn)? {
                        self.set(
                            change.page,
                            if allocates { MappingWord::UNWRITTEN } else { MappingWord::FREE },
                        )?;
                    }
                }
            }
            Kind::Mapping if !planted(Bug::BaseThroughOldMapping) => {
                for entry in record.mappings() {
                    let imaged = self.imaged.entry(entry.page).or_default();
                    *imaged = (*imaged).max(entry.image_lsn);
                    // The page was freed while this image was in flight.
                    if self.is_news(entry.page, lsn)? && self.is_allocated(entry.page) {
                        self.set(entry.page, MappingWord::at(entry.extent, entry.check))?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether the chunk's image lacks a record at `lsn`. If so, marks the chunk dirty from it.
    fn is_news(&mut self, id: PageId, lsn: Lsn) -> Result<bool> {
        let cannot_be = || {
            let what = format!("the record at {lsn} names a page that cannot be");
            Error::corrupt("the log", Some(id.0), what)
        };
        let class = self.class_of(id).map_err(|_| cannot_be())?;
        let current = self.chunk_current.get(&self.mapping.chunk_of(id));
        if current.is_some_and(|&current| lsn < current) {
            return Ok(false);
        }
        if id.index() >= self.ids_limit[class.index()] {
            return Err(cannot_be());
        }
        self.mapping.dirty(id, lsn);
        Ok(true)
    }

    /// The frames of a persistent middle tier that are bases. A page without an image keeps its
    /// frame only if the body holds: its image may be written before redo meets it.
    pub(super) fn bases_in(&mut self, tier: &Attached, log_end: Lsn) -> Vec<Adopted> {
        let own = SizeClass::of_bytes(self.page_bytes as u64);
        let mut found = tier.candidates(|id, lsn| {
            let (born, imaged) = (self.born.get(&id), self.imaged.get(&id));
            let least = born.max(imaged);
            match () {
                () if id.class() != own || id.index() == 0 || !self.is_allocated(id) => Err(Dropped::Page),
                () if lsn >= log_end => Err(Dropped::BeyondLog),
                () if least.is_some_and(|&least| lsn < least) => Err(Dropped::Older),
                () => Ok(imaged == Some(&lsn)),
            }
        });
        found.retain(|frame| {
            let is_redone = || self.born.contains_key(&frame.id) && tier.holds(frame);
            !self.unwritten.contains(&frame.id) || is_redone()
        });
        found
    }

    /// Limits the page ids to those with chunks. Others were never used, whatever the superblock
    /// says.
    fn finish_mapping(&mut self) -> Result<()> {
        for class in SizeClass::all() {
            let known = self.mapping.chunks().count(class) * self.mapping.words();
            let ids_end = &mut self.ids_end[class.index()];
            *ids_end = (*ids_end).clamp(1, known.max(1));
            if *ids_end > self.table.indexes_max(class) {
                return Err(Error::Config(format!(
                    "the database has {} pages of {} bytes, more than the page table may hold; raise the limit",
                    *ids_end - 1,
                    class.page_bytes()
                )));
            }
        }
        Ok(())
    }
}

/// Names and images of all parts.
fn images(parts: &Parts) -> Vec<(PageId, MappingWord)> {
    parts.iter().map(|(name, part)| (name, part.image)).collect()
}

fn words(image: &[u8]) -> impl Iterator<Item = (u64, MappingWord)> + '_ {
    let words = image[HEADER_BYTES..].chunks_exact(8);
    (0..).zip(words.map(|word| MappingWord(u64::from_le_bytes(word.try_into().expect("eight bytes")))))
}
