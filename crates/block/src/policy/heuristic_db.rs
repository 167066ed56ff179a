//! HeuristicDB: a block cache that knows tables and queries (Yang, Li and Lilja, SYSTOR 2021; paper 002).
//!
//! Four programs work together, as in section 5 of the paper:
//!
//! - the **query profile queue** ([`queries`]) holds the last two queries, the relations each requires, and the hits since
//!   each began;
//! - the **eviction and demotion program** lowers the frequencies of all cached blocks when a query is submitted (rule 6);
//! - the **access pattern detector** ([`detector`]) finds whether a relation is read sequentially, at random or repeatedly;
//! - the **page placement controller** ([`Policy::admits`] here) decides by rules 1 to 5.
//!
//! Rule by rule: a block of a sequentially read relation is not admitted (1); one of a random, repeated, hot or yet unknown
//! relation is (2, 3, 6.2), but into a full cache only if it was used more often than the coldest cached block (4); what is
//! written is always admitted (5). The coldest block is the least recently used of the lowest frequency. With
//! concurrent queries (7) hits go to the query submitted last, and every submission verifies the relations of all queries that run
//! anew; a query runs from [`Hint::QueryBegins`] to [`Hint::QueryEnds`].
//!
//! There are three of it. `heuristicdb-paper` is what the paper writes. On real traces its frequency filter wins, but the
//! demotion of rule 6 costs hits, because after it all cached blocks are equal. Its eviction empties the cache where a statement makes
//! a look-up or two, for one of them that misses shows "no benefit"; the others judge that over a capacity of look-ups.
//! `heuristicdb`, the default, halves frequencies every few passes over the database instead of a demotion, and takes rule 1 by the access: a block of a sequential run may
//! fill a free slot but displaces nothing. `heuristicdb-eager`, the preset of a live cache, is for queries that are long against the cache: it
//! demotes at a query, but not sooner than after some capacities of look-ups, halves more often, and lets a block as hot as the
//! coldest displace one that nobody has used for long, nor since it was demoted. Where
//! the paper leaves a question open, `docs/decisions/0019-heuristicdb.md` says what was decided, with measurements.
//!
//! Memory is bounded: 32 bytes a slot, and counts of at most four blocks a slot that are not cached, at 24 bytes each and
//! their entries in the block table, 48 bytes for every relation,
//! and the lists of relations of at most 64 queries that run.

mod detector;
mod queries;

use detector::{Detector, Sight, Status};
use queries::{Change, Queries};

use super::frequency::{Among, FrequencyLists};
use super::ghosts::Ghosts;
use super::{Access, BlockTable, Hint, Policy, Slot};

/// Counts kept of blocks that are not cached, in multiples of the capacity.
const COUNTS_MAX: usize = 4;
/// The part of a kept count that holds the number of halvings when it was set.
const HALVINGS_BITS: u32 = 8;
/// The largest frequency.
const FREQUENCY_MAX: u32 = (1 << (31 - HALVINGS_BITS)) - 1;

/// What makes the two of HeuristicDB different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeuristicDbSettings {
    /// Rule 6's eviction: a new query sets the frequencies of all cached blocks to zero if they had no hit in at least so many look-ups,
    /// in multiples of the capacity. With 0 the last query alone decides, however short it was.
    pub eviction_capacities: u64,
    /// Rule 6's demotion: a new query sets the frequencies of all cached blocks to one and forgets all others, if the last that did was
    /// at least so many look-ups ago, in multiples of the capacity; `None` never does. Nor does one after a query of fewer look-ups
    /// than eviction asks for.
    pub demotion_capacities: Option<u64>,
    /// Frequencies are halved after so many look-ups for every block of the known relations; `None` never halves.
    pub halving_passes: Option<u64>,
    /// But not sooner than after so many look-ups, in multiples of the capacity.
    pub halving_capacities: u64,
    /// A block that is as hot as the coldest displaces it, too, if that was not used for so many look-ups, in multiples of the capacity,
    /// nor since it was demoted; `None` never does.
    pub idle_capacities: Option<u64>,
    /// Rule 1 to the letter: nothing of a sequentially read relation is admitted. Else free slots are open to it, and
    /// in every relation a block of a sequential run displaces nothing.
    pub rule_1_by_relation: bool,
}

