//! Recovery: from the superblock, the mapping chunks and the log to a pool whose pages are as the log says.
//!
//! 1. Read the superblock, and rewrite and sync what may be in a cache only (durability, rule 13): a killed process
//!    leaves bytes that a power cut can still take.
//! 2. Read the log to its end once for the newest image of each chunk and for losers, then once more for what it says
//!    about mapping and allocation. Only now are the places of base images final.
//! 3. Announce the new epoch in the superblock and sync it. Only now may anything be appended.
//! 4. Redo: each change whose page is allocated, which is not older than the page's last allocation or free, and which
//!    the base lacks. Pages are evicted and written meanwhile as always, so recovery keeps the memory limit, and the
//!    checkpoint runs, with the cut held below what is still to be redone.
//! 5. The caller undoes the losers, by key, and closes them.
//!
//! A failure or crash in any step leaves a database from which recovery starts again at step 1.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use terrace_block::{AlignedBuffer, BlockDevice};

use super::frames::Frames;
use super::mapping::{Block, Chunk, Mapping};
use super::pool::{Bell, Mode, PageIds, Pool, Stop};
use super::stats::PoolStats;
use super::sweep::FreeFrames;
use super::table::{Location, PageTable};
use super::upkeep::Upkeep;
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, Timestamp};
use crate::planted::{Bug, planted};
use crate::store::page::{self, HEADER_BYTES, Kind as PageKind};
use crate::store::place::Mapped;
use crate::store::space::{Geometry as SpaceGeometry, Space};
use crate::store::superblock::{Slots, Superblock};
use crate::wal::{
    ALLOCATES, Change, EpochRule, FIRST_LSN, Geometry, Kind, LogHeader, LogScan, RecordView, Wal, WalOptions,
    change_kind, read_header, rewrite_tail,
};

/// Beyond what any clock will reach; it leaves room for the ones to come.
const TIMESTAMP_MAX: u64 = 1 << 62;
/// Bytes of log that an allocation takes at the least.
const ALLOCATION_BYTES_MIN: u64 = 16;
/// Page ids that were given out and not logged when the database stopped: some for each thread.
const IDS_HELD_MAX: u64 = 1 << 16;

/// The two files a pool lives on.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) pages: Arc<dyn BlockDevice>,
    pub(crate) log: Arc<dyn BlockDevice>,
}

/// What is fixed when a database is created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) uuid: [u8; 16],
    pub(crate) page_bytes: usize,
    pub(crate) segment_pages: u64,
    pub(crate) log_capacity: u64,
}

/// How much memory the pool may take, and how it works.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolOptions {
    pub(crate) frames: u32,
    pub(crate) log_buffer_bytes: usize,
    pub(crate) staging_bytes: usize,
    pub(crate) pages_max: u64,
    pub(crate) store_bytes_max: u64,
    pub(crate) mode: Mode,
}

/// Replays the changes that only the index understands.
pub(crate) trait Redo {
    /// Applies a change of an index kind to a page.
    fn redo(&self, kind: u8, payload: &[u8], page: &mut [u8]) -> Result<()>;
}

/// A transaction that had not committed when the log ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loser {
    pub(crate) transaction: Timestamp,
    /// Its first record.
    pub(crate) first: Lsn,
    /// Its last record, compensations included.
    pub(crate) last: Lsn,
}

/// A pool after redo.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) pool: Pool,
    pub(crate) losers: Vec<Loser>,
    /// The highest timestamp in log and superblock.
    pub(crate) highest_timestamp: Timestamp,
    /// Whether the log held anything to redo.
    pub(crate) redone: u64,
    /// The end of the log that was found.
    pub(crate) log_end: Lsn,
}

