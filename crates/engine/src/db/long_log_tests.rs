//! Tests of a log that recovery has made longer than `log_max`.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace_io::{CallKind, Directory, FaultPlan, SimulatedDisk};

use crate::ids::{Lsn, Timestamp};
use crate::wal::{Class, RecordBuilder};
use crate::{Backup, Builder, Db, Durability, Error, MemoryDirectory, Mode, Result, WriteBatch};

const LOG_MAX: u64 = 256 << 10;
const KEYS: u32 = 3000;
const ENOSPC: i32 = 28;

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

fn builder() -> Builder {
    Db::builder().dram(1 << 20).page_size(4096).log_max(LOG_MAX).mode(Mode::Inline).seed(1)
}

fn open(directory: &(impl Directory + Clone + 'static)) -> Result<Db> {
    builder().directory(Arc::new(directory.clone())).open("")
}

fn contents(db: &Db) -> Entries {
    assert_eq!(db.verify().unwrap().errors, []);
    db.open_table("t").unwrap().iter().map(Result::unwrap).collect()
}

/// A killed database of more pages than frames, whose log is full of changes, and its content.
fn killed_with_a_full_log() -> (SimulatedDisk, Entries) {
    let disk = SimulatedDisk::new(1);
    let db = open(&disk).unwrap();
    let table = db.create_table("t").unwrap();
    let mut entries = Entries::new();
    let mut put = |key: u32, value: u8| {
        let (key, value) = (key.to_be_bytes().to_vec(), vec![value; 400]);
        table.put(&key, &value).unwrap();
        entries.insert(key, value);
    };
    (0..KEYS).for_each(|key| put(key, 1));
    db.checkpoint().unwrap();
    let wal = &db.shared.maintenance.wal;
    let held = wal.enter();
    let mut random = SmallRng::seed_from_u64(1);
    while wal.tail().0 - wal.cut().0 < LOG_MAX / 8 * 5 {
        put(random.random_range(0..KEYS), 2);
    }
    let mut end = RecordBuilder::end(Timestamp(1), Lsn::NONE);
    while let Some(mut reservation) = wal.reserve(end.len() as u64, Class::System) {
        wal.append(&mut end, Some(&mut reservation)).unwrap();
    }
    wal.flush_to(wal.tail()).unwrap();
    assert_eq!(db.stats().log_capacity, LOG_MAX);
    drop(held);
    std::mem::forget(db);
    (disk.killed(), entries)
}

fn repaired(disk: &SimulatedDisk) -> Entries {
    let target = Arc::new(MemoryDirectory::new());
    let report = Db::builder().dram(4 << 20).mode(Mode::Inline).repair_in(disk, target.clone()).unwrap();
    assert!(report.is_complete(), "{report:?}");
    contents(&Db::builder().directory(target).dram(4 << 20).mode(Mode::Inline).open("").unwrap())
}

fn read_only(disk: &SimulatedDisk) -> Entries {
    let builder = builder().directory(Arc::new(disk.clone())).dram(16 << 20).read_only(true);
    contents(&builder.open("").unwrap())
}

#[test]
fn a_log_longer_than_its_limit_serves_everything() {
    let (disk, mut entries) = killed_with_a_full_log();
    assert_eq!((read_only(&disk), repaired(&disk)), (entries.clone(), entries.clone()));
    let db = open(&disk).unwrap();
    let sizes = |db: &Db| (db.stats().log_capacity, db.stats().log_capacity_max);
    assert_eq!(sizes(&db), (2 * LOG_MAX, 2 * LOG_MAX));
    assert_eq!(contents(&db), entries);
    let table = db.open_table("t").unwrap();
    for key in 0..2 * KEYS {
        table.put(key.to_be_bytes(), [3; 300]).unwrap();
        entries.insert(key.to_be_bytes().to_vec(), vec![3; 300]);
    }
    let mut large = WriteBatch::new();
    (0..LOG_MAX / 1000).for_each(|number| _ = large.put(&table, number.to_be_bytes(), [4; 1000]));
    let refused = db.write(large, Durability::Sync);
    assert!(matches!(refused, Err(Error::TransactionTooLarge { .. })), "{refused:?}");
    // Half of the longer log, which is more than the limit.
    let held = db.shared.maintenance.wal.enter();
    db.checkpoint().unwrap();
    while db.stats().log_tail - db.stats().log_cut < LOG_MAX / 4 * 5 {
        table.put("again", [5; 1000]).unwrap();
    }
    entries.insert(b"again".to_vec(), vec![5; 1000]);
    let copy = Arc::new(MemoryDirectory::new());
    let report = db.backup_to(&*copy).unwrap();
    assert!(report.log_bytes > 0);
    drop(held);
    std::mem::forget(db);
    let disk = disk.killed();
    assert_eq!((read_only(&disk), repaired(&disk)), (entries.clone(), entries.clone()));
    let db = open(&disk).unwrap();
    assert_eq!((sizes(&db), contents(&db)), ((2 * LOG_MAX, 2 * LOG_MAX), entries.clone()));
    db.close().unwrap();
    assert_eq!((read_only(&disk), repaired(&disk)), (entries.clone(), entries.clone()));
    let backup = Backup::open_in(&*copy).unwrap();
    assert_eq!(backup.check().unwrap().errors, []);
    let restored = SimulatedDisk::new(2);
    backup.restore_to(&restored).unwrap();
    let db = open(&restored).unwrap();
    assert_eq!(contents(&db), entries);
    db.open_table("t").unwrap().put("more", "4").unwrap();
}

#[test]
fn a_full_disk_is_told_and_the_next_open_with_room_finds_everything() {
    let (disk, entries) = killed_with_a_full_log();
    for _ in 0..3 {
        disk.fail(FaultPlan::from_then_on(CallKind::SetLen, 1, ENOSPC));
        let error = open(&disk).err();
        let is_told = matches!(&error, Some(Error::Full { what }) if what.contains("the log has to grow"));
        assert!(is_told, "{error:?}");
        disk.mend();
    }
    assert_eq!(contents(&open(&disk).unwrap()), entries);
}
