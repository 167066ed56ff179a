//! For measurements only: a copy of a tree whose inner nodes name frames instead of pages.
//!
//! It measures a get without a page table, as with permanently swizzled pointers: same nodes,
//! search and optimistic protocol. The state words form a dense array: words beside the frames cost
//! one more cache miss per level. The copy never sees later changes, and nothing is evicted.

use std::io;

use terrace_io::Region;

use super::get::{Found, record_in};
use super::node::edit::damaged_page;
use super::node::{LEFTMOST, Node};
use super::size::count_pages;
use super::tree::{Seek, Tree, copy_node, retry};
use crate::error::{Error, Result};
use crate::ids::PageId;
use crate::pool::latch::Latch;
use crate::pool::view::Racy;
use crate::pool::{Pool, Retry};

#[derive(Debug)]
pub(crate) struct RawTree {
    frames: Region,
    /// One state word per frame.
    states: Region,
    page_bytes: usize,
    /// Frames that exist, and frames in use.
    pages: usize,
    used: usize,
}

const STATE_BYTES: usize = 8;
const GRANULE_BYTES: usize = 4096;
const ROOT: usize = 0;

impl RawTree {
    /// Copies `tree`; the caller excludes concurrent changes.
    pub(crate) fn of(pool: &Pool, tree: Tree) -> Result<RawTree> {
        let pages = count_pages(tree, pool)? as usize;
        let page_bytes = tree.page_bytes();
        let memory = |bytes: usize| -> io::Result<Region> {
            let bytes = bytes.next_multiple_of(GRANULE_BYTES);
            let region = Region::reserve(bytes)?;
            region.commit(0..bytes)?;
            Ok(region)
        };
        let failed = |source| Error::Memory {
            bytes: (pages * page_bytes) as u64,
            what: "the copy of a table",
            source,
        };
        let frames = memory(pages * page_bytes).map_err(failed)?;
        let states = memory(pages * STATE_BYTES).map_err(failed)?;
        let mut raw = RawTree { frames, states, page_bytes, pages, used: 0 };
        raw.add(pool, tree.root, None)?;
        Ok(raw)
    }

    /// Copies page `id` and its subtree; returns its frame.
    fn add(&mut self, pool: &Pool, id: PageId, above: Option<u8>) -> Result<usize> {
        let mut page = retry(id, || copy_node(&pool.read(id)?, above))?;
        let frame = self.used;
        if frame >= self.pages || page.len() != self.page_bytes {
            return Err(damaged_page(id, "not one of the nodes that were counted"));
        }
        self.used += 1;
        let node = Node::new(&page[..]);
        let level = node.level();
        if !node.is_leaf() {
            let offset_of = |index: usize| index.checked_sub(1).map_or(LEFTMOST, |slot| node.slot(slot).at());
            let children: Vec<_> = (0..=node.count()).map(|at| (offset_of(at), node.child_at(at))).collect();
            for (at, child) in children {
                let child = self.add(pool, child, Some(level))? as u64;
                page[at..at + 8].copy_from_slice(&child.to_le_bytes());
            }
        }
        self.view(frame).set_bytes(0, &page);
        // Marks the frame now, so that no measured get pays for it.
        self.latch(frame).mark();
        Ok(frame)
    }

    #[inline(always)]
    fn view(&self, frame: usize) -> Racy<'_> {
        let start = frame * self.page_bytes;
        Racy::new(self.frames.words(start..start + self.page_bytes))
    }

    #[inline(always)]
    fn latch(&self, frame: usize) -> Latch<'_> {
        let start = frame * STATE_BYTES;
        Latch(&self.states.words(start..start + STATE_BYTES)[0])
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Found>> {
        retry(PageId(ROOT as u64), || {
            let mut frame = ROOT;
            let mut seen = self.latch(frame).load();
            loop {
                let node = Node::new(self.view(frame));
                let validate = || if self.latch(frame).validate(seen) { Ok(()) } else { Err(Retry::Restart) };
                if node.is_leaf() {
                    return record_in(&node, key, validate);
                }
                let child = node.child_at(Seek::At(key).child_index(&node)).0 as usize;
                let next = self.latch(child).load();
                validate()?;
                if !next.is_marked() {
                    self.latch(child).mark();
                }
                (frame, seen) = (child, next);
            }
        })
    }
}
