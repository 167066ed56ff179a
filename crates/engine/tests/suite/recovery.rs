//! Closing, reopening, and what remains of a database that was not closed.

use std::sync::Arc;

use terrace::{Db, Durability, Error, MemoryDirectory, Mode, WriteBatch};

use super::common;

fn builder(directory: &MemoryDirectory) -> terrace::Builder {
    common::builder().directory(Arc::new(directory.clone())).dram(2 << 20)
}

#[test]
fn what_was_put_is_there_after_reopening() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    for mode in [Mode::Inline, Mode::Background] {
        let open = || common::builder().dram(4 << 20).mode(mode).open(&path).unwrap();
        let db = open();
        let table = db.open_or_create_table("t").unwrap();
        for n in 0..2000u32 {
            table.put(n.to_be_bytes(), format!("value {n} {mode:?}")).unwrap();
        }
        assert!(table.delete(7u32.to_be_bytes()).unwrap());
        assert!(!table.delete(7u32.to_be_bytes()).unwrap());
        db.close().unwrap();
        let db = open();
        let stats = db.stats();
        assert_eq!(
            (stats.changes_redone, stats.losers_undone),
            (0, 0),
            "a clean close leaves nothing to redo"
        );
        let table = db.open_table("t").unwrap();
        assert_eq!(table.get(8u32.to_be_bytes()).unwrap().unwrap(), format!("value 8 {mode:?}").as_bytes());
        assert_eq!(table.get(7u32.to_be_bytes()).unwrap(), None);
        assert_eq!(table.len().unwrap(), 1999);
        let report = db.verify().unwrap();
        assert_eq!(report.errors, []);
        assert_eq!(report.entries_checked, 1999);
    }
}

#[test]
fn dropped_handles_close_the_database() {
    let directory = MemoryDirectory::new();
    let db = builder(&directory).durability(Durability::Buffered).open("").unwrap();
    let table = db.create_table("t").unwrap();
    table.put("k", "v").unwrap();
    drop(db);
    assert!(matches!(
        builder(&directory).open(""),
        Err(Error::Busy { owner_process: Some(process), .. }) if process == std::process::id()
    ));
    drop(table);
    let db = builder(&directory).open("").unwrap();
    assert_eq!(db.open_table("t").unwrap().get("k").unwrap().unwrap(), b"v");
}

#[test]
fn other_handles_fail_after_close() {
    let directory = MemoryDirectory::new();
    let db = builder(&directory).open("").unwrap();
    let table = db.create_table("t").unwrap();
    table.put("k", "v").unwrap();
    let snapshot = db.snapshot();
    db.clone().close().unwrap();
    assert!(matches!(table.get("k"), Err(Error::Poisoned { .. })));
    assert!(matches!(table.put("k", "w"), Err(Error::Poisoned { .. })));
    assert!(matches!(snapshot.get(&table, "k"), Err(Error::Poisoned { .. })));
    let again = builder(&directory).open("").unwrap();
    assert_eq!(again.open_table("t").unwrap().get("k").unwrap().unwrap(), b"v");
}

#[test]
fn errors_name_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let error = common::builder().create(false).open(&missing).unwrap_err();
    assert!(matches!(error, Error::NotADatabase { .. }), "{error}");
    assert!(!missing.exists());
    let file = folder.path().join("file");
    std::fs::write(&file, "hello").unwrap();
    let error = common::builder().dram(2 << 20).open(&file).unwrap_err();
    assert!(error.to_string().contains("not a directory"), "{error}");
    let error = common::builder().dram(1000).open(&missing).unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
    std::fs::create_dir(folder.path().join("foreign")).unwrap();
    std::fs::write(folder.path().join("foreign/pages.terrace"), vec![1; 1 << 16]).unwrap();
    std::fs::write(folder.path().join("foreign/log.terrace"), vec![1; 1 << 16]).unwrap();
    let error = common::builder().dram(2 << 20).open(folder.path().join("foreign")).unwrap_err();
    assert!(matches!(error, Error::NotADatabase { .. }), "{error}");
    std::fs::remove_file(folder.path().join("foreign/pages.terrace")).unwrap();
    let error = common::builder().dram(2 << 20).open(folder.path().join("foreign")).unwrap_err();
    assert!(error.to_string().contains("log.terrace but no pages.terrace"), "{error}");
}

