//! Recovery: log and ring, mapping, base images and frames, redo. Undo and opening are steps of
//! their own, so that they can be cut too.

use std::collections::BTreeMap;

use crate::cell::Cell;
use crate::disk::{
    BLOCKS, CHUNK_PAGES, Content, Disk, FRAMES, Kind, MappingWord, NO_PAGE, PAGES, RING, Record, RingLife,
    Superblock,
};
use crate::flags::{Flag, Flags};
use crate::redo::{Redo, redo};
use crate::world::{CHUNKS, Chunks, Devices, Frame, Life, Log, Loser, Outcome, Pages, Seal, Work, World};

/// What the log and the page table say.
#[derive(Debug)]
pub(crate) struct Analysis {
    pub(crate) records: Vec<Record>,
    pub(crate) end: u32,
    /// As the chunks have it.
    pub(crate) chunk_words: [MappingWord; PAGES],
    /// With the records that the chunks lack.
    pub(crate) words: [MappingWord; PAGES],
    current_to: [u32; CHUNKS],
    version: [u32; CHUNKS],
    slot: [usize; CHUNKS],
    /// Last record that allocated or freed a page; 0 for none in the log.
    pub(crate) born: [u32; PAGES],
    /// LSN of the page's last image that a record in the log names; 0 for none.
    image_lsns: [u32; PAGES],
}

/// Reads the log's file from the cut to its end.
fn scan(disk: &Disk, superblock: &Superblock, flags: Flags) -> Vec<Record> {
    let capacity = superblock.capacity;
    let (mut records, mut epoch) = (Vec::new(), 0);
    for lsn in superblock.cut..superblock.cut + capacity {
        let slot = |lsn: u32| disk.log[(lsn % capacity) as usize].get();
        let only_grow = flags.has(Flag::NoEpochInRecords) || flags.has(Flag::EpochsOnlyGrow);
        let is_valid = |record: &Record| {
            let epoch_fits = match only_grow {
                true => record.epoch >= epoch,
                false => lsn < superblock.epoch_first || record.epoch == superblock.epoch,
            };
            (record.lsn == lsn || flags.has(Flag::NoLsnInRecord)) && epoch_fits && record.kind != Kind::Torn
        };
        match slot(lsn).filter(is_valid) {
            Some(record) => {
                epoch = record.epoch;
                records.push(Record { lsn, ..record });
            }
            None if flags.has(Flag::SkipHoles) && slot(lsn + 1).is_some_and(|next| next.lsn == lsn + 1) => {
                records.push(Record { lsn, epoch, kind: Kind::Nothing });
            }
            None => break,
        }
    }
    records
}

impl World {
    /// The process ends, and another one recovers the database.
    ///
    /// # Errors
    /// What recovery needs is gone.
    pub fn recover(&mut self, devices: Devices) -> Result<(), String> {
        self.crashes += 1;
        self.sync_all();
        let (superblock, slot) = self.disk.newest_superblock()?;
        let is_refused = superblock.names_ring && !devices.has_ring();
        if is_refused {
            self.note(|| "the log's ring is missing: refused".to_owned());
        }
        let devices = match is_refused && !self.lacks(Flag::OpenWithoutRing) {
            true => devices.and_ring(),
            false => devices,
        };
        let takes_ring = devices.has_ring();
        if superblock.names_ring && takes_ring && !self.is_ring_of(&superblock) {
            return Err("the log's ring is of another life: refused".to_owned());
        }
        let mut records = scan(&self.disk, &superblock, self.flags);
        let check_end = |records: &[Record]| match superblock.cut + records.len() as u32 - 1 {
            end if end < superblock.log_end => {
                Err(format!("the log ends at {end}, not {}", superblock.log_end))
            }
            _ => Ok(()),
        };
        if self.lacks(Flag::LogEndBeforeRing) {
            check_end(&records)?;
        }
        if superblock.names_ring && takes_ring {
            self.append_ring(&superblock, &mut records);
        }
        check_end(&records)?;
        let end = superblock.cut + records.len() as u32 - 1;
        self.lives += 1;
        if takes_ring {
            self.name_ring_life(&superblock);
        }
        let analysis = self.analyse(records, end)?;
        let adopted = self.choose_frames(&superblock, &analysis, devices.frames());
        let redone = redo(&self.disk, self.flags, &analysis, adopted)?;
        self.assemble(&superblock, slot, analysis, redone, devices);
        if !self.lacks(Flag::NoEpochInRecords) {
            self.life.log.epoch += 1;
            self.life.log.epoch_first = self.life.log.tail;
            self.life.number = self.lives;
            self.write_superblock(superblock.cut, superblock.capacity);
            self.life.is_epoch_synced = false;
        }
        Ok(())
    }

