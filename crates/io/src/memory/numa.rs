//! NUMA nodes: listing them, placing a [`Region`], locating and moving its pages.
//!
//! Memory behind CXL is a node without processors. Placement ([`Region::bind_to`],
//! [`PreferredNodes`](preferred::PreferredNodes)) is a *preference* or an interleaving, never a
//! *binding*: if a bound node is full, the kernel kills the process. So
//! [`check_room`](nodes::check_room) refuses early if space is short, and [`Region::misplaced`]
//! finds pages that went elsewhere.
//!
//! [`Region::migrate`] moves pages one by one. It leaves those that the kernel uses or a forked
//! process maps; [`Moved`](migrate::Moved) counts them. A missing node or permission is an error.

use std::io;
use std::ops::Range;

use super::region::Region;
use super::runs::runs;

pub(crate) mod calls;
pub(crate) mod measure;
pub(crate) mod migrate;
pub(crate) mod nodes;
pub(crate) mod preferred;

use calls::Pages;
use nodes::{NodeSet, explain};

const PAGE_BYTES: usize = 4096;
/// Pages per call that asks or moves.
const BATCH_PAGES_MAX: usize = 4096;

/// Prefers `nodes` for the pages of a shared file that is mapped at `pages`, and moves what it has
/// elsewhere. Returns the number of pages that stayed elsewhere. Only this mapping has them.
pub(crate) fn bind_file(pages: Pages<'_>, nodes: &NodeSet) -> io::Result<usize> {
    let explained = |error| explain("placing shared memory on", nodes, error);
    let mode = if nodes.len() > 1 { calls::Mode::Interleave } else { calls::Mode::Prefer };
    calls::set_policy(pages, &(0..pages.len()), mode, nodes, true).map_err(explained)?;
    let mut elsewhere = 0;
    for start in (0..pages.len()).step_by(BATCH_PAGES_MAX * PAGE_BYTES) {
        let end = pages.len().min(start + BATCH_PAGES_MAX * PAGE_BYTES);
        let batch = Vec::from_iter((start..end).step_by(PAGE_BYTES));
        let found = calls::move_pages(pages, &batch, None).map_err(explained)?;
        let is_elsewhere = |node: &i32| u32::try_from(*node).is_ok_and(|node| !nodes.contains(node));
        elsewhere += found.iter().filter(|node| is_elsewhere(node)).count();
    }
    Ok(elsewhere)
}

impl Region {
    /// Prefers one node, or interleaves several, for new memory of `range`.
    ///
    /// Existing memory stays. Each range with its own placement is a kernel mapping, of which there
    /// are some 65,000.
    ///
    /// ```
    /// use terrace_io::{NodeSet, Region};
    ///
    /// let region = Region::reserve(1 << 20)?;
    /// let nodes: NodeSet = "0".parse().unwrap();
    /// region.bind_to(0..1 << 20, &nodes)?;
    /// region.commit(0..1 << 20)?;
    /// assert_eq!(region.misplaced(0..1 << 20, &nodes)?, 0);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` for a range that is not aligned to 4096 or not inside, or for missing nodes;
    /// `PermissionDenied` if the process may not bind memory, as in many containers. Names the
    /// nodes and the reason.
    pub fn bind_to(&self, range: Range<usize>, nodes: &NodeSet) -> io::Result<()> {
        self.check_pages(&range)?;
        let mode = if nodes.len() > 1 { calls::Mode::Interleave } else { calls::Mode::Prefer };
        calls::set_policy(self, &range, mode, nodes, false)
            .map_err(|error| explain("placing memory on", nodes, error))
    }

    /// Removes the placement of `ranges` and sorts them.
    ///
    /// The touching thread's default applies again; existing memory stays. Ranges with equal
    /// placement merge into one kernel mapping. Returns the number of system calls.
    ///
    /// # Errors
    /// As [`Region::bind_to`].
    pub fn bind_anywhere(&self, ranges: &mut [Range<usize>]) -> io::Result<usize> {
        ranges.iter().try_for_each(|range| self.check_pages(range))?;
        let ranges = runs(ranges);
        let explained =
            |error: io::Error| io::Error::new(error.kind(), format!("placing memory anywhere: {error}"));
        ranges.iter().try_for_each(|range| calls::clear_policy(self, range).map_err(explained))?;
        Ok(ranges.len())
    }

