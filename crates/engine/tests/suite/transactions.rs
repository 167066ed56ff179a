//! Calls of a transaction: writes during an iteration, ends of a table, old values.

use std::ops::ControlFlow;
use std::sync::Arc;

use terrace::{Builder, Db, Durability, Error, MemoryDirectory, Mode, Table, Transaction, TransactionRange};

use super::common;

/// A value on pages of its own.
const LARGE: usize = 50_000;

fn open() -> (Db, Table) {
    open_with(common::builder())
}

fn open_with(builder: Builder) -> (Db, Table) {
    let builder = builder.directory(Arc::new(MemoryDirectory::new())).dram(4 << 20);
    let db = builder.durability(Durability::Buffered).open("").unwrap();
    let table = db.create_table("t").unwrap();
    (db, table)
}

fn fill(table: &Table, count: u32) {
    (0..count).for_each(|number| table.put(number.to_be_bytes(), [1; 100]).unwrap());
}

fn number(key: &[u8]) -> u32 {
    u32::from_be_bytes(key.try_into().unwrap())
}

#[test]
fn transactions_and_their_ranges_may_go_to_other_threads_and_be_shared() {
    fn check<T: Send + Sync>() {}
    check::<Transaction>();
    check::<TransactionRange<'_>>();
    let (db, table) = open();
    let transaction = db.begin();
    std::thread::scope(|scope| {
        for thread in 0..2u32 {
            let (transaction, table) = (&transaction, &table);
            scope.spawn(move || {
                for round in 0..100u32 {
                    transaction.put(table, (2 * round + thread).to_be_bytes(), "v").unwrap();
                    assert!(transaction.contains(table, (2 * round + thread).to_be_bytes()).unwrap());
                }
            });
        }
    });
    transaction.commit().unwrap();
    assert_eq!(table.len().unwrap(), 200);
}

#[test]
fn a_body_changes_the_entries_that_it_walks() {
    let (db, table) = open();
    fill(&table, 1000);
    let changed = db.update(|tx| {
        let mut changed = 0;
        for entry in tx.prefix(&table, [0, 0]) {
            let (key, _) = entry?;
            match number(&key) % 3 {
                0 => tx.put(&table, &key, "changed")?,
                1 => _ = tx.delete(&table, &key)?,
                _ => {}
            }
            changed += 1;
        }
        Ok::<_, Error>(changed)
    });
    assert_eq!(changed.unwrap(), 1000);
    assert_eq!(table.len().unwrap(), 667);
    assert_eq!(table.get(999u32.to_be_bytes()).unwrap().as_deref(), Some(&b"changed"[..]));
    assert_eq!(table.get(997u32.to_be_bytes()).unwrap(), None);
}

/// Otherwise the walk would meet its own inserts and never end.
#[test]
fn an_iteration_sees_the_writes_made_before_it_and_none_made_since() {
    let (db, table) = open();
    fill(&table, 20);
    let tx = db.begin();
    for number in 20..30u32 {
        tx.put(&table, number.to_be_bytes(), "own").unwrap();
    }
    tx.delete(&table, 5u32.to_be_bytes()).unwrap();
    let mut seen = Vec::new();
    let mut walk = tx.iter(&table);
    while let Some(entry) = walk.next() {
        let (key, value) = entry.unwrap();
        seen.push((number(&key), value.len()));
        // Ahead of the walk: new keys between the old ones, other values, removals, and back again.
        let savepoint = tx.savepoint();
        tx.put(&table, [&key[..], b"x"].concat(), "new").unwrap();
        tx.put(&table, (number(&key) + 1).to_be_bytes(), "another").unwrap();
        tx.delete(&table, (number(&key) + 2).to_be_bytes()).unwrap();
        if number(&key).is_multiple_of(2) {
            tx.rollback_to(&savepoint).unwrap();
        }
        if number(&key) == 10 {
            let (key, value) = walk.next_back().unwrap().unwrap();
            assert_eq!((number(&key), value), (29, b"own".to_vec()));
        }
    }
    let expected: Vec<_> = (0..29).filter(|&n| n != 5).map(|n| (n, if n < 20 { 100 } else { 3 })).collect();
    assert_eq!(seen, expected);
    let after: Vec<_> = tx.iter(&table).map(|entry| entry.unwrap()).collect();
    assert!(
        after.iter().any(|(_, value)| value == b"new") && after.iter().any(|(_, value)| value == b"another")
    );
    tx.commit().unwrap();
    assert_eq!(table.iter().map(|entry| entry.unwrap()).collect::<Vec<_>>(), after);
}

