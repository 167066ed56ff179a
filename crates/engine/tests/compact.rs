//! Compaction: the file becomes shorter, nothing in it is lost, and others go on meanwhile.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use terrace::{Builder, Db, Durability, Error, MemoryDirectory, Mode, Table};

fn builder(directory: &Arc<MemoryDirectory>) -> Builder {
    let directory: Arc<MemoryDirectory> = Arc::clone(directory);
    Db::builder().directory(directory).dram(2 << 20).log_max(1 << 20).durability(Durability::Buffered)
}

fn value(key: u32, round: u32) -> Vec<u8> {
    let length = if key % 50 == 7 { 9000 } else { 400 + (key % 5) as usize * 100 };
    (0..length).map(|at| (key + round + at as u32) as u8).collect()
}

fn fill(table: &Table, keys: impl Iterator<Item = u32>, round: u32) {
    keys.for_each(|key| table.put(key.to_be_bytes(), value(key, round)).unwrap());
}

fn check(db: &Db, keys: impl Iterator<Item = u32>, round: u32) {
    let wanted: BTreeMap<_, _> = keys.map(|key| (key.to_be_bytes().to_vec(), value(key, round))).collect();
    let found: BTreeMap<_, _> = db.open_table("t").unwrap().iter().map(Result::unwrap).collect();
    assert!(found == wanted, "{} entries, not the {} there should be", found.len(), wanted.len());
    assert_eq!(db.verify().unwrap().errors, []);
}

#[test]
fn the_file_becomes_as_short_as_what_is_left_in_it() {
    for mode in [Mode::Inline, Mode::Background] {
        let directory = Arc::new(MemoryDirectory::new());
        let db = builder(&directory).mode(mode).open("").unwrap();
        let table = db.create_table("t").unwrap();
        let other = db.create_table("other").unwrap();
        fill(&other, 0..8000, 0);
        fill(&table, 0..3000, 0);
        db.drop_table("other").unwrap();
        drop(other);
        let mut calls = 0;
        let done = db
            .compact_with(|so_far| {
                calls += 1;
                assert!(so_far.file_bytes_after <= so_far.file_bytes_before);
                ControlFlow::Continue(())
            })
            .unwrap();
        let stats = db.stats();
        assert_eq!(done.file_bytes_after, stats.file_bytes);
        assert!(calls > 1 && done.pages_moved > 0, "{done:?} after {calls} segments");
        let live = stats.live_pages * stats.page_bytes;
        let most = live as f64 * 1.14 + (6 * (64 << 10) + (32 << 10)) as f64;
        assert!((done.file_bytes_after as f64) < most, "{mode:?}: {done:?}, {live} bytes are live");
        check(&db, 0..3000, 0);
        let again = db.compact().unwrap();
        assert!(again.pages_moved < 100, "{mode:?}: nothing was left to do: {again:?}");
        fill(&table, 1000..5000, 0);
        check(&db, 0..5000, 0);
        drop(table);
        db.close().unwrap();
        let db = builder(&directory).mode(mode).open("").unwrap();
        check(&db, 0..5000, 0);
    }
}

#[test]
fn a_compaction_that_was_stopped_is_gone_on_with() {
    let directory = Arc::new(MemoryDirectory::new());
    let db = builder(&directory).mode(Mode::Inline).open("").unwrap();
    let table = db.create_table("t").unwrap();
    fill(&table, 0..8000, 0);
    (0..8000u32).filter(|key| key % 4 > 0).for_each(|key| assert!(table.delete(key.to_be_bytes()).unwrap()));
    let mut sizes = vec![db.stats().file_bytes];
    loop {
        let mut left = 9;
        let done = db
            .compact_with(|_| {
                left -= 1;
                if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
            .unwrap();
        sizes.push(done.file_bytes_after);
        if left > 0 {
            break;
        }
        assert!(sizes.len() < 200, "it comes to no end: {sizes:?}");
    }
    assert!(sizes.is_sorted_by(|before, after| before >= after), "{sizes:?}");
    assert!(sizes[sizes.len() - 1] < sizes[0] * 3 / 4, "{sizes:?}");
    check(&db, (0..8000).filter(|key| key % 4 == 0), 0);
}

#[test]
fn others_read_and_write_meanwhile() {
    let directory = Arc::new(MemoryDirectory::new());
    let db = builder(&directory).open("").unwrap();
    let table = db.create_table("t").unwrap();
    let gone = db.create_table("gone").unwrap();
    fill(&gone, 0..6000, 0);
    fill(&table, 0..3000, 0);
    drop(gone);
    db.drop_table("gone").unwrap();
    let stop = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0u32;
            while !stop.load(Relaxed) {
                let key = reads.wrapping_mul(2_654_435_761) % 1500;
                assert_eq!(table.get(key.to_be_bytes()).unwrap(), Some(value(key, 0)));
                reads += 1;
            }
        });
        let writer = scope.spawn(|| {
            let mut round = 0;
            while !stop.load(Relaxed) {
                round += 1;
                fill(&table, 1500..3000, round);
            }
            round
        });
        let before = db.stats().file_bytes;
        for _ in 0..5 {
            db.compact().unwrap();
        }
        assert!(db.stats().file_bytes < before, "{} bytes, before {before}", db.stats().file_bytes);
        stop.store(true, Relaxed);
        reader.join().unwrap();
        writer.join().unwrap()
    });
    for key in 0..3000u32 {
        let round = if key < 1500 { 0 } else { rounds };
        assert!(table.get(key.to_be_bytes()).unwrap() == Some(value(key, round)), "key {key}");
    }
    assert_eq!(db.verify().unwrap().errors, []);
}

#[test]
fn what_is_opened_for_reading_is_not_compacted() {
    let directory = Arc::new(MemoryDirectory::new());
    builder(&directory).open("").unwrap().close().unwrap();
    let db = builder(&directory).read_only(true).open("").unwrap();
    assert!(matches!(db.compact(), Err(Error::ReadOnly)));
}