impl HeuristicDbSettings {
    /// As the paper has it.
    pub const PAPER: HeuristicDbSettings = HeuristicDbSettings {
        eviction_capacities: 0,
        demotion_capacities: Some(0),
        halving_passes: None,
        halving_capacities: 0,
        idle_capacities: None,
        rule_1_by_relation: true,
    };
    /// As measured to be better; halving as often as TinyLFU's sample at most.
    pub const DEFAULT: HeuristicDbSettings = HeuristicDbSettings {
        eviction_capacities: 1,
        demotion_capacities: None,
        halving_passes: Some(8),
        halving_capacities: 10,
        idle_capacities: None,
        rule_1_by_relation: false,
    };
    /// For queries that are long against the cache.
    pub const EAGER: HeuristicDbSettings = HeuristicDbSettings {
        eviction_capacities: 1,
        demotion_capacities: Some(7),
        halving_passes: Some(1),
        halving_capacities: 5,
        idle_capacities: Some(4),
        rule_1_by_relation: false,
    };
}

impl Default for HeuristicDbSettings {
    fn default() -> Self {
        HeuristicDbSettings::DEFAULT
    }
}

/// HeuristicDB; see the module [`policy`](crate::policy) for how to drive it. It wants the hints
/// [`QueryBegins`](Hint::QueryBegins), and relations in accesses; without them it is LFU with a filter.
///
/// ```
/// use terrace_block::policy::{Access, HashedTable, HeuristicDb, HeuristicDbSettings, Policy, Slot};
///
/// let mut policy = HeuristicDb::<HashedTable>::new(1, HeuristicDbSettings::DEFAULT);
/// for (slot, block) in [(Some(Slot(0)), 4), (None, 5)] {
///     policy.miss(Access::read(block));
///     assert_eq!(policy.admits(Access::read(block)), slot.is_some());
///     if let Some(slot) = slot {
///         policy.insert(Access::read(block), slot);
///     }
/// }
/// policy.miss(Access::read(5));
/// assert!(policy.admits(Access::read(5)), "used twice, the cached block once");
/// ```
#[derive(Clone, Debug)]
pub struct HeuristicDb<T> {
    settings: HeuristicDbSettings,
    slots: FrequencyLists,
    blocks: Vec<u64>,
    last_use: Vec<u64>,
    /// The counting table's blocks that are not cached, least recently counted at the back.
    counts: Ghosts<T, 1>,
    detector: Detector,
    queries: Queries,
    /// What the latest look-up found.
    latest: Latest,
    resident: usize,
    capacity: usize,
    /// Look-ups since frequencies were halved.
    look_ups: u64,
    halvings: u32,
    /// All look-ups.
    now: u64,
    /// When a query last demoted.
    demoted_at: u64,
}

#[derive(Clone, Copy, Debug)]
struct Latest {
    sight: Sight,
    frequency: u32,
}

impl<T: BlockTable> HeuristicDb<T> {
    /// For `capacity` blocks.
    pub fn new(capacity: usize, settings: HeuristicDbSettings) -> Self {
        HeuristicDb {
            settings,
            slots: FrequencyLists::new(capacity),
            blocks: vec![0; capacity],
            last_use: vec![0; capacity],
            counts: Ghosts::new(),
            detector: Detector::new(),
            queries: Queries::default(),
            latest: Latest { sight: Sight { status: Status::Unknown, in_run: false }, frequency: 0 },
            resident: 0,
            capacity,
            look_ups: 0,
            halvings: 0,
            now: 0,
            demoted_at: 0,
        }
    }

    /// Keeps the count of a block that is not cached.
    fn keep_count(&mut self, block: u64, count: u32) {
        while self.counts.len(0) >= COUNTS_MAX * self.capacity {
            self.counts.drop_back(0);
        }
        let halvings = self.halvings & ((1 << HALVINGS_BITS) - 1);
        self.counts.push_front(0, block, count.min(FREQUENCY_MAX) << HALVINGS_BITS | halvings);
    }

    /// Takes the count of a block out of the table, halved as often as all others since it was kept.
    fn take_count(&mut self, block: u64) -> Option<u32> {
        let (_, kept) = self.counts.take(block)?;
        let missed = self.halvings.wrapping_sub(kept) & ((1 << HALVINGS_BITS) - 1);
        Some((kept >> HALVINGS_BITS).checked_shr(missed).unwrap_or(0))
    }

    fn capacities(&self, count: u64) -> u64 {
        count.saturating_mul(self.capacity as u64)
    }

    /// Whether a block may displace the one in `slot`, which is as hot.
    fn is_idle(&self, slot: u32) -> bool {
        let last_use = self.last_use[slot as usize];
        self.settings.idle_capacities.is_some_and(|capacities| {
            last_use <= self.demoted_at && self.now - last_use >= self.capacities(capacities)
        })
    }

