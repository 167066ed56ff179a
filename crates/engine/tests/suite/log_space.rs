//! Transactions that take much of the log wait for room, unless they could never fit.

use std::sync::Arc;

use terrace::{Db, Directory, Durability, Error, Mode, SimulatedDisk, Table, WriteBatch};
use terrace_io::OpenMode;

use super::common;

const MIB: u64 = 1 << 20;

fn open(mode: Mode, log_bytes: u64) -> (SimulatedDisk, Db, Table) {
    let disk = SimulatedDisk::new(1);
    let builder = common::builder().directory(Arc::new(disk.clone())).dram(4 << 20).page_size(4096).seed(1);
    let db = builder.log_max(log_bytes).mode(mode).open("").unwrap();
    let table = db.create_table("t").unwrap();
    (disk, db, table)
}

#[test]
fn transactions_of_half_the_log_follow_each_other() {
    for mode in [Mode::Inline, Mode::Background] {
        let (_disk, db, table) = open(mode, 1 << 20);
        for round in 0..30u32 {
            let mut batch = WriteBatch::new();
            for number in 0..250u32 {
                let key = [round, number].map(u32::to_be_bytes).concat();
                batch.put(&table, key, [round as u8; 1000]);
            }
            db.write(batch, Durability::Buffered)
                .unwrap_or_else(|error| panic!("{mode:?}, {round}: {error}"));
        }
        assert_eq!(table.len().unwrap(), 30 * 250);
    }
}

/// The log grows while a load needs it, stays short for a few entries that change again and again,
/// and is opened at the length it had.
#[test]
fn the_log_grows_with_what_changes() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let builder = common::builder().dram(64 * MIB).log_max(128 * MIB).mode(Mode::Inline);
        builder.durability(Durability::Buffered).open(folder.path()).unwrap()
    };
    let length = || std::fs::metadata(folder.path().join("log.terrace")).unwrap().len();
    let sizes = |db: &Db| (db.stats().log_capacity, db.stats().log_capacity_max);
    let db = open();
    assert_eq!((sizes(&db), length()), ((2 * MIB, 128 * MIB), 2 * MIB + 4096));
    let table = db.create_table("t").unwrap();
    while db.stats().log_tail < 96 * MIB {
        for round in 0..1000u32 {
            table.put((round % 4).to_be_bytes(), [round as u8; 900]).unwrap();
        }
    }
    let few = sizes(&db).0;
    assert!((8 * MIB..=64 * MIB).contains(&few), "checkpoints of a few pages are cheap: {few}");
    let value = |number: u32| [number as u8; 900];
    for number in 0..60_000u32 {
        let key = number.wrapping_mul(0x9e37_79b1);
        table.put(key.to_be_bytes(), value(number)).unwrap();
    }
    assert_eq!((sizes(&db), length()), ((128 * MIB, 128 * MIB), 128 * MIB + 4096));
    drop((table, db));
    let db = open();
    assert_eq!(sizes(&db), (128 * MIB, 128 * MIB));
    let table = db.open_table("t").unwrap();
    for number in (0..60_000u32).step_by(97) {
        let key = number.wrapping_mul(0x9e37_79b1);
        assert_eq!(table.get(key.to_be_bytes()).unwrap().as_deref(), Some(&value(number)[..]), "{number}");
    }
    assert_eq!(db.verify().unwrap().errors, []);
}

/// A transaction that needs more than the log has makes it grow, unless even its largest is too
/// short.
#[test]
fn a_large_transaction_makes_the_log_grow() {
    let directory = Arc::new(terrace::MemoryDirectory::new());
    let db = common::builder().directory(directory).dram(64 * MIB).log_max(16 * MIB).open("").unwrap();
    let table = db.create_table("t").unwrap();
    let write = |bytes: u64| {
        let transaction = db.begin();
        for number in 0..bytes / 1000 {
            transaction.put(&table, number.to_be_bytes(), [3; 1000])?;
        }
        transaction.commit()
    };
    assert!(matches!(write(11 * MIB), Err(Error::TransactionTooLarge { .. })));
    assert_eq!(db.stats().log_capacity, 2 * MIB);
    write(3 * MIB).unwrap();
    assert_eq!(db.stats().log_capacity, 16 * MIB);
    assert_eq!(table.len().unwrap(), 3 * MIB / 1000);
}

/// Without room for a longer log, checkpoints are more frequent, and nothing fails.
#[test]
fn a_log_that_cannot_grow_is_used_as_it_is() {
    for mode in [Mode::Inline, Mode::Background] {
        let disk = SimulatedDisk::new(1);
        let builder = common::builder().directory(Arc::new(disk.clone())).dram(16 << 20).seed(1);
        let builder = builder.log_max(16 * MIB).durability(Durability::Buffered).mode(mode);
        let db = builder.open("").unwrap();
        let table = db.create_table("t").unwrap();
        let length = |name: &str| disk.open(name, OpenMode::Read).unwrap().len();
        // Room for some segments of the page file, and not for another 2 MiB of log.
        let make_room = || disk.set_capacity(length("pages.terrace") + length("log.terrace") + MIB);
        for number in 0..12_000u32 {
            if number % 50 == 0 {
                make_room();
            }
            let key = number.wrapping_mul(0x9e37_79b1).to_be_bytes();
            // A checkpoint in the background may want more of the page file in between.
            while let Err(error) = table.put(key, [1; 900]) {
                assert!(matches!(error, Error::Full { .. }), "{mode:?}: {error}");
                make_room();
            }
        }
        assert!(db.stats().log_tail > 8 * MIB);
        assert_eq!(db.stats().log_capacity, 2 * MIB, "{mode:?}");
        assert_eq!(table.len().unwrap(), 12_000);
    }
}
