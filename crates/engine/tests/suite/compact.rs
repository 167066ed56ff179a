//! Compaction: the file shrinks, nothing is lost, and other threads go on.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use terrace::{Backup, Builder, Db, Durability, Error, MemoryDirectory, Mode, SimulatedDisk, Table};
use terrace_io::{CallKind, FaultPlan};

use super::common;
use crate::common::Retry;

fn builder(directory: &Arc<MemoryDirectory>) -> Builder {
    let directory: Arc<MemoryDirectory> = Arc::clone(directory);
    common::builder().directory(directory).dram(2 << 20).log_max(1 << 20).durability(Durability::Buffered)
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
        // In the background, writing may go on and take space again.
        assert!(mode == Mode::Background || done.file_bytes_after == stats.file_bytes, "{done:?}, {stats:?}");
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

/// The file grows and shrinks all the time, beside verifications, backups, scans, reads and budget
/// changes.
#[test]
fn everything_else_goes_on_while_the_file_is_cut() {
    let directory = Arc::new(MemoryDirectory::new());
    let db = builder(&directory).dram(4 << 20).open("").unwrap();
    let table = db.create_table("t").unwrap();
    fill(&table, 0..1500, 0);
    let stop = AtomicBool::new(false);
    let mut shorter = 0;
    std::thread::scope(|scope| {
        let work = |work: Box<dyn Fn(u32) + Send>| {
            let stop = &stop;
            scope.spawn(move || {
                let _stop = Retry(stop);
                for round in 0.. {
                    if stop.load(Relaxed) {
                        break;
                    }
                    work(round);
                }
            });
        };
        let (db, table, stop) = (&db, &table, Retry(&stop));
        work(Box::new(|_| {
            let other = db.create_table("other").unwrap();
            fill(&other, 0..1500, 0);
            drop(other);
            db.drop_table("other").unwrap();
        }));
        work(Box::new(|_| assert_eq!(db.verify().unwrap().errors, [])));
        work(Box::new(|round| {
            let keys: Vec<_> = (0..50).map(|at| (round * 131 + at * 29) % 1500).collect();
            let values = table.get_many(keys.iter().map(|key| key.to_be_bytes())).unwrap();
            assert!(keys.iter().zip(values).all(|(&key, found)| found == Some(value(key, 0))));
            assert_eq!(table.get(keys[0].to_be_bytes()).unwrap(), Some(value(keys[0], 0)));
            if round % 8 == 0 {
                assert_eq!(table.iter().map(Result::unwrap).count(), 1500);
            }
        }));
        work(Box::new(|round| {
            let copy = Arc::new(MemoryDirectory::new());
            match db.backup_to(&*copy) {
                Ok(_) if round % 4 == 0 => {
                    let restored = Arc::new(MemoryDirectory::new());
                    Backup::open_in(&*copy).unwrap().restore_to(&*restored).unwrap();
                    check(&builder(&restored).open("").unwrap(), 0..1500, 0);
                }
                Ok(_) => {}
                // Writers that outrun the backup in so small a log.
                Err(Error::Io { operation: "back up", .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }));
        work(Box::new(|round| db.set_dram(if round % 2 == 0 { 2 << 20 } else { 4 << 20 }).unwrap()));
        let mut longest = 0;
        // Until the growing threads have had enough turns.
        for _ in 0..5000 {
            longest = longest.max(db.stats().file_bytes);
            shorter += u32::from(db.compact().unwrap().file_bytes_after < longest);
            if shorter == 20 || stop.0.load(Relaxed) {
                break;
            }
        }
        drop(stop);
    });
    assert_eq!(shorter, 20, "times that the file was cut");
    check(&db, 0..1500, 0);
}

/// Full or failing disks, for each kind of call, from each call on.
///
/// Errors are right, nothing is lost, and with room again the file shrinks as usual.
#[test]
fn a_disk_that_is_full_or_fails_loses_nothing_by_a_compaction() {
    for (kind, code) in [CallKind::Write, CallKind::SetLen, CallKind::Sync, CallKind::Read]
        .into_iter()
        .flat_map(|kind| [(kind, libc::ENOSPC), (kind, libc::EIO)])
    {
        let (mut nth, mut failed) = (1, 0);
        loop {
            let disk = SimulatedDisk::new(nth);
            let open = |disk: &SimulatedDisk| {
                let builder =
                    common::builder().directory(Arc::new(disk.clone())).dram(1 << 20).page_size(4096);
                builder
                    .log_max(256 << 10)
                    .mode(Mode::Inline)
                    .durability(Durability::Buffered)
                    .open("")
                    .unwrap()
            };
            let db = open(&disk);
            // The dropped table's images come first, so that the last ones are to be moved.
            let earlier = db.create_table("earlier").unwrap();
            fill(&earlier, 0..300, 0);
            db.checkpoint().unwrap();
            let table = db.create_table("t").unwrap();
            fill(&table, 0..600, 0);
            (0..600u32)
                .filter(|key| key % 3 > 0)
                .for_each(|key| assert!(table.delete(key.to_be_bytes()).unwrap()));
            drop(earlier);
            db.drop_table("earlier").unwrap();
            // Opened again, compaction must read whatever the migration policy kept in memory.
            drop((table, db));
            let db = open(&disk);
            let calls = disk.calls_of(kind);
            disk.fail(FaultPlan::from_then_on(kind, nth, code));
            let outcome = db.compact();
            let reached = disk.calls_of(kind) - calls >= nth;
            disk.mend();
            failed += u32::from(outcome.is_err());
            if let Err(error) = &outcome {
                let is_full = matches!(error, Error::Full { .. });
                assert!(is_full || matches!(error, Error::Io { .. } | Error::Poisoned { .. }), "{error}");
                // Retries work without a new open, except after failed writes and syncs within a
                // superblock.
                match db.compact() {
                    Ok(_) => check(&db, (0..600u32).filter(|key| key % 3 == 0), 0),
                    Err(Error::Poisoned { .. }) if !matches!(kind, CallKind::SetLen | CallKind::Read) => {}
                    Err(error) => panic!("{kind:?} {nth}: {error}"),
                }
            }
            drop(db);
            let db = open(&disk.survivor(nth));
            db.compact().unwrap();
            let most = db.stats().live_pages * 4096 * 114 / 100 + (7 * (64 << 10));
            assert!(db.stats().file_bytes < most, "{kind:?} {nth}: {} bytes", db.stats().file_bytes);
            check(&db, (0..600).filter(|key| key % 3 == 0), 0);
            if !reached {
                assert!(nth > 1, "no {kind:?} was refused");
                break;
            }
            nth += 1 + nth / 3;
        }
        assert!(failed > 0, "{kind:?} {code}");
    }
}

#[test]
fn what_is_opened_for_reading_is_not_compacted() {
    let directory = Arc::new(MemoryDirectory::new());
    builder(&directory).open("").unwrap().close().unwrap();
    let db = builder(&directory).read_only(true).open("").unwrap();
    assert!(matches!(db.compact(), Err(Error::ReadOnly)));
}
