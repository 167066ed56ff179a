//! Reads into a closure or a buffer: `get_with` and `get_into` say the same as `get`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use terrace::{
    Builder, Db, Durability, Error, MemoryDirectory, Mode, RecordCache, Snapshot, Table, Transaction,
};

use super::common;

fn open() -> (Db, Table) {
    open_with(common::builder())
}

fn open_with(builder: Builder) -> (Db, Table) {
    let builder = builder.directory(Arc::new(MemoryDirectory::new())).dram(4 << 20);
    let db = builder.durability(Durability::Buffered).open("").unwrap();
    let table = db.create_table("t").unwrap();
    (db, table)
}

/// A value on one page of its own, or on many, or in a leaf.
fn value(key: u32, round: u8) -> Vec<u8> {
    let length = [0, 10, 1000, 3000, 50_000][key as usize % 5];
    vec![round ^ key as u8; length]
}

trait Reads {
    fn get(&self, table: &Table, key: [u8; 4]) -> Option<Vec<u8>>;
    fn with(&self, table: &Table, key: [u8; 4]) -> Option<Vec<u8>>;
    fn into(&self, table: &Table, key: [u8; 4], value: &mut Vec<u8>) -> bool;
}

struct Now;

impl Reads for Now {
    fn get(&self, table: &Table, key: [u8; 4]) -> Option<Vec<u8>> {
        table.get(key).unwrap()
    }

    fn with(&self, table: &Table, key: [u8; 4]) -> Option<Vec<u8>> {
        table.get_with(key, <[u8]>::to_vec).unwrap()
    }

    fn into(&self, table: &Table, key: [u8; 4], value: &mut Vec<u8>) -> bool {
        table.get_into(key, value).unwrap()
    }
}

macro_rules! reads {
    ($($type:ty)*) => { $(
        impl Reads for $type {
            fn get(&self, table: &Table, key: [u8; 4]) -> Option<Vec<u8>> {
                self.get(table, key).unwrap()
            }

            fn with(&self, table: &Table, key: [u8; 4]) -> Option<Vec<u8>> {
                self.get_with(table, key, <[u8]>::to_vec).unwrap()
            }

            fn into(&self, table: &Table, key: [u8; 4], value: &mut Vec<u8>) -> bool {
                self.get_into(table, key, value).unwrap()
            }
        }
    )* };
}

reads! { Snapshot Transaction }

fn check(reads: &dyn Reads, table: &Table, expected: impl Fn(u32) -> Option<Vec<u8>>) {
    let mut buffer = b"left over".to_vec();
    for key in 0..60u32 {
        let (bytes, expected) = (key.to_be_bytes(), expected(key));
        assert_eq!(reads.get(table, bytes), expected, "{key}");
        assert_eq!(reads.with(table, bytes), expected, "{key}");
        assert_eq!(reads.into(table, bytes, &mut buffer), expected.is_some(), "{key}");
        assert_eq!(buffer, expected.unwrap_or_default(), "{key}");
    }
}

#[test]
fn values_of_every_kind_come_now_at_a_snapshot_and_in_a_transaction() {
    let (db, table) = open();
    let put = |round| (0..50u32).try_for_each(|key| table.put(key.to_be_bytes(), value(key, round)));
    let first = |key: u32| (key < 50).then(|| value(key, 1));
    put(1).unwrap();
    let snapshot = db.snapshot();
    for reads in [&Now as &dyn Reads, &snapshot, &db.begin()] {
        check(reads, &table, first);
    }
    // The snapshot needs old versions, of changed and of deleted keys.
    put(2).unwrap();
    (0..10u32).for_each(|key| _ = table.delete(key.to_be_bytes()).unwrap());
    check(&snapshot, &table, first);
    let second = |key: u32| (10..50).contains(&key).then(|| value(key, 2));
    check(&Now, &table, second);
    let transaction = db.begin();
    check(&transaction, &table, second);
    (20..55u32).for_each(|key| transaction.put(&table, key.to_be_bytes(), value(key, 3)).unwrap());
    (20..25u32).for_each(|key| _ = transaction.delete(&table, key.to_be_bytes()).unwrap());
    check(&transaction, &table, |key| match key {
        25..55 => Some(value(key, 3)),
        20..25 => None,
        key => second(key),
    });
    transaction.commit().unwrap();
}