#[test]
fn walks_inside_walks_count_as_read_until_the_commit() {
    for conflicts in [false, true] {
        let (db, table) = open_with(common::optimistic());
        fill(&table, 40);
        let other = db.create_table("other").unwrap();
        let tx = db.begin();
        let mut pairs = 0;
        for entry in tx.range(&table, ..20u32.to_be_bytes()) {
            let (key, _) = entry.unwrap();
            for inner in tx.range(&table, 20u32.to_be_bytes()..40u32.to_be_bytes()).rev() {
                pairs += 1;
                tx.put(&other, [&key[..], &inner.unwrap().0].concat(), "").unwrap();
            }
        }
        assert_eq!(pairs, 400);
        // The outer walk alone has read this key.
        if conflicts {
            table.put(7u32.to_be_bytes(), "somebody else's").unwrap();
        }
        let outcome = tx.commit();
        assert_eq!(outcome.is_err(), conflicts, "{outcome:?}");
        assert_eq!(other.len().unwrap(), if conflicts { 0 } else { 400 });
    }
}

/// The pages of a replaced value must stay while a walk may read them.
#[test]
fn a_walk_reads_own_large_values_that_were_replaced_since() {
    let directory = Arc::new(MemoryDirectory::new());
    // A checkpoint fails older turns.
    let db = common::optimistic().directory(directory).dram(4 << 20).mode(Mode::Inline).open("").unwrap();
    let table = db.create_table("t").unwrap();
    let empty = db.stats().live_pages;
    let tx = db.begin();
    for key in 0..5u8 {
        tx.put(&table, [key], vec![key; LARGE]).unwrap();
    }
    let mut walk = tx.iter(&table);
    walk.next().unwrap().unwrap();
    for round in 0..3u8 {
        for key in 0..5u8 {
            tx.put(&table, [key], vec![100 + round; LARGE]).unwrap();
        }
        tx.delete(&table, [4]).unwrap();
        // Frees all garbage.
        db.checkpoint().unwrap();
    }
    for key in 1..5u8 {
        assert_eq!(walk.next().unwrap().unwrap(), (vec![key], vec![key; LARGE]));
    }
    assert!(walk.next().is_none());
    tx.commit().unwrap();
    assert_eq!(table.get([3]).unwrap(), Some(vec![102; LARGE]));
    assert_eq!((table.len().unwrap(), db.verify().unwrap().errors.len()), (4, 0));
    // All that was replaced is free again.
    table.delete_range::<&[u8]>(..).unwrap();
    db.checkpoint().unwrap();
    assert_eq!(db.stats().live_pages, empty);
}