impl Pool {
    /// Writes the files of a new, empty database. Their names are the caller's to make durable.
    pub(crate) fn create(files: &Files, layout: &Layout) -> Result<()> {
        let geometry = Geometry::new(layout.log_capacity)?;
        Wal::create(&*files.log, &LogHeader { database: layout.uuid, timeline: 1, geometry })?;
        let space = SpaceGeometry { page_bytes: layout.page_bytes, segment_pages: layout.segment_pages };
        // Enough for the reserve and a few pages; it grows from there.
        let segments = 8;
        let bytes = space.file_bytes(segments);
        files.pages.set_len(bytes).map_err(|source| Error::io("grow", files.pages.name(), None, source))?;
        let superblock = Superblock {
            uuid: layout.uuid,
            timeline: 1,
            sequence: 1,
            page_bytes: layout.page_bytes as u32,
            segment_pages: layout.segment_pages as u32,
            log_capacity: layout.log_capacity,
            epoch: 1,
            epoch_start: FIRST_LSN,
            cut: FIRST_LSN,
            log_end: FIRST_LSN,
            highest_timestamp: Timestamp::NONE,
            page_ids_end: 1,
            segments,
            directory: Vec::new(),
        };
        Slots::create(files.pages.clone(), &superblock).map(|_| ())
    }

    /// What a database's superblock says about it, read without changing anything.
    pub(crate) fn inspect(files: &Files) -> Result<Superblock> {
        Slots::open(files.pages.clone()).map(|(_, superblock)| superblock)
    }

    /// Recovers the database in `files` up to and including redo. The losers are the caller's to undo.
    pub(crate) fn recover(files: &Files, options: &PoolOptions, redo: &dyn Redo) -> Result<Recovered> {
        let (mut slots, mut superblock) = Slots::open(files.pages.clone())?;
        let header = read_header(&*files.log)?;
        if header.database != superblock.uuid || header.timeline != superblock.timeline {
            return Err(Error::NotADatabase {
                path: files.log.name().to_owned(),
                what: "the log belongs to another database than the page file".into(),
            });
        }
        let geometry = header.geometry;
        let rule = EpochRule { epoch: superblock.epoch, first_lsn: superblock.epoch_start };
        let scan = |from| LogScan::new(files.log.clone(), geometry, from, rule);
        let log_end =
            make_durable(files, geometry, superblock.cut, options.log_buffer_bytes, scan(superblock.cut)?)?;
        if log_end < superblock.log_end {
            let what = format!("the log ends at {log_end}, but it was durable up to {}", superblock.log_end);
            return Err(Error::corrupt(files.log.name(), None, what));
        }
        slots.write_again()?;

        let mut state = Analysis::new(files, options, &superblock)?;
        let mut records = scan(superblock.cut)?;
        while let Some(record) = records.next()? {
            state.note_owner(&record);
        }
        if state.highest.0 > TIMESTAMP_MAX {
            let what = format!("timestamp {} was never drawn", state.highest);
            return Err(Error::corrupt(files.log.name(), None, what));
        }
        state.load_chunks()?;
        let mut records = scan(superblock.cut)?;
        while let Some(record) = records.next()? {
            state.apply_mapping(&record)?;
        }
        state.finish_mapping()?;

        // Records behind the end, left by this epoch, must never be taken for the next one's.
        let first_append_before_sync = planted(Bug::AppendBeforeEpochSync);
        superblock.epoch += 1;
        superblock.epoch_start = log_end;
        superblock.log_end = log_end;
        superblock.sequence += 1;
        superblock.highest_timestamp = superblock.highest_timestamp.max(state.highest);
        if !first_append_before_sync {
            slots.write(&superblock)?;
        }
        let wal_options = WalOptions {
            geometry,
            buffer_bytes: options.log_buffer_bytes,
            epoch: superblock.epoch,
            tail: log_end,
            cut: superblock.cut,
        };
        let wal = Wal::open(files.log.clone(), wal_options)?;
        let cut = superblock.cut;
        let (pool, losers, born) = state.into_pool(slots, superblock, wal, options)?;
        let losers_floor = losers.iter().map(|loser| loser.first.0).min().unwrap_or(u64::MAX);
        let redone = pool.redo_all(scan(cut)?, &born, losers_floor, redo)?;
        pool.recovery_floor.store(losers_floor, Relaxed);
        let highest_timestamp = Timestamp(pool.highest_timestamp.load(Relaxed));
        Ok(Recovered { pool, losers, highest_timestamp, redone, log_end })
    }

