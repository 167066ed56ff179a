//! Failing disk calls: the errors reported, what continues, and what must never follow.

use std::sync::Arc;

use terrace::{Db, Durability, Error, Mode, Result, SimulatedDisk, Table};
use terrace_io::{CallKind, FaultPlan};

use super::common;

fn open_in(disk: &SimulatedDisk, mode: Mode) -> Result<Db> {
    let builder = common::builder().directory(Arc::new(disk.clone())).dram(1 << 20).page_size(4096);
    builder.log_max(256 << 10).mode(mode).seed(1).open("")
}

fn open(disk: &SimulatedDisk) -> Result<Db> {
    open_in(disk, Mode::Inline)
}

/// More than fits into memory.
fn fill(table: &Table, keys: u32) -> Result<()> {
    (0..keys).try_for_each(|number| table.put(number.to_be_bytes(), [number as u8; 1000]).map(|_| ()))
}

#[test]
fn a_failed_read_is_reported_and_the_engine_goes_on() {
    let disk = SimulatedDisk::new(1);
    let db = open(&disk).unwrap();
    let table = db.create_table("t").unwrap();
    fill(&table, 2000).unwrap();
    db.checkpoint().unwrap();
    disk.fail(FaultPlan::from_then_on(CallKind::Read, 1, libc_eio()));
    let error =
        (0..2000u32).find_map(|number| table.get(number.to_be_bytes()).err()).expect("a read that fails");
    assert!(matches!(&error, Error::Io { operation: "read", offset: Some(_), .. }), "{error}");
    assert!(error.to_string().contains("pages.terrace"), "{error}");
    let read = table.iter().filter(|entry| entry.is_err()).count();
    assert!(read <= 1, "a cursor ends at its first error");
    disk.mend();
    for number in 0..2000u32 {
        assert_eq!(table.get(number.to_be_bytes()).unwrap().unwrap(), [number as u8; 1000]);
    }
    table.put("after", "it").unwrap();
    assert_eq!(db.verify().unwrap().errors, []);
}

/// One of several reads fails: the key that needs the page gets the error, once, and nothing is
/// lost.
#[test]
fn a_failed_read_among_many_is_reported_and_the_engine_goes_on() {
    let disk = SimulatedDisk::new(1);
    let db = open(&disk).unwrap();
    let table = db.create_table("t").unwrap();
    fill(&table, 2000).unwrap();
    db.checkpoint().unwrap();
    let keys = |first: u32| (0..40).map(move |number| (first + number * 47) % 2000).collect::<Vec<_>>();
    let mut failed = 0;
    for nth in 1..40 {
        let keys = keys(nth as u32);
        disk.fail(FaultPlan::once(CallKind::Read, nth, libc_eio()));
        // A failed read of two adjacent pages is repeated page by page.
        if let Err(error) = table.get_many(keys.iter().map(|key| key.to_be_bytes())) {
            let is_read = matches!(&error, Error::Io { operation: "read", offset: Some(_), .. });
            assert!(is_read, "read {nth}: {error}");
            failed += 1;
        }
        disk.mend();
        let values = table.get_many(keys.iter().map(|key| key.to_be_bytes())).unwrap();
        for (key, value) in keys.iter().zip(values) {
            assert_eq!(value.unwrap(), [*key as u8; 1000], "read {nth}");
        }
    }
    assert!(failed > 5, "{failed} of 39 failures were reported");
    assert!(db.stats().batched_pages > 500, "{:?}", db.stats());
    assert_eq!(db.stats().reads_in_flight, 0);
    table.put("after", "it").unwrap();
    assert_eq!(db.verify().unwrap().errors, []);
}

#[test]
fn a_failed_read_while_opening_is_reported_and_the_next_opening_works() {
    let disk = SimulatedDisk::new(1);
    let db = open(&disk).unwrap();
    let table = db.create_table("t").unwrap();
    fill(&table, 300).unwrap();
    let killed = disk.killed();
    drop((table, db));
    for nth in 1.. {
        let disk = killed.killed();
        disk.fail(FaultPlan::once(CallKind::Read, nth, libc_eio()));
        let calls = disk.calls_of(CallKind::Read);
        let opened = open(&disk);
        let reached = disk.calls_of(CallKind::Read) - calls >= nth;
        if let Err(error) = &opened {
            assert!(matches!(error, Error::Io { operation: "read" | "rewrite", .. }), "read {nth}: {error}");
        }
        drop(opened);
        disk.mend();
        let db = open(&disk).unwrap();
        assert_eq!(db.open_table("t").unwrap().len().unwrap(), 300, "read {nth}");
        if !reached {
            assert!(nth > 3);
            break;
        }
    }
}

