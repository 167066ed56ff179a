//! Copies, repairs and compactions keep the content of a database.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use terrace::{Builder, Db, Directory, MemoryDirectory, SimulatedDisk, Table, TableStats};
use terrace_io::{AlignedBuffer, OpenMode};

/// Entries of a table.
pub type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

pub fn entries(table: &Table) -> Entries {
    table.iter().map(Result::unwrap).collect()
}

/// Compares all tables of `db` with `expected`, and verifies it.
pub fn check(db: &Db, expected: &BTreeMap<String, Entries>) {
    assert_eq!(db.table_names().unwrap(), expected.keys().cloned().collect::<Vec<_>>());
    for (name, expected) in expected {
        assert!(entries(&db.open_table(name).unwrap()) == *expected, "{name}");
    }
    assert_eq!(db.verify().unwrap().errors, []);
}

/// Backs up and restores `db`; deletes half of all entries and compacts; closes and repairs it.
///
/// The last repair has no superblock. `db` holds `expected` and is on `disk`. `builder` opens such
/// a database, and a repair has `repair_dram` bytes.
pub fn survives(
    db: Db,
    disk: &SimulatedDisk,
    mut expected: BTreeMap<String, Entries>,
    builder: &dyn Fn() -> Builder,
    repair_dram: u64,
) {
    let folder = tempfile::tempdir().unwrap();
    let (backup, restored) = (folder.path().join("backup"), folder.path().join("restored"));
    db.backup(&backup).unwrap();
    let backup = terrace::Backup::open(&backup).unwrap();
    assert_eq!(backup.check().unwrap().errors, []);
    backup.restore(&restored).unwrap();
    let copy = builder().open(&restored).unwrap();
    check(&copy, &expected);
    copy.close().unwrap();

    // Half of the entries go, and the rest moves together.
    for (name, entries) in &mut expected {
        let table = db.open_table(name).unwrap();
        for key in entries.keys().filter(|key| key[1] % 2 == 0) {
            table.delete(key).unwrap();
        }
        entries.retain(|key, _| key[1] % 2 == 1);
    }
    let done = db.compact_with(|_| ControlFlow::Continue(())).unwrap();
    assert!(done.file_bytes_after <= done.file_bytes_before, "{done:?}");
    check(&db, &expected);
    let kinds = |db: &Db| -> Vec<_> {
        let stats = db.table_stats().unwrap();
        let kind = |table: &TableStats| (table.page_bytes, table.value_page_bytes_max, table.compression);
        stats.iter().map(kind).collect()
    };
    let kinds_before = kinds(&db);
    db.close().unwrap();

    // A repair of the sound database keeps everything, options included.
    let repair = |target| Db::builder().dram(repair_dram).repair_in(disk, target).unwrap();
    let target = Arc::new(MemoryDirectory::new());
    let report = repair(target.clone());
    assert!(report.lost_pages.is_empty(), "{report:?}");
    let repaired = builder().directory(target).create(false).open("").unwrap();
    check(&repaired, &expected);
    assert_eq!(kinds(&repaired), kinds_before);

    // Without superblock and page table the images identify themselves.
    let pages = disk.open("pages.terrace", OpenMode::Write).unwrap();
    pages.write_at(0, &AlignedBuffer::zeroed(32 << 10)).unwrap();
    let target = Arc::new(MemoryDirectory::new());
    let report = repair(target.clone());
    assert!(!report.notes.is_empty());
    let repaired = builder().dram(repair_dram).directory(target).create(false).open("").unwrap();
    let entries = |name: &str| entries(&repaired.open_table(name).unwrap());
    for (name, expected) in &expected {
        let found = entries(name);
        assert!(expected.iter().all(|(key, value)| found.get(key) == Some(value)), "{name}");
    }
}