    /// The losers are undone and closed, durably: the log may be cut past them.
    pub(crate) fn recovery_done(&self) {
        self.recovery_floor.store(u64::MAX, Relaxed);
    }

    /// Whether losers are still to be undone; what that takes may use the log to its end.
    pub(crate) fn is_recovering(&self) -> bool {
        self.recovery_floor.load(Relaxed) != u64::MAX
    }

    /// Redoes what the base images lack. Returns how many changes that was.
    fn redo_all(
        &self,
        mut records: LogScan,
        born: &HashMap<u64, Lsn>,
        losers_floor: u64,
        redo: &dyn Redo,
    ) -> Result<u64> {
        let mut redone = 0;
        let mut scratch = vec![0; self.page_bytes];
        while let Some(record) = records.next()? {
            if record.kind() != Kind::Pages {
                continue;
            }
            self.recovery_floor.store(record.lsn().0.min(losers_floor), Relaxed);
            // Evictions log where images went; without a checkpoint now and then that could fill the log.
            if self.wal.tail().0 - self.wal.cut().0 > self.log_capacity / 8 * 7 {
                self.checkpoint_step(&mut self.upkeep.lock())?;
            }
            for change in record.changes() {
                let old_life = born.get(&change.page.0).is_some_and(|&lsn| record.lsn() < lsn);
                if old_life || change.kind == change_kind::FREE || !self.exists_durably(change.page) {
                    continue;
                }
                redone += u64::from(self.redo_one(record.lsn(), &change, redo, &mut scratch)?);
            }
        }
        Ok(redone)
    }

    fn exists_durably(&self, id: PageId) -> bool {
        // Pages that only the log knows have no location until their first image record is redone.
        self.exists(id) || self.unwritten.lock().contains(&id.0)
    }

    /// Redoes one change if the page lacks it.
    fn redo_one(
        &self,
        lsn: Lsn,
        change: &Change<'_>,
        redo: &dyn Redo,
        scratch: &mut Vec<u8>,
    ) -> Result<bool> {
        let damaged = |what: String| Error::corrupt("the log", Some(change.page.0), what);
        if !self.exists(change.page) {
            if change.kind != change_kind::IMAGE {
                return Err(damaged(format!("the record at {lsn} changes a page of which nothing is known")));
            }
            scratch.fill(0);
            page::expand(change.payload, scratch)?;
            check_identity(scratch, change.page)?;
            page::set_lsn(scratch, lsn);
            let frame = self.take_frame()?;
            self.install(change.page, frame, Mapped::UNWRITTEN, lsn, scratch);
            self.unwritten.lock().remove(&change.page.0);
            return Ok(true);
        }
        let mut guard = match self.latch(change.page) {
            Ok(guard) => guard,
            Err(Stop::Fail(error)) => return Err(error),
            Err(other) => unreachable!("a page that exists is found in recovery: {other:?}"),
        };
        guard.copy(scratch);
        let base = page::lsn(scratch);
        let lacks = if planted(Bug::CompareLsnsWrongly) { base.0 <= lsn.0 + 1 } else { base < lsn };
        if !lacks {
            return Ok(false);
        }
        match (change.kind, change.overwrite()) {
            (change_kind::IMAGE, _) => page::expand(change.payload, scratch)?,
            (change_kind::BYTES, Some((at, bytes))) => {
                let target = scratch.get_mut(at as usize..).and_then(|page| page.get_mut(..bytes.len()));
                target
                    .ok_or_else(|| damaged(format!("the record at {lsn} writes beyond the page")))?
                    .copy_from_slice(bytes);
            }
            (kind, _) => redo.redo(kind, change.payload, scratch)?,
        }
        check_identity(scratch, change.page)?;
        page::set_lsn(scratch, lsn);
        guard.store(scratch);
        self.note_change(&guard, lsn);
        Ok(true)
    }
}

fn check_identity(content: &[u8], id: PageId) -> Result<()> {
    if page::page_id(content) == id {
        return Ok(());
    }
    Err(Error::corrupt("the log", Some(id.0), "a record gives the page another page's content"))
}

