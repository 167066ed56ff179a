//! What a pool lives on, what is fixed when a database is created, how much memory a pool may take; and the files of a
//! database that has nothing in it yet.

use std::sync::Arc;

use terrace_block::{BlockDevice, Cached, SimulatedMemory, Time};

use super::frames::Frames;
use super::middle::MiddleOptions;
use super::pool::{Mode, Pool};
use super::records::RecordCache;
use super::residency::NodeOptions;
use super::table::PageTable;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::ids::{SizeClass, Timestamp};
use crate::replacement::Replacement;
use crate::store::place::PLACE_BYTES;
use crate::store::space::{Geometry as SpaceGeometry, SEGMENTS_MIN};
use crate::store::superblock::{Slots, Superblock};
use crate::wal::{FIRST_LSN, Geometry, LogHeader, Wal, read_header};

/// The two files a pool lives on.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) pages: Arc<dyn BlockDevice>,
    pub(crate) log: Arc<dyn BlockDevice>,
    /// The cache that `pages` is, if it is one.
    pub(crate) cache: Option<Arc<Cached>>,
}

impl Files {
    pub(crate) fn new(pages: Arc<dyn BlockDevice>, log: Arc<dyn BlockDevice>) -> Files {
        Files { pages, log, cache: None }
    }

    /// The same with a cache before the page file.
    pub(crate) fn with_cache(self, cache: Arc<Cached>) -> Files {
        Files { pages: Arc::clone(&cache) as Arc<dyn BlockDevice>, cache: Some(cache), ..self }
    }

    /// The superblocks of the page file and the newest of them.
    pub(crate) fn superblocks(&self) -> Result<(Slots, Superblock)> {
        match &self.cache {
            Some(cache) => Slots::open_below(cache),
            None => Slots::open(self.pages.clone()),
        }
    }
}

/// What is fixed when a database is created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) uuid: [u8; 16],
    pub(crate) page_bytes: usize,
    pub(crate) segment_places: u64,
    pub(crate) log_capacity: u64,
}

/// How much memory the pool may take, and how it works.
#[derive(Clone, Debug)]
pub(crate) struct PoolOptions {
    /// Bytes for frames, with what is beside each, and for the buffers of their pages.
    pub(crate) frame_bytes: u64,
    /// The most there may ever be: addresses, no memory.
    pub(crate) frame_bytes_max: u64,
    /// Frames that each class of pages in use has at least, if there are several.
    pub(crate) frames_floor: u32,
    pub(crate) log_buffer_bytes: usize,
    pub(crate) staging_bytes: usize,
    /// Bytes of the buffers that several misses at a time are read into, two pages at least.
    pub(crate) batch_bytes: usize,
    /// One of those buffers has so many at least: where there may be pages above 64 KiB, two of the largest.
    pub(crate) batch_least: usize,
    /// Pages of the smallest class there may ever be, a multiple of 512; half as many of each larger one.
    pub(crate) pages_max: u64,
    pub(crate) store_bytes_max: u64,
    pub(crate) record_cache: RecordCache,
    pub(crate) backend: Backend,
    pub(crate) replacement: Replacement,
    /// The middle tier, if there is one.
    pub(crate) middle: Option<MiddleOptions>,
    /// What its memory costs, where it is simulated.
    pub(crate) middle_memory: Option<Arc<SimulatedMemory>>,
    /// The nodes that memory is on.
    pub(crate) nodes: NodeOptions,
    /// The time in which simulated memory is.
    pub(crate) time: Time,
    pub(crate) mode: Mode,
    /// Whether the files are written in memory only, where emptying segments gains nothing.
    pub(crate) in_memory: bool,
}

impl Pool {
    /// Bytes of addresses that a pool takes, most of which never get memory.
    pub(crate) fn address_bytes(options: &PoolOptions) -> u64 {
        let middle = options.middle.as_ref().map(|middle| (SizeClass::SMALLEST, middle.frames));
        let frames = Frames::address_bytes(options.frame_bytes_max.max(options.frame_bytes), middle);
        // Mapped pages have addresses by their ids, as many for each size that comes to be used.
        let mapped = match options.backend {
            Backend::Frames => 0,
            Backend::Mapped => SizeClass::COUNT as u64 * options.pages_max * PLACE_BYTES as u64,
        };
        PageTable::reserved_bytes(options.pages_max).saturating_add(frames).saturating_add(mapped)
    }

    /// Writes the files of a new, empty database. Their names are the caller's to make durable.
    pub(crate) fn create(files: &Files, layout: &Layout) -> Result<()> {
        let geometry = Geometry::new(layout.log_capacity)?;
        Wal::create(&*files.log, &LogHeader { database: layout.uuid, timeline: 1, geometry })?;
        let space = SpaceGeometry { segment_places: layout.segment_places };
        // Enough for the reserve and a few pages; it grows from there.
        let segments = SEGMENTS_MIN;
        let bytes = space.file_bytes(segments);
        files.pages.set_len(bytes).map_err(|source| Error::io("grow", files.pages.name(), None, source))?;
        let superblock = Superblock {
            uuid: layout.uuid,
            timeline: 1,
            sequence: 1,
            page_bytes: layout.page_bytes as u32,
            segment_places: layout.segment_places as u32,
            log_capacity: layout.log_capacity,
            epoch: 1,
            epoch_start: FIRST_LSN,
            cut: FIRST_LSN,
            log_end: FIRST_LSN,
            highest_timestamp: Timestamp::NONE,
            page_ids_end: [1; SizeClass::COUNT],
            segments,
            directory: Default::default(),
        };
        Slots::create(files.pages.clone(), &superblock).map(|_| ())
    }

    /// What a database's superblock says about it, read without changing anything.
    ///
    /// # Errors
    /// [`Error::Corrupt`] also for a page file without any superblock, if the log beside it is one of ours; without that it is no
    /// database.
    pub(crate) fn inspect(files: &Files) -> Result<Superblock> {
        let opened = files.superblocks().map_err(|error| match error {
            Error::NotADatabase { path, what } if begins_as_log(files) => {
                Error::corrupt(&path, None, format!("{what}, though its log is there"))
            }
            error => error,
        });
        let (slots, superblock) = opened?;
        if slots.is_other_torn() {
            let file = files.pages.name();
            tracing::warn!(file, "one of the two superblocks is torn or damaged; the other one counts");
        }
        Ok(superblock)
    }
}

/// Whether the log's file is one of this engine's, damaged or not.
fn begins_as_log(files: &Files) -> bool {
    !matches!(read_header(&*files.log), Err(Error::NotADatabase { .. } | Error::Io { .. }))
}
