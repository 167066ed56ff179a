//! Looking at a pool from outside: what it takes, which pages there are, whether their images are what was written.

use std::sync::atomic::Ordering::Relaxed;

use super::frames::HEADER_BYTES;
use super::pool::{Mode, Pool};
use super::table::{ENTRY_BYTES, Location};
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
            page_table_bytes: ids.end * ENTRY_BYTES + ids.free.capacity() as u64 * 8,
            live_pages: ids.end - 1 - ids.free.len() as u64,
            file_bytes: self.device.len(),
        }
    }

    /// All pages that exist, once everything freed is gone.
    pub(crate) fn existing(&self) -> Result<Vec<PageId>> {
        self.wal.flush_to(self.wal.tail())?;
        let mut upkeep = self.upkeep.lock();
        self.absorb(&mut upkeep);
        let end = self.ids.lock().end;
        Ok((1..end).map(PageId).filter(|&id| self.exists(id)).collect())
    }

    /// Reads the durable image of `id`, if it has one, and holds it against everything that vouches for it.
    pub(crate) fn check_image(&self, id: PageId) -> Result<()> {
        // The place cannot be used again meanwhile: that happens under this lock only.
        let _upkeep = self.upkeep.lock();
        let entry = self.table.entry(id).expect("pages that exist are within the table");
        if entry.location() == Location::Nowhere {
            return Ok(());
        }
        let mapped = self.durable_state(id);
        match mapped.place() {
            Some(_) => {
                self.stats.verified.fetch_add(1, Relaxed);
                self.read_image(id, mapped, &mut self.read_buffer())
            }
            None => Ok(()),
        }
    }
}
