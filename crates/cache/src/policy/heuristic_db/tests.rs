//! HeuristicDB's rules, one by one.

use super::{COUNTS_MAX, HeuristicDb, HeuristicDbSettings};
use crate::policy::conformance::{Cache, Random};
use crate::policy::{Access, DenseTable, Hint, Policy, Relation, Slot};

const T: Relation = Relation(1);
const U: Relation = Relation(2);
const BOTH: [HeuristicDbSettings; 2] = [HeuristicDbSettings::PAPER, HeuristicDbSettings::DEFAULT];

fn cache(capacity: usize, settings: HeuristicDbSettings) -> Cache<HeuristicDb<DenseTable>> {
    Cache::new(HeuristicDb::new(capacity, settings), capacity)
}

fn begin(cache: &mut Cache<HeuristicDb<DenseTable>>, relations: &[Relation]) {
    cache.policy.hint(Hint::QueryBegins { query: 0, relations });
}

fn read(block: u64, relation: Relation) -> Access {
    Access::read(block).of(relation, block)
}

#[test]
fn rule_1_a_sequentially_read_relation_is_not_admitted_but_into_free_slots_by_default() {
    for settings in BOTH {
        let mut cache = cache(1000, settings);
        cache.policy.hint(Hint::RelationSize { relation: T, blocks: 1000 });
        begin(&mut cache, &[T]);
        for block in 0..1000 {
            cache.access(read(block, T));
        }
        let unknown_or_all = if settings.rule_1_by_relation { 1..20 } else { 1000..1001 };
        assert!(unknown_or_all.contains(&cache.resident()), "{} entered", cache.resident());
    }
}

#[test]
fn rules_2_and_3_random_and_repeated_relations_are_admitted() {
    for settings in BOTH {
        let mut cache = cache(1000, settings);
        begin(&mut cache, &[T, U]);
        for step in 0..500 {
            cache.access(read(step * 389 % 1000, T));
        }
        assert_eq!(cache.resident(), 500);
        // A scan makes the relation sequential, its second pass repeated.
        for block in (1000..1400).chain(1000..1400) {
            cache.access(read(block, U));
        }
        assert!(cache.resident() > 890, "{}", cache.resident());
    }
}

#[test]
fn rule_4_only_what_is_used_more_often_than_the_coldest_displaces_it() {
    for settings in BOTH {
        let mut cache = cache(10, settings);
        for round in 0..3 {
            for block in 0..10 {
                assert_eq!(cache.access(read(block * 100, T)), round > 0);
            }
        }
        for use_of_new in 1..=3 {
            assert!(!cache.access(read(5050, T)), "use {use_of_new}");
        }
        assert!(!cache.access(read(5050, T)), "the fourth use is admitted");
        assert!(cache.access(read(5050, T)));
        assert!(!cache.access(read(0, T)), "the least recently used of the coldest left");
    }
}

#[test]
fn rule_5_writes_are_always_admitted() {
    for settings in BOTH {
        let mut cache = cache(10, settings);
        for _ in 0..3 {
            for block in 0..10 {
                cache.access(read(block * 100, T));
            }
        }
        cache.access(Access { write: true, ..read(7777, T) });
        assert!(cache.access(read(7777, T)));
    }
}

#[test]
fn rule_6_demotion_makes_all_cached_blocks_equal_in_the_paper_only() {
    for settings in BOTH {
        let mut cache = cache(10, settings);
        begin(&mut cache, &[T]);
        for _ in 0..5 {
            for block in 0..10 {
                cache.access(read(block * 100, T));
            }
        }
        begin(&mut cache, &[U]);
        cache.access(read(5050, U));
        cache.access(read(5050, U));
        assert_eq!(cache.access(read(5050, U)), settings.demotion_capacities.is_some());
    }
}

#[test]
fn the_eager_one_demotes_after_a_long_query_and_lets_equals_displace_what_was_idle_since() {
    let mut cache = cache(10, HeuristicDbSettings::EAGER);
    begin(&mut cache, &[T]);
    let hot = |cache: &mut Cache<_>| {
        for block in 0..10 {
            cache.access(read(block * 100, T));
        }
    };
    for _ in 0..3 {
        hot(&mut cache);
    }
    begin(&mut cache, &[U]);
    cache.access(read(5050, U));
    assert!(!cache.access(read(5050, U)), "the query before was short");
    // Seven capacities of lookups, all misses.
    for step in 0..70 {
        cache.access(read(10_000 + step * 100, U));
    }
    cache.access(read(7070, U));
    assert!(!cache.access(read(7070, U)), "what is cached was used more often");
    begin(&mut cache, &[T]);
    cache.access(read(6060, U));
    assert!(cache.access(read(6060, U)), "one use is as many as those have that were idle");
}

#[test]
fn rule_6_eviction_makes_room_when_the_cache_gave_nothing() {
    for settings in BOTH {
        let mut cache = cache(10, settings);
        begin(&mut cache, &[T]);
        for block in 0..10 {
            cache.access(read(block * 100, T));
        }
        begin(&mut cache, &[T, U]);
        cache.access(read(5050, T));
        assert!(cache.access(read(5050, T)), "one use is more than none");
        let slot = cache.policy.coldest();
        assert_ne!(slot, None);
    }
}

#[test]
fn rule_7_a_new_query_verifies_the_relations_of_those_that_run() {
    for ended in [false, true] {
        let mut cache = cache(1000, HeuristicDbSettings::PAPER);
        let begin = |cache: &mut Cache<HeuristicDb<DenseTable>>, query, relation| {
            cache.policy.hint(Hint::QueryBegins { query, relations: &[relation] });
        };
        begin(&mut cache, 1, T);
        for block in 0..100 {
            cache.access(read(block, T));
        }
        let sequential = cache.resident();
        assert!(sequential < 20, "{sequential}");
        if ended {
            cache.policy.hint(Hint::QueryEnds { query: 1 });
        }
        begin(&mut cache, 2, U);
        // Random now, but sequential for ever unless verified anew.
        for step in 0..100 {
            cache.access(read(1000 + step * 389 % 1000, T));
        }
        assert_eq!(cache.resident() - sequential, if ended { 0 } else { 100 });
    }
}

#[test]
fn blocks_of_a_run_displace_nothing_by_default() {
    for settings in BOTH {
        let mut cache = cache(10, settings);
        for block in 0..10 {
            cache.access(read(block * 100, T));
        }
        for block in (2000..2030).chain(2000..2030) {
            cache.access(read(block, T));
        }
        let hits = (2000..2030).filter(|&block| cache.access(read(block, T))).count();
        assert_eq!(hits > 1, settings.rule_1_by_relation, "{hits}");
    }
}

#[test]
fn frequencies_halve_and_counts_of_absent_blocks_with_them() {
    let mut policy = HeuristicDb::<DenseTable>::new(10, HeuristicDbSettings::DEFAULT);
    policy.insert(Access::read(0), Slot(0));
    for _ in 0..7 {
        policy.hit(Slot(0), Access::read(0));
        policy.miss(Access::read(1));
    }
    assert_eq!(policy.slots.frequency(0), 8);
    for _ in 0..100 {
        policy.miss(Access::read(2));
    }
    assert_eq!(policy.slots.frequency(0), 4);
    assert_eq!(policy.take_count(1), Some(3));
}

#[test]
fn memory_is_bounded_without_queries() {
    let mut random = Random(1);
    let mut cache = cache(50, HeuristicDbSettings::PAPER);
    for _ in 0..20_000 {
        cache.access(read(random.below(10_000), T));
    }
    assert!(cache.policy.counts.len(0) <= COUNTS_MAX * 50);
}
