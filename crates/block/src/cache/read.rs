//! Reads: hits without a lock, misses in runs.
//!
//! A read is taken block by block. What is in the cache is read from the fast device, as `index.rs` describes. Neighbours
//! that are not are one run, and one read of the slow device. Those of them that are admitted are written to their slots from
//! the same buffer; where the reader wanted only part of such a block, the whole of it is fetched.
//!
//! A reader waits for another's fetch of its first block, so that a block is fetched once; it never waits while others may be
//! waiting for it.

use std::io;

use super::index::{State, Word};
use super::placement::Found;
use super::recent::Due;
use super::{Bypass, Cached, Piece, checksum};
use crate::planted::{CacheBug, planted};
use crate::policy::Access;
use crate::{AlignedBuffer, Write};

/// Blocks of one run at most.
const RUN_BLOCKS_MAX: usize = 1024;

impl Cached {
    /// Reads a range that lies inside the slow device and is aligned.
    pub(super) fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < buffer.len() {
            let piece = self.piece(offset + done as u64, buffer.len() - done);
            let access = self.access(piece.block, false);
            if self.is_out_of_service() {
                return self.slow.read_at(offset + done as u64, &mut buffer[done..]);
            }
            let target = &mut buffer[done..done + piece.length];
            done += match self.index.find(piece.block) {
                Some((slot, word)) if self.hit(access, piece, slot, word, target) => piece.length,
                _ => self.read_missed(access, offset + done as u64, &mut buffer[done..])?,
            };
        }
        Ok(())
    }

    /// Reads a piece of a block from its slot, if the slot is the block's all the time.
    fn hit(&self, access: Access, piece: Piece, slot: u32, word: Word, target: &mut [u8]) -> bool {
        if !word.is_verified() && !planted(CacheBug::ServeUnverified) {
            // The next look-up finds it verified, or not at all.
            self.verify(slot, word);
            return false;
        }
        let read = self.fast.read_at(self.slot_offset(slot) + piece.within, target);
        if !self.index.is_unchanged(slot, word) && !planted(CacheBug::ServeReusedSlot) {
            return false;
        }
        if let Err(error) = read {
            self.fast_error("read of a cached block", &error);
            self.remove_if_unchanged(slot, word);
            return false;
        }
        match self.recent.note(slot, access) {
            Due::No => {}
            Due::IfFree => {
                if let Some(mut placement) = self.placement.try_lock() {
                    placement.hits(&self.index, &mut self.recent.lane().waiting());
                }
            }
            Due::Now => self.placement.lock().hits(&self.index, &mut self.recent.lane().waiting()),
        }
        true
    }

    /// Compares a block of an earlier life of the cache with its checksum.
    fn verify(&self, slot: u32, word: Word) {
        let mut bytes = AlignedBuffer::zeroed(self.block_bytes());
        let read = self.fast.read_at(self.slot_offset(slot), &mut bytes);
        match read {
            Ok(()) if checksum(&bytes) == self.index.checksum(slot) => {
                let _placement = self.placement.lock();
                if self.index.is_unchanged(slot, word) {
                    self.index.set_valid(slot, self.index.checksum(slot));
                }
                return;
            }
            Ok(()) => self.counters.damaged.add(1),
            Err(error) => self.fast_error("read of a cached block", &error),
        }
        self.remove_if_unchanged(slot, word);
    }

    fn remove_if_unchanged(&self, slot: u32, word: Word) {
        let mut placement = self.placement.lock();
        if self.index.is_unchanged(slot, word) {
            placement.remove(&self.index, slot);
            self.counters.invalidations.add(1);
        }
    }

    /// Reads the run at the start of `buffer` that is not in the cache. Gives its length in bytes; none if the first block
    /// has been fetched by another meanwhile.
    fn read_missed(&self, first: Access, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let whole_blocks = self.whole_blocks();
        let mut run: Vec<(Piece, Option<u32>)> = Vec::new();
        let mut length = 0;
        let mut valid = None;
        let mut placement = self.placement.lock();
        placement.hits(&self.index, &mut self.recent.lane().waiting());
        while length < buffer.len() && run.len() < RUN_BLOCKS_MAX {
            let piece = self.piece(offset + length as u64, buffer.len() - length);
            let found = placement.find(&self.index, piece.block);
            let admitted = match found {
                Found::Slot(slot, word) if word.state() == State::Valid => {
                    valid = run.is_empty().then_some((piece, slot, word));
                    break;
                }
                Found::Slot(_, word) if word.state() == State::Filling => {
                    if run.is_empty() {
                        self.settled.wait(&mut placement);
                        continue;
                    }
                    break;
                }
                Found::Slot(..) | Found::BeingWritten => Err(Bypass::InUse),
                Found::Nothing => {
                    let access = if run.is_empty() { first } else { self.access(piece.block, false) };
                    placement.policy().miss(access);
                    match piece.block {
                        block if block >= whole_blocks => Err(Bypass::Tail),
                        block if self.is_in_doubt(block) => Err(Bypass::Doubt),
                        _ => placement.admit(&self.index, access, State::Filling),
                    }
                }
            };
            self.counters.misses.add(1);
            match admitted {
                Ok(_) => self.counters.admissions.add(1),
                Err(reason) => self.counters.bypass(reason),
            }
            run.push((piece, admitted.ok()));
            length += piece.length;
        }
        drop(placement);
        if let Some((piece, slot, word)) = valid {
            let target = &mut buffer[..piece.length];
            return Ok(if self.hit(first, piece, slot, word, target) { piece.length } else { 0 });
        }
        if length > 0 {
            self.fetch(&run, offset, &mut buffer[..length])?;
        }
        Ok(length)
    }

    /// Reads a run from the slow device and puts into their slots those of its blocks that have one.
    fn fetch(&self, run: &[(Piece, Option<u32>)], offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let block_bytes = self.block_bytes();
        // Beyond what the reader wants of the first and the last block.
        let (first, last) = (&run[0], &run[run.len() - 1]);
        let before = if first.1.is_some() { first.0.within as usize } else { 0 };
        let end = last.0.within as usize + last.0.length;
        let after = if last.1.is_some() { block_bytes - end } else { 0 };
        if before + after > 0 {
            let mut wide = AlignedBuffer::zeroed(before + buffer.len() + after);
            if self.slow.read_at(offset - before as u64, &mut wide).is_ok() {
                buffer.copy_from_slice(&wide[before..before + buffer.len()]);
                self.publish(run, &wide);
                return Ok(());
            }
            // What nobody asked for may be what cannot be read.
            self.drop_fetched(run);
            return self.slow.read_at(offset, buffer);
        }
        match self.slow.read_at(offset, buffer) {
            Ok(()) => self.publish(run, buffer),
            Err(error) => {
                self.drop_fetched(run);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Writes fetched blocks to their slots. `bytes` has the run's pieces, those with a slot whole.
    fn publish(&self, run: &[(Piece, Option<u32>)], bytes: &[u8]) {
        let mut fetched = Vec::with_capacity(run.len());
        let mut start = 0;
        for (piece, slot) in run {
            let length = if slot.is_some() { self.block_bytes() } else { piece.length };
            fetched.extend(slot.map(|slot| (slot, &bytes[start..start + length])));
            start += length;
        }
        if fetched.is_empty() {
            return;
        }
        let writes: Vec<_> =
            fetched.iter().map(|&(slot, bytes)| Write::new(self.slot_offset(slot), bytes)).collect();
        let sums: Vec<_> = fetched.iter().map(|&(slot, bytes)| (slot, checksum(bytes))).collect();
        self.end_claims(&sums);
        let is_written = self.write_slots("write of a fetched block", &writes);
        let mut placement = self.placement.lock();
        for (slot, sum) in sums {
            placement.finish(&self.index, slot, is_written.then_some(sum));
        }
        self.settled.notify_all();
        drop(placement);
        self.write_journal_if_due();
    }

    /// The blocks of a run could not be fetched.
    fn drop_fetched(&self, run: &[(Piece, Option<u32>)]) {
        let mut placement = self.placement.lock();
        for slot in run.iter().filter_map(|(_, slot)| *slot) {
            placement.finish(&self.index, slot, None);
        }
        self.settled.notify_all();
    }
}
