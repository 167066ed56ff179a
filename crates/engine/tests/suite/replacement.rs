//! Every replacement policy and back end: nothing is lost, and pages in use stay.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace::{Backend, Builder, Durability, MemoryDirectory, Mode, RecordCache, Replacement};

use super::common;

const VALUE_BYTES: usize = 900;

fn combinations() -> impl Iterator<Item = (Backend, Replacement)> {
    Backend::ALL.into_iter().flat_map(|backend| Replacement::ALL.map(|replacement| (backend, replacement)))
}

fn builder(backend: Backend, replacement: Replacement) -> Builder {
    let builder = common::builder().directory(Arc::new(MemoryDirectory::new())).dram(2 << 20).seed(1);
    let builder = builder.backend(backend).replacement(replacement).durability(Durability::Buffered);
    builder.record_cache(RecordCache::Off)
}

/// Changes and reads several times as much as fits, and compares with a model.
fn all_is_there(builder: Builder, seed: u64) {
    let db = builder.open("").unwrap();
    let table = db.create_table("t").unwrap();
    let mut random = SmallRng::seed_from_u64(seed);
    let mut model: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    for _ in 0..12_000 {
        let key = random.random_range(0..6000u32);
        match random.random_range(0..10) {
            0..6 => {
                let value = vec![random.random(); random.random_range(1..VALUE_BYTES)];
                table.put(key.to_be_bytes(), &value).unwrap();
                model.insert(key, value);
            }
            6 => assert_eq!(table.delete(key.to_be_bytes()).unwrap(), model.remove(&key).is_some()),
            _ => assert_eq!(table.get(key.to_be_bytes()).unwrap().as_ref(), model.get(&key), "seed {seed}"),
        }
    }
    let stats = db.stats();
    assert!(stats.evictions > stats.frames && stats.not_discarded == 0, "seed {seed}: {stats:?}");
    for class in &stats.frame_classes {
        assert!(class.resident_bytes <= class.frames * class.page_bytes, "seed {seed}: {class:?}");
    }
    let found: Vec<_> =
        table.iter().map(Result::unwrap).map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    let expected: Vec<_> =
        model.into_iter().map(|(key, value)| (key.to_be_bytes().to_vec(), value)).collect();
    assert!(found == expected, "seed {seed}");
    assert!(db.verify().unwrap().is_ok(), "seed {seed}");
}

#[test]
fn nothing_is_lost_with_maintenance_in_place() {
    for (number, (backend, replacement)) in combinations().enumerate() {
        all_is_there(builder(backend, replacement).mode(Mode::Inline), number as u64);
    }
}

#[test]
fn nothing_is_lost_with_a_thread_for_maintenance() {
    for (number, (backend, replacement)) in combinations().enumerate() {
        all_is_there(builder(backend, replacement), 10 + number as u64);
    }
}

#[test]
fn pages_in_use_stay() {
    for (backend, replacement) in combinations() {
        let db = builder(backend, replacement).mode(Mode::Inline).open("").unwrap();
        let table = db.create_table("t").unwrap();
        for key in 0..8000u32 {
            table.put(key.to_be_bytes(), vec![key as u8; VALUE_BYTES]).unwrap();
        }
        let hot = || (0..8).for_each(|key: u32| assert!(table.contains((key * 7).to_be_bytes()).unwrap()));
        let (mut faults_of_hot, mut reads_of_hot) = (0, 0);
        for (round, cold) in (100..8000u32).step_by(4).enumerate() {
            let before = db.stats().faults;
            hot();
            // The first rounds may load the pages.
            if round >= 20 {
                faults_of_hot += db.stats().faults - before;
                reads_of_hot += 8;
            }
            assert!(table.contains(cold.to_be_bytes()).unwrap());
        }
        let faults = db.stats().faults;
        assert!(faults > 1500, "{backend}, {replacement}: {faults} faults");
        // With one queue, a sweep through all of it takes the second chance of the first pages.
        let most = if replacement.name() == "fifo-paper" { reads_of_hot / 100 } else { 0 };
        assert!(faults_of_hot <= most, "{backend}, {replacement}: {faults_of_hot} of {reads_of_hot}");
    }
}

#[test]
fn a_baseline_that_was_left_out_names_its_feature() {
    let parsed = "fifo-paper".parse::<Replacement>();
    match cfg!(feature = "paper-baselines") {
        true => assert_eq!(parsed.unwrap().name(), "fifo-paper"),
        false => assert!(parsed.unwrap_err().contains("paper-baselines")),
    }
}
