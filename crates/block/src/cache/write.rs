//! Writes: the fast device first, then the slow one, and what is cached is valid again when both have it.
//!
//! 0. The regions that are written are marked (`regions.rs`).
//! 1. Under the lock, every block of the write is taken hold of in ascending order: a slot becomes `Writing`, a block without
//!    one is entered as being written (`placement.rs`). Blocks of which only a part is written leave the cache, and so
//!    do all in [`WriteMode::Around`].
//! 2. If a block of the write has left its slot and the journal does not say so yet, it is written, and so it is if the new bytes
//!    could fit what it says of their slot (`journal.rs`). Then follow the slots' bytes, and then those of the slow device. In this
//!    order a process that dies in between leaves in a slot bytes that do not fit the checksum known of it, never old ones that do.
//! 3. Under the lock, the slots become valid, or are dropped if either device failed.
//!
//! Readers that come upon a block in between read the slow device, and get the old or the new block as they would without a
//! cache.

use std::collections::BTreeMap;
use std::io;

use super::index::State;
use super::placement::{Found, Placement};
use super::request::{Request, Starts};
use super::{Bypass, Cached, WriteMode, checksum};
use crate::Write;
use crate::planted::{CacheBug, planted};

/// Who writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    /// Whoever uses the device: what the settings say is done with the write.
    Above,
    /// Who moves bytes that nobody has asked for (`relocate.rs`): nothing is admitted.
    Mover,
}

/// How a block is held during a write.
#[derive(Clone, Copy, Debug)]
enum Hold<'a> {
    /// It has a slot, which gets these bytes.
    Slot(u32, &'a [u8]),
    /// It has none.
    Bare,
}

impl Cached {
    /// Writes ranges that lie inside the slow device and are aligned. `slow` writes them there.
    pub(super) fn write_ranges(
        &self,
        writer: Writer,
        writes: &[Write<'_>],
        starts: Starts<'_>,
        slow: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        if self.is_out_of_service() {
            if writer == Writer::Above {
                let blocks = writes.iter().map(|write| self.blocks_in(write.offset, write.bytes.len())).sum();
                self.count_unserved(&self.counters.write_misses, blocks);
            }
            self.check_stranded()?;
            return self.check_revoked().and_then(|()| slow());
        }
        match self.unless_back() {
            None => self.write_where_asked(writer, writes, starts, slow),
            Some(_gate) => {
                let outcome = self.write_directly(writer, writes, starts, slow);
                self.note_slow_written();
                outcome
            }
        }
    }

    /// The same, to the slow device at once.
    pub(super) fn write_directly(
        &self,
        writer: Writer,
        writes: &[Write<'_>],
        starts: Starts<'_>,
        slow: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let regions = self.regions.of(writes.iter().map(|write| (write.offset, write.bytes.len() as u64)));
        if planted(CacheBug::WriteBeforeMark) {
            let outcome = slow();
            self.mark(&regions);
            self.write_cached(writer, writes, starts, || Ok(()))?;
            self.regions.end(&regions);
            return outcome;
        }
        self.mark(&regions);
        let outcome = self.write_cached(writer, writes, starts, slow);
        self.regions.end(&regions);
        self.write_journal_if_due();
        outcome
    }

    /// Regions are about to be written.
    pub(super) fn mark(&self, regions: &[usize]) {
        if let Err(error) = self.regions.begin(&*self.fast, regions) {
            self.give_up("marking a region", &error);
        }
    }

    fn write_cached(
        &self,
        writer: Writer,
        writes: &[Write<'_>],
        starts: Starts<'_>,
        slow: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let blocks = self.blocks_of(writes);
        let mut firsts: Vec<u64> = match starts.0 {
            [] => writes.iter().map(|write| write.offset).collect(),
            starts => starts.to_vec(),
        };
        firsts.iter_mut().for_each(|first| *first >>= self.block_shift);
        firsts.sort_unstable();
        let (holds, any_left) = self.hold(writer, &blocks, Starts(&firsts));
        let sums: Vec<_> = holds
            .iter()
            .filter_map(|(_, hold)| match hold {
                Hold::Slot(slot, bytes) => Some((*slot, checksum(bytes))),
                Hold::Bare => None,
            })
            .collect();
        let cached: Vec<_> = holds
            .iter()
            .filter_map(|(_, hold)| match *hold {
                Hold::Slot(slot, bytes) => Some(Write::new(self.slot_offset(slot), bytes)),
                Hold::Bare => None,
            })
            .collect();
        if planted(CacheBug::SlowBeforeFast) {
            let outcome = slow();
            let is_cached = cached.is_empty() || self.write_slots("write of a cached block", &cached);
            self.release(&holds, &sums, is_cached && outcome.is_ok());
            return outcome;
        }
        if any_left && !planted(CacheBug::ForgetLeft) {
            self.write_journal();
        }
        self.end_claims(&sums);
        let is_cached = cached.is_empty() || self.write_slots("write of a cached block", &cached);
        if !is_cached {
            // The old bytes may still be there.
            let mut placement = self.placement.lock();
            for (block, hold) in &holds {
                if let Hold::Slot(slot, _) = hold {
                    placement.pending().left(*slot, *block, self.index.checksum(*slot));
                }
            }
            drop(placement);
            self.write_journal();
        }
        let outcome = self.check_revoked().and_then(|()| slow());
        self.release(&holds, &sums, is_cached && outcome.is_ok());
        outcome
    }

    /// The blocks that are written, in ascending order, and their bytes where one write covers all of a block.
    pub(super) fn blocks_of<'a>(&self, writes: &[Write<'a>]) -> BTreeMap<u64, Option<&'a [u8]>> {
        let mut blocks = BTreeMap::new();
        for &Write { offset, bytes } in writes {
            let mut done = 0;
            while done < bytes.len() {
                let piece = self.piece(offset + done as u64, bytes.len() - done);
                let is_whole = piece.length == self.block_bytes();
                let part = is_whole.then(|| &bytes[done..done + piece.length]);
                // Of two writes to one block in a batch the order is nobody's business.
                blocks.entry(piece.block).and_modify(|part| *part = None).or_insert(part);
                done += piece.length;
            }
        }
        blocks
    }