    fn tick(&mut self) {
        self.now += 1;
        let Some(passes) = self.settings.halving_passes else { return };
        self.look_ups += 1;
        let shortest = self.capacities(self.settings.halving_capacities);
        if self.look_ups >= shortest.max(passes.saturating_mul(self.detector.database_blocks())) {
            self.look_ups = 0;
            self.halvings = self.halvings.wrapping_add(1);
            // Rounded up, so that what is cached and used once stays above what was never used.
            self.slots.renumber(Among::HotLast, |frequency| frequency.div_ceil(2));
        }
    }
}

impl<T: BlockTable> Policy for HeuristicDb<T> {
    fn hit(&mut self, slot: Slot, access: Access) {
        self.tick();
        self.queries.look_up(true);
        self.last_use[slot.index()] = self.now;
        if self.slots.frequency(slot.0) < FREQUENCY_MAX {
            self.slots.increment(slot.0);
        }
        let frequency = self.slots.frequency(slot.0);
        self.latest = Latest { sight: self.detector.see(access, frequency), frequency };
    }

    fn miss(&mut self, access: Access) {
        self.tick();
        self.queries.look_up(false);
        let frequency = self.take_count(access.block).unwrap_or(0) + 1;
        self.keep_count(access.block, frequency);
        self.latest = Latest { sight: self.detector.see(access, frequency), frequency };
    }

    fn admits(&mut self, access: Access) -> bool {
        let Latest { sight, frequency } = self.latest;
        if access.write {
            return true;
        }
        let full = self.resident >= self.capacity;
        let hotter = !full
            || self.slots.coldest().is_none_or(|(slot, coldest)| {
                frequency > coldest || (frequency == coldest && self.is_idle(slot))
            });
        if self.settings.rule_1_by_relation {
            sight.status != Status::Sequential && hotter
        } else {
            !full || (sight.status != Status::Sequential && !sight.in_run && hotter)
        }
    }

    fn victim(&mut self, _: Access) -> Option<Slot> {
        let (slot, frequency) = self.slots.coldest()?;
        self.remove(Slot(slot));
        self.keep_count(self.blocks[slot as usize], frequency);
        Some(Slot(slot))
    }

    fn coldest(&self) -> Option<Slot> {
        self.slots.coldest().map(|(slot, _)| Slot(slot))
    }

    fn insert(&mut self, access: Access, slot: Slot) {
        let frequency = self.take_count(access.block).unwrap_or(1);
        self.slots.insert(slot.0, frequency);
        self.blocks[slot.index()] = access.block;
        self.last_use[slot.index()] = self.now;
        self.resident += 1;
    }

    fn remove(&mut self, slot: Slot) {
        self.slots.remove(slot.0);
        self.resident -= 1;
    }

    fn hint(&mut self, hint: Hint<'_>) {
        match hint {
            Hint::RelationSize { relation, blocks } => self.detector.resize(relation, blocks),
            Hint::QueryBegins { query, relations } => {
                let judged = self.capacities(self.settings.eviction_capacities);
                let change = self.queries.begin(query, relations, judged);
                // Rule 7.2: those of the queries that still run are verified anew, too.
                self.queries.running().for_each(|relations| self.detector.verify(relations));
                let (frequency, among) = match (change, self.settings.demotion_capacities) {
                    (Change::Evict { ref hot }, _) => {
                        self.detector.mark_hot(hot);
                        (0, Among::HotFirst)
                    }
                    (Change::Demote, Some(0)) => (1, Among::HotFirst),
                    (Change::Demote, Some(capacities))
                        if self.now - self.demoted_at >= self.capacities(capacities) =>
                    {
                        // What was hot is the likeliest to be so again.
                        (1, Among::HotLast)
                    }
                    (Change::Demote | Change::Keep, _) => return,
                };
                (self.demoted_at, self.look_ups) = (self.now, 0);
                self.slots.renumber(among, |_| frequency);
                self.counts.clear();
            }
            Hint::QueryEnds { query } => self.queries.end(query),
        }
    }

    fn renamed(&mut self, slot: Slot, access: Access) {
        self.take_count(access.block);
        self.blocks[slot.index()] = access.block;
    }

    fn moved(&mut self, from: Slot, to: Slot, _: Access) {
        self.blocks[to.index()] = self.blocks[from.index()];
        self.last_use[to.index()] = self.last_use[from.index()];
        self.slots.substitute(from.0, to.0);
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.slots.grow(capacity);
        let slots = capacity.max(self.blocks.len());
        self.blocks.resize(slots, 0);
        self.last_use.resize(slots, 0);
    }
}

#[cfg(test)]
mod tests;
