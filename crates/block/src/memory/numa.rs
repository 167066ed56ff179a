//! Memory by node: which nodes there are, putting a [`Region`] on some of them, asking where its pages are, and moving pages.
//!
//! The memory of a machine is on nodes, each as far from each processor as it is. Memory behind CXL is a node without processors. All
//! of it is ordinary memory to a program; what differs is how long an access takes. What the kernel is asked for here:
//!
//! | wish                            | call                                    | how                                                    |
//! |---------------------------------|-----------------------------------------|--------------------------------------------------------|
//! | [`Region::place_on`]            | `mbind`                                 | before the first touch; nothing moves                  |
//! | [`PreferredNodes`](preferred::PreferredNodes) | `set_mempolicy`           | for what a thread touches meanwhile, wherever          |
//! | [`Region::nodes_of`]            | `move_pages` without a target           | the kernel's own word of where each page is             |
//! | [`Region::migrate`], `Batch`    | `move_pages`                            | one call for many pages, here and there                 |
//! | [`Region::migrate`], `Mbind`    | `mbind` with `MPOL_MF_MOVE`             | one call for each run of pages that adjoin             |
//! | [`Region::migrate`], `Copy`     | `madvise`, `mbind`, two copies          | through a buffer of the thread's (CXL paper, section V) |
//!
//! A page is placed where it is *preferred* to be, or in turn on several nodes. It is not *bound*: if a node that memory is bound to is
//! full, the kernel does not fail the touch that wants another page, it kills the process. So what does not fit is refused before
//! ([`check_room`]), what went elsewhere all the same is found by asking ([`Region::misplaced`]), and nobody dies of it.
//!
//! Moves fail one by one, too: a page may be in use by the kernel, or mapped by a process that was forked. [`Moved`] counts them, and they stay
//! where they are. What fails as a whole, for lack of a node or a permission, is an error that says which.
//!
//! | file          | what is in it                                             |
//! |---------------|-----------------------------------------------------------|
//! | `nodes.rs`    | sets of nodes, and what the system says of each             |
//! | `preferred.rs` | memory for what one thread touches                       |
//! | `migrate.rs`  | moving pages, in three ways                               |
//! | `measure.rs`  | latency and bandwidth of a node                           |
//! | `calls.rs`    | the system calls                                          |

use std::io;
use std::ops::Range;

use super::region::Region;
use super::runs::runs;

mod calls;
pub(crate) mod measure;
pub(crate) mod migrate;
pub(crate) mod nodes;
pub(crate) mod preferred;

use nodes::{NodeSet, explain};

/// Bytes of a page of the system's.
const PAGE_BYTES: usize = 4096;
/// Pages that one call asks about or moves.
const BATCH_PAGES_MAX: usize = 4096;

impl Region {
    /// Has memory for `range` come from `nodes` from now on: of one, as long as it has some, of several in turn, page by page. What has
    /// memory already keeps it. Every range with a choice of its own is a mapping of its own to the kernel, of which there are some
    /// 65,000.
    ///
    /// ```
    /// use terrace_block::{NodeSet, Region};
    ///
    /// let region = Region::reserve(1 << 20)?;
    /// let nodes: NodeSet = "0".parse().unwrap();
    /// region.place_on(0..1 << 20, &nodes)?;
    /// region.commit(0..1 << 20)?;
    /// assert_eq!(region.misplaced(0..1 << 20, &nodes)?, 0);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` for a range that is not aligned to 4096 or not inside, or for nodes that are not there; `PermissionDenied` where the
    /// process may not place memory, as in many containers; always with the nodes and the reason.
    pub fn place_on(&self, range: Range<usize>, nodes: &NodeSet) -> io::Result<()> {
        self.check_pages(&range)?;
        let mode = if nodes.len() > 1 { calls::Mode::Interleave } else { calls::Mode::Prefer };
        calls::set_policy(self, &range, mode, nodes, false)
            .map_err(|error| explain("placing memory on", nodes, error))
    }

    /// Has memory for `ranges` come from wherever the thread that touches it is to have memory, as before [`Region::place_on`]; ranges are
    /// sorted on the way. What has memory keeps it. Ranges that are alike again are one mapping to the kernel. Returns how many system
    /// calls it took.
    ///
    /// # Errors
    /// As [`Region::place_on`].
    pub fn place_anywhere(&self, ranges: &mut [Range<usize>]) -> io::Result<usize> {
        ranges.iter().try_for_each(|range| self.check_pages(range))?;
        let ranges = runs(ranges);
        let explained =
            |error: io::Error| io::Error::new(error.kind(), format!("placing memory anywhere: {error}"));
        ranges.iter().try_for_each(|range| calls::clear_policy(self, range).map_err(explained))?;
        Ok(ranges.len())
    }

    /// Which node each of the pages at `offsets` is on, as the kernel has it; `None` for one without memory.
    ///
    /// # Errors
    /// `InvalidInput` for an offset that is not that of a page inside, `PermissionDenied` where the process may not ask.
    pub fn nodes_of(&self, offsets: &[usize]) -> io::Result<Vec<Option<u32>>> {
        offsets
            .iter()
            .try_for_each(|&offset| self.check_pages(&(offset..offset.saturating_add(PAGE_BYTES))))?;
        let mut found = Vec::with_capacity(offsets.len());
        for batch in offsets.chunks(BATCH_PAGES_MAX) {
            let status = calls::move_pages(self, batch, None)
                .map_err(|error| io::Error::new(error.kind(), format!("asking where pages are: {error}")))?;
            // A page of zeros that all share is nobody's, and on no node.
            found.extend(status.into_iter().map(|node| u32::try_from(node).ok()));
        }
        Ok(found)
    }

    /// How many of the pages of `range` have memory that is not on any of `nodes`.
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
        region.place_on(0..1 << 20, &only_node()).unwrap();
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
                region.place_on(range.clone(), &only_node()).unwrap_err().kind(),
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
            assert_eq!(region.place_anywhere(&mut pages).unwrap(), pages.len());
            assert_eq!(mappings(&region), whole, "{how}");
        }
        for wrong in [100..4096, 0..(1 << 20) + 4096] {
            let error = region.place_anywhere(&mut [wrong]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn a_node_that_is_not_there_is_refused_by_its_number() {
        let region = Region::reserve(1 << 20).unwrap();
        region.commit(0..1 << 20).unwrap();
        let absent = NodeSet::of(&[1000]).unwrap();
        let error = region.place_on(0..1 << 20, &absent).unwrap_err();
        assert!(error.to_string().contains("node 1000"), "{error}");
        for how in migrate::Migrate::ALL {
            let error = region.migrate(&mut [0..4096], 1000, how).unwrap_err();
            assert!(error.to_string().contains("node 1000"), "{how}: {error}");
        }
    }
}
