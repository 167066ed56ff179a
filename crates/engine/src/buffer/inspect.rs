//! Looking at a pool from outside: what it takes, which pages there are, whether their images are what was written.

use std::sync::atomic::Ordering::Relaxed;

use super::frames::HEADER_BYTES;
use super::pool::{Mode, Pool};
use crate::error::Result;
use crate::ids::PageId;

/// What a pool takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Footprint {
    pub(crate) frames: u64,
    pub(crate) frame_bytes: u64,
    pub(crate) page_table_bytes: u64,
    pub(crate) live_pages: u64,
    pub(crate) file_bytes: u64,
    /// Bytes of the images that count.
    pub(crate) live_bytes: u64,
}

impl Pool {
    /// Recovery is over: from now on the background work is done as `mode` says.
    pub(crate) fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }

    /// The name of the page file.
    pub(crate) fn file(&self) -> &str {
        self.device.name()
    }

    /// What it takes now.
    pub(crate) fn footprint(&self) -> Footprint {
        let frames = u64::from(self.frames.count());
        let ids = self.ids.lock();
        Footprint {
            frames,
            frame_bytes: frames * (self.page_bytes as u64 + HEADER_BYTES),
            page_table_bytes: ids.bytes(),
            live_pages: ids.used(),
            file_bytes: self.device.len(),
            live_bytes: self.space.live_bytes(),
        }
    }

    /// Makes the page file as long as makes this share of it live, and keeps it from growing beyond.
    #[cfg(test)]
    pub(crate) fn limit_to_fill(&self, fill: f64) -> Result<()> {
        self.space.limit_to_fill(fill)
    }

    /// Reads the durable image of `id`, if it has one, and holds it against everything that vouches for it.
    pub(crate) fn check_image(&self, id: PageId) -> Result<()> {
        match self.read_durable(id) {
            Ok(()) => Ok(()),
            // Or the place was used again meanwhile: that happens under this lock only.
            Err(_) => {
                let _upkeep = self.upkeep.lock();
                self.read_durable(id)
            }
        }
    }

    fn read_durable(&self, id: PageId) -> Result<()> {
        if !self.exists(id) {
            return Ok(());
        }
        let mapped = self.durable_state(id);
        if !mapped.has_image() {
            return Ok(());
        }
        self.stats.verified.fetch_add(1, Relaxed);
        self.read_image(id, mapped, &mut self.read_buffer()).map(drop)
    }
}
