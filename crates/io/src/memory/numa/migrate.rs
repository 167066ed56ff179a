//! Moves pages to another node, in three ways.
//!
//! `move_pages` drains every processor's page lists once per call, so one call moves many pages.
//! `mbind` with `MPOL_MF_MOVE` takes one range and leaves a separate mapping. The CXL paper's way
//! (section V) copies to a buffer, discards, changes the placement and copies back, in the caller's
//! thread without the kernel's locks. The last two leave placed ranges behind, which
//! [`Region::bind_anywhere`] clears.
//!
//! Bytes and addresses stay. During `Copy` others would read zeros and lose writes, so the caller
//! needs exclusive access to the pages, as under an exclusive latch.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::ops::Range;
use std::str::FromStr;
use std::sync::atomic::Ordering::Relaxed;

use super::calls::{self, Mode};
use super::nodes::{NodeSet, explain};
use super::{BATCH_PAGES_MAX, PAGE_BYTES};
use crate::memory::copy::copy_words;
use crate::memory::region::Region;
use crate::memory::runs::runs;

const TRIES: usize = 3;

/// Bytes copied at a time: the size of each thread's buffer.
const COPY_BYTES_MAX: usize = 64 << 10;

/// The kernel reserves about this fraction of a node's memory: one part in 50.
const FULL_PART: u64 = 50;

/// A way to move pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Migrate {
    /// `move_pages`: many pages per call.
    #[default]
    Batch,
    /// `mbind` with `MPOL_MF_MOVE`: one call per run of adjacent pages.
    Mbind,
    /// Through a buffer of the thread.
    Copy,
}

impl Migrate {
    /// All three ways.
    pub const ALL: [Migrate; 3] = [Migrate::Batch, Migrate::Mbind, Migrate::Copy];

    /// The name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Migrate::Batch => "batch",
            Migrate::Mbind => "mbind",
            Migrate::Copy => "copy",
        }
    }
}

impl fmt::Display for Migrate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Migrate {
    type Err = String;

    fn from_str(name: &str) -> Result<Migrate, String> {
        let found = Migrate::ALL.into_iter().find(|way| way.name() == name);
        found.ok_or_else(|| format!("pages are not migrated by \"{name}\"; there are batch, mbind and copy"))
    }
}

/// Results of a migration, in system pages of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Pages on the target node now, moved or not.
    pub there: usize,
    /// Pages without memory.
    pub absent: usize,
    /// Pages left because the node is full.
    pub full: usize,
    /// Pages left because the kernel or another process uses them.
    pub refused: usize,
    /// System calls, without those that check afterwards.
    pub calls: usize,
}