#[test]
fn first_last_iter_and_scan_include_own_changes() {
    let (db, table) = open();
    let tx = db.begin();
    assert_eq!((tx.first(&table).unwrap(), tx.last(&table).unwrap()), (None, None));
    fill(&table, 10);
    let (snapshot, tx) = (db.snapshot(), db.begin());
    table.put("z", "later").unwrap();
    assert_eq!(number(&snapshot.first(&table).unwrap().unwrap().0), 0);
    assert_eq!(number(&snapshot.last(&table).unwrap().unwrap().0), 9);
    table.delete("z").unwrap();
    assert_eq!(number(&tx.first(&table).unwrap().unwrap().0), 0);
    tx.delete(&table, 0u32.to_be_bytes()).unwrap();
    tx.put(&table, 10u32.to_be_bytes(), "own").unwrap();
    assert_eq!(number(&tx.first(&table).unwrap().unwrap().0), 1);
    assert_eq!(tx.last(&table).unwrap().unwrap(), (10u32.to_be_bytes().to_vec(), b"own".to_vec()));
    let keys: Vec<_> = tx.iter(&table).map(|entry| number(&entry.unwrap().0)).collect();
    assert_eq!(keys, (1..=10).collect::<Vec<_>>());
    let mut seen = Vec::new();
    let broke = tx.scan(&table, 3u32.to_be_bytes().., |key, value| {
        seen.push(number(key));
        if value == b"own" { ControlFlow::Break(seen.len()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!((broke.unwrap(), seen), (Some(8), (3..=10).collect()));
    let all = tx.scan::<[u8; 4], ()>(&table, .., |_, _| ControlFlow::Continue(()));
    assert_eq!(all.unwrap(), None);
    tx.commit().unwrap();
}

#[test]
fn a_scan_that_breaks_depends_only_on_the_entries_visited() {
    let (db, table) = open_with(common::optimistic());
    fill(&table, 10);
    for (changed, conflicts) in [(3u32, true), (4, false)] {
        let tx = db.begin();
        let broke = tx.scan::<[u8; 4], _>(&table, .., |key, _| match number(key) {
            3 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        });
        assert_eq!(broke.unwrap(), Some(()));
        tx.put(&table, "written", "1").unwrap();
        table.put(changed.to_be_bytes(), "somebody else's").unwrap();
        assert_eq!(tx.commit().is_err(), conflicts);
    }
}

#[test]
fn replace_and_take_return_the_value_before_them() {
    let (db, table) = open();
    for large in [LARGE, 10] {
        let value = |byte: u8| vec![byte; large];
        assert_eq!(table.replace("k", value(1)).unwrap(), None);
        assert_eq!(table.replace("k", "small").unwrap(), Some(value(1)));
        assert_eq!(table.replace("k", value(2)).unwrap().as_deref(), Some(&b"small"[..]));
        assert_eq!(table.take("k").unwrap(), Some(value(2)));
        assert_eq!(table.take("k").unwrap(), None);
        let tx = db.begin();
        assert_eq!(tx.replace(&table, "k", value(3)).unwrap(), None);
        assert_eq!(tx.replace(&table, "k", value(4)).unwrap(), Some(value(3)));
        tx.commit().unwrap();
        let tx = db.begin();
        assert_eq!(tx.take(&table, "k").unwrap(), Some(value(4)));
        assert_eq!(tx.take(&table, "k").unwrap(), None);
        tx.commit().unwrap();
        assert_eq!(table.get("k").unwrap(), None);
    }
    let long = [0; terrace::MAX_KEY_BYTES + 1];
    assert!(matches!(table.replace(long, ""), Err(Error::KeyTooLarge { .. })));
    assert!(matches!(table.take(long), Err(Error::KeyTooLarge { .. })));
    assert_eq!(db.verify().unwrap().errors.len(), 0);
}

/// Each value comes back exactly once, whichever thread replaced or took it.
#[test]
fn values_that_threads_replace_and_take_come_back_once() {
    const ROUNDS: u32 = 300;
    let (_db, table) = open();
    let exchange = |thread: u32| {
        let mut back: Vec<Vec<u8>> = Vec::new();
        for round in 0..ROUNDS {
            let mut value = (thread * ROUNDS + round).to_be_bytes().to_vec();
            // Some are on pages of their own.
            value.resize(if round % 10 == 0 { 5000 } else { 4 }, 0);
            back.extend(table.replace("k", value).unwrap());
            if round % 3 == 0 {
                back.extend(table.take("k").unwrap());
            }
        }
        back
    };
    let mut back: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3u32)
            .map(|thread| {
                scope.spawn({
                    let exchange = &exchange;
                    move || exchange(thread)
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    back.extend(table.take("k").unwrap());
    let mut back: Vec<u32> = back.iter().map(|value| number(&value[..4])).collect();
    back.sort_unstable();
    assert_eq!(back, (0..3 * ROUNDS).collect::<Vec<_>>());
}
