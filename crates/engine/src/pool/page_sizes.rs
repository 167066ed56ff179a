//! What resizing needs of the buffers, the page file and write-back.

use std::sync::atomic::Ordering::Relaxed;

use super::buffer_pool::Pool;
use super::frames::partition::Partition;
use super::page_table::Location;
use super::resize::Writes;
use crate::error::{Error, Result};
use crate::ids::{PageId, SizeClass};

impl Writes for Pool {
    fn check_buffers(&self, class: SizeClass) -> Result<()> {
        let bytes = class.page_bytes();
        let staging = self.staging_bytes;
        let batch = self.images.batches.bytes();
        let segment = self.space.geometry().segment_blocks;
        // A longer image goes to a batch buffer and is decompressed there.
        let read = if class.is_for_values() { 2 * bytes } else { bytes };
        if bytes <= staging && read <= batch && class.blocks() <= segment {
            return Ok(());
        }
        let setting = if class.is_for_values() { "value_page_size_max" } else { "page_size_max" };
        Err(Error::Config(format!(
            "pages of {bytes} bytes in a database opened with {staging} bytes of staging and {batch} bytes for a batch of \
             reads, whose segments have {segment} blocks; open it with a {setting} of {bytes}, and with a larger budget"
        )))
    }

    fn mix_images(&self, largest: SizeClass) -> Result<()> {
        match self.space.mix(largest.blocks(), self.requests.is_recovering()) {
            // Such images exist already. Commits wait for room, and reads go on.
            Err(Error::Full { .. }) if self.requests.is_recovering() => Ok(()),
            other => other,
        }
    }

    // The next owner must know the class before it reads the log.
    fn announce(&self, class: SizeClass) -> Result<()> {
        self.requests.maintainer().announce(class)
    }

    // One staging buffer at a time, so that other threads get maintenance in between.
    fn write_dirty_from(&self, partition: Partition, first: u32) -> Result<()> {
        let mut index = first;
        while index < self.frames.backed(partition) {
            let most = self.staging_bytes / partition.class.page_bytes();
            let mut pages: Vec<PageId> = Vec::with_capacity(most);
            while pages.len() < most && index < self.frames.backed(partition) {
                let frame = partition.frame(index);
                let id = self.frames.header(frame).page();
                index += 1;
                // Of a page that is elsewhere, only an older copy is here, which can be dropped.
                let is_elsewhere = |at: Location| matches!(at, Location::Frame(other) if other != frame);
                if let Some(entry) = self.table.entry(id).filter(|_| !id.is_none())
                    && entry.latch().load().is_dirty()
                    && !is_elsewhere(entry.location())
                {
                    pages.push(id);
                }
            }
            // Recovery calls this without pages, before all classes are in use. A write could start
            // the cleaner, which does not know the image lengths yet.
            if pages.is_empty() {
                continue;
            }
            self.requests.maintainer().write_out(&pages)?;
        }
        self.meanwhile();
        Ok(())
    }

    fn clean(&self, class: SizeClass) -> Result<()> {
        self.requests.clean_frames(class.into(), true)
    }

    fn is_without_room(&self) -> bool {
        self.requests.without_room.load(Relaxed) > 0
    }
}
