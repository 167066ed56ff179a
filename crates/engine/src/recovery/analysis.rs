//! Analysis: reads superblock, mapping chunks and log before anything relies on them.
//!
//! While the end of the log is sought, [`Analysis::note`] gathers losers, the newest image of each
//! chunk, and mapping and allocation in the order of the log. [`Analysis::finish`] reads the chunks
//! and applies those that their images lack. Only then are the extents of base images final. What
//! there was no room to note is read again.
//!
//! A checksum does not show all damage, so every number is checked first: an id's class exists, a
//! segment has room for its pages.

use std::collections::HashMap;

use terrace_io::{AlignedBuffer, Read};

use crate::error::{Error, Result};
use crate::ids::{ByClass, ByPage, Lsn, PageId, PageSet, SizeClass, Timestamp};
use crate::maintenance::{Mapping, Part, Parts};
use crate::planted::{Bug, planted};
use crate::pool::PoolOptions;
use crate::pool::page_table::{Location, PageTable};
use crate::pool::persistent::{Adopted, Attached, Dropped};
use crate::pool::reread::reread;
use crate::store::files::Files;
use crate::store::mapping_word::{Extent, MappingWord};
use crate::store::page::{self, HEADER_BYTES, Kind as PageKind};
use crate::store::superblock::Superblock;
use crate::wal::{ALLOCATES, Change, Kind, LogScan, RecordView, change_kind};

/// Beyond any clock's reach, with room for later timestamps.
const TIMESTAMP_MAX: u64 = 1 << 62;
/// Minimum log bytes of an allocation.
const ALLOCATION_BYTES_MIN: u64 = 16;
/// Bytes of the page table's parts that are read together.
const PARTS_BYTES: usize = 256 << 10;
/// Share of the frames' memory for notes of either kind, as a divisor. There are no frames yet.
const NOTED_SHARE: u64 = if cfg!(test) { 1 << 10 } else { 8 };
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

/// What the log says of the pages' bases.
#[derive(Debug, Default)]
pub(super) struct Bases {
    /// Pages allocated or freed in the log, with the last such LSN.
    pub(super) born: ByPage<Lsn>,
    /// The highest LSN of a page's images in mapping records. No base is older.
    imaged: ByPage<Lsn>,
}

impl Bases {
    /// Whether the base of a page that exists may lack the change at `lsn`.
    pub(super) fn may_lack(&self, id: PageId, lsn: Lsn) -> bool {
        let is_of_old_life = self.born.get(&id).is_some_and(|&born| lsn < born);
        !is_of_old_life && self.imaged.get(&id).is_none_or(|&imaged| lacks(imaged, lsn))
    }

    /// Forgets the LSNs of images if they take more than `bytes`. Redo then looks at the pages.
    pub(super) fn forget_images_beyond(&mut self, bytes: u64) {
        let taken = self.imaged.capacity() * 2 * size_of::<(PageId, Lsn)>();
        if taken as u64 > bytes {
            self.imaged = ByPage::default();
        }
    }
}

/// Whether a page of LSN `base` lacks the change at `lsn`.
pub(super) fn lacks(base: Lsn, lsn: Lsn) -> bool {
    if planted(Bug::CompareLsnsWrongly) { base.0 <= lsn.0 + 1 } else { base < lsn }
}

/// Pages that the log changes, by the LSN of their first change, as far as there is room.
#[derive(Debug)]
pub(super) struct FirstChanges {
    list: Vec<Changed>,
    /// Pages whose base is a frame.
    adopted: Vec<PageId>,
    known: ByPage<usize>,
    most: usize,
    /// All pages changed below this are noted.
    to: Lsn,
}

#[derive(Clone, Copy, Debug)]
struct Changed {
    id: PageId,
    first: Lsn,
    last: Lsn,
}

