//! The record cache: hot records of cold pages, inside the budget.
//!
//! A page is four kilobytes because of one record somebody reads, and the others take the room of pages that would be
//! read as well. So a record that a get had to fetch from the store is copied here, and its page leaves its frame soon.
//! What is here is found only by who finds the page away ([`Records::find`]); a get of a page in a frame comes by nothing
//! of this. [Decision 12](../../../../docs/decisions/0012-record-cache.md) says why it is as it is.
//!
//! | file       | what is in it                                                      |
//! |------------|--------------------------------------------------------------------|
//! | this one   | reading without a lock, and what makes a record the one that is meant |
//! | `log.rs`   | segments of records: where new ones go, and which go then           |
//! | `index.rs` | where a record is                                                   |
//! | `words.rs` | the frames that hold both                                           |
//! | `ghost.rs` | what was evicted lately                                             |
//! | `share.rs` | how many frames it may have                                         |
//!
//! **Which record is the right one.** Images are never changed in place. A record is kept with the [`Source`] it was
//! copied from: its page, the mapping word of the page's image, and the incarnation of the segment the image is in
//! (`Space::incarnation`). As long as the page's entry has that word, the image is that image, and the record is what it
//! holds. A writer need not know of this cache: the page it changes is in a frame, and is away again only with another
//! image in another place.
//!
//! **Reading.** Everything is words in frames, written under the lock and read without. A reader
//!
//! 1. loads the sequence,
//! 2. loads slots, compares, copies,
//! 3. loads the sequence again, behind a fence: if it moved, what was read counts for nothing.
//!
//! A slot that is not empty leads to a whole record: it is stored when the record is there, and the slots of a segment are
//! emptied before its words are used again. Between the two the sequence moves, so a reader that saw a word of what came
//! after sees that. The mark of a record that is read is in memory that is never anything else.

mod ghost;
mod index;
mod log;
mod share;
#[cfg(test)]
mod tests;
mod words;

use std::hash::{BuildHasher, Hasher};
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, fence};

use foldhash::quality::FixedState;
use parking_lot::Mutex;
use terrace_block::Region;

use self::index::Index;
use self::log::Log;
pub use self::share::RecordCache;
use self::share::Share;
use self::words::{Map, Words};
use super::frames::Frames;
use crate::ids::{PageId, Timestamp};
use crate::planted::{Bug, planted};
use crate::stats::CachedRecords;
use crate::store::place::Mapped;
use crate::threads::{Padded, Tally};

/// Words in front of a record's key.
const HEADER_WORDS: u64 = 4;
/// Records may take this share of a page, key and header included.
const RECORD_SHARE: usize = 2;
/// A segment is about this long.
const SEGMENT_BYTES: usize = 32 << 10;
/// One frame of the index for so many others, at most.
const INDEX_SHARE: u32 = 8;
/// Bits of marks for each frame.
const MARK_BITS: u64 = 128;
/// Hashes of evicted records that are remembered for each frame.
const GHOST_ENTRIES: u64 = 4;
/// What a frame costs beside its memory and its header if there is a record cache: marks, ghost, and its place in the map.
pub(crate) const BYTES_PER_FRAME: u64 = MARK_BITS / 8 + GHOST_ENTRIES * 4 + 8;

/// The image a record was copied from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// Its page.
    pub(crate) page: PageId,
    /// Where it is, and its check.
    pub(crate) mapped: Mapped,
    /// How often its segment had been filled; see `Space::incarnation`.
    pub(crate) incarnation: u32,
}

/// A record, or that there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The commit that wrote it.
    pub(crate) timestamp: Timestamp,
    /// Its value; none if the page has no record of that key.
    pub(crate) value: Option<Vec<u8>>,
}

/// The lengths in a record's header, with the incarnation of its source.
#[derive(Clone, Copy)]
struct Shape(u64);

impl Shape {
    const ABSENT: u64 = 1 << 63;

    fn new(incarnation: u32, key: usize, value: Option<usize>) -> Shape {
        let absent = if value.is_none() { Shape::ABSENT } else { 0 };
        Shape(absent | (key as u64) << 48 | (value.unwrap_or(0) as u64) << 32 | u64::from(incarnation))
    }

    fn incarnation(self) -> u32 {
        self.0 as u32
    }

    fn key_bytes(self) -> usize {
        (self.0 >> 48) as usize & 0x7fff
    }

    fn value_bytes(self) -> usize {
        (self.0 >> 32) as usize & 0xffff
    }

    fn is_absent(self) -> bool {
        self.0 & Shape::ABSENT != 0
    }

    fn words(self) -> u64 {
        HEADER_WORDS + (self.key_bytes().div_ceil(8) + self.value_bytes().div_ceil(8)) as u64
    }
}

/// The cache. Its frames are the pool's, of the database's own class, taken and given back as its share grows and shrinks.
#[derive(Debug)]
pub(crate) struct Records {
    page_bytes: usize,
    segment_frames: u32,
    /// The frames of the index, and behind them those of the segments.
    map: Map,
    index_frames_max: u32,
    /// Frames of the index that are in use.
    index_frames: AtomicU32,
    /// Moves before any memory of the cache becomes something else.
    sequence: Padded<AtomicU64>,
    /// A bit for each record that was read since it was looked at, by hash: records that share one look read more often.
    marks: Region,
    mark_bits: u64,
    share: Share,
    /// Frames taken, of segments and index.
    held: AtomicU32,
    log: Mutex<Log>,
    hits: Tally,
    stale: Tally,
}

