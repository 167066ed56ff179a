//! Insertion and eviction of records, by segments.
//!
//! ```text
//!   miss ──> probation ──marked──> main <─┐ marked, or rounds left
//!                │                   │ └──┘
//!             unmarked            unmarked
//!                v                   v
//!              ghost               ghost      a miss of a record that the ghost knows goes to main
//! ```
//!
//! This is S3-FIFO on records, as for pages (`queues.rs`). The segments of two queues are filled in
//! order. When the cache has all its frames, the oldest segment of a queue is emptied as a whole.
//! Survivors go to the end of the main queue.
//!
//! Lock order: the lock of the cache, never taken on a hit, then that of the free frames.

use std::sync::atomic::{Ordering::Relaxed, Ordering::Release, fence};

use super::index::{Index, ROUNDS_MAX, Slot};
use super::log::{Log, Queue, Segment, Survivor, WORD_PARTS};
use super::records::Records;
use super::shape::{HEADER_WORDS, Shape, Source, ghost_hash, hash};
use super::words::Words;
use crate::ids::{PageId, Timestamp};
use crate::pool::frames::partition::index_of;
use crate::pool::tiers::Tiers;

/// Probation's share of the segments, as a divisor.
const PROBATION_SHARE: usize = 10;
const SEGMENTS_MIN: u32 = 2;
/// Slots of the index per record, as a fraction.
const SLOTS_PER_RECORDS: (u64, u64) = (3, 2);
const GIVE_BACK: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Placed {
    address: u64,
    hash: u64,
    words: u64,
}

struct Writer<'a> {
    records: &'a Records,
    tiers: &'a Tiers,
    log: &'a mut Log,
}

impl Records {
    /// Inserts the result of a miss on the content `source`, or notes it.
    ///
    /// The caller has checked [`Records::takes`] and holds no latch. Unless it `waits`, this does
    /// nothing while another thread has the lock.
    pub(in crate::pool) fn insert(
        &self,
        tiers: &Tiers,
        source: Source,
        key: &[u8],
        timestamp: Timestamp,
        value: Option<&[u8]>,
        waits: bool,
    ) {
        let log = if waits { Some(self.log.lock()) } else { self.log.try_lock() };
        let Some(mut log) = log else { return };
        Writer { records: self, tiers, log: &mut log }.insert(source, key, timestamp, value);
    }

    /// Returns some excess frames.
    ///
    /// The caller holds no latch or lock. Does nothing if another thread has the cache locked.
    pub(in crate::pool) fn give_back(&self, tiers: &Tiers) {
        if tiers.replacer.lent() > self.share.target(frames(self, tiers))
            && let Some(mut log) = self.log.try_lock()
        {
            Writer { records: self, tiers, log: &mut log }.give_back();
        }
    }

    /// Empties frames from index `first` on, which will be removed.
    ///
    /// False if there were not enough other frames.
    pub(in crate::pool) fn leave_frames(&self, tiers: &Tiers, first: u32) -> bool {
        if tiers.replacer.lent() == 0 {
            return true;
        }
        let mut log = self.log.lock();
        let mut writer = Writer { records: self, tiers, log: &mut log };
        writer.give_back_all(first);
        writer.exchange(first)
    }

    pub(in crate::pool) fn empty(&self, tiers: &Tiers) {
        let mut log = self.log.lock();
        Writer { records: self, tiers, log: &mut log }.clear();
    }
}

fn frames(records: &Records, tiers: &Tiers) -> u32 {
    tiers.frames.count(records.class())
}

