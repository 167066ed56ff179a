//! Writes: first the fast device, then the slow one.
//!
//! 0. The written regions are marked (`regions.rs`).
//! 1. Under the lock, each block is held, in ascending order: its slot becomes `Writing`, or the
//!    block is entered as being written (`placement.rs`). Partially written blocks leave the cache,
//!    and so do all in [`WriteMode::Around`].
//! 2. The journal is written if a block has left its slot unrecorded, or new bytes could match an
//!    outdated claim (`journal.rs`). Then the slots are written, and then the slow device. A kill
//!    in between leaves slots with bytes that do not match, never old bytes that do.
//! 3. Under the lock, the slots become valid, or are dropped if a device failed.
//!
//! Readers in between use the slow device and get the old or the new block, as without a cache.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::WriteMode;
use super::blocks::Blocks;
use super::checksum::checksum;
use super::index::{BLOCKS_MAX, State};
use super::placement::{Found, Placement};
use super::request::{Request, Starts};
use super::service::Service;
use super::stats::Bypass;
use super::write_back::WriteBack;
use crate::planted::{CacheBug, planted};
use terrace_io::Write;

/// The source of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    /// The user of the device: the settings apply.
    Above,
    /// A program that moves data (`relocate.rs`): nothing is admitted.
    Mover,
}

pub(super) struct Writes {
    pub blocks: Arc<Blocks>,
    pub service: Arc<Service>,
    pub back: Arc<WriteBack>,
}

#[derive(Clone, Copy, Debug)]
enum Hold<'a> {
    Slot(u32, &'a [u8]),
    Bare,
}

