//! Second reads, after the check of a reader with its own checksums failed.
//!
//! The slow device replaces bytes damaged on the fast one, except those of dirty blocks.

use std::io;

use super::checksum::checksum;
use super::index::{State, Word};
use super::read::Reads;
use super::shape::Piece;
use crate::planted::{CacheBug, planted};
use terrace_io::AlignedBuffer;

impl Reads {
    /// [`Cached::read_again`](super::Cached::read_again).
    pub fn read_again(
        &self,
        offset: u64,
        buffer: &mut [u8],
        is_whole: impl FnOnce(&[u8]) -> bool,
    ) -> io::Result<bool> {
        self.blocks.check_read(offset, buffer)?;
        let dirty = self.read_dirty(offset, buffer.len())?;
        self.blocks.slow.read_at(offset, buffer)?;
        for (at, piece, block) in dirty {
            buffer[at..at + piece.length].copy_from_slice(&block[piece.within as usize..][..piece.length]);
        }
        if !is_whole(buffer) {
            return Ok(false);
        }
        if planted(CacheBug::KeepDamaged) {
            return Ok(true);
        }
        // Another reader may have found it, too, or the damage arose above the cache.
        let mut first = None;
        for (at, piece) in self.blocks.shape.pieces(offset, buffer.len()) {
            if let Some((slot, word)) = self.blocks.index.find(piece.block)
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

    fn read_dirty(&self, offset: u64, length: usize) -> io::Result<Vec<(usize, Piece, AlignedBuffer)>> {
        let mut dirty = Vec::new();
        if !self.back.is_on() {
            return Ok(dirty);
        }
        for (at, piece) in self.blocks.shape.pieces(offset, length) {
            while let Some((slot, word)) = self.dirty_slot(piece.block) {
                let mut block = AlignedBuffer::zeroed(self.blocks.shape.block_bytes());
                self.blocks.fast.read_at(self.blocks.shape.slot_offset(slot), &mut block)?;
                let is_right = checksum(&block) == self.blocks.index.checksum(slot);
                if !self.blocks.index.is_unchanged(slot, word) {
                    // It was written again, or is on the slow device by now.
                    continue;
                }
                if !is_right {
                    return Err(self.service.lost(piece.block, "is damaged"));
                }
                dirty.push((at, piece, block));
                break;
            }
        }
        Ok(dirty)
    }

    /// The slot of a dirty block.
    ///
    /// Under the lock, since other readers miss blocks that change slots or have long chains.
    fn dirty_slot(&self, block: u64) -> Option<(u32, Word)> {
        if planted(CacheBug::FindWithoutLock) {
            return self.blocks.index.find(block).filter(|(_, word)| word.is_dirty());
        }
        let mut placement = self.blocks.placement.lock();
        loop {
            match self.blocks.index.get(block) {
                Some((_, word)) if word.state() == State::Writing => self.blocks.settled.wait(&mut placement),
                found => return found.filter(|(_, word)| word.is_dirty()),
            }
        }
    }

    /// Whether a slot has these bytes, in an undamaged block.
    fn holds(&self, slot: u32, piece: Piece, bytes: &[u8]) -> bool {
        let mut block = AlignedBuffer::zeroed(self.blocks.shape.block_bytes());
        let read = self.blocks.fast.read_at(self.blocks.shape.slot_offset(slot), &mut block);
        read.is_ok()
            && block[piece.within as usize..][..piece.length] == *bytes
            && checksum(&block) == self.blocks.index.checksum(slot)
    }
}
