//! Room in the page file for the changes of commits.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::flush::SPARE_SEGMENTS;
use crate::error::Result;
use crate::ids::SizeClass;
use crate::pool::Pool;
use crate::pool::requests::Requests;
use crate::store::space::{Space, Stream};

#[derive(Debug)]
pub(crate) struct Room {
    pub(super) pool: Arc<Pool>,
    pub(super) space: Arc<Space>,
    pub(super) requests: Arc<Requests>,
}

impl Room {
    /// Whether commits may go on, or must wait for room in the page file.
    ///
    /// A compressed page may grow until write-back finds no room for it, and then stays in its
    /// frame. Reads need clean frames, so above the fill limit at most half of the frames may be
    /// dirty. Changes also wait while nothing would be granted, or write-back finds no room.
    pub(crate) fn changes_find_room(&self) -> bool {
        if !self.requests.is_short_of_room() {
            return true;
        }
        let blocks = self.requests.without_room.load(Relaxed);
        let is_dirty = |frame: &u32| !self.pool.frames.header(*frame).rec_lsn().is_none();
        // The middle tier may be dirty completely: reads bypass it.
        let is_half_dirty = |class: SizeClass| {
            self.pool.frames.of(class.into()).filter(is_dirty).count()
                > self.pool.page_frames(class) as usize / 2
        };
        if self.pool.frames.classes().any(is_half_dirty) || self.keep_up().is_err() {
            return false;
        }
        let longest = self.pool.image_blocks_max();
        let lengths = vec![longest; blocks.div_ceil(longest) as usize];
        let found = self.space.finds_room(&lengths, SPARE_SEGMENTS, Stream::Changed);
        if found {
            self.requests.without_room.store(0, Relaxed);
        }
        found
    }

    pub(super) fn keep_up(&self) -> Result<()> {
        let kept_up = self.space.keep_up();
        self.requests.is_tight.store(!matches!(kept_up, Ok(true)), Relaxed);
        kept_up.map(drop)
    }

    /// Notes that write-back found no room for `blocks` blocks.
    pub(super) fn note_missing(&self, blocks: u64) {
        self.requests.without_room.store(blocks, Relaxed);
    }
}
