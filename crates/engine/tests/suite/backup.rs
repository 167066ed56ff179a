//! Backups during writes, their restores, and full, failing or lossy disks.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use terrace::{Backup, Db, Durability, Error, Mode, Result, SimulatedDisk, Table};
use terrace_io::{AlignedBuffer, CallKind, Directory, FaultPlan, OpenMode};

use super::common;
use crate::common::Retry;

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

fn inline(disk: &SimulatedDisk) -> Result<Db> {
    let builder = common::builder().directory(Arc::new(disk.clone())).dram(1 << 20).page_size(4096);
    builder.log_max(256 << 10).mode(Mode::Inline).seed(1).open("")
}

fn entries(db: &Db) -> BTreeMap<String, Entries> {
    let names = db.table_names().unwrap();
    let of = |name: &String| db.open_table(name).unwrap().iter().map(Result::unwrap).collect();
    names.iter().map(|name| (name.clone(), of(name))).collect()
}

/// A small database with long values, several tables, and changes that only the log has.
fn small(disk: &SimulatedDisk) -> Db {
    let db = inline(disk).unwrap();
    let table = db.create_table("t").unwrap();
    for number in 0..400u32 {
        table.put(number.to_be_bytes(), vec![number as u8; 40 + number as usize % 300]).unwrap();
    }
    table.put("long", vec![7; 30_000]).unwrap();
    db.create_table("other").unwrap().put("a", "1").unwrap();
    db.checkpoint().unwrap();
    for number in 0..60u32 {
        table.put((number * 5).to_be_bytes(), "changed").unwrap();
        table.delete((number * 7 + 1).to_be_bytes()).unwrap();
    }
    db
}

/// Rows after which a row's companion is deleted.
const WINDOW: u64 = 50;

/// How long a writer rests after each row.
const PAUSE: Duration = Duration::from_micros(500);

/// Serial transactions: each draws the next number, adds its row, and removes an earlier one.
fn write_rows(db: &Db, stop: &AtomicBool, acknowledged: &AtomicU64) {
    let tables = ["count", "rows", "recent"].map(|name| db.open_table(name).unwrap());
    let [count, rows, recent] = &tables;
    while !stop.load(SeqCst) {
        let number = db
            .update(|transaction| {
                let last = transaction.get(count, "last")?;
                let number = last.map_or(0, |last| u64::from_be_bytes(last.try_into().unwrap())) + 1;
                transaction.put(count, "last", number.to_be_bytes())?;
                transaction.put(rows, number.to_be_bytes(), row(number))?;
                transaction.put(recent, number.to_be_bytes(), "")?;
                if number > WINDOW {
                    transaction.delete(recent, (number - WINDOW).to_be_bytes())?;
                }
                Ok::<_, terrace::Error>(number)
            })
            .unwrap();
        acknowledged.fetch_max(number, SeqCst);
        // Otherwise the database grows as long as a busy processor takes for its backup.
        std::thread::sleep(PAUSE);
    }
}

fn row(number: u64) -> Vec<u8> {
    let length = if number.is_multiple_of(40) { 9000 } else { 30 + number as usize % 500 };
    vec![number as u8; length]
}

/// Checks that a restored database fits the writers; returns the number of its last row.
fn last_row(db: &Db) -> u64 {
    let table = |name: &str| -> Table { db.open_table(name).unwrap() };
    let last =
        table("count").get("last").unwrap().map_or(0, |last| u64::from_be_bytes(last.try_into().unwrap()));
    let rows = table("rows").iter().map(Result::unwrap);
    assert!(
        rows.eq((1..=last).map(|number| (number.to_be_bytes().to_vec(), row(number)))),
        "rows up to {last}"
    );
    let recent = table("recent").iter().map(|entry| entry.unwrap().0);
    let wanted = last.saturating_sub(WINDOW) + 1..=last;
    assert!(recent.eq(wanted.map(|number| number.to_be_bytes().to_vec())), "the recent ones of {last}");
    assert_eq!(db.verify().unwrap().errors, []);
    last
}

