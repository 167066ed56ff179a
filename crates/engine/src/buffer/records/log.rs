//! Segments of records, filled from start to end and emptied as a whole, in two queues.
//!
//! ```text
//!   miss ──> probation ──marked──> main <─┐ marked, or rounds left
//!                │                   │ └──┘
//!             unmarked            unmarked
//!                v                   v
//!              ghost               ghost      a miss of a record that the ghost knows goes to main
//! ```
//!
//! That is S3-FIFO, as the pages have it (`queues.rs`), of records. The oldest segment of a queue is emptied when the
//! cache has all the frames it may have: what stays of it is copied to the end of the main queue, and its frames are
//! the next segment's, or the pool's again if the share has become smaller.
//!
//! Everything here is under the lock of the cache, which is taken on misses only. Lock order: this one, then that of the
//! free frames.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering::Relaxed, Ordering::Release, fence};

use super::ghost::Ghost;
use super::index::{Index, ROUNDS_MAX, Slot};
use super::words::Words;
use super::{HEADER_WORDS, Records, Shape, Source, ghost_hash, hash};
use crate::buffer::pool::Pool;
use crate::buffer::stripe::index_of;
use crate::ids::{PageId, Timestamp};

/// Probation is held at one part in so many of the segments.
const PROBATION_SHARE: usize = 10;
/// A cache of fewer segments is none.
const SEGMENTS_MIN: u32 = 2;
/// Slots of the index for so many records.
const SLOTS_PER_RECORDS: (u64, u64) = (3, 2);
/// What a record is taken to be long before there were any, in words.
const RECORD_WORDS_FIRST: u64 = 32;
/// The mean follows the last so many records.
const WORD_PARTS: u64 = 1024;
/// Segments given back at a time.
const GIVE_BACK: usize = 4;

/// Which queue a segment is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    Probation = 0,
    Main = 1,
}

/// A segment: its number says where its words are.
#[derive(Clone, Copy, Debug)]
struct Segment {
    number: u32,
    /// Words written so far.
    used: u64,
}

/// What became of records.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) inserted: u64,
    /// Took the place of a record of an older image.
    pub(super) replaced: u64,
    pub(super) evicted: u64,
    /// Lost their slot to another.
    pub(super) crowded: u64,
}

/// A record in its segment.
#[derive(Clone, Copy, Debug)]
struct Placed {
    address: u64,
    hash: u64,
    words: u64,
}

/// A record that outlives its segment, as it lies in the buffer they are gathered in.
#[derive(Debug)]
struct Survivor {
    hash: u64,
    rounds: u32,
    at: usize,
    end: usize,
}

/// Segments, queues and ghost.
#[derive(Debug)]
pub(super) struct Log {
    queues: [VecDeque<Segment>; 2],
    /// Segments that hold nothing, but have their frames.
    idle: Vec<u32>,
    /// Numbers without frames.
    absent: Vec<u32>,
    ghost: Ghost,
    /// Slots in use.
    entries: u64,
    /// Words that a record takes, about, in parts of [`WORD_PARTS`].
    record_words: u64,
    counts: Counts,
    /// Of those that outlive a segment; kept to be used again.
    survivors: Vec<Survivor>,
    bytes: Vec<u8>,
}

impl Log {
    pub(super) fn new(segments_max: u32, ghost: usize) -> Log {
        Log {
            queues: Default::default(),
            idle: Vec::new(),
            absent: (0..segments_max).rev().collect(),
            ghost: Ghost::new(ghost),
            entries: 0,
            record_words: RECORD_WORDS_FIRST * WORD_PARTS,
            counts: Counts::default(),
            survivors: Vec::new(),
            bytes: Vec::new(),
        }
    }

    pub(super) fn entries(&self) -> u64 {
        self.entries
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    fn segments(&self) -> usize {
        self.queues[0].len() + self.queues[1].len() + self.idle.len()
    }
}

/// The cache with its lock held.
struct Writer<'a> {
    records: &'a Records,
    pool: &'a Pool,
    log: &'a mut Log,
}

