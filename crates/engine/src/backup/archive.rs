//! Reads a backup, to verify it or to restore a database from it.
//!
//! A backup is a page file and a log in a database's format, but packed: the ring is just long
//! enough, and the page file has only named images. Both belong to the timeline of their source. A
//! restored database begins a new timeline, so its files never mix with those of another.
//!
//! Everything is checked: each image by checksum, page id and page table entry, each log record by
//! checksum, and the lengths of both files by the superblock.

use std::collections::HashSet;
use std::ops::Range;

use terrace_io::{AlignedBuffer, BlockDevice, Write};

use super::packed::copy_buffer;
use super::{BATCH_BYTES, read_images};
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, SizeClass};
use crate::maintenance::{first_of, words_per_page};
use crate::store::files::Files;
use crate::store::image;
use crate::store::mapping_word::{Extent, MappingWord};
use crate::store::page::{self, HEADER_BYTES, Kind};
use crate::store::space::Geometry as SpaceGeometry;
use crate::store::superblock::{Slots, Superblock};
use crate::wal::{BLOCK, CAPACITY_FIRST, EpochRule, Geometry, LogCopy, LogHeader, LogScan, Wal, read_header};

/// Largest pages that a restored log has room for.
const LOG_PAGES_MIN: u64 = 64;

/// Totals of a checked or restored backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) pages: u64,
    pub(crate) log_bytes: u64,
}

/// Receives sound images and damage.
pub(crate) trait Visitor {
    /// Receives the image of a sound page.
    fn image(&mut self, id: PageId, image: &[u8]) -> Result<(), String>;

    /// Receives damage. An error ends the reading.
    fn damage(&mut self, error: Error) -> Result<()>;
}

/// Returns the children of a page, or the damage in it.
pub(crate) type Below<'a> = &'a mut dyn FnMut(&[u8]) -> Result<Vec<PageId>, String>;

/// An open backup.
#[derive(Debug)]
pub(crate) struct Archive {
    files: Files,
    superblock: Superblock,
    log: Geometry,
}

impl Archive {
    /// Opens a backup read-only.
    ///
    /// # Errors
    /// [`Error::NotADatabase`], [`Error::Version`], [`Error::Corrupt`], [`Error::Io`].
    pub(crate) fn open(files: Files) -> Result<Archive> {
        let (_, superblock) = Slots::open(files.pages.clone())?;
        let header = read_header(&*files.log)?;
        if header.database != superblock.uuid || header.timeline != superblock.timeline {
            return Err(Error::NotADatabase {
                path: files.log.name().to_owned(),
                what: "the log belongs to another backup than the page file".into(),
            });
        }
        let log = header.ring(&*files.log, header.largest.capacity())?;
        let archive = Archive { files, superblock, log };
        let (is, should) =
            (archive.files.pages.len(), archive.space().file_bytes(archive.superblock.segments));
        if is < should {
            let what = format!("the page file has {is} bytes, its superblock says {should}");
            return Err(Error::corrupt(archive.files.pages.name(), None, what));
        }
        Ok(archive)
    }

    fn space(&self) -> SpaceGeometry {
        SpaceGeometry { segment_blocks: u64::from(self.superblock.segment_blocks) }
    }

    /// Bytes of its largest page.
    fn longest_page(&self) -> usize {
        let named = SizeClass::all().zip(&self.superblock.directory).filter(|(_, blocks)| !blocks.is_empty());
        named.map(|(class, _)| class).max().unwrap_or(SizeClass::SMALLEST).page_bytes()
    }

    fn records(&self) -> Result<LogScan> {
        let rule = EpochRule { epoch: self.superblock.epoch, first_lsn: self.superblock.epoch_start };
        LogScan::new(self.files.log.clone(), self.log, self.superblock.cut, rule)
    }

    /// Reads all images and all log records.
    ///
    /// # Errors
    /// Read errors, and errors of `visitor`.
    pub(crate) fn check(&self, visitor: &mut dyn Visitor) -> Result<Tally> {
        let pages = self.walk(None, visitor)?;
        if let Err(error) = self.check_log() {
            visitor.damage(error)?;
        }
        Ok(Tally { pages, log_bytes: self.log_bytes() })
    }

    /// The class of the database's own pages.
    pub(crate) fn class(&self) -> SizeClass {
        SizeClass::of_bytes(self.superblock.page_bytes.into()).expect("the superblock was checked")
    }

