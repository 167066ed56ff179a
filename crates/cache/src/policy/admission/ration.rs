//! Rationed admission: a share of LRU's admissions, for the most promising blocks.
//!
//! - **LRU's behaviour** ([`Residents`]): the blocks of an LRU cache of this size. Each of its
//!   misses earns `share` of an admission.
//! - **Odds** per *class* of blocks: how often and how long ago the [`History`] saw the block. A
//!   missed block *returns* if it is used again while LRU would still hold it. Refused classes
//!   learn too.
//! - **The price** of an admission, in log odds. Admissions and debt raise it, earnings and savings
//!   lower it. It moves slowly: after each burst a fast price would admit all of a class and then
//!   none.
//!
//! Memory: 32 to 64 bytes per slot for the history and as much for LRU's behaviour, which is
//! sampled beyond [`SAMPLED_BLOCKS`] slots.

use super::{Admission, Occupancy};
use crate::policy::lists::Lists;
use crate::policy::sample::Sample;
use crate::policy::{Access, BlockTable};

/// The default share of LRU's admissions: a third, less the possible debt of a slow price.
pub(crate) const SHARE: f64 = 0.325;
/// Most blocks in the model of LRU.
const SAMPLED_BLOCKS: usize = 1 << 16;
/// Fraction by which odds move towards each observation.
const LEARNED: f32 = 0.05;
/// Price increase per admission.
const STEP: f64 = 1e-4;
/// Price reduction if savings equal the number of slots.
const PULL: f64 = 2.0;
/// Most saved admissions, in multiples of the slots.
const SAVED_MAX: f64 = 1.0;
/// Bounds of the price in log odds: never worth a write; never admitted.
const PRICES: (f64, f64) = (-2.0, 8.0);

/// Admits the most promising blocks within a ration; see [`Filtered`](crate::policy::Filtered).
pub struct Ration<T> {
    share: f64,
    capacity: usize,
    history: History,
    residents: Residents<T>,
    sample: Sample,
    /// Log odds by class.
    odds: Vec<f32>,
    price: f64,
    /// Earned admissions not spent yet; negative for a debt.
    saved: f64,
    /// The class of the last lookup.
    class: u16,
}

impl<T: BlockTable> Ration<T> {
    /// For `capacity` blocks, with `share` of LRU's admissions.
    ///
    /// ```
    /// use terrace_cache::policy::{Access, Applies, DenseTable, Filtered, Lru, Policy, Ration};
    ///
    /// let never = Box::new(Ration::<DenseTable>::new(10, 0.0));
    /// let mut policy = Filtered::new(Lru::new(10), 10, vec![(Applies::Both, never)]);
    /// policy.miss(Access::read(1));
    /// assert!(!policy.admits(Access::read(1)));
    /// ```
    pub fn new(capacity: usize, share: f64) -> Self {
        let sample = Sample::new(capacity, SAMPLED_BLOCKS);
        Ration {
            share: share.clamp(0.0, 1.0),
            capacity,
            history: History::new(capacity),
            residents: Residents::new(sample.capacity),
            sample,
            odds: vec![0.0; CLASSES],
            price: 0.0,
            saved: 0.0,
            class: 0,
        }
    }

    fn learn(&mut self, class: u16, came_back: bool) {
        let Some(odds) = self.odds.get_mut(usize::from(class)) else { return };
        let expected = 1.0 / (1.0 + (-*odds).exp());
        *odds += LEARNED * (f32::from(u8::from(came_back)) - expected);
    }

    fn earn(&mut self, admissions: f64) {
        self.saved = (self.saved + admissions).min(SAVED_MAX * self.capacity as f64);
        self.price = (self.price - STEP * admissions).clamp(PRICES.0, PRICES.1);
    }
}

impl<T: BlockTable> Admission for Ration<T> {
    fn look_up(&mut self, access: Access, hit: bool) {
        self.class = self.history.look_up(access.block);
        if !self.sample.has(access.block) {
            return;
        }
        // A hit needs no admission, so it teaches nothing about misses.
        match self.residents.look_up(access.block, if hit { NO_CLASS } else { self.class }) {
            Found::Resident { class } => self.learn(class, true),
            Found::Admitted { left } => {
                self.earn(self.share * self.capacity as f64 / self.sample.capacity as f64);
                if let Some(class) = left {
                    self.learn(class, false);
                }
            }
        }
    }

    fn admits(&mut self, _: Access, _: Occupancy) -> bool {
        if self.share == 0.0 {
            return false;
        }
        let price = (self.price - PULL * self.saved / self.capacity as f64).max(PRICES.0);
        f64::from(self.odds[usize::from(self.class)]) > price
    }

    fn inserted(&mut self) {
        self.earn(-1.0);
    }

    fn resize(&mut self, capacity: usize) {
        // Odds depend on the load, not on the size.
        let (odds, price) = (std::mem::take(&mut self.odds), self.price);
        *self = Ration { odds, price, ..Ration::new(capacity, self.share) };
    }
}

