//! Copies a range of the log into another log file.
//!
//! Backup and restore use it. Records keep their LSNs, epochs and bytes. Records that name image
//! locations become no-ops of the same length: the copy belongs to another page file. The copy
//! verifies every record's checksum.

use std::sync::Arc;

use terrace_io::{AlignedBuffer, BlockDevice};

use super::layout::Geometry;
use super::record::{KIND_AT, Kind, checksum};
use super::scan::{self, LogScan};
use super::units::{BLOCK, block_floor};
use crate::error::{Error, Result};
use crate::ids::Lsn;

/// Bytes gathered before a write, and the least that one step copies.
const WINDOW_BYTES: u64 = 256 << 10;

/// A ring for a copy of the log from `from` to `to` only.
pub(crate) fn geometry_for(from: Lsn, to: Lsn) -> Result<Geometry> {
    let bytes = to.0.next_multiple_of(BLOCK).saturating_sub(block_floor(from.0));
    Geometry::new(bytes.max(super::layout::CAPACITY_MIN))
}

pub(crate) struct LogCopy {
    records: LogScan,
    to: Lsn,
    target: Arc<dyn BlockDevice>,
    geometry: Geometry,
    window: AlignedBuffer,
    /// LSN of the window's first byte, a multiple of the block size.
    begins: u64,
    filled: usize,
}

impl LogCopy {
    /// Copies from the position of `records` up to `to`, into `target`. The target's ring must hold
    /// that much.
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

    /// Copies some more; returns whether anything remains.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the records end too early, [`Error::Io`], [`Error::Full`].
    pub(crate) fn step(&mut self) -> Result<bool> {
        let Self { records, to, target, geometry, window, begins, filled } = self;
        let mut copied = 0;
        while copied < WINDOW_BYTES {
            let (from, file) = (records.end(), records.file().to_owned());
            if from == *to {
                // Zeros up to the end of the block: nothing behind the end may look like a record.
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

/// Writes whole blocks, across the end of the file if needed.
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
