//! The crash harness: a pool over a simulated disk, compared with a model.
//!
//! A random script works on the pool until some call of the disk cuts it off. Then the pool
//! recovers. Pages are raw cells without index or tables, so the harness tests only log, store,
//! pool and recovery. It checks:
//!
//! - every acknowledged transaction is whole; any others that survive are the oldest ones, each
//!   whole;
//! - an uncommitted transaction leaves nothing;
//! - exactly the expected pages exist, each block has one owner, and a closed loser never returns.
//!
//! | file           | contents                                             |
//! |----------------|------------------------------------------------------|
//! | `model.rs`     | the expected state                                   |
//! | `raw.rs`       | pages of cells: content, redo, undo                  |
//! | `life.rs`      | one life of a pool: random steps until the crash     |
//! | `meanwhile.rs` | what other threads do at yield points                |
//! | `cycle.rs`     | lives and crashes in turn, and the verdict           |
//! | `cached.rs`    | the page file behind a block cache                   |
//! | `persistent.rs`| scripts over a persistent middle tier                |
//! | `backup.rs`    | concurrent backups, cut off, and restored            |
//! | `tests.rs`     | the tests                                            |
//! | `ring.rs`      | scripts for the log's ring in persistent memory      |
//! | `full_log.rs`  | a log that is full when recovery begins               |
//! | `unsynced.rs`  | the log's device, which may drop its syncs           |
//! | `bugs.rs`      | the planted bugs, each of which must be caught       |

mod analysis;
mod backup;
mod bugs;
mod cached;
mod cycle;
mod full_log;
mod life;
mod meanwhile;
mod model;
mod persistent;
mod raw;
mod ring;
mod tests;
mod unsynced;

pub(crate) use meanwhile::{in_flight, play};
pub(crate) use unsynced::open_log;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use terrace_io::{Directory, OpenMode, PersistentKind, SimulatedDisk};

use crate::error::{Error, Result};
use crate::ids::SizeClass;
use crate::maintenance::Layout;
use crate::pool::persistent::PersistentSource;
use crate::pool::{
    BufferSizes, MiddleOptions, Mode, NodeOptions, PoolOptions, RecordCache, TierOptions, buffers_bytes,
    frame_bytes, frame_cost,
};
use crate::replacement::Replacement;
use crate::store::files::Files;
use crate::store::mapping_word::BLOCK_BYTES;
use crate::store::ring::{RING_AT, RingMemory};

/// Sizes of a run, small enough that everything wraps, fills and is reused.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    page_bytes: usize,
    other_page_bytes: Option<usize>,
    frames: u32,
    log_capacity: u64,
    /// Times that the log may double.
    log_doublings: u32,
    log_buffer: usize,
    store_segments: u64,
    staging_pages: usize,
    replacement: Replacement,
    /// Bytes of a ring in persistent memory, if the log has one.
    ring: Option<u64>,
    /// The middle tier; `None` leaves it to the environment.
    middle: Option<MiddleOptions>,
    /// Whether its frames are in a memory of the disk.
    persistent: bool,
}

/// Numbers of lives, different ones as from a generator.
static LIVES: AtomicU64 = AtomicU64::new(1);

const SEGMENT_PAGES: u64 = 8;
/// Range of frames in lives that resize.
const FRAMES_MIN: u32 = 12;
const FRAMES_MAX: u32 = 48;

fn class(page_bytes: usize) -> SizeClass {
    SizeClass::of_bytes(page_bytes as u64).expect("one of the sizes there are")
}

impl Sizes {
    fn segment_bytes(&self) -> u64 {
        SEGMENT_PAGES * self.page_bytes_max() as u64
    }

    fn page_bytes_max(&self) -> usize {
        self.page_bytes.max(self.other_page_bytes.unwrap_or(0))
    }

    fn other_class(&self) -> Option<SizeClass> {
        self.other_page_bytes.map(class)
    }

