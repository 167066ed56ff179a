//! Memory that comes and goes a page here and a page there.
//!
//! A [`Region`] made with [`Region::reserve_sparse`] is an array of pages, any of which may have memory while its
//! neighbours have none. Memory is put behind many ranges at a time, and taken away again, since a system call a page is
//! what mapped memory costs most: ranges that adjoin become one.

use std::io;
use std::ops::Range;

use super::region::Region;

impl Region {
    /// Puts memory behind `ranges` and touches all of it; they are sorted on the way. What had memory keeps its content, what
    /// had none is zero.
    ///
    /// ```
    /// use std::sync::atomic::Ordering;
    /// use terrace_block::Region;
    ///
    /// let pages = Region::reserve_sparse(1 << 36)?;
    /// pages.populate(&mut [1 << 30..(1 << 30) + 4096, 0..8192])?;
    /// pages.words(0..8)[0].store(7, Ordering::Relaxed);
    /// pages.discard(&mut [0..4096])?;
    /// assert_eq!(pages.words(0..8)[0].load(Ordering::Relaxed), 0);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` for a range that is not aligned to 4096 or not inside; otherwise there is not enough memory, and some
    /// of the ranges may have got theirs.
    pub fn populate(&self, ranges: &mut [Range<usize>]) -> io::Result<()> {
        runs(ranges).try_for_each(|run| self.touch(run))
    }

    /// Takes the memory behind `ranges` away; they are sorted on the way. The bytes stay accessible and read as zeros, which
    /// takes no memory.
    ///
    /// # Errors
    /// `InvalidInput` for a range that is not aligned to 4096 or not inside, or what the system reports, for the first that
    /// was refused; ranges that do not adjoin such a one have lost theirs.
    pub fn discard(&self, ranges: &mut [Range<usize>]) -> io::Result<()> {
        runs(ranges).map(|run| self.release(run)).fold(Ok(()), io::Result::and)
    }
}

/// Sorts `ranges`, and makes one of those that adjoin.
fn runs(ranges: &mut [Range<usize>]) -> impl Iterator<Item = Range<usize>> {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.chunk_by(|one, next| one.end == next.start).map(|run| run[0].start..run[run.len() - 1].end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_adjoin_become_one() {
        let mut ranges = [8..12, 0..4, 20..24, 4..8, 30..31];
        assert_eq!(runs(&mut ranges).collect::<Vec<_>>(), [0..12, 20..24, 30..31]);
        assert_eq!(runs(&mut []).count(), 0);
    }
}
