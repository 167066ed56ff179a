//! What is asked for together: a page of several blocks, which the engine above reads and writes whole.
//!
//! Each block is looked up and has a slot by itself, but whether the blocks that are missed come in is decided once for
//! the request: a page of which some blocks are cached is read from both devices, which costs more than a miss. A transfer
//! is one request, unless the caller says that several begin in it ([`Cached::read_batch_of`], [`Cached::write_of`]): pages
//! that adjoin are read and written together, but decided one by one. A page that is written in several pieces is one
//! request all the same.

use super::{Cached, Piece};
use crate::policy::Access;

/// Where requests begin on the slow device: offsets in ascending order. A read begins one anyway, and so does a write if there are none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Starts<'a>(pub &'a [u64]);

impl Starts<'_> {
    pub fn has(self, offset: u64) -> bool {
        !self.0.is_empty() && self.0.binary_search(&offset).is_ok()
    }
}

/// The request that is being read or written.
#[derive(Debug, Default)]
pub(super) struct Request {
    /// Blocks looked up so far.
    blocks: u64,
    /// Those among them that were in the cache.
    served: u64,
    /// Whether the policy was told of one that may be admitted: the answer it gave last is then this request's.
    is_told: bool,
    /// Whether the slot that was given last was taken from it.
    took_back: bool,
    /// Whether the budget affords its admissions, once that was asked.
    affords: Option<bool>,
    /// Slots that were given to blocks of it, or of those read with it, and of which nobody else knows yet.
    fresh: Vec<u32>,
}

impl Request {
    /// One of which a part was handed over before.
    pub fn continued() -> Self {
        Self { blocks: 1, is_told: true, ..Self::default() }
    }

    /// The policy is told of a block of it.
    pub fn tells(&mut self) {
        self.is_told = true;
    }

    /// Whether the policy was told of a block of it before.
    pub fn is_told(&self) -> bool {
        self.is_told
    }

    /// The answer of the budget, which is asked once: what a request overdraws, later ones pay.
    pub fn affords(&mut self, ask: impl FnOnce() -> bool) -> bool {
        *self.affords.get_or_insert_with(ask)
    }

    /// A block of it is to be fetched into this slot.
    pub fn gains(&mut self, slot: u32) {
        self.fresh.push(slot);
    }

    /// Gives up a slot that only it knows of.
    pub fn gives_up(&mut self, slot: u32) -> bool {
        let found = self.fresh.iter().position(|&other| other == slot);
        self.took_back = found.map(|at| self.fresh.swap_remove(at)).is_some();
        self.took_back
    }

    /// Whether the slot that was given last is one that it gave up for that.
    pub fn took_back(&mut self) -> bool {
        std::mem::take(&mut self.took_back)
    }

    /// What it has so far others will know of from now on.
    pub fn publishes(&mut self) {
        self.fresh.clear();
    }

    /// A block of it was in the cache.
    pub fn hit(&mut self) {
        (self.blocks, self.served) = (self.blocks + 1, self.served + 1);
        // Before the next is asked for.
        self.is_told = true;
    }

    /// Blocks of it were not.
    pub fn missed(&mut self, blocks: u64) {
        self.blocks += blocks;
    }
}

impl Cached {
    /// The read of a block of `request`.
    pub(super) fn read_access(&self, piece: Piece, request: &Request) -> Access {
        self.access(piece.block, false).continuing(request.is_told())
    }

    /// Another request begins, perhaps.
    pub(super) fn begin_request(&self, begins: bool, request: &mut Request) {
        if begins {
            self.count_request(request);
        }
    }

    /// A read request is over, and another begins in its place.
    pub(super) fn count_request(&self, request: &mut Request) {
        let fresh = std::mem::take(&mut request.fresh);
        let Request { blocks, served, .. } =
            std::mem::replace(request, Request { fresh, ..Request::default() });
        match served {
            0 if blocks == 0 => {}
            0 => self.counters.requests_missed.add(1),
            _ if served == blocks => self.recent.count_whole(),
            _ => self.counters.requests_part.add(1),
        }
    }
}
