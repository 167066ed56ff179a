//! Eviction and admission policies of a block cache.
//!
//! A policy decides which block is worth a slot ([`Policy::admits`]) and which one leaves
//! ([`Policy::victim`]). It sees slot numbers and block keys only, owns no bytes and does no I/O.
//! The simulator and the live cache share it.
//!
//! The caller owns the map from blocks to slots and the free slots. For every lookup:
//!
//! 1. A resident block: `hit(slot, access)`, also in batches by [`Policy::hits`] while the slot
//!    keeps its block.
//! 2. Else `miss(access)`, then `admits(access)`; if refused, the access bypasses the cache.
//! 3. With a free slot: `insert(access, slot)`.
//! 4. With none: `victim(access)`. The policy forgets that slot; the caller unmaps its block and
//!    calls `insert(access, slot)`.
//!
//! If a victim's slot has I/O in progress, the caller unmaps it, takes another victim, and inserts
//! into the slot later. `remove(slot)` invalidates a block. Slot numbers are below the largest
//! capacity ever set. To shrink, call `resize`, then `victim` (with any access) as often as needed.
//!
//! A request may cover several blocks, each with its own lookup and slot; [`Filtered`] decides
//! admission once, at the first miss. Policies have no lock: a live cache's one latch is the
//! innermost, since no policy calls out.
//!
//! **A new policy** is a file in `policy/`, with `mod` and `pub use` here, its name and its bytes
//! in `name.rs` (`NAMES`, `POLICY_BYTES`), an arm in `make.rs`, and a row in `docs/policies.md`;
//! one that uses queries is also in `wants_queries`. `policy/conformance.rs` and
//! `cache/tests/model.rs`, both below `crates/cache/src`, then test it.

mod admission;
mod arc;
mod auto;
mod belady;
mod clock;
mod fifo;
mod frequency;
mod ghosts;
mod heuristic_db;
mod lfru;
mod lfu;
mod lirs;
mod lists;
mod lru;
mod make;
mod mq;
mod mru;
mod name;
mod nodes;
mod opencas;
mod s3_fifo;
mod sample;
mod sieve;
mod sketch;
mod streams;
mod table;
mod tac;
mod two_q;
mod w_tiny_lfu;

#[cfg(test)]
pub(crate) mod conformance;

pub use admission::{
    Admission, Applies, Filtered, Frequency, LifetimeObp, NoEviction, Obp, Occupancy, Probability, Ration,
    SequentialCutoff, SmallBypass,
};
pub use arc::Arc;
pub use auto::{Auto, Goal};
pub use belady::{Belady, Future};
pub use clock::Clock;
pub use fifo::Fifo;
pub use heuristic_db::{HeuristicDb, HeuristicDbSettings};
pub use lfru::Lfru;
pub(crate) use lfu::COUNTS_PER_SLOT;
pub use lfu::{Lfu, LfuInCache};
pub use lirs::Lirs;
pub use lru::Lru;
pub use make::Build;
pub use mq::Mq;
pub use mru::Mru;
pub use name::{ADMISSIONS, BASELINES, NAMES, Name, PRESETS, Settings, UnknownPolicy};
pub use opencas::OpenCas;
pub use s3_fifo::S3Fifo;
pub use sieve::Sieve;
pub use table::{BlockTable, DenseTable, HashedTable};
pub use tac::{Tac, TacSettings};
pub use two_q::TwoQ;
pub use w_tiny_lfu::WTinyLfu;

/// The number of a block's slot on the fast device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

impl Slot {
    /// The number as an array index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The number of a table or index in the database above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Relation(pub u32);

/// One lookup of a block.
///
/// ```
/// use terrace_cache::policy::{Access, Relation};
///
/// let access = Access::read(7).of(Relation(3), 120);
/// assert!(!access.write);
/// assert_eq!(access.offset, 120);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The block's key; below the footprint where a [`DenseTable`] is used.
    pub block: u64,
    /// Position in blocks from the start of the relation or the device. Adjacent blocks differ by
    /// one, even with interned keys.
    pub offset: u64,
    /// The block's table or index, if known.
    pub relation: Option<Relation>,
    /// A write instead of a read.
    pub write: bool,
    /// The database reads ahead of a scan.
    pub read_ahead: bool,
    /// An earlier block of the same request was looked up before.
    pub continues: bool,
}

impl Access {
    /// A read of `block` at the same offset, without a relation.
    pub fn read(block: u64) -> Access {
        Access { block, offset: block, relation: None, write: false, read_ahead: false, continues: false }
    }

    /// A write of `block` at the same offset, without a relation.
    pub fn write(block: u64) -> Access {
        Access { write: true, ..Access::read(block) }
    }