/// Distinguished use counts: none, once, up to this or more.
const USES: u16 = 16;
/// Distinguished ages, each twice as long as the one before.
const AGES: u16 = 22;
const CLASSES: usize = (USES * AGES) as usize;
/// A lookup that teaches nothing.
const NO_CLASS: u16 = u16::MAX;

const WAYS: usize = 4;
/// Entries per slot of the cache, rounded up to a power of two.
const ENTRIES: usize = 8;
/// Clock ticks per as many lookups as slots.
const TICKS: u64 = 64;
/// Multiples of the capacity after which uses are halved.
const HALVED_AFTER: u64 = 10;

/// Recent times and counts of lookups: four bytes per entry; a set replaces its earliest.
///
/// ```text
///   31      24 23    20 19            0
///  | tag 8   | uses 4 | tick 20       |    0: empty
/// ```
struct History {
    entries: Vec<u32>,
    look_ups: u64,
    tick_look_ups: u64,
}

const TICK_BITS: u32 = 20;
const TICK_MASK: u64 = (1 << TICK_BITS) - 1;
const USES_SHIFT: u32 = TICK_BITS;
const TAG_SHIFT: u32 = 24;

impl History {
    fn new(capacity: usize) -> History {
        let entries = (ENTRIES * capacity).next_power_of_two().max(WAYS);
        History { entries: vec![0; entries], look_ups: 0, tick_look_ups: (capacity as u64 / TICKS).max(1) }
    }

