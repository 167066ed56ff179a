//! One protocol test for every policy, against a model.
//!
//! Every policy must name resident slots only, forget slots that left, return every slot, and
//! decide alike with both kinds of table.

use std::collections::HashMap;

use super::{
    Access, BlockTable, DenseTable, Future, HashedTable, Hint, NAMES, Name, Policy, Relation, Settings, Slot,
};

/// The caller's half of the protocol, which checks every answer.
pub(crate) struct Cache<P> {
    pub policy: P,
    pub misses: u64,
    /// Insertions, evictions and invalidations.
    pub writes: u64,
    slots: HashMap<u64, Slot>,
    blocks: Vec<Option<u64>>,
    free: Vec<Slot>,
    capacity: usize,
}

impl<P: Policy> Cache<P> {
    pub fn new(policy: P, capacity: usize) -> Self {
        let free = (0..capacity as u32).rev().map(Slot).collect();
        Cache {
            policy,
            misses: 0,
            writes: 0,
            slots: HashMap::new(),
            blocks: vec![None; capacity],
            free,
            capacity,
        }
    }

    pub fn resident(&self) -> usize {
        self.slots.len()
    }

    /// Looks up a block; true is a hit.
    pub fn access(&mut self, access: Access) -> bool {
        if let Some(&slot) = self.slots.get(&access.block) {
            self.policy.hit(slot, access);
            return true;
        }
        self.misses += 1;
        self.policy.miss(access);
        if !self.policy.admits(access) {
            return false;
        }
        let slot = if self.slots.len() < self.capacity {
            self.free.pop().expect("a cache below its capacity has a free slot")
        } else {
            self.evict(access).expect("a full cache has a victim")
        };
        self.policy.insert(access, slot);
        self.writes += 1;
        self.blocks[slot.index()] = Some(access.block);
        self.slots.insert(access.block, slot);
        false
    }

    /// Evicts a victim, whose slot the caller keeps.
    pub fn evict(&mut self, access: Access) -> Option<Slot> {
        let slot = self.policy.victim(access)?;
        self.writes += 1;
        let block = self.blocks[slot.index()].take().expect("a victim is resident");
        self.slots.remove(&block);
        Some(slot)
    }

    pub fn invalidate(&mut self, block: u64) {
        if let Some(slot) = self.slots.remove(&block) {
            self.policy.remove(slot);
            self.writes += 1;
            self.blocks[slot.index()] = None;
            self.free.push(slot);
        }
    }

    /// Renames `from` to `to`, which was never looked up.
    pub fn rename(&mut self, from: u64, to: Access) {
        if !self.slots.contains_key(&to.block)
            && let Some(slot) = self.slots.remove(&from)
        {
            self.policy.renamed(slot, to);
            self.blocks[slot.index()] = Some(to.block);
            self.slots.insert(to.block, slot);
        }
    }

    /// Moves the block to another slot, if one is free.
    pub fn relocate(&mut self, block: u64) {
        if let Some(&from) = self.slots.get(&block)
            && let Some(to) = self.free.pop()
        {
            self.policy.moved(from, to, Access::write(block));
            self.blocks.swap(from.index(), to.index());
            self.slots.insert(block, to);
            self.free.insert(0, from);
        }
    }

    pub fn resize(&mut self, capacity: usize) {
        self.policy.resize(capacity);
        let known = self.blocks.len();
        if capacity > known {
            self.blocks.resize(capacity, None);
            self.free.extend((known as u32..capacity as u32).map(Slot));
        }
        self.capacity = capacity;
        while self.slots.len() > capacity {
            let slot = self.evict(Access::read(0)).expect("a full cache has a victim");
            self.free.push(slot);
        }
    }
}

/// xorshift64*, so that the seed alone replays a failure.
pub(crate) struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) % end
    }

    /// Skewed towards small numbers.
    pub fn skewed(&mut self, end: u64) -> u64 {
        let end = 1 + self.below(end);
        self.below(end)
    }
}