    /// Sets the relation and the offset in it.
    pub fn of(self, relation: Relation, offset: u64) -> Access {
        Access { relation: Some(relation), offset, ..self }
    }

    /// Sets whether the access continues a request.
    pub fn continuing(self, continues: bool) -> Access {
        Access { continues, ..self }
    }
}

/// Information from the database above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint<'a> {
    /// The new size of a relation.
    RelationSize {
        /// The relation.
        relation: Relation,
        /// Size in blocks.
        blocks: u64,
    },
    /// A query was submitted.
    QueryBegins {
        /// The caller's number of the query.
        query: u64,
        /// The relations that the query requires, as far as known.
        relations: &'a [Relation],
    },
    /// A query has ended.
    QueryEnds {
        /// The number from its beginning.
        query: u64,
    },
}

/// An eviction policy, with or without admission. The module documents the protocol.
///
/// ```
/// use terrace_cache::policy::{Access, Lru, Policy, Slot};
///
/// let mut lru = Lru::new(2);
/// lru.insert(Access::read(10), Slot(0));
/// lru.insert(Access::read(11), Slot(1));
/// lru.hit(Slot(0), Access::read(10));
/// assert_eq!(lru.victim(Access::read(12)), Some(Slot(1)));
/// ```
pub trait Policy: Send {
    /// A lookup found its block in `slot`.
    fn hit(&mut self, slot: Slot, access: Access);

    /// Several hits, oldest first.
    fn hits(&mut self, hits: &[(Slot, Access)]) {
        for &(slot, access) in hits {
            self.hit(slot, access);
        }
    }

    /// A lookup missed. Called once per lookup, admitted or not.
    fn miss(&mut self, access: Access) {
        let _ = access;
    }

    /// Whether the missed block may get a slot.
    fn admits(&mut self, access: Access) -> bool {
        let _ = access;
        true
    }

    /// Frees a slot for `access`; `None` only if nothing is resident.
    fn victim(&mut self, access: Access) -> Option<Slot>;

    /// The probable next victim. Exact if choosing a victim changes no state.
    fn coldest(&self) -> Option<Slot>;

    /// The block of `access` is now in the formerly free `slot`.
    fn insert(&mut self, access: Access, slot: Slot);

    /// Inserts a block found when a live cache opens. Admission policies ignore it, since an
    /// earlier run has written it.
    fn restore(&mut self, access: Access, slot: Slot, is_hit: bool) {
        self.insert(access, slot);
        if is_hit {
            self.hit(slot, access);
        }
    }

    /// The block in `slot` is invalid; the slot is free.
    fn remove(&mut self, slot: Slot);

    /// The block in `slot` is now that of `access`: its bytes have moved on the device. Not a use;
    /// the policy keeps its state where possible, and admission policies ignore it.
    fn renamed(&mut self, slot: Slot, access: Access) {
        self.remove(slot);
        self.restore(access, slot, true);
    }

    /// The block in `from` moved to the free slot `to` for its new bytes. Not a use, insertion or
    /// removal; the policy keeps its state where possible.
    fn moved(&mut self, from: Slot, to: Slot, access: Access) {
        self.remove(from);
        self.restore(access, to, false);
    }

    /// Takes a hint; most policies ignore it.
    fn hint(&mut self, hint: Hint<'_>) {
        let _ = hint;
    }

    /// Sets the capacity in blocks, at least one.
    fn resize(&mut self, capacity: usize);
}

impl<P: Policy + ?Sized> Policy for Box<P> {
    fn hit(&mut self, slot: Slot, access: Access) {
        (**self).hit(slot, access);
    }

    fn hits(&mut self, hits: &[(Slot, Access)]) {
        (**self).hits(hits);
    }

    fn miss(&mut self, access: Access) {
        (**self).miss(access);
    }

    fn admits(&mut self, access: Access) -> bool {
        (**self).admits(access)
    }

    fn victim(&mut self, access: Access) -> Option<Slot> {
        (**self).victim(access)
    }

    fn coldest(&self) -> Option<Slot> {
        (**self).coldest()
    }

    fn insert(&mut self, access: Access, slot: Slot) {
        (**self).insert(access, slot);
    }

    fn restore(&mut self, access: Access, slot: Slot, is_hit: bool) {
        (**self).restore(access, slot, is_hit);
    }

    fn remove(&mut self, slot: Slot) {
        (**self).remove(slot);
    }

    fn renamed(&mut self, slot: Slot, access: Access) {
        (**self).renamed(slot, access);
    }

    fn moved(&mut self, from: Slot, to: Slot, access: Access) {
        (**self).moved(from, to, access);
    }

    fn hint(&mut self, hint: Hint<'_>) {
        (**self).hint(hint);
    }

    fn resize(&mut self, capacity: usize) {
        (**self).resize(capacity);
    }
}
