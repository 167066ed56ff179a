//! Selectors of both goals in small caches.

use super::expert::Expert;
use super::{Auto, ExpertCounts, Goal, Limits};
use crate::policy::conformance::{Cache, Random};
use crate::policy::{Access, DenseTable, HashedTable, Hint, Lru, Mru, Policy, Relation, S3Fifo, Slot};

#[test]
fn the_selector_leaves_a_policy_that_turns_bad() {
    const CAPACITY: usize = 500;
    let mut random = Random(5);
    let mut auto = Cache::new(Auto::<HashedTable>::new(CAPACITY, Goal::Hits, 1), CAPACITY);
    let mut first = Cache::new(S3Fifo::<HashedTable>::new(CAPACITY), CAPACITY);
    let mut lru = Cache::new(Lru::new(CAPACITY), CAPACITY);
    // A moving hot set: LRU forgets cold blocks fastest.
    for step in 0..400_000 {
        let access = Access::read(step / 20 + random.below(450));
        auto.access(access);
        first.access(access);
        lru.access(access);
    }
    assert_ne!(auto.policy.at_work().to_string(), "s3-fifo");
    assert!(
        lru.misses < first.misses && auto.misses < first.misses,
        "{} {} {}",
        auto.misses,
        first.misses,
        lru.misses
    );
}

/// Makes a cache of a few hundred blocks use a sample.
const SMALL: Limits = Limits { exact_blocks_max: 150, sampled_blocks: 50 };

#[test]
fn switches_at_any_time_keep_the_protocol() {
    for goal in [Goal::Hits, Goal::FewWrites] {
        for seed in 1..=10 {
            let mut random = Random(seed);
            let mut cache = Cache::new(Auto::<HashedTable>::limited(200, goal, seed, SMALL), 200);
            let mut switches = 0;
            for step in 0..8000u64 {
                let block = random.skewed(600);
                let candidate = random.below(cache.policy.advantages.len() as u64) as usize;
                match random.below(400) {
                    0 => cache.resize(1 + random.below(300) as usize),
                    1..10 => cache.invalidate(block),
                    10 => cache.policy.hint(Hint::QueryBegins { query: step, relations: &[Relation(1)] }),
                    11..20 if !cache.policy.is_watched(candidate) => {}
                    11..20 => match &cache.policy.experts[candidate] {
                        None => cache.policy.begin(candidate),
                        Some(expert) if expert.is_ready() && candidate != cache.policy.chosen => {
                            cache.policy.follow(candidate);
                            switches += 1;
                        }
                        Some(_) => {}
                    },
                    draw => {
                        let access = Access { write: draw % 4 == 0, ..Access::read(block) };
                        cache.access(access.of(Relation(1), block));
                    }
                }
                let coldest = cache.policy.coldest().is_some();
                assert_eq!(coldest, cache.resident() > 0, "{goal:?}, seed {seed}, step {step}");
                strays_are_listed(&cache.policy, &format!("{goal:?}, seed {seed}, step {step}"));
            }
            assert!(switches > 10, "{goal:?}, seed {seed}: {switches} switches");
            while cache.evict(Access::read(1000)).is_some() {}
            assert_eq!(cache.resident(), 0, "{goal:?}, seed {seed}: a block never leaves");
        }
    }
}

/// Ready experts list exactly the missing blocks as strays.
fn strays_are_listed(auto: &Auto<HashedTable>, when: &str) {
    for expert in auto.experts.iter().flatten().filter(|expert| expert.is_ready()) {
        let slots = (0..auto.held.slots() as u32).map(Slot).filter(|&slot| auto.held.holds(slot));
        let strays = slots.filter(|&slot| !expert.shadow.has(auto.held.block(slot))).count();
        assert_eq!(expert.strays(), strays, "{when}");
    }
}