    /// The node of each page at `offsets`; `None` for one without memory.
    ///
    /// # Errors
    /// `InvalidInput` for an offset that is not that of a page inside, `PermissionDenied` if the
    /// process may not ask.
    pub fn nodes_of(&self, offsets: &[usize]) -> io::Result<Vec<Option<u32>>> {
        offsets
            .iter()
            .try_for_each(|&offset| self.check_pages(&(offset..offset.saturating_add(PAGE_BYTES))))?;
        let mut found = Vec::with_capacity(offsets.len());
        for batch in offsets.chunks(BATCH_PAGES_MAX) {
            let status = calls::move_pages(self, batch, None)
                .map_err(|error| io::Error::new(error.kind(), format!("asking where pages are: {error}")))?;
            // The shared page of zeros counts as no memory.
            found.extend(status.into_iter().map(|node| u32::try_from(node).ok()));
        }
        Ok(found)
    }

    /// Counts pages of `range` with memory outside `nodes`.
    ///
    /// # Errors
    /// As [`Region::nodes_of`].
    pub fn misplaced(&self, range: Range<usize>, nodes: &NodeSet) -> io::Result<usize> {
        self.check_pages(&range)?;
        let mut count = 0;
        let mut pages = range.step_by(PAGE_BYTES).peekable();
        while pages.peek().is_some() {
            let batch = Vec::from_iter(pages.by_ref().take(BATCH_PAGES_MAX));
            let elsewhere =
                self.nodes_of(&batch)?.into_iter().flatten().filter(|&node| !nodes.contains(node));
            count += elsewhere.count();
        }
        Ok(count)
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "ranges come in slices, of one, too")]
mod tests {
    use super::*;
    use crate::memory::region::tests::mappings;

    fn only_node() -> NodeSet {
        NodeSet::of(&[0]).unwrap()
    }

    #[test]
    fn pages_are_where_the_kernel_says() {
        let region = Region::reserve(1 << 20).unwrap();
        region.bind_to(0..1 << 20, &only_node()).unwrap();
        region.commit(0..512 << 10).unwrap();
        let nodes = region.nodes_of(&[0, 4096, 512 << 10, 252 << 10]).unwrap();
        assert_eq!(nodes, [Some(0), Some(0), None, Some(0)]);
        assert_eq!(region.misplaced(0..1 << 20, &only_node()).unwrap(), 0);
        assert_eq!(region.misplaced(0..1 << 20, &NodeSet::of(&[5]).unwrap()).unwrap(), 128);
    }

    #[test]
    fn ranges_off_page_boundaries_or_outside_are_refused() {
        let region = Region::reserve(1 << 20).unwrap();
        for range in [0..100, 0..(1 << 20) + 4096] {
            assert_eq!(
                region.bind_to(range.clone(), &only_node()).unwrap_err().kind(),
                io::ErrorKind::InvalidInput
            );
            assert_eq!(
                region.misplaced(range, &only_node()).unwrap_err().kind(),
                io::ErrorKind::InvalidInput
            );
        }
        for offset in [100, 1 << 20, usize::MAX - 4095, usize::MAX] {
            assert_eq!(region.nodes_of(&[offset]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn what_was_placed_and_is_not_any_more_is_one_mapping_again() {
        let region = Region::reserve_sparse(1 << 20, 4096).unwrap();
        let whole = mappings(&region);
        let mut pages: Vec<_> = (0..1 << 20).step_by(16384).map(|page| page..page + 4096).collect();
        for how in migrate::Migrate::ALL {
            region.populate(&mut pages.clone()).unwrap();
            let moved = region.migrate(&mut pages.clone(), 0, how).unwrap();
            assert_eq!(moved.there, pages.len(), "{how}");
            assert_eq!(region.bind_anywhere(&mut pages).unwrap(), pages.len());
            assert_eq!(mappings(&region), whole, "{how}");
        }
        for wrong in [100..4096, 0..(1 << 20) + 4096] {
            let error = region.bind_anywhere(&mut [wrong]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn a_node_that_is_not_there_is_refused_by_its_number() {
        let region = Region::reserve(1 << 20).unwrap();
        region.commit(0..1 << 20).unwrap();
        let absent = NodeSet::of(&[1000]).unwrap();
        let error = region.bind_to(0..1 << 20, &absent).unwrap_err();
        assert!(error.to_string().contains("node 1000"), "{error}");
        for how in migrate::Migrate::ALL {
            let error = region.migrate(&mut [0..4096], 1000, how).unwrap_err();
            assert!(error.to_string().contains("node 1000"), "{how}: {error}");
        }
    }
}
