//! The record cache: hot records of cold pages, inside the budget.
//!
//! A get that fetched its record from below DRAM copies it here, so the page can leave soon. Only a
//! get whose page is not in DRAM looks here ([`Records::find`]). Reasons:
//! [Decision 12](../../../../../docs/decisions/0012-record-cache.md).
//!
//! **Validity.** Images never change in place, and a page has one content per version. A record is
//! stored with its [`Source`], an image or a version, and counts only while the page has it. So
//! writers of pages ignore this cache.
//!
//! **Reading.** Writers of the cache hold its lock, readers do not. A reader
//!
//! 1. loads the sequence,
//! 2. loads slots, compares, copies,
//! 3. loads the sequence again, behind a fence: if it moved, the read is void.
//!
//! A slot is published after its record is complete. Before the words of a segment are reused, its
//! slots are emptied and then the sequence moves. So a reader of a reused word also sees the new
//! sequence. The memory of marks is never reused.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, fence};

use parking_lot::Mutex;
use terrace_io::Region;

use super::index::Index;
use super::log::Log;
use super::shape::{HEADER_WORDS, Record, Shape, Source, hash};
use super::share::{RecordCache, Share};
use super::words::{Map, Words};
use crate::ids::{PageId, SizeClass, Timestamp};
use crate::planted::{Bug, planted};
use crate::pool::frames::Frames;
use crate::pool::tiers::Tiers;
use crate::stats::CachedRecords;
use crate::threads::{Padded, Sample, Tally};

/// Maximum share of a page for a record with header (divisor).
const RECORD_SHARE: usize = 2;
const SEGMENT_BYTES: usize = 32 << 10;
/// Minimum frames per frame of the index.
const INDEX_SHARE: u32 = 8;
const MARK_BITS: u64 = 128;
const GHOST_ENTRIES: u64 = 4;
/// Bytes per frame for the record cache: marks, ghost and map entry.
pub(crate) const BYTES_PER_FRAME: u64 = MARK_BITS / 8 + GHOST_ENTRIES * 4 + 8;

/// Borrows pool frames of the database page size as its share changes.
#[derive(Debug)]
pub(crate) struct Records {
    pub(super) page_bytes: usize,
    pub(super) segment_frames: u32,
    /// Frames of the index first, then of the segments.
    pub(super) map: Map,
    pub(super) index_frames_max: u32,
    pub(super) index_frames: AtomicU32,
    /// Moves before any memory of the cache is reused.
    pub(super) sequence: Padded<AtomicU64>,
    /// A bit per hash: set by reads since the last look. Colliding records share it.
    marks: Region,
    mark_bits: u64,
    pub(super) share: Share,
    pub(super) log: Mutex<Log>,
    /// Of gets, and of other operations.
    gets_in_place: Sample,
    others_in_place: Sample,
    hits: Tally,
    middle_hits: Tally,
    stale: Tally,
}

impl Records {
    pub(in crate::pool) fn new(
        mode: RecordCache,
        page_bytes: usize,
        frames: u32,
        frames_max: u32,
    ) -> io::Result<Records> {
        let share = Share::new(mode);
        let segment_frames = (SEGMENT_BYTES / page_bytes).max(1) as u32;
        let index_frames_max = frames_max / INDEX_SHARE + 1;
        let segments_max = share.most(frames_max) / segment_frames + 1;
        let mark_bits = (u64::from(if share.is_off() { 0 } else { frames }) * MARK_BITS).max(64);
        let ghost = if share.is_off() { 0 } else { u64::from(frames) * GHOST_ENTRIES };
        Ok(Records {
            page_bytes,
            segment_frames,
            map: Map::new(index_frames_max + segments_max * segment_frames)?,
            index_frames_max,
            index_frames: AtomicU32::new(0),
            sequence: Padded::default(),
            marks: Region::reserve_writable(mark_bits as usize / 8)?,
            mark_bits,
            share,
            log: Mutex::new(Log::new(segments_max, ghost as usize)),
            gets_in_place: Sample::default(),
            others_in_place: Sample::default(),
            hits: Tally::default(),
            middle_hits: Tally::default(),
            stale: Tally::default(),
        })
    }

    fn value_bytes_max(&self, key_bytes: usize) -> Option<usize> {
        (self.page_bytes / RECORD_SHARE).checked_sub(HEADER_WORDS as usize * 8 + key_bytes)
    }

    pub(super) fn class(&self) -> SizeClass {
        SizeClass::of_bytes(self.page_bytes as u64).expect("a pool has pages of a class")
    }

    pub(in crate::pool) fn takes(&self, key: &[u8], value: Option<&[u8]>) -> bool {
        let fits = |most: usize| value.map_or(0, <[u8]>::len) <= most;
        !self.share.is_off() && self.value_bytes_max(key.len()).is_some_and(fits)
    }

