//! Creates the files of an empty database.

use crate::error::{Error, Result};
use crate::ids::{SizeClass, Timestamp};
use crate::store::files::Files;
use crate::store::space::{Geometry as SpaceGeometry, SEGMENTS_MIN};
use crate::store::superblock::{Slots, Superblock};
use crate::wal::{FIRST_LSN, Geometry, LogHeader, Wal, read_header};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) uuid: [u8; 16],
    pub(crate) page_bytes: usize,
    pub(crate) segment_blocks: u64,
    /// Capacity of the log at its largest, and at first.
    pub(crate) log_max: u64,
    pub(crate) log_first: u64,
}

/// Writes the files of an empty database. The caller makes their names durable.
pub(crate) fn create(files: &Files, layout: &Layout) -> Result<()> {
    let largest = Geometry::new(layout.log_max)?;
    let ring = largest.starting_from(layout.log_first);
    Wal::create(&*files.log, &LogHeader { database: layout.uuid, timeline: 1, largest }, ring)?;
    let space = SpaceGeometry { segment_blocks: layout.segment_blocks };
    // Enough for the reserve and a few pages.
    let segments = SEGMENTS_MIN;
    let bytes = space.file_bytes(segments);
    files.pages.set_len(bytes).map_err(|source| Error::io("grow", files.pages.name(), None, source))?;
    let superblock = Superblock {
        uuid: layout.uuid,
        timeline: 1,
        sequence: 1,
        page_bytes: layout.page_bytes as u32,
        segment_blocks: layout.segment_blocks as u32,
        log_capacity: ring.capacity(),
        epoch: 1,
        epoch_start: FIRST_LSN,
        cut: FIRST_LSN,
        log_end: FIRST_LSN,
        highest_timestamp: Timestamp::NONE,
        page_ids_end: [1; SizeClass::COUNT],
        segments,
        life: 0,
        ring: None,
        directory: Default::default(),
    };
    Slots::create(files.pages.clone(), &superblock).map(|_| ())
}

/// Reads the superblock of a database, without any change.
///
/// # Errors
/// [`Error::Corrupt`] also for a page file without any superblock beside a log of this engine.
/// Without such a log: [`Error::NotADatabase`].
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

/// Whether the log file belongs to this engine, damaged or not.
fn begins_as_log(files: &Files) -> bool {
    !matches!(read_header(&*files.log), Err(Error::NotADatabase { .. } | Error::Io { .. }))
}
