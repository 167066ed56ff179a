//! Addresses of frames in simulated memory.
//!
//! A frame keeps its address, whatever frames other page sizes get or lose. Lines of two pages
//! never have one address, so each size has a range of its own. Where a range lies modulo the
//! tier's bytes counts, too: a direct-mapped cache (memory mode) as large as the tier should hold
//! all of it. So the first size lies from the start on, and the second backwards from the end. They
//! never meet, however the tier is divided. Further pairs begin at fifths, and then they may.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::ids::{ByClass, SizeClass};
use crate::pool::frames::partition::{class_of, index_of};

/// Position of a range's number in its addresses.
const RANGE_SHIFT: u32 = 50;
const PAIRS: u64 = SizeClass::COUNT as u64 / 2;

#[derive(Debug)]
pub(in crate::pool) struct Addresses {
    /// Bytes of the tier.
    bytes: u64,
    /// In the order of first use.
    ranges: ByClass<OnceLock<Range>>,
    used: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    start: u64,
    backwards: bool,
}

impl Addresses {
    /// For a tier of `bytes` bytes, whose class `own` is the first.
    pub(super) fn new(own: SizeClass, bytes: u64) -> Addresses {
        let addresses = Addresses { bytes, ranges: Default::default(), used: AtomicU64::new(0) };
        addresses.range(own);
        addresses
    }

    fn range(&self, class: SizeClass) -> Range {
        let new = || {
            let number = self.used.fetch_add(1, Relaxed);
            let page_bytes = class.page_bytes() as u64;
            let into = self.bytes / PAIRS * (number / 2) / page_bytes * page_bytes;
            // A multiple of the tier's bytes.
            let first = (number << RANGE_SHIFT) / self.bytes * self.bytes;
            match number % 2 {
                0 => Range { start: first + into, backwards: false },
                _ => Range { start: first + 2 * self.bytes - into, backwards: true },
            }
        };
        *self.ranges[class.index()].get_or_init(new)
    }

    pub(super) fn of(&self, frame: u32) -> u64 {
        let (class, index) = (class_of(frame), u64::from(index_of(frame)));
        let (Range { start, backwards }, page_bytes) = (self.range(class), class.page_bytes() as u64);
        if backwards { start - (index + 1) * page_bytes } else { start + index * page_bytes }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::pool::frames::partition::Partition;

    const BYTES: u64 = 3 << 20;

    fn class(index: usize) -> SizeClass {
        SizeClass::from_index(index).unwrap()
    }

    /// Addresses of the first bytes of pages of 4 KiB, of as many frames of a class.
    fn parts(addresses: &Addresses, class: SizeClass, frames: u64) -> Vec<u64> {
        let of_frame = |index: u64| {
            let start = addresses.of(Partition::middle(class).frame(index as u32));
            (start..start + class.page_bytes() as u64).step_by(4096)
        };
        (0..frames).flat_map(of_frame).collect()
    }

    #[test]
    fn two_sizes_never_meet_in_a_cache_as_large_as_the_tier() {
        for other in [1, 2, 5, 8] {
            let page_bytes = class(other).page_bytes() as u64;
            for frames in 0..=BYTES / page_bytes {
                let addresses = Addresses::new(class(0), BYTES);
                let mut sets = parts(&addresses, class(other), frames);
                sets.extend(parts(&addresses, class(0), (BYTES - frames * page_bytes) / 4096));
                sets.iter_mut().for_each(|address| *address %= BYTES);
                assert_eq!(sets.len(), 768, "{other} {frames}");
                assert_eq!(sets.into_iter().collect::<HashSet<_>>().len(), 768, "{other} {frames}");
            }
        }
    }

    #[test]
    fn no_two_pages_have_an_address_in_common() {
        let addresses = Addresses::new(class(3), BYTES);
        assert_eq!(addresses.of(Partition::middle(class(3)).frame(2)), 2 * 32768);
        let all = SizeClass::all().flat_map(|class| {
            parts(&addresses, class, BYTES / class.max(self::class(3)).page_bytes() as u64)
        });
        let all: Vec<u64> = all.collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
    }
}
