//! For measuring alone: a copy of a tree whose inner nodes name the frames of their children, not their pages.
//!
//! It answers what a get would cost without a page table, as with pointers swizzled for good: same nodes, same search, same
//! optimistic protocol, but a child is found at once where its parent says, and nothing has to be looked at before it. The
//! state words are an array of their own, as dense as can be: lines beside the frames cost a miss more at each level, and made
//! such a tree slower than the one with a page table. To have no page table is to move nothing: the copy knows of no
//! later change, and nothing of it is ever evicted.

use std::io;

use terrace_block::Region;

use super::edit::damaged_page;
use super::get::{Found, record_in};
use super::node::{LEFTMOST, Node};
use super::tree::{Seek, Tree, copy_node, retry};
use crate::buffer::latch::Latch;
use crate::buffer::view::Racy;
use crate::buffer::{Pool, Stop};
use crate::error::{Error, Result};
use crate::ids::PageId;

/// The copy.
#[derive(Debug)]
pub(crate) struct RawTree {
    frames: Region,
    /// A state word for each frame.
    states: Region,
    page_bytes: usize,
    /// Frames there are, and frames in use.
    pages: usize,
    used: usize,
}

/// Bytes of a state word.
const STATE_BYTES: usize = 8;
/// Memory comes in multiples of this.
const GRANULE_BYTES: usize = 4096;
/// The frame of the root.
const ROOT: usize = 0;

impl RawTree {
    /// Copies `tree`, which nobody changes meanwhile.
    pub(crate) fn of(pool: &Pool, tree: Tree) -> Result<RawTree> {
        let pages = tree.count_pages(pool)? as usize;
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

    /// Copies the page `id` and what is below it; the frame it is in.
    fn add(&mut self, pool: &Pool, id: PageId, above: Option<u8>) -> Result<usize> {
        let mut page = retry(id, || copy_node(&pool.read(id)?, above))?;
        let frame = self.used;
        if frame >= self.pages || page.len() != self.page_bytes {
            return Err(damaged_page(id, "not one of the nodes that were counted"));
        }
        self.used += 1;
        let node = Node::new(&page[..]);
        if !node.is_leaf() {
            let place = |index: usize| index.checked_sub(1).map_or(LEFTMOST, |slot| node.slot(slot).at());
            let children: Vec<_> = (0..=node.count()).map(|at| (place(at), node.child_at(at))).collect();
            for (at, child) in children {
                let child = self.add(pool, child, Some(node.level()))? as u64;
                page[at..at + 8].copy_from_slice(&child.to_le_bytes());
            }
        }
        self.view(frame).set_bytes(0, &page);
        // No get is to be the first.
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

    /// The record of `key`.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Found>> {
        retry(PageId(ROOT as u64), || {
            let mut frame = ROOT;
            let mut seen = self.latch(frame).load();
            loop {
                let node = Node::new(self.view(frame));
                let validate = || if self.latch(frame).validate(seen) { Ok(()) } else { Err(Stop::Restart) };
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
