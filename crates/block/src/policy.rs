//! Eviction and admission policies of a block cache: the brain without the device.
//!
//! A cache keeps blocks of a slow device in the slots of a fast one. A policy decides which block is worth a slot
//! ([`Policy::admits`]) and which block must leave ([`Policy::victim`]). It sees slot numbers and block keys only; it
//! owns no bytes, does no I/O, and is safe code. The same object serves the trace simulator and a live cache.
//!
//! # How a caller drives a policy
//! The caller owns the map from resident blocks to slots and the list of free slots. For every look-up:
//!
//! 1. The block is resident: `hit(slot, access)`. Done. A live cache may collect hits and report them later in one
//!    [`Policy::hits`], as long as the slot still holds the same block.
//! 2. It is not: `miss(access)`; then `admits(access)`. If that says no, the access bypasses the cache.
//! 3. Admitted and a slot is free: `insert(access, slot)`.
//! 4. Admitted and none is free: `victim(access)`. The policy forgets that slot; the caller takes the old block out of its
//!    map and calls `insert(access, slot)`.
//!
//! A slot of a victim that is still being read or written is not waited for under the policy's lock: the caller has
//! unmapped the block, asks for another victim, and inserts into the slot when its I/O has ended.
//! A block that is overwritten outside of the cache, or deleted, is an invalidation: `remove(slot)`; no policy may
//! refuse it. [`Hint`]s are optional and may come at any time.
//!
//! # Requests
//! A request may be for several blocks, as a page of 16 KiB is in blocks of 4 KiB. Each of them is looked up, and each has a slot
//! of its own, which the eviction policy knows alone. The admission policies of [`Filtered`] decide once for all of them, at
//! the first that is missed: a page of which a quarter is cached is read from both devices. [`Access::continues`] tells
//! where requests begin; a caller that never sets it makes requests of one block.
//!
//! # Which there are
//! [`NAMES`] lists the eviction policies and [`ADMISSIONS`] the filters; [`Name`] makes them. `heuristicdb` takes hints of queries
//! and relations, `auto` chooses among others, `belady` is a bound that needs the future. [`BASELINES`] are what others
//! ship and papers compare with; they are for traces only.
//!
//! # Slots and capacity
//! Capacity is a number of blocks. Slot numbers are below the largest capacity ever set. To shrink, call `resize`, then
//! `victim` (with any access) until few enough blocks are left; the survivors keep their slots.
//!
//! # Block tables
//! Policies that remember blocks which are not resident (ghosts, counts) look them up in a [`BlockTable`]: an array where
//! blocks are dense numbers (the simulator interns them), a hash table where they are arbitrary.
//!
//! # Concurrency
//! A policy has no lock of its own: `&mut self` everywhere. A live cache shards its slots or holds one latch; that latch
//! is the innermost, since no policy calls out.

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
mod mq;
mod mru;
mod name;
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
    Admission, Applies, Filtered, Frequency, LifetimeObp, Obp, Occupancy, Probability, Ration,
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
pub use mq::Mq;
pub use mru::Mru;
pub use name::{ADMISSIONS, BASELINES, Build, NAMES, Name, PRESETS, Settings, UnknownPolicy};
pub use opencas::OpenCas;
pub use s3_fifo::S3Fifo;
pub use sieve::Sieve;
pub use table::{BlockTable, DenseTable, HashedTable};
pub use tac::{Tac, TacSettings};
pub use two_q::TwoQ;
pub use w_tiny_lfu::WTinyLfu;

/// The number of a place for one block on the fast device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

impl Slot {
    /// The slot's number as an index of an array.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The number of a table or index of the database above, if it told one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Relation(pub u32);

/// One look-up of a block.
///
/// ```
/// use terrace_block::policy::{Access, Relation};
///
/// let access = Access::read(7).of(Relation(3), 120);
/// assert!(!access.write);
/// assert_eq!(access.offset, 120);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The block's key; below the footprint where a [`DenseTable`] is used.
    pub block: u64,
    /// Where the block is, in blocks from the start of its relation, or of the device if there is none. Neighbours on
    /// the device differ by one here, even where keys are interned numbers.
    pub offset: u64,
    /// The table or index the block belongs to, if known.
    pub relation: Option<Relation>,
    /// The block is written, not read.
    pub write: bool,
    /// The database reads ahead of a scan.
    pub read_ahead: bool,
    /// An earlier block of the same request was looked up before this one. Admission policies decide once for each request.
    pub continues: bool,
}

