//! Reads of bytes that did not hold against what their reader knows of them.
//!
//! The cache compares blocks with its own checksums ([`CacheConfig::verify_hits`](super::CacheConfig)), or leaves it to a reader above
//! that has better ones, as an engine has of its pages. Either way a bad byte on the fast device is no damage: the slow device
//! has the block, and is asked. Only a block that is to be written back has its only copy in the cache.

use std::io;

use super::index::{State, Word};
use super::{Cached, Piece, checksum};
use crate::device::check_read;
use crate::planted::{CacheBug, planted};
use crate::{AlignedBuffer, BlockDevice};

impl Cached {
    /// Reads again, past the cache, what did not hold as it was read through it. Says whether `is_whole` says so of what is in
    /// `buffer` now. If it does, the cached blocks that differ are dropped, and if there is one the event is counted
    /// ([`CacheStats::fallbacks`](super::CacheStats)); the first is told in a warning. What is to be written back comes from the cache.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use terrace_block::{AlignedBuffer, BlockDevice, CacheConfig, Cached, MemoryDevice};
    ///
    /// let slow = Arc::new(MemoryDevice::new("database", 1 << 20));
    /// let cached = Cached::open(slow, Arc::new(MemoryDevice::new("cache", 0)), CacheConfig::new(64))?;
    /// let mut page = AlignedBuffer::zeroed(4096);
    /// cached.read_at(8192, &mut page)?;
    /// let is_zero = |page: &[u8]| page.iter().all(|&byte| byte == 0);
    /// if !is_zero(&page) {
    ///     assert!(cached.read_again(8192, &mut page, is_zero)?, "the database is damaged");
    /// }
    /// assert_eq!(cached.stats().fallbacks, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of the slow device, and one of kind `InvalidData` that names the fast device if a block has its only copy there and that
    /// is damaged.
    pub fn read_again(
        &self,
        offset: u64,
        buffer: &mut [u8],
        is_whole: impl FnOnce(&[u8]) -> bool,
    ) -> io::Result<bool> {
        check_read(self.name(), self.alignment, self.length_for(offset, buffer.len()), offset, buffer)?;
        let dirty = self.read_dirty(offset, buffer.len())?;
        self.slow.read_at(offset, buffer)?;
        for (at, piece, block) in dirty {
            buffer[at..at + piece.length].copy_from_slice(&block[piece.within as usize..][..piece.length]);
        }
        if !is_whole(buffer) {
            return Ok(false);
        }
        if planted(CacheBug::KeepDamaged) {
            return Ok(true);
        }
        // Another reader may have found the same, or what did not hold was spoilt above.
        let mut first = None;
        for (at, piece) in self.pieces(offset, buffer.len()) {
            if let Some((slot, word)) = self.index.find(piece.block)
                && !word.is_dirty()
                && !self.holds(slot, piece, &buffer[at..at + piece.length])
                && self.drop_damaged(slot, word)
            {
                first.get_or_insert(piece.block);
            }
        }
        if let Some(block) = first {
            self.count_fallback(block);
        }
        Ok(true)
    }

    /// The pieces of a range, each with where it begins in the range.
    fn pieces(&self, offset: u64, length: usize) -> impl Iterator<Item = (usize, Piece)> + '_ {
        let mut done = 0;
        std::iter::from_fn(move || {
            let piece = (done < length).then(|| (done, self.piece(offset + done as u64, length - done)));
            done += piece.map_or(0, |(_, piece)| piece.length);
            piece
        })
    }

    /// The blocks of a range that the slow device does not have.
    fn read_dirty(&self, offset: u64, length: usize) -> io::Result<Vec<(usize, Piece, AlignedBuffer)>> {
        let mut dirty = Vec::new();
        if !self.back.is_on() {
            return Ok(dirty);
        }
        for (at, piece) in self.pieces(offset, length) {
            while let Some((slot, word)) = self.dirty_slot(piece.block) {
                let mut block = AlignedBuffer::zeroed(self.block_bytes());
                self.fast.read_at(self.slot_offset(slot), &mut block)?;
                let is_right = checksum(&block) == self.index.checksum(slot);
                if !self.index.is_unchanged(slot, word) {
                    // It was written again, or the slow device has it by now.
                    continue;
                }
                if !is_right {
                    return Err(self.lost(piece.block, "is damaged"));
                }
                dirty.push((at, piece, block));
                break;
            }
        }
        Ok(dirty)
    }

    /// The slot of a block that the slow device does not have. Under the lock: without it a block is not found while it goes from one slot
    /// to another, or where its chain is long.
    fn dirty_slot(&self, block: u64) -> Option<(u32, Word)> {
        if planted(CacheBug::FindWithoutLock) {
            return self.index.find(block).filter(|(_, word)| word.is_dirty());
        }
        let mut placement = self.placement.lock();
        loop {
            match self.index.get(block) {
                Some((_, word)) if word.state() == State::Writing => self.settled.wait(&mut placement),
                found => return found.filter(|(_, word)| word.is_dirty()),
            }
        }
    }

    /// Whether a slot has these bytes, and the rest of its block as it should be.
    fn holds(&self, slot: u32, piece: Piece, bytes: &[u8]) -> bool {
        let mut block = AlignedBuffer::zeroed(self.block_bytes());
        let read = self.fast.read_at(self.slot_offset(slot), &mut block);
        read.is_ok()
            && block[piece.within as usize..][..piece.length] == *bytes
            && checksum(&block) == self.index.checksum(slot)
    }

    /// A block turned out to be damaged in its slot, and the slow device has it. Says whether it was still there.
    pub(super) fn drop_damaged(&self, slot: u32, word: Word) -> bool {
        let is_dropped = self.remove_if_unchanged(slot, word);
        self.counters.damaged.add(u64::from(is_dropped));
        is_dropped
    }

    /// A read found damaged bytes, and the slow device serves it.
    pub(super) fn count_fallback(&self, block: u64) {
        if self.counters.fallbacks.get() == 0 {
            let (device, slow) = (self.fast.name(), self.slow.name());
            tracing::warn!(
                device,
                block,
                "the cache's file has been damaged while it was used; {slow} is whole there and is read instead"
            );
        }
        self.counters.fallbacks.add(1);
    }
}
