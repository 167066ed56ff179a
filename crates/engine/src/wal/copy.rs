//! Copying a stretch of the log into the file of another one: of a backup, or of a database that is restored from one.
//!
//! Records keep their LSNs, epochs and bytes, but for those that say where images are: the copy stands beside a page
//! file of its own, in which the places are others. They become no-ops of the same length.
//!
//! The copy goes by records, so that every one of them is held against its checksum on the way.

use std::sync::Arc;

use terrace_block::{AlignedBuffer, BlockDevice};

use super::record::{KIND_AT, checksum};
use super::{BLOCK, Geometry, Kind, LogScan, block_floor, scan};
use crate::error::{Error, Result};
use crate::ids::Lsn;

/// What is gathered before it is written, and copied by one step at the least.
const WINDOW_BYTES: u64 = 256 << 10;

/// A ring for a copy of the log from `from` to `to` and nothing else.
pub(crate) fn geometry_for(from: Lsn, to: Lsn) -> Result<Geometry> {
    let bytes = to.0.next_multiple_of(BLOCK).saturating_sub(block_floor(from.0));
    Geometry::new(bytes.max(super::layout::CAPACITY_MIN))
}

/// A copy under way.
pub(crate) struct LogCopy {
    records: LogScan,
    to: Lsn,
    target: Arc<dyn BlockDevice>,
    geometry: Geometry,
    window: AlignedBuffer,
    /// The LSN of the first byte in the window, a multiple of the block size.
    begins: u64,
    filled: usize,
}

impl LogCopy {
    /// Copies what `records` reads, from where it stands up to `to`, to the log file `target`, whose ring holds that much.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::Corrupt`] if the ring is too small.
    pub(crate) fn new(
        records: LogScan,
        to: Lsn,
        target: Arc<dyn BlockDevice>,
        geometry: Geometry,
    ) -> Result<Self> {
        let from = records.end();
        let begins = block_floor(from.0);
        if to < from || to.0.next_multiple_of(BLOCK) - begins > geometry.capacity() {
            let (capacity, name) = (geometry.capacity(), target.name().to_owned());
            let what = format!("a log of {capacity} bytes cannot hold what is between {from} and {to}");
            return Err(Error::corrupt(&name, None, what));
        }
        let window = scan::buffer(WINDOW_BYTES.min(geometry.capacity()) as usize)?;
        Ok(Self { records, to, target, geometry, window, begins, filled: (from.0 - begins) as usize })
    }

    /// Copies some more. Whether there is more to be copied after that.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the records end before they should, [`Error::Io`], [`Error::Full`].
    pub(crate) fn step(&mut self) -> Result<bool> {
        let Self { records, to, target, geometry, window, begins, filled } = self;
        let mut copied = 0;
        while copied < WINDOW_BYTES {
            let (from, file) = (records.end(), records.file().to_owned());
            if from == *to {
                // Up to the end of the block: what is behind the end must not look like a record.
                let blocks = filled.next_multiple_of(BLOCK as usize);
                window[*filled..blocks].fill(0);
                write(&**target, *geometry, *begins, &window[..blocks])?;
                (*begins, *filled) = (*begins + blocks as u64, 0);
                return Ok(false);
            }
            let Some(record) = records.next()?.filter(|record| record.end() <= *to) else {
                let what = format!("the log ends at {from}, but it was durable up to {to}");
                return Err(Error::corrupt(&file, None, what));
            };
            let mut silenced;
            let mut bytes = record.bytes();
            if matches!(record.kind(), Kind::Mapping | Kind::Chunk) {
                silenced = bytes.to_vec();
                silenced[KIND_AT] = Kind::Noop as u8;
                let check = checksum(&silenced);
                silenced[..4].copy_from_slice(&check.to_le_bytes());
                bytes = &silenced;
            }
            copied += bytes.len() as u64;
            while !bytes.is_empty() {
                let room = (window.len() - *filled).min(bytes.len());
                let (now, later) = bytes.split_at(room);
                window[*filled..*filled + room].copy_from_slice(now);
                (*filled, bytes) = (*filled + room, later);
                if *filled == window.len() {
                    write(&**target, *geometry, *begins, window)?;
                    (*begins, *filled) = (*begins + window.len() as u64, 0);
                }
            }
        }
        Ok(true)
    }
}

/// Writes whole blocks, around the end of the file if need be.
fn write(device: &dyn BlockDevice, geometry: Geometry, mut lsn: u64, mut blocks: &[u8]) -> Result<()> {
    while !blocks.is_empty() {
        let length = geometry.contiguous(lsn).min(blocks.len() as u64);
        let (part, rest) = blocks.split_at(length as usize);
        let offset = geometry.offset(lsn);
        device
            .write_at(offset, part)
            .map_err(|source| Error::io("write", device.name(), Some(offset), source))?;
        (lsn, blocks) = (lsn + length, rest);
    }
    Ok(())
}
