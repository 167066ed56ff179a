//! Changes of a part of a value: logged as a part, atomic, and inside the value or refused.

use std::sync::Arc;

use terrace::{Db, Durability, Error, MemoryDirectory, Table};

use super::common;

const THREADS: usize = 4;

fn open(directory: &MemoryDirectory) -> (Db, Table) {
    let builder = common::builder().directory(Arc::new(directory.clone())).dram(4 << 20);
    let db = builder.durability(Durability::Buffered).open("").unwrap();
    let table = db.open_or_create_table("t").unwrap();
    (db, table)
}

fn logged(db: &Db, change: impl FnOnce()) -> u64 {
    let before = db.stats().log_bytes;
    change();
    db.stats().log_bytes - before
}

#[test]
fn the_log_gets_the_part_that_changed() {
    let directory = MemoryDirectory::new();
    let (db, table) = open(&directory);
    let mut value = vec![1; 1000];
    table.put("k", &value).unwrap();
    value[500..600].fill(2);
    let part = 100..300;
    let whole = 1000..1200;
    assert!(part.contains(&logged(&db, || assert!(table.update_range("k", 500, [2; 100]).unwrap()))));
    assert_eq!(table.get("k").unwrap().as_ref(), Some(&value));
    value[0..100].fill(3);
    assert!(part.contains(&logged(&db, || table.put("k", &value).unwrap())), "a put finds the part");
    assert!(whole.contains(&logged(&db, || table.put("k", [4; 1000]).unwrap())));
    assert!(whole.contains(&logged(&db, || table.put("k", [4; 999]).unwrap())), "another length");
    // In a transaction the old bytes are in the log too: twice the part.
    table.put("k", &value).unwrap();
    value[900..1000].fill(5);
    let twice = logged(&db, || {
        let transaction = db.begin();
        assert!(transaction.update_range(&table, "k", 900, [5; 100]).unwrap());
        assert!(transaction.update_range(&table, "k", 900, [5; 100]).unwrap(), "of its own value");
        assert!(!transaction.update_range(&table, "absent", 0, "a").unwrap());
        transaction.commit().unwrap();
    });
    assert!((200..400).contains(&twice), "{twice}");
    assert_eq!(table.get("k").unwrap().as_ref(), Some(&value));
    db.close().unwrap();
    let (_db, table) = open(&directory);
    assert_eq!(table.get("k").unwrap().as_ref(), Some(&value));
}

#[test]
fn a_part_outside_the_value_is_refused_and_nothing_changes() {
    let (db, table) = open(&MemoryDirectory::new());
    for length in [0, 10, 3000, 50_000] {
        table.put("k", vec![1; length]).unwrap();
        for (at, bytes) in [(length, 1), (length + 1, 0), (0, length + 1), (usize::MAX, 2)] {
            let refused = table.update_range("k", at, vec![2; bytes]).unwrap_err();
            let Error::OutsideValue { start, end, length: found } = refused else { panic!("{refused}") };
            assert_eq!((start, end, found), (at, at.saturating_add(bytes), length));
            let transaction = db.begin();
            assert!(transaction.update_range(&table, "k", at, vec![2; bytes]).is_err());
        }
        assert!(table.update_range("k", length, "").unwrap(), "nothing, at the end");
        assert_eq!(table.get("k").unwrap(), Some(vec![1; length]));
        table.update_range("k", length / 2, vec![3; length - length / 2]).unwrap();
        assert_eq!(table.get("k").unwrap().unwrap()[length / 2..], vec![3; length - length / 2]);
    }
    assert!(!table.update_range("absent", 0, "").unwrap());
    assert!(!table.update_range("absent", 7, "abc").unwrap());
}

/// Each thread owns some bytes of one value; a snapshot sees whole changes only.
#[test]
fn threads_change_parts_of_one_value_without_loss() {
    for length in [THREADS * 16, 60_000] {
        let (db, table) = open(&MemoryDirectory::new());
        table.put("k", vec![0; length]).unwrap();
        let part = length / THREADS;
        let rounds = if length < 1000 { 500 } else { 20 };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (db, table) = (&db, &table);
                scope.spawn(move || {
                    for round in 1..=rounds {
                        let bytes = vec![round as u8; part];
                        if round % 3 == 0 {
                            let update = db.update(|transaction| {
                                transaction.update_range(table, "k", thread * part, &bytes)
                            });
                            assert!(update.unwrap());
                        } else {
                            assert!(table.update_range("k", thread * part, &bytes).unwrap());
                        }
                        let now = db.snapshot().get(table, "k").unwrap().unwrap();
                        assert!(now.chunks(part).all(|part| part.iter().all(|byte| *byte == part[0])));
                        assert_eq!(now[thread * part], round as u8);
                    }
                });
            }
        });
        assert_eq!(table.get("k").unwrap(), Some(vec![rounds as u8; part * THREADS]));
    }
}
