//! Rationed admission: a share of the admissions that LRU would have, spent on the blocks most likely to come back.
//!
//! A device that writes wear out can take so many admissions and no more. A fixed chance spends them blindly, a filter by frequency
//! spends as many as it happens to. Here three small things are kept, and the rest follows from the load:
//!
//! - **What LRU would do** ([`Residents`]): the blocks that an LRU cache of the same size would hold. Each of its misses is an admission
//!   of LRU's and earns `share` of an admission here.
//! - **The odds** of each *class* of blocks. The class is what the [`History`] knew of the block when it was asked for: how often lately,
//!   and how long ago. A block that missed *came back* if it is asked for again while LRU would still hold it; the odds of its class are
//!   learned from that, whether it was admitted or not, so a class that is refused today can be admitted tomorrow.
//! - **The price** of an admission, in the same unit. It rises with every admission and falls with every one that is earned, so
//!   that after some time just the classes are admitted that can be afforded; what has been saved lowers it, a debt raises it. It moves
//!   slowly: a price that follows each burst admits now all blocks of a class and then none of it, and both are worse than the right half
//!   of the classes at all times.
//!
//! Memory: 32 to 64 bytes a slot for the history, and about as many for what LRU would do, of which a cache with more than
//! [`SAMPLED_BLOCKS`] slots follows a sample of as many.

use super::{Admission, Occupancy};
use crate::policy::lists::Lists;
use crate::policy::sample::Sample;
use crate::policy::{Access, BlockTable};

/// The share of LRU's admissions that is spent if none is given: a third, less what a price that moves slowly may be in debt.
pub(crate) const SHARE: f64 = 0.325;
/// Blocks that are followed in what LRU would do, at most.
const SAMPLED_BLOCKS: usize = 1 << 16;
/// How far odds move towards what was seen, for each that was seen.
const LEARNED: f32 = 0.05;
/// What one admission adds to the price.
const STEP: f64 = 1e-4;
/// What savings of as many admissions as there are slots take off the price.
const PULL: f64 = 2.0;
/// Admissions that can be saved, in multiples of the slots.
const SAVED_MAX: f64 = 1.0;
/// The price in log odds: below the lower no admission is worth its write, above the upper none is made.
const PRICES: (f64, f64) = (-2.0, 8.0);

/// Admits what is most likely to come back, as much as there is for; see [`Filtered`](crate::policy::Filtered).
pub struct Ration<T> {
    share: f64,
    capacity: usize,
    history: History,
    residents: Residents<T>,
    sample: Sample,
    /// Of each class, in log odds.
    odds: Vec<f32>,
    price: f64,
    /// Admissions that were earned and not spent; below zero, a debt.
    saved: f64,
    /// Of the look-up that was told last.
    class: u16,
}

impl<T: BlockTable> Ration<T> {
    /// For a cache of `capacity` blocks, `share` of the admissions that LRU would have there.
    ///
    /// ```
    /// use terrace_block::policy::{Access, Applies, DenseTable, Filtered, Lru, Policy, Ration};
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

    /// Blocks of `class` came back, or did not.
    fn learn(&mut self, class: u16, came_back: bool) {
        let Some(odds) = self.odds.get_mut(usize::from(class)) else { return };
        let expected = 1.0 / (1.0 + (-*odds).exp());
        *odds += LEARNED * (f32::from(u8::from(came_back)) - expected);
    }

    /// `admissions` more can be afforded, or fewer.
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
        // What hits asks for no admission, so it teaches nothing of those that do.
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
        // What was learned of classes holds for the load, not for the size.
        let (odds, price) = (std::mem::take(&mut self.odds), self.price);
        *self = Ration { odds, price, ..Ration::new(capacity, self.share) };
    }
}

/// Uses that classes tell apart: none, once, and so on to as many or more.
const USES: u16 = 16;
/// Ages that classes tell apart, each of twice the length of the one before.
const AGES: u16 = 22;
const CLASSES: usize = (USES * AGES) as usize;
/// No class: the look-up teaches nothing.
const NO_CLASS: u16 = u16::MAX;

/// Entries of a set, of which a block has one.
const WAYS: usize = 4;
/// Entries for each slot of the cache, rounded up to a power of two.
const ENTRIES: usize = 8;
/// Ticks of the clock in as many look-ups as the cache has slots.
const TICKS: u64 = 64;
/// After so many times the capacity, uses are halved.
const HALVED_AFTER: u64 = 10;