#[test]
fn a_failed_sync_stops_all_commits_until_the_database_is_opened_again() {
    for mode in [Mode::Inline, Mode::Background] {
        for kind in [CallKind::Sync, CallKind::WriteThrough, CallKind::Write] {
            let disk = SimulatedDisk::new(1);
            let db = open_in(&disk, mode).unwrap();
            let table = db.create_table("t").unwrap();
            table.put("before", "it").unwrap();
            disk.fail(FaultPlan::once(kind, 1, libc_eio()));
            let failed = (0..500u32)
                .find_map(|number| Some((number, table.put(number.to_be_bytes(), [7; 500]).err()?)));
            let Some((number, error)) = failed else {
                assert_eq!(kind, CallKind::WriteThrough, "{mode:?}: no commit failed");
                continue;
            };
            assert!(matches!(error, Error::Io { .. } | Error::Poisoned { .. }), "{error}");
            // The disk works again, but a later sync says nothing about the failed one.
            for _ in 0..3 {
                let error = table.put("later", "x").unwrap_err();
                assert!(matches!(error, Error::Poisoned { .. }), "{error}");
            }
            assert!(matches!(
                db.write(Default::default(), Durability::Buffered),
                Ok(()) | Err(Error::Poisoned { .. })
            ));
            drop((table, db));
            let db = open(&disk.survivor(7)).unwrap();
            let table = db.open_table("t").unwrap();
            assert_eq!(table.get("before").unwrap().unwrap(), b"it");
            assert_eq!(table.get("later").unwrap(), None);
            assert!((0..number).all(|number| table.contains(number.to_be_bytes()).unwrap()));
            table.put("later", "x").unwrap();
            assert_eq!(db.verify().unwrap().errors, []);
        }
    }
}

/// A failed sync leaves bytes that can be read but that no later sync makes durable.
///
/// The next open that uses them as log must write all of them again, however little memory it has.
#[test]
fn what_a_failed_sync_left_is_written_again_by_an_opening_with_less_memory() {
    for seed in 0..12 {
        let disk = SimulatedDisk::new(seed);
        let builder =
            |dram| common::builder().directory(Arc::new(disk.clone())).dram(dram).mode(Mode::Inline).seed(1);
        let db = builder(64 << 20).log_max(16 << 20).open("").unwrap();
        let table = db.create_table("t").unwrap();
        for number in 0..1500u32 {
            let transaction = db.begin_with(Durability::Buffered);
            transaction.put(&table, number.to_be_bytes(), [7; 1000]).unwrap();
            transaction.commit().unwrap();
        }
        disk.fail(FaultPlan::once(CallKind::Sync, 1, libc_eio()));
        db.flush().unwrap_err();
        drop((table, db));
        disk.mend();

        let db = builder(2 << 20).open("").unwrap();
        let table = db.open_table("t").unwrap();
        let found = table.len().unwrap();
        table.put("acknowledged", "it").unwrap();
        let after = disk.survivor(seed);
        drop((table, db));
        let db = open(&after).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let table = db.open_table("t").unwrap();
        assert_eq!(table.get("acknowledged").unwrap().unwrap(), b"it", "seed {seed}");
        assert_eq!(table.len().unwrap(), found + 1, "seed {seed}");
    }
}

#[test]
fn a_full_disk_stops_commits_and_nothing_else() {
    for mode in [Mode::Inline, Mode::Background] {
        let disk = SimulatedDisk::new(1);
        let db = open_in(&disk, mode).unwrap();
        let table = db.create_table("t").unwrap();
        fill(&table, 300).unwrap();
        disk.set_capacity(0);
        let mut written = 300u32;
        let error = loop {
            match table.put(written.to_be_bytes(), [written as u8; 1000]) {
                Ok(_) => written += 1,
                Err(error) => break error,
            }
            assert!(written < 100_000, "the disk is never full");
        };
        assert!(matches!(error, Error::Full { .. }), "{mode:?}: {error}");
        for number in 0..written {
            assert_eq!(table.get(number.to_be_bytes()).unwrap().unwrap(), [number as u8; 1000], "{mode:?}");
        }
        assert_eq!(table.len().unwrap(), u64::from(written));
        let again = table.put("one more", vec![1; 100_000]).unwrap_err();
        assert!(matches!(again, Error::Full { .. }), "{again}");
        disk.set_capacity(u64::MAX);
        for number in written..written + 500 {
            table.put(number.to_be_bytes(), [number as u8; 1000]).unwrap();
        }
        assert_eq!(db.verify().unwrap().errors, []);
        drop((table, db));
        let db = open(&disk.survivor(3)).unwrap();
        assert_eq!(db.open_table("t").unwrap().len().unwrap(), u64::from(written) + 500);
    }
}

/// The error number of "input/output error" on all supported systems.
fn libc_eio() -> i32 {
    5
}