#[test]
fn a_cache_too_large_to_be_watched_whole_still_finds_the_better_policy() {
    const CAPACITY: usize = 4000;
    let limits = Limits { exact_blocks_max: 2000, sampled_blocks: 1000 };
    let mut random = Random(7);
    let mut auto = Cache::new(Auto::<HashedTable>::limited(CAPACITY, Goal::Hits, 1, limits), CAPACITY);
    let mut first = Cache::new(S3Fifo::<HashedTable>::new(CAPACITY), CAPACITY);
    for step in 0..600_000 {
        let access = Access::read(step / 5 + random.below(3600));
        auto.access(access);
        first.access(access);
        let experts = auto.policy.experts.iter().flatten().count();
        assert!(experts <= 2, "{experts} experts");
    }
    assert_ne!(auto.policy.at_work().to_string(), "s3-fifo");
    assert!(auto.misses < first.misses, "{} {}", auto.misses, first.misses);
}

#[test]
fn an_expert_that_begins_late_knows_how_large_relations_are() {
    let coldest = |size: u64| {
        let mut auto = Auto::<HashedTable>::limited(200, Goal::FewWrites, 1, SMALL);
        auto.hint(Hint::RelationSize { relation: Relation(1), blocks: size });
        let to = auto.names.iter().position(|name| name.to_string() == "heuristicdb").unwrap();
        auto.begin(to);
        let shadow = &mut auto.experts[to].as_mut().unwrap().shadow;
        // Frequencies are halved after a number of lookups per block of the database, or ten per
        // slot.
        (0..40).for_each(|_| _ = shadow.look_up(Access::read(1)));
        (0..20).for_each(|_| _ = shadow.look_up(Access::read(2)));
        (0..10_000).for_each(|_| _ = shadow.look_up(Access::read(3).of(Relation(1), 3)));
        (0..10).for_each(|_| _ = shadow.look_up(Access::read(2)));
        shadow.coldest()
    };
    assert_eq!(
        (coldest(1), coldest(100_000)),
        (Some(1), Some(2)),
        "block 1 was used 40 times, block 2 30 times"
    );
}

#[test]
fn the_thrifty_selector_writes_less() {
    const CAPACITY: usize = 500;
    let mut random = Random(9);
    let thrifty = Auto::<DenseTable>::new(CAPACITY, Goal::FewWrites, 1);
    let mut thrifty = Cache::new(thrifty, CAPACITY);
    let mut lru = Cache::new(Lru::new(CAPACITY), CAPACITY);
    let mut mru = Cache::new(Mru::new(CAPACITY), CAPACITY);
    for _ in 0..200_000 {
        let access = Access::read(random.skewed(5000));
        thrifty.access(access);
        lru.access(access);
        mru.access(access);
    }
    assert!(3 * thrifty.writes < lru.writes, "{} writes, LRU {}", thrifty.writes, lru.writes);
    assert!(thrifty.misses < lru.misses && thrifty.misses < mru.misses);
}

#[test]
fn the_thrifty_selector_gives_its_quota_up_while_the_working_set_drifts() {
    const CAPACITY: usize = 500;
    for seed in 1..=3 {
        let mut random = Random(seed);
        let new = |goal| Cache::new(Auto::<HashedTable>::new(CAPACITY, goal, seed), CAPACITY);
        let (mut thrifty, mut auto) = (new(Goal::FewWrites), new(Goal::Hits));
        let mut lru = Cache::new(Lru::new(CAPACITY), CAPACITY);
        // Refused blocks are missed again while the working set passes.
        for step in 0..200_000 {
            let access = Access::read(step / 20 + random.below(450));
            let _ = (thrifty.access(access), auto.access(access), lru.access(access));
        }
        assert!(thrifty.policy.has_given_up(), "seed {seed}: {}", thrifty.policy.at_work());
        assert!(4 * thrifty.misses < 5 * auto.misses, "seed {seed}: {} {}", thrifty.misses, auto.misses);
        // A stable set can be rationed.
        let before = (thrifty.writes, lru.writes);
        for _ in 0..200_000 {
            let access = Access::read((1 << 20) + random.skewed(5000));
            let _ = (thrifty.access(access), lru.access(access));
        }
        assert!(!thrifty.policy.has_given_up(), "seed {seed}: {}", thrifty.policy.at_work());
        let (writes, of_lru) = (thrifty.writes - before.0, lru.writes - before.1);
        assert!(3 * writes < of_lru, "seed {seed}: {writes} writes, LRU {of_lru}");
    }
}