impl Access {
    /// A read of `block`, which is its own offset, of no known relation.
    pub fn read(block: u64) -> Access {
        Access { block, offset: block, relation: None, write: false, read_ahead: false, continues: false }
    }

    /// A write of `block`, as [`Access::read`].
    pub fn write(block: u64) -> Access {
        Access { write: true, ..Access::read(block) }
    }

    /// The same access, of block number `offset` of `relation`.
    pub fn of(self, relation: Relation, offset: u64) -> Access {
        Access { relation: Some(relation), offset, ..self }
    }

    /// The same access, which begins a request or continues the one before.
    pub fn continuing(self, continues: bool) -> Access {
        Access { continues, ..self }
    }
}

/// What the database above knows and a block does not show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint<'a> {
    /// A relation has that many blocks now.
    RelationSize {
        /// The relation.
        relation: Relation,
        /// Its size, in blocks.
        blocks: u64,
    },
    /// A query has been submitted; the relations are those it requires.
    QueryBegins {
        /// The query's number, given by the caller.
        query: u64,
        /// The tables and indices the query requires, as far as known.
        relations: &'a [Relation],
    },
    /// A query is over.
    QueryEnds {
        /// The number the query began with.
        query: u64,
    },
}

/// A replacement policy, alone or behind an admission policy. The module's text says who calls what, and when.
///
/// ```
/// use terrace_block::policy::{Access, Lru, Policy, Slot};
///
/// let mut lru = Lru::new(2);
/// lru.insert(Access::read(10), Slot(0));
/// lru.insert(Access::read(11), Slot(1));
/// lru.hit(Slot(0), Access::read(10));
/// assert_eq!(lru.victim(Access::read(12)), Some(Slot(1)));
/// ```
pub trait Policy: Send {
    /// The look-up found its block in `slot`.
    fn hit(&mut self, slot: Slot, access: Access);

    /// Hits reported together, oldest first.
    fn hits(&mut self, hits: &[(Slot, Access)]) {
        for &(slot, access) in hits {
            self.hit(slot, access);
        }
    }

    /// The look-up found nothing. Called once for a look-up, whether the block is admitted or not.
    fn miss(&mut self, access: Access) {
        let _ = access;
    }

    /// Whether the block of a missed look-up may be given a slot.
    fn admits(&mut self, access: Access) -> bool {
        let _ = access;
        true
    }

    /// The slot whose block leaves to make room for `access`; the policy forgets it. `None` only if nothing is resident.
    fn victim(&mut self, access: Access) -> Option<Slot>;

    /// The slot that would probably leave next, with nothing changed. Exact where finding a victim changes no state.
    fn coldest(&self) -> Option<Slot>;

    /// The block of `access` is now in `slot`, which was free.
    fn insert(&mut self, access: Access, slot: Slot);

    /// As [`Policy::insert`], of a block that a live cache finds again when it is opened, and that had been hit then or not. It was
    /// paid for in an earlier life, so admission policies do not count it.
    fn restore(&mut self, access: Access, slot: Slot, is_hit: bool) {
        self.insert(access, slot);
        if is_hit {
            self.hit(slot, access);
        }
    }

    /// The block in `slot` is invalid; the slot is free.
    fn remove(&mut self, slot: Slot);

    /// The block in `slot` is from now on the one that `access` names: its bytes have moved on the device, and nobody has used
    /// it. What is known of the use of the slot stays, as far as the policy can keep it; no admission policy hears of it.
    fn renamed(&mut self, slot: Slot, access: Access) {
        self.remove(slot);
        self.restore(access, slot, true);
    }

    /// The block in `from` is in `to` from now on, which was free, and `from` is: its new bytes could not be written over the old ones.
    /// Nobody has used it by that, and it is neither an insertion nor a removal; what is known of its use stays, as far as the policy
    /// can keep it.
    fn moved(&mut self, from: Slot, to: Slot, access: Access) {
        self.remove(from);
        self.restore(access, to, false);
    }

    /// Takes a hint; most policies have no use for one.
    fn hint(&mut self, hint: Hint<'_>) {
        let _ = hint;
    }

    /// Sets the capacity, in blocks, at least one.
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