    /// Walks the pages below `roots`, each once; `below` returns the children of a page. Skips
    /// damaged pages, which [`Archive::check`] reports.
    ///
    /// # Errors
    /// Read errors.
    pub(crate) fn descend(&self, roots: &[PageId], below: Below<'_>) -> Result<()> {
        let mut descent = Descent { below, next: roots.to_vec() };
        let (mut chunks, mut pages, mut chunk) = (Vec::new(), Vec::new(), None);
        let mut met = HashSet::new();
        while let Some(id) = descent.next.pop() {
            let Some(class) = id.class().filter(|_| met.insert(id)) else { continue };
            let mut walk = self.walk_of(None, &mut descent)?;
            let name = |index| PageId::new(class, index);
            let wanted = name(id.index() / walk.per_page);
            if chunk != Some(wanted) {
                pages.clear();
                let number = wanted.index() / walk.per_page;
                let blocks = &self.superblock.directory[class.index()];
                let block = usize::try_from(number).ok().and_then(|number| blocks.get(number));
                let Some(&block) = block else { continue };
                walk.words(block, Kind::Directory, name(number), &mut chunks)?;
                if let Some(&(_, mapped)) = chunks.iter().find(|(other, _)| *other == wanted) {
                    walk.words(mapped, Kind::Chunk, wanted, &mut pages)?;
                }
                chunk = Some(wanted);
            }
            let found: Vec<(PageId, MappingWord)> =
                pages.iter().filter(|(other, _)| *other == id).copied().collect();
            walk.pages(class, &found)?;
        }
        Ok(())
    }

    fn log_bytes(&self) -> u64 {
        self.superblock.log_end.0 - self.superblock.cut.0
    }

    fn check_log(&self) -> Result<()> {
        let mut records = self.records()?;
        while records.end() < self.superblock.log_end && records.next()?.is_some() {}
        self.check_end(records.end())
    }

    fn check_end(&self, is: Lsn) -> Result<()> {
        let should = self.superblock.log_end;
        if is == should {
            return Ok(());
        }
        let what = format!("its log ends at {is}, it should end at {should}");
        Err(Error::corrupt(self.files.log.name(), None, what))
    }

    /// Restores into two empty files, with a new timeline. The caller makes their names durable.
    ///
    /// # Errors
    /// [`Error::Corrupt`] at the first damage, [`Error::Full`], [`Error::Io`].
    pub(crate) fn restore(&self, target: &Files, timeline: u64, visitor: &mut dyn Visitor) -> Result<Tally> {
        let Superblock { uuid, log_capacity, log_end, segments, .. } = self.superblock;
        let largest = Geometry::new(log_capacity)?;
        // A log of any length is valid; this one has as much room again as it holds.
        let log_bytes = self.log_bytes().saturating_mul(2).max(LOG_PAGES_MIN * self.longest_page() as u64);
        // Recovery may have made the original's longer than its largest.
        let held = self.log_bytes().saturating_add(2 * BLOCK);
        let ring = largest.starting_from(log_bytes.max(CAPACITY_FIRST)).holding(held).unwrap_or(largest);
        Wal::create(&*target.log, &LogHeader { database: uuid, timeline, largest }, ring)?;
        let mut copy = LogCopy::new(self.records()?, log_end, target.log.clone(), ring)?;
        while copy.step()? {}
        target.log.sync().map_err(|source| Error::io("sync", target.log.name(), None, source))?;
        let bytes = self.space().file_bytes(segments);
        let pages = &target.pages;
        pages.set_len(bytes).map_err(|source| Error::io("grow", pages.name(), None, source))?;
        let copied = self.walk(Some(&**pages), visitor)?;
        pages.sync().map_err(|source| Error::io("sync", pages.name(), None, source))?;
        let log_capacity = ring.capacity();
        let superblock = Superblock { timeline, sequence: 1, log_capacity, ..self.superblock.clone() };
        Slots::create(pages.clone(), &superblock)?;
        Ok(Tally { pages: copied, log_bytes: self.log_bytes() })
    }

    /// Reads every named image and writes it to the same blocks of `target`. Returns the number of
    /// pages.
    fn walk(&self, target: Option<&dyn BlockDevice>, visitor: &mut dyn Visitor) -> Result<u64> {
        let mut walk = self.walk_of(target, visitor)?;
        let (mut chunks, mut pages) = (Vec::new(), Vec::new());
        for (class, blocks) in SizeClass::all().zip(&self.superblock.directory) {
            let batch = (BATCH_BYTES / class.page_bytes()).max(1);
            for (number, &block) in (0..).zip(blocks) {
                walk.words(block, Kind::Directory, PageId::new(class, number), &mut chunks)?;
                for &(chunk, mapped) in &chunks {
                    walk.words(mapped, Kind::Chunk, chunk, &mut pages)?;
                    pages.chunks(batch).try_for_each(|batch| walk.pages(class, batch))?;
                }
            }
        }
        Ok(walk.pages)
    }

    fn walk_of<'a>(
        &'a self,
        target: Option<&'a dyn BlockDevice>,
        visitor: &'a mut dyn Visitor,
    ) -> Result<Walk<'a>> {
        let page_bytes = self.superblock.page_bytes as usize;
        Ok(Walk {
            archive: self,
            target,
            visitor,
            per_page: words_per_page(page_bytes),
            image: copy_buffer(page_bytes)?,
            staging: copy_buffer(BATCH_BYTES.max(self.longest_page()))?,
            page: vec![0; self.longest_page()],
            pages: 0,
        })
    }
}

struct Descent<'a> {
    below: Below<'a>,
    next: Vec<PageId>,
}

impl Visitor for Descent<'_> {
    fn image(&mut self, _id: PageId, image: &[u8]) -> Result<(), String> {
        self.next.extend((self.below)(image)?);
        Ok(())
    }

    fn damage(&mut self, _error: Error) -> Result<()> {
        Ok(())
    }
}