/// When and how often blocks were asked for lately: four bytes an entry, the earliest of a set is forgotten first.
///
/// ```text
///   31      24 23    20 19            0
///  | tag 8   | uses 4 | tick 20       |    0: nobody
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

    /// Counts the block, and gives the class it had before.
    fn look_up(&mut self, block: u64) -> u16 {
        self.look_ups += 1;
        let tick = self.look_ups / self.tick_look_ups;
        // The finaliser of SplitMix64, from a start of its own.
        let mut hash = block.wrapping_add(0xDAA6_6D2C_7DDF_743F);
        hash = (hash ^ hash >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        hash = (hash ^ hash >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        hash ^= hash >> 31;
        let first = (hash as usize & (self.entries.len() - 1)) / WAYS * WAYS;
        let tag = (hash >> 56) as u32;
        let set = &mut self.entries[first..first + WAYS];
        let age = |entry: u32| tick.wrapping_sub(u64::from(entry)) & TICK_MASK;
        let known = set.iter().position(|&entry| entry != 0 && entry >> TAG_SHIFT == tag);
        let (place, class, uses) = match known {
            Some(place) => {
                let (entry, age) = (set[place], age(set[place]));
                let halved =
                    tick / (HALVED_AFTER * TICKS) - tick.saturating_sub(age) / (HALVED_AFTER * TICKS);
                let uses = (entry >> USES_SHIFT & u32::from(USES - 1)) >> halved.min(31);
                // From 1 on: 0 is the age of those that nobody knows.
                let age = (u64::BITS - age.leading_zeros()) as u16;
                (place, uses as u16 * AGES + (1 + age).min(AGES - 1), uses)
            }
            None => {
                let empty = set.iter().position(|&entry| entry == 0);
                let earliest = || (0..WAYS).max_by_key(|&place| age(set[place])).unwrap_or(0);
                (empty.unwrap_or_else(earliest), 0, 0)
            }
        };
        let uses = (uses + 1).min(u32::from(USES - 1));
        set[place] = tag << TAG_SHIFT | uses << USES_SHIFT | (tick & TICK_MASK) as u32;
        class
    }
}

/// What a look-up of [`Residents`] found.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// LRU would have the block, which was of that class when it was asked for last.
    Resident { class: u16 },
    /// LRU would admit it, and another of that class would leave, if it were full.
    Admitted { left: Option<u16> },
}

/// The blocks that an LRU cache would hold.
struct Residents<T> {
    slots: T,
    /// Most recently used in front.
    order: Lists<1>,
    /// By slot, with their class.
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

    /// Half of the look-ups are for a block never asked for again, the others for some of 2,000, the first ones more often.
    fn mixed(random: &mut Random, step: u64) -> Access {
        Access::read(if step.is_multiple_of(2) { 10_000 + step } else { random.skewed(2000) })
    }

    #[test]
    fn no_more_is_admitted_than_the_share_whatever_the_load() {
        for share in [0.1, SHARE, 0.6] {
            let (mut random, mut cache) = (Random(3), rationed(share));
            let mut lru = Cache::new(Lru::new(CAPACITY), CAPACITY);
            for step in 0..300_000u64 {
                // Loops, then the mixed load, then blocks that all come back once.
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
        // Everything comes back soon and once: all that is worth anything is new.
        let access = |step: u64| Access::read((1 << 20) + step / 2 - step % 2 * 30);
        // Before that, what is new never comes back.
        (0..100_000).for_each(|step| _ = cache.access(Access::read(step)));
        let before = cache.misses;
        (0..100_000).for_each(|step| _ = cache.access(access(step)));
        let turned = cache.misses - before;
        assert!(turned < 85_000, "{turned} misses of 100,000");
    }

    #[test]
    fn history_tells_how_often_and_how_long_ago_and_forgets() {
        let mut history = History::new(6400);
        // A tick is 100 look-ups.
        assert_eq!(history.look_up(7), 0);
        assert_eq!(history.look_up(7), AGES + 1);
        (0..300).for_each(|block| _ = history.look_up(1000 + block));
        assert_eq!(history.look_up(7), 2 * AGES + 3, "two uses, three ticks ago");
        (0..HALVED_AFTER * 6400).for_each(|_| _ = history.look_up(8));
        assert_eq!(history.look_up(7) / AGES, 1, "three uses, halved");
        let blocks = 100 * 6400;
        (0..blocks).for_each(|block| _ = history.look_up(1 << 30 | block));
        // A tag has eight bits, so a few strangers look known.
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
