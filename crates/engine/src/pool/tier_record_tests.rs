//! Cached records of pages in a middle tier: what they spare, in accesses and in virtual time.
//!
//! This prints the figures: `cargo test --release -p terrace tier_record -- --nocapture`.
//! `TERRACE_RECORDS` sets the number of records.

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use terrace_io::{MemoryDirectory, VirtualTime};

use super::Mode;
use crate::migration::Choice;
use crate::{Backend, Db, Durability, RecordCache, Table, Time};

const PAGE_BYTES: u64 = 16 << 10;
const VALUE_BYTES: usize = 1000;
/// Computation per operation in virtual time, DRAM included.
const OPERATION_NS: u64 = 2000;

/// A table of whole values over DRAM and a simulated middle tier, with its operations.
#[derive(Clone, Copy)]
struct Mix {
    name: &'static str,
    /// Frames in DRAM and in the middle tier, as shares of the bytes of values.
    dram: f64,
    middle: f64,
    policy: &'static str,
    /// Updates per thousand operations; the rest are gets.
    updates: u32,
    /// Exponent of Zipf's law.
    skew: f64,
    /// Loaded in the order of keys, so that pages are full.
    is_sorted: bool,
}

/// Keys drawn by Zipf's law, any exponent, from the sums of their weights.
struct Draw {
    sums: Vec<f64>,
    keys: Vec<u32>,
}

impl Draw {
    fn new(records: u32, skew: f64, random: &mut SmallRng) -> Draw {
        let mut keys: Vec<u32> = (0..records).collect();
        keys.shuffle(random);
        let weights = (1..=records).map(|rank| f64::from(rank).powf(-skew));
        let sums = weights.scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        Draw { sums: sums.collect(), keys }
    }

    fn key(&self, random: &mut SmallRng) -> u32 {
        let all = self.sums[self.sums.len() - 1];
        let drawn = random.random::<f64>() * all;
        self.keys[self.sums.partition_point(|&sum| sum < drawn).min(self.keys.len() - 1)]
    }
}

/// Per operation, after warm-up.
#[derive(Debug, PartialEq)]
struct Found {
    /// Accesses of pages in the middle tier, in place or with a promotion.
    middle: f64,
    store: f64,
    ns: f64,
    record_hits: f64,
    /// Share of the DRAM frames that records have at the end.
    share: f64,
}

/// A database whose DRAM frames have the share of `mix`, within two frames.
fn open(mix: Mix, data: u64, records: RecordCache, time: &Arc<VirtualTime>) -> Db {
    let wanted = (data as f64 * mix.dram) as u64;
    let mut budget = wanted + (2 << 20);
    for _ in 0..6 {
        let db = open_with(mix, data, budget, records, time);
        let bytes = db.stats().frames * PAGE_BYTES;
        if bytes.abs_diff(wanted) <= 2 * PAGE_BYTES {
            return db;
        }
        budget = budget + wanted - bytes;
    }
    panic!("no budget gives {wanted} bytes of frames");
}

fn open_with(mix: Mix, data: u64, budget: u64, records: RecordCache, time: &Arc<VirtualTime>) -> Db {
    let bytes = |share: f64| (data as f64 * share) as u64;
    let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).page_size(PAGE_BYTES);
    // The bars are those of two copies, which a mapped page has not, and of a frame for each page.
    let builder = builder.backend(Backend::Frames).mini_pages(false).dram(budget).log_max(64 << 20);
    let builder = builder.mode(Mode::Inline).seed(1);
    let middle =
        format!("simulated:optane,{}B", bytes(mix.middle) / PAGE_BYTES * PAGE_BYTES).parse().unwrap();
    let policy: Choice = mix.policy.parse().unwrap();
    let builder = builder.middle(middle).policy(policy).simulated_time(Time::Virtual(Arc::clone(time)));
    builder.record_cache(records).durability(Durability::Buffered).open("").unwrap()
}

fn operate(table: &Table, mix: Mix, draw: &Draw, random: &mut SmallRng) {
    let (key, draw) = (draw.key(random).to_be_bytes(), random.random_range(0..1000));
    if draw < mix.updates {
        table.put(key, [draw as u8; VALUE_BYTES]).unwrap();
    } else {
        assert_eq!(table.get(key).unwrap().map(|value| value.len()), Some(VALUE_BYTES));
    }
}

