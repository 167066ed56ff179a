//! Requests are admitted as a whole, as in the simulator.

use std::time::Duration;

use super::*;
use crate::Bypass;
use crate::policy::conformance::Cache;
use crate::policy::{Access, HashedTable, Name, Settings};
use crate::sim::{Simulation, Size};
use crate::trace::Trace;
use terrace_io::{Clock, Read};

const PAGE: u64 = 4;
const PAGES: u64 = 100;

/// Rationing policies before an eviction policy that keeps pages together.
const RATIONING: [&str; 5] =
    ["probability:0.3+lru", "obp+lru", "frequency+lru", "ration:0.3+lru", "small-bypass:50+obp+fifo"];

fn page_offset(page: u64) -> u64 {
    page * PAGE * BLOCK as u64
}

fn with(policy: &str, capacity: u32) -> Cached {
    in_memory(PAGES * PAGE, timeless(capacity).policy(policy).unwrap()).0
}

#[test]
fn a_page_is_admitted_wholly_or_not_at_all() {
    for policy in RATIONING {
        for writes in [0, 2] {
            let cached = with(policy, 40 * PAGE as u32);
            let mut random = Random(3);
            for step in 0..20_000 {
                let offset = page_offset(random.skewed(PAGES));
                match random.below(4) < writes {
                    true => cached.write_at(offset, &filled(PAGE as usize * BLOCK, step as u8)).unwrap(),
                    false => drop(read(&cached, offset, PAGE as usize * BLOCK)),
                }
            }
            let stats = cached.stats();
            let told = format!("{policy}, {writes} writes of 4: {stats:?}");
            assert!(stats.requests_whole > 1000 && stats.requests_missed > 1000, "{told}");
            assert_eq!(stats.requests_part, 0, "{told}");
            assert_eq!(PAGE * stats.requests_whole, stats.hits + stats.below, "{told}");
            assert_eq!(PAGE * stats.requests_missed, stats.misses, "{told}");
            assert!(stats.bypasses.of(Bypass::Policy) > 1000, "{told}");
        }
    }
}

#[test]
fn pages_that_are_handed_over_together_are_admitted_one_by_one() {
    for is_written in [false, true] {
        let cached = with("probability:0.5+lru", (PAGES * PAGE) as u32);
        let starts: Vec<u64> = (0..PAGES).map(page_offset).collect();
        let mut buffer = filled((PAGES * PAGE) as usize * BLOCK, 0);
        match is_written {
            true => cached.write_of(0, &buffer, &starts).unwrap(),
            false => {
                let mut reads = [Read::new(0, &mut buffer)];
                cached.read_batch_of(&mut reads, &starts);
                assert!(reads[0].result.is_ok());
                assert_eq!(cached.stats().requests_missed, PAGES);
            }
        }
        let admitted = cached.stats().admissions;
        assert_eq!(admitted % PAGE, 0);
        assert!((PAGES..3 * PAGES).contains(&admitted), "{admitted} blocks of {PAGES} pages");
        let before = cached.stats();
        for page in 0..PAGES {
            let mut reads = [Read::new(page_offset(page), &mut buffer[..PAGE as usize * BLOCK])];
            cached.read_batch_of(&mut reads, &starts);
        }
        let stats = cached.stats();
        let whole = stats.requests_whole - before.requests_whole;
        assert_eq!((whole, stats.requests_part), (admitted / PAGE, 0));
    }
}

#[test]
fn a_page_that_is_written_in_pieces_is_admitted_wholly_or_not_at_all() {
    let cached = with("probability:0.5+lru", (PAGES * PAGE) as u32);
    let starts: Vec<u64> = (0..PAGES).map(page_offset).collect();
    let piece = filled(3 * BLOCK, 1);
    for first in (0..PAGES * PAGE - 2).step_by(3) {
        cached.write_of(first * BLOCK as u64, &piece, &starts).unwrap();
    }
    let admitted = cached.stats().admissions;
    assert!((PAGES..3 * PAGES).contains(&admitted), "{admitted} blocks of {PAGES} pages");
    // The last page was not written to its end.
    (0..PAGES - 1).for_each(|page| drop(read(&cached, page_offset(page), PAGE as usize * BLOCK)));
    let stats = cached.stats();
    assert_eq!(stats.requests_part, 0, "{stats:?}");
    assert!(stats.requests_whole > 20, "{stats:?}");
}

#[test]
fn the_budget_is_asked_once_for_a_page() {
    let clock = Arc::new(VirtualClock::default());
    let mut config = CacheConfig::new(400).clock(Arc::clone(&clock) as Arc<dyn Clock>);
    config.write_budget_bytes_day = Some(24 << 20);
    let (cached, _) = in_memory(PAGES * PAGE, config);
    for second in 0..2000 {
        clock.sleep_until(Duration::from_secs(second));
        read(&cached, page_offset(second * 37 % PAGES), PAGE as usize * BLOCK);
    }
    let stats = cached.stats();
    assert!(stats.bypasses.of(Bypass::Budget) > 100 && stats.requests_whole > 100, "{stats:?}");
    assert_eq!(stats.requests_part, 0, "{stats:?}");
}

/// Requests of one to six blocks: recurring pages, and random ones.
fn requests(count: u64) -> Vec<(u64, u64)> {
    let mut random = Random(7);
    let mut request = || match random.below(4) {
        0 => (random.below(PAGES * PAGE - 6), 1 + random.below(6)),
        _ => (PAGE * random.skewed(PAGES), PAGE),
    };
    let all = (0..PAGES * PAGE).map(|block| (block, 1));
    // The simulator numbers blocks by arrival, and some policies use the numbers.
    all.chain((0..count).map(|_| request())).collect()
}

#[test]
fn requests_of_several_blocks_have_the_hits_that_the_simulator_counts() {
    const CAPACITY: usize = 120;
    let requests = requests(10_000);
    let trace: String = requests.iter().map(|(first, blocks)| format!("{first} {blocks} 0 0\n")).collect();
    for name in RATIONING.into_iter().chain([
        "lru",
        "sieve",
        "arc",
        "sequential:8+lru",
        "heuristicdb",
        "auto-thrifty",
    ]) {
        let cached = with(name, CAPACITY as u32);
        let policy: Name = name.parse().unwrap();
        let mut model = Cache::new(policy.boxed::<HashedTable>(&Settings::new(CAPACITY)), CAPACITY);
        let mut hits = 0;
        for (step, &(first, blocks)) in requests.iter().enumerate() {
            for block in first..first + blocks {
                hits += u64::from(model.access(Access::read(block).continuing(block > first)));
            }
            read(&cached, first * BLOCK as u64, blocks as usize * BLOCK);
            let stats = cached.stats();
            assert_eq!(stats.hits + stats.below, hits, "{name}, step {step}");
        }
        assert!(hits > 1000, "{name}: {hits}");
        let text = trace.clone();
        let open = &mut || {
            Ok(Trace::new("requests", std::io::Cursor::new(text.clone()), "lis".parse()?, BLOCK as u32))
        };
        let report =
            Simulation::new().cache(policy, Size::Blocks(CAPACITY)).threads(1).run(open, true, &|_| {});
        assert_eq!(report.unwrap().results[0].counts.hits, hits, "{name}");
    }
}
