//! Ranges with bounds of every kind, read in every way, compared with a map.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use terrace::{Db, MemoryDirectory, Mode, Result, Table};

use super::common;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;
type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// Keys at which ranges begin and end: the empty key, neighbours, and the highest ones.
fn edges() -> Vec<Vec<u8>> {
    let mut edges: Vec<Vec<u8>> =
        [&b""[..], b"\0", b"\0\0", b"k", b"k\0", b"k2", b"k20", b"l", b"\xff", b"\xff\0", b"\xff\xff"]
            .map(Vec::from)
            .into();
    edges.push(vec![0xff; 200]);
    edges
}

/// Every pair of bounds at these keys, reversed ones included.
fn bounds() -> Vec<Bounds> {
    let kinds = |key: Vec<u8>| [Bound::Included(key.clone()), Bound::Excluded(key)];
    let all: Vec<Bound<Vec<u8>>> = edges().into_iter().flat_map(kinds).chain([Bound::Unbounded]).collect();
    all.iter().flat_map(|low| all.iter().map(move |high| (low.clone(), high.clone()))).collect()
}

fn is_in((low, high): &Bounds, key: &[u8]) -> bool {
    let above = match low {
        Bound::Included(low) => key >= &low[..],
        Bound::Excluded(low) => key > &low[..],
        Bound::Unbounded => true,
    };
    let below = match high {
        Bound::Included(high) => key <= &high[..],
        Bound::Excluded(high) => key < &high[..],
        Bound::Unbounded => true,
    };
    above && below
}

