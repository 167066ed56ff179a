//! Frames of one size in one tier, and frame numbers.
//!
//! ```text
//!   31..28   27              26..0
//!   class    1 = middle      index among the frames of the class in the tier
//! ```
//!
//! A *partition* is all frames of one class in one tier. It has its own addresses, free list and
//! replacement queues. A shift and an addition give a frame's address, without a branch on the
//! tier.
//!
//! A mini page (`mini_pages.rs`) has a number like a frame's, of a class that no frame has:
//!
//! ```text
//!   31..28   27   26..23   22..0
//!   15       0    slot     index of the DRAM frame that the mini page is in
//! ```

use crate::ids::{PageId, SizeClass};

/// Position of the partition and of the class in a frame number.
const PARTITION_SHIFT: u32 = 27;
const CLASS_SHIFT: u32 = PARTITION_SHIFT + 1;
const MIDDLE: u32 = 1 << PARTITION_SHIFT;
/// Upper limit of frame indexes: 512 GiB of the smallest pages.
pub(crate) const FRAMES_MAX: u32 = 1 << PARTITION_SHIFT;
pub(crate) const PARTITIONS: usize = 2 * SizeClass::COUNT;

/// Class of the numbers of mini pages, and position of the slot.
const MINI: u32 = 15 << CLASS_SHIFT;
const SLOT_SHIFT: u32 = 23;
/// Frames below this index may hold mini pages: 128 GiB of pages of 16 KiB.
pub(crate) const MINI_FRAMES_MAX: u32 = 1 << SLOT_SHIFT;
/// Upper limit of the mini pages in a frame.
pub(crate) const SLOTS_MAX: usize = 1 << (PARTITION_SHIFT - SLOT_SHIFT);

/// One value per partition.
pub(crate) type ByPartition<T> = [T; PARTITIONS];

/// A page and its present, future or last frame.
pub(crate) type PageFrame = (PageId, u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    Dram,
    Middle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partition {
    pub(crate) class: SizeClass,
    pub(crate) tier: Tier,
}

impl From<SizeClass> for Partition {
    fn from(class: SizeClass) -> Partition {
        Partition { class, tier: Tier::Dram }
    }
}

impl Partition {
    pub(crate) fn middle(class: SizeClass) -> Partition {
        Partition { class, tier: Tier::Middle }
    }

    /// All partitions, DRAM first.
    ///
    /// So a scan for dirty pages cannot miss a page that is demoted meanwhile.
    pub(crate) fn all() -> impl DoubleEndedIterator<Item = Partition> {
        let in_tier = |tier| SizeClass::all().map(move |class| Partition { class, tier });
        in_tier(Tier::Dram).chain(in_tier(Tier::Middle))
    }

    pub(crate) fn index(self) -> usize {
        2 * self.class.index() + usize::from(self.tier == Tier::Middle)
    }

    pub(crate) fn from_index(index: usize) -> Option<Partition> {
        let tier = if index.is_multiple_of(2) { Tier::Dram } else { Tier::Middle };
        SizeClass::from_index(index / 2).map(|class| Partition { class, tier })
    }

    pub(crate) fn frame(self, index: u32) -> u32 {
        debug_assert!(index < FRAMES_MAX);
        (self.index() as u32) << PARTITION_SHIFT | index
    }
}

pub(crate) fn class_of(frame: u32) -> SizeClass {
    SizeClass::from_index(class_index_of(frame)).expect("frames are of classes there are")
}

#[inline(always)]
pub(crate) fn class_index_of(frame: u32) -> usize {
    (frame >> CLASS_SHIFT) as usize
}

#[inline(always)]
pub(crate) fn partition_index_of(frame: u32) -> usize {
    (frame >> PARTITION_SHIFT) as usize
}

pub(crate) fn partition_of(frame: u32) -> Partition {
    Partition::from_index(partition_index_of(frame)).expect("frames are of partitions there are")
}

#[inline(always)]
pub(crate) fn index_of(frame: u32) -> u32 {
    frame & (FRAMES_MAX - 1)
}

#[inline(always)]
pub(crate) fn is_middle(frame: u32) -> bool {
    frame & MIDDLE != 0
}

/// The number of a mini page in `slot` of the DRAM frame `frame`.
pub(crate) fn mini_page_of(frame: u32, slot: usize) -> u32 {
    debug_assert!(!is_middle(frame) && index_of(frame) < MINI_FRAMES_MAX && slot < SLOTS_MAX);
    MINI | (slot as u32) << SLOT_SHIFT | index_of(frame)
}

#[inline(always)]
pub(crate) fn is_mini(frame: u32) -> bool {
    frame >= MINI
}

/// The slot of a mini page, and the index of its frame.
pub(crate) fn slot_of(mini: u32) -> (usize, u32) {
    ((mini >> SLOT_SHIFT) as usize % SLOTS_MAX, mini % MINI_FRAMES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_mini_pages_are_no_frames() {
        for class in SizeClass::all() {
            for (index, slot) in [(0, 0), (5, 3), (MINI_FRAMES_MAX - 1, SLOTS_MAX - 1)] {
                let frame = Partition::from(class).frame(index);
                let mini = mini_page_of(frame, slot);
                assert!(is_mini(mini) && !is_middle(mini) && !is_mini(frame));
                assert_eq!(slot_of(mini), (slot, index));
                assert_eq!(Partition::from_index(partition_index_of(mini)), None);
            }
            assert!(!is_mini(Partition::middle(class).frame(FRAMES_MAX - 1)));
        }
    }

    #[test]
    fn numbers_of_frames_say_which_partition_they_are_of() {
        assert_eq!(Partition::all().count(), PARTITIONS);
        for partition in Partition::all() {
            assert_eq!(Partition::from_index(partition.index()), Some(partition));
            for index in [0, 1, FRAMES_MAX - 1] {
                let frame = partition.frame(index);
                assert_eq!(
                    (partition_of(frame), class_of(frame), index_of(frame)),
                    (partition, partition.class, index)
                );
                assert_eq!(is_middle(frame), partition.tier == Tier::Middle);
            }
        }
        assert_eq!(Partition::from_index(PARTITIONS), None);
    }
}