    /// Syncs what a killed process left in the caches, and writes headers back.
    fn sync_all(&mut self) {
        if !self.lacks(Flag::NoSyncAtRecovery) {
            self.disk.sync_log();
        }
        self.disk.sync_pages();
        self.disk.superblocks.iter_mut().for_each(Cell::sync);
    }

    /// Appends to the file what the ring has from the file's end on.
    fn append_ring(&mut self, superblock: &Superblock, records: &mut Vec<Record>) {
        let end = superblock.cut + records.len() as u32;
        let flags = self.flags;
        for lsn in end..end + RING {
            let is_valid = |record: &Record| {
                (record.lsn == lsn || flags.has(Flag::RingIgnoresLsn))
                    && (record.epoch == superblock.epoch || flags.has(Flag::RingIgnoresEpoch))
                    && (record.kind != Kind::Torn || flags.has(Flag::RingTakesTorn))
            };
            let Some(record) = self.disk.ring[(lsn % RING) as usize].get().filter(is_valid) else { break };
            let kind = if record.kind == Kind::Torn { Kind::Nothing } else { record.kind };
            let record = Record { lsn, kind, ..record };
            records.push(record);
            if !flags.has(Flag::LeaveRingRecords) {
                self.disk.log[(lsn % superblock.capacity) as usize].set(Some(record));
            }
        }
        let taken = superblock.cut + records.len() as u32 - end;
        self.disk.sync_log();
        self.note(|| format!("recovery files {taken} records of the ring from {end} on"));
    }

    /// Whether the ring is of the life that the superblock names.
    pub fn is_ring_of(&self, superblock: &Superblock) -> bool {
        let Superblock { epoch, life, timeline, .. } = *superblock;
        let named = RingLife { epoch, life, timeline };
        self.disk.ring_lives.iter().any(|slot| slot.get() == Some(named)) || self.lacks(Flag::RingOfOtherLife)
    }

    /// Gives the ring the new life, beside the one that the superblock names. A ring that it does
    /// not name is cleared: what it holds may fit by epoch and LSN.
    fn name_ring_life(&mut self, superblock: &Superblock) {
        let Superblock { epoch, life, timeline, .. } = *superblock;
        let last = Some(RingLife { epoch, life, timeline });
        let mut slot = 0;
        if superblock.names_ring {
            slot = usize::from(self.disk.ring_lives[0].get() == last);
        } else {
            if !self.lacks(Flag::RingNotCleared) {
                self.disk.ring.iter_mut().for_each(|slot| *slot = Cell::new(None));
            }
            self.disk.ring_lives.iter_mut().for_each(|slot| *slot = Cell::new(None));
        }
        self.disk.ring_lives[slot] =
            Cell::new(Some(RingLife { epoch: epoch + 1, life: self.lives, timeline }));
    }

    /// After recovery: the superblock names the new life, so the ring forgets the older one.
    pub fn claim_ring(&mut self) -> Outcome {
        let life = &self.life;
        if !life.log.has_ring || life.is_ring_claimed || !life.is_epoch_synced {
            return Ok(false);
        }
        let number = life.number;
        self.life.is_ring_claimed = true;
        self.ring_life = number;
        if !self.lacks(Flag::KeepOldRingLife) {
            for slot in &mut self.disk.ring_lives {
                if slot.get().is_some_and(|life| life.life != number) {
                    *slot = Cell::new(None);
                }
            }
        }
        self.note(|| "the ring is of this life only".to_owned());
        Ok(true)
    }