#[test]
fn reads_through_a_small_memory_and_a_record_cache_say_the_same() {
    for record_cache in [RecordCache::Off, RecordCache::Percent(50)] {
        let builder = common::builder().directory(Arc::new(MemoryDirectory::new())).dram(2 << 20);
        let builder = builder.log_max(1 << 20).mode(Mode::Inline).durability(Durability::Buffered);
        let db = builder.record_cache(record_cache).open("").unwrap();
        let table = db.create_table("t").unwrap();
        let value = |key: u32| vec![key as u8; 100 + key as usize % 400];
        (0..20_000u32).for_each(|key| {
            table.put((key * 7919 % 20_000).to_be_bytes(), value(key * 7919 % 20_000)).unwrap()
        });
        let mut buffer = Vec::new();
        for step in 0..20_000u32 {
            // A few keys come often, so that the record cache keeps them.
            let key = if step % 2 == 0 { step % 100 * 191 } else { step * 6007 % 20_000 };
            assert!(table.get_into(key.to_be_bytes(), &mut buffer).unwrap());
            assert_eq!(buffer, value(key));
            assert_eq!(table.get_with((key + 20_000).to_be_bytes(), |_| ()).unwrap(), None);
        }
        let hits = db.stats().records.hits;
        assert_eq!(hits > 0, record_cache != RecordCache::Off, "{:?}", db.stats());
    }
}

/// The closure gets a copy, so it may call the database, even for the value that it reads.
#[test]
fn the_closure_of_a_read_may_read_and_write() {
    let (db, table) = open();
    table.put("a", "b").unwrap();
    table.put("b", "c").unwrap();
    let transaction = db.begin();
    let last = table.get_with("a", |key| {
        table.put("a", "changed").unwrap();
        let inner = transaction.get_with(&table, key, |value| {
            transaction.put(&table, "b", "changed").unwrap();
            value.to_vec()
        });
        (key.to_vec(), inner.unwrap().unwrap())
    });
    assert_eq!(last.unwrap(), Some((b"b".to_vec(), b"c".to_vec())));
    transaction.commit().unwrap();
    assert_eq!(table.get("b").unwrap().as_deref(), Some(&b"changed"[..]));
}

#[test]
fn a_read_into_a_buffer_counts_for_conflicts_and_errors_leave_it_empty() {
    let (db, table) = open_with(common::optimistic());
    table.put("a", "1").unwrap();
    for reads_with in [false, true] {
        let transaction = db.begin();
        let mut buffer = Vec::new();
        match reads_with {
            true => _ = transaction.get_with(&table, "a", |_| ()).unwrap(),
            false => _ = transaction.get_into(&table, "a", &mut buffer).unwrap(),
        }
        transaction.put(&table, "b", "1").unwrap();
        table.put("a", "2").unwrap();
        assert!(matches!(transaction.commit(), Err(Error::Conflict)));
    }
    db.drop_table("t").unwrap();
    let mut buffer = b"left over".to_vec();
    assert!(matches!(table.get_into("a", &mut buffer), Err(Error::TableNotFound(_))));
    assert!(buffer.is_empty());
    assert!(matches!(table.get_with("a", |_| ()), Err(Error::TableNotFound(_))));
}

/// A reader beside a writer never sees a half-written value.
#[test]
fn the_closure_sees_validated_bytes_only() {
    let (db, table) = open_with(common::optimistic());
    let stop = AtomicBool::new(false);
    table.put("k", [0; 500]).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0u32.. {
                table.put("k", vec![round as u8; 400 + round as usize % 200]).unwrap();
                if stop.load(SeqCst) {
                    return;
                }
            }
        });
        let is_whole = |value: &[u8]| value.len() >= 400 && value.iter().all(|byte| *byte == value[0]);
        for _ in 0..5000 {
            assert_eq!(table.get_with("k", is_whole).unwrap(), Some(true));
            assert_eq!(db.begin().get_with(&table, "k", is_whole).unwrap(), Some(true));
        }
        stop.store(true, SeqCst);
        writer.join().unwrap();
    });
}