fn random_run<T: BlockTable>(name: &Name, seed: u64) -> Vec<bool> {
    let mut random = Random(seed);
    let mut capacity = 1 + random.below(60) as usize;
    // Not this run's future: the protocol must hold for a wrong bound too.
    let future = Some(std::sync::Arc::new(Future::of((0..2000).map(|_| random.skewed(200)))));
    let settings = Settings { future, ..Settings::new(capacity) };
    let mut cache = Cache::new(name.boxed::<T>(&settings), capacity);
    let mut hits = Vec::new();
    for step in 0..4000 {
        let block = random.skewed(200);
        let access = Access {
            continues: false,
            write: random.below(4) == 0,
            ..Access::read(block).of(Relation((block / 50) as u32), block % 50)
        };
        if random.below(100) == 0 {
            let relations = [Relation(random.below(4) as u32), Relation(random.below(4) as u32)];
            cache.policy.hint(Hint::QueryBegins { query: step, relations: &relations });
        }
        match random.below(400) {
            0 => {
                capacity = 1 + random.below(90) as usize;
                cache.resize(capacity);
            }
            1..10 => cache.invalidate(block),
            10..20 => cache.rename(random.skewed(200), access),
            20..30 => cache.relocate(block),
            _ => hits.push(cache.access(access)),
        }
        assert!(cache.slots.len() <= capacity, "{name}, seed {seed}, step {step}: over capacity");
        if let Some(slot) = cache.policy.coldest() {
            assert!(
                cache.blocks[slot.index()].is_some(),
                "{name}, seed {seed}, step {step}: coldest is not resident"
            );
        }
    }
    while let Some(slot) = cache.evict(Access::write(1000)) {
        cache.free.push(slot);
    }
    assert_eq!(cache.slots.len(), 0, "{name}, seed {seed}: a block never leaves");
    hits
}

/// Takes victims until none are left, as a caller with busy slots does.
#[test]
fn every_policy_can_be_emptied_at_any_size() {
    for name in NAMES {
        let name: Name = name.parse().expect("a policy's name");
        for (capacity, shrunk) in [(1, 1), (2, 2), (3, 1), (7, 1), (200, 2)] {
            let future = Some(std::sync::Arc::new(Future::of(0..1000)));
            let settings = Settings { future, ..Settings::new(capacity) };
            let mut cache = Cache::new(name.boxed::<HashedTable>(&settings), capacity);
            for round in 0..3 {
                for block in 0..3 * capacity as u64 {
                    cache.access(Access::write(7919 * (block % (capacity as u64 + 1 + round))));
                }
                if shrunk != capacity {
                    cache.resize(shrunk);
                }
                while let Some(slot) = cache.evict(Access::write(7919)) {
                    cache.free.push(slot);
                }
                assert_eq!(cache.slots.len(), 0, "{name}, {capacity} blocks: a block never leaves");
                assert_eq!(cache.policy.coldest(), None, "{name}, {capacity} blocks: nothing is resident");
                if shrunk != capacity {
                    cache.resize(capacity);
                }
            }
        }
    }
}

/// A renamed block keeps its order of eviction.
#[test]
fn a_renamed_block_keeps_its_position() {
    for name in [
        "lru",
        "fifo",
        "clock",
        "lfu",
        "lfu-in-cache",
        "lfru",
        "arc",
        "mq",
        "2q",
        "s3-fifo",
        "sieve",
        "lirs",
        "w-tinylfu",
        "heuristicdb",
        "heuristicdb-eager",
        "auto",
        "auto-thrifty",
        "obp+lru",
    ] {
        let name: Name = name.parse().expect("a policy's name");
        let run = |rename: bool| {
            let mut cache = Cache::new(name.boxed::<HashedTable>(&Settings::new(20)), 20);
            let mut random = Random(7);
            for _ in 0..300 {
                cache.access(Access::read(random.skewed(25)));
            }
            if rename {
                (0..25).for_each(|block| cache.rename(block, Access::read(1000 + block)));
            }
            let leave = std::iter::from_fn(|| cache.evict(Access::read(5000)));
            leave.map(|slot| slot.0).collect::<Vec<_>>()
        };
        assert_eq!(run(true), run(false), "{name}");
    }
}

