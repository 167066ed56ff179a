//! Assembly: from what the analysis found to a pool, with every page at its place in the store and none in a frame.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use parking_lot::Mutex;
use terrace_block::AlignedBuffer;

use super::analysis::{Analysis, Loser};
use crate::buffer::batch::Batches;
use crate::buffer::census::CensusPlace;
use crate::buffer::create::PoolOptions;
use crate::buffer::frames::Frames;
use crate::buffer::pool::{Bell, PageIds, Pool};
use crate::buffer::records::Records;
use crate::buffer::stats::{Cause, PoolStats};
use crate::buffer::sweep::FreeFrames;
use crate::buffer::table::Location;
use crate::buffer::upkeep::Upkeep;
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId};
use crate::store::image::Packer;
use crate::store::place::{PLACE_BYTES, places_of};
use crate::store::space::{Geometry as SpaceGeometry, Space};
use crate::store::superblock::{Slots, Superblock};
use crate::threads::Padded;
use crate::wal::Wal;

impl Analysis<'_> {
    /// The pool, the losers, oldest first, and the pages that the log allocates or frees, with when last.
    pub(super) fn into_pool(
        self,
        slots: Slots,
        superblock: Superblock,
        wal: Wal,
        options: &PoolOptions,
    ) -> Result<(Pool, Vec<Loser>, HashMap<u64, Lsn>)> {
        let geometry = SpaceGeometry { segment_places: self.segment_places };
        // The file may be longer than the superblock knows; shorter it must not be.
        let held = self.files.pages.len().saturating_sub(geometry.file_bytes(0))
            / (PLACE_BYTES as u64 * self.segment_places);
        if held < self.segments {
            return Err(Error::corrupt(
                self.files.pages.name(),
                None,
                "the page file is shorter than its superblock says",
            ));
        }
        let space = Space::new(self.files.pages.clone(), geometry, held, options.store_bytes_max);
        let mut free_ids = Vec::new();
        for id in (1..self.ids_end).rev() {
            match self.table.entry(PageId(id)).map(|entry| entry.location()) {
                Some(Location::Store(mapped)) => {
                    space.count(mapped.extent().expect("stored pages have an image"))?
                }
                _ if self.unwritten.contains(&id) => {}
                _ => free_ids.push(id),
            }
        }
        let images = self.mapping.chunks.iter().map(|chunk| chunk.image);
        for image in images.chain(self.mapping.blocks.iter().map(|block| block.image)) {
            image.extent().map_or(Ok(()), |extent| space.count(extent))?;
        }
        space.settle(self.unwritten.len() as u64 * places_of(self.page_bytes));
        let memory = |bytes: u64| move |source| Error::Memory { bytes, what: "the DRAM tier", source };
        let frame_bytes = u64::from(options.frames) * self.page_bytes as u64;
        let frames =
            Frames::new(options.frames, options.frames_max, self.page_bytes).map_err(memory(frame_bytes))?;
        let records = Records::new(options.record_cache, self.page_bytes, options.frames, options.frames_max)
            .map_err(memory(0))?;
        let staging_bytes = options.staging_bytes.next_multiple_of(self.page_bytes);
        let staging = AlignedBuffer::try_zeroed(staging_bytes).map_err(memory(staging_bytes as u64))?;
        let absorbed = wal.tail();
        let cut = superblock.cut;
        let pool = Pool {
            table: self.table,
            free: Mutex::new(FreeFrames::all(options.frames)),
            frames,
            records,
            device: self.files.pages.clone(),
            space,
            wal: Arc::new(wal),
            page_bytes: self.page_bytes,
            log_capacity: superblock.log_capacity,
            ids: Mutex::new(PageIds { free: free_ids, end: self.ids_end }),
            events: Mutex::new(Vec::new()),
            upkeep: Mutex::new(Upkeep {
                slots,
                superblock,
                mapping: self.mapping,
                staging,
                packer: Packer::new(self.page_bytes),
                absorbed,
                stubborn: HashMap::new(),
                frames_taken: 0,
                cause: Cause::Checkpoint,
                hurried: false,
                backup: None,
            }),
            bell: Bell::default(),
            batches: Batches::new(options.batch_pages),
            mode: options.mode,
            in_memory: options.in_memory,
            without_room: AtomicUsize::new(0),
            is_tight: AtomicBool::new(false),
            stats: PoolStats::default(),
            recovery_floor: AtomicU64::new(cut.0),
            highest_timestamp: Arc::new(Padded(AtomicU64::new(self.highest.0))),
            upkeep_runs: AtomicBool::new(false),
            unwritten: Mutex::new(self.unwritten),
            census: CensusPlace::default(),
            resizing: Mutex::new(()),
        };
        let mut losers: Vec<Loser> = self.open.into_values().collect();
        losers.sort_unstable_by_key(|loser| loser.first);
        Ok((pool, losers, self.born))
    }
}
