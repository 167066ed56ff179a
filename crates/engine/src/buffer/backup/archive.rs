//! Reading a backup: whether all of it is what was written, and making a database of it.
//!
//! A backup is a page file and a log like those of a database, packed: the log's ring is just long enough, the page file
//! has no image that is not named. Both belong to the timeline of the database they were copied from. A database that
//! is made of them begins one of its own, so that its files are never mixed with those of the original, or of another
//! restored from the same backup.
//!
//! Nothing is believed that is not checked: every image by its checksum, its page id and the check in the page table,
//! every record of the log by its own, the lengths of both files by the superblock.

use std::collections::HashSet;
use std::ops::Range;

use terrace_block::{AlignedBuffer, BlockDevice, Write};

use super::packed::copy_buffer;
use super::{BATCH_BYTES, read_images};
use crate::buffer::create::Files;
use crate::buffer::mapping::{first_of, words_per_page};
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, SizeClass};
use crate::store::image;
use crate::store::page::{self, HEADER_BYTES, Kind};
use crate::store::place::{Extent, Mapped};
use crate::store::space::Geometry as SpaceGeometry;
use crate::store::superblock::{Slots, Superblock};
use crate::wal::{EpochRule, Geometry, LogCopy, LogHeader, LogScan, Wal, read_header};

/// What was found in a backup, or copied out of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Images of pages.
    pub(crate) pages: u64,
    /// Bytes of log.
    pub(crate) log_bytes: u64,
}

/// What is to be done with each image that is sound, and with what is wrong.
pub(crate) trait Visitor {
    /// A page whose image is sound.
    fn image(&mut self, id: PageId, image: &[u8]) -> Result<(), String>;

    /// Something is wrong: an error ends the reading.
    fn damage(&mut self, error: Error) -> Result<()>;
}

/// Which pages hang from the one that is shown, or what is wrong with it.
pub(crate) type Below<'a> = &'a mut dyn FnMut(&[u8]) -> Result<Vec<PageId>, String>;

/// A backup's files.
#[derive(Debug)]
pub(crate) struct Archive {
    files: Files,
    superblock: Superblock,
    log: Geometry,
}

impl Archive {
    /// Opens a backup, which is only read.
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
        let archive = Archive { files, superblock, log: header.geometry };
        let (is, should) =
            (archive.files.pages.len(), archive.space().file_bytes(archive.superblock.segments));
        if is < should {
            let what = format!("the page file has {is} bytes, its superblock says {should}");
            return Err(Error::corrupt(archive.files.pages.name(), None, what));
        }
        Ok(archive)
    }

    fn space(&self) -> SpaceGeometry {
        SpaceGeometry { segment_places: u64::from(self.superblock.segment_places) }
    }

    /// Bytes of the largest pages there may be in it.
    fn longest_page(&self) -> usize {
        let named = SizeClass::all().zip(&self.superblock.directory).filter(|(_, blocks)| !blocks.is_empty());
        named.map(|(class, _)| class).max().unwrap_or(SizeClass::SMALLEST).page_bytes()
    }

    fn records(&self) -> Result<LogScan> {
        let rule = EpochRule { epoch: self.superblock.epoch, first_lsn: self.superblock.epoch_start };
        LogScan::new(self.files.log.clone(), self.log, self.superblock.cut, rule)
    }

    /// Reads all of it.
    ///
    /// # Errors
    /// Failures to read, and what `visitor` makes of damage.
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

    /// Shows `below` each page of what hangs from `roots`, once; it says which pages hang from that. What is damaged is passed over:
    /// [`Archive::check`] has it.
    ///
    /// # Errors
    /// Failures to read.
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
            let found: Vec<(PageId, Mapped)> =
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

    /// Makes a database of it in two empty files, of a timeline that no other has. Their names are the caller's to make
    /// durable.
    ///
    /// # Errors
    /// [`Error::Corrupt`] at the first thing that is not what was written, [`Error::Full`], [`Error::Io`].
    pub(crate) fn restore(&self, target: &Files, timeline: u64, visitor: &mut dyn Visitor) -> Result<Tally> {
        let Superblock { uuid, log_capacity, log_end, segments, .. } = self.superblock;
        let geometry = Geometry::new(log_capacity)?;
        Wal::create(&*target.log, &LogHeader { database: uuid, timeline, geometry })?;
        let mut copy = LogCopy::new(self.records()?, log_end, target.log.clone(), geometry)?;
        while copy.step()? {}
        target.log.sync().map_err(|source| Error::io("sync", target.log.name(), None, source))?;
        let bytes = self.space().file_bytes(segments);
        let pages = &target.pages;
        pages.set_len(bytes).map_err(|source| Error::io("grow", pages.name(), None, source))?;
        let copied = self.walk(Some(&**pages), visitor)?;
        pages.sync().map_err(|source| Error::io("sync", pages.name(), None, source))?;
        Slots::create(pages.clone(), &Superblock { timeline, sequence: 1, ..self.superblock.clone() })?;
        Ok(Tally { pages: copied, log_bytes: self.log_bytes() })
    }

    /// Reads every image that the page table names, and writes it to the same place of `target`. Returns how many pages
    /// there were.
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

/// Pages that hang from others, and are still to be shown.
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
    /// Words of a part of the page table.
    per_page: u64,
    /// Such a part.
    image: AlignedBuffer,
    /// Images of pages.
    staging: AlignedBuffer,
    /// A page whose image was compressed.
    page: Vec<u8>,
    pages: u64,
}

impl Walk<'_> {
    /// Where the image at `mapped` is, if that is within the file and no longer than a page of `page_bytes`.
    fn extent(&self, mapped: Mapped, page_bytes: usize) -> Result<Extent, String> {
        let is_within = |extent: &Extent| extent.is_within(self.archive.files.pages.len());
        match mapped.extent().filter(is_within) {
            Some(extent) if extent.suits(page_bytes) => Ok(extent),
            Some(_) => Err("the page table names places that no image of such a page can have".into()),
            None => Err("its place is outside the file".into()),
        }
    }

    /// The words of a part of the page table that name an image, with what they are about. None if it is damaged.
    fn words(
        &mut self,
        mapped: Mapped,
        kind: Kind,
        name: PageId,
        words: &mut Vec<(PageId, Mapped)>,
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
        let found = page::vouch(&self.image, name, mapped).map(|_| page::kind(&self.image));
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
        let all = all.map(|word| Mapped(u64::from_le_bytes(word.try_into().expect("eight bytes"))));
        let first = first_of(name, self.per_page).expect("a superblock names few enough");
        let named = (first.0..).map(PageId).zip(all);
        words.extend(named.filter(|(_, mapped)| mapped.has_image()));
        Ok(())
    }

    /// Images of pages of `class`, as many as fit the staging buffer, and where they are.
    fn pages(&mut self, class: SizeClass, pages: &[(PageId, Mapped)]) -> Result<()> {
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
            let sound = page::vouch(image, id, mapped).map_err(str::to_owned).and_then(|_| {
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

    /// Writes parts of the part of the page table that was read, or of the staging buffer, to the target if there is one.
    fn copy(&self, runs: &[(u64, Range<usize>)], of_table: bool) -> Result<()> {
        let Some(target) = self.target else { return Ok(()) };
        let from = if of_table { &self.image } else { &self.staging };
        let writes: Vec<Write<'_>> =
            runs.iter().map(|(offset, bytes)| Write::new(*offset, &from[bytes.clone()])).collect();
        let offset = runs.first().map(|(offset, _)| *offset);
        target.write_batch(&writes).map_err(|source| Error::io("write", target.name(), offset, source))
    }
}
