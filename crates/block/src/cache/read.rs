//! Reads: hits without a lock, misses in runs.
//!
//! A read is taken block by block. What is in the cache is read from the fast device, as `index.rs` describes. Neighbours
//! that are not are one run, and one read of the slow device. Those of them that are admitted are written to their slots from
//! the same buffer; where the reader wanted only part of such a block, the whole of it is fetched. Admission is decided once for
//! a request (`request.rs`).
//!
//! A hit is compared with the block's checksum where nobody above checks what is read ([`CacheConfig::verify_hits`]), and at the first
//! hit of a block of an earlier life, which nobody else can vouch for. Bytes that do not hold are dropped, and the slow
//! device is read; `again.rs` is for those that a reader above finds.
//!
//! A reader waits for another's fetch of its first block, so that a block is fetched once; it never waits while others may be
//! waiting for it.

use std::io;

use super::index::{State, Word};
use super::placement::{Found, Placement};
use super::recent::Due;
use super::request::{Request, Starts};
use super::stats::Counter;
use super::{Bypass, Cached, Piece, checksum};
use crate::planted::{CacheBug, planted};
use crate::policy::Access;
use crate::{AlignedBuffer, Write};

/// Blocks of one run at most.
const RUN_BLOCKS_MAX: usize = 1024;

impl Cached {
    /// Reads a range that lies inside the slow device and is aligned.
    pub(super) fn read_range(&self, offset: u64, buffer: &mut [u8], starts: Starts<'_>) -> io::Result<()> {
        let mut request = Request::default();
        let mut done = 0;
        while done < buffer.len() {
            let offset = offset + done as u64;
            let piece = self.piece(offset, buffer.len() - done);
            self.begin_request(starts.has(offset), &mut request);
            if self.is_out_of_service() && !self.back.is_stranded() {
                let blocks = self.blocks_in(offset, buffer.len() - done);
                self.count_unserved(&self.counters.misses, blocks);
                request.missed(blocks);
                self.count_request(&mut request);
                return self.slow.read_at(offset, &mut buffer[done..]);
            }
            let target = &mut buffer[done..done + piece.length];
            if self.back.is_stranded() {
                self.read_stranded(piece, target)?;
                done += piece.length;
                continue;
            }
            let access = self.read_access(piece, &request);
            done += match self.index.find(piece.block) {
                Some((slot, word)) if self.hit(access, piece, slot, word, target)? => {
                    request.hit();
                    piece.length
                }
                _ => self.read_missed(offset, &mut buffer[done..], starts, &mut request)?,
            };
        }
        self.count_request(&mut request);
        Ok(())
    }

    /// Reads a piece of a block from its slot, if the slot is the block's all the time.
    fn hit(
        &self,
        access: Access,
        piece: Piece,
        slot: u32,
        word: Word,
        target: &mut [u8],
    ) -> io::Result<bool> {
        let route = self.balance.route(self.recent.look_ups());
        let verifies = self.must_verify(word);
        // What was not compared with its checksum yet is no hit before it was.
        let is_sure = word.is_verified() || !verifies;
        if route.below && !word.is_dirty() && is_sure && self.hit_below(access, piece, slot, word, target) {
            return Ok(true);
        }
        // A part that is compared takes the time of the whole, and below that of the part: only whole blocks are.
        let is_whole = piece.length == self.block_bytes();
        let began = (route.timed && is_whole).then(|| self.config.clock.now());
        let read = match verifies {
            true => self.read_verified(piece, slot, target),
            false => self.fast.read_at(self.slot_offset(slot) + piece.within, target).map(|()| true),
        };
        if !self.index.is_unchanged(slot, word) && !planted(CacheBug::ServeReusedSlot) {
            return Ok(false);
        }
        if let Some(began) = began
            && self.balance.fast_took(self.config.clock.now().saturating_sub(began))
        {
            let device = self.fast.name();
            match self.balance.is_aside() {
                true => tracing::warn!(device, "slower than the slow device; the cache steps aside"),
                false => tracing::info!(device, "faster than the slow device again; the cache is back"),
            }
        }
        match read {
            Ok(true) if word.is_verified() => {}
            Ok(true) => {
                let _placement = self.placement.lock();
                if self.index.is_unchanged(slot, word) {
                    self.index.set_valid(slot, self.index.checksum(slot));
                }
            }
            // Nobody else has it.
            Ok(false) if word.is_dirty() => return Err(self.lost(piece.block, "is damaged")),
            Err(error) if word.is_dirty() => {
                self.fast_error("read of a cached block", &error);
                return Err(error);
            }
            Ok(false) => {
                // Of an earlier life it may just be older than the slow device.
                if word.is_verified() {
                    self.count_fallback(piece.block);
                }
                self.drop_damaged(slot, word);
                return Ok(false);
            }
            Err(error) => {
                self.fast_error("read of a cached block", &error);
                self.remove_if_unchanged(slot, word);
                return Ok(false);
            }
        }
        self.recent.count_hit();
        self.note(slot, access);
        Ok(true)
    }

