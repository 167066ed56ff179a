//! Reads and writes of files with cached blocks.

use std::io;
use std::sync::Arc;

use terrace_io::{AlignedBuffer, BlockDevice};

use super::{FileCache, SMALL_BYTES};
use crate::counters::count;
use crate::extents::{Extents, extent_of, piece_end};
use crate::file_state::{Change, FileState};
use crate::lower::{ALIGNMENT, Bytes, Lower, read_lower};
use crate::planted::{MountBug, planted};
use crate::slow::{Used, through};

impl FileCache {
    /// Reads up to `size` bytes.
    pub fn read(
        &self,
        state: &FileState,
        lower: &Arc<dyn Lower>,
        offset: u64,
        size: usize,
    ) -> io::Result<Bytes> {
        let (first, pieces, full, part) = {
            let mut inner = state.lock();
            let is_trusted = self.is_trusted(state, &mut inner, &**lower)?;
            let bytes = inner.stamp.map_or(0, |stamp| stamp.bytes);
            let full = bytes - bytes % self.block_bytes;
            if !is_trusted || bytes < SMALL_BYTES || offset >= full {
                drop(inner);
                count(&self.counters.past, 1);
                return read_lower(&**lower, offset, size);
            }
            let end = (offset + size as u64).next_multiple_of(ALIGNMENT as u64).min(full);
            let first = offset - offset % ALIGNMENT as u64;
            let (mut pieces, mut at) = (Vec::with_capacity(2), first);
            while at < end {
                let next = piece_end(at, end);
                pieces.push((at, next, self.address(state, &mut inner, at)));
                at = next;
            }
            self.update_part(state, &mut inner);
            if inner.writers == 0 {
                self.record(state, &mut inner);
            }
            (first, pieces, full, inner.part)
        };
        let (from, mut is_cached) = ((offset - first) as usize, true);
        let mut buffer = AlignedBuffer::zeroed((from + size).next_multiple_of(ALIGNMENT));
        for (at, next, address) in pieces {
            let target = &mut buffer[(at - first) as usize..(next - first) as usize];
            let (outcome, used) = match address {
                Some(address) => {
                    through(Some(lower), part, (at, address), || self.cached.read_at(address, target))
                }
                None => (lower.read_at(at, target).map(drop), Used { was_read: true, ..Used::default() }),
            };
            is_cached &= !used.was_read && !used.was_missed;
            if outcome.is_err() {
                // The file shrank meanwhile or cannot be read: it says so itself.
                return read_lower(&**lower, offset, size);
            }
        }
        let mut to = from + size;
        if offset + size as u64 > full {
            let done = (full - first) as usize;
            let read = lower.read_at(full, &mut buffer[done..to])?;
            is_cached &= read == 0;
            to = done + read;
        }
        Ok(Bytes { buffer, from, to: to.max(from), is_cached })
    }

    /// Writes; returns the bytes written, perhaps fewer.
    pub fn write(
        &self,
        state: &FileState,
        lower: &Arc<dyn Lower>,
        offset: u64,
        bytes: &[u8],
    ) -> io::Result<usize> {
        let end = offset.saturating_add(bytes.len() as u64);
        let mut change = self.begin(state, &**lower)?;
        // The whole blocks; before and behind them are parts of blocks.
        let first = offset.next_multiple_of(self.block_bytes).min(end);
        let last = (end - end % self.block_bytes).max(first);
        if change.is_trusted && end > SMALL_BYTES && first < last {
            self.take_extents(state, &mut change, first, last);
        }
        let cuts = [(offset, first, false), (first, last, true), (last, end, false)];
        let (mut done, mut outcome) = (0, Ok(()));
        for (from, to, is_whole) in cuts.into_iter().filter(|(from, to, _)| from < to) {
            let part = &bytes[done..][..(to - from) as usize];
            let written = match is_whole {
                true => self.write_blocks(lower, &change, from, part),
                false => self.write_part(state, lower, &change.seen, from, part),
            };
            done += *written.as_ref().unwrap_or(&0);
            if done as u64 + offset < to {
                outcome = written.map(drop);
                break;
            }
        }
        self.finish(state, &**lower, &change, Some((offset, end)));
        match outcome {
            Err(error) if done == 0 => Err(error),
            _ => Ok(done),
        }
    }

    /// Takes the extents that a write needs.
    fn take_extents(&self, state: &FileState, change: &mut Change, offset: u64, end: u64) {
        let mut inner = state.lock();
        let mut at = offset;
        while at < end {
            // An extent that somebody took since the beginning stays a strange one.
            if let Some(extent) = extent_of(at)
                && inner.extents.0[extent] == change.seen.0[extent]
                && self.address(state, &mut inner, at).is_some()
            {
                change.seen.0[extent] = inner.extents.0[extent];
            }
            at = piece_end(at, end);
        }
        change.part = inner.part;
    }

    /// Writes less than a block.
    fn write_part(
        &self,
        state: &FileState,
        lower: &Arc<dyn Lower>,
        extents: &Extents,
        offset: u64,
        bytes: &[u8],
    ) -> io::Result<usize> {
        let written = lower.write_at(offset, bytes);
        if !planted(MountBug::KeepPartlyWritten) {
            self.drop_range(state, extents, offset, offset + bytes.len() as u64);
        }
        written
    }

    /// Writes whole blocks to the file and the cache.
    fn write_blocks(
        &self,
        lower: &Arc<dyn Lower>,
        change: &Change,
        offset: u64,
        bytes: &[u8],
    ) -> io::Result<usize> {
        let (mut done, end) = (0, offset + bytes.len() as u64);
        while done < bytes.len() {
            let at = offset + done as u64;
            let length = (piece_end(at, end) - at) as usize;
            let mut part = AlignedBuffer::zeroed(length);
            part.copy_from_slice(&bytes[done..done + length]);
            let written = match change.seen.address(at) {
                Some(address) => {
                    let write = || self.cached.write_at(address, &part);
                    let (_, used) = through(Some(lower), change.part, (at, address), write);
                    // Without a result the cache refused the write before the file had it.
                    used.written.unwrap_or_else(|| Err(io::ErrorKind::Other.into()))
                }
                None => lower.write_at(at, &part),
            };
            match written {
                Ok(count) => done += count,
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok(done),
            }
            if done as u64 + offset < piece_end(at, end) {
                break;
            }
        }
        Ok(done)
    }
}
