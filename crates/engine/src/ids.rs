//! The numbers everything else is named by. Newtypes, so that a page is never passed where a log position is meant.

use std::fmt;

use crate::store::place::places_of;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// Zero means "none" for every one of these numbers.
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
    /// A page of the database: how large it is, in the highest byte, and which of that size, from 1 on, below. Both are what
    /// [`PageId::new`] was given. Indexes are dense in each class, and ids are used again after a page is freed.
    PageId
}
id! {
    /// A log sequence number: the byte offset of a record in the endless stream of the log.
    Lsn
}
id! {
    /// A commit timestamp, which is also the transaction's id in the log. Never issued twice, not even across crashes.
    Timestamp
}
id! {
    /// A table. Ids are never used again.
    TableId
}

/// How large a page is: one of the powers of two from 4 KiB to 2 MiB. Nodes of trees, and whatever else is no part of a long
/// value, are on pages of 64 KiB at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SizeClass(u8);

impl SizeClass {
    /// Classes there are.
    pub const COUNT: usize = 10;
    /// Pages of 4 KiB.
    pub const SMALLEST: SizeClass = SizeClass(0);
    /// Pages of 64 KiB, the largest that a tree can have.
    pub const LARGEST_NODE: SizeClass = SizeClass(4);
    /// Pages of 2 MiB.
    pub const LARGEST: SizeClass = SizeClass(Self::COUNT as u8 - 1);

    /// The class whose pages have so many bytes, if there is one.
    pub fn of_bytes(bytes: u64) -> Option<SizeClass> {
        Self::all().find(|class| class.page_bytes() as u64 == bytes)
    }

    /// The class with this number.
    pub fn from_index(index: usize) -> Option<SizeClass> {
        (index < Self::COUNT).then_some(SizeClass(index as u8))
    }

    /// The smallest class whose pages have at least so many bytes, if there is one.
    pub fn holding(bytes: u64) -> Option<SizeClass> {
        Self::all().find(|class| class.page_bytes() as u64 >= bytes)
    }

    /// Whether its pages are larger than those of any tree, and hold nothing but long values.
    #[inline]
    pub fn is_for_values(self) -> bool {
        self > Self::LARGEST_NODE
    }

    /// All of them, the smallest first.
    pub fn all() -> impl DoubleEndedIterator<Item = SizeClass> {
        (0..Self::COUNT as u8).map(SizeClass)
    }

    /// Its number: 0 for the smallest, and one more for each that is twice as large.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Bytes of a page.
    #[inline]
    pub const fn page_bytes(self) -> usize {
        PAGE_BYTES_MIN << self.0
    }

    /// Places of the page file that an image of a page takes at the most, and that a page without one is granted.
    pub(crate) fn places(self) -> u64 {
        places_of(self.page_bytes())
    }
}

/// Something for each class, by its number.
pub(crate) type ByClass<T> = [T; SizeClass::COUNT];

/// Bytes of the smallest pages.
const PAGE_BYTES_MIN: usize = 4 << 10;
/// Where in a page id the class begins.
const CLASS_SHIFT: u32 = 56;

impl PageId {
    /// The page of `class` with this index, which is below 2^56.
    #[inline]
    pub fn new(class: SizeClass, index: u64) -> PageId {
        debug_assert!(index < 1 << CLASS_SHIFT);
        PageId((class.0 as u64) << CLASS_SHIFT | index)
    }

    /// The number of the page's class, which may be none of those there are: ids come from files, and from pages that change
    /// while they are read.
    #[inline]
    pub fn class_index(self) -> usize {
        (self.0 >> CLASS_SHIFT) as usize
    }

    /// How large the page is; `None` for an id that no page can have.
    #[inline]
    pub fn class(self) -> Option<SizeClass> {
        SizeClass::from_index(self.class_index())
    }

    /// Bytes of the page; of an id that no page can have as many as of the smallest, and who reads such a page is told that
    /// it is missing.
    #[inline]
    pub(crate) fn page_bytes(self) -> usize {
        self.class().unwrap_or(SizeClass::SMALLEST).page_bytes()
    }

    /// Which of its class it is.
    #[inline]
    pub fn index(self) -> u64 {
        self.0 & ((1 << CLASS_SHIFT) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_the_powers_of_two_from_4_kib_to_2_mib() {
        let bytes: Vec<usize> = SizeClass::all().map(SizeClass::page_bytes).collect();
        assert_eq!(bytes, (12..=21).map(|bits| 1 << bits).collect::<Vec<usize>>());
        assert_eq!(SizeClass::LARGEST_NODE.page_bytes(), 64 << 10);
        assert_eq!(SizeClass::LARGEST.places(), 512);
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
