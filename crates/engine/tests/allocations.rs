//! Reads into a buffer take no memory. A program of its own, because it counts allocations.

use std::sync::Arc;

use allocation_counter::measure;
use terrace::{Db, Durability, MemoryDirectory, Table};

const KEYS: u32 = 1000;

fn filled() -> (Db, Table) {
    let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(8 << 20);
    let db = builder.durability(Durability::Buffered).open("").unwrap();
    let table = db.create_table("t").unwrap();
    (0..KEYS).for_each(|key| table.put(key.to_be_bytes(), [key as u8; 300]).unwrap());
    (db, table)
}

/// The allocations of a second round of `read` over all keys.
fn when_warm(mut read: impl FnMut([u8; 4], u8)) -> u64 {
    let mut round = || (0..KEYS).for_each(|key| read(key.to_be_bytes(), key as u8));
    round();
    measure(round).count_total
}

#[test]
fn a_warm_read_of_a_value_in_a_leaf_allocates_nothing() {
    let (db, table) = filled();
    let snapshot = db.snapshot();
    let check = |value: &[u8], byte: u8| assert!(value.len() == 300 && value[299] == byte);
    let gets = when_warm(|key, byte| check(&table.get(key).unwrap().unwrap(), byte));
    assert!(gets >= u64::from(KEYS), "allocations are counted: {gets}");
    assert_eq!(when_warm(|key, byte| table.get_with(key, |value| check(value, byte)).unwrap().unwrap()), 0);
    let read = |key, byte| snapshot.get_with(&table, key, |value| check(value, byte)).unwrap().unwrap();
    assert_eq!(when_warm(read), 0);
    let mut buffer = Vec::new();
    let allocations = when_warm(|key, byte| {
        assert!(table.get_into(key, &mut buffer).unwrap());
        check(&buffer, byte);
        assert!(snapshot.get_into(&table, key, &mut buffer).unwrap());
        check(&buffer, byte);
        assert!(table.get_range_into(key, 100..200, &mut buffer).unwrap());
        assert!(buffer == [byte; 100]);
        assert_eq!(snapshot.get_range_with(&table, key, 299.., <[u8]>::len).unwrap(), Some(1));
    });
    assert_eq!(allocations, 0);
}

/// A transaction notes what it reads, each key once.
#[test]
fn a_transaction_that_reads_again_allocates_nothing() {
    let (db, table) = filled();
    let transaction = db.begin();
    transaction.put(&table, 7u32.to_be_bytes(), [7; 300]).unwrap();
    let mut buffer = Vec::new();
    let read = |key: [u8; 4], byte| {
        assert_eq!(transaction.get_with(&table, key, |value| value[299]).unwrap(), Some(byte));
        assert!(transaction.get_into(&table, key, &mut buffer).unwrap());
    };
    assert_eq!(when_warm(read), 0);
}
