//! Compare-and-swap and updates of a key by many threads: nothing is lost or done twice.

use std::sync::Arc;
use std::sync::Mutex;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace::{Db, Durability, MemoryDirectory, Swap, Table};

use super::common;

const THREADS: u64 = 4;

fn open(durability: Durability) -> (Db, Table) {
    let directory = Arc::new(MemoryDirectory::new());
    let db = common::builder().directory(directory).dram(2 << 20).durability(durability).open("").unwrap();
    let table = db.create_table("t").unwrap();
    (db, table)
}

/// A number, padded to `bytes` bytes.
fn padded(number: u64, bytes: usize) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(bytes, number as u8);
    value
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().unwrap())
}

/// Small values, values too large for a leaf, and both in turn.
fn sizes() -> [fn(u64) -> usize; 3] {
    [|_| 8, |_| 9000, |number| if number.is_multiple_of(2) { 8 } else { 9000 }]
}

#[test]
fn a_counter_raised_by_swaps_is_exact() {
    for (kind, size) in sizes().into_iter().enumerate() {
        let rounds = if kind == 0 { 2000 } else { 150 };
        let (db, table) = open(Durability::Buffered);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                let table = &table;
                scope.spawn(move || {
                    let mut now: Option<Vec<u8>> = None;
                    for _ in 0..rounds {
                        loop {
                            let next = now.as_deref().map_or(0, number) + 1;
                            let new = padded(next, size(next));
                            match table.compare_and_swap("counter", now.as_deref(), Some(&new)).unwrap() {
                                Swap::Done => {
                                    now = Some(new);
                                    break;
                                }
                                Swap::Found(found) => now = found,
                            }
                        }
                    }
                });
            }
        });
        let end = table.get("counter").unwrap().unwrap();
        assert_eq!(number(&end), THREADS * rounds, "kind {kind}");
        assert_eq!(db.verify().unwrap().errors, []);
    }
}

#[test]
fn a_counter_raised_by_updates_is_exact() {
    let (_db, table) = open(Durability::Sync);
    let raise = |old: Option<&[u8]>| Some(padded(old.map_or(0, number) + 1, 8));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| (0..500).for_each(|_| _ = table.update("counter", raise).unwrap()));
        }
    });
    assert_eq!(number(&table.get("counter").unwrap().unwrap()), THREADS * 500);
    assert_eq!(table.update("counter", |_| None).unwrap(), None);
    assert!(table.is_empty().unwrap());
}

/// Every value is written once, so successful swaps form chains.
///
/// Each swap replaced a value written by another, or nothing. No value is replaced twice, and each
/// chain ends at the current value.
#[test]
fn successful_swaps_form_one_history_for_each_key() {
    let seed = 0x5a_4b;
    println!("seed {seed:#x}");
    const KEYS: u8 = 3;
    let (db, table) = open(Durability::Buffered);
    /// A key, the value replaced, and the value written.
    type Done = (u8, Option<Vec<u8>>, Option<Vec<u8>>);
    let history: Mutex<Vec<Done>> = Mutex::default();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (table, history) = (&table, &history);
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(seed + thread);
                let mut known: [Option<Vec<u8>>; KEYS as usize] = Default::default();
                let mut done = Vec::new();
                for round in 0..1500 {
                    let key = random.random_range(0..KEYS);
                    let new = (random.random_range(0..5) > 0).then(|| {
                        let bytes = if random.random_range(0..20) == 0 { 9000 } else { 16 };
                        padded(thread << 32 | round, bytes)
                    });
                    let known = &mut known[usize::from(key)];
                    let nothing = known.is_none() && new.is_none();
                    match table.compare_and_swap([key], known.as_deref(), new.as_deref()).unwrap() {
                        Swap::Done if nothing => {}
                        Swap::Done => done.push((key, std::mem::replace(known, new.clone()), new)),
                        Swap::Found(found) => {
                            assert_ne!(found, *known, "refused although it was as expected");
                            *known = found;
                        }
                    }
                }
                history.lock().unwrap().append(&mut done);
            });
        }
    });
    let history = history.into_inner().unwrap();
    for key in 0..KEYS {
        let mine: Vec<&Done> = history.iter().filter(|done| done.0 == key).collect();
        let mut written: Vec<&[u8]> = mine.iter().filter_map(|done| done.2.as_deref()).collect();
        let mut replaced: Vec<&[u8]> = mine.iter().filter_map(|done| done.1.as_deref()).collect();
        let now = table.get([key]).unwrap();
        replaced.extend(now.as_deref());
        written.sort_unstable();
        replaced.sort_unstable();
        // Every value written was replaced once or is current.
        assert_eq!(written, replaced, "key {key}");
        let made = mine.iter().filter(|done| done.1.is_none()).count();
        let removed = mine.iter().filter(|done| done.2.is_none()).count();
        assert_eq!(made, removed + usize::from(now.is_some()), "key {key}");
        assert!(mine.len() > 10, "key {key} was hardly ever swapped");
    }
    assert_eq!(db.verify().unwrap().errors, []);
}

#[test]
fn of_many_that_want_an_absent_key_one_gets_it() {
    let (_db, table) = open(Durability::Buffered);
    for round in 0..200u32 {
        let winners = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let table = &table;
                    scope.spawn(move || {
                        let me = padded(thread, 8);
                        let swap = table.compare_and_swap(round.to_be_bytes(), None, Some(&me)).unwrap();
                        (swap, me)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let owner = table.get(round.to_be_bytes()).unwrap().unwrap();
        for (swap, me) in &winners {
            match swap {
                Swap::Done => assert_eq!(*me, owner),
                Swap::Found(found) => assert_eq!(found.as_ref(), Some(&owner)),
            }
        }
        assert_eq!(winners.iter().filter(|(swap, _)| swap.is_done()).count(), 1, "round {round}");
    }
}

#[test]
fn what_cannot_be_stored_is_refused_and_changes_nothing() {
    let (db, table) = open(Durability::Sync);
    let long = [7; terrace::MAX_KEY_BYTES + 1];
    let refused = table.compare_and_swap(long, None, Some(b"v"));
    assert!(matches!(refused, Err(terrace::Error::KeyTooLarge { .. })), "{refused:?}");
    assert!(table.is_empty().unwrap());
    db.drop_table("t").unwrap();
    let refused = table.compare_and_swap("k", None, Some(b"v"));
    assert!(matches!(refused, Err(terrace::Error::TableNotFound(_))), "{refused:?}");
}