impl Records {
    /// Takes in what a miss has found in the image `source`, or only notes that it was missed; [`Records::takes`] it. The
    /// caller holds no latch.
    pub(in crate::buffer) fn insert(
        &self,
        pool: &Pool,
        source: Source,
        key: &[u8],
        timestamp: Timestamp,
        value: Option<&[u8]>,
    ) {
        let mut log = self.log.lock();
        Writer { records: self, pool, log: &mut log }.insert(source, key, timestamp, value);
    }

    /// Gives frames back if there are more than there are to be, a few at a time; the caller holds no latch and no lock.
    /// Whoever finds the cache at work leaves it to that.
    pub(in crate::buffer) fn give_back(&self, pool: &Pool) {
        if self.held() > self.share.target(frames(pool))
            && let Some(mut log) = self.log.try_lock()
        {
            Writer { records: self, pool, log: &mut log }.give_back();
        }
    }

    /// Exchanges those of its frames whose index is `first` or above, which are about to go, for others, or gives them back if
    /// there are more than there are to be then; whether it has none of them any more. If not, no others could be had.
    pub(in crate::buffer) fn leave_frames(&self, pool: &Pool, first: u32) -> bool {
        if self.is_empty() {
            return true;
        }
        let mut log = self.log.lock();
        let mut writer = Writer { records: self, pool, log: &mut log };
        writer.give_back_all(first);
        writer.exchange(first)
    }

    /// Forgets everything and gives all frames back.
    pub(in crate::buffer) fn empty(&self, pool: &Pool) {
        let mut log = self.log.lock();
        Writer { records: self, pool, log: &mut log }.clear();
    }
}

/// Frames of the class whose frames the cache has.
fn frames(pool: &Pool) -> u32 {
    pool.frames.count(pool.class())
}