/// Finds the end of the log and makes sure that everything up to it is on the disk and not only in a cache.
fn make_durable(
    files: &Files,
    geometry: Geometry,
    cut: Lsn,
    buffer_bytes: usize,
    mut scan: LogScan,
) -> Result<Lsn> {
    while scan.next()?.is_some() {}
    let end = scan.finish()?;
    let from = Lsn(end.0.saturating_sub(2 * buffer_bytes as u64)).max(cut);
    rewrite_tail(&*files.log, geometry, from, end)?;
    files.pages.sync().map_err(|source| Error::io("sync", files.pages.name(), None, source))?;
    Ok(end)
}

/// What the first passes over the log find out.
struct Analysis<'a> {
    files: &'a Files,
    page_bytes: usize,
    table: PageTable,
    mapping: Mapping,
    chunk_current: Vec<Lsn>,
    chunk_named: HashMap<u64, (Lsn, Mapped)>,
    open: HashMap<u64, Loser>,
    /// Pages allocated or freed in the log, and when last.
    born: HashMap<u64, Lsn>,
    highest: Timestamp,
    ids_end: u64,
    /// No id that the log allocates can be this high: ids are given out in turn, each by a record of the log.
    ids_limit: u64,
    segments: u64,
    segment_pages: u64,
    unwritten: std::collections::HashSet<u64>,
}

impl<'a> Analysis<'a> {
    fn new(files: &'a Files, options: &PoolOptions, superblock: &Superblock) -> Result<Self> {
        let page_bytes = superblock.page_bytes as usize;
        let table = PageTable::reserve(options.pages_max).map_err(|source| Error::Memory {
            bytes: options.pages_max * super::table::ENTRY_BYTES,
            what: "the page table's addresses",
            source,
        })?;
        let mut mapping = Mapping::new(page_bytes);
        mapping.blocks =
            superblock.directory.iter().map(|&image| Block { image, dirty: Lsn::NONE }).collect();
        Ok(Analysis {
            files,
            page_bytes,
            table,
            mapping,
            chunk_current: Vec::new(),
            chunk_named: HashMap::new(),
            open: HashMap::new(),
            born: HashMap::new(),
            highest: superblock.highest_timestamp,
            ids_end: superblock.page_ids_end,
            ids_limit: superblock
                .page_ids_end
                .saturating_add(superblock.log_capacity / ALLOCATION_BYTES_MIN + IDS_HELD_MAX)
                .min(options.pages_max),
            segments: superblock.segments,
            segment_pages: u64::from(superblock.segment_pages),
            unwritten: std::collections::HashSet::new(),
        })
    }