impl Region {
    /// Moves the pages of `ranges` to `node` and sorts the ranges. Counts the pages that cannot
    /// move; they stay.
    ///
    /// ```
    /// use terrace_io::{Migrate, Region};
    ///
    /// let region = Region::reserve_sparse(1 << 30, 4096)?;
    /// region.populate(&mut [0..8192, 65536..69632])?;
    /// let moved = region.migrate(&mut [0..8192, 65536..69632], 0, Migrate::Batch)?;
    /// assert_eq!((moved.there, moved.refused), (3, 0)); // they are on this node already
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` for a range that is not aligned to 4096 or not inside, or a missing node;
    /// `PermissionDenied` if the process may not move memory; some of the pages may have moved.
    /// `OutOfMemory` from `Copy` if memory for the discarded pages is refused. No page has lost its
    /// bytes.
    pub fn migrate(&self, ranges: &mut [Range<usize>], node: u32, how: Migrate) -> io::Result<Moved> {
        ranges.iter().try_for_each(|range| self.check_pages(range))?;
        let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        let nodes = NodeSet::of(&[node]).map_err(wrong)?;
        let ranges = runs(ranges);
        let mut moved = match how {
            Migrate::Batch => self.migrate_batch(ranges, node, &nodes)?,
            Migrate::Mbind => self.migrate_each(ranges, &nodes, |range| {
                calls::set_policy(self, range, Mode::Prefer, &nodes, true)?;
                Ok(1)
            })?,
            Migrate::Copy => self.migrate_each(ranges, &nodes, |range| self.move_by_copy(range, &nodes))?,
        };
        if how != Migrate::Batch {
            for pages in pages_of(ranges) {
                let left = self.elsewhere(&pages, node, &mut moved)?.len();
                *if is_full(node) { &mut moved.full } else { &mut moved.refused } += left;
            }
        }
        Ok(moved)
    }

    fn migrate_batch(&self, ranges: &[Range<usize>], node: u32, nodes: &NodeSet) -> io::Result<Moved> {
        let mut moved = Moved::default();
        for mut pages in pages_of(ranges) {
            let mut is_full = false;
            for _ in 0..TRIES {
                let status = match calls::move_pages(self, &pages, Some(node)) {
                    Ok(status) => status,
                    // None of them has movable memory.
                    Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Vec::new(),
                    Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                        is_full = true;
                        Vec::new()
                    }
                    Err(error) => return Err(explain("moving pages to", nodes, error)),
                };
                moved.calls += 1;
                if status.iter().all(|status| *status == node as i32) && !status.is_empty() {
                    moved.there += status.len();
                    pages.clear();
                    break;
                }
                // A call stops at a page that does not move once it meets one that need not, and
                // skips the rest. Filter out the pages that need not move, so that the next call
                // reaches all others.
                pages = self.elsewhere(&pages, node, &mut moved)?;
                if pages.is_empty() || is_full {
                    break;
                }
            }
            *if is_full { &mut moved.full } else { &mut moved.refused } += pages.len();
        }
        Ok(moved)
    }

    /// The pages on other nodes; counts the rest.
    fn elsewhere(&self, pages: &[usize], node: u32, moved: &mut Moved) -> io::Result<Vec<usize>> {
        let mut elsewhere = Vec::new();
        for (&page, found) in pages.iter().zip(self.nodes_of(pages)?) {
            match found {
                None => moved.absent += 1,
                Some(now) if now == node => moved.there += 1,
                Some(_) => elsewhere.push(page),
            }
        }
        Ok(elsewhere)
    }

    fn migrate_each(
        &self,
        ranges: &[Range<usize>],
        nodes: &NodeSet,
        mut migrate: impl FnMut(&Range<usize>) -> io::Result<usize>,
    ) -> io::Result<Moved> {
        let mut calls = 0;
        for range in ranges {
            calls += migrate(range).map_err(|error| explain("moving pages to", nodes, error))?;
        }
        Ok(Moved { calls, ..Moved::default() })
    }

    /// Returns the number of system calls.
    fn move_by_copy(&self, range: &Range<usize>, nodes: &NodeSet) -> io::Result<usize> {
        thread_local! {
            static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        // Fails without permission before any memory is discarded.
        calls::set_policy(self, range, Mode::Prefer, nodes, false)?;
        let mut calls = 1;
        let pages = Vec::from_iter(range.clone().step_by(PAGE_BYTES));
        let present = self.nodes_of(&pages)?;
        let here = |at: &usize| present[*at].is_some_and(|node| !nodes.contains(node));
        let mut kept: Vec<Range<usize>> =
            (0..pages.len()).filter(here).map(|at| pages[at]..pages[at] + PAGE_BYTES).collect();
        let mut parts = runs(&mut kept).iter().flat_map(|range| {
            let starts = range.clone().step_by(COPY_BYTES_MAX);
            starts.map(|start| start..range.end.min(start + COPY_BYTES_MAX))
        });
        let mut move_parts = |buffer: &mut Vec<u8>| {
            for part in parts.by_ref() {
                buffer.resize(buffer.len().max(part.len()), 0);
                let bytes = &mut buffer[..part.len()];
                copy_words(self.words(part.clone()), bytes);
                // A failed discard may still have released pages. If memory is refused, for
                // instance by a control group's limit, the stores below request it page by page. A
                // system that has given it away kills the process, so no byte is lost silently.
                let taken = self.discard(&mut [part.clone()]);
                let refused = taken.and_then(|()| self.populate(&mut [part.clone()])).err();
                for (word, bytes) in self.words(part.clone()).iter().zip(bytes.as_chunks::<8>().0) {
                    word.store(u64::from_ne_bytes(*bytes), Relaxed);
                }
                calls += 2;
                refused.map_or(Ok(()), Err)?;
            }
            Ok(calls)
        };
        // An ending thread may have dropped its buffer already.
        let moved = BUFFER.try_with(|buffer| move_parts(&mut buffer.borrow_mut()));
        moved.unwrap_or_else(|_| move_parts(&mut Vec::new()))
    }
}

/// Whether a nearly full node explains unmoved pages.
fn is_full(node: u32) -> bool {
    let found = super::nodes::nodes().into_iter().find(|found| found.node == node);
    found.is_some_and(|found| found.free_bytes < found.bytes / FULL_PART)
}

fn pages_of(ranges: &[Range<usize>]) -> impl Iterator<Item = Vec<usize>> {
    let mut pages = ranges.iter().flat_map(|range| range.clone().step_by(PAGE_BYTES)).peekable();
    std::iter::from_fn(move || {
        pages.peek()?;
        Some(pages.by_ref().take(BATCH_PAGES_MAX).collect())
    })
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "ranges come in slices, of one, too")]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_refused() {
        for how in Migrate::ALL {
            assert_eq!(how.to_string().parse(), Ok(how));
        }
        assert!("move".parse::<Migrate>().unwrap_err().contains("move"));
    }

    /// On the only node of a machine: nothing moves, bytes stay, and pages without memory get none.
    #[test]
    fn moving_pages_to_where_they_are_changes_nothing() {
        for how in Migrate::ALL {
            let region = Region::reserve_sparse(64 << 20, 4096).unwrap();
            let there: Vec<usize> =
                (0..5000).map(|page| page * 12288).take_while(|&page| page < 60 << 20).collect();
            let mut ranges = Vec::from_iter(there.iter().map(|&page| page..page + 4096));
            region.populate(&mut ranges.clone()).unwrap();
            for &page in &there {
                region.words(page..page + 8)[0].store(page as u64 + 1, Relaxed);
            }
            // One range of pages without memory.
            ranges.push((60 << 20)..(60 << 20) + 8192);
            let moved = region.migrate(&mut ranges, 0, how).unwrap();
            assert_eq!(
                (moved.there, moved.absent, moved.full, moved.refused),
                (there.len(), 2, 0, 0),
                "{how}"
            );
            if how == Migrate::Batch {
                assert_eq!(moved.calls, (there.len() + 2).div_ceil(BATCH_PAGES_MAX));
            }
            assert!(
                there.iter().all(|&page| region.words(page..page + 8)[0].load(Relaxed) == page as u64 + 1),
                "{how}"
            );
            let nothing = region.migrate(&mut [(60 << 20)..(60 << 20) + 8192], 0, how).unwrap();
            assert_eq!((nothing.there, nothing.absent), (0, 2), "{how}");
        }
    }

    #[test]
    fn ranges_off_page_boundaries_or_outside_move_nothing() {
        let region = Region::reserve_sparse(1 << 20, 4096).unwrap();
        for how in Migrate::ALL {
            for wrong in [100..4096, 0..(1 << 20) + 4096] {
                let error = region.migrate(&mut [0..4096, wrong], 0, how).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            }
        }
    }
}
