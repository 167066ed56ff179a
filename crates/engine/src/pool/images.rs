//! Page images: reading, verification, decompression, buffers.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use terrace_cache::Cached;
use terrace_io::{BlockDevice, Read};

use super::buffers::Batches;
use super::read_buffer::{ImageBuffer, PageBuffer, ReadBuffers};
use super::reread::reread;
use super::resident::class_of_page;
use super::stats::PoolStats;
use crate::error::{Error, Result};
use crate::ids::{PageId, SizeClass};
use crate::store::mapping_word::{Extent, MappingWord};
use crate::store::{image, page};

/// Counts reads in flight until dropped.
struct InFlight<'p>(&'p PoolStats, u64);

impl InFlight<'_> {
    fn begin(stats: &PoolStats, pages: usize) -> InFlight<'_> {
        stats.reads_in_flight.fetch_add(pages as u64, Relaxed);
        InFlight(stats, pages as u64)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.reads_in_flight.fetch_sub(self.1, Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct Images {
    device: Arc<dyn BlockDevice>,
    /// The block cache, if the device is one.
    cache: Option<Arc<Cached>>,
    /// Buffers for batches and large pages.
    pub(crate) batches: Batches,
    /// Buffers for single pages, beyond what threads keep.
    read_buffers: ReadBuffers,
}

impl Images {
    pub(crate) fn new(device: Arc<dyn BlockDevice>, cache: Option<Arc<Cached>>, batches: Batches) -> Images {
        Images { device, cache, batches, read_buffers: ReadBuffers::default() }
    }

    pub(crate) fn file(&self) -> &str {
        self.device.name()
    }

    /// A buffer for an image and its page, nodes up to `largest`.
    pub(crate) fn read_buffer(&self, largest: SizeClass) -> PageBuffer<'_> {
        self.read_buffers.take(2 * largest.min(SizeClass::LARGEST_NODE).page_bytes())
    }

    /// A buffer for an image and its page. A large page gets a batch buffer, which may be waited
    /// for: the caller holds no latch, frame or such buffer.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub(crate) fn image_buffer(&self, class: SizeClass, largest: SizeClass) -> Result<ImageBuffer<'_>> {
        match class.is_for_values() {
            false => Ok(ImageBuffer::Own(self.read_buffer(largest))),
            true => self.batches.take_for_image().map(ImageBuffer::Lent),
        }
    }

    /// Does the reads of a batch. Each image, beginning at one of `starts`, is a request to the
    /// cache, though adjoining ones are one read.
    pub(crate) fn read_batch(&self, stats: &PoolStats, reads: &mut [Read<'_>], starts: &[u64]) {
        let in_flight = InFlight::begin(stats, starts.len());
        match &self.cache {
            Some(cache) => cache.read_batch_of(reads, starts),
            None => self.device.read_batch(reads),
        }
        drop(in_flight);
    }

    /// Reads and verifies the image of `id`; returns the page. `id` is in the page table. `buffer`
    /// is one of [`Images::image_buffer`].
    pub(crate) fn read<'b>(
        &self,
        stats: &PoolStats,
        id: PageId,
        mapped: MappingWord,
        buffer: &'b mut [u8],
    ) -> Result<&'b [u8]> {
        self.read_from(&*self.device, stats, id, mapped, buffer)
    }

    /// Like [`Images::read`], from the page file directly or through the cache.
    pub(crate) fn read_from<'b>(
        &self,
        device: &dyn BlockDevice,
        stats: &PoolStats,
        id: PageId,
        mapped: MappingWord,
        buffer: &'b mut [u8],
    ) -> Result<&'b [u8]> {
        let extent = mapped.extent().expect("only pages with an image are read");
        let page_bytes = class_of_page(id).page_bytes();
        let (image, page) = buffer[..2 * page_bytes].split_at_mut(page_bytes);
        let image = image.get_mut(..extent.bytes()).ok_or_else(|| {
            Error::corrupt(self.device.name(), Some(id.0), "the page table names more blocks than a page has")
        })?;
        self.read_at(device, stats, extent, image)?;
        self.verify_image(id, mapped, image)?;
        self.unpack(id, mapped, image, page)
    }

    /// `extent` is as long as `image`.
    pub(crate) fn read_blocks(&self, stats: &PoolStats, extent: Extent, image: &mut [u8]) -> Result<()> {
        self.read_at(&*self.device, stats, extent, image)
    }

    fn read_at(
        &self,
        device: &dyn BlockDevice,
        stats: &PoolStats,
        extent: Extent,
        image: &mut [u8],
    ) -> Result<()> {
        let in_flight = InFlight::begin(stats, 1);
        let read = device.read_at(extent.offset(), image);
        drop(in_flight);
        read.map_err(|source| Error::io("read", self.device.name(), Some(extent.offset()), source))?;
        stats.count_read(1, image.len());
        Ok(())
    }

    /// The page of a verified image, decompressed into `page` if necessary.
    pub(crate) fn unpack<'b>(
        &self,
        id: PageId,
        mapped: MappingWord,
        image: &'b [u8],
        page: &'b mut [u8],
    ) -> Result<&'b [u8]> {
        let page_bytes = class_of_page(id).page_bytes();
        image::unpack(image, page_bytes, page).map_err(|what| self.damaged(id, mapped, what))
    }

    pub(crate) fn damaged(&self, id: PageId, mapped: MappingWord, what: &str) -> Error {
        let offset = mapped.extent().map_or(0, |extent| extent.offset());
        Error::corrupt(self.device.name(), Some(id.0), format!("{what} (byte {offset} of the file)"))
    }

    /// Verifies an image. If it is damaged and there is a cache, replaces it by that of the page
    /// file, if intact.
    pub(crate) fn verify_image(&self, id: PageId, mapped: MappingWord, image: &mut [u8]) -> Result<()> {
        match page::verify_image(image, id, mapped) {
            Ok(_) => Ok(()),
            Err(what) => self.verify_past_cache(id, mapped, image, what),
        }
    }

    #[cold]
    fn verify_past_cache(&self, id: PageId, mapped: MappingWord, image: &mut [u8], what: &str) -> Result<()> {
        let offset = mapped.extent().map_or(0, |extent| extent.offset());
        let holds = |image: &[u8]| page::verify_image(image, id, mapped).is_ok();
        match reread(self.cache.as_deref(), self.device.name(), offset, image, holds)? {
            true => Ok(()),
            false => {
                Err(self.damaged(id, mapped, page::verify_image(image, id, mapped).err().unwrap_or(what)))
            }
        }
    }
}