    /// First pass: transactions, and the newest image of each chunk.
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
                        .insert(entry.chunk, (record.lsn(), Mapped::at(entry.place, entry.check)));
                }
            }
            _ => {}
        }
    }

    /// Reads the directory and the newest image of every chunk into the table.
    fn load_chunks(&mut self) -> Result<()> {
        let words = self.mapping.per_chunk as usize;
        let mut image = AlignedBuffer::zeroed(self.page_bytes);
        for block in 0..self.mapping.blocks.len() {
            let mapped = self.mapping.blocks[block].image;
            self.read(mapped, PageKind::Directory, block as u64, &mut image)?;
            for (slot, word) in image[HEADER_BYTES..].chunks_exact(8).enumerate().take(words) {
                let mapped = Mapped(u64::from_le_bytes(word.try_into().expect("eight bytes")));
                if mapped.place().is_some() {
                    let number = block * words + slot;
                    self.mapping.grow_to(number);
                    self.mapping.chunks[number] = Chunk { image: mapped, dirty: Lsn::NONE };
                }
            }
        }
        for (number, (lsn, mapped)) in std::mem::take(&mut self.chunk_named) {
            if number > self.table.pages_max() / self.mapping.per_chunk {
                return Err(Error::corrupt(
                    "the log",
                    None,
                    format!("a record names chunk {number}, which cannot be"),
                ));
            }
            self.mapping.grow_to(number as usize);
            self.mapping.chunks[number as usize].image = mapped;
            self.mapping.dirty_block_of(number, lsn);
        }
        self.chunk_current = vec![Lsn::NONE; self.mapping.chunks.len()];
        for number in 0..self.mapping.chunks.len() {
            let mapped = self.mapping.chunks[number].image;
            if mapped.place().is_none() {
                continue;
            }
            self.read(mapped, PageKind::Chunk, number as u64, &mut image)?;
            self.chunk_current[number] = page::lsn(&image);
            for (slot, word) in image[HEADER_BYTES..].chunks_exact(8).enumerate().take(words) {
                let mapped = Mapped(u64::from_le_bytes(word.try_into().expect("eight bytes")));
                let id = PageId((number * words + slot) as u64);
                if mapped.is_allocated() {
                    self.set(id, mapped)?;
                }
            }
        }
        Ok(())
    }

    fn read(&self, mapped: Mapped, kind: PageKind, number: u64, image: &mut [u8]) -> Result<()> {
        let file = self.files.pages.name();
        let place = mapped.place().ok_or_else(|| Error::corrupt(file, None, "the page table has a hole"))?;
        let offset = place.checked_mul(self.page_bytes as u64);
        let offset = offset.filter(|offset| offset + self.page_bytes as u64 <= self.files.pages.len());
        let offset =
            offset.ok_or_else(|| Error::corrupt(file, None, format!("place {place} is outside the file")))?;
        let read = self.files.pages.read_at(offset, image);
        read.map_err(|source| Error::io("read", file, Some(offset), source))?;
        let (checksum, holds) = page::checksum(image);
        let right = holds && mapped.vouches_for(checksum) && page::kind(image) == kind as u8;
        if !right || page::page_id(image).0 != number {
            return Err(Error::corrupt(
                file,
                None,
                format!("{kind:?} image {number} at byte {offset} is not what was written"),
            ));
        }
        Ok(())
    }

    /// Sets the durable state of a page in the table; unwritten pages are kept aside, for they have no location.
    fn set(&mut self, id: PageId, mapped: Mapped) -> Result<()> {
        let entry = self.table.entry(id).ok_or_else(|| {
            Error::corrupt(self.files.pages.name(), Some(id.0), "the page table names a page that cannot be")
        })?;
        self.ids_end = self.ids_end.max(id.0 + 1);
        self.unwritten.remove(&id.0);
        entry.set_location(match mapped.place() {
            Some(_) => Location::Store(mapped),
            None => Location::Nowhere,
        });
        if mapped == Mapped::UNWRITTEN {
            self.unwritten.insert(id.0);
        }
        Ok(())
    }

    fn is_allocated(&self, id: PageId) -> bool {
        let stored = self.table.entry(id).is_some_and(|entry| entry.location() != Location::Nowhere);
        stored || self.unwritten.contains(&id.0)
    }

    /// Second pass: allocations, frees and places, in log order, on top of what the chunks hold already.
    fn apply_mapping(&mut self, record: &RecordView<'_>) -> Result<()> {
        let lsn = record.lsn();
        match record.kind() {
            Kind::Pages => {
                for change in record.changes() {
                    let allocates = change.kind == change_kind::IMAGE && change.flags & ALLOCATES != 0;
                    if !allocates && change.kind != change_kind::FREE {
                        continue;
                    }
                    self.born.insert(change.page.0, lsn);
                    if self.is_news(change.page, lsn)? {
                        self.set(change.page, if allocates { Mapped::UNWRITTEN } else { Mapped::FREE })?;
                    }
                }
            }
            Kind::Mapping if !planted(Bug::BaseThroughOldMapping) => {
                for entry in record.mappings() {
                    // An image that was in flight while its page was freed is nobody's.
                    if self.is_news(entry.page, lsn)? && self.is_allocated(entry.page) {
                        self.set(entry.page, Mapped::at(entry.place, entry.check))?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether the chunk's image lacks a record at `lsn`; if so the chunk is dirty since then.
    fn is_news(&mut self, id: PageId, lsn: Lsn) -> Result<bool> {
        let number = self.mapping.chunk_of(id) as usize;
        if self.chunk_current.get(number).is_some_and(|&current| lsn < current) {
            return Ok(false);
        }
        if id.0 >= self.ids_limit {
            let what = format!("the record at {lsn} names a page that cannot be");
            return Err(Error::corrupt("the log", Some(id.0), what));
        }
        self.mapping.dirty(id, lsn);
        Ok(true)
    }

    /// Holds the number of page ids against what there are chunks for: ids beyond were never used, whatever a
    /// superblock says, and nothing is allocated on its word alone.
    fn finish_mapping(&mut self) -> Result<()> {
        self.ids_end =
            self.ids_end.clamp(1, (self.mapping.chunks.len() as u64 * self.mapping.per_chunk).max(1));
        if self.ids_end > self.table.pages_max() {
            return Err(Error::Config(format!(
                "the database has {} pages, more than the page table may hold; raise the limit",
                self.ids_end
            )));
        }
        Ok(())
    }

    fn into_pool(
        self,
        slots: Slots,
        superblock: Superblock,
        wal: Wal,
        options: &PoolOptions,
    ) -> Result<(Pool, Vec<Loser>, HashMap<u64, Lsn>)> {
        let geometry = SpaceGeometry { page_bytes: self.page_bytes, segment_pages: self.segment_pages };
        // The file may be longer than the superblock knows; shorter it must not be.
        let held = self.files.pages.len().saturating_sub(geometry.file_bytes(0))
            / (self.page_bytes as u64 * self.segment_pages);
        if held < self.segments {
            return Err(Error::corrupt(
                self.files.pages.name(),
                None,
                "the page file is shorter than its superblock says",
            ));
        }
        let space = Space::new(self.files.pages.clone(), geometry, held, options.store_bytes_max);
        let mut free_ids = Vec::new();
        for id in (1..self.ids_end).rev() {
            match self.table.entry(PageId(id)).map(|entry| entry.location()) {
                Some(Location::Store(mapped)) => {
                    space.count(mapped.place().expect("stored pages have a place"))?
                }
                _ if self.unwritten.contains(&id) => {}
                _ => free_ids.push(id),
            }
        }
        let images = self.mapping.chunks.iter().map(|chunk| chunk.image);
        for image in images.chain(self.mapping.blocks.iter().map(|block| block.image)) {
            image.place().map_or(Ok(()), |place| space.count(place))?;
        }
        space.settle(self.unwritten.len() as u64);
        let memory = |bytes: u64| move |source| Error::Memory { bytes, what: "the DRAM tier", source };
        let frame_bytes = u64::from(options.frames) * self.page_bytes as u64;
        let frames = Frames::new(options.frames, self.page_bytes).map_err(memory(frame_bytes))?;
        let staging_bytes = options.staging_bytes.next_multiple_of(self.page_bytes);
        let staging = AlignedBuffer::try_zeroed(staging_bytes).map_err(memory(staging_bytes as u64))?;
        let absorbed = wal.tail();
        let cut = superblock.cut;
        let pool = Pool {
            table: self.table,
            free: Mutex::new(FreeFrames { list: (0..options.frames).rev().collect(), hand: 0 }),
            frames,
            device: self.files.pages.clone(),
            space,
            wal: Arc::new(wal),
            page_bytes: self.page_bytes,
            log_capacity: superblock.log_capacity,
            ids: Mutex::new(PageIds { free: free_ids, end: self.ids_end }),
            events: Mutex::new(Vec::new()),
            upkeep: Mutex::new(Upkeep {
                slots,
                superblock,
                mapping: self.mapping,
                staging,
                absorbed,
                stubborn: HashMap::new(),
                frames_taken: 0,
            }),
            bell: Bell::default(),
            mode: options.mode,
            stats: PoolStats::default(),
            recovery_floor: AtomicU64::new(cut.0),
            highest_timestamp: Arc::new(AtomicU64::new(self.highest.0)),
            upkeep_runs: AtomicBool::new(false),
            unwritten: Mutex::new(self.unwritten),
        };
        let mut losers: Vec<Loser> = self.open.into_values().collect();
        losers.sort_unstable_by_key(|loser| loser.first);
        Ok((pool, losers, self.born))
    }
}