    /// Whether bytes of the slot are to be compared with their checksum before they are served.
    #[inline]
    pub(super) fn must_verify(&self, word: Word) -> bool {
        (self.config.verify_hits || !word.is_verified()) && !planted(CacheBug::ServeUnverified)
    }

    /// Reads a piece of a block from its slot; says whether the block has the checksum that it should have.
    fn read_verified(&self, piece: Piece, slot: u32, target: &mut [u8]) -> io::Result<bool> {
        if piece.length == self.block_bytes() {
            self.fast.read_at(self.slot_offset(slot), target)?;
            return Ok(checksum(target) == self.index.checksum(slot));
        }
        let mut bytes = AlignedBuffer::zeroed(self.block_bytes());
        self.fast.read_at(self.slot_offset(slot), &mut bytes)?;
        target.copy_from_slice(&bytes[piece.within as usize..][..piece.length]);
        Ok(checksum(&bytes) == self.index.checksum(slot))
    }

    /// Serves a hit from the slow device, which has every block. If it fails, the fast one has to do.
    fn hit_below(&self, access: Access, piece: Piece, slot: u32, word: Word, target: &mut [u8]) -> bool {
        let began = (piece.length == self.block_bytes()).then(|| self.config.clock.now());
        let offset = (piece.block << self.block_shift) + piece.within;
        if self.slow.read_at(offset, target).is_err() {
            return false;
        }
        if let Some(began) = began {
            self.balance.slow_took(self.config.clock.now().saturating_sub(began));
        }
        if self.back.is_on() && !self.index.is_unchanged(slot, word) {
            // It may have become dirty before the slow device was read.
            return false;
        }
        self.counters.below.add(1);
        self.note(slot, access);
        true
    }

    /// Tells the policy of a hit, sooner or later.
    pub(super) fn note(&self, slot: u32, access: Access) {
        match self.recent.note(slot, access) {
            Due::No => {}
            Due::IfFree => {
                if let Some(mut placement) = self.placement.try_lock() {
                    placement.hits(&self.index, &mut self.recent.lane().waiting());
                }
            }
            Due::Now => self.placement.lock().hits(&self.index, &mut self.recent.lane().waiting()),
        }
    }

    /// Says whether it was unchanged.
    pub(super) fn remove_if_unchanged(&self, slot: u32, word: Word) -> bool {
        let mut placement = self.placement.lock();
        let is_unchanged = self.index.is_unchanged(slot, word);
        if is_unchanged {
            placement.remove(&self.index, slot);
            self.counters.invalidations.add(1);
        }
        is_unchanged
    }