#[test]
fn keys_and_values_have_limits() {
    let db = builder(&MemoryDirectory::new()).open("").unwrap();
    let table = db.create_table("t").unwrap();
    table.put("", "the empty key").unwrap();
    table.put([7; terrace::MAX_KEY_BYTES], "").unwrap();
    assert!(matches!(table.put([7; terrace::MAX_KEY_BYTES + 1], ""), Err(Error::KeyTooLarge { .. })));
    assert_eq!(table.first().unwrap().unwrap().1, b"the empty key");
    assert_eq!(table.last().unwrap().unwrap().1, b"");
    assert_eq!(table.get([7; 5000]).unwrap(), None);
}

#[test]
fn read_only_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let db = common::builder().dram(2 << 20).open(&path).unwrap();
    let table = db.create_table("t").unwrap();
    for n in 0..500u32 {
        table.put(n.to_be_bytes(), [1; 100]).unwrap();
    }
    db.close().unwrap();
    let bytes = || ["pages.terrace", "log.terrace"].map(|file| std::fs::read(path.join(file)).unwrap());
    let before = bytes();
    let db = common::builder().dram(2 << 20).read_only(true).open(&path).unwrap();
    let table = db.open_table("t").unwrap();
    assert_eq!(table.len().unwrap(), 500);
    assert!(matches!(table.put("k", "v"), Err(Error::ReadOnly)));
    assert!(matches!(table.delete("k"), Err(Error::ReadOnly)));
    assert!(matches!(db.create_table("u"), Err(Error::ReadOnly)));
    assert!(matches!(db.checkpoint(), Err(Error::ReadOnly)));
    assert_eq!(db.verify().unwrap().errors, []);
    db.flush().unwrap();
    db.close().unwrap();
    assert!(before == bytes(), "a file changed");
}

#[test]
fn large_values_come_back_and_leave_nothing_behind() {
    let directory = MemoryDirectory::new();
    let open = || builder(&directory).mode(Mode::Inline).open("").unwrap();
    let db = open();
    let table = db.create_table("t").unwrap();
    let value = |n: usize| (0..n).map(|at| (at * 7 + n) as u8).collect::<Vec<u8>>();
    db.checkpoint().unwrap();
    let empty = db.stats().live_pages;
    let sizes = [3000, 4000, 4065, 8128, 100_000, 1_000_000, 5_000_000];
    for size in sizes {
        table.put(size.to_string(), value(size)).unwrap();
    }
    let snapshot = db.snapshot();
    for size in sizes {
        assert!(table.get(size.to_string()).unwrap().unwrap() == value(size), "{size}");
        table.put(size.to_string(), value(size + 1)).unwrap();
    }
    let transaction = db.begin();
    transaction.put(&table, "aborted", value(50_000)).unwrap();
    transaction.put(&table, "aborted", value(60_000)).unwrap();
    assert!(transaction.get(&table, "aborted").unwrap().unwrap() == value(60_000));
    transaction.abort();
    assert_eq!(db.verify().unwrap().errors, []);
    drop((table, db));
    // The snapshot has kept the database open.
    let table_again = |db: &Db| db.open_table("t").unwrap();
    drop(snapshot);
    let db = open();
    let table = table_again(&db);
    let snapshot = db.snapshot();
    for size in sizes {
        assert!(table.get(size.to_string()).unwrap().unwrap() == value(size + 1), "{size}");
        table.delete(size.to_string()).unwrap();
        assert!(snapshot.get(&table, size.to_string()).unwrap().unwrap() == value(size + 1), "{size}");
    }
    assert_eq!(snapshot.len(&table).unwrap(), sizes.len() as u64);
    assert_eq!(db.verify().unwrap().errors, []);
    drop(snapshot);
    db.checkpoint().unwrap();
    assert_eq!(db.verify().unwrap().errors, []);
    assert_eq!(db.stats().live_pages, empty, "pages are lost");
}

