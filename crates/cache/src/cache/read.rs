//! Reads: hits without a lock, misses in runs.
//!
//! Adjacent missed blocks form one run, with one read of the slow device. Admitted blocks of it are
//! written to their slots from the same buffer. If the reader wants only part of one, all of it is
//! fetched.
//!
//! Every hit is checked against its checksum (`read_verified`). Without `verify_hits`, as under the
//! engine, only the first hit of a block of the previous run is. Damaged blocks are dropped, and
//! the slow device is read.
//!
//! A reader waits for another fetch of its first block, so that a block is fetched once. It never
//! waits while it holds slots of its own.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::balance::News;
use super::blocks::Blocks;
use super::checksum::checksum;
use super::index::{State, Word};
use super::placement::{Found, Placement};
use super::request::{Request, Starts};
use super::service::Service;
use super::shape::Piece;
use super::stats::Bypass;
use super::write_back::WriteBack;
use crate::planted::{CacheBug, planted};
use crate::policy::Access;
use terrace_io::{AlignedBuffer, Write};

const RUN_BLOCKS_MAX: usize = 1024;

pub(super) struct Reads {
    pub blocks: Arc<Blocks>,
    pub service: Arc<Service>,
    pub back: Arc<WriteBack>,
}

impl Reads {
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.blocks.check_read(offset, buffer)?;
        self.read_range(offset, buffer, Starts::default())
    }

    pub fn read_range(&self, offset: u64, buffer: &mut [u8], starts: Starts<'_>) -> io::Result<()> {
        let mut request = Request::default();
        let mut done = 0;
        while done < buffer.len() {
            let offset = offset + done as u64;
            let piece = self.blocks.shape.piece(offset, buffer.len() - done);
            self.blocks.begin_request(starts.has(offset), &mut request);
            if self.service.is_out_of_service() && !self.service.is_stranded() {
                let blocks = self.blocks.shape.blocks_in(offset, buffer.len() - done);
                self.blocks.count_unserved(&self.blocks.counters.misses, blocks);
                request.missed(blocks);
                self.blocks.count_request(&mut request);
                return self.blocks.slow.read_at(offset, &mut buffer[done..]);
            }
            let target = &mut buffer[done..done + piece.length];
            if self.service.is_stranded() {
                self.read_stranded(piece, target)?;
                done += piece.length;
                continue;
            }
            let access = self.blocks.read_access(piece, &request);
            done += match self.blocks.index.find(piece.block) {
                Some((slot, word)) if self.serve_hit(access, piece, slot, word, target)? => {
                    request.hit();
                    piece.length
                }
                _ => self.read_missed(offset, &mut buffer[done..], starts, &mut request)?,
            };
        }
        self.blocks.count_request(&mut request);
        Ok(())
    }

    /// Drops a damaged block that the slow device has; returns whether it was still there.
    pub fn drop_damaged(&self, slot: u32, word: Word) -> bool {
        let is_dropped = self.blocks.remove_if_unchanged(slot, word);
        self.blocks.counters.damaged.add(u64::from(is_dropped));
        is_dropped
    }

    pub(super) fn count_fallback(&self, block: u64) {
        if self.blocks.counters.fallbacks.get() == 0 {
            let (device, slow) = (self.blocks.fast.name(), self.blocks.slow.name());
            tracing::warn!(
                device,
                block,
                "the cache's file has been damaged while it was used; {slow} is whole there and is read instead"
            );
        }
        self.blocks.counters.fallbacks.add(1);
    }

    /// Serves a piece from its slot. `false`: the slot changed, or its bytes were damaged and it
    /// was dropped; the slow device has the block. An error: a dirty block is damaged.
    pub fn serve_hit(
        &self,
        access: Access,
        piece: Piece,
        slot: u32,
        word: Word,
        target: &mut [u8],
    ) -> io::Result<bool> {
        let route = self.blocks.balance.route(self.blocks.recent.look_ups());
        let verifies = self.blocks.must_verify(word);
        // Unverified blocks count as hits only after the check.
        let is_sure = word.is_verified() || !verifies;
        if route.below && !word.is_dirty() && is_sure && self.hit_below(access, piece, slot, word, target) {
            return Ok(true);
        }
        // A verified part takes the fast device as long as a whole block, so only whole blocks are
        // timed.
        let is_whole = piece.length == self.blocks.shape.block_bytes();
        let began = (route.timed && is_whole).then(|| self.blocks.config.clock.now());
        let read = match verifies {
            true => self.read_verified(piece, slot, target),
            false => self
                .blocks
                .fast
                .read_at(self.blocks.shape.slot_offset(slot) + piece.within, target)
                .map(|()| true),
        };
        if !self.blocks.index.is_unchanged(slot, word) && !planted(CacheBug::ServeReusedSlot) {
            return Ok(false);
        }
        if let (Some(began), Ok(_)) = (began, &read) {
            self.note_fast_read(self.blocks.config.clock.now().saturating_sub(began));
        }
        match read {
            Ok(true) if word.is_verified() => {}
            Ok(true) => {
                let _placement = self.blocks.placement.lock();
                if self.blocks.index.is_unchanged(slot, word) {
                    self.blocks.index.set_valid(slot, self.blocks.index.checksum(slot));
                }
            }
            // It is the only copy.
            Ok(false) if word.is_dirty() => return Err(self.service.lost(piece.block, "is damaged")),
            Err(error) if word.is_dirty() => {
                self.service.fast_error("read of a cached block", &error);
                return Err(error);
            }
            Ok(false) => {
                // A block of the previous run may just be older than the slow device.
                if word.is_verified() {
                    self.count_fallback(piece.block);
                }
                self.drop_damaged(slot, word);
                return Ok(false);
            }
            Err(error) => {
                self.service.fast_error("read of a cached block", &error);
                self.blocks.remove_if_unchanged(slot, word);
                return Ok(false);
            }
        }
        self.blocks.recent.count_hit();
        self.blocks.note(slot, access);
        Ok(true)
    }

    /// Notes the time of a read from the fast device; it may put the cache aside, or back.
    fn note_fast_read(&self, took: Duration) {
        let Some(news) = self.blocks.balance.fast_took(took) else { return };
        let device = self.blocks.fast.name();
        match news {
            News::Aside => tracing::warn!(device, "slower than the slow device; the cache steps aside"),
            News::Back => tracing::info!(device, "faster than the slow device again; the cache is back"),
        }
    }

    /// Reads a piece from its slot; returns whether the block's checksum matches.
    fn read_verified(&self, piece: Piece, slot: u32, target: &mut [u8]) -> io::Result<bool> {
        if piece.length == self.blocks.shape.block_bytes() {
            self.blocks.fast.read_at(self.blocks.shape.slot_offset(slot), target)?;
            return Ok(checksum(target) == self.blocks.index.checksum(slot));
        }
        let mut bytes = AlignedBuffer::zeroed(self.blocks.shape.block_bytes());
        self.blocks.fast.read_at(self.blocks.shape.slot_offset(slot), &mut bytes)?;
        target.copy_from_slice(&bytes[piece.within as usize..][..piece.length]);
        Ok(checksum(&bytes) == self.blocks.index.checksum(slot))
    }

    /// Serves a hit from the slow device; on failure the caller uses the fast one.
    fn hit_below(&self, access: Access, piece: Piece, slot: u32, word: Word, target: &mut [u8]) -> bool {
        let began = (piece.length == self.blocks.shape.block_bytes()).then(|| self.blocks.config.clock.now());
        let offset = (piece.block << self.blocks.shape.block_shift) + piece.within;
        if self.blocks.slow.read_at(offset, target).is_err() {
            return false;
        }
        if let Some(began) = began {
            self.blocks.balance.slow_took(self.blocks.config.clock.now().saturating_sub(began));
        }
        if self.back.is_on() && !self.blocks.index.is_unchanged(slot, word) {
            // The block may have become dirty before the slow device was read.
            return false;
        }
        self.blocks.counters.below.add(1);
        self.blocks.note(slot, access);
        true
    }

    /// Reads the run of missed blocks at the start of `buffer`.
    ///
    /// Returns its length in bytes; 0 if the first block was fetched meanwhile and could not be
    /// served.
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
        let mut placement = self.blocks.placement.lock();
        placement.hits(&self.blocks.index, &mut self.blocks.recent.lane().waiting());
        while length < buffer.len() && run.len() < RUN_BLOCKS_MAX {
            let at = offset + length as u64;
            let piece = self.blocks.shape.piece(at, buffer.len() - length);
            let found = placement.find(&self.blocks.index, piece.block);
            let admitted = match found {
                Found::Slot(slot, word) if word.state() == State::Valid => {
                    valid = run.is_empty().then_some((piece, slot, word));
                    break;
                }
                Found::Slot(_, word) if word.state() == State::Filling => {
                    if run.is_empty() {
                        self.blocks.settled.wait(&mut placement);
                        continue;
                    }
                    break;
                }
                Found::Slot(..) | Found::BeingWritten => {
                    self.blocks.begin_request(!run.is_empty() && starts.has(at), request);
                    Err(Bypass::InUse)
                }
                Found::Nothing => {
                    self.blocks.begin_request(!run.is_empty() && starts.has(at), request);
                    let access = self.blocks.read_access(piece, request);
                    self.admit_read(&mut placement, access, request)
                }
            };
            request.missed(1);
            let slot = self.blocks.count_miss(admitted);
            if let Some(slot) = slot {
                if request.took_back() {
                    // An earlier block of the run lost its slot to this one.
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
            let (access, target) = (self.blocks.read_access(piece, request), &mut buffer[..piece.length]);
            let is_hit = self.serve_hit(access, piece, slot, word, target)?;
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

    fn fetch(&self, run: &[(Piece, Option<u32>)], offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let block_bytes = self.blocks.shape.block_bytes();
        let slots: Vec<_> = run.iter().filter_map(|(_, slot)| *slot).collect();
        // Also the rest of the first and the last block, which the reader does not want.
        let (first, last) = (&run[0], &run[run.len() - 1]);
        let before = if first.1.is_some() { first.0.within as usize } else { 0 };
        let end = last.0.within as usize + last.0.length;
        let after = if last.1.is_some() { block_bytes - end } else { 0 };
        if before + after > 0 {
            let mut wide = AlignedBuffer::zeroed(before + buffer.len() + after);
            if self.blocks.slow.read_at(offset - before as u64, &mut wide).is_ok() {
                buffer.copy_from_slice(&wide[before..before + buffer.len()]);
                self.publish(&with_slots(run, block_bytes, &wide));
                return Ok(());
            }
            // The unwanted rest may be the unreadable part.
            self.drop_fetched(&slots);
            return self.blocks.slow.read_at(offset, buffer);
        }
        let is_one = run.len() == 1 && buffer.len() == block_bytes;
        let began = is_one.then(|| self.blocks.config.clock.now());
        match self.blocks.slow.read_at(offset, buffer) {
            Ok(()) => {
                if let Some(began) = began {
                    self.blocks.balance.slow_took(self.blocks.config.clock.now().saturating_sub(began));
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

    pub fn publish(&self, fetched: &[(u32, &[u8])]) {
        if fetched.is_empty() {
            return;
        }
        let writes: Vec<_> = fetched
            .iter()
            .map(|&(slot, bytes)| Write::new(self.blocks.shape.slot_offset(slot), bytes))
            .collect();
        let sums: Vec<_> = fetched.iter().map(|&(slot, bytes)| (slot, checksum(bytes))).collect();
        self.service.end_claims(&sums);
        let is_written = self.service.write_slots("write of a fetched block", &writes);
        let mut placement = self.blocks.placement.lock();
        for (slot, sum) in sums {
            placement.finish(&self.blocks.index, slot, is_written.then_some(sum));
        }
        self.blocks.settled.notify_all();
        drop(placement);
        self.service.write_journal_if_due();
    }

    pub fn drop_fetched(&self, slots: &[u32]) {
        let mut placement = self.blocks.placement.lock();
        for &slot in slots {
            placement.finish(&self.blocks.index, slot, None);
        }
        self.blocks.settled.notify_all();
    }

    /// Gives a missed block a slot to fetch into, or says why not.
    pub fn admit_read(
        &self,
        placement: &mut Placement,
        access: Access,
        request: &mut Request,
    ) -> Result<u32, Bypass> {
        placement.policy().miss(access);
        request.tells();
        placement.count(access.relation, |stats| stats.misses += 1);
        match access.block {
            block if !self.blocks.is_whole(block) => Err(Bypass::Tail),
            block if self.service.is_in_doubt(block) => Err(Bypass::Doubt),
            _ if self.blocks.balance.is_aside() => Err(Bypass::Aside),
            _ => placement.admit(
                &self.blocks.index,
                access,
                State::Filling,
                self.blocks.shape.block_bytes() as u64,
                request,
            ),
        }
    }

    pub(super) fn read_stranded(&self, piece: Piece, target: &mut [u8]) -> io::Result<()> {
        let offset = (piece.block << self.blocks.shape.block_shift) + piece.within;
        let placement = self.blocks.placement.lock();
        let Some((slot, _)) = self.blocks.index.get(piece.block).filter(|(_, word)| word.is_dirty()) else {
            drop(placement);
            self.blocks.count_unserved(&self.blocks.counters.misses, 1);
            return self.blocks.slow.read_at(offset, target);
        };
        let mut bytes = AlignedBuffer::zeroed(self.blocks.shape.block_bytes());
        let read = self.blocks.fast.read_at(self.blocks.shape.slot_offset(slot), &mut bytes);
        match read {
            Ok(()) if checksum(&bytes) == self.blocks.index.checksum(slot) => {
                target.copy_from_slice(&bytes[piece.within as usize..][..piece.length]);
                self.blocks.recent.count_hit();
                Ok(())
            }
            Ok(()) => Err(self.service.lost(piece.block, "is damaged")),
            Err(error) => Err(self.service.lost(piece.block, &format!("cannot be read: {error}"))),
        }
    }
}

/// The blocks of a run with slots, and their bytes.
///
/// `bytes` has the run's pieces, those with a slot whole.
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