    /// Counts the block and returns its previous class.
    fn look_up(&mut self, block: u64) -> u16 {
        self.look_ups += 1;
        let tick = self.look_ups / self.tick_look_ups;
        // The finaliser of SplitMix64, with its own start.
        let mut hash = block.wrapping_add(0xDAA6_6D2C_7DDF_743F);
        hash = (hash ^ hash >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        hash = (hash ^ hash >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        hash ^= hash >> 31;
        let first = (hash as usize & (self.entries.len() - 1)) / WAYS * WAYS;
        let tag = (hash >> 56) as u32;
        let set = &mut self.entries[first..first + WAYS];
        let age = |entry: u32| tick.wrapping_sub(u64::from(entry)) & TICK_MASK;
        let known = set.iter().position(|&entry| entry != 0 && entry >> TAG_SHIFT == tag);
        let (position, class, uses) = match known {
            Some(position) => {
                let (entry, age) = (set[position], age(set[position]));
                let halved =
                    tick / (HALVED_AFTER * TICKS) - tick.saturating_sub(age) / (HALVED_AFTER * TICKS);
                let uses = (entry >> USES_SHIFT & u32::from(USES - 1)) >> halved.min(31);
                // From 1 on: 0 is the age of unknown blocks.
                let age = (u64::BITS - age.leading_zeros()) as u16;
                (position, uses as u16 * AGES + (1 + age).min(AGES - 1), uses)
            }
            None => {
                let empty = set.iter().position(|&entry| entry == 0);
                let earliest = || (0..WAYS).max_by_key(|&position| age(set[position])).unwrap_or(0);
                (empty.unwrap_or_else(earliest), 0, 0)
            }
        };
        let uses = (uses + 1).min(u32::from(USES - 1));
        set[position] = tag << TAG_SHIFT | uses << USES_SHIFT | (tick & TICK_MASK) as u32;
        class
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// In LRU's cache, with its class at the last use.
    Resident { class: u16 },
    /// LRU would admit it, and evict a block of class `left` if full.
    Admitted { left: Option<u16> },
}

/// The blocks in a model of an LRU cache.
struct Residents<T> {
    slots: T,
    /// Most recently used in front.
    order: Lists<1>,
    blocks: Vec<(u64, u16)>,
    capacity: usize,
}

impl<T: BlockTable> Residents<T> {
    fn new(capacity: usize) -> Self {
        Residents { slots: T::default(), order: Lists::new(0), blocks: Vec::new(), capacity: capacity.max(1) }
    }

    fn look_up(&mut self, block: u64, class: u16) -> Found {
        if let Some(slot) = self.slots.get(block) {
            self.order.move_to_front(0, slot);
            let earlier = std::mem::replace(&mut self.blocks[slot as usize].1, class);
            return Found::Resident { class: earlier };
        }
        let victim = if self.blocks.len() < self.capacity { None } else { self.order.pop_back(0) };
        let (slot, left) = match victim {
            Some(slot) => {
                let (left, left_class) = std::mem::replace(&mut self.blocks[slot as usize], (block, class));
                self.slots.take(left);
                (slot, Some(left_class))
            }
            None => {
                self.blocks.push((block, class));
                self.order.grow(self.blocks.len());
                (self.blocks.len() as u32 - 1, None)
            }
        };
        self.slots.set(block, slot);
        self.order.push_front(0, slot);
        Found::Admitted { left }
    }
}

#[cfg(test)]
mod tests {
    use super::{AGES, Found, HALVED_AFTER, History, NO_CLASS, Ration, Residents, SHARE};
    use crate::policy::conformance::{Cache, Random};
    use crate::policy::{Access, Applies, DenseTable, Filtered, HashedTable, Lru, Probability};

    const CAPACITY: usize = 500;

    fn rationed(share: f64) -> Cache<Filtered<Lru>> {
        let ration = Box::new(Ration::<HashedTable>::new(CAPACITY, share));
        Cache::new(Filtered::new(Lru::new(CAPACITY), CAPACITY, vec![(Applies::Both, ration)]), CAPACITY)
    }

    /// Half of the lookups are for new blocks. The others are skewed over 2,000.
    fn mixed(random: &mut Random, step: u64) -> Access {
        Access::read(if step.is_multiple_of(2) { 10_000 + step } else { random.skewed(2000) })
    }

    #[test]
    fn no_more_is_admitted_than_the_share_whatever_the_load() {
        for share in [0.1, SHARE, 0.6] {
            let (mut random, mut cache) = (Random(3), rationed(share));
            let mut lru = Cache::new(Lru::new(CAPACITY), CAPACITY);
            for step in 0..300_000u64 {
                // Loops, then the mixed load, then blocks that each return once.
                let access = match step / 100_000 {
                    0 => Access::read(step % 900),
                    1 => mixed(&mut random, step),
                    _ => Access::read((1 << 20) + step / 2 - step % 2 * 30),
                };
                cache.access(access);
                lru.access(access);
            }
            let ratio = cache.writes as f64 / lru.writes as f64;
            assert!(ratio <= share * 1.02 + 0.01, "{ratio} of LRU's writes, not {share}");
        }
    }

    #[test]
    fn the_ration_goes_to_blocks_that_come_back() {
        let (mut random, mut cache) = (Random(5), rationed(0.2));
        let chance = Box::new(Probability::new(0.2, 1));
        let blind = Filtered::new(Lru::new(CAPACITY), CAPACITY, vec![(Applies::Both, chance)]);
        let mut blind = Cache::new(blind, CAPACITY);
        for step in 0..200_000 {
            let access = mixed(&mut random, step);
            cache.access(access);
            blind.access(access);
        }
        let (hits, blind_hits) = (200_000 - cache.misses, 200_000 - blind.misses);
        assert!(10 * hits > 11 * blind_hits, "{hits} hits, {blind_hits} by chance");
    }

    #[test]
    fn a_load_that_turns_is_followed() {
        let mut cache = rationed(0.5);
        // Every block returns once, soon: only new blocks are worth anything.
        let access = |step: u64| Access::read((1 << 20) + step / 2 - step % 2 * 30);
        // Before that, new blocks never return.
        (0..100_000).for_each(|step| _ = cache.access(Access::read(step)));
        let before = cache.misses;
        (0..100_000).for_each(|step| _ = cache.access(access(step)));
        let turned = cache.misses - before;
        assert!(turned < 85_000, "{turned} misses of 100,000");
    }

    #[test]
    fn history_tells_how_often_and_how_long_ago_and_forgets() {
        let mut history = History::new(6400);
        // A tick is 100 lookups.
        assert_eq!(history.look_up(7), 0);
        assert_eq!(history.look_up(7), AGES + 1);
        (0..300).for_each(|block| _ = history.look_up(1000 + block));
        assert_eq!(history.look_up(7), 2 * AGES + 3, "two uses, three ticks ago");
        (0..HALVED_AFTER * 6400).for_each(|_| _ = history.look_up(8));
        assert_eq!(history.look_up(7) / AGES, 1, "three uses, halved");
        let blocks = 100 * 6400;
        (0..blocks).for_each(|block| _ = history.look_up(1 << 30 | block));
        // A tag has eight bits, so a few unknown blocks look known.
        let known = (0..1000).filter(|block| history.look_up(1 << 30 | block) != 0).count();
        assert!(known < 60, "{known} of the earliest 1000 are still known");
        let latest = (blocks - 1000..blocks).filter(|block| history.look_up(1 << 30 | block) != 0).count();
        assert!(latest > 990, "{latest} of the latest 1000 are known");
    }

    #[test]
    fn residents_are_those_of_lru_and_keep_their_class() {
        let (mut residents, mut random) = (Residents::<DenseTable>::new(50), Random(9));
        let mut lru = Cache::new(Lru::new(50), 50);
        let mut classes = std::collections::HashMap::new();
        for step in 0..20_000u16 {
            let block = random.skewed(200);
            let (hit, class) = (lru.access(Access::read(block)), step % 7);
            let before = classes.insert(block, class);
            match residents.look_up(block, class) {
                Found::Resident { class } => assert!(hit && before == Some(class), "step {step}"),
                Found::Admitted { left } => {
                    assert!(!hit && left.is_none_or(|class| class != NO_CLASS), "step {step}");
                }
            }
        }
    }
}