impl FirstChanges {
    fn note(&mut self, record: &RecordView<'_>) {
        let lsn = record.lsn();
        if lsn >= self.to {
            return;
        }
        for Change { page: id, .. } in record.changes() {
            let next = self.list.len();
            let index = *self.known.entry(id).or_insert(next);
            if index == next {
                self.list.push(Changed { id, first: lsn, last: lsn });
            }
            self.list[index].last = lsn;
        }
        if self.list.len() > self.most {
            self.to = lsn;
        }
    }

    /// Keeps pages whose base may lack a change, and of those with an image as many as go into
    /// `bytes`.
    pub(super) fn keep_unread(&mut self, table: &PageTable, bases: &Bases, bytes: u64) {
        self.known = ByPage::default();
        let location = |id| table.entry(id).map(|entry| entry.location());
        self.list.retain(|changed| bases.may_lack(changed.id, changed.last));
        let adopted = self.list.iter().map(|changed| changed.id);
        self.adopted = adopted.filter(|&id| matches!(location(id), Some(Location::Frame(_)))).collect();
        self.list.retain(|changed| matches!(location(changed.id), Some(Location::Store(_))));
        let most = bytes as usize / size_of::<Changed>();
        if let Some(beyond) = self.list.get(most) {
            self.to = beyond.first;
        }
        self.list.truncate(most);
        self.list.shrink_to_fit();
    }

    /// Adopted pages, in the order of the log.
    pub(super) fn adopted(&self) -> &[PageId] {
        &self.adopted
    }

    /// Batches of `most` pages in the order of the log, after an empty one. With each comes the LSN
    /// up to which it and those before have all pages that must be read.
    pub(super) fn batches(&self, most: usize) -> impl Iterator<Item = (Vec<PageId>, Lsn)> + '_ {
        let batches = self.list.chunks(most).map(|pages| pages.iter().map(|page| page.id).collect());
        let ends = self.list.iter().step_by(most).map(|next| next.first).chain([self.to]);
        std::iter::once(Vec::new()).chain(batches).zip(ends)
    }
}

/// Mapping and allocation in the order of the log, as far as there is room.
#[derive(Debug)]
struct Events {
    list: Vec<(Lsn, PageId, MappingWord)>,
    most: usize,
    /// The first record that was not noted.
    rest: Option<Lsn>,
}

pub(super) struct Analysis<'a> {
    pub(super) files: &'a Files,
    pub(super) page_bytes: usize,
    pub(super) table: PageTable,
    pub(super) mapping: Mapping,
    /// The LSN to which each chunk's image is current.
    chunk_current: ByPage<Lsn>,
    chunk_named: ByPage<(Lsn, MappingWord)>,
    events: Events,
    pub(super) open: HashMap<u64, Loser>,
    pub(super) bases: Bases,
    pub(super) first_changes: FirstChanges,
    pub(super) highest: Timestamp,
    pub(super) ids_end: ByClass<u64>,
    /// Upper bound of allocated indexes: ids are issued in turn, each by a log record.
    ids_limit: ByClass<u64>,
    pub(super) segments: u64,
    pub(super) segment_blocks: u64,
    pub(super) unwritten: PageSet,
}

impl<'a> Analysis<'a> {
    pub(super) fn new(files: &'a Files, options: &PoolOptions, superblock: &Superblock) -> Result<Self> {
        let page_bytes = superblock.page_bytes as usize;
        let table = PageTable::reserve(options.pages_max, options.hints).map_err(|source| Error::Memory {
            bytes: PageTable::reserved_bytes(options.pages_max, options.hints),
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
            chunk_current: ByPage::default(),
            chunk_named: ByPage::default(),
            events: Events {
                list: Vec::new(),
                most: noted_most::<(Lsn, PageId, MappingWord)>(options),
                rest: None,
            },
            open: HashMap::new(),
            bases: Bases::default(),
            first_changes: FirstChanges {
                list: Vec::new(),
                adopted: Vec::new(),
                known: ByPage::default(),
                most: noted_most::<[Changed; 4]>(options),
                to: Lsn(u64::MAX),
            },
            highest: superblock.highest_timestamp,
            ids_end: superblock.page_ids_end,
            ids_limit,
            segments: superblock.segments,
            segment_blocks: u64::from(superblock.segment_blocks),
            unwritten: PageSet::default(),
        })
    }