#[test]
fn what_is_restored_is_a_moment_of_what_was_written_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let builder = || common::builder().dram(3 << 20).log_max(1 << 20).durability(Durability::Buffered);
    let db = builder().open(folder.path().join("db")).unwrap();
    for name in ["count", "rows", "recent"] {
        db.create_table(name).unwrap();
    }
    let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    let wait_for = |number: u64| {
        while acknowledged.load(SeqCst) < number {
            std::thread::sleep(PAUSE);
        }
    };
    let mut moments = Vec::new();
    std::thread::scope(|scope| {
        let _stop = Retry(&stop);
        for _ in 0..2 {
            scope.spawn(|| write_rows(&db, &stop, &acknowledged));
        }
        wait_for(5000);
        for round in 0..3 {
            let before = acknowledged.load(SeqCst);
            let report = db.backup(folder.path().join(format!("backup {round}"))).unwrap();
            let after = acknowledged.load(SeqCst);
            moments.push((before, after));
            assert!(report.pages > 100 && report.log_bytes <= 1 << 20, "{report:?}");
            let cut = db.stats().log_cut;
            wait_for(after + 3000);
            assert!(db.stats().log_cut > cut, "the log is cut again");
        }
    });
    drop(db);
    for (round, (before, after)) in moments.into_iter().enumerate() {
        let backup = Backup::open(folder.path().join(format!("backup {round}"))).unwrap();
        assert_eq!(backup.check().unwrap().errors, []);
        let restored = folder.path().join(format!("restored {round}"));
        backup.restore(&restored).unwrap();
        let db = builder().create(false).open(&restored).unwrap();
        let last = last_row(&db);
        // Both writers may have been between commit and acknowledgement.
        assert!(before <= last && last <= after + 2, "{before} <= {last} <= {after}");
        // The restored database is writable.
        let more = AtomicBool::new(false);
        let acknowledged = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let _stop = Retry(&more);
            scope.spawn(|| write_rows(&db, &more, &acknowledged));
            while acknowledged.load(SeqCst) < last + 500 {
                std::thread::sleep(PAUSE);
            }
        });
        db.close().unwrap();
        let db = builder().create(false).open(&restored).unwrap();
        assert!(last_row(&db) >= last + 500);
    }
}

#[test]
fn a_backup_counts_the_entries_that_its_database_counts() {
    // From one leaf per tree to a catalog of several levels.
    for (tables, rows) in [(0, 0), (1, 500), (3, 2000), (400, 3)] {
        let disk = SimulatedDisk::new(1);
        let db = inline(&disk).unwrap();
        for table in 0..tables {
            let table = db.create_table(&format!("{table:0>60}")).unwrap();
            (0..rows as u32).for_each(|row| table.put(row.to_be_bytes(), "value").unwrap());
            table.put("long", vec![7; 30_000]).unwrap();
            table.put("long", vec![8; 30_000]).unwrap();
        }
        db.checkpoint().unwrap();
        let copy = SimulatedDisk::new(2);
        db.backup_to(&copy).unwrap();
        let (of_db, of_backup) = (db.verify().unwrap(), Backup::open_in(&copy).unwrap().check().unwrap());
        assert!(of_db.is_ok() && of_backup.is_ok());
        assert_eq!(of_backup.entries_checked, of_db.entries_checked, "{tables} tables");
        assert_eq!(of_db.entries_checked, tables * (rows + 1));
    }
}

#[test]
fn a_backup_cut_off_at_any_call_is_none_and_a_finished_one_stays() {
    let source = SimulatedDisk::new(1);
    let db = small(&source);
    let expected = entries(&db);
    let calls = {
        let disk = SimulatedDisk::new(1);
        db.backup_to(&disk).unwrap();
        disk.calls()
    };
    let mut finished = 0;
    for call in 1..=calls + 1 {
        let disk = SimulatedDisk::new(call);
        disk.crash_at(call);
        let outcome = db.backup_to(&disk);
        assert_eq!(outcome.is_ok(), call > calls, "call {call} of {calls}");
        for left in [disk.survivor(call), disk.killed()] {
            match Backup::open_in(&left) {
                Err(Error::NotADatabase { .. }) => assert!(outcome.is_err(), "call {call}"),
                Err(error) => panic!("call {call}: {error}"),
                Ok(backup) => {
                    finished += 1;
                    assert_eq!(backup.check().unwrap().errors, [], "call {call}");
                    let target = SimulatedDisk::new(1);
                    backup.restore_to(&target).unwrap();
                    assert_eq!(entries(&inline(&target).unwrap()), expected, "call {call}");
                }
            }
        }
    }
    // The last rename and its sync may be in force although they were cut off.
    assert!((2..=6).contains(&finished), "{finished}");
    assert_eq!(entries(&db), expected);
    assert_eq!(db.verify().unwrap().errors, []);
}

