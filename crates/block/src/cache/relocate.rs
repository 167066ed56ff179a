//! What somebody above does who moves bytes from one place of the slow device to another, as the cleaner of a log-structured
//! store does: nobody has asked for them, so nothing is admitted on the way, and what is cached follows.
//!
//! 1. [`Cached::read_past`] reads the bytes at the old place, from the slow device, and no policy hears of it.
//! 2. [`Cached::write_past`] writes them to the new place. What the cache had of that leaves, as with
//!    [`WriteMode::Around`](super::WriteMode); no policy hears of it either.
//! 3. [`Cached::relocate`] gives the blocks that are cached under the old place the name of the new one. No byte of the fast
//!    device is written; what the policy knows of their use stays.
//!
//! # Why nothing stale is served
//! While the cache runs: a slot is renamed if it is valid and its checksum is that of the bytes that were moved, and only if the
//! block of the new name has no slot and nobody is writing it. Its word changes, so that a reader who had found it under the old
//! name looks again.
//!
//! After a restart: the journal may have the old name, the new one, or, if both records are lost, what was there before. The
//! old name is true until that place is next written; the block has *left* its slot (`journal.rs`), so who writes it has the
//! journal written first, and who gives the slot bytes of that checksum again, too. The new name is put into the journal only now, after
//! the slow device has been written; so it is true if the process is killed, and if the power goes the mark of its region, which was
//! made before that write, counts.

use std::io;

use super::Cached;
use super::request::Starts;
use super::write::Writer;
use crate::device::{check_read, check_write};
use crate::{BlockDevice, Write};

impl Cached {
    /// As [`BlockDevice::read_at`], from the slow device, and nothing is admitted: for reads that say nothing about what will be
    /// read again, such as those of a backup or of a cleaner.
    ///
    /// # Errors
    /// As [`BlockDevice::read_at`].
    pub fn read_past(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        check_read(self.name(), self.alignment, self.length_for(offset, buffer.len()), offset, buffer)?;
        let blocks =
            offset >> self.block_shift..(offset + buffer.len() as u64).div_ceil(self.block_bytes() as u64);
        // What is to be written back is there before it is read.
        let _gate = if self.back.is_on() { Some(self.gate(blocks)?) } else { None };
        self.slow.read_at(offset, buffer)
    }

    /// As [`BlockDevice::write_at`], but nothing is admitted, and what is cached of the range leaves.
    ///
    /// # Errors
    /// As [`BlockDevice::write_at`].
    pub fn write_past(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        check_write(self.name(), self.alignment, self.length_for(offset, bytes.len()), offset, bytes)?;
        let write = [Write::new(offset, bytes)];
        self.write_ranges(Writer::Mover, &write, Starts::default(), || self.slow.write_at(offset, bytes))
    }

    /// `bytes`, which are at `from`, have been written to `to`, too, by [`Cached::write_past`]. Whole blocks that are cached under
    /// the old place are from now on those of the new one. Where the places lie differently in their blocks nothing happens.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use terrace_block::{AlignedBuffer, BlockDevice, CacheConfig, Cached, MemoryDevice};
    ///
    /// let slow = Arc::new(MemoryDevice::new("database", 1 << 20));
    /// let cached = Cached::open(slow, Arc::new(MemoryDevice::new("cache", 0)), CacheConfig::new(64))?;
    /// let mut page = AlignedBuffer::zeroed(4096);
    /// cached.read_at(8192, &mut page)?; // is cached now
    /// cached.write_past(40960, &page)?;
    /// cached.relocate(8192, 40960, &page);
    /// cached.read_at(40960, &mut page)?;
    /// assert_eq!((cached.stats().hits, cached.stats().relocations), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn relocate(&self, from: u64, to: u64, bytes: &[u8]) {
        let mask = self.block_bytes() as u64 - 1;
        if self.is_out_of_service() || (from ^ to) & mask != 0 {
            return;
        }
        let before = (from.wrapping_neg() & mask) as usize;
        let (from, to) = (from.div_ceil(mask + 1), to.div_ceil(mask + 1));
        let blocks = bytes.get(before..).unwrap_or(&[]).chunks_exact(self.block_bytes());
        let cached: Vec<_> = (from..)
            .zip(to..)
            .zip(blocks)
            .filter(|&((from, to), _)| {
                self.is_whole(to) && self.index.find(from).is_some() && !self.is_in_doubt(to)
            })
            .map(|((from, to), bytes)| (from, to, super::checksum(bytes)))
            .collect();
        if cached.is_empty() {
            return;
        }
        let mut placement = self.placement.lock();
        // Those that wait here are of the old names.
        placement.hits(&self.index, &mut self.recent.lane().waiting());
        for (from, to, sum) in cached {
            if placement.rename(&self.index, from, self.access(to, false), sum) {
                self.counters.relocations.add(1);
            }
        }
        drop(placement);
        self.write_journal_if_due();
    }
}