    /// Notes what the next record says.
    pub(super) fn note(&mut self, record: &RecordView<'_>) {
        self.note_owner(record);
        self.first_changes.note(record);
        let lsn = record.lsn();
        if record.kind() == Kind::Mapping && !planted(Bug::BaseThroughOldMapping) {
            for entry in record.mappings() {
                let image = if planted(Bug::ImageAsNewAsMapping) { lsn } else { entry.image_lsn };
                let imaged = self.bases.imaged.entry(entry.page).or_default();
                *imaged = (*imaged).max(image);
            }
        }
        let noted = self.events.list.len();
        let is_noted = self.events.rest.is_none();
        for (page, word) in events_of(record) {
            if !word.has_image() {
                self.bases.born.insert(page, lsn);
            }
            if is_noted {
                self.events.list.push((lsn, page, word));
            }
        }
        if self.events.list.len() > self.events.most {
            self.events.list.truncate(noted);
            self.events.rest = Some(lsn);
        }
    }

    /// Loads the chunks and applies what was noted. `scan` reads the log from an LSN on.
    pub(super) fn finish(&mut self, scan: impl Fn(Lsn) -> Result<LogScan>) -> Result<()> {
        if self.highest.0 > TIMESTAMP_MAX {
            let what = format!("timestamp {} was never drawn", self.highest);
            return Err(Error::corrupt(self.files.log.name(), None, what));
        }
        self.load_chunks()?;
        for (lsn, page, word) in std::mem::take(&mut self.events.list) {
            self.apply(lsn, page, word)?;
        }
        if let Some(rest) = self.events.rest.filter(|_| !planted(Bug::AnalysisOfNoted)) {
            let mut records = scan(rest)?;
            while let Some(record) = records.next()? {
                for (page, word) in events_of(&record) {
                    self.apply(record.lsn(), page, word)?;
                }
            }
        }
        self.finish_mapping()
    }

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
        let mut buffer = AlignedBuffer::zeroed(PARTS_BYTES.max(self.page_bytes));
        for blocks in images(self.mapping.blocks()).chunks(buffer.len() / self.page_bytes) {
            let blocks = self.read_parts(PageKind::Directory, blocks, &mut buffer)?;
            for (block, image) in blocks {
                let first = self.mapping.first_of(block);
                for (at, mapped) in words(image).filter(|(_, mapped)| mapped.has_image()) {
                    let chunk = PageId::new(self.class_of(first)?, first.index() + at);
                    self.check_chunk(chunk, self.files.pages.name())?;
                    self.mapping.chunks_mut().entry(chunk).image = mapped;
                }
            }
        }
        for (chunk, (lsn, mapped)) in std::mem::take(&mut self.chunk_named) {
            self.check_chunk(chunk, "the log")?;
            self.mapping.chunks_mut().entry(chunk).image = mapped;
            self.mapping.dirty_block_of(chunk, lsn);
        }
        let mut chunks = images(self.mapping.chunks());
        chunks.retain(|(_, mapped)| mapped.has_image());
        for chunks in chunks.chunks(buffer.len() / self.page_bytes) {
            for (chunk, image) in self.read_parts(PageKind::Chunk, chunks, &mut buffer)? {
                self.chunk_current.insert(chunk, page::lsn(image));
                let first = self.mapping.first_of(chunk);
                for (at, mapped) in words(image).filter(|(_, mapped)| mapped.is_allocated()) {
                    self.set(PageId(first.0 + at), mapped)?;
                }
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

    /// Reads parts of the page table together into `buffer`, which has room for them.
    fn read_parts<'b>(
        &self,
        kind: PageKind,
        parts: &[(PageId, MappingWord)],
        buffer: &'b mut [u8],
    ) -> Result<Vec<(PageId, &'b [u8])>> {
        let file = self.files.pages.name();
        let mut reads = Vec::with_capacity(parts.len());
        for (&(_, mapped), image) in parts.iter().zip(buffer.chunks_exact_mut(self.page_bytes)) {
            reads.push(Read::new(self.extent_of_part(mapped)?.offset(), image));
        }
        self.files.pages.read_batch(&mut reads);
        let mut images = Vec::with_capacity(parts.len());
        for (&(name, mapped), Read { offset, buffer: image, result }) in parts.iter().zip(reads) {
            result.map_err(|source| Error::io("read", file, Some(offset), source))?;
            let is_right = |image: &[u8]| {
                let (checksum, holds) = page::checksum(image);
                let is_it = page::kind(image) == kind as u8 && page::page_id(image) == name;
                holds && is_it && mapped.verifies_for(checksum)
            };
            if !is_right(image) && !reread(self.files.cache.as_deref(), file, offset, image, is_right)? {
                let what = format!("{kind:?} image {name} at byte {offset} is not what was written");
                return Err(Error::corrupt(file, None, what));
            }
            images.push((name, &*image));
        }
        Ok(images)
    }

    fn extent_of_part(&self, mapped: MappingWord) -> Result<Extent> {
        let file = self.files.pages.name();
        let extent =
            mapped.extent().ok_or_else(|| Error::corrupt(file, None, "the page table has a hole"))?;
        if !extent.is_within(self.files.pages.len()) || extent.bytes() != self.page_bytes {
            let what = format!("a part of the page table is said to be at {extent:?}, which cannot be");
            return Err(Error::corrupt(file, None, what));
        }
        Ok(extent)
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

    /// Applies a mapping word of the record at `lsn`, if the chunk's image lacks it.
    fn apply(&mut self, lsn: Lsn, page: PageId, word: MappingWord) -> Result<()> {
        // A page without an image here was freed while that was in flight.
        if self.is_news(page, lsn)? && (!word.has_image() || self.is_allocated(page)) {
            self.set(page, word)?;
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
            let (born, imaged) = (self.bases.born.get(&id), self.bases.imaged.get(&id));
            let least = born.max(imaged);
            match () {
                () if id.class() != own || id.index() == 0 || !self.is_allocated(id) => Err(Dropped::Page),
                () if lsn >= log_end => Err(Dropped::BeyondLog),
                () if least.is_some_and(|&least| lsn < least) => Err(Dropped::Older),
                () => Ok(imaged == Some(&lsn)),
            }
        });
        found.retain(|frame| {
            let is_redone = || self.bases.born.contains_key(&frame.id) && tier.holds(frame);
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

/// How many notes of this size there is room for.
fn noted_most<T>(options: &PoolOptions) -> usize {
    (options.frame_bytes / NOTED_SHARE) as usize / size_of::<T>()
}

/// Pages whose mapping words a record changes.
fn events_of<'r>(record: &RecordView<'r>) -> impl Iterator<Item = (PageId, MappingWord)> + use<'r> {
    let granted = record.changes().filter_map(|change| match change.kind {
        change_kind::IMAGE if change.flags & ALLOCATES != 0 => Some((change.page, MappingWord::UNWRITTEN)),
        change_kind::FREE => Some((change.page, MappingWord::FREE)),
        _ => None,
    });
    let mappings = record.mappings().filter(|_| !planted(Bug::BaseThroughOldMapping));
    granted.chain(mappings.map(|entry| (entry.page, MappingWord::at(entry.extent, entry.check))))
}

/// Names and images of all parts.
fn images(parts: &Parts) -> Vec<(PageId, MappingWord)> {
    parts.iter().map(|(name, part)| (name, part.image)).collect()
}

fn words(image: &[u8]) -> impl Iterator<Item = (u64, MappingWord)> + '_ {
    let words = image[HEADER_BYTES..].chunks_exact(8);
    (0..).zip(words.map(|word| MappingWord(u64::from_le_bytes(word.try_into().expect("eight bytes")))))
}