    fn analyse(&self, records: Vec<Record>, end: u32) -> Result<Analysis, String> {
        let free = [MappingWord::FREE; PAGES];
        let mut analysis = Analysis {
            records: Vec::new(),
            end,
            chunk_words: free,
            words: free,
            current_to: [0; CHUNKS],
            version: [0; CHUNKS],
            slot: [0; CHUNKS],
            born: [0; PAGES],
            image_lsns: [0; PAGES],
        };
        for chunk in 0..CHUNKS {
            let images = [0, 1].map(|slot| self.disk.chunks[chunk][slot].get());
            let slot = match (images[0].is_torn, images[1].is_torn) {
                (true, true) => return Err(format!("both images of chunk {chunk} are torn")),
                (true, false) => 1,
                (false, true) => 0,
                _ => usize::from(images[0].version < images[1].version),
            };
            analysis.chunk_words[chunk * CHUNK_PAGES..][..CHUNK_PAGES].copy_from_slice(&images[slot].words);
            analysis.current_to[chunk] = images[slot].current_to;
            analysis.version[chunk] = images[0].version.max(images[1].version);
            analysis.slot[chunk] = slot;
        }
        analysis.words = analysis.chunk_words;
        for record in &records {
            analysis.apply(record, self.flags);
        }
        analysis.records = records;
        Ok(analysis)
    }

    /// Chooses the frame to adopt for each page: sealed, of this life and timeline, and never
    /// older than the image or newer than the log.
    fn choose_frames(
        &mut self,
        superblock: &Superblock,
        analysis: &Analysis,
        frames: usize,
    ) -> [Option<(usize, Content)>; PAGES] {
        let mut adopted: [Option<(usize, Content)>; PAGES] = [None; PAGES];
        if frames == 0 {
            return adopted;
        }
        if !self.lacks(Flag::HeadersNotWrittenBack) {
            self.disk.headers.iter_mut().for_each(Cell::sync);
            self.disk.tier.sync();
        }
        let head = self.disk.tier.get();
        let is_of_life = (head.epoch == superblock.epoch || self.lacks(Flag::IgnoreTierEpoch))
            && (head.life == superblock.life || self.lacks(Flag::IgnoreTierLife));
        let is_of_timeline = head.timeline == superblock.timeline || self.lacks(Flag::IgnoreTierTimeline);
        if !is_of_life || !is_of_timeline {
            return adopted;
        }
        for frame in 0..frames {
            let header = self.disk.headers[frame].get();
            let page = header.page;
            if page == NO_PAGE || !(header.is_sealed || self.lacks(Flag::TrustUnsealedFrame)) {
                continue;
            }
            let counts = (analysis.words[page].is_allocated || self.lacks(Flag::FrameOfFreePage))
                && (header.lsn <= analysis.end || self.lacks(Flag::FrameBeyondLogEnd))
                && (header.lsn >= analysis.born[page] || self.lacks(Flag::FrameBelowAllocation))
                && (header.lsn >= analysis.image_lsns[page] || self.lacks(Flag::FrameBelowMapping));
            let is_better = adopted[page].is_none_or(|(_, other)| {
                if self.lacks(Flag::LowestDuplicate) {
                    header.lsn < other.lsn
                } else {
                    header.lsn > other.lsn
                }
            });
            if counts && is_better {
                adopted[page] = Some((frame, self.disk.body(frame, header.lsn)));
            }
        }
        adopted
    }

    fn assemble(
        &mut self,
        superblock: &Superblock,
        slot: usize,
        analysis: Analysis,
        redone: Redo,
        devices: Devices,
    ) {
        let mut taken = [false; BLOCKS];
        let mut pages = Pages { words: analysis.words, ..Pages::default() };
        let mut frames = [Frame::empty(Seal::Unknown); FRAMES];
        for page in 0..PAGES {
            let word = analysis.words[page];
            let Some(content) = redone.contents[page].filter(|_| word.is_allocated) else { continue };
            let adopted = redone.frames[page];
            if let Some(block) = word.block
                && !(adopted.is_some() && self.lacks(Flag::AdoptBeforeCount))
            {
                taken[block] = true;
            }
            if let Some((frame, lsn)) = adopted {
                frames[frame] =
                    Frame { page: Some(page), lsn, seal: Seal::Sealed, is_fenced: true, is_sealing: false };
                pages.frame_of[page] = Some(frame);
            }
            if adopted.is_none_or(|(_, lsn)| lsn != content.lsn) {
                pages.dram[page] = Some(content);
            }
        }
        pages.rec_lsn = redone.rec_lsn;
        pages.changes = redone.changes;
        let generations = [0, 1].map(|slot| self.disk.superblocks[slot].get().generation);
        self.life = Life {
            is_open: false,
            is_closing: false,
            is_dying: false,
            log: Log::at_recovery(superblock, analysis.end, devices.has_ring()),
            timeline: superblock.timeline,
            number: superblock.life,
            is_ring_claimed: self.lacks(Flag::NoEpochInRecords),
            generation: generations[0].max(generations[1]),
            superblock_slot: if self.lacks(Flag::WriteNewestSuperblock) { 1 } else { slot },
            pending: None,
            names_ring: devices.has_ring() && !self.lacks(Flag::RingNotNamed),
            is_epoch_synced: true,
            computed_cut: None,
            has_tier: devices.has_tier(),
            frames_used: devices.frames(),
            are_others_unsealed: false,
            is_tier_epoch_set: false,
            frames,
            pages,
            chunks: analysis.chunks(self.flags),
            images: Vec::new(),
            freed: Vec::new(),
            taken,
            work: Work { losers: losers(&analysis.records, self.flags), ..Work::default() },
            backup: None,
        };
        self.note(|| {
            let (cut, end, frames) = (superblock.cut, analysis.end, &redone.frames);
            format!("recovery: cut {cut}, log end {end}, frames by page {frames:?}, {devices:?}")
        });
    }
}