#[test]
fn a_value_of_64_mib_passes_a_small_budget() {
    let db = builder(&MemoryDirectory::new()).log_max(1 << 20).open("").unwrap();
    let table = db.create_table("t").unwrap();
    let value: Vec<u8> = (0..64usize << 20).map(|at| (at ^ at >> 9) as u8).collect();
    table.put("large", &value).unwrap();
    assert!(table.get("large").unwrap().unwrap() == value);
}

#[test]
fn tables_are_renamed_and_dropped() {
    let directory = MemoryDirectory::new();
    let db = builder(&directory).mode(Mode::Inline).open("").unwrap();
    let kept = db.create_table("kept").unwrap();
    kept.put("k", "v").unwrap();
    db.checkpoint().unwrap();
    let before = db.stats().live_pages;
    let table = db.create_table("a").unwrap();
    assert!(matches!(db.create_table("a"), Err(Error::TableExists(_))));
    let mut batch = WriteBatch::new();
    for n in 0..3000u32 {
        batch.put(&table, n.to_be_bytes(), [n as u8; 200]);
    }
    batch.put(&table, "large", vec![1; 200_000]);
    db.write(batch, Durability::Sync).unwrap();
    db.rename_table("a", "b").unwrap();
    assert_eq!(table.name(), "b");
    assert_eq!(table.len().unwrap(), 3001);
    assert!(matches!(db.rename_table("b", "kept"), Err(Error::TableExists(_))));
    assert!(matches!(db.rename_table("a", "c"), Err(Error::TableNotFound(_))));
    assert_eq!(db.table_names().unwrap(), ["b", "kept"]);
    let snapshot = db.snapshot();
    let open = db.begin();
    open.put(&table, "late", "x").unwrap();
    db.drop_table("b").unwrap();
    assert!(matches!(open.commit(), Err(Error::TableNotFound(_))));
    assert!(matches!(table.get("large"), Err(Error::TableNotFound(_))));
    assert!(matches!(table.put("k", "v"), Err(Error::TableNotFound(_))));
    assert!(matches!(db.open_table("b"), Err(Error::TableNotFound(_))));
    assert_eq!(snapshot.len(&table).unwrap(), 3001, "a snapshot keeps a dropped table");
    db.checkpoint().unwrap();
    assert_eq!(snapshot.get(&table, "large").unwrap().unwrap(), vec![1; 200_000]);
    assert_eq!(db.verify().unwrap().errors, []);
    drop(snapshot);
    let again = db.create_table("b").unwrap();
    assert_eq!(again.len().unwrap(), 0);
    db.drop_table("b").unwrap();
    db.checkpoint().unwrap();
    assert_eq!(db.verify().unwrap().errors, []);
    assert_eq!(db.stats().live_pages, before, "pages are lost");
    assert_eq!(kept.get("k").unwrap().unwrap(), b"v");
}

#[test]
fn a_table_says_how_many_pages_it_has() {
    let directory = Arc::new(MemoryDirectory::new());
    let db = common::builder().directory(directory).dram(2 << 20).mode(Mode::Inline).open("").unwrap();
    let table = db.create_table("t").unwrap();
    assert_eq!(table.pages().unwrap(), 1);
    for number in 0..3000u32 {
        table.put(number.to_be_bytes(), [1; 900]).unwrap();
    }
    let before = db.stats().live_pages;
    let pages = table.pages().unwrap();
    assert!(pages >= 750 && pages < before, "{pages} of {before}");
    db.drop_table("t").unwrap();
    assert!(matches!(table.pages(), Err(Error::TableNotFound(_))));
}