/// Relocation changes no order of eviction.
#[test]
fn a_block_in_another_slot_keeps_its_position() {
    let candidates = NAMES.iter().filter(|name| !name.starts_with("auto") && **name != "belady");
    for name in candidates.chain(&["obp:1+lru", "frequency+sieve"]) {
        let name: Name = name.parse().expect("a policy's name");
        let run = |relocate: bool| {
            let mut cache = Cache::new(name.boxed::<HashedTable>(&Settings::new(20)), 20);
            // One slot more than blocks.
            cache.resize(21);
            cache.resize(20);
            let (mut random, mut other) = (Random(7), Random(8));
            let mut hits = Vec::new();
            for _ in 0..3000 {
                let block = random.skewed(60);
                hits.push(cache.access(Access::read(block).of(Relation((block / 20) as u32), block % 20)));
                if relocate {
                    cache.relocate(other.skewed(60));
                }
            }
            let leave = std::iter::from_fn(|| {
                let blocks = cache.blocks.clone();
                blocks[cache.evict(Access::read(5000))?.index()]
            });
            let left: Vec<_> = leave.collect();
            (hits, left)
        };
        assert!(run(true) == run(false), "{name}");
    }
}

#[test]
fn a_ghost_is_not_lost_when_a_second_victim_is_asked_for() {
    for name in ["arc", "2q", "s3-fifo", "mq"] {
        let policy = name.parse::<Name>().expect("a policy's name").boxed::<HashedTable>(&Settings::new(40));
        let mut cache = Cache::new(policy, 40);
        let mut busy = Vec::new();
        for block in 0..60 {
            cache.access(Access::read(block));
            if block % 3 == 0 {
                cache.access(Access::read(block));
            }
        }
        // A ghost in each list; two of three victims are busy.
        let ghost =
            Access::read((0..60).rev().find(|block| !cache.slots.contains_key(block)).expect("evicted"));
        cache.policy.miss(ghost);
        let slot = cache.evict(ghost).expect("a full cache has a victim");
        busy.push(cache.evict(ghost).expect("a full cache has a victim"));
        cache.policy.insert(ghost, slot);
        cache.blocks[slot.index()] = Some(ghost.block);
        cache.slots.insert(ghost.block, slot);
        cache.free.extend(busy);
        // Returned blocks outlive a scan; new ones do not.
        for block in 1000..1100 {
            cache.access(Access::read(block));
        }
        assert!(cache.slots.contains_key(&ghost.block), "{name}");
    }
}

/// A hint with every lookup: queries of one block each, and tables dropped and made again.
#[test]
fn no_number_of_hints_empties_a_cache() {
    // The paper's rule 6 judges by one query, however short.
    for name in NAMES.iter().filter(|name| !["belady", "heuristicdb-paper"].contains(*name)) {
        let misses = [false, true].map(|hinted| {
            let name: Name = name.parse().expect("a policy's name");
            let mut cache = Cache::new(name.boxed::<HashedTable>(&Settings::new(200)), 200);
            let mut random = Random(11);
            for step in 0..40_000 {
                let block = random.skewed(1000);
                let relation = Relation((block / 250) as u32);
                if hinted {
                    let blocks = step % 3 / 2 * 250;
                    cache.policy.hint(Hint::RelationSize { relation, blocks });
                    cache.policy.hint(Hint::QueryBegins { query: step, relations: &[relation] });
                }
                cache.access(Access::read(block).of(relation, block % 250 * 997 % 250));
                if hinted && step % 2 == 0 {
                    cache.policy.hint(Hint::QueryEnds { query: step });
                }
            }
            cache.misses
        });
        assert!(100 * misses[1] <= 105 * misses[0], "{name}: {misses:?}, without and with hints");
    }
}

#[test]
fn every_policy_keeps_the_protocol() {
    let filtered = [
        "obp+lru",
        "ration+mq",
        "frequency+arc",
        "probability:0.5@reads+s3-fifo",
        "small-bypass:9+obp-lifetime:0.9+2q",
    ];
    for name in NAMES.iter().chain(&filtered) {
        let name: Name = name.parse().expect("a policy's name");
        for seed in 1..=20 {
            let dense = random_run::<DenseTable>(&name, seed);
            let hashed = random_run::<HashedTable>(&name, seed);
            assert_eq!(dense, hashed, "{name}, seed {seed}: the table changes decisions");
            assert!(dense.iter().any(|&hit| hit), "{name}, seed {seed}: nothing hits");
        }
    }
}