#[test]
fn where_queries_are_told_heuristicdb_is_a_candidate() {
    const CAPACITY: usize = 400;
    for limits in [Limits::default(), Limits { exact_blocks_max: 200, sampled_blocks: 200 }] {
        for (told, late) in [(false, false), (true, false), (true, true)] {
            let auto = Auto::<HashedTable>::limited(CAPACITY, Goal::Hits, 1, limits);
            let mut auto = Cache::new(auto, CAPACITY);
            // A loop longer than the cache, of which a part should stay, and blocks that never
            // return.
            for step in 0..200_000u64 {
                if told && step % 2000 == 0 && (!late || step > 20_000) {
                    auto.policy.hint(Hint::QueryBegins { query: step, relations: &[Relation(1)] });
                }
                let block = if step % 3 == 0 { 200_000 + step * 17 } else { step % 1500 * 37 };
                auto.access(Access::read(block).of(Relation(1), block));
            }
            let watched = auto.policy.names.iter().position(|name| name.eviction() == "heuristicdb").unwrap();
            let is_expert = auto.policy.experts[watched].is_some();
            let is_sampled = auto.policy.sampled.get(watched).is_some_and(Option::is_some);
            assert_eq!(is_expert || is_sampled, told, "{limits:?}");
            let is_better = auto.policy.chosen == watched || auto.policy.advantages[watched] > 0.0;
            assert_eq!(is_better, told, "{limits:?}, late {late}: {}", auto.policy.at_work());
        }
    }
}

#[test]
fn what_is_found_again_when_a_cache_is_opened_is_paid_for() {
    for (goal, limits) in [Goal::Hits, Goal::FewWrites].into_iter().flat_map(|goal| {
        [Limits::default(), Limits { exact_blocks_max: 20, sampled_blocks: 20 }].map(|limits| (goal, limits))
    }) {
        let mut auto = Auto::<HashedTable>::limited(100, goal, 1, limits);
        for slot in 0..100 {
            auto.restore(Access::read(1000 + u64::from(slot)), Slot(slot), slot % 2 == 0);
        }
        let strays: Vec<_> = auto.experts.iter().flatten().map(Expert::strays).collect();
        assert!(strays.iter().all(|&strays| strays == 0), "{goal:?}: {strays:?}");
        assert!(auto.counts.iter().all(|counts| counts.misses == 0), "nobody has looked anything up");
    }
}

/// A candidate may spend up to a capacity of saved quota, and is charged once beyond.
#[test]
fn admissions_that_were_saved_up_are_not_charged() {
    const CAPACITY: usize = 100;
    let mut thrifty = Auto::<DenseTable>::new(CAPACITY, Goal::FewWrites, 1);
    let lru = thrifty.lru;
    let mut cost = |lru_admissions, admissions| {
        thrifty.counts[lru] = ExpertCounts { misses: 0, admissions: lru_admissions };
        thrifty.counts[0] = ExpertCounts { misses: 5, admissions };
        thrifty.cost(0).round()
    };
    // 33 are saved, 30 are spent; of the next 30, 27 exceed the quota, at three misses each.
    assert_eq!([cost(100, 0), cost(0, 30), cost(0, 30), cost(0, 0)], [5.0, 5.0, 86.0, 5.0]);
    assert_eq!([cost(100_000, 0), cost(0, 110)], [5.0, 35.0], "a capacity at most");
}