#[test]
fn a_restore_cut_off_at_any_call_leaves_no_half_a_database() {
    let db = small(&SimulatedDisk::new(1));
    let expected = entries(&db);
    let backup = SimulatedDisk::new(1);
    db.backup_to(&backup).unwrap();
    let backup = Backup::open_in(&backup).unwrap();
    let calls = {
        let disk = SimulatedDisk::new(1);
        backup.restore_to(&disk).unwrap();
        disk.calls()
    };
    for call in 1..=calls + 1 {
        let disk = SimulatedDisk::new(call);
        disk.crash_at(call);
        let outcome = backup.restore_to(&disk);
        assert_eq!(outcome.is_ok(), call > calls, "call {call} of {calls}");
        let left = disk.survivor(call);
        let builder =
            common::builder().directory(Arc::new(left)).dram(1 << 20).create(false).mode(Mode::Inline);
        match builder.open("") {
            Err(Error::NotADatabase { .. }) => assert!(outcome.is_err(), "call {call}"),
            Err(error) => panic!("call {call}: {error}"),
            Ok(db) => assert_eq!(entries(&db), expected, "call {call}"),
        }
    }
}

/// Checks what a kill leaves: no database, a whole one, or named remains that are refused and stay.
fn is_refused_or_whole(left: SimulatedDisk, what: &str, expected: &BTreeMap<String, Entries>, call: u64) {
    let names = ["pages.restoring", "log.restoring"].into_iter();
    let names = names.chain(["pages.salvage", "log.salvage", "pages.repaired", "log.repaired"]);
    let begun: Vec<&str> = names.filter(|name| left.exists(name).unwrap()).collect();
    let is_named = left.exists("pages.terrace").unwrap();
    let opened =
        common::builder().directory(Arc::new(left.clone())).dram(1 << 20).mode(Mode::Inline).open("");
    match opened {
        Ok(db) if is_named => assert_eq!(entries(&db), *expected, "call {call}"),
        Ok(_) => assert!(begun.is_empty(), "call {call}: an empty database beside {begun:?}"),
        Err(error) => {
            let told = error.to_string();
            let is_told = told.contains("never finished") && told.contains(what) && told.contains("again");
            assert!(matches!(error, Error::NotADatabase { .. }) && is_told, "call {call}: {told}");
            assert!(!is_named && begun.iter().all(|name| left.exists(name).unwrap()), "call {call}");
        }
    }
}

