//! Swips: per inner node in a frame, the numbers of its children's entries in the hash table.
//!
//! They stand beside the page, so images, log records and splits never see them, and a node can be
//! evicted whatever its children do. Nothing keeps them up to date either: a change of the node or
//! of the frame leaves them as they are. So a swip is a guess. It counts if the entry it names is
//! that of the child's id, which the reader has from the node. A wrong guess costs a lookup in the
//! hash table, and is replaced.
//!
//! This is not the protocol of the papers, where the child's address replaces its id in the node.
//! That spares the reading of the id too. The feature `raw-frames` measures a tree of that kind.
//!
//! An array of swips goes to the first frame whose node needs one. When all are taken, few misses
//! take over the next array in turn, so that many nodes with few arrays do not copy each other out.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::ids::PageId;

/// Frames per array of swips. Most inner nodes have more children.
const FRAMES_PER_ARRAY: u64 = 64;
const ARRAYS_MIN: u64 = 8;
/// Swips of roots, in array 0. Less than any array has.
const ROOTS: u64 = 128;
/// Least bytes of a child's entry in an inner node: slot, id and separator.
const CHILD_BYTES_MIN: u64 = 24;
/// Of this many nodes that find no free array, one takes over another's.
const MISSES_PER_TAKEOVER: u32 = 64;

/// Sizes, from the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SwipSizes {
    page_bytes: u64,
    /// DRAM frames there may ever be.
    frames_max: u64,
    arrays: u64,
}

impl SwipSizes {
    /// For `frames` frames at open.
    pub(crate) fn of(page_bytes: u64, frames: u64, frames_max: u64) -> SwipSizes {
        let arrays = (frames / FRAMES_PER_ARRAY).max(ARRAYS_MIN);
        SwipSizes { page_bytes, frames_max: frames_max.max(frames), arrays }
    }

    fn swips(self) -> u64 {
        (self.arrays + 1) * self.per_array()
    }

    fn per_array(self) -> u64 {
        self.page_bytes / CHILD_BYTES_MIN
    }

    pub(crate) fn bytes(self) -> u64 {
        4 * (self.frames_max + self.swips() + self.arrays)
    }
}

#[derive(Debug)]
pub(crate) struct Swips {
    first_frame: u32,
    /// Per frame, the first swip of its array. Array 0 is no frame's, but has swips of roots.
    starts: Box<[AtomicU32]>,
    swips: Box<[AtomicU32]>,
    per_array: u32,
    /// Per array but the first, the frame that has it.
    owners: Box<[AtomicU32]>,
    /// Arrays asked for.
    asked: AtomicU32,
}

fn zeros(count: u64) -> io::Result<Box<[AtomicU32]>> {
    let mut zeros = Vec::new();
    let count = usize::try_from(count).map_err(|_| io::ErrorKind::OutOfMemory)?;
    zeros.try_reserve_exact(count).map_err(|_| io::ErrorKind::OutOfMemory)?;
    zeros.resize_with(count, AtomicU32::default);
    Ok(zeros.into_boxed_slice())
}

impl Swips {
    pub(crate) fn none() -> Swips {
        Swips {
            first_frame: 0,
            starts: Box::default(),
            swips: Box::default(),
            per_array: 0,
            owners: Box::default(),
            asked: AtomicU32::new(0),
        }
    }