struct Walk<'a> {
    archive: &'a Archive,
    target: Option<&'a dyn BlockDevice>,
    visitor: &'a mut dyn Visitor,
    /// Words per part of the page table.
    per_page: u64,
    /// A part of the page table.
    image: AlignedBuffer,
    staging: AlignedBuffer,
    /// A decompressed page.
    page: Vec<u8>,
    pages: u64,
}

impl Walk<'_> {
    /// If within the file and at most one page long.
    fn extent(&self, mapped: MappingWord, page_bytes: usize) -> Result<Extent, String> {
        let is_within = |extent: &Extent| extent.is_within(self.archive.files.pages.len());
        match mapped.extent().filter(is_within) {
            Some(extent) if extent.suits(page_bytes) => Ok(extent),
            Some(_) => Err("the page table names blocks that no image of such a page can have".into()),
            None => Err("its place is outside the file".into()),
        }
    }

    /// The words of a page table part that name an image, with their ids. `None` if damaged.
    fn words(
        &mut self,
        mapped: MappingWord,
        kind: Kind,
        name: PageId,
        words: &mut Vec<(PageId, MappingWord)>,
    ) -> Result<()> {
        words.clear();
        let file = self.archive.files.pages.name();
        let damage = |what: String| Error::corrupt(file, None, format!("{kind:?} image {name}: {what}"));
        let offset = match self.extent(mapped, self.image.len()) {
            Ok(extent) if extent.bytes() == self.image.len() => extent.offset(),
            Ok(_) => return self.visitor.damage(damage("it is shorter than a page".into())),
            Err(what) => return self.visitor.damage(damage(what)),
        };
        let read = self.archive.files.pages.read_at(offset, &mut self.image);
        read.map_err(|source| Error::io("read", file, Some(offset), source))?;
        let found = page::verify_image(&self.image, name, mapped).map(|_| page::kind(&self.image));
        let wrong = match found {
            Err(what) => what,
            Ok(found) if found != kind as u8 => "it is no part of the page table",
            Ok(_) => "",
        };
        if !wrong.is_empty() {
            return self.visitor.damage(damage(format!("{wrong} (byte {offset} of the file)")));
        }
        self.copy(&[(offset, 0..self.image.len())], true)?;
        let all = self.image[HEADER_BYTES..].chunks_exact(8);
        let all = all.map(|word| MappingWord(u64::from_le_bytes(word.try_into().expect("eight bytes"))));
        let first = first_of(name, self.per_page).expect("a superblock names few enough");
        let named = (first.0..).map(PageId).zip(all);
        words.extend(named.filter(|(_, mapped)| mapped.has_image()));
        Ok(())
    }

    fn pages(&mut self, class: SizeClass, pages: &[(PageId, MappingWord)]) -> Result<()> {
        let files = &self.archive.files;
        let file = files.pages.name();
        self.pages += pages.len() as u64;
        let damage = |id: PageId, what: String| Error::corrupt(file, Some(id.0), what);
        let mut there = Vec::with_capacity(pages.len());
        for &(id, mapped) in pages {
            match self.extent(mapped, class.page_bytes()) {
                Ok(extent) => there.push((id, mapped, extent)),
                Err(what) => self.visitor.damage(damage(id, what))?,
            }
        }
        let extents = there.iter().map(|&(_, _, extent)| extent);
        let read = read_images(&*files.pages, extents, &mut self.staging);
        let mut runs: Vec<(u64, Range<usize>)> = Vec::new();
        for (&(id, mapped, extent), (bytes, outcome)) in there.iter().zip(read) {
            let offset = extent.offset();
            outcome.map_err(|source| Error::io("read", file, Some(offset), source))?;
            let image = &self.staging[bytes.clone()];
            let sound = page::verify_image(image, id, mapped).map_err(str::to_owned).and_then(|_| {
                if page::lsn(image) >= self.archive.superblock.log_end {
                    return Err("it is newer than the end of the log".into());
                }
                self.visitor.image(id, image::unpack(image, class.page_bytes(), &mut self.page)?)
            });
            match (sound, runs.last_mut()) {
                (Err(what), _) => {
                    self.visitor.damage(damage(id, format!("{what} (byte {offset} of the file)")))?
                }
                (Ok(()), Some((first, run)))
                    if *first + run.len() as u64 == offset && run.end == bytes.start =>
                {
                    run.end = bytes.end;
                }
                (Ok(()), _) => runs.push((offset, bytes)),
            }
        }
        self.copy(&runs, false)
    }

    fn copy(&self, runs: &[(u64, Range<usize>)], of_table: bool) -> Result<()> {
        let Some(target) = self.target else { return Ok(()) };
        let from = if of_table { &self.image } else { &self.staging };
        let writes: Vec<Write<'_>> =
            runs.iter().map(|(offset, bytes)| Write::new(*offset, &from[bytes.clone()])).collect();
        let offset = runs.first().map(|(offset, _)| *offset);
        target.write_batch(&writes).map_err(|source| Error::io("write", target.name(), offset, source))
    }
}