    /// The record of `key` from one of `sources`, which name one content.
    pub(in crate::pool) fn find(&self, frames: &Frames, sources: &[Source], key: &[u8]) -> Looked {
        let first = sources[0];
        let hash = hash(first.page, key);
        // Eviction is rare, and a hit saves a read of slower memory.
        for _ in 0..2 {
            // Acquire: a reader that sees the moved sequence also sees the emptied slots.
            let sequence = self.sequence.load(Acquire);
            let looked = self.look(frames, sources, key, hash);
            // Pairs with the fences of `Writer::move_on` and of page latches: other threads rewrite
            // the memory behind them.
            fence(Acquire);
            if self.sequence.load(Relaxed) != sequence && !planted(Bug::RecordOfReusedMemory) {
                continue;
            }
            match &looked {
                Looked::Found(_) => {
                    self.mark(hash);
                    let hits = if first.is_version() { &self.middle_hits } else { &self.hits };
                    hits.raise();
                }
                Looked::Stale => self.stale.raise(),
                Looked::Unknown => {}
            }
            return looked;
        }
        Looked::Unknown
    }

    fn look(&self, frames: &Frames, sources: &[Source], key: &[u8], hash: u64) -> Looked {
        let words = self.segment_words(frames);
        let value_bytes_max = self.value_bytes_max(key.len()).unwrap_or(0);
        for address in self.index(frames).candidates(hash).filter_map(|(_, slot)| slot.address()) {
            let header = |index: u64| words.word(address + index);
            let shape = Shape(header(2));
            let key_at = address + HEADER_WORDS;
            if header(0) != sources[0].page.0 || shape.key_bytes() != key.len() || !words.are(key_at, key) {
                continue;
            }
            let same = sources.iter().any(|source| source.is_of(header(1), shape));
            if !same && !planted(Bug::RecordOfOtherImage) {
                return Looked::Stale;
            }
            #[cfg(test)]
            super::tests::while_copying();
            let timestamp = Timestamp(header(3));
            if shape.is_absent() {
                return Looked::Found(Record { timestamp, value: None });
            }
            let mut value = vec![0; shape.value_bytes().min(value_bytes_max)];
            if words.copy_to(key_at + key.len().div_ceil(8) as u64, &mut value) {
                return Looked::Found(Record { timestamp, value: Some(value) });
            }
        }
        Looked::Unknown
    }

    pub(super) fn index<'a>(&'a self, frames: &'a Frames) -> Index<'a> {
        let words = Words { frames, map: &self.map, first: 0, page_bytes: self.page_bytes };
        Index { words, slots: u64::from(self.index_frames.load(Acquire)) * self.page_bytes as u64 / 8 }
    }

    pub(super) fn segment_words<'a>(&'a self, frames: &'a Frames) -> Words<'a> {
        Words { frames, map: &self.map, first: self.index_frames_max, page_bytes: self.page_bytes }
    }

    /// Sets a record's mark if it is clear. Concurrent calls may lose a mark.
    fn mark(&self, hash: u64) {
        let (word, bit) = self.mark_of(hash);
        let now = word.load(Relaxed);
        if now & bit == 0 {
            word.store(now | bit, Relaxed);
        }
    }

    pub(super) fn unmark(&self, hash: u64) -> bool {
        let (word, bit) = self.mark_of(hash);
        let now = word.load(Relaxed);
        if now & bit != 0 {
            word.store(now & !bit, Relaxed);
        }
        now & bit != 0
    }

    fn mark_of(&self, hash: u64) -> (&AtomicU64, u64) {
        let at = ((u128::from(hash.rotate_left(24)) * u128::from(self.mark_bits)) >> 64) as usize;
        let word = at / 64 * 8;
        (&self.marks.words(word..word + 8)[0], 1 << (at % 64))
    }

    pub(in crate::pool) fn page_missed(&self, frames: u32) {
        self.share.page_missed(frames);
    }

    /// Notes a get in place; whether its record is one of those to insert.
    pub(crate) fn get_in_place(&self, tiers: &Tiers, id: PageId) -> bool {
        self.note_in_place(tiers, id, &self.gets_in_place)
    }

    /// Notes another access of page `id` in place.
    pub(crate) fn other_in_place(&self, tiers: &Tiers, id: PageId) {
        self.note_in_place(tiers, id, &self.others_in_place);
    }

    /// If the ghost knows the page, more frames for pages would have spared this access. Noting
    /// that takes a lock, so only a sample counts; returns whether this is of it.
    fn note_in_place(&self, tiers: &Tiers, id: PageId, sample: &Sample) -> bool {
        if self.share.is_off() || !sample.takes_next() {
            return false;
        }
        let class = self.class();
        if tiers.replacer.free(class).try_lock().is_some_and(|mut free| free.queues.knows(id)) {
            self.page_missed(tiers.frames.count(class));
        }
        true
    }

    pub(crate) fn stats(&self, tiers: &Tiers) -> CachedRecords {
        let log = self.log.lock();
        CachedRecords {
            hits: self.hits.total(),
            middle_hits: self.middle_hits.total(),
            stale: self.stale.total(),
            entries: log.entries,
            bytes: u64::from(tiers.replacer.lent()) * self.page_bytes as u64,
            inserted: log.counts.inserted,
            replaced: log.counts.replaced,
            evicted: log.counts.evicted,
            crowded: log.counts.crowded,
        }
    }
}

/// What a look for a record found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Looked {
    Found(Record),
    /// The record is from another content of the page.
    Stale,
    Unknown,
}