    /// For the frames from `first_frame` on.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn new(sizes: SwipSizes, first_frame: u32) -> io::Result<Swips> {
        Ok(Swips {
            first_frame,
            starts: zeros(sizes.frames_max)?,
            swips: zeros(sizes.swips())?,
            per_array: sizes.per_array() as u32,
            owners: zeros(sizes.arrays)?,
            asked: AtomicU32::new(0),
        })
    }

    /// The swip of a child, or any other number; `None` if the frame cannot have swips.
    #[inline(always)]
    pub(super) fn get(&self, parent: u32, child: usize) -> Option<u32> {
        let start = self.starts.get(parent.wrapping_sub(self.first_frame) as usize)?.load(Relaxed);
        self.swips.get(start as usize + child).map(|swip| swip.load(Relaxed))
    }

    /// The swip of a root, or any other number; `None` if swips are off.
    #[inline(always)]
    pub(super) fn of_root(&self, id: PageId) -> Option<&AtomicU32> {
        self.swips.get((id.0 % ROOTS) as usize)
    }

    /// Notes the entry of a child, if its parent's frame has an array, or gets one.
    pub(super) fn note(&self, parent: u32, child: usize, entry: u32) {
        if child >= self.per_array as usize {
            return;
        }
        let Some(start) = self.starts.get(parent.wrapping_sub(self.first_frame) as usize) else { return };
        let at = match start.load(Relaxed) {
            0 => match self.take_array(parent) {
                Some(taken) => {
                    start.store(taken, Relaxed);
                    taken
                }
                None => return,
            },
            at => at,
        };
        self.swips[at as usize + child].store(entry, Relaxed);
    }

    /// The first swip of an array for `parent`. Two threads may give one frame two arrays: the
    /// first is then nobody's until its turn comes.
    fn take_array(&self, parent: u32) -> Option<u32> {
        let asked = self.asked.fetch_add(1, Relaxed);
        let arrays = self.owners.len() as u32;
        let array = match asked.checked_sub(arrays) {
            None => asked,
            Some(more) if more % MISSES_PER_TAKEOVER == 0 => more / MISSES_PER_TAKEOVER % arrays,
            Some(_) => return None,
        };
        let start = (array + 1) * self.per_array;
        // No frame's if the array is new, or another thread is just taking it.
        let former = self.owners[array as usize].swap(parent, Relaxed).wrapping_sub(self.first_frame);
        if let Some(former) = self.starts.get(former as usize) {
            let _ = former.compare_exchange(start, 0, Relaxed, Relaxed);
        }
        Some(start)
    }

    pub(super) fn bytes(&self) -> u64 {
        4 * (self.starts.len() + self.swips.len() + self.owners.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: u32 = 1 << 28;

    fn few() -> Swips {
        let sizes = SwipSizes::of(4096, 100, 100);
        assert_eq!(sizes.arrays, ARRAYS_MIN);
        Swips::new(sizes, FIRST).unwrap()
    }

    fn frame(index: u32) -> u32 {
        FIRST + index
    }

    #[test]
    fn frames_have_arrays_of_their_own() {
        let swips = few();
        for node in 0..8 {
            for child in 0..100 {
                swips.note(frame(node), child, 1000 * node + child as u32);
            }
        }
        for node in 0..8 {
            for child in 0..100 {
                assert_eq!(swips.get(frame(node), child), Some(1000 * node + child as u32));
            }
        }
        assert_eq!(swips.bytes(), SwipSizes::of(4096, 100, 100).bytes());
    }

    #[test]
    fn a_frame_gets_the_array_of_another_in_turn() {
        let swips = few();
        (0..8).for_each(|node| swips.note(frame(node), 5, 70));
        for miss in 0..MISSES_PER_TAKEOVER {
            swips.note(frame(9), 5, 80);
            assert_eq!(swips.get(frame(9), 5), Some(80), "the first miss took one, after {miss}");
        }
        assert_ne!(swips.get(frame(0), 5), Some(70), "of the frame that had it longest");
        assert_eq!(swips.get(frame(1), 5), Some(70));
        // Frame 0 is one of many now.
        swips.note(frame(0), 5, 90);
        assert_ne!(swips.get(frame(0), 5), Some(90));
    }

    /// A thread may be slow to write down the frame that gets an array.
    #[test]
    fn an_array_without_an_owner_can_be_taken() {
        let swips = few();
        swips.asked.store(ARRAYS_MIN as u32, Relaxed);
        swips.note(frame(3), 5, 70);
        assert_eq!(swips.get(frame(3), 5), Some(70));
    }

    /// A budget may name more frames than there is memory for their swips.
    #[test]
    fn a_lack_of_memory_is_an_error() {
        for frames in [1 << 56, 1 << 63] {
            let refused = Swips::new(SwipSizes::of(4096, 100, frames), FIRST).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::OutOfMemory);
        }
    }

    #[test]
    fn other_frames_and_children_have_none() {
        let swips = few();
        for (frame, child) in [(0, 0), (frame(100), 0), (frame(0), 4096)] {
            swips.note(frame, child, 7);
            assert_ne!(swips.get(frame, child), Some(7));
        }
    }
}
