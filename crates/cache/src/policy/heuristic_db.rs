//! HeuristicDB: a block cache that knows tables and queries (Yang, Li and Lilja, SYSTOR 2021; paper
//! 002, section 5).
//!
//! The **query profile queue** is in [`queries`], the **access pattern detector** in [`detector`];
//! here are the **eviction and demotion program** (rule 6) and the **page placement controller**
//! (rules 1 to 5).
//!
//! Rules: refuse blocks of sequential relations (1); admit those of random, repeated, hot or
//! unknown ones (2, 3, 6.2), but into a full cache only if used more often than the coldest block
//! (4); always admit writes (5). The coldest is the least recently used block of the lowest
//! frequency. With concurrent queries (7), hits count for the last one, and each submission
//! verifies the relations of all running queries anew.
//!
//! `heuristicdb-paper` follows the paper. Its demotion equalises all blocks, and after a query of
//! one or two lookups its eviction may clear everything. The others judge over a capacity of
//! lookups. `heuristicdb`, the default, halves frequencies instead, and lets sequential runs fill
//! free slots only. `heuristicdb-eager`, for live caches with long queries, demotes and halves at
//! intervals, and replaces a long idle coldest block by an equally hot one. Decisions:
//! `docs/decisions/0019-heuristicdb.md`.
//!
//! Memory: 20 bytes per slot, 28 with `heuristicdb-eager`; counts of at most four absent blocks per
//! slot, 27 bytes each; 48 bytes per relation; relation lists of at most 64 running queries.

mod detector;
mod queries;

use detector::{Detector, Sight, Status};
use queries::{Change, Queries};

use super::frequency::{Among, FrequencyLists};
use super::ghosts::Ghosts;
use super::{Access, BlockTable, Hint, Policy, Slot};

/// Counts of absent blocks, in multiples of the capacity.
const COUNTS_MAX: usize = 4;
/// Bits of a stored count that hold the number of halvings.
const HALVINGS_BITS: u32 = 8;
/// A run's band, for files of some gigabytes.
const BAND_BLOCKS: u64 = 16;
const FREQUENCY_MAX: u32 = (1 << (31 - HALVINGS_BITS)) - 1;

/// The differences between the variants of HeuristicDB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeuristicDbSettings {
    /// Rule 6, eviction: a new query zeroes all frequencies if this many lookups, in multiples of
    /// the capacity, had no hit. 0 judges by the last query alone.
    pub eviction_capacities: u64,
    /// Rule 6, demotion: a new query sets all frequencies to one and drops other counts, at most
    /// once per this many lookups, in multiples of the capacity. A query too short for eviction
    /// never demotes. `None` turns it off.
    pub demotion_capacities: Option<u64>,
    /// Halves frequencies after this many lookups per block of known relations; `None` never
    /// halves.
    pub halving_passes: Option<u64>,
    /// Minimum lookups between halvings, in multiples of the capacity.
    pub halving_capacities: u64,
    /// An equally hot block replaces an idle coldest block. Idle means unused for this many
    /// lookups, in multiples of the capacity, and since its demotion. `None` turns it off.
    pub idle_capacities: Option<u64>,
    /// Rule 1 to the letter: refuse all blocks of sequential relations. Otherwise free slots take
    /// them, and blocks of sequential runs displace nothing.
    pub rule_1_by_relation: bool,
    /// Most blocks skipped within a sequential run, since the layer above may cache some.
    pub band_blocks: u64,
}

impl HeuristicDbSettings {
    /// The paper's rules.
    pub const PAPER: HeuristicDbSettings = HeuristicDbSettings {
        eviction_capacities: 0,
        demotion_capacities: Some(0),
        halving_passes: None,
        halving_capacities: 0,
        idle_capacities: None,
        rule_1_by_relation: true,
        band_blocks: BAND_BLOCKS,
    };
    /// Better by measurement; halves at most as often as TinyLFU's sample.
    pub const DEFAULT: HeuristicDbSettings = HeuristicDbSettings {
        eviction_capacities: 1,
        demotion_capacities: None,
        halving_passes: Some(8),
        halving_capacities: 10,
        idle_capacities: None,
        rule_1_by_relation: false,
        band_blocks: BAND_BLOCKS,
    };
    /// For queries that are long relative to the cache.
    pub const EAGER: HeuristicDbSettings = HeuristicDbSettings {
        eviction_capacities: 1,
        demotion_capacities: Some(7),
        halving_passes: Some(1),
        halving_capacities: 5,
        idle_capacities: Some(4),
        rule_1_by_relation: false,
        band_blocks: BAND_BLOCKS,
    };
}

