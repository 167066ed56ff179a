//! Assembly: from what the analysis found to a pool, with every page at its place in the store and none in a frame.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64};

use parking_lot::{Mutex, RwLock};
use terrace_block::AlignedBuffer;

use super::analysis::{Analysis, Loser};
use crate::buffer::batch::Batches;
use crate::buffer::census::CensusPlace;
use crate::buffer::cleaner::LeftAlone;
use crate::buffer::create::PoolOptions;
use crate::buffer::frame_cost;
use crate::buffer::frames::Frames;
use crate::buffer::middle::MiddleTier;
use crate::buffer::page_ids::{PageIds, ids_below};
use crate::buffer::pool::{Bell, Pool, places_granted};
use crate::buffer::records::Records;
use crate::buffer::resize::FrameBudget;
use crate::buffer::stats::{Cause, PoolStats};
use crate::buffer::stripe::{ByStripe, Stripe};
use crate::buffer::sweep::FreeFrames;
use crate::buffer::table::Location;
use crate::buffer::upkeep::Upkeep;
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, SizeClass};
use crate::store::image::Packer;
use crate::store::place::PLACE_BYTES;
use crate::store::space::{Geometry as SpaceGeometry, Space};
use crate::store::superblock::{Slots, Superblock};
use crate::threads::Padded;
use crate::wal::Wal;

/// The error for memory of a tier that could not be had.
fn refused(what: &'static str, bytes: u64) -> impl Fn(io::Error) -> Error + Copy {
    move |source| match source.kind() {
        // What the system does not permit, or does not know, is not had for a smaller budget either.
        io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported => {
            Error::Config(format!("{what}: {source}"))
        }
        _ => Error::Memory { bytes, what, source },
    }
}

impl Analysis<'_> {
    /// The pool, the losers, oldest first, and the pages that the log allocates or frees, with when last.
    pub(super) fn into_pool(
        self,
        slots: Slots,
        superblock: Superblock,
        wal: Wal,
        options: &PoolOptions,
    ) -> Result<(Pool, Vec<Loser>, HashMap<PageId, Lsn>)> {
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
        let mut ids = PageIds::used_below(self.ids_end);
        // The lowest is to be taken first.
        for id in ids_below(self.ids_end).rev() {
            match self.table.entry(id).map(|entry| entry.location()) {
                Some(Location::Store(mapped)) => {
                    space.count(mapped.extent().expect("stored pages have an image"))?
                }
                _ if self.unwritten.contains(&id) => {}
                _ => ids.give_back(id),
            }
        }
        for (_, part) in self.mapping.chunks().iter().chain(self.mapping.blocks().iter()) {
            part.image.extent().map_or(Ok(()), |extent| space.count(extent))?;
        }
        space.settle(self.unwritten.iter().map(|&id| places_granted(id)).sum());
        let memory = |bytes: u64| refused("the DRAM tier", bytes);
        let bytes_max = options.frame_bytes_max.max(options.frame_bytes);
        let class = SizeClass::of_bytes(self.page_bytes as u64).expect("the superblock was checked");
        let budget = FrameBudget { bytes: options.frame_bytes, floor: options.frames_floor, taken: 0 };
        let middle = options.middle.as_ref().map(|middle| (class, middle.frames));
        let addresses = Frames::address_bytes(bytes_max, middle);
        let frames = Frames::reserve(bytes_max, middle, options.backend, options.pages_max)
            .map_err(refused("the addresses of the DRAM tier", addresses))?
            .on_nodes(&options.nodes, class)
            .map_err(memory(options.frame_bytes))?;
        // All of them are the database's own class's, until another is used.
        let count = (budget.for_frames(class) / frame_cost(class)) as u32;
        frames.grow(class, count).map_err(memory(u64::from(count) * self.page_bytes as u64))?;
        let records = Records::new(options.record_cache, self.page_bytes, count, frames.count_max(class))
            .map_err(refused("the record cache", options.frame_bytes))?;
        let mut free: ByStripe<FreeFrames> = std::array::from_fn(|index| {
            let stripe = Stripe::from_index(index).expect("there are as many");
            FreeFrames::none(stripe, budget.ghost_least(stripe.class), options.replacement)
        });
        free[Stripe::from(class).index()].gain(0..count);
        if let Some(middle) = &options.middle {
            let stripe = Stripe::middle(class);
            let bytes = u64::from(middle.frames) * self.page_bytes as u64;
            frames.grow(stripe, middle.frames).map_err(refused("the middle tier", bytes))?;
            free[stripe.index()].gain(0..middle.frames);
        }
        let seed = u64::from_le_bytes(superblock.uuid[..8].try_into().expect("eight bytes"));
        let staging_bytes = options.staging_bytes.next_multiple_of(self.page_bytes);
        let staging = AlignedBuffer::try_zeroed(staging_bytes).map_err(memory(staging_bytes as u64))?;
        let absorbed = wal.tail();
        let cut = superblock.cut;
        let pool = Pool {
            table: self.table,
            free: free.map(Mutex::new),
            frames,
            records,
            device: self.files.pages.clone(),
            cache: self.files.cache.clone(),
            space,
            wal: Arc::new(wal),
            page_bytes: self.page_bytes,
            log_capacity: superblock.log_capacity,
            ids: Mutex::new(ids),
            events: Mutex::new(Vec::new()),
            upkeep: Mutex::new(Upkeep {
                slots,
                superblock,
                mapping: self.mapping,
                staging,
                packer: Packer::default(),
                absorbed,
                left_alone: LeftAlone::default(),
                frames_taken: [0; _],
                cause: Cause::Checkpoint,
                hurried: false,
                moving: false,
                backup: None,
            }),
            bell: Bell::default(),
            read_buffers: Default::default(),
            batches: Batches::new(options.batch_bytes, self.page_bytes, options.batch_least),
            replacement: options.replacement,
            mode: options.mode,
            in_memory: options.in_memory,
            without_room: AtomicU64::new(0),
            is_tight: AtomicBool::new(false),
            stats: PoolStats::default(),
            recovery_floor: AtomicU64::new(cut.0),
            reserved_frames: Default::default(),
            log_line: Default::default(),
            highest_timestamp: Arc::new(Padded(AtomicU64::new(self.highest.0))),
            upkeep_runs: AtomicBool::new(false),
            unwritten: Mutex::new(self.unwritten),
            census: CensusPlace::default(),
            resizing: Mutex::new(budget),
            wanting: AtomicU32::new(0),
            middle: options.middle.as_ref().map(|middle| {
                MiddleTier::new(middle, options.middle_memory.clone(), options.time.clone(), class, seed)
            }),
            moving: RwLock::new(()),
            starving: AtomicU16::new(0),
        };
        let mut losers: Vec<Loser> = self.open.into_values().collect();
        losers.sort_unstable_by_key(|loser| loser.first);
        Ok((pool, losers, self.born))
    }
}
