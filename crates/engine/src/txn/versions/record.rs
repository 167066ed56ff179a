//! A version as words of a chunk.
//!
//! ```text
//!   0  superseding timestamp, 0 = nothing more in this chunk
//!   1  timestamp of the version
//!   2  link to the next older version of the chain
//!   3  link to one further down
//!   4  depth: versions from here on, when it was pushed
//!   5  table
//!   6  value length << 32 | key length << 8 | flags
//!   7  key, padded to whole words; value, padded, where a part begins with its offset
//! ```

use crate::pool::view::{Racy, View};
use crate::{TableId, Timestamp};

use super::version::{Link, OldValue, OldVersion, OverflowRef};

const HEADER_WORDS: usize = 7;
const HEADER_BYTES: usize = HEADER_WORDS * 8;
/// Bytes of a part's offset, which its value's length includes.
const OFFSET_BYTES: usize = 8;
/// Bytes of a record beside key and value, padding included.
pub(super) const RECORD_BYTES_MIN: usize = HEADER_BYTES + OFFSET_BYTES + 2 * 7;

const DELETION: u64 = 1;
const ABSENT: u64 = 2;
const OVERFLOW: u64 = 4;
const RETRACTED: u64 = 8;
const RESTORED: u64 = 16;
const PART: u64 = 32;

pub(super) struct New<'a> {
    pub(super) table: TableId,
    pub(super) key: &'a [u8],
    pub(super) superseded_at: Timestamp,
    pub(super) deletes: bool,
    pub(super) old: &'a OldVersion<&'a [u8]>,
    pub(super) below: Link,
    pub(super) jump: Link,
    pub(super) depth: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) superseded_at: Timestamp,
    pub(super) below: Link,
    pub(super) jump: Link,
    pub(super) depth: u64,
    shape: u64,
}

impl Header {
    /// Whether a deletion superseded it: it is in the index of deleted keys.
    pub(super) fn is_deletion(&self) -> bool {
        self.shape & DELETION != 0
    }

    pub(super) fn is_retracted(&self) -> bool {
        self.shape & RETRACTED != 0
    }

    /// Whether it has a part of the value only.
    pub(super) fn is_part(&self) -> bool {
        self.shape & PART != 0
    }
}

pub(super) struct Dropped {
    pub(super) table: TableId,
    pub(super) key: Vec<u8>,
    pub(super) is_deletion: bool,
    /// Whether its entry returned to its leaf, as the superseding commit was undone.
    pub(super) is_restored: bool,
    /// The unreferenced large value.
    pub(super) overflow: Option<OverflowRef>,
}

/// A value's bytes, and the offset stored before them.
fn value_of<'a>(old: &'a OldVersion<&[u8]>) -> (Option<usize>, &'a [u8]) {
    match &old.value {
        OldValue::Absent => (None, &[]),
        OldValue::Inline(bytes) => (None, bytes),
        OldValue::Part { at, bytes } => (Some(*at), bytes),
        OldValue::Overflow(OverflowRef(bytes)) => (None, bytes),
    }
}

pub(super) fn words_of(key: &[u8], old: &OldVersion<&[u8]>) -> usize {
    let (offset, value) = value_of(old);
    HEADER_WORDS + key.len().div_ceil(8) + usize::from(offset.is_some()) + value.len().div_ceil(8)
}

impl New<'_> {
    pub(super) fn words(&self) -> usize {
        words_of(self.key, self.old)
    }

    /// Writes it to the beginning of `to`, which is long enough.
    pub(super) fn write(&self, to: Racy<'_>) {
        let kind = match &self.old.value {
            OldValue::Absent => ABSENT,
            OldValue::Inline(_) => 0,
            OldValue::Part { .. } => PART,
            OldValue::Overflow(_) => OVERFLOW,
        };
        let flags = kind | if self.deletes { DELETION } else { 0 };
        let (offset, value) = value_of(self.old);
        let length = value.len() + offset.map_or(0, |_| OFFSET_BYTES);
        let shape = (length as u64) << 32 | (self.key.len() as u64) << 8 | flags;
        let header = [
            self.superseded_at.0,
            self.old.timestamp.0,
            self.below.0,
            self.jump.0,
            self.depth,
            self.table.0,
            shape,
        ];
        header.into_iter().enumerate().for_each(|(index, word)| to.set_word(index, word));
        to.set_bytes(HEADER_WORDS, self.key);
        let mut value_at = HEADER_WORDS + self.key.len().div_ceil(8);
        if let Some(offset) = offset {
            to.set_word(value_at, offset as u64);
            value_at += 1;
        }
        to.set_bytes(value_at, value);
    }
}

