//! More frames, or fewer, while others work.
//!
//! Frames come and go at the end of their range. **Growing** puts memory behind the new ones, as an error where there
//! is none, and then gives them out. **Shrinking** goes the other way round:
//!
//! 1. The limit is set: frames from there on are not given out any more, and those that were free are *parked*.
//! 2. The pages in them are written, if they are dirty, and evicted, however hot they are; a frame that is given back
//!    is parked. This is repeated until all are parked: a page may be latched just now, or a frame be in the hands of
//!    who is about to load or make a page. Nobody holds either for longer than a write of the log takes; the wait is
//!    bounded all the same.
//! 3. Their memory is given back, and only then are there fewer frames.
//!
//! An optimistic reader may still look at a frame that is gone. Its page was evicted, which moved the version before
//! the memory went: what it reads, old bytes or zeros, it finds invalid. That it reads takes no memory
//! (`terrace_block::Region`), and nobody writes: contents and headers of frames are written under the latch of the page
//! in them, or by whom the frame was given to.
//!
//! Lock order: `resizing` comes before all others of the pool.

use std::time::Duration;

use super::pool::Pool;
use super::sweep::Evicted;
use crate::error::{Error, Result};
use crate::ids::PageId;

/// Rounds over the frames that are to go before it is given up, and how long lies between two that got nowhere.
const ROUNDS_MAX: u32 = 4000;
const PAUSE: Duration = Duration::from_millis(1);

impl Pool {
    /// Makes it `count` frames, at most as many as there are addresses for. Others may work meanwhile; the caller holds no latch.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::OutOfFrames`] if pages above `count` stay in use, or what writing them met; there
    /// are as many frames as before.
    pub(crate) fn resize(&self, count: u32) -> Result<()> {
        let _turn = self.resizing.lock();
        if count >= self.frames.count() { self.grow(count) } else { self.shrink(count) }
    }

    /// Frames there are.
    pub(crate) fn frames(&self) -> u32 {
        self.frames.count()
    }

    fn grow(&self, count: u32) -> Result<()> {
        let old = self.frames.count();
        let bytes = u64::from(count - old) * self.page_bytes as u64;
        self.frames.grow(count).map_err(|source| Error::Memory { bytes, what: "more frames", source })?;
        let mut free = self.free.lock();
        free.limit = count;
        free.queues.resize(count);
        free.list.extend((old..count).rev());
        Ok(())
    }

    fn shrink(&self, count: u32) -> Result<()> {
        self.free.lock().keep_back(count);
        let emptied = self.empty_from(count).and_then(|()| {
            let bytes = u64::from(self.frames.count() - count) * self.page_bytes as u64;
            let what = "giving frames back";
            self.frames.shrink(count).map_err(|source| Error::Memory { bytes, what, source })
        });
        let mut free = self.free.lock();
        match emptied {
            Ok(()) => {
                free.parked = Vec::new();
                free.queues.resize(count);
            }
            Err(_) => free.keep_nothing_back(self.frames.count()),
        }
        emptied
    }

    /// Empties all frames from `first` on, which are not given out any more.
    fn empty_from(&self, first: u32) -> Result<()> {
        let gone = (self.frames.count() - first) as usize;
        let mut parked = 0;
        for _ in 0..ROUNDS_MAX {
            self.write_dirty_from(first)?;
            self.meanwhile();
            for frame in first..self.frames.count() {
                if let Evicted::Yes = self.evict_from(frame) {
                    self.give_frame(frame);
                }
            }
            let now = self.free.lock().parked.len();
            if now == gone {
                return Ok(());
            }
            if now == parked {
                std::thread::sleep(PAUSE);
            }
            parked = now;
        }
        Err(Error::OutOfFrames {
            what: format!("{} of the {gone} frames to be given back stay in use", gone - parked),
        })
    }

    /// Writes the dirty pages in frames from `first` on, a staging buffer full at a time, so that others who need the
    /// upkeep get their turn.
    fn write_dirty_from(&self, first: u32) -> Result<()> {
        let mut frame = first;
        while frame < self.frames.count() {
            let mut upkeep = self.upkeep.lock();
            let most = self.staging_pages(&upkeep);
            let mut pages: Vec<PageId> = Vec::with_capacity(most);
            while pages.len() < most && frame < self.frames.count() {
                let id = self.frames.header(frame).page();
                frame += 1;
                if let Some(entry) = self.table.entry(id).filter(|_| !id.is_none())
                    && entry.latch().load().is_dirty()
                {
                    pages.push(id);
                }
            }
            self.write_back(&mut upkeep, &pages)?;
            // Each batch logs where its images are, and inline nobody else cuts the log.
            self.checkpoint_step(&mut upkeep)?;
        }
        Ok(())
    }
}
