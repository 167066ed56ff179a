//! Moving data on the slow device, as the cleaner of a log-structured store does.
//!
//! [`Cached::read_past`] and [`Cached::write_past`] copy the data, unseen by the policy. Then
//! [`Cached::relocate`] renames cached blocks, without writing slots.
//!
//! While the cache runs, a slot is renamed only if it is valid and has the moved bytes' checksum.
//! The new block must have neither slot nor writer. The word changes, so concurrent readers look
//! again.
//!
//! After a restart the journal may have the old name, the new one, or neither. The old name is true
//! until that location is written, and since the block has *left* (`journal.rs`), the journal is
//! written before. The new name is recorded after the slow device was written, so it is true after
//! a kill. After a power cut, the mark of its region counts, made before that write.

use std::io;

use super::Cached;
use super::checksum::checksum;
use super::request::Starts;
use super::write::Writer;
use terrace_io::Write;

impl Cached {
    /// Like [`BlockDevice::read_at`](terrace_io::BlockDevice::read_at), from the slow device alone.
    ///
    /// Nothing is admitted. For reads that predict no further use, such as those of a backup or a
    /// cleaner.
    ///
    /// # Errors
    /// As [`BlockDevice::read_at`](terrace_io::BlockDevice::read_at).
    pub fn read_past(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.blocks.check_read(offset, buffer)?;
        let blocks = offset >> self.blocks.shape.block_shift
            ..(offset + buffer.len() as u64).div_ceil(self.blocks.shape.block_bytes() as u64);
        // Dirty blocks of the range are written back first.
        let _gate = if self.back.is_on() { Some(self.back.gate(blocks)?) } else { None };
        self.blocks.slow.read_at(offset, buffer)
    }

    /// Like [`BlockDevice::write_at`](terrace_io::BlockDevice::write_at), without admissions.
    ///
    /// Cached blocks of the range leave.
    ///
    /// # Errors
    /// As [`BlockDevice::write_at`](terrace_io::BlockDevice::write_at).
    pub fn write_past(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.blocks.check_write(offset, bytes)?;
        let write = [Write::new(offset, bytes)];
        self.writes.write_ranges(Writer::Mover, &write, Starts::default(), || {
            self.blocks.slow.write_at(offset, bytes)
        })
    }

    /// Renames cached blocks after [`Cached::write_past`] copied `bytes` from `from` to `to`.
    ///
    /// Only whole blocks move, and none if the two offsets lie differently in their blocks.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use terrace_cache::{CacheConfig, Cached};
    /// use terrace_io::{AlignedBuffer, BlockDevice, MemoryDevice};
    ///
    /// let slow = Arc::new(MemoryDevice::new("database", 1 << 20));
    /// let fast = Arc::new(MemoryDevice::new("cache", 0));
    /// let cached = Cached::open(slow, fast, CacheConfig::new(64))?;
    /// let mut page = AlignedBuffer::zeroed(4096);
    /// cached.read_at(8192, &mut page)?; // is cached now
    /// cached.write_past(40960, &page)?;
    /// cached.relocate(8192, 40960, &page);
    /// cached.read_at(40960, &mut page)?;
    /// assert_eq!((cached.stats().hits, cached.stats().relocations), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn relocate(&self, from: u64, to: u64, bytes: &[u8]) {
        let mask = self.blocks.shape.block_bytes() as u64 - 1;
        if self.service.is_out_of_service() || (from ^ to) & mask != 0 {
            return;
        }
        let before = (from.wrapping_neg() & mask) as usize;
        let (from, to) = (from.div_ceil(mask + 1), to.div_ceil(mask + 1));
        let blocks = bytes.get(before..).unwrap_or(&[]).chunks_exact(self.blocks.shape.block_bytes());
        let cached: Vec<_> = (from..)
            .zip(to..)
            .zip(blocks)
            .filter(|&((from, to), _)| {
                self.blocks.is_whole(to)
                    && self.blocks.index.find(from).is_some()
                    && !self.service.is_in_doubt(to)
            })
            .map(|((from, to), bytes)| (from, to, checksum(bytes)))
            .collect();
        if cached.is_empty() {
            return;
        }
        let mut placement = self.blocks.placement.lock();
        // The waiting hits have the old names.
        placement.hits(&self.blocks.index, &mut self.blocks.recent.lane().waiting());
        for (from, to, sum) in cached {
            if placement.rename(&self.blocks.index, from, self.blocks.access(to, false), sum) {
                self.blocks.counters.relocations.add(1);
            }
        }
        drop(placement);
        self.service.write_journal_if_due();
    }
}
