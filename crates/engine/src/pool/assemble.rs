//! Assembly of a pool after recovery, with all pages in the store.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::Mutex;

use super::budget::{FrameBudget, MiddleBudget};
use super::buffer_pool::Pool;
use super::buffers::Batches;
use super::cost::frame_cost;
use super::frames::Frames;
use super::frames::partition::{ByPartition, Partition};
use super::frames::persistent::PersistentFrames;
use super::hash_table::HashTable;
use super::images::Images;
use super::options::{HashOptions, PoolOptions};
use super::page_ids::PageIds;
use super::page_table::PageTable;
use super::record_cache::Records;
use super::replacement::{FreeFrames, Replacer};
use super::requests::Requests;
use super::resident::Resident;
use super::resize::Resizing;
use super::retry::Mode;
use super::stats::PoolStats;
use super::swips::Swips;
use super::tier::{MiddleOptions, MiddleTier};
use super::tiers::Tiers;
use super::verify_marks::MarksSlot;
use crate::error::{Error, Result};
use crate::ids::{SizeClass, Timestamp};
use crate::store::files::Files;
use crate::store::space::Space;
use crate::threads::Padded;
use crate::wal::Wal;

/// Parts of a new pool.
pub(crate) struct PoolParts<'f> {
    pub(crate) files: &'f Files,
    pub(crate) table: PageTable,
    pub(crate) ids: PageIds,
    pub(crate) space: Arc<Space>,
    pub(crate) wal: Arc<Wal>,
    pub(crate) requests: Arc<Requests>,
    pub(crate) page_bytes: usize,
    /// Bytes of the staging buffer of the layer above.
    pub(crate) staging_bytes: usize,
    /// The highest commit timestamp drawn.
    pub(crate) highest: Timestamp,
    /// Seed of random choices, so that runs repeat.
    pub(crate) seed: u64,
    /// The middle tier's frames, if they outlive the process.
    pub(crate) persistent: Option<PersistentFrames>,
}

/// The error for memory that a tier did not get.
pub(crate) fn refused(what: &'static str, bytes: u64) -> impl Fn(io::Error) -> Error + Copy {
    move |source| match source.kind() {
        // A smaller budget would not help: the system forbids the call or does not know it.
        io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported => {
            Error::Config(format!("{what}: {source}"))
        }
        _ => Error::Memory { bytes, what, source },
    }
}

/// Assembles a pool of `found`, with memory as `options` say.
pub(crate) fn assemble(found: PoolParts<'_>, options: &PoolOptions) -> Result<Pool> {
    let memory = |bytes: u64| refused("the DRAM tier", bytes);
    let bytes_max = options.frame_bytes_max.max(options.frame_bytes);
    let class = SizeClass::of_bytes(found.page_bytes as u64).expect("the superblock was checked");
    let is_persistent = found.persistent.is_some();
    let middle = options.tiers.middle.as_ref().map(|middle| MiddleBudget::of(middle, is_persistent));
    let budget = FrameBudget { bytes: options.frame_bytes, floor: options.frames_floor, taken: 0, middle };
    let counts = middle.map_or([0; _], |middle| middle.counts_max());
    let frames = Frames::reserve(bytes_max, &counts, options.backend, options.pages_max)
        .map_err(memory(bytes_max))?
        .on_nodes(&options.tiers.nodes)
        .map_err(memory(options.frame_bytes))?;
    let frames = match options.tiers.middle {
        Some(MiddleOptions { lines: Some(bytes), minis, .. }) => {
            frames.with_lines(class, bytes as usize, minis).map_err(memory(options.frame_bytes))?
        }
        _ => frames,
    };
    let frames = match found.persistent {
        Some(persistent) => frames.over(persistent).map_err(refused("the middle tier", 0))?,
        None => frames,
    };
    // The database's own class has all frames until another class is used.
    let count = (budget.for_frames(class) / frame_cost(class)) as u32;
    frames.grow(class, count).map_err(memory(u64::from(count) * found.page_bytes as u64))?;
    let mut table = found.table;
    if let Some(hash) = options.hash {
        let bytes = hash.bytes(found.ids.used()) + hash.swips_bytes();
        let hash = hash_table(hash, class, options.pages_max);
        hash.and_then(|hash| table.hashed(hash, found.ids.in_use()))
            .map_err(refused("the page table", bytes))?;
    }
    let records = Records::new(options.record_cache, found.page_bytes, count, frames.count_max(class))
        .map_err(refused("the record cache", options.frame_bytes))?;
    let mut free: ByPartition<FreeFrames> = std::array::from_fn(|index| {
        let partition = Partition::from_index(index).expect("there are as many");
        FreeFrames::none(partition, budget.ghost_least(partition.class), options.replacement)
    });
    free[Partition::from(class).index()].gain(count);
    if let Some(middle) = &options.tiers.middle {
        let partition = Partition::middle(middle.class);
        let bytes = u64::from(middle.frames) * middle.class.page_bytes() as u64;
        frames.grow(partition, middle.frames).map_err(refused("the middle tier", bytes))?;
        free[partition.index()].gain(middle.frames);
    }
    let tiers = Tiers {
        resident: Resident { table, frames, stats: PoolStats::default() },
        replacer: Replacer::new(free, options.replacement, class),
        middle: MiddleTier::new(&options.tiers, found.seed),
        requests: found.requests,
    };
    let sizes = options.buffers;
    let batches = Batches::new(sizes.batches as usize, found.page_bytes, sizes.batch_least as usize);
    Ok(Pool {
        tiers,
        images: Images::new(found.files.pages.clone(), found.files.cache.clone(), batches),
        records,
        device: found.files.pages.clone(),
        cache: found.files.cache.clone(),
        space: found.space,
        wal: found.wal,
        staging_bytes: found.staging_bytes,
        page_bytes: found.page_bytes,
        ids: Mutex::new(found.ids),
        is_background: AtomicBool::new(options.mode == Mode::Background),
        highest_timestamp: Arc::new(Padded(AtomicU64::new(found.highest.0))),
        verify_marks: MarksSlot::default(),
        resizing: Resizing::new(budget),
    })
}

fn hash_table(options: HashOptions, class: SizeClass, pages_max: u64) -> io::Result<HashTable> {
    let swips = |sizes| Swips::new(sizes, Partition::from(class).frame(0));
    let swips = options.swips.map_or_else(|| Ok(Swips::none()), swips)?;
    // Each class has half as many pages as the one before.
    HashTable::reserve(options.slots, 2 * pages_max, swips)
}
