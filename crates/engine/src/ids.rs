//! Typed numbers of pages, log positions, commits and tables.

use std::collections::{HashMap, HashSet};
use std::fmt;

use foldhash::fast::RandomState;

/// Longest key, bytes.
pub const MAX_KEY_BYTES: usize = 1024;
/// Longest value, bytes.
pub const MAX_VALUE_BYTES: usize = 1 << 30;

/// Bytes of a block, the unit of space in the page file.
pub(crate) const BLOCK_BYTES: usize = 4096;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// Zero means "none".
            pub const NONE: Self = Self(0);

            /// Whether this is [`Self::NONE`].
            pub fn is_none(self) -> bool {
                self.0 == 0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id! {
    /// Id of a page: size class (highest byte) and index from 1.
    ///
    /// Indexes are dense in each class, and are reused after a page is freed.
    PageId
}
id! {
    /// Log sequence number: byte offset of a record in the log stream.
    Lsn
}
id! {
    /// Commit timestamp, also the transaction id in the log. Never reused, not even after a crash.
    Timestamp
}
id! {
    /// Id of a table. Never reused.
    TableId
}

/// Page size: a power of two from 4 KiB to 2 MiB.
///
/// Pages above 64 KiB hold only parts of long values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SizeClass(u8);

impl SizeClass {
    /// Number of classes.
    pub const COUNT: usize = 10;
    /// Pages of 4 KiB.
    pub const SMALLEST: SizeClass = SizeClass(0);
    /// Pages of 64 KiB, the largest of a tree.
    pub const LARGEST_NODE: SizeClass = SizeClass(4);
    /// Pages of 2 MiB.
    pub const LARGEST: SizeClass = SizeClass(Self::COUNT as u8 - 1);

    /// The class with pages of exactly `bytes` bytes.
    pub fn of_bytes(bytes: u64) -> Option<SizeClass> {
        Self::all().find(|class| class.page_bytes() as u64 == bytes)
    }

    /// The class with this number.
    pub fn from_index(index: usize) -> Option<SizeClass> {
        (index < Self::COUNT).then_some(SizeClass(index as u8))
    }

    /// The smallest class with pages of at least `bytes` bytes.
    pub fn holding(bytes: u64) -> Option<SizeClass> {
        Self::all().find(|class| class.page_bytes() as u64 >= bytes)
    }

    /// Whether its pages hold only long values.
    #[inline]
    pub fn is_for_values(self) -> bool {
        self > Self::LARGEST_NODE
    }

    /// All classes, smallest first.
    pub fn all() -> impl DoubleEndedIterator<Item = SizeClass> {
        (0..Self::COUNT as u8).map(SizeClass)
    }

    /// Number of the class; 0 is the smallest, each next one doubles.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Bytes per page.
    #[inline]
    pub const fn page_bytes(self) -> usize {
        PAGE_BYTES_MIN << self.0
    }

    /// Blocks of the largest image; reserved per page without image.
    pub(crate) fn blocks(self) -> u64 {
        blocks_of(self.page_bytes())
    }
}

pub(crate) type ByClass<T> = [T; SizeClass::COUNT];

/// Values by page, hashed quickly and yet in a way that no hostile file can foresee.
pub(crate) type ByPage<T> = HashMap<PageId, T, RandomState>;

/// Pages, hashed like those of [`ByPage`].
pub(crate) type PageSet = HashSet<PageId, RandomState>;

const PAGE_BYTES_MIN: usize = 4 << 10;
pub(crate) const CLASS_SHIFT: u32 = 56;

impl PageId {
    /// In the header of a frame that holds mini pages. No page has this id.
    pub(crate) const MINI_PAGES: PageId = PageId(u64::MAX);

    /// The page of `class` with this `index`, below 2^56.
    #[inline]
    pub fn new(class: SizeClass, index: u64) -> PageId {
        debug_assert!(index < 1 << CLASS_SHIFT);
        PageId((class.0 as u64) << CLASS_SHIFT | index)
    }

    /// Number of the page's class.
    ///
    /// May be out of range: ids come from files, and from pages that change during a read.
    #[inline]
    pub fn class_index(self) -> usize {
        (self.0 >> CLASS_SHIFT) as usize
    }

    /// Class of the page; `None` for an invalid id.
    #[inline]
    pub fn class(self) -> Option<SizeClass> {
        SizeClass::from_index(self.class_index())
    }

    /// Bytes of the page. An invalid id counts as the smallest class; its page is reported missing.
    #[inline]
    pub(crate) fn page_bytes(self) -> usize {
        self.class().unwrap_or(SizeClass::SMALLEST).page_bytes()
    }

    /// Index of the page in its class.
    #[inline]
    pub fn index(self) -> u64 {
        self.0 & ((1 << CLASS_SHIFT) - 1)
    }
}

pub(crate) fn blocks_of(bytes: usize) -> u64 {
    bytes.div_ceil(BLOCK_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_the_powers_of_two_from_4_kib_to_2_mib() {
        let bytes: Vec<usize> = SizeClass::all().map(SizeClass::page_bytes).collect();
        assert_eq!(bytes, (12..=21).map(|bits| 1 << bits).collect::<Vec<usize>>());
        assert_eq!(SizeClass::LARGEST_NODE.page_bytes(), 64 << 10);
        assert_eq!(SizeClass::LARGEST.blocks(), 512);
        for class in SizeClass::all() {
            let bytes = class.page_bytes() as u64;
            assert_eq!(SizeClass::of_bytes(bytes), Some(class));
            assert_eq!((SizeClass::of_bytes(bytes - 1), SizeClass::of_bytes(bytes + 1)), (None, None));
            assert_eq!(SizeClass::holding(bytes), Some(class));
            assert_eq!(SizeClass::holding(bytes / 2 + 1), Some(class));
            assert_eq!(class.is_for_values(), bytes > 64 << 10);
            let id = PageId::new(class, 7);
            assert_eq!((id.class(), id.index(), id.page_bytes()), (Some(class), 7, bytes as usize));
        }
        assert_eq!(SizeClass::holding((2 << 20) + 1), None);
        assert_eq!(PageId(10 << 56 | 7).class(), None);
    }
}