impl<'a> Writer<'a> {
    fn words(&self) -> Words<'a> {
        self.records.segment_words(&self.pool.frames)
    }

    fn index(&self) -> Index<'a> {
        self.records.index(&self.pool.frames)
    }

    fn segment_words(&self) -> u64 {
        u64::from(self.records.segment_frames) * self.records.page_bytes as u64 / 8
    }

    fn insert(&mut self, source: Source, key: &[u8], timestamp: Timestamp, value: Option<&[u8]>) {
        let (hash, count) = (hash(source.page, key), frames(self.pool));
        let shape = Shape::new(source.incarnation, key.len(), value.map(<[u8]>::len));
        self.log.record_words =
            (self.log.record_words * (WORD_PARTS - 1) + shape.words() * WORD_PARTS) / WORD_PARTS;
        let ghost = ghost_hash(hash, source.mapped.0, source.incarnation);
        let missed = self.log.ghost.forget(ghost);
        if let Some(since) = missed {
            let record_bytes = (self.log.record_words * 8 / WORD_PARTS) as usize;
            let known = self.log.ghost.entries();
            self.records.share.record_missed(count, since, known, (record_bytes, self.records.page_bytes));
        }
        let older = self.slot_of_key(hash, source.page, key);
        if older.is_some_and(|(_, address)| self.is_from(address, source)) {
            // Two threads have missed it.
            return;
        }
        let queue = if missed.is_some() || older.is_some() { Queue::Main } else { Queue::Probation };
        if let Some((at, _)) = older {
            self.index().set(at, None);
            self.log.entries -= 1;
            self.log.counts.replaced += 1;
        }
        let Some(address) = self.room(queue, shape.words()) else {
            self.log.ghost.remember(ghost);
            return;
        };
        let words = self.words();
        for (place, word) in [source.page.0, source.mapped.0, shape.0, timestamp.0].into_iter().enumerate() {
            words.set(address + place as u64, &word.to_le_bytes());
        }
        words.set(address + HEADER_WORDS, key);
        words.set(address + HEADER_WORDS + key.len().div_ceil(8) as u64, value.unwrap_or_default());
        self.records.unmark(hash);
        self.log.counts.inserted += 1;
        self.publish(hash, address, 0);
    }

    /// Lets a record that has been written be found.
    fn publish(&mut self, hash: u64, address: u64, rounds: u32) {
        let index = self.index();
        let (at, taken) = index.place_for(hash);
        index.set(at, Some(Slot::new(hash, address, rounds)));
        if taken {
            self.log.counts.crowded += 1;
        } else {
            self.log.entries += 1;
        }
    }

    /// The slot of a record of `key` in `page`, of whatever image, and where it is.
    fn slot_of_key(&self, hash: u64, page: PageId, key: &[u8]) -> Option<(u64, u64)> {
        let words = self.words();
        self.index().candidates(hash).find_map(|(at, slot)| {
            let address = slot.address()?;
            let shape = Shape(words.word(address + 2));
            let same = words.word(address) == page.0 && shape.key_bytes() == key.len();
            (same && words.are(address + HEADER_WORDS, key)).then_some((at, address))
        })
    }

    fn is_from(&self, address: u64, source: Source) -> bool {
        let words = self.words();
        words.word(address + 1) == source.mapped.0
            && Shape(words.word(address + 2)).incarnation() == source.incarnation
    }

    /// Where a record of `words` words goes: at the end of the last segment of `queue`, or in a new one. None while the
    /// cache is to have no frames, or can get none.
    fn room(&mut self, queue: Queue, words: u64) -> Option<u64> {
        self.give_back();
        // Each turn but the last takes one from the marks and rounds that spare records, and readers may add some.
        let turns = 4 * self.log.segments() + 4;
        for turn in 0..=turns {
            if let Some(address) = self.append(queue, words) {
                return Some(address);
            }
            let number = match self.log.idle.pop() {
                Some(number) => number,
                None => match self.new_segment() {
                    Some(number) => number,
                    None if self.log.segments() == 0 => return None,
                    None => {
                        self.empty_oldest(turn + 2 >= turns);
                        continue;
                    }
                },
            };
            self.log.queues[queue as usize].push_back(Segment { number, used: 0 });
        }
        None
    }

    /// Takes `words` words at the end of the last segment of `queue`, if it has so many left.
    fn append(&mut self, queue: Queue, words: u64) -> Option<u64> {
        let length = self.segment_words();
        let segment = self.log.queues[queue as usize].back_mut()?;
        if segment.used + words > length {
            return None;
        }
        let address = u64::from(segment.number) * length + segment.used;
        segment.used += words;
        Some(address)
    }

    /// A segment with frames of the pool, if the cache may have more of them and there are some.
    fn new_segment(&mut self) -> Option<u32> {
        let each = self.records.segment_frames;
        let target = self.records.share.target(frames(self.pool));
        let segments = self.log.segments() as u64 + 1;
        let index = self.index_frames_for(segments);
        let first = if self.log.segments() == 0 { (SEGMENTS_MIN - 1) * each } else { 0 };
        let more = each + index.saturating_sub(self.records.index_frames.load(Relaxed));
        if self.records.held() + more + first > target || self.log.absent.is_empty() {
            return None;
        }
        if !self.fit_index(segments) {
            return None;
        }
        let frames = self.take_frames(each)?;
        let number = self.log.absent.pop().expect("not empty");
        for (place, frame) in frames.into_iter().enumerate() {
            self.records.map.set(self.entry_of(number) + place as u32, Some(frame));
        }
        Some(number)
    }

    /// The first of a segment's entries in the map.
    fn entry_of(&self, number: u32) -> u32 {
        self.records.index_frames_max + number * self.records.segment_frames
    }

    /// `wanted` frames that hold nothing, or none.
    fn take_frames(&self, wanted: u32) -> Option<Vec<u32>> {
        let mut frames = Vec::with_capacity(wanted as usize);
        let class = self.pool.class();
        while frames.len() < wanted as usize && self.pool.try_take_frames(class, wanted as usize, &mut frames)
        {
        }
        if frames.len() < wanted as usize {
            frames.into_iter().for_each(|frame| self.pool.give_frame(frame));
            return None;
        }
        if let Err(error) = self.pool.frames.populate_own(&frames) {
            tracing::warn!(%error, "no memory for more records");
            self.give_back_unused(frames);
            return None;
        }
        self.records.held.fetch_add(wanted, Relaxed);
        // As in `Latch::try_exclusive`: a reader of the page that was in one of these, who sees what is written there from
        // now on, sees that the page's version has moved.
        fence(Release);
        Some(frames)
    }

    /// Gives frames to the pool that nothing leads to any more.
    fn give_frames(&self, frames: Vec<u32>) {
        self.records.held.fetch_sub(frames.len() as u32, Relaxed);
        self.give_back_unused(frames);
    }

    /// Gives frames to the pool with which nothing was done yet, or nothing is any more.
    fn give_back_unused(&self, frames: Vec<u32>) {
        self.pool.evacuate_own(&frames);
        frames.into_iter().for_each(|frame| self.pool.give_frame(frame));
    }

    /// Frames that an index for `segments` segments should have.
    fn index_frames_for(&self, segments: u64) -> u32 {
        let records = segments * self.segment_words() * WORD_PARTS / self.log.record_words.max(WORD_PARTS);
        let slots = records * SLOTS_PER_RECORDS.0 / SLOTS_PER_RECORDS.1;
        let each = self.records.page_bytes as u64 / 8;
        (slots.div_ceil(each) as u32).clamp(1, self.records.index_frames_max)
    }

    /// Makes the index about as large as `segments` segments need it; whether there is one. Not at every small change, since
    /// it is filled anew then.
    fn fit_index(&mut self, segments: u64) -> bool {
        let (have, need) = (self.records.index_frames.load(Relaxed), self.index_frames_for(segments));
        if have == 0 || have < need || have > need * 4 {
            let wanted = (need + need / 4).clamp(1, self.records.index_frames_max);
            if wanted > have
                && let Some(frames) = self.take_frames(wanted - have)
            {
                for (place, frame) in frames.into_iter().enumerate() {
                    self.records.map.set(have + place as u32, Some(frame));
                }
                self.fill_index(wanted);
            } else if wanted < have {
                self.fill_index(wanted);
                self.move_on();
                self.drop_index_from(wanted, have);
            }
        }
        self.records.index_frames.load(Relaxed) > 0
    }

    /// Gives the frames `from..to` of the index back, which is not that large any more.
    fn drop_index_from(&self, from: u32, to: u32) {
        let frames: Vec<u32> = (from..to).filter_map(|entry| self.records.map.get(entry)).collect();
        (from..to).for_each(|entry| self.records.map.set(entry, None));
        self.give_frames(frames);
    }

    /// Makes an index of `frames` frames, which the map has, of all records in the segments. Of two with one key the later
    /// is found; should it be the older one, it is of another image, and is replaced when it is missed.
    fn fill_index(&mut self, frames: u32) {
        let old = self.index();
        let slots = u64::from(frames) * self.records.page_bytes as u64 / 8;
        Index { slots: slots.max(old.slots), ..old }.clear();
        self.records.index_frames.store(frames, Release);
        self.log.entries = 0;
        let segments: Vec<Segment> = self.log.queues.iter().flatten().copied().collect();
        for segment in segments {
            self.each_record(segment, |writer, record, key| {
                let page = PageId(writer.words().word(record.address));
                if let Some((at, _)) = writer.slot_of_key(record.hash, page, key) {
                    writer.index().set(at, None);
                    writer.log.entries -= 1;
                }
                writer.publish(record.hash, record.address, 0);
            });
        }
    }

    /// Calls `each` with every record in `segment` and its key.
    fn each_record(&mut self, segment: Segment, mut each: impl FnMut(&mut Self, Placed, &[u8])) {
        let first = u64::from(segment.number) * self.segment_words();
        let (words, mut at) = (self.words(), 0);
        let mut key = Vec::new();
        while at < segment.used {
            let shape = Shape(words.word(first + at + 2));
            key.resize(shape.key_bytes(), 0);
            words.copy_to(first + at + HEADER_WORDS, &mut key);
            let hash = hash(PageId(words.word(first + at)), &key);
            each(self, Placed { address: first + at, hash, words: shape.words() }, &key);
            at += shape.words();
        }
    }

    /// From here on memory of the cache that nothing leads to any more becomes something else.
    fn move_on(&self) {
        // Release: a reader that begins after this finds no slot that leads there.
        self.records.sequence.fetch_add(1, Release);
        // Pairs with the fence in `Records::find`: who sees what is written from now on sees that the sequence moved.
        fence(Release);
        #[cfg(test)]
        super::tests::when_moved_on();
    }

    /// Empties the oldest segment of the queue whose turn it is; what was read stays, unless `all` goes.
    fn empty_oldest(&mut self, all: bool) {
        let goal = (self.log.segments() / PROBATION_SHARE).max(1);
        let [probation, main] = &self.log.queues;
        let queue = if probation.len() > goal || main.is_empty() { Queue::Probation } else { Queue::Main };
        let Some(segment) = self.log.queues[queue as usize].pop_front() else { return };
        let (index, words) = (self.index(), self.words());
        let mut survivors = std::mem::take(&mut self.log.survivors);
        let mut bytes = std::mem::take(&mut self.log.bytes);
        survivors.clear();
        bytes.clear();
        self.each_record(segment, |writer, Placed { address, hash, words: length }, _| {
            let Some((at, slot)) = index.slot_of(hash, address) else { return };
            let rounds = match (writer.records.unmark(hash), queue) {
                (true, Queue::Probation) => Some(0),
                (true, Queue::Main) => Some((slot.rounds() + 1).min(ROUNDS_MAX)),
                (false, Queue::Main) if slot.rounds() > 1 => Some(slot.rounds() - 1),
                _ => None,
            };
            index.set(at, None);
            writer.log.entries -= 1;
            if let Some(rounds) = rounds.filter(|_| !all) {
                let (at, end) = (bytes.len(), bytes.len() + length as usize * 8);
                bytes.resize(end, 0);
                words.copy_to(address, &mut bytes[at..]);
                survivors.push(Survivor { hash, rounds, at, end });
            } else {
                writer.forget(words, address, hash);
            }
        });
        self.move_on();
        self.log.idle.push(segment.number);
        for survivor in &survivors {
            let record = &bytes[survivor.at..survivor.end];
            let length = record.len() as u64 / 8;
            let address = self.append(Queue::Main, length).or_else(|| {
                // Together they are no longer than the segment they come from.
                let number = self.log.idle.pop()?;
                self.log.queues[Queue::Main as usize].push_back(Segment { number, used: 0 });
                self.append(Queue::Main, length)
            });
            let Some(address) = address else {
                self.log.counts.evicted += 1;
                continue;
            };
            words.set(address, record);
            self.publish(survivor.hash, address, survivor.rounds);
        }
        (self.log.survivors, self.log.bytes) = (survivors, bytes);
    }

    /// A record is dropped to make room.
    fn forget(&mut self, words: Words<'_>, address: u64, hash: u64) {
        let incarnation = Shape(words.word(address + 2)).incarnation();
        self.log.ghost.remember(ghost_hash(hash, words.word(address + 1), incarnation));
        self.log.counts.evicted += 1;
    }

    /// Gives segments back while there are more frames than there are to be, a few at a time.
    fn give_back(&mut self) {
        for _ in 0..GIVE_BACK {
            if !self.give_back_one(self.records.share.target(frames(self.pool)), false) {
                return;
            }
        }
    }

    /// Gives segments back until there are no more frames than there are to be if the pool has `frames`.
    fn give_back_all(&mut self, frames: u32) {
        let target = self.records.share.target(frames);
        // As in `room`: readers may spare records again and again.
        let turns = 4 * self.log.segments() + 4;
        (0..).take_while(|&turn| self.give_back_one(target, turn > turns)).for_each(drop);
    }

    /// Gives a segment back if there are more than `target` frames; whether there were, and some are left. Records that were
    /// read stay, unless `all` go.
    fn give_back_one(&mut self, target: u32, all: bool) -> bool {
        let each = self.records.segment_frames;
        if self.records.held() <= target {
            return false;
        }
        if target < self.index_frames_for(u64::from(SEGMENTS_MIN)) + SEGMENTS_MIN * each {
            self.clear();
            return false;
        }
        if self.log.idle.is_empty() {
            self.empty_oldest(all);
        }
        if let Some(number) = self.log.idle.pop() {
            self.drop_segment(number);
            self.fit_index(self.log.segments() as u64);
        }
        true
    }

    /// Moves what is in frames whose index is `first` or above to others, as long as there are others; whether all of it was.
    fn exchange(&mut self, first: u32) -> bool {
        let entries = self.entries();
        let goes = |entry: &u32| self.records.map.get(*entry).is_some_and(|frame| index_of(frame) >= first);
        let leaving: Vec<u32> = entries.into_iter().filter(goes).collect();
        let mut others = Vec::with_capacity(leaving.len());
        let class = self.pool.class();
        while others.len() < leaving.len() && self.pool.try_take_frames(class, leaving.len(), &mut others) {}
        if self.pool.frames.populate_own(&others).is_err() {
            self.give_back_unused(others);
            return false;
        }
        // As in `take_frames`.
        fence(Release);
        let mut left = Vec::with_capacity(others.len());
        for (&entry, &other) in leaving.iter().zip(&others) {
            let frame = self.records.map.get(entry).expect("its frame was asked for under this lock");
            // Nobody writes to what is here but who holds this lock. A reader finds the words in one frame or in the other.
            self.pool.frames.copy_own(frame, other);
            self.records.map.set(entry, Some(other));
            left.push(frame);
        }
        if !left.is_empty() {
            self.move_on();
            self.give_back_unused(left);
        }
        others.len() == leaving.len()
    }

    /// Gives the frames of a segment back that holds nothing.
    fn drop_segment(&mut self, number: u32) {
        let first = self.entry_of(number);
        let entries = first..first + self.records.segment_frames;
        let frames: Vec<u32> = entries.clone().filter_map(|entry| self.records.map.get(entry)).collect();
        entries.for_each(|entry| self.records.map.set(entry, None));
        self.give_frames(frames);
        self.log.absent.push(number);
    }

    /// Forgets everything and gives all frames back.
    fn clear(&mut self) {
        self.index().clear();
        // Before the sequence moves: who begins to read after that finds no index, and none of the frames it was in.
        let index = self.records.index_frames.swap(0, Relaxed);
        self.log.entries = 0;
        self.move_on();
        let queued: Vec<u32> = self
            .log
            .queues
            .iter_mut()
            .flat_map(|queue| queue.drain(..))
            .map(|segment| segment.number)
            .collect();
        let idle = std::mem::take(&mut self.log.idle);
        queued.into_iter().chain(idle).for_each(|number| self.drop_segment(number));
        self.drop_index_from(0, index);
    }

    /// The entries of the map that have frames.
    fn entries(&self) -> Vec<u32> {
        let numbers = self.log.queues.iter().flatten().map(|segment| segment.number);
        let numbers: Vec<u32> = numbers.chain(self.log.idle.iter().copied()).collect();
        let segments = numbers.into_iter().flat_map(|number| {
            let first = self.entry_of(number);
            first..first + self.records.segment_frames
        });
        (0..self.records.index_frames.load(Relaxed)).chain(segments).collect()
    }
}
