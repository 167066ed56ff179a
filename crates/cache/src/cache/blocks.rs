//! Devices, index, policy and counters, shared by all parts of the cache.
//!
//! Durability is the task of `service.rs`.

use std::io;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::CacheConfig;
use super::balance::Balance;
use super::index::{BLOCKS_MAX, Index, State, Word};
use super::placement::Placement;
use super::recent::{Recent, Reporting};
use super::request::Request;
use super::shape::{Piece, Shape};
use super::stats::{Bypass, Counter, Counters};
use crate::planted::{CacheBug, planted};
use crate::policy::Access;
use terrace_io::{BlockDevice, check_read, check_write};

pub(super) struct Blocks {
    pub slow: Arc<dyn BlockDevice>,
    pub fast: Arc<dyn BlockDevice>,
    pub config: CacheConfig,
    pub shape: Shape,
    pub index: Index,
    pub recent: Recent,
    pub placement: Mutex<Placement>,
    /// Signals that some block is no longer being fetched or written.
    pub settled: Condvar,
    pub counters: Counters,
    pub balance: Balance,
}

impl Blocks {
    /// Whether the slow device has all of a block; an incomplete last one is never cached.
    pub fn is_whole(&self, block: u64) -> bool {
        block < BLOCKS_MAX && self.slow.covers((block + 1) << self.shape.block_shift)
    }

    /// The length to check a transfer against.
    ///
    /// The slow device's length is a system call, so it is read only if the transfer may exceed it.
    pub fn length_for(&self, offset: u64, bytes: usize) -> u64 {
        match offset.checked_add(bytes as u64).filter(|&end| self.slow.covers(end)) {
            Some(end) => end,
            None => self.slow.len(),
        }
    }

    /// Whether a read from the slow device may be tried; the error says why not.
    pub fn check_read(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        let length = self.length_for(offset, buffer.len());
        check_read(self.slow.name(), self.shape.alignment, length, offset, buffer)
    }

    /// [`Blocks::check_read`] for a write.
    pub fn check_write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let length = self.length_for(offset, bytes.len());
        check_write(self.slow.name(), self.shape.alignment, length, offset, bytes)
    }

    pub fn access(&self, block: u64, write: bool) -> Access {
        let access = if write { Access::write(block) } else { Access::read(block) };
        match self.config.relations.as_ref().and_then(|relations| relations.relation(block)) {
            Some((relation, offset)) => access.of(relation, offset),
            None => access,
        }
    }

    pub fn read_access(&self, piece: Piece, request: &Request) -> Access {
        self.access(piece.block, false).continuing(request.is_told())
    }

    /// Whether a hit of the slot must verify its checksum.
    #[inline]
    pub fn must_verify(&self, word: Word) -> bool {
        (self.config.verify_hits || !word.is_verified()) && !planted(CacheBug::ServeUnverified)
    }

    pub fn note(&self, slot: u32, access: Access) {
        match self.recent.note(slot, access) {
            Reporting::No => {}
            Reporting::IfFree => {
                if let Some(mut placement) = self.placement.try_lock() {
                    placement.hits(&self.index, &mut self.recent.lane().waiting());
                }
            }
            Reporting::Now => self.placement.lock().hits(&self.index, &mut self.recent.lane().waiting()),
        }
    }

    pub fn report_hits(&self) {
        let mut placement = self.placement.lock();
        for lane in self.recent.lanes() {
            placement.hits(&self.index, &mut lane.waiting());
        }
    }

    /// Removes the block if its word is unchanged; returns whether it was.
    pub fn remove_if_unchanged(&self, slot: u32, word: Word) -> bool {
        let mut placement = self.placement.lock();
        let is_unchanged = self.index.is_unchanged(slot, word);
        if is_unchanged {
            placement.remove(&self.index, slot);
            self.counters.invalidations.add(1);
        }
        is_unchanged
    }

    pub fn invalidate(&self, first: u64, end: u64) {
        let mut placement = self.placement.lock();
        // Whichever is shorter: by blocks of the range or by slots.
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

    pub fn invalidate_slot(&self, placement: &mut Placement, slot: u32) {
        self.counters.invalidations.add(1);
        match self.index.word(slot).state() {
            State::Valid => placement.remove(&self.index, slot),
            _ => placement.doom(&self.index, slot),
        }
    }

    pub fn begin_request(&self, begins: bool, request: &mut Request) {
        if begins {
            self.count_request(request);
        }
    }

    pub fn count_request(&self, request: &mut Request) {
        let (blocks, served) = request.end();
        match served {
            0 if blocks == 0 => {}
            0 => self.counters.requests_missed.add(1),
            _ if served == blocks => self.recent.count_whole(),
            _ => self.counters.requests_part.add(1),
        }
    }

    pub fn count_unserved(&self, misses: &Counter, blocks: u64) {
        misses.add(blocks);
        self.counters.bypasses.of(Bypass::OutOfService).add(blocks);
    }

    pub fn count_miss(&self, admitted: Result<u32, Bypass>) -> Option<u32> {
        self.counters.misses.add(1);
        match admitted {
            Ok(_) => self.counters.admissions.add(1),
            Err(reason) => self.counters.bypasses.of(reason).add(1),
        }
        admitted.ok()
    }
}
