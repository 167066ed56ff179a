//! Segments of records and their queues.

use std::collections::VecDeque;

use super::ghost::Ghost;

/// Initial estimate of the words per record.
const RECORD_WORDS_FIRST: u64 = 32;
/// Weight of the running mean: about the last 1024 records.
pub(super) const WORD_PARTS: u64 = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Probation = 0,
    Main = 1,
}

/// A segment; its number gives its address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) number: u32,
    pub(super) used: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SegmentCounts {
    pub(super) inserted: u64,
    /// Replaced a record of an older image.
    pub(super) replaced: u64,
    pub(super) evicted: u64,
    /// Lost their slot to another record.
    pub(super) crowded: u64,
}

/// A record that outlives its segment: its range in the buffer.
#[derive(Debug)]
pub(super) struct Survivor {
    pub(super) hash: u64,
    pub(super) rounds: u32,
    pub(super) at: usize,
    pub(super) end: usize,
}

#[derive(Debug)]
pub(super) struct Log {
    pub(super) queues: [VecDeque<Segment>; 2],
    /// Empty segments that keep their frames.
    pub(super) idle: Vec<u32>,
    /// Segment numbers whose frames were returned.
    absent: Vec<u32>,
    /// Numbers from this one on were never used.
    unused: u32,
    segments_max: u32,
    pub(super) ghost: Ghost,
    pub(super) entries: u64,
    /// Mean words per record, times [`WORD_PARTS`].
    pub(super) record_words: u64,
    pub(super) counts: SegmentCounts,
    /// Buffers for survivors, reused.
    pub(super) survivors: Vec<Survivor>,
    pub(super) bytes: Vec<u8>,
}

impl Log {
    pub(super) fn new(segments_max: u32, ghost: usize) -> Log {
        Log {
            queues: Default::default(),
            idle: Vec::new(),
            absent: Vec::new(),
            unused: 0,
            segments_max,
            ghost: Ghost::new(ghost),
            entries: 0,
            record_words: RECORD_WORDS_FIRST * WORD_PARTS,
            counts: SegmentCounts::default(),
            survivors: Vec::new(),
            bytes: Vec::new(),
        }
    }

    /// A segment number without frames, if there is one.
    pub(super) fn absent(&self) -> Option<u32> {
        self.absent.last().copied().or_else(|| (self.unused < self.segments_max).then_some(self.unused))
    }

    /// Takes the number that [`Log::absent`] returned.
    pub(super) fn take_absent(&mut self) {
        if self.absent.pop().is_none() {
            self.unused += 1;
        }
    }

    pub(super) fn returned(&mut self, number: u32) {
        self.absent.push(number);
    }

    pub(super) fn segments(&self) -> usize {
        self.queues[0].len() + self.queues[1].len() + self.idle.len()
    }
}
