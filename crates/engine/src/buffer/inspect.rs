//! Looking at a pool from outside: what it takes, which pages there are, whether their images are what was written.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::frames::HEADER_BYTES;
use super::pool::{Mode, Pool, class_of_page};
use super::stripe::Stripe;
use crate::backend::Backend;
use crate::error::Result;
use crate::ids::{ByClass, PageId, SizeClass};
use crate::stats::FrameClass;
use crate::store::place::PLACE_BYTES;

/// What a pool takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Footprint {
    /// Frames by the size of their pages, the smallest first.
    pub(crate) frames: Vec<FrameClass>,
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

    /// Bytes of a segment of the page file.
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.space.geometry().segment_places * PLACE_BYTES as u64
    }

    /// What it takes now.
    pub(crate) fn footprint(&self) -> Footprint {
        let ids = self.ids.lock();
        Footprint {
            frames: self.frames_by_class(),
            page_table_bytes: ids.bytes() + self.frames.tables_bytes(&ids.ends()),
            live_pages: ids.used(),
            file_bytes: self.device.len(),
            live_bytes: self.space.live_bytes(),
        }
    }

    /// The frames of each class in use.
    fn frames_by_class(&self) -> Vec<FrameClass> {
        let one = |class: SizeClass| {
            let (page_bytes, frames) = (class.page_bytes() as u64, u64::from(self.frames.count(class)));
            let count = |counts: &ByClass<AtomicU64>| counts[class.index()].load(Relaxed);
            FrameClass {
                page_bytes,
                frames,
                bytes: frames * (page_bytes + HEADER_BYTES),
                resident_bytes: self
                    .frames
                    .resident_bytes(class)
                    .saturating_sub(self.resident_in_middle(class)),
                huge_pages: self.frames.huge_pages(class),
                taken: self.stats.taken(class),
                gained: count(&self.stats.frames_gained),
                lost: count(&self.stats.frames_lost),
            }
        };
        self.frames.classes().map(one).collect()
    }

    /// Bytes of memory behind mapped pages of `class` that have a frame of the middle tier, which count with those in DRAM.
    fn resident_in_middle(&self, class: SizeClass) -> u64 {
        let stripe = Stripe::middle(class);
        if self.backend() == Backend::Frames || self.frames.count(stripe) == 0 {
            return 0;
        }
        let idle = self.free(stripe).lock().list.len() as u64;
        u64::from(self.frames.count(stripe)).saturating_sub(idle) * class.page_bytes() as u64
    }

    /// Makes the page file as long as makes this share of it live, and keeps it from growing beyond.
    #[cfg(test)]
    pub(crate) fn limit_to_fill(&self, fill: f64) -> Result<()> {
        self.space.limit_to_fill(fill)
    }

    /// Reads the durable image of `id` from the page file, if it has one, and holds it against everything that vouches for it. A copy in
    /// the cache proves nothing about the page file, and one that is damaged does no harm.
    pub(crate) fn check_image(&self, id: PageId) -> Result<()> {
        let mut buffer = self.image_buffer(class_of_page(id))?;
        match self.read_durable(id, &mut buffer) {
            Ok(()) => Ok(()),
            // Or the place was used again meanwhile: that happens under this lock only.
            Err(_) => {
                let _upkeep = self.upkeep.lock();
                self.read_durable(id, &mut buffer)
            }
        }
    }

    fn read_durable(&self, id: PageId, buffer: &mut [u8]) -> Result<()> {
        if !self.exists(id) {
            return Ok(());
        }
        let mapped = self.durable_state(id);
        if !mapped.has_image() {
            return Ok(());
        }
        self.stats.verified.fetch_add(1, Relaxed);
        self.read_image_from(self.slow(), id, mapped, buffer).map(drop)
    }
}
