//! Named snapshots: found by name, kept at any age, given up at their own limit or at that of all.

use std::sync::Arc;
use std::time::Duration;

use terrace::{Db, Error, MemoryDirectory, Mode, Table};

use super::common;

const VERSION_BYTES: u64 = 1 << 20;

fn open(mode: Mode) -> (Db, Table) {
    let builder = common::builder().directory(Arc::new(MemoryDirectory::new())).dram(8 << 20).mode(mode);
    let builder = builder.old_version_bytes_max(VERSION_BYTES).snapshot_age_max(Duration::from_millis(1));
    let db = builder.open("").unwrap();
    let table = db.create_table("t").unwrap();
    (db, table)
}

/// Replaces values of 100 bytes.
fn replace(table: &Table, times: u32) {
    (0..times).for_each(|round| table.put((round % 50).to_be_bytes(), [round as u8; 100]).unwrap());
}

#[test]
fn a_name_finds_the_moment_it_was_given_at() {
    let (db, table) = open(Mode::Inline);
    table.put("k", "1").unwrap();
    let first = db.create_named_snapshot("first", None).unwrap();
    table.put("k", "2").unwrap();
    drop(db.create_named_snapshot("second", Some(50_000)).unwrap());
    table.delete("k").unwrap();
    let read = |name: &str| db.named_snapshot(name).unwrap().get(&table, "k").unwrap();
    assert_eq!((read("first"), read("second")), (Some(b"1".to_vec()), Some(b"2".to_vec())));
    let names: Vec<_> = db.named_snapshots().into_iter().map(|named| named.name).collect();
    assert_eq!(names, ["first", "second"]);
    assert_eq!(db.stats().named_snapshots, 2);
    assert!(
        matches!(db.create_named_snapshot("first", None), Err(Error::SnapshotExists(name)) if name == "first")
    );
    db.drop_named_snapshot("first").unwrap();
    assert!(matches!(db.named_snapshot("first"), Err(Error::SnapshotNotFound(name)) if name == "first"));
    assert!(matches!(db.drop_named_snapshot("first"), Err(Error::SnapshotNotFound(_))));
    assert_eq!(first.get(&table, "k").unwrap().as_deref(), Some(&b"1"[..]), "a handle outlives the name");
    let refused = db.create_named_snapshot("greedy", Some(VERSION_BYTES + 1));
    assert!(matches!(refused, Err(Error::Config(_))), "{refused:?}");
    db.close().unwrap();
}

#[test]
fn a_named_snapshot_is_given_up_at_its_own_limit_and_others_stay() {
    let (db, table) = open(Mode::Inline);
    replace(&table, 50);
    db.create_named_snapshot("small", Some(40_000)).unwrap();
    db.create_named_snapshot("large", Some(800_000)).unwrap();
    let before = db.snapshot();
    let given_up = |name: &str| {
        let all = db.named_snapshots();
        let named = all.iter().find(|named| named.name == name).unwrap();
        assert!(named.given_up || named.version_bytes <= named.version_bytes_max + 64 * 400, "{named:?}");
        named.given_up
    };
    let mut rounds = 0;
    while !given_up("small") {
        replace(&table, 64);
        rounds += 1;
        assert!(rounds < 100, "never given up: {:?}", db.named_snapshots());
    }
    // A version takes some 170 bytes.
    assert!(rounds > 2, "given up after {rounds} rounds");
    let small = db.named_snapshot("small").unwrap();
    assert!(matches!(small.get(&table, 3u32.to_be_bytes()), Err(Error::SnapshotTooOld)));
    assert!(!given_up("large"));
    let large = db.named_snapshot("large").unwrap();
    for key in 0..50u32 {
        let expected = Some(vec![key as u8; 100]);
        assert_eq!(large.get(&table, key.to_be_bytes()).unwrap(), expected);
        assert_eq!(before.get(&table, key.to_be_bytes()).unwrap(), expected);
    }
    assert!(db.stats().named_snapshot_bytes > 40_000);
    // The name can be reused.
    db.drop_named_snapshot("small").unwrap();
    let again = db.create_named_snapshot("small", Some(40_000)).unwrap();
    assert!(again.get(&table, 3u32.to_be_bytes()).unwrap().is_some());
}

#[test]
fn the_limit_of_all_old_versions_holds_for_named_ones_too() {
    let (db, table) = open(Mode::Inline);
    replace(&table, 50);
    let named = db.create_named_snapshot("all", None).unwrap();
    for _ in 0..400 {
        replace(&table, 64);
    }
    assert!(db.named_snapshots()[0].given_up);
    assert!(matches!(named.get(&table, 3u32.to_be_bytes()), Err(Error::SnapshotTooOld)));
    assert!(db.stats().version_bytes < 3 * VERSION_BYTES);
}

/// Both are older than the age limit. When the other one is given up, the named one was checked
/// too.
#[test]
fn age_is_no_reason_to_give_a_named_snapshot_up() {
    let (db, table) = open(Mode::Background);
    table.put("k", "1").unwrap();
    let named = db.create_named_snapshot("old", None).unwrap();
    let other = db.snapshot();
    table.put("k", "2").unwrap();
    while other.get(&table, "k").is_ok() {
        std::thread::yield_now();
    }
    assert_eq!(named.get(&table, "k").unwrap().as_deref(), Some(&b"1"[..]));
    assert!(named.age() >= Duration::from_millis(1));
    // Without its name it is an ordinary snapshot.
    db.drop_named_snapshot("old").unwrap();
    while named.get(&table, "k").is_ok() {
        std::thread::yield_now();
    }
}
