//! Populates and discards scattered pages of a sparse region.
//!
//! In a region from [`Region::reserve_sparse`] each page has memory or not. Adjacent ranges merge,
//! and one system call changes up to [`RANGES_MAX`] ranges. Single pages cost ten times as much as
//! soon as two threads run, since each call interrupts the other processor
//! (docs/decisions/0015-mapped-pages.md; examples/mapping.rs).

use std::io;
use std::ops::Range;

use rustix::mm::Advice;

use super::region::Region;

/// Ranges per system call: `UIO_MAXIOV`.
const RANGES_MAX: usize = 1024;

impl Region {
    /// Puts memory behind `ranges`, touches it, and sorts the ranges. Existing content stays; new
    /// memory is zero.
    ///
    /// ```
    /// use std::sync::atomic::Ordering;
    /// use terrace_io::Region;
    ///
    /// let pages = Region::reserve_sparse(1 << 36, 4096)?;
    /// pages.populate(&mut [1 << 30..(1 << 30) + 4096, 0..8192])?;
    /// pages.words(0..8)[0].store(7, Ordering::Relaxed);
    /// pages.discard(&mut [0..4096])?;
    /// assert_eq!(pages.words(0..8)[0].load(Ordering::Relaxed), 0);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` for a range that is not aligned to 4096 or not inside; otherwise memory is
    /// short, and some ranges may be populated.
    pub fn populate(&self, ranges: &mut [Range<usize>]) -> io::Result<()> {
        for ranges in self.checked_runs(ranges)?.chunks(RANGES_MAX) {
            match self.advise_all(ranges, Advice::LinuxPopulateWrite) {
                // Kernels before 5.14 lack this advice.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    ranges.iter().for_each(|range| self.touch_words(range));
                }
                outcome => outcome?,
            }
        }
        Ok(())
    }

    /// Discards the memory behind `ranges` and sorts them. The bytes stay accessible and read as
    /// zeros without taking memory.
    ///
    /// # Errors
    /// `InvalidInput` for a range that is not aligned to 4096 or not inside, or what the system
    /// reports for the first refused range. Ranges not adjacent to a refused one are discarded.
    pub fn discard(&self, ranges: &mut [Range<usize>]) -> io::Result<()> {
        let runs = self.checked_runs(ranges)?.chunks(RANGES_MAX);
        runs.map(|ranges| self.advise_all(ranges, Advice::LinuxDontNeed)).fold(Ok(()), io::Result::and)
    }

    fn checked_runs<'r>(&self, ranges: &'r mut [Range<usize>]) -> io::Result<&'r [Range<usize>]> {
        let ranges = runs(ranges);
        ranges.iter().try_for_each(|range| self.check_pages(range))?;
        Ok(ranges)
    }
}