    /// Reads the run at the start of `buffer` that is not in the cache. Gives its length in bytes; none if the first block
    /// has been fetched by another meanwhile.
    fn read_missed(
        &self,
        offset: u64,
        buffer: &mut [u8],
        starts: Starts<'_>,
        request: &mut Request,
    ) -> io::Result<usize> {
        let mut run: Vec<(Piece, Option<u32>)> = Vec::new();
        let mut length = 0;
        let mut valid = None;
        let mut placement = self.placement.lock();
        placement.hits(&self.index, &mut self.recent.lane().waiting());
        while length < buffer.len() && run.len() < RUN_BLOCKS_MAX {
            let at = offset + length as u64;
            let piece = self.piece(at, buffer.len() - length);
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
                Found::Slot(..) | Found::BeingWritten => {
                    self.begin_request(!run.is_empty() && starts.has(at), request);
                    Err(Bypass::InUse)
                }
                Found::Nothing => {
                    self.begin_request(!run.is_empty() && starts.has(at), request);
                    let access = self.read_access(piece, request);
                    self.admit_read(&mut placement, access, request)
                }
            };
            request.missed(1);
            let slot = self.count_miss(admitted);
            if let Some(slot) = slot {
                if request.took_back() {
                    // An earlier block of the run had to leave for it.
                    run.iter_mut()
                        .filter(|(_, other)| *other == Some(slot))
                        .for_each(|(_, other)| *other = None);
                }
                request.gains(slot);
            }
            run.push((piece, slot));
            length += piece.length;
        }
        request.publishes();
        drop(placement);
        if let Some((piece, slot, word)) = valid {
            let (access, target) = (self.read_access(piece, request), &mut buffer[..piece.length]);
            let is_hit = self.hit(access, piece, slot, word, target)?;
            if is_hit {
                request.hit();
            }
            return Ok(if is_hit { piece.length } else { 0 });
        }
        if length > 0 {
            self.fetch(&run, offset, &mut buffer[..length])?;
        }
        Ok(length)
    }

    /// Reads a run from the slow device and puts into their slots those of its blocks that have one.
    fn fetch(&self, run: &[(Piece, Option<u32>)], offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let block_bytes = self.block_bytes();
        let slots: Vec<_> = run.iter().filter_map(|(_, slot)| *slot).collect();
        // Beyond what the reader wants of the first and the last block.
        let (first, last) = (&run[0], &run[run.len() - 1]);
        let before = if first.1.is_some() { first.0.within as usize } else { 0 };
        let end = last.0.within as usize + last.0.length;
        let after = if last.1.is_some() { block_bytes - end } else { 0 };
        if before + after > 0 {
            let mut wide = AlignedBuffer::zeroed(before + buffer.len() + after);
            if self.slow.read_at(offset - before as u64, &mut wide).is_ok() {
                buffer.copy_from_slice(&wide[before..before + buffer.len()]);
                self.publish(&with_slots(run, block_bytes, &wide));
                return Ok(());
            }
            // What nobody asked for may be what cannot be read.
            self.drop_fetched(&slots);
            return self.slow.read_at(offset, buffer);
        }
        let is_one = run.len() == 1 && buffer.len() == block_bytes;
        let began = is_one.then(|| self.config.clock.now());
        match self.slow.read_at(offset, buffer) {
            Ok(()) => {
                if let Some(began) = began {
                    self.balance.slow_took(self.config.clock.now().saturating_sub(began));
                }
                self.publish(&with_slots(run, block_bytes, buffer));
            }
            Err(error) => {
                self.drop_fetched(&slots);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Writes fetched blocks to their slots.
    pub(super) fn publish(&self, fetched: &[(u32, &[u8])]) {
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

    /// What was to be fetched for these slots could not be.
    pub(super) fn drop_fetched(&self, slots: &[u32]) {
        let mut placement = self.placement.lock();
        for &slot in slots {
            placement.finish(&self.index, slot, None);
        }
        self.settled.notify_all();
    }

    /// A read has missed its block: gives it a slot to be fetched into, or says why not.
    pub(super) fn admit_read(
        &self,
        placement: &mut Placement,
        access: Access,
        request: &mut Request,
    ) -> Result<u32, Bypass> {
        placement.policy().miss(access);
        request.tells();
        placement.count(access.relation, |stats| stats.misses += 1);
        match access.block {
            block if !self.is_whole(block) => Err(Bypass::Tail),
            block if self.is_in_doubt(block) => Err(Bypass::Doubt),
            _ if self.balance.is_aside() => Err(Bypass::Aside),
            _ => placement.admit(&self.index, access, State::Filling, self.block_bytes() as u64, request),
        }
    }

    /// Look-ups that a cache out of service leaves to the slow device: misses, of reads or writes, and each a bypass.
    pub(super) fn count_unserved(&self, misses: &Counter, blocks: u64) {
        misses.add(blocks);
        self.counters.bypasses[Bypass::OutOfService as usize].add(blocks);
    }

    pub(super) fn count_miss(&self, admitted: Result<u32, Bypass>) -> Option<u32> {
        self.counters.misses.add(1);
        match admitted {
            Ok(_) => self.counters.admissions.add(1),
            Err(reason) => self.counters.bypass(reason),
        }
        admitted.ok()
    }
}

/// The blocks of a run that have slots, and their bytes; `bytes` has the run's pieces, those with a slot whole.
fn with_slots<'b>(run: &[(Piece, Option<u32>)], block_bytes: usize, bytes: &'b [u8]) -> Vec<(u32, &'b [u8])> {
    let mut start = 0;
    let mut fetched = Vec::with_capacity(run.len());
    for (piece, slot) in run {
        let length = if slot.is_some() { block_bytes } else { piece.length };
        fetched.extend(slot.map(|slot| (slot, &bytes[start..start + length])));
        start += length;
    }
    fetched
}