    /// Takes hold of blocks, of which requests begin at `firsts`. Says, too, whether one has left its slot and the journal has yet to
    /// say so.
    fn hold<'a>(
        &self,
        writer: Writer,
        blocks: &BTreeMap<u64, Option<&'a [u8]>>,
        firsts: Starts<'_>,
    ) -> (Vec<(u64, Hold<'a>)>, bool) {
        let mut any_left = false;
        // What begins before the first of them is the rest of the request that was written last.
        let mut request = Request::continued();
        let mut holds = Vec::with_capacity(blocks.len());
        let mut placement = self.placement.lock();
        placement.hits(&self.index, &mut self.recent.lane().waiting());
        for (&block, &bytes) in blocks {
            // A write of part of the device's last block, if that is not whole, is one of part of a block.
            let bytes = bytes.filter(|_| self.is_whole(block));
            if firsts.has(block) {
                request = Request::default();
            }
            let slot = loop {
                match placement.find(&self.index, block) {
                    Found::Slot(_, word) if word.state() == State::Writing => {
                        self.settled.wait(&mut placement);
                    }
                    // It is dirty and gets another slot just now.
                    Found::Slot(_, word) if word.state() == State::Valid && placement.is_entered(block) => {
                        self.settled.wait(&mut placement);
                    }
                    Found::Slot(slot, _) if writer == Writer::Mover => {
                        self.invalidate_slot(&mut placement, slot);
                        break None;
                    }
                    _ if writer == Writer::Mover => break None,
                    found => break self.hold_one(&mut placement, block, bytes, found, &mut request),
                }
            };
            if slot.is_none() {
                placement.begin_write(block);
            }
            any_left |= placement.pending().has_left(block);
            holds.push((block, slot.map_or(Hold::Bare, |(slot, bytes)| Hold::Slot(slot, bytes))));
        }
        (holds, any_left)
    }

    /// Holds a block that nobody holds in its slot. Gives the slot, if it has one now, and what to write there.
    fn hold_one<'a>(
        &self,
        placement: &mut Placement,
        block: u64,
        bytes: Option<&'a [u8]>,
        found: Found,
        request: &mut Request,
    ) -> Option<(u32, &'a [u8])> {
        let access = self.access(block, true).continuing(request.is_told());
        request.missed(1);
        placement.count(access.relation, |stats| stats.writes += 1);
        let stays = match bytes {
            _ if self.mode_of(access.relation) == WriteMode::Around => Err(Bypass::WriteAround),
            _ if self.is_in_doubt(block) => Err(Bypass::Doubt),
            _ if self.balance.is_aside() => Err(Bypass::Aside),
            None => Err(Bypass::PartialWrite),
            Some(bytes) => Ok(bytes),
        };
        let Found::Slot(slot, word) = found else {
            self.counters.write_misses.add(1);
            placement.policy().miss(access);
            request.tells();
            let admitted = match found {
                Found::BeingWritten => Err(Bypass::InUse),
                _ => stays.and_then(|bytes| {
                    let block_bytes = self.block_bytes() as u64;
                    Ok((placement.admit(&self.index, access, State::Writing, block_bytes, request)?, bytes))
                }),
            };
            match admitted {
                Ok(_) => self.counters.admissions.add(1),
                Err(reason) => self.counters.bypass(reason),
            }
            return admitted.ok();
        };
        self.counters.write_hits.add(1);
        match stays {
            Ok(bytes) if word.state() == State::Valid && !word.is_dirty() => {
                placement.policy().hit(crate::policy::Slot(slot), access);
                request.tells();
                self.index.begin_writing(slot);
                return Some((slot, bytes));
            }
            Ok(_) => self.counters.bypass(Bypass::InUse),
            Err(reason) => self.counters.bypass(reason),
        }
        self.counters.invalidations.add(1);
        match word.state() {
            State::Valid => placement.remove(&self.index, slot),
            _ if planted(CacheBug::KeepRacedFetch) => {}
            _ => placement.doom(&self.index, slot),
        }
        None
    }

    /// Slots are about to get bytes with these checksums. Where that would fit what the journal says of the slot, and is no longer
    /// true, the journal is written first.
    pub(super) fn end_claims(&self, sums: &[(u32, u32)]) {
        let mut placement = self.placement.lock();
        let pending = placement.pending();
        let any_fits = sums.iter().any(|&(slot, sum)| pending.fits_ended_claim(slot, sum));
        drop(placement);
        if any_fits && !planted(CacheBug::ForgetEndedClaims) {
            self.write_journal();
        }
    }

    fn release(&self, holds: &[(u64, Hold<'_>)], sums: &[(u32, u32)], is_written: bool) {
        let mut placement = self.placement.lock();
        for &(slot, sum) in sums {
            placement.finish(&self.index, slot, is_written.then_some(sum));
        }
        for (block, hold) in holds {
            if let Hold::Bare = hold {
                placement.end_write(*block);
            }
        }
        self.settled.notify_all();
    }

    /// Takes the blocks of a range out of the cache; `end` is exclusive.
    pub(super) fn invalidate(&self, first: u64, end: u64) {
        let mut placement = self.placement.lock();
        // The shorter way: by the blocks of the range, or by all slots.
        let slots = u64::from(self.index.slots());
        if end.saturating_sub(first) <= slots {
            for block in first..end {
                if let Some((slot, _)) = self.index.get(block) {
                    self.invalidate_slot(&mut placement, slot);
                }
            }
        } else {
            for slot in 0..self.index.slots() {
                let word = self.index.word(slot);
                if word.state() != State::Free && (first..end).contains(&word.block()) {
                    self.invalidate_slot(&mut placement, slot);
                }
            }
        }
    }

    pub(super) fn invalidate_slot(&self, placement: &mut Placement, slot: u32) {
        self.counters.invalidations.add(1);
        match self.index.word(slot).state() {
            State::Valid => placement.remove(&self.index, slot),
            _ => placement.doom(&self.index, slot),
        }
    }
}