impl Analysis {
    /// Applies a record to the mapping, unless the chunk holds it already.
    fn apply(&mut self, record: &Record, flags: Flags) {
        match record.kind {
            Kind::Split { page, .. } | Kind::Merge { page, .. } => {
                self.born[page] = record.lsn;
                self.image_lsns[page] = 0;
            }
            Kind::Mapping { page, image_lsn, .. } => self.image_lsns[page] = image_lsn,
            _ => {}
        }
        let mut words = self.words;
        self.apply_to(&mut words, record, flags);
        self.words = words;
    }

    /// Applies a record to `words`.
    pub(crate) fn apply_to(&self, words: &mut [MappingWord; PAGES], record: &Record, flags: Flags) {
        let Some(page) = record.kind.maps() else { return };
        let is_held = record.lsn <= self.current_to[page / CHUNK_PAGES];
        if is_held && !flags.has(Flag::ChunkWithoutLsn) {
            return;
        }
        match record.kind {
            Kind::Split { .. } => words[page] = MappingWord::UNWRITTEN,
            Kind::Merge { .. } => words[page] = MappingWord::FREE,
            // The page was freed while the image was in flight.
            Kind::Mapping { block, image_lsn, .. } if words[page].is_allocated => {
                words[page] = MappingWord::at(block, image_lsn);
            }
            _ => {}
        }
    }

    /// What each chunk's image lacks.
    fn chunks(&self, flags: Flags) -> Chunks {
        let mut chunks = Chunks { version: self.version, slot: self.slot, ..Chunks::default() };
        for record in &self.records {
            let Some(page) = record.kind.maps() else { continue };
            let chunk = page / CHUNK_PAGES;
            if record.lsn <= self.current_to[chunk] {
                continue;
            }
            chunks.last[chunk] = record.lsn;
            let is_mapping = matches!(record.kind, Kind::Mapping { .. });
            if chunks.dirty[chunk] == 0 && (is_mapping || !flags.has(Flag::FreeLeavesChunkClean)) {
                chunks.dirty[chunk] = record.lsn;
            }
        }
        chunks
    }
}

/// Transactions without a commit or end record.
fn losers(records: &[Record], flags: Flags) -> Vec<Loser> {
    struct Seen {
        loser: Loser,
        next: u32,
        is_done: bool,
    }
    let mut seen: BTreeMap<u16, Seen> = BTreeMap::new();
    for record in records {
        let transaction = match record.kind {
            Kind::Update { transaction, .. }
            | Kind::Commit { transaction }
            | Kind::End { transaction }
            | Kind::Compensation { transaction, .. } => transaction,
            _ => continue,
        };
        let loser = Loser { transaction, undo: Vec::new(), first: record.lsn, end: None };
        let entry = seen.entry(transaction).or_insert(Seen { loser, next: u32::MAX, is_done: false });
        match record.kind {
            Kind::Update { key, before, .. } => entry.loser.undo.push((record.lsn, key, before)),
            Kind::Compensation { next, .. } => entry.next = next,
            _ => entry.is_done = true,
        }
    }
    let mut losers = Vec::new();
    for Seen { mut loser, next, is_done } in seen.into_values() {
        if !is_done {
            loser.undo.retain(|undo| undo.0 <= next || flags.has(Flag::NoEndRecordAfterUndo));
            losers.push(loser);
        }
    }
    losers
}
