//! Old versions as readers and commits see them, and links between them.

use crate::ids::Timestamp;

/// Most queues; further threads share them.
pub(super) const QUEUES_MAX: usize = 64;
/// The location of a value too large for a leaf: 16 bytes that only the index reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OverflowRef(pub [u8; 16]);

/// A key's old value. `B`: borrowed on push, owned on read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OldValue<B = Vec<u8>> {
    /// The key did not exist.
    Absent,
    Inline(B),
    /// The bytes of an inline value from offset `at` on. The next newer version has the others.
    Part {
        at: usize,
        bytes: B,
    },
    /// In overflow pages, which stay until the version is dropped.
    Overflow(OverflowRef),
}

impl OldValue<&[u8]> {
    pub(super) fn to_owned(&self) -> OldValue {
        match *self {
            OldValue::Absent => OldValue::Absent,
            OldValue::Inline(bytes) => OldValue::Inline(bytes.to_vec()),
            OldValue::Part { at, bytes } => OldValue::Part { at, bytes: bytes.to_vec() },
            OldValue::Overflow(reference) => OldValue::Overflow(reference),
        }
    }
}

impl OldValue {
    /// Overwrites `bytes` of an inline value from offset `at` on, or those that a part has.
    ///
    /// False if there are no such bytes: no change of them can have been pushed.
    #[must_use]
    pub(super) fn overwrite(&mut self, at: usize, bytes: &[u8]) -> bool {
        match self {
            OldValue::Absent | OldValue::Overflow(_) => false,
            OldValue::Inline(value) => {
                let old = value.get_mut(at..).and_then(|rest| rest.get_mut(..bytes.len()));
                old.map(|old| old.copy_from_slice(bytes)).is_some()
            }
            OldValue::Part { at: first, bytes: part } => {
                let (start, end) = (at.max(*first), (at + bytes.len()).min(*first + part.len()));
                if start < end {
                    part[start - *first..end - *first].copy_from_slice(&bytes[start - at..end - at]);
                }
                true
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OldVersion<B = Vec<u8>> {
    /// The commit that wrote it; none for an absent key of unknown age.
    pub timestamp: Timestamp,
    pub value: OldValue<B>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Collected {
    pub versions: usize,
    /// Bytes of memory that became reusable.
    pub bytes: usize,
}

/// Names a version: chunk generation in the upper half, arena word in the lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link(pub(super) u64);

impl Link {
    pub(super) const NONE: Link = Link(0);

    pub(super) fn word(self) -> usize {
        self.0 as u32 as usize
    }

    pub(super) fn generation(self) -> u64 {
        self.0 >> 32
    }
}
