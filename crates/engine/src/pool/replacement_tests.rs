//! Faults of the pool against an exact simulation of CLOCK.
//!
//! Both see the same accesses and have the same number of frames. This prints the ratios:
//! `cargo test --release -p terrace faults_against_clock -- --nocapture`.
//! `TERRACE_RECORDS` sets the number of records.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use terrace_io::MemoryDirectory;

use super::Mode;
use crate::ids::PageId;
use crate::{Db, Durability, RecordCache, Table};

thread_local! {
    static TOUCHES: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Notes an access of this thread to page `id`.
pub(super) fn touch(id: PageId) {
    TOUCHES.with_borrow_mut(|touches| touches.push(id.0));
}

fn take_touches() -> Vec<u64> {
    TOUCHES.with_borrow_mut(std::mem::take)
}

/// CLOCK: one hand, and a reference bit per frame. Hits set it; loads too if `load_sets`.
struct Clock {
    frames: Vec<(u64, bool)>,
    blocks: HashMap<u64, usize>,
    hand: usize,
    count: usize,
    load_sets: bool,
    faults: u64,
}

impl Clock {
    fn new(count: u64, load_sets: bool) -> Clock {
        let (frames, blocks) = (Vec::new(), HashMap::new());
        Clock { frames, blocks, hand: 0, count: count as usize, load_sets, faults: 0 }
    }

    fn touch(&mut self, page: u64) {
        if let Some(&at) = self.blocks.get(&page) {
            self.frames[at].1 = true;
            return;
        }
        self.faults += 1;
        self.blocks.insert(page, self.hand);
        if self.frames.len() < self.count {
            self.frames.push((page, self.load_sets));
            self.blocks.insert(page, self.frames.len() - 1);
            return;
        }
        while std::mem::take(&mut self.frames[self.hand].1) {
            self.hand = (self.hand + 1) % self.count;
        }
        self.blocks.remove(&self.frames[self.hand].0);
        self.blocks.insert(page, self.hand);
        self.frames[self.hand] = (page, self.load_sets);
        self.hand = (self.hand + 1) % self.count;
    }
}

const DATA_TO_BUDGET: u64 = 8;
const THETA: f64 = 0.99;
const SCAN_LENGTH: usize = 300;

/// Operations of a run, per thousand; the rest read one record.
#[derive(Clone, Copy)]
struct Mix {
    name: &'static str,
    value_bytes: usize,
    records: RecordCache,
    updates: u32,
    scans: u32,
    /// Operations after which other records become hot.
    shift: Option<u64>,
}

/// Ranks by Zipf's law (Gray et al., SIGMOD 1994).
pub(crate) struct Zipf {
    records: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    pub(crate) fn new(records: u64) -> Zipf {
        let zeta = |n: u64| (1..=n).map(|rank| (rank as f64).powf(-THETA)).sum::<f64>();
        let eta = (1.0 - (2.0 / records as f64).powf(1.0 - THETA)) / (1.0 - zeta(2) / zeta(records));
        Zipf { records: records as f64, zeta: zeta(records), eta }
    }

    pub(crate) fn rank(&self, random: &mut SmallRng) -> u64 {
        let uniform: f64 = random.random();
        match uniform * self.zeta {
            below if below < 1.0 => 0,
            below if below < 1.0 + 0.5f64.powf(THETA) => 1,
            _ => (self.records * (self.eta * (uniform - 1.0) + 1.0).powf(1.0 / (1.0 - THETA))) as u64,
        }
        .min(self.records as u64 - 1)
    }
}

struct Faults {
    pool: u64,
    clock: u64,
    operations: u64,
    records: crate::CachedRecords,
}

impl Faults {
    fn ratio(&self) -> f64 {
        self.pool as f64 / self.clock as f64
    }
}

fn operate(table: &Table, mix: Mix, number: u64, key: u64, random: &mut SmallRng) {
    let draw = random.random_range(0..1000);
    if draw < mix.updates {
        table.put(key.to_be_bytes(), vec![number as u8; mix.value_bytes]).unwrap();
    } else if draw < mix.updates + mix.scans {
        let count = table.range(key.to_be_bytes().to_vec()..).take(SCAN_LENGTH).map(Result::unwrap).count();
        assert!(count > 0);
    } else {
        assert_eq!(table.get(key.to_be_bytes()).unwrap().map(|value| value.len()), Some(mix.value_bytes));
    }
}

/// Runs `mix` on the pool and both forms of CLOCK. The database has eight times its budget.
fn faults(mix: Mix, records: u64) -> Faults {
    let dram = records * mix.value_bytes as u64 / DATA_TO_BUDGET;
    let builder = Db::builder()
        .directory(Arc::new(MemoryDirectory::new()))
        .dram(dram)
        .seed(1)
        // CLOCK has only the DRAM frames.
        .no_middle()
        .record_cache(mix.records);
    let db = builder.mode(Mode::Inline).durability(Durability::Buffered).open("").unwrap();
    let table = db.create_table("t").unwrap();
    let mut random = SmallRng::seed_from_u64(7);
    let mut keys: Vec<u64> = (0..records).collect();
    keys.shuffle(&mut random);
    (0..records).for_each(|key| table.put(key.to_be_bytes(), vec![0; mix.value_bytes]).unwrap());
    let zipf = Zipf::new(records);
    let mut clocks = [false, true].map(|load_sets| Clock::new(db.stats().frames, load_sets));
    let (warmup, operations) = (records * 2, records * 3);
    let mut before = [0; 3];
    take_touches();
    for number in 0..warmup + operations {
        if number == warmup {
            before = [db.stats().faults, clocks[0].faults, clocks[1].faults];
        }
        let shifted = mix.shift.map_or(0, |every| number / every * (records / 5));
        let key = keys[((zipf.rank(&mut random) + shifted) % records) as usize];
        operate(&table, mix, number, key, &mut random);
        for page in take_touches() {
            clocks.iter_mut().for_each(|clock| clock.touch(page));
        }
    }
    let clock = (clocks[0].faults - before[1]).min(clocks[1].faults - before[2]);
    Faults { pool: db.stats().faults - before[0], clock, operations, records: db.stats().records }
}

const C: Mix =
    Mix { name: "C", value_bytes: 1000, records: RecordCache::Off, updates: 0, scans: 0, shift: None };

#[test]
fn faults_against_clock() {
    let records = std::env::var("TERRACE_RECORDS").map_or(20_000, |text| text.parse().unwrap());
    let mixes = [
        (C, 0.88),
        (Mix { name: "B", updates: 50, ..C }, 0.88),
        (Mix { name: "A", updates: 500, ..C }, 0.9),
        (Mix { name: "C with scans", scans: 5, ..C }, 0.95),
        (Mix { name: "C, shifting", shift: Some(records), ..C }, 0.96),
    ];
    for (mix, most) in mixes {
        let found = faults(mix, records);
        let per_operation = found.pool as f64 / found.operations as f64;
        println!("{}: {per_operation:.4} faults an operation, {:.3} of CLOCK's", mix.name, found.ratio());
        assert!(found.ratio() < most, "{}: {} faults, CLOCK has {}", mix.name, found.pool, found.clock);
    }
}

#[test]
fn faults_with_cached_records_against_clock() {
    let records = std::env::var("TERRACE_RECORDS").map_or(20_000, |text| text.parse().unwrap());
    let short = Mix { name: "C, 100 bytes", value_bytes: 100, records: RecordCache::Auto, ..C };
    let mixes = [
        (Mix { records: RecordCache::Auto, ..C }, 0.8),
        (Mix { name: "B", records: RecordCache::Auto, updates: 50, ..C }, 0.88),
        (Mix { name: "A", records: RecordCache::Auto, updates: 500, ..C }, 0.95),
        (Mix { name: "C with scans", records: RecordCache::Auto, scans: 5, ..C }, 0.92),
        (Mix { name: "C, shifting", records: RecordCache::Auto, shift: Some(records), ..C }, 0.96),
        (short, 0.65),
        (Mix { name: "B, 100 bytes", updates: 50, ..short }, 0.8),
    ];
    for (mix, most) in mixes {
        let records = records * (1000 / mix.value_bytes as u64).min(5);
        let found = faults(mix, records);
        let (faults, reads) = (found.pool as f64 / found.operations as f64, found.ratio());
        println!("{}: {faults:.4} faults an operation, {reads:.3} of CLOCK's; {:?}", mix.name, found.records);
        assert!(found.ratio() < most, "{}: {} faults, CLOCK has {}", mix.name, found.pool, found.clock);
    }
}