impl Records {
    /// A cache for a pool of `frames` frames, of which there may be `frames_max`. It takes no frames yet.
    pub(super) fn new(
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
            held: AtomicU32::new(0),
            log: Mutex::new(Log::new(segments_max, ghost as usize)),
            hits: Tally::default(),
            stale: Tally::default(),
        })
    }

    /// The longest value of a record with a key of so many bytes; none for keys too long.
    fn value_bytes_max(&self, key_bytes: usize) -> Option<usize> {
        (self.page_bytes / RECORD_SHARE).checked_sub(HEADER_WORDS as usize * 8 + key_bytes)
    }

    /// Whether a record of this length may be here.
    pub(super) fn takes(&self, key: &[u8], value: Option<&[u8]>) -> bool {
        let fits = |most: usize| value.map_or(0, <[u8]>::len) <= most;
        !self.share.is_off() && self.value_bytes_max(key.len()).is_some_and(fits)
    }

    /// Whether there may be anything to be found.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.held.load(Relaxed) == 0
    }

    /// Frames it has taken.
    pub(super) fn held(&self) -> u32 {
        self.held.load(Relaxed)
    }

    /// What is known of `key` in the image `source`.
    pub(super) fn find(&self, frames: &Frames, source: Source, key: &[u8]) -> Option<Record> {
        let hash = hash(source.page, key);
        // Twice: the cache evicts now and then, and a record is here to spare a read of the disk.
        for _ in 0..2 {
            // Acquire: whoever sees that memory was given up sees that nothing leads there any more.
            let sequence = self.sequence.load(Acquire);
            let looked = self.look(frames, source, key, hash);
            // Pairs with the fence in `Log::move_on` and those of page latches, after which others write there.
            fence(Acquire);
            if self.sequence.load(Relaxed) != sequence && !planted(Bug::RecordOfReusedMemory) {
                continue;
            }
            match looked {
                Looked::Found(record) => {
                    self.mark(hash);
                    self.hits.raise();
                    return Some(record);
                }
                Looked::Stale => {
                    self.stale.raise();
                    return None;
                }
                Looked::Unknown => return None,
            }
        }
        None
    }

    fn look(&self, frames: &Frames, source: Source, key: &[u8], hash: u64) -> Looked {
        let words = self.segment_words(frames);
        let value_bytes_max = self.value_bytes_max(key.len()).unwrap_or(0);
        for address in self.index(frames).candidates(hash).filter_map(|(_, slot)| slot.address()) {
            let header = |index: u64| words.word(address + index);
            let shape = Shape(header(2));
            let key_at = address + HEADER_WORDS;
            if header(0) != source.page.0 || shape.key_bytes() != key.len() || !words.are(key_at, key) {
                continue;
            }
            let same = header(1) == source.mapped.0 && shape.incarnation() == source.incarnation;
            if !same && !planted(Bug::RecordOfOtherImage) {
                return Looked::Stale;
            }
            #[cfg(test)]
            tests::while_copying();
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

    fn index<'a>(&'a self, frames: &'a Frames) -> Index<'a> {
        let words = Words { frames, map: &self.map, first: 0, page_bytes: self.page_bytes };
        Index { words, slots: u64::from(self.index_frames.load(Acquire)) * self.page_bytes as u64 / 8 }
    }

    fn segment_words<'a>(&'a self, frames: &'a Frames) -> Words<'a> {
        Words { frames, map: &self.map, first: self.index_frames_max, page_bytes: self.page_bytes }
    }

    /// Sets the mark of a record if it is clear. Two threads that mark two records at once may lose one mark.
    fn mark(&self, hash: u64) {
        let (word, bit) = self.mark_of(hash);
        let now = word.load(Relaxed);
        if now & bit == 0 {
            word.store(now | bit, Relaxed);
        }
    }

    /// Clears the mark of a record; whether it was set.
    fn unmark(&self, hash: u64) -> bool {
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

    /// Told of a fault on a page that was evicted lately.
    pub(super) fn page_missed(&self, frames: u32) {
        self.share.page_missed(frames);
    }

    /// Counts since the database was opened, and what there is now.
    pub(crate) fn stats(&self) -> CachedRecords {
        let log = self.log.lock();
        CachedRecords {
            hits: self.hits.total(),
            stale: self.stale.total(),
            entries: log.entries(),
            bytes: u64::from(self.held()) * self.page_bytes as u64,
            inserted: log.counts().inserted,
            replaced: log.counts().replaced,
            evicted: log.counts().evicted,
            crowded: log.counts().crowded,
        }
    }
}

enum Looked {
    Found(Record),
    /// There is a record of the key, of another image of the page.
    Stale,
    Unknown,
}

/// What the ghost knows a record by that has `hash`: with its image, as a record of a page that changed since would have been
/// missed however long it was kept.
fn ghost_hash(hash: u64, mapped: u64, incarnation: u32) -> u64 {
    let image = (mapped ^ u64::from(incarnation) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash ^ image ^ image >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// The same in every run. Page ids keep the records of two tables apart.
fn hash(page: PageId, key: &[u8]) -> u64 {
    let mut hasher = FixedState::with_seed(0x7265_636f_7264_7301).build_hasher();
    hasher.write_u64(page.0);
    hasher.write(key);
    hasher.finish()
}
