//! The page file, read and written in pieces.
//!
//! A disk serves transfers nearly in sequence. Behind a read of 2 MiB a small commit waits for two
//! milliseconds, behind 64 KiB for tens of microseconds (`docs/decisions/0011-pieces.md`). So
//! maintenance has one short transfer in flight, and a longer one only while a thread waits.
//! Durability does not depend on pieces: one sync follows the whole batch, and the mapping record
//! follows the sync.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use terrace_cache::Cached;
use terrace_io::{AlignedBuffer, BlockDevice};

use crate::error::{Error, Result};
use crate::ids::SizeClass;
use crate::planted::{Bug, planted};
use crate::pool::Pool;
use crate::store::image::Packer;
use crate::store::mapping_word::{BLOCK_BYTES, Extent};
use crate::store::space::Space;

/// The longest transfer while no thread waits. Tests have short segments.
const PIECE_BYTES: usize = if cfg!(test) { 8 << 10 } else { 64 << 10 };
/// The longest transfer while a thread waits.
const PIECE_BYTES_URGENT: usize = if cfg!(test) { 12 << 10 } else { 256 << 10 };

#[derive(Debug)]
pub(crate) struct Staging {
    pub(crate) bytes: AlignedBuffer,
    pub(super) packer: Packer,
    pub(super) urgent: bool,
    /// Whether images move within the file. Such a move is no reason to cache an image.
    pub(super) moving: bool,
}

impl Staging {
    pub(crate) fn new(bytes: AlignedBuffer) -> Staging {
        Staging { bytes, packer: Packer::default(), urgent: false, moving: false }
    }
}

#[derive(Debug)]
pub(crate) struct PageFile {
    pub(super) pool: Arc<Pool>,
    pub(super) space: Arc<Space>,
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) cache: Option<Arc<Cached>>,
}

impl PageFile {
    pub(super) fn name(&self) -> &str {
        self.device.name()
    }

    /// Blocks to examine at once: at least the longest image.
    pub(super) fn piece_blocks(&self, staging: &Staging) -> u64 {
        self.transfer_blocks(staging).max(self.pool.image_blocks_max())
    }

    fn transfer_blocks(&self, staging: &Staging) -> u64 {
        let urgent = staging.urgent
            || self.pool.requests.works_inline()
            || self.pool.requests.wake_up.state.lock().urgent;
        let bytes = if urgent { PIECE_BYTES_URGENT } else { PIECE_BYTES };
        ((bytes / BLOCK_BYTES) as u64).max(self.pool.image_blocks_max().min(SizeClass::LARGEST_NODE.blocks()))
    }

    /// The page file without its cache, for reads that predict no later read.
    pub(crate) fn slow(&self) -> &dyn BlockDevice {
        self.cache.as_ref().map_or(&*self.device, |cache| cache.slow())
    }

    pub(super) fn free_blocks(&self, extent: Extent) {
        if let Some(cache) = &self.cache {
            cache.free(extent.offset(), extent.bytes() as u64);
        }
        self.space.free(extent);
    }

    /// Writes staged bytes from `at` on to `blocks`. Each of the ascending `starts` begins a
    /// request to the cache.
    pub(super) fn write_pieces(
        &self,
        staging: &Staging,
        mut at: usize,
        blocks: Extent,
        starts: &[u64],
    ) -> io::Result<()> {
        let mut first = blocks.first;
        while first < blocks.end() {
            let piece = Extent { first, blocks: self.transfer_blocks(staging).min(blocks.end() - first) };
            let bytes = &staging.bytes[at..at + piece.bytes()];
            match &self.cache {
                Some(cache) if staging.moving => cache.write_past(piece.offset(), bytes)?,
                Some(cache) => cache.write_of(piece.offset(), bytes, starts)?,
                None => self.device.write_at(piece.offset(), bytes)?,
            }
            (at, first) = (at + piece.bytes(), piece.end());
        }
        Ok(())
    }

    pub(super) fn read_pieces(&self, staging: &mut Staging, mut at: usize, blocks: Extent) -> io::Result<()> {
        let mut first = blocks.first;
        while first < blocks.end() {
            let piece = Extent { first, blocks: self.transfer_blocks(staging).min(blocks.end() - first) };
            self.slow().read_at(piece.offset(), &mut staging.bytes[at..at + piece.bytes()])?;
            (at, first) = (at + piece.bytes(), piece.end());
        }
        Ok(())
    }

    pub(super) fn write_staged(&self, staging: &Staging, extents: &[Extent]) -> Result<()> {
        // A mapping record whose flush failed may be durable, so its extents must not change. A
        // closed database may have another owner.
        self.pool.check()?;
        let bytes: usize = extents.iter().map(|extent| extent.bytes()).sum();
        self.pool.stats.store_written_bytes.fetch_add(bytes as u64, Relaxed);
        let mut at = 0;
        let written = extents.chunk_by(|one, next| one.end() == next.first).try_for_each(|run| {
            let blocks = run.iter().map(|extent| extent.blocks).sum();
            let starts: Vec<u64> = run.iter().map(|extent| extent.offset()).collect();
            let run = Extent { first: run[0].first, blocks };
            self.write_pieces(staging, at, run, &starts)?;
            at += run.bytes();
            Ok(())
        });
        let offset = extents.first().map(|extent| extent.offset());
        let written = written.map_err(|source| Error::io("write", self.device.name(), offset, source));
        written.inspect_err(|error| {
            if !matches!(error, Error::Full { .. }) {
                // After a lost write the device cannot be trusted with the next ones
                // (docs/durability.md, rule 14).
                self.pool.wal().poison(&error.to_string());
            }
        })
    }

    /// Makes the page file durable.
    pub(super) fn sync_store(&self) -> Result<()> {
        if planted(Bug::SkipStoreSync) {
            return Ok(());
        }
        self.pool.stats.store_syncs.fetch_add(1, Relaxed);
        self.device.sync().map_err(|source| {
            let error = Error::io("sync", self.device.name(), None, source);
            // The state of the disk is unknown: a later successful sync would prove nothing.
            self.pool.wal().poison(&error.to_string());
            error
        })
    }
}