/// Runs `mix` in a thread of its own, since periodic work is counted per thread.
fn run(mix: Mix, count: u32, records: RecordCache) -> Found {
    let run = move || {
        let time = Arc::new(VirtualTime::new(1));
        let db = open(mix, u64::from(count) * VALUE_BYTES as u64, records, &time);
        let table = db.create_table("t").unwrap();
        let mut random = SmallRng::seed_from_u64(7);
        let mut keys: Vec<u32> = (0..count).collect();
        if !mix.is_sorted {
            keys.shuffle(&mut random);
        }
        keys.iter().for_each(|key| table.put(key.to_be_bytes(), [0; VALUE_BYTES]).unwrap());
        db.checkpoint().unwrap();
        let draw = Draw::new(count, mix.skew, &mut random);
        let (warmup, operations) = (u64::from(count) * 10, u64::from(count) * 4);
        (0..warmup).for_each(|_| operate(&table, mix, &draw, &mut random));
        let look = || {
            let stats = db.stats();
            let middle = stats.middle.clone().unwrap();
            let hits = stats.records.hits + stats.records.middle_hits;
            let accesses = middle.reads_in_place + middle.writes_in_place + middle.migrations.middle_to_dram;
            [accesses, stats.faults, time.elapsed_ns(), hits]
        };
        let before = look();
        (0..operations).for_each(|_| operate(&table, mix, &draw, &mut random));
        let [middle, store, ns, record_hits] =
            std::array::from_fn(|at| (look()[at] - before[at]) as f64 / operations as f64);
        let stats = db.stats();
        assert_eq!(db.shared.maintenance.audit(), [""; 0]);
        let share = stats.records.bytes as f64 / (stats.frames * PAGE_BYTES) as f64;
        Found { middle, store, ns: ns + OPERATION_NS as f64, record_hits, share }
    };
    std::thread::spawn(run).join().expect("the run panics by itself")
}

const LAZY: Mix =
    Mix { name: "C, lazy", dram: 0.2, middle: 2.0, policy: "lazy", updates: 0, skew: 1.0, is_sorted: false };

/// With and without cached records.
fn both(mix: Mix, count: u32) -> [Found; 2] {
    let found = [RecordCache::Auto, RecordCache::Off].map(|records| run(mix, count, records));
    let [with, without] = &found;
    println!(
        "{}: middle {:.4} of {:.4}, store {:.4} of {:.4}, {:.0} of {:.0} ns an operation; records answer {:.3} with \
         {:.2} of the frames",
        mix.name,
        with.middle,
        without.middle,
        with.store,
        without.store,
        with.ns,
        without.ns,
        with.record_hits,
        with.share
    );
    found
}

#[test]
fn records_over_a_middle_tier_spare_it_most_reads() {
    let count = std::env::var("TERRACE_RECORDS").map_or(16_000, |text| text.parse().unwrap());
    // The most that may remain of accesses of the middle tier, and of the time.
    let mixes = [
        (LAZY, 0.5, 0.92),
        (Mix { name: "C, lazy, loaded in order", is_sorted: true, ..LAZY }, 0.6, 0.95),
        (Mix { name: "C, eager", policy: "eager", ..LAZY }, 0.65, 0.95),
        (Mix { name: "C, in place", policy: "0,0,1,1", ..LAZY }, 0.8, 0.8),
        (Mix { name: "B, lazy", updates: 50, ..LAZY }, 0.85, 1.0),
        (Mix { name: "A, lazy", updates: 500, ..LAZY }, 1.05, 1.02),
        (Mix { name: "C, lazy, more data", dram: 0.1, middle: 0.4, ..LAZY }, 0.8, 1.0),
        (Mix { name: "C, lazy, uniform", skew: 0.0, ..LAZY }, 1.02, 1.02),
        (Mix { name: "C, lazy, all in DRAM", dram: 2.0, middle: 2.0, ..LAZY }, 1.02, 1.02),
    ];
    let mut failed = Vec::new();
    for (mix, accesses, time) in mixes {
        let [with, without] = both(mix, count);
        let is_right = with.middle <= without.middle * accesses
            && with.ns <= without.ns * time
            && with.store <= without.store * 1.02 + 0.001;
        if !is_right {
            failed.push((mix.name, with, without));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn records_over_a_middle_tier_are_the_same_each_time() {
    assert_eq!(run(LAZY, 2000, RecordCache::Auto), run(LAZY, 2000, RecordCache::Auto));
}