impl Writes {
    /// Writes checked ranges; `slow` writes them to the slow device.
    pub fn write_ranges(
        &self,
        writer: Writer,
        writes: &[Write<'_>],
        starts: Starts<'_>,
        slow: impl Fn() -> io::Result<()>,
    ) -> io::Result<()> {
        if self.service.is_out_of_service() {
            if writer == Writer::Above {
                let blocks = writes
                    .iter()
                    .map(|write| self.blocks.shape.blocks_in(write.offset, write.bytes.len()))
                    .sum();
                self.blocks.count_unserved(&self.blocks.counters.write_misses, blocks);
            }
            self.back.check_stranded()?;
            return self.service.check_revoked().and_then(|()| slow());
        }
        match self.back.unless_back() {
            None => self.write_where_asked(writer, writes, starts, slow),
            Some(_gate) => {
                let outcome = self.write_directly(writer, writes, starts, slow);
                self.back.note_slow_written();
                outcome
            }
        }
    }

    /// Changes the slow device's length.
    ///
    /// Blocks cut off leave the cache, and the journal says so, before the change.
    pub fn change_len(&self, bytes: u64) -> io::Result<()> {
        if self.service.is_out_of_service() {
            self.back.check_stranded()?;
            return self.service.check_revoked().and_then(|()| self.blocks.slow.set_len(bytes));
        }
        if self.back.is_on() {
            self.back.drain()?;
        }
        let _gate = if self.back.is_on() { Some(self.back.gate(std::iter::empty())?) } else { None };
        let before = self.blocks.slow.len();
        let (shorter, longer) = (bytes.min(before), bytes.max(before));
        let regions = self.service.regions.of([(shorter, longer - shorter)].into_iter());
        self.service.mark(&regions);
        if !planted(CacheBug::ForgetTruncate) {
            self.blocks.invalidate(shorter >> self.blocks.shape.block_shift, BLOCKS_MAX);
            self.service.write_journal();
        }
        let outcome = self.service.check_revoked().and_then(|()| self.blocks.slow.set_len(bytes));
        if !planted(CacheBug::ForgetTruncate) {
            self.blocks.invalidate(shorter >> self.blocks.shape.block_shift, BLOCKS_MAX);
        }
        self.service.regions.end(&regions);
        self.back.note_slow_written();
        outcome
    }

    fn write_where_asked(
        &self,
        writer: Writer,
        writes: &[Write<'_>],
        starts: Starts<'_>,
        slow: impl Fn() -> io::Result<()>,
    ) -> io::Result<()> {
        let blocks = self.blocks.shape.blocks_of(writes);
        if writer == Writer::Above && self.back.may_all_be_dirty(&blocks) && self.back.write_dirty(&blocks)? {
            return Ok(());
        }
        let _direct = self.back.begin_direct(&blocks)?;
        let outcome = self.write_directly(writer, writes, starts, slow);
        self.back.note_slow_written();
        outcome
    }

    fn write_directly(
        &self,
        writer: Writer,
        writes: &[Write<'_>],
        starts: Starts<'_>,
        slow: impl Fn() -> io::Result<()>,
    ) -> io::Result<()> {
        let regions =
            self.service.regions.of(writes.iter().map(|write| (write.offset, write.bytes.len() as u64)));
        if planted(CacheBug::WriteBeforeMark) {
            slow()?;
        }
        self.service.mark(&regions);
        let outcome = self.write_cached(writer, writes, starts, slow);
        self.service.regions.end(&regions);
        self.service.write_journal_if_due();
        outcome
    }

    fn write_cached(
        &self,
        writer: Writer,
        writes: &[Write<'_>],
        starts: Starts<'_>,
        slow: impl Fn() -> io::Result<()>,
    ) -> io::Result<()> {
        let blocks = self.blocks.shape.blocks_of(writes);
        let mut firsts: Vec<u64> = match starts.0 {
            [] => writes.iter().map(|write| write.offset).collect(),
            starts => starts.to_vec(),
        };
        firsts.iter_mut().for_each(|first| *first >>= self.blocks.shape.block_shift);
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
                Hold::Slot(slot, bytes) => Some(Write::new(self.blocks.shape.slot_offset(slot), bytes)),
                Hold::Bare => None,
            })
            .collect();
        if planted(CacheBug::SlowBeforeFast) {
            let _ = slow();
        }
        if any_left && !planted(CacheBug::ForgetLeft) {
            self.service.write_journal();
        }
        self.service.end_claims(&sums);
        let is_cached = cached.is_empty() || self.service.write_slots("write of a cached block", &cached);
        if !is_cached {
            // The old bytes may still be there.
            let mut placement = self.blocks.placement.lock();
            for (block, hold) in &holds {
                if let Hold::Slot(slot, _) = hold {
                    placement.pending().left(*slot, *block, self.blocks.index.checksum(*slot));
                }
            }
            drop(placement);
            self.service.write_journal();
        }
        let outcome = self.service.check_revoked().and_then(|()| slow());
        self.release(&holds, &sums, is_cached && outcome.is_ok());
        outcome
    }

    /// Holds blocks; requests begin at `firsts`.
    ///
    /// Also returns whether the journal lacks a departure of one of them.
    fn hold<'a>(
        &self,
        writer: Writer,
        blocks: &BTreeMap<u64, Option<&'a [u8]>>,
        firsts: Starts<'_>,
    ) -> (Vec<(u64, Hold<'a>)>, bool) {
        let mut any_left = false;
        // Blocks before the first one continue the request written last.
        let mut request = Request::continued();
        let mut holds = Vec::with_capacity(blocks.len());
        let mut placement = self.blocks.placement.lock();
        placement.hits(&self.blocks.index, &mut self.blocks.recent.lane().waiting());
        for (&block, &bytes) in blocks {
            // A write of the incomplete last block counts as partial.
            let bytes = bytes.filter(|_| self.blocks.is_whole(block));
            if firsts.has(block) {
                request = Request::default();
            }
            let slot = loop {
                match placement.find(&self.blocks.index, block) {
                    Found::Slot(_, word) if word.state() == State::Writing => {
                        self.blocks.settled.wait(&mut placement);
                    }
                    // It is dirty and getting another slot.
                    Found::Slot(_, word) if word.state() == State::Valid && placement.is_entered(block) => {
                        self.blocks.settled.wait(&mut placement);
                    }
                    Found::Slot(slot, _) if writer == Writer::Mover => {
                        self.blocks.invalidate_slot(&mut placement, slot);
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

    /// Holds a free block; returns its slot, if any, and the bytes for it.
    fn hold_one<'a>(
        &self,
        placement: &mut Placement,
        block: u64,
        bytes: Option<&'a [u8]>,
        found: Found,
        request: &mut Request,
    ) -> Option<(u32, &'a [u8])> {
        let access = self.blocks.access(block, true).continuing(request.is_told());
        request.missed(1);
        placement.count(access.relation, |stats| stats.writes += 1);
        let stays = match bytes {
            _ if self.back.mode_of(access.relation) == WriteMode::Around => Err(Bypass::WriteAround),
            _ if self.service.is_in_doubt(block) => Err(Bypass::Doubt),
            _ if self.blocks.balance.is_aside() => Err(Bypass::Aside),
            None => Err(Bypass::PartialWrite),
            Some(bytes) => Ok(bytes),
        };
        let Found::Slot(slot, word) = found else {
            self.blocks.counters.write_misses.add(1);
            placement.policy().miss(access);
            request.tells();
            let admitted = match found {
                Found::BeingWritten => Err(Bypass::InUse),
                _ => stays.and_then(|bytes| {
                    let block_bytes = self.blocks.shape.block_bytes() as u64;
                    Ok((
                        placement.admit(&self.blocks.index, access, State::Writing, block_bytes, request)?,
                        bytes,
                    ))
                }),
            };
            match admitted {
                Ok(_) => self.blocks.counters.admissions.add(1),
                Err(reason) => self.blocks.counters.bypasses.of(reason).add(1),
            }
            return admitted.ok();
        };
        self.blocks.counters.write_hits.add(1);
        match stays {
            Ok(bytes) if word.state() == State::Valid && !word.is_dirty() => {
                placement.policy().hit(crate::policy::Slot(slot), access);
                request.tells();
                self.blocks.index.begin_writing(slot);
                return Some((slot, bytes));
            }
            Ok(_) => self.blocks.counters.bypasses.of(Bypass::InUse).add(1),
            Err(reason) => self.blocks.counters.bypasses.of(reason).add(1),
        }
        self.blocks.counters.invalidations.add(1);
        match word.state() {
            State::Valid => placement.remove(&self.blocks.index, slot),
            _ if planted(CacheBug::KeepRacedFetch) => {}
            _ => placement.doom(&self.blocks.index, slot),
        }
        None
    }

    fn release(&self, holds: &[(u64, Hold<'_>)], sums: &[(u32, u32)], is_written: bool) {
        let mut placement = self.blocks.placement.lock();
        for &(slot, sum) in sums {
            placement.finish(&self.blocks.index, slot, is_written.then_some(sum));
        }
        for (block, hold) in holds {
            if let Hold::Bare = hold {
                placement.end_write(*block);
            }
        }
        self.blocks.settled.notify_all();
    }
}