/// Marks the end of the chunk at `words`.
pub(super) fn end(words: Racy<'_>) {
    if words.len() > 0 {
        words.set_word(0, 0);
    }
}

pub(super) fn header(words: Racy<'_>) -> Header {
    let word = |index: usize| words.u64(index * 8);
    Header {
        superseded_at: Timestamp(word(0)),
        below: Link(word(2)),
        jump: Link(word(3)),
        depth: word(4),
        shape: word(6),
    }
}

fn key_length(shape: u64) -> usize {
    (shape as u32 >> 8) as usize
}

fn value_at(shape: u64) -> usize {
    HEADER_BYTES + key_length(shape).div_ceil(8) * 8
}

fn value_length(shape: u64) -> usize {
    (shape >> 32) as usize
}

pub(super) fn is_of(words: Racy<'_>, table: TableId, key: &[u8]) -> bool {
    let shape = words.u64(6 * 8);
    words.u64(5 * 8) == table.0
        && key_length(shape) == key.len()
        && words.compare(HEADER_BYTES, key.len(), key).is_eq()
}

pub(super) fn version(words: Racy<'_>) -> OldVersion {
    let shape = words.u64(6 * 8);
    let value = if shape & ABSENT != 0 {
        OldValue::Absent
    } else if shape & OVERFLOW != 0 {
        OldValue::Overflow(overflow(words, shape))
    } else {
        let (at, length) = (value_at(shape), value_length(shape));
        let offset = if shape & PART != 0 { OFFSET_BYTES } else { 0 };
        let mut bytes = Vec::new();
        words.append_to(at + offset, length.saturating_sub(offset), &mut bytes);
        match offset {
            0 => OldValue::Inline(bytes),
            _ => OldValue::Part { at: words.u64(at) as usize, bytes },
        }
    };
    OldVersion { timestamp: Timestamp(words.u64(8)), value }
}

fn overflow(words: Racy<'_>, shape: u64) -> OverflowRef {
    let mut reference = [0; 16];
    words.copy_to(value_at(shape), &mut reference);
    OverflowRef(reference)
}

pub(super) fn retract(words: Racy<'_>) {
    words.set_word(6, words.u64(6 * 8) | RETRACTED);
}

pub(super) fn restored(words: Racy<'_>) {
    words.set_word(6, words.u64(6 * 8) | RESTORED);
}

/// The superseding timestamp and the size in words; `None` at the chunk's end.
pub(super) fn front(words: Racy<'_>) -> Option<(Timestamp, usize)> {
    let (superseded_at, shape) = (words.u64(0), words.u64(6 * 8));
    let length = HEADER_WORDS + key_length(shape).div_ceil(8) + value_length(shape).div_ceil(8);
    (words.len() > 0 && superseded_at != 0).then_some((Timestamp(superseded_at), length))
}

pub(super) fn dropped(words: Racy<'_>) -> Option<Dropped> {
    let shape = words.u64(6 * 8);
    if shape & RETRACTED != 0 || shape & (DELETION | OVERFLOW) == 0 {
        return None;
    }
    let mut key = Vec::new();
    words.append_to(HEADER_BYTES, key_length(shape), &mut key);
    Some(Dropped {
        table: TableId(words.u64(5 * 8)),
        key,
        is_deletion: shape & DELETION != 0,
        is_restored: shape & RESTORED != 0,
        // A restored entry owns its value.
        overflow: (shape & (OVERFLOW | RESTORED) == OVERFLOW).then(|| overflow(words, shape)),
    })
}