impl Default for HeuristicDbSettings {
    fn default() -> Self {
        HeuristicDbSettings::DEFAULT
    }
}

/// The HeuristicDB policy.
///
/// Wants relations in accesses and [`QueryBegins`](Hint::QueryBegins); without them it is LFU with
/// a filter.
///
/// ```
/// use terrace_cache::policy::{
///     Access, HashedTable, HeuristicDb, HeuristicDbSettings, Policy, Slot,
/// };
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
pub struct HeuristicDb<T: BlockTable> {
    settings: HeuristicDbSettings,
    slots: FrequencyLists,
    blocks: Vec<u64>,
    /// Empty if no block is ever idle.
    last_use: Vec<u64>,
    /// Counts of absent blocks, least recently counted at the back.
    counts: Ghosts<T, 1>,
    detector: Detector,
    queries: Queries,
    /// The last lookup's result.
    latest: Latest,
    resident: usize,
    capacity: usize,
    /// Lookups since the last halving.
    look_ups: u64,
    halvings: u32,
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
            last_use: vec![0; if settings.idle_capacities.is_some() { capacity } else { 0 }],
            counts: Ghosts::new(),
            detector: Detector::new(settings.band_blocks),
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

    fn keep_count(&mut self, block: u64, count: u32) {
        while self.counts.len(0) >= COUNTS_MAX * self.capacity {
            self.counts.drop_back(0);
        }
        let halvings = self.halvings & ((1 << HALVINGS_BITS) - 1);
        self.counts.push_front(0, block, count.min(FREQUENCY_MAX) << HALVINGS_BITS | halvings);
    }

    /// Removes a block's stored count, with the halvings since applied.
    fn take_count(&mut self, block: u64) -> Option<u32> {
        let (_, kept) = self.counts.take(block)?;
        let missed = self.halvings.wrapping_sub(kept) & ((1 << HALVINGS_BITS) - 1);
        Some((kept >> HALVINGS_BITS).checked_shr(missed).unwrap_or(0))
    }

    fn capacities(&self, count: u64) -> u64 {
        count.saturating_mul(self.capacity as u64)
    }

    /// Whether an equally hot block may displace the one in `slot`.
    fn is_idle(&self, slot: u32) -> bool {
        self.settings.idle_capacities.is_some_and(|capacities| {
            let last_use = self.last_use[slot as usize];
            last_use <= self.demoted_at && self.now - last_use >= self.capacities(capacities)
        })
    }

    fn note_use(&mut self, slot: Slot) {
        if let Some(last_use) = self.last_use.get_mut(slot.index()) {
            *last_use = self.now;
        }
    }

    fn tick(&mut self) {
        self.now += 1;
        let Some(passes) = self.settings.halving_passes else { return };
        self.look_ups += 1;
        let shortest = self.capacities(self.settings.halving_capacities);
        if self.look_ups >= shortest.max(passes.saturating_mul(self.detector.database_blocks())) {
            self.look_ups = 0;
            self.halvings = self.halvings.wrapping_add(1);
            // Rounded up, so that blocks used once stay above unused ones.
            self.slots.renumber(Among::HotLast, |frequency| frequency.div_ceil(2));
        }
    }
}

impl<T: BlockTable> Policy for HeuristicDb<T> {
    fn hit(&mut self, slot: Slot, access: Access) {
        self.tick();
        self.queries.look_up(true);
        self.note_use(slot);
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
        self.note_use(slot);
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
                // Rule 7.2: verify the relations of all running queries.
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
                        // Formerly hot blocks probably become hot again.
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
        if let Some(&last_use) = self.last_use.get(from.index()) {
            self.last_use[to.index()] = last_use;
        }
        self.slots.substitute(from.0, to.0);
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.slots.grow(capacity);
        let slots = capacity.max(self.blocks.len());
        self.blocks.resize(slots, 0);
        if self.settings.idle_capacities.is_some() {
            self.last_use.resize(slots, 0);
        }
    }
}

#[cfg(test)]
mod tests;