fn part(map: &Map, bounds: &Bounds) -> Vec<(Vec<u8>, Vec<u8>)> {
    let inside = map.iter().filter(|(key, _)| is_in(bounds, key));
    inside.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// All `entries`, taken from front and back as `turns` says.
fn from<I>(entries: I, turns: &[bool]) -> Result<Vec<(Vec<u8>, Vec<u8>)>>
where
    I: DoubleEndedIterator<Item = Result<(Vec<u8>, Vec<u8>)>>,
{
    let (mut entries, mut front, mut back) = (entries, Vec::new(), Vec::new());
    for &is_front in turns.iter().cycle() {
        match if is_front { entries.next() } else { entries.next_back() } {
            Some(entry) if is_front => front.push(entry?),
            Some(entry) => back.push(entry?),
            None => break,
        }
    }
    back.reverse();
    front.extend(back);
    Ok(front)
}

fn open() -> Db {
    let builder = common::builder().directory(Arc::new(MemoryDirectory::new())).dram(4 << 20).page_size(4096);
    builder.mode(Mode::Inline).durability(terrace::Durability::Buffered).seed(1).open("").unwrap()
}

/// All edges and `more` other keys, some of them in many leaves before the next edge.
fn filled(db: &Db, more: u32) -> (Table, Map) {
    let table = db.create_table("t").unwrap();
    let others = (0..more).map(|number| format!("k{number}").into_bytes());
    let high = (0..more / 4).map(|number| [vec![0xff; 2], number.to_be_bytes().to_vec()].concat());
    let map: Map = edges()
        .into_iter()
        .chain(others)
        .chain(high)
        .map(|key| (key.clone(), [&key[..], &[1; 40]].concat()))
        .collect();
    map.iter().for_each(|(key, value)| table.put(key, value).unwrap());
    (table, map)
}

/// Reads a range in every way, from the table and from an older snapshot.
fn check(db: &Db, table: &Table, now: &Map, snapshot: &terrace::Snapshot, then: &Map) {
    for bounds in bounds() {
        let (expected, old) = (part(now, &bounds), part(then, &bounds));
        let what = format!("{bounds:?}");
        for turns in [&[true][..], &[false], &[true, false], &[false, false, true]] {
            assert_eq!(from(table.range(bounds.clone()), turns).unwrap(), expected, "{what} {turns:?}");
            assert_eq!(from(snapshot.range(table, bounds.clone()), turns).unwrap(), old, "{what} {turns:?}");
            let transaction = db.begin();
            assert_eq!(
                from(transaction.range(table, bounds.clone()), turns).unwrap(),
                expected,
                "{what} {turns:?}"
            );
            // A range read wrongly would be a conflict now.
            transaction.put(table, b"not in the map", "").unwrap();
            transaction.delete(table, b"not in the map").unwrap();
            transaction.commit().unwrap();
        }
        for (seen, expected) in
            [(table.range(bounds.clone()), &expected), (snapshot.range(table, bounds.clone()), &old)]
        {
            let mut shown = Vec::new();
            let stopped = seen.visit(|key, value| -> ControlFlow<()> {
                shown.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            });
            assert_eq!((stopped.unwrap(), &shown), (None, expected), "{what}");
        }
        let transaction = db.begin();
        assert_eq!(transaction.delete_range(table, bounds.clone()).unwrap(), expected.len() as u64, "{what}");
        assert_eq!(from(transaction.range(table, bounds.clone()), &[false]).unwrap(), [], "{what}");
        let left: Vec<_> =
            now.iter().filter(|(key, _)| !is_in(&bounds, key)).map(|(key, _)| key.clone()).collect();
        let seen = from(transaction.range::<&[u8]>(table, ..), &[false, true]).unwrap();
        assert!(seen.iter().map(|(key, _)| key).eq(&left), "{what}");
        transaction.abort();
    }
    for prefix in edges() {
        let expected: Vec<_> = part(now, &(Bound::Unbounded, Bound::Unbounded))
            .into_iter()
            .filter(|(key, _)| key.starts_with(&prefix))
            .collect();
        for turns in [&[true][..], &[false], &[true, false]] {
            assert_eq!(from(table.prefix(&prefix), turns).unwrap(), expected, "{prefix:?}");
            assert_eq!(from(db.begin().prefix(table, &prefix), turns).unwrap(), expected, "{prefix:?}");
        }
    }
    assert_eq!(table.first().unwrap(), now.iter().next().map(|(key, value)| (key.clone(), value.clone())));
    assert_eq!(
        table.last().unwrap(),
        now.iter().next_back().map(|(key, value)| (key.clone(), value.clone()))
    );
    assert_eq!(table.len().unwrap(), now.len() as u64);
}

#[test]
fn every_range_holds_what_a_map_says_in_one_leaf_and_in_many() {
    for more in [0, 60, 500] {
        let db = open();
        let (table, map) = filled(&db, more);
        check(&db, &table, &map, &db.snapshot(), &map);
        // A snapshot finds what was deleted, changed and added since elsewhere.
        let (snapshot, mut now) = (db.snapshot(), map.clone());
        for (number, key) in map.keys().enumerate() {
            match number % 3 {
                0 => {
                    table.delete(key).unwrap();
                    now.remove(key);
                }
                1 => {
                    table.put(key, "new").unwrap();
                    now.insert(key.clone(), b"new".to_vec());
                }
                _ => {
                    let key = [&key[..], b"+"].concat();
                    table.put(&key, "added").unwrap();
                    now.insert(key, b"added".to_vec());
                }
            }
        }
        check(&db, &table, &now, &snapshot, &map);
        assert_eq!(db.verify().unwrap().errors, []);
    }
}

#[test]
fn every_range_of_a_table_is_deleted_as_of_a_map() {
    let db = open();
    let (table, map) = filled(&db, 40);
    for bounds in bounds() {
        let gone = part(&map, &bounds);
        let deleted = match gone.len() % 2 {
            0 => table.delete_range(bounds.clone()).unwrap(),
            _ => table.delete_range_in_steps(bounds.clone()).unwrap(),
        };
        assert_eq!(deleted, gone.len() as u64, "{bounds:?}");
        assert_eq!(table.len().unwrap(), (map.len() - gone.len()) as u64, "{bounds:?}");
        gone.iter().for_each(|(key, value)| table.put(key, value).unwrap());
    }
    assert_eq!(from(table.iter(), &[false]).unwrap(), part(&map, &(Bound::Unbounded, Bound::Unbounded)));
}