#[test]
fn a_killed_restore_or_repair_is_not_taken_for_an_empty_database() {
    let source = SimulatedDisk::new(1);
    let db = small(&source);
    let expected = entries(&db);
    let backup = SimulatedDisk::new(1);
    db.backup_to(&backup).unwrap();
    let backup = Backup::open_in(&backup).unwrap();
    drop(db);
    let restore = |disk: &SimulatedDisk| backup.restore_to(disk).map(drop);
    let repair = |disk: &SimulatedDisk| {
        let builder = common::builder().dram(2 << 20).mode(Mode::Inline);
        builder.repair_in(&source, Arc::new(disk.clone())).map(drop)
    };
    type Maker<'m> = &'m dyn Fn(&SimulatedDisk) -> Result<()>;
    let makers: [Maker<'_>; 2] = [&restore, &repair];
    for (what, make) in ["restore", "repair"].into_iter().zip(makers) {
        let disk = SimulatedDisk::new(1);
        make(&disk).unwrap();
        let calls = disk.calls();
        for call in (1..=calls).step_by((calls / 60).max(1) as usize).chain(calls - 8..=calls + 1) {
            let disk = SimulatedDisk::new(1);
            disk.crash_at(call);
            let made = make(&disk);
            assert!(made.is_ok() || call <= calls, "{what}, call {call} of {calls}");
            is_refused_or_whole(disk.killed(), what, &expected, call);
        }
    }
}

#[test]
fn a_full_or_failing_destination_is_said_and_the_source_goes_on() {
    let db = small(&SimulatedDisk::new(1));
    let table = db.open_table("t").unwrap();
    let tight = SimulatedDisk::new(1);
    tight.set_capacity(100 << 10);
    let error = db.backup_to(&tight).unwrap_err();
    assert!(matches!(error, Error::Full { .. }), "{error}");
    assert!(error.to_string().contains("partial"), "{error}");
    for (kind, number) in
        [(CallKind::Write, 3), (CallKind::Sync, 1), (CallKind::SetLen, 2), (CallKind::Rename, 2)]
    {
        let disk = SimulatedDisk::new(1);
        disk.fail(FaultPlan::once(kind, number, 5));
        let error = db.backup_to(&disk).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{kind:?}: {error}");
        assert!(error.to_string().contains("simulated:"), "{kind:?}: {error}");
        // The partial backup is gone, so the same path can be used again.
        db.backup_to(&disk).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
    }
    // The log is no longer held: more than its capacity is written.
    for number in 0..3000u32 {
        table.put(number.to_be_bytes(), [1; 300]).unwrap();
    }
    let roomy = SimulatedDisk::new(1);
    db.backup_to(&roomy).unwrap();
    let target = SimulatedDisk::new(1);
    Backup::open_in(&roomy).unwrap().restore_to(&target).unwrap();
    assert_eq!(entries(&inline(&target).unwrap()), entries(&db));
}

/// Changes bytes of a file at `offset`.
fn overwrite(disk: &SimulatedDisk, file: &str, offset: u64, change: impl FnOnce(&mut [u8])) {
    let device = disk.open(file, OpenMode::Write).unwrap();
    let mut sector = AlignedBuffer::zeroed(512);
    device.read_at(offset, &mut sector).unwrap();
    change(&mut sector);
    device.write_at(offset, &sector).unwrap();
}

#[test]
fn a_changed_byte_is_refused_by_file_and_page_or_has_no_effect() {
    let db = small(&SimulatedDisk::new(1));
    let expected = entries(&db);
    let original = SimulatedDisk::new(1);
    db.backup_to(&original).unwrap();
    let (mut refused, mut of_pages, mut without_effect) = (0, 0, 0);
    for file in ["pages.backup", "log.backup"] {
        let bytes = original.open(file, OpenMode::Read).unwrap().len();
        for sector in 0..bytes / 512 {
            let disk = original.killed();
            let at = (sector * 97 % 512) as usize;
            overwrite(&disk, file, sector * 512, |bytes| bytes[at] ^= 1 << (sector % 8));
            let target = SimulatedDisk::new(1);
            let restored = Backup::open_in(&disk).and_then(|backup| {
                let found = backup.check()?;
                let restored = backup.restore_to(&target);
                assert_eq!(found.is_ok(), restored.is_ok(), "{file}, sector {sector}: {found:?}");
                restored
            });
            match restored {
                Ok(_) => {
                    without_effect += 1;
                    assert_eq!(entries(&inline(&target).unwrap()), expected, "{file}, sector {sector}");
                }
                Err(Error::Corrupt { file: named, page, .. }) => {
                    refused += 1;
                    of_pages += u32::from(page.is_some());
                    assert!(named.contains(file), "{file}, sector {sector}: {named} is named");
                    assert!(!target.exists("pages.terrace").unwrap());
                }
                Err(Error::NotADatabase { .. } | Error::Version { .. }) => refused += 1,
                Err(error) => panic!("{file}, sector {sector}: {error}"),
            }
        }
    }
    println!("{refused} refused, {of_pages} of them by page, {without_effect} without effect");
    // Changes without effect hit one of two superblocks, blocks after a header, or the end of the
    // last image.
    assert!(
        of_pages > 200 && refused > of_pages && without_effect < refused,
        "{refused} {of_pages} {without_effect}"
    );
}

#[test]
fn a_shortened_or_mixed_up_backup_is_refused() {
    let make = |seed| {
        let builder = common::builder().directory(Arc::new(SimulatedDisk::new(1))).dram(1 << 20).seed(seed);
        let db = builder.mode(Mode::Inline).open("").unwrap();
        db.create_table("t").unwrap().put("key", "value").unwrap();
        let disk = SimulatedDisk::new(1);
        db.backup_to(&disk).unwrap();
        disk
    };
    let disk = make(1);
    let pages = disk.open("pages.backup", OpenMode::Write).unwrap();
    pages.set_len(pages.len() - 4096).unwrap();
    assert!(matches!(Backup::open_in(&disk), Err(Error::Corrupt { .. })));
    let (one, other) = (make(1), make(2));
    let (from, to) =
        (other.open("log.backup", OpenMode::Read).unwrap(), one.open("log.backup", OpenMode::Write).unwrap());
    let mut bytes = AlignedBuffer::zeroed(from.len() as usize);
    from.read_at(0, &mut bytes).unwrap();
    to.set_len(from.len()).unwrap();
    to.write_at(0, &bytes).unwrap();
    assert!(matches!(Backup::open_in(&one), Err(Error::NotADatabase { .. })));
    one.remove("log.backup").unwrap();
    let error = Backup::open_in(&one).unwrap_err().to_string();
    assert!(error.contains("log.backup"), "{error}");
}

#[test]
fn a_backup_is_no_database_and_what_is_restored_is_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let builder = || common::builder().dram(4 << 20);
    let db = builder().open(at("db")).unwrap();
    db.create_table("t").unwrap().put("key", "value").unwrap();
    db.backup(at("backup")).unwrap();
    for file in ["pages.backup", "log.backup"] {
        let mode = std::fs::metadata(at("backup").join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "{file}");
    }
    // Nothing is overwritten.
    for used in ["db", "backup"] {
        for error in [
            db.backup(at(used)).unwrap_err(),
            Backup::open(at("backup")).unwrap().restore(at(used)).unwrap_err(),
        ] {
            assert!(error.to_string().contains("not empty"), "{error}");
        }
    }
    let error = builder().open(at("backup")).unwrap_err().to_string();
    assert!(error.contains("terrace restore"), "{error}");
    db.close().unwrap();

    let backup = Backup::open(at("backup")).unwrap();
    for name in ["one", "two"] {
        backup.restore(at(name)).unwrap();
        assert_eq!(
            builder().open(at(name)).unwrap().open_table("t").unwrap().get("key").unwrap().unwrap(),
            b"value"
        );
    }
    // No file fits together with one of the original or of the other restore.
    for (from, to) in [("db", "one"), ("two", "one"), ("one", "db")] {
        let log = |name: &str| Path::new(&at(name)).join("log.terrace");
        let kept = std::fs::read(log(to)).unwrap();
        std::fs::copy(log(from), log(to)).unwrap();
        let error = builder().open(at(to)).unwrap_err();
        assert!(matches!(error, Error::NotADatabase { .. }), "{from}, {to}: {error}");
        std::fs::write(log(to), kept).unwrap();
    }
    // A failure leaves nothing behind.
    let pages = at("backup").join("pages.backup");
    let mut bytes = std::fs::read(&pages).unwrap();
    let at_image = 32 << 10;
    bytes[at_image + 100] ^= 1;
    std::fs::write(&pages, bytes).unwrap();
    assert!(matches!(Backup::open(at("backup")).unwrap().restore(at("three")), Err(Error::Corrupt { .. })));
    assert!(!at("three").exists());
}

#[test]
fn a_damaged_page_fails_the_backup_by_name() {
    let disk = SimulatedDisk::new(1);
    drop(small(&disk));
    let device = disk.open("pages.terrace", OpenMode::Read).unwrap();
    let mut page = AlignedBuffer::zeroed(4096);
    for folder in (8..device.len() / 4096).rev() {
        device.read_at(folder * 4096, &mut page).unwrap();
        let id = u64::from_le_bytes(page[8..16].try_into().unwrap());
        // Except the catalog and the garbage tree, which an open needs.
        if page[4] == 1 && id > 2 {
            overwrite(&disk, "pages.terrace", folder * 4096, |bytes| bytes[300] ^= 1);
        }
    }
    let db = inline(&disk).unwrap();
    let error = db.backup_to(&SimulatedDisk::new(1)).unwrap_err();
    assert!(
        matches!(&error, Error::Corrupt { file, page: Some(_), .. } if file.contains("pages.terrace")),
        "{error}"
    );
}