    /// Budget of `frames` frames, plus some for the other class.
    fn frame_bytes(&self, frames: u32) -> u64 {
        let own = frame_bytes(class(self.page_bytes), frames);
        let more = self.other_class().map_or(0, |other| {
            let frames = u64::from(FRAMES_MIN) * frame_cost(other);
            frames + buffers_bytes(class(self.page_bytes_max())) - buffers_bytes(class(self.page_bytes))
        });
        own + more
    }

    fn layout(&self) -> Layout {
        Layout {
            uuid: [7; 16],
            page_bytes: self.page_bytes,
            segment_blocks: self.segment_bytes() / BLOCK_BYTES as u64,
            log_max: self.log_capacity << self.log_doublings,
            log_first: self.log_capacity,
        }
    }

    /// Makes a larger mapped middle tier node memory, whose pages move.
    fn nodes(&self) -> NodeOptions {
        let is_mapped =
            !self.persistent && crate::Backend::of_environment().unwrap() == crate::Backend::Mapped;
        let moves = is_mapped && self.middle.is_some_and(|middle| middle.frames >= 8);
        NodeOptions { middle: moves.then(|| "0".parse().unwrap()), ..NodeOptions::default() }
    }

    /// Options of a pool on `disk`, whose middle tier may be persistent.
    ///
    /// Bodies are not checked: a checksum would mask a fence that is missing.
    fn options_on(&self, disk: &SimulatedDisk) -> PoolOptions {
        let mut options = self.options();
        options.tiers.persistent = self.persistent.then(|| PersistentSource {
            directory: Some(Arc::new(disk.clone())),
            file: "middle".to_owned(),
            kind: PersistentKind::Simulated,
            checks_bodies: false,
        });
        options
    }

    fn options(&self) -> PoolOptions {
        let page_bytes = self.page_bytes_max() as u64;
        PoolOptions {
            frame_bytes: self.frame_bytes(self.frames),
            frame_bytes_max: self.frame_bytes(FRAMES_MAX),
            frames_floor: FRAMES_MIN / 2,
            buffers: BufferSizes {
                log: self.log_buffer as u64,
                staging: self.staging_pages as u64 * page_bytes,
                batches: 8 * page_bytes,
                batch_least: 2 * page_bytes,
            },
            pages_max: 1024,
            hash: crate::config::hash_of_environment(),
            record_cache: RecordCache::Auto,
            store_bytes_max: self.store_segments * self.segment_bytes(),
            backend: match self.persistent {
                true => crate::Backend::Frames,
                false => crate::Backend::of_environment().unwrap(),
            },
            replacement: self.replacement,
            tiers: TierOptions {
                middle: self.middle.or_else(|| crate::middle::options_of_environment(class(self.page_bytes))),
                nodes: self.nodes(),
                ..TierOptions::default()
            },
            mode: Mode::Inline,
            in_memory: false,
            hints: true,
        }
    }
}

fn create(disk: &SimulatedDisk, sizes: &Sizes) {
    if let Some(bytes) = sizes.ring {
        disk.open_memory("ring", RING_AT as u64 + bytes, OpenMode::CreateNew).expect("room");
    }
    let open = |name| disk.open(name, OpenMode::CreateNew).expect("a new disk is empty");
    let files = Files::new(open("pages"), open("log"));
    crate::maintenance::create(&files, &sizes.layout()).expect("a new disk has room");
    disk.sync().expect("a new disk works");
}

fn open(disk: &SimulatedDisk) -> std::io::Result<Files> {
    let files = Files::new(disk.open("pages", OpenMode::Write)?, open_log(disk)?);
    Ok(files.with_life(LIVES.fetch_add(1, Relaxed)))
}

/// [`open`] with the ring that `sizes` has.
fn open_with_ring(disk: &SimulatedDisk, sizes: &Sizes) -> Result<Files> {
    let failed = |source| Error::io("open", "the disk", None, source);
    let files = open(disk).map_err(failed)?;
    let ring = |_| -> Result<Arc<RingMemory>> {
        let memory = disk.open_memory("ring", 0, OpenMode::Write).map_err(failed)?;
        Ok(Arc::new(RingMemory::new(memory, 5, None)?))
    };
    Ok(files.with_ring(sizes.ring.map(ring).transpose()?))
}
