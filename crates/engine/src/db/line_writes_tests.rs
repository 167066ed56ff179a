//! Benchmark of space and write amplification.
//!
//! Compares page writes with a double write in place, and the file size with its pages.
//!
//! `cargo test --release -p terrace line_writes_of -- --nocapture` prints the figures, for
//! `TERRACE_RECORDS` records.

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use terrace_io::MemoryDirectory;

use crate::pool::replacement_tests::Zipf;
use crate::{Db, Durability, Mode};

const VALUE_BYTES: usize = 1000;
const DATA_TO_BUDGET: u64 = 8;

#[derive(Debug)]
struct LineCounts {
    /// Images moved by the cleaner per image written for a change.
    moved: f64,
    /// All images written, page table included, per two writes of a double write.
    to_double_write: f64,
    /// File bytes per byte of pages in use.
    file_to_live: f64,
}

/// Updates records in a database of eight times its budget, until every page was written several
/// times.
fn line_counts(records: u64, zipfian: bool, fill: Option<f64>) -> LineCounts {
    let dram = records * VALUE_BYTES as u64 / DATA_TO_BUDGET;
    let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(dram).seed(1);
    let db = builder.mode(Mode::Inline).durability(Durability::Buffered).open("").unwrap();
    let table = db.create_table("t").unwrap();
    let mut random = SmallRng::seed_from_u64(11);
    let mut keys: Vec<u64> = (0..records).collect();
    keys.shuffle(&mut random);
    (0..records).for_each(|key| table.put(key.to_be_bytes(), [0; VALUE_BYTES]).unwrap());
    if let Some(fill) = fill {
        db.compact().unwrap();
        db.shared.pool.limit_to_fill(fill).unwrap();
    }
    let zipf = Zipf::new(records);
    let (warmup, updates) = (records * 2, records * 2);
    let mut before = db.stats();
    for number in 0..warmup + updates {
        if number == warmup {
            before = db.stats();
        }
        let rank = if zipfian { zipf.rank(&mut random) } else { random.random_range(0..records) };
        table.put(keys[rank as usize].to_be_bytes(), [number as u8; VALUE_BYTES]).unwrap();
    }
    let after = db.stats();
    assert_eq!(db.verify().unwrap().errors, []);
    let written = (after.images_written - before.images_written) as f64;
    assert!(written > records as f64 / 10.0, "{written} images written are too few to tell");
    LineCounts {
        moved: (after.images_moved - before.images_moved) as f64 / written,
        to_double_write: (after.written_bytes - before.written_bytes) as f64
            / (2.0 * written * after.page_bytes as f64),
        file_to_live: after.file_bytes as f64 / (after.live_pages * after.page_bytes) as f64,
    }
}

/// In a file at its size limit, updates of existing records always find room.
#[test]
fn no_update_finds_a_file_full_that_is_below_its_limit() {
    for mode in [Mode::Inline, Mode::Background] {
        for (records, fill) in [(1500u64, 0.6), (4000, 0.8), (4000, 0.84)] {
            let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(2 << 20).seed(1);
            let db = builder.mode(mode).durability(Durability::Buffered).open("").unwrap();
            let table = db.create_table("t").unwrap();
            (0..records).for_each(|key| table.put(key.to_be_bytes(), [0; VALUE_BYTES]).unwrap());
            db.compact().unwrap();
            db.shared.pool.limit_to_fill(fill).unwrap();
            let bytes = db.stats().file_bytes;
            let mut random = SmallRng::seed_from_u64(records);
            for number in 0..records * 8 {
                let key = random.random_range(0..records).to_be_bytes();
                let put = table.put(key, [number as u8; VALUE_BYTES]);
                put.unwrap_or_else(|error| panic!("{mode:?}, {records} records, {fill} full: {error}"));
            }
            assert_eq!(db.stats().file_bytes, bytes);
            assert_eq!(db.verify().unwrap().errors, []);
        }
    }
}

#[test]
fn line_writes_of_updates() {
    let records = std::env::var("TERRACE_RECORDS").map_or(12_000, |text| text.parse().unwrap());
    for (zipfian, name) in [(true, "zipfian"), (false, "uniform")] {
        let grown = line_counts(records, zipfian, None);
        println!("{name}, as the file grows: {grown:.3?}");
        assert!(grown.to_double_write <= 1.0, "{name}: {grown:?}");
        // 1.35, and the reserved segments, which count in such a small file.
        assert!(grown.file_to_live <= 1.40, "{name}: {grown:?}");
        let full = line_counts(records, zipfian, Some(0.8));
        println!("{name}, 80 % full: {full:.3?}");
        assert!(full.moved <= 1.6, "{name}: {full:?}");
    }
}