impl<'a> Writer<'a> {
    fn words(&self) -> Words<'a> {
        self.records.segment_words(&self.tiers.frames)
    }

    fn index(&self) -> Index<'a> {
        self.records.index(&self.tiers.frames)
    }

    fn segment_words(&self) -> u64 {
        u64::from(self.records.segment_frames) * self.records.page_bytes as u64 / 8
    }

    fn insert(&mut self, source: Source, key: &[u8], timestamp: Timestamp, value: Option<&[u8]>) {
        let (hash, count) = (hash(source.page, key), frames(self.records, self.tiers));
        let shape = Shape::new(source.incarnation, key.len(), value.map(<[u8]>::len));
        self.log.record_words =
            (self.log.record_words * (WORD_PARTS - 1) + shape.words() * WORD_PARTS) / WORD_PARTS;
        let ghost = ghost_hash(hash, source.content, source.incarnation);
        let missed = self.log.ghost.forget(ghost);
        if let Some(since) = missed {
            let record_bytes = (self.log.record_words * 8 / WORD_PARTS) as usize;
            let known = self.log.ghost.entries();
            self.records.share.record_missed(count, since, known, (record_bytes, self.records.page_bytes));
        }
        let older = self.slot_of_key(hash, source.page, key);
        if older.is_some_and(|(_, address)| self.is_from(address, source)) {
            // Another thread inserted it first.
            return;
        }
        let queue = if missed.is_some() || older.is_some() { Queue::Main } else { Queue::Probation };
        if let Some((at, _)) = older {
            self.index().set(at, None);
            self.log.entries -= 1;
            self.log.counts.replaced += 1;
        }
        let Some(address) = self.room(queue, shape.words()) else {
            self.log.ghost.insert(ghost);
            return;
        };
        let words = self.words();
        for (word_index, word) in
            [source.page.0, source.content, shape.0, timestamp.0].into_iter().enumerate()
        {
            words.set(address + word_index as u64, &word.to_le_bytes());
        }
        words.set(address + HEADER_WORDS, key);
        words.set(address + HEADER_WORDS + key.len().div_ceil(8) as u64, value.unwrap_or_default());
        self.records.unmark(hash);
        self.log.counts.inserted += 1;
        self.publish(hash, address, 0);
    }

    fn publish(&mut self, hash: u64, address: u64, rounds: u32) {
        let index = self.index();
        let (at, taken) = index.slot_for(hash);
        index.set(at, Some(Slot::new(hash, address, rounds)));
        if taken {
            self.log.counts.crowded += 1;
        } else {
            self.log.entries += 1;
        }
    }

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
        source.is_of(words.word(address + 1), Shape(words.word(address + 2)))
    }

    /// Allocates `words` words at the end of `queue`. None if the cache can get no frames.
    fn room(&mut self, queue: Queue, words: u64) -> Option<u64> {
        self.give_back();
        // Each turn but the last uses up a mark or round that spares records; readers may add some.
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

    fn new_segment(&mut self) -> Option<u32> {
        let each = self.records.segment_frames;
        let target = self.records.share.target(frames(self.records, self.tiers));
        let segments = self.log.segments() as u64 + 1;
        let index = self.index_frames_for(segments);
        let first = if self.log.segments() == 0 { (SEGMENTS_MIN - 1) * each } else { 0 };
        let more = each + index.saturating_sub(self.records.index_frames.load(Relaxed));
        let number = self.log.absent()?;
        if self.tiers.replacer.lent() + more + first > target {
            return None;
        }
        if !self.fit_index(segments) {
            return None;
        }
        let frames = self.take_frames(each)?;
        self.log.take_absent();
        for (word_index, frame) in frames.into_iter().enumerate() {
            self.records.map.set(self.entry_of(number) + word_index as u32, Some(frame));
        }
        Some(number)
    }

    fn entry_of(&self, number: u32) -> u32 {
        self.records.index_frames_max + number * self.records.segment_frames
    }

    fn take_frames(&self, wanted: u32) -> Option<Vec<u32>> {
        let mut frames = Vec::with_capacity(wanted as usize);
        let class = self.records.class();
        while frames.len() < wanted as usize
            && self.tiers.try_take_frames(class, wanted as usize, &mut frames)
        {}
        if frames.len() < wanted as usize {
            frames.into_iter().for_each(|frame| self.tiers.give_frame(frame));
            return None;
        }
        if let Err(error) = self.tiers.frames.populate_own(&frames) {
            tracing::warn!(%error, "no memory for more records");
            self.give_back_unused(frames);
            return None;
        }
        self.tiers.replacer.lend(wanted);
        // As in `Latch::try_exclusive`: a reader that sees new content also sees that the previous
        // page's version moved.
        fence(Release);
        Some(frames)
    }

    /// Returns lent frames. Nothing refers to them any more.
    fn give_frames(&self, frames: Vec<u32>) {
        self.tiers.replacer.end_loan(frames.len() as u32);
        self.give_back_unused(frames);
    }

    /// Returns unused frames without ending a loan.
    fn give_back_unused(&self, frames: Vec<u32>) {
        self.tiers.discard_own(&frames);
        frames.into_iter().for_each(|frame| self.tiers.give_frame(frame));
    }

    fn index_frames_for(&self, segments: u64) -> u32 {
        let records = segments * self.segment_words() * WORD_PARTS / self.log.record_words.max(WORD_PARTS);
        let slots = records * SLOTS_PER_RECORDS.0 / SLOTS_PER_RECORDS.1;
        let each = self.records.page_bytes as u64 / 8;
        (slots.div_ceil(each) as u32).clamp(1, self.records.index_frames_max)
    }

    /// Fits the index to `segments` segments; returns whether there is one. Ignores small changes.
    fn fit_index(&mut self, segments: u64) -> bool {
        let (have, need) = (self.records.index_frames.load(Relaxed), self.index_frames_for(segments));
        if have == 0 || have < need || have > need * 4 {
            let wanted = (need + need / 4).clamp(1, self.records.index_frames_max);
            if wanted > have
                && let Some(frames) = self.take_frames(wanted - have)
            {
                for (word_index, frame) in frames.into_iter().enumerate() {
                    self.records.map.set(have + word_index as u32, Some(frame));
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

    fn drop_index_from(&self, from: u32, to: u32) {
        let frames: Vec<u32> = (from..to).filter_map(|entry| self.records.map.get(entry)).collect();
        (from..to).for_each(|entry| self.records.map.set(entry, None));
        self.give_frames(frames);
    }

    /// Rebuilds an index of `frames` mapped frames from all segments.
    ///
    /// Of two records with one key the later wins. If that is the older, the next miss replaces it.
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

    /// Moves the sequence before unreferenced memory of the cache is reused.
    fn move_on(&self) {
        // Release: a reader that sees this sequence finds no slot that leads there.
        self.records.sequence.fetch_add(1, Release);
        // Pairs with the fence in `Records::find`: a reader that sees later writes also sees that
        // the sequence moved.
        fence(Release);
        #[cfg(test)]
        super::tests::when_moved_on();
    }

    /// Empties the oldest segment of the queue in turn. Records that were read survive, unless
    /// `all`.
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
                // Together the survivors fit in the segment they come from.
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

    fn forget(&mut self, words: Words<'_>, address: u64, hash: u64) {
        let incarnation = Shape(words.word(address + 2)).incarnation();
        self.log.ghost.insert(ghost_hash(hash, words.word(address + 1), incarnation));
        self.log.counts.evicted += 1;
    }

    fn give_back(&mut self) {
        for _ in 0..GIVE_BACK {
            if !self.give_back_one(self.records.share.target(frames(self.records, self.tiers)), false) {
                return;
            }
        }
    }

    fn give_back_all(&mut self, frames: u32) {
        let target = self.records.share.target(frames);
        // As in `room`: readers may spare records repeatedly.
        let turns = 4 * self.log.segments() + 4;
        (0..).take_while(|&turn| self.give_back_one(target, turn > turns)).for_each(drop);
    }

    /// Returns a segment if the cache has more than `target` frames.
    ///
    /// True if it had and segments are left. Records that were read survive, unless `all`.
    fn give_back_one(&mut self, target: u32, all: bool) -> bool {
        let each = self.records.segment_frames;
        if self.tiers.replacer.lent() <= target {
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

    /// Moves content from frames with indexes from `first` on to others.
    ///
    /// False if there are not enough.
    fn exchange(&mut self, first: u32) -> bool {
        let entries = self.entries();
        let goes = |entry: &u32| self.records.map.get(*entry).is_some_and(|frame| index_of(frame) >= first);
        let leaving: Vec<u32> = entries.into_iter().filter(goes).collect();
        let mut others = Vec::with_capacity(leaving.len());
        let class = self.records.class();
        while others.len() < leaving.len() && self.tiers.try_take_frames(class, leaving.len(), &mut others) {}
        if self.tiers.frames.populate_own(&others).is_err() {
            self.give_back_unused(others);
            return false;
        }
        // As in `take_frames`.
        fence(Release);
        let mut left = Vec::with_capacity(others.len());
        for (&entry, &other) in leaving.iter().zip(&others) {
            let frame = self.records.map.get(entry).expect("its frame was asked for under this lock");
            // The lock excludes other writers. A reader finds the same words in either frame.
            self.tiers.frames.copy_own(frame, other);
            self.records.map.set(entry, Some(other));
            left.push(frame);
        }
        if !left.is_empty() {
            self.move_on();
            self.give_back_unused(left);
        }
        others.len() == leaving.len()
    }

    fn drop_segment(&mut self, number: u32) {
        let first = self.entry_of(number);
        let entries = first..first + self.records.segment_frames;
        let frames: Vec<u32> = entries.clone().filter_map(|entry| self.records.map.get(entry)).collect();
        entries.for_each(|entry| self.records.map.set(entry, None));
        self.give_frames(frames);
        self.log.returned(number);
    }

    fn clear(&mut self) {
        self.index().clear();
        // Before the sequence moves: a later read then finds no index frame.
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
