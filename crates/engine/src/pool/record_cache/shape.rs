//! A cached record: its source, header and hash.

use std::hash::{BuildHasher, Hasher};

use foldhash::quality::FixedState;

use crate::ids::{PageId, Timestamp};
use crate::planted::{Bug, planted};
use crate::store::mapping_word::MappingWord;

pub(super) const HEADER_WORDS: u64 = 4;

/// A page, and which of its contents a record is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(super) page: PageId,
    /// A mapping word, with the top bit, or a version, without it.
    pub(super) content: u64,
    /// Of the image's segment (`Space::incarnation`); zero with a version.
    pub(super) incarnation: u32,
}

impl Source {
    /// The content of the image at `mapped`: blocks and checksum.
    pub(crate) fn of_image(page: PageId, mapped: MappingWord, incarnation: u32) -> Source {
        debug_assert!(!is_version(mapped.0));
        Source { page, content: mapped.0, incarnation }
    }

    /// The content at a version of the page's entry, in whichever frame.
    pub(crate) fn of_version(page: PageId, version: u64) -> Source {
        debug_assert!(is_version(version));
        Source { page, content: version, incarnation: 0 }
    }

    pub(super) fn is_version(&self) -> bool {
        is_version(self.content)
    }

    /// Whether a record of this page with these header words is from here.
    pub(super) fn is_of(&self, content: u64, shape: Shape) -> bool {
        content == self.content && shape.incarnation() == self.incarnation
            || planted(Bug::RecordOfOtherVersion) && self.is_version() && is_version(content)
    }
}

/// Mapping words of images have the top bit set; versions have 49 bits.
fn is_version(content: u64) -> bool {
    !MappingWord(content).is_allocated()
}

/// A record, or its absence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) timestamp: Timestamp,
    /// None if the page has no record of the key.
    pub(crate) value: Option<Vec<u8>>,
}

#[derive(Clone, Copy)]
pub(super) struct Shape(pub(super) u64);

impl Shape {
    const ABSENT: u64 = 1 << 63;

    pub(super) fn new(incarnation: u32, key: usize, value: Option<usize>) -> Shape {
        let absent = if value.is_none() { Shape::ABSENT } else { 0 };
        Shape(absent | (key as u64) << 48 | (value.unwrap_or(0) as u64) << 32 | u64::from(incarnation))
    }

    pub(super) fn incarnation(self) -> u32 {
        self.0 as u32
    }

    pub(super) fn key_bytes(self) -> usize {
        (self.0 >> 48) as usize & 0x7fff
    }

    pub(super) fn value_bytes(self) -> usize {
        (self.0 >> 32) as usize & 0xffff
    }

    pub(super) fn is_absent(self) -> bool {
        self.0 & Shape::ABSENT != 0
    }

    pub(super) fn words(self) -> u64 {
        HEADER_WORDS + (self.key_bytes().div_ceil(8) + self.value_bytes().div_ceil(8)) as u64
    }
}

/// The ghost's hash of a record and its source.
///
/// If the page has changed, the old record would not have helped.
pub(super) fn ghost_hash(hash: u64, content: u64, incarnation: u32) -> u64 {
    let image = (content ^ u64::from(incarnation) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash ^ image ^ image >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// Hash of a record, equal in every run. The page id separates tables.
pub(super) fn hash(page: PageId, key: &[u8]) -> u64 {
    let mut hasher = FixedState::with_seed(0x7265_636f_7264_7301).build_hasher();
    hasher.write_u64(page.0);
    hasher.write(key);
    hasher.finish()
}