pub(super) fn runs(ranges: &mut [Range<usize>]) -> &[Range<usize>] {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut count = 0;
    for at in 0..ranges.len() {
        let range = ranges[at].clone();
        if count > 0 && ranges[count - 1].end == range.start {
            ranges[count - 1].end = range.end;
        } else {
            ranges[count] = range;
            count += 1;
        }
    }
    &ranges[..count]
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "ranges come in slices, of one, too")]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::memory::region::tests::{mappings, resident_bytes};

    #[test]
    fn ranges_that_adjoin_become_one() {
        let mut ranges = [8..12, 0..4, 20..24, 4..8, 30..31];
        assert_eq!(runs(&mut ranges), [0..12, 20..24, 30..31]);
        assert_eq!(runs(&mut [0..4, 4..8]), [0..8]);
        assert_eq!(runs(&mut []), []);
    }

    /// Populates and discards random pages, against a map of those present. Reads of absent pages
    /// take no memory, and no page takes its own mapping.
    fn come_and_go(region: &Region, seed: u64) {
        const PAGE: usize = 4096;
        let mut random = seed;
        let mut draw = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % below
        };
        let pages = region.len() / PAGE;
        let before = mappings(region);
        let mut there = BTreeMap::new();
        for round in 0..60 {
            let most = if round % 20 == 19 { 3 * RANGES_MAX } else { 40 };
            let mut changed: Vec<usize> = (0..=draw(most)).map(|_| draw(pages)).collect();
            changed.sort_unstable();
            changed.dedup();
            // In random order.
            let turns = draw(changed.len());
            changed.rotate_left(turns);
            let mut ranges: Vec<_> = changed.iter().map(|page| page * PAGE..(page + 1) * PAGE).collect();
            if round % 3 < 2 {
                region.populate(&mut ranges).unwrap();
                for page in changed {
                    let word = &region.words(page * PAGE..page * PAGE + 8)[0];
                    assert_eq!(word.load(Relaxed), there.get(&page).copied().unwrap_or(0), "seed {seed}");
                    word.store(draw(1 << 30) as u64, Relaxed);
                    there.insert(page, word.load(Relaxed));
                }
            } else {
                region.discard(&mut ranges).unwrap();
                changed.iter().for_each(|page| _ = there.remove(page));
            }
            for page in (0..pages).step_by(7) {
                let word = region.words(page * PAGE..page * PAGE + 8)[0].load(Relaxed);
                assert_eq!(word, there.get(&page).copied().unwrap_or(0), "page {page}, seed {seed}");
            }
            assert_eq!(resident_bytes(region), there.len() * PAGE, "round {round}, seed {seed}");
        }
        assert_eq!(mappings(region), before, "seed {seed}");
    }

    #[test]
    fn pages_come_and_go_each_by_itself() {
        for seed in 0..4 {
            come_and_go(&Region::reserve_sparse(64 << 20, 4096).unwrap(), seed);
        }
    }

    #[test]
    fn they_do_where_the_kernel_takes_one_range_at_a_time() {
        let region = Region::reserve_sparse(64 << 20, 4096).unwrap();
        region.vectors_refused.store(true, Relaxed);
        come_and_go(&region, 4);
    }

    #[test]
    fn looking_at_a_huge_page_that_is_gone_takes_no_memory() {
        const PAGE: usize = 2 << 20;
        let region = Region::reserve_sparse(16 * PAGE, PAGE).unwrap();
        let before = mappings(&region);
        let pages = |pages: [usize; 3]| pages.map(|page| page * PAGE..(page + 1) * PAGE);
        region.populate(&mut pages([9, 2, 3])).unwrap();
        assert_eq!(resident_bytes(&region), 3 * PAGE);
        region.words(2 * PAGE..4 * PAGE).iter().for_each(|word| word.store(1, Relaxed));
        region.discard(&mut pages([2, 9, 11])).unwrap();
        assert!(region.words(0..3 * PAGE).iter().all(|word| word.load(Relaxed) == 0));
        assert!(region.words(3 * PAGE..4 * PAGE).iter().all(|word| word.load(Relaxed) == 1));
        assert!(region.words(4 * PAGE..16 * PAGE).iter().all(|word| word.load(Relaxed) == 0));
        assert_eq!(resident_bytes(&region), PAGE, "read, and still not there");
        region.populate(&mut pages([2, 0, 1])).unwrap();
        assert_eq!(resident_bytes(&region), 4 * PAGE);
        assert_eq!(mappings(&region), before);
    }

    #[test]
    fn ranges_off_page_boundaries_or_outside_change_nothing() {
        let region = Region::reserve_sparse(1 << 20, 4096).unwrap();
        region.populate(&mut [0..4096]).unwrap();
        region.words(0..8)[0].store(1, Relaxed);
        for wrong in [100..4096, 4096..5000, 0..(1 << 20) + 4096] {
            for change in [Region::populate, Region::discard] {
                let refused = change(&region, &mut [0..4096, wrong.clone()]).unwrap_err();
                assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{wrong:?}");
            }
        }
        assert_eq!(region.words(0..8)[0].load(Relaxed), 1);
        assert_eq!(resident_bytes(&region), 4096);
    }
}
