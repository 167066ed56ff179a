//! Random calls, with closes and opens in between, compared with a `BTreeMap`.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use proptest::prelude::*;
use terrace::{
    Compression, Db, Durability, Error, MemoryDirectory, Mode, Savepoint, Snapshot, Swap, Table,
    TableOptions, WriteBatch,
};

use super::common;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug)]
enum Step {
    Put(u16, usize),
    Delete(u16),
    Batch(Vec<(u16, Option<usize>)>),
    Transaction(Vec<(u16, Option<usize>)>, bool),
    Nested(Vec<Nested>, bool),
    Swap(u16, Guess, Option<usize>),
    UpdateRange(u16, usize, usize),
    DeleteRange(u16, u16, bool),
    Scan(u16, u16, Vec<bool>),
    GetMany(Vec<u16>),
    TakeSnapshot,
    CheckSnapshot,
    Checkpoint,
    Reopen,
}

/// Steps in a transaction with savepoints.
#[derive(Clone, Debug)]
enum Nested {
    Change(u16, Option<usize>),
    DeleteRange(u16, u16),
    Save,
    /// Roll back to one of the savepoints taken, even an invalid one.
    Back(usize),
}

/// The expectation of a swap.
#[derive(Clone, Debug)]
enum Guess {
    Right,
    Absent,
    Wrong(usize),
}

/// Keys of very different lengths, not in the order of their numbers.
fn key(n: u16) -> Vec<u8> {
    let mut key = n.to_le_bytes().to_vec();
    key.resize(2 + usize::from(n % 7) * 40, n as u8);
    key
}

fn value(n: u16, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at as u16 ^ n) as u8).collect()
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let n = || 0u16..400;
    let length =
        || prop_oneof![8 => 0usize..200, 4 => 200usize..2000, 1 => 2000usize..6000, 1 => 6000usize..90_000];
    let changes = move || prop::collection::vec((n(), prop::option::weighted(0.7, length())), 0..40);
    let nested = move || {
        let one = prop_oneof![
            10 => (n(), prop::option::weighted(0.7, length())).prop_map(|(n, length)| Nested::Change(n, length)),
            1 => (n(), n()).prop_map(|(low, high)| Nested::DeleteRange(low, high)),
            4 => Just(Nested::Save),
            4 => (0usize..8).prop_map(Nested::Back),
        ];
        prop::collection::vec(one, 0..30)
    };
    let guess = prop_oneof![
        4 => Just(Guess::Right),
        1 => Just(Guess::Absent),
        1 => length().prop_map(Guess::Wrong),
    ];
    let step = prop_oneof![
        20 => (n(), length()).prop_map(|(n, length)| Step::Put(n, length)),
        8 => n().prop_map(Step::Delete),
        6 => changes().prop_map(Step::Batch),
        6 => (changes(), any::<bool>()).prop_map(|(changes, commit)| Step::Transaction(changes, commit)),
        4 => (nested(), any::<bool>()).prop_map(|(steps, commit)| Step::Nested(steps, commit)),
        6 => (n(), guess, prop::option::weighted(0.7, length()))
            .prop_map(|(n, guess, length)| Step::Swap(n, guess, length)),
        6 => (n(), 0usize..300, length()).prop_map(|(n, at, length)| Step::UpdateRange(n, at, length)),
        2 => (n(), n(), any::<bool>()).prop_map(|(low, high, steps)| Step::DeleteRange(low, high, steps)),
        6 => (n(), n(), prop::collection::vec(any::<bool>(), 20))
            .prop_map(|(low, high, ends)| Step::Scan(low, high, ends)),
        5 => prop::collection::vec(n(), 0..90).prop_map(Step::GetMany),
        3 => Just(Step::TakeSnapshot),
        5 => Just(Step::CheckSnapshot),
        1 => Just(Step::Checkpoint),
        2 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..60)
}

/// Page settings of the table.
#[derive(Clone, Copy, Debug)]
enum Pages {
    Plain,
    /// Four blocks long and compressed.
    Compressed,
    /// Two blocks long, in a database with pages of one.
    Other,
    /// One block, with long values on pages of up to 128 KiB.
    Values,
}

fn pages() -> impl Strategy<Value = Pages> {
    prop_oneof![2 => Just(Pages::Plain), 1 => Just(Pages::Compressed), 1 => Just(Pages::Other), 1 => Just(Pages::Values)]
}

struct Run {
    pages: Pages,
    directory: MemoryDirectory,
    db: Option<Db>,
    table: Option<Table>,
    model: Map,
    snapshot: Option<(Snapshot, Map)>,
}

impl Run {
    fn open(directory: &MemoryDirectory, pages: Pages) -> (Db, Table) {
        let builder = common::builder().directory(Arc::new(directory.clone())).log_max(2 << 20);
        let builder = match pages {
            Pages::Plain => builder.dram(2 << 20),
            Pages::Compressed => builder.dram(4 << 20).page_size(16 << 10).compression(Compression::Lz4),
            Pages::Other => builder.dram(3 << 20).page_size_max(8 << 10),
            Pages::Values => builder.dram(24 << 20).value_page_size_max(128 << 10).log_max(4 << 20),
        };
        let db = builder.old_version_bytes_max(1 << 20).mode(Mode::Inline).open("").unwrap();
        let table = match (db.open_table("t"), pages) {
            (Err(_), Pages::Other) => {
                db.create_table_with("t", &TableOptions::new().page_size(8 << 10)).unwrap()
            }
            (Err(_), Pages::Values) => {
                db.create_table_with("t", &TableOptions::new().value_page_size_max(128 << 10)).unwrap()
            }
            (Err(_), _) => db.create_table("t").unwrap(),
            (found, _) => found.unwrap(),
        };
        (db, table)
    }

    fn new(pages: Pages) -> Self {
        let directory = MemoryDirectory::new();
        let (db, table) = Self::open(&directory, pages);
        Run { pages, directory, db: Some(db), table: Some(table), model: Map::new(), snapshot: None }
    }

    fn step(&mut self, step: Step) {
        let (db, table) = (self.db.clone().unwrap(), self.table.clone().unwrap());
        match step {
            Step::Put(n, length) => {
                table.put(key(n), value(n, length)).unwrap();
                self.model.insert(key(n), value(n, length));
            }
            Step::Delete(n) => {
                assert_eq!(table.delete(key(n)).unwrap(), self.model.remove(&key(n)).is_some());
            }
            Step::Batch(changes) => self.batch(&db, &table, &changes),
            Step::Transaction(changes, commit) => self.transaction(&db, &table, &changes, commit),
            Step::Nested(steps, commit) => self.nested(&db, &table, steps, commit),
            Step::Swap(n, guess, length) => self.swap(&table, n, guess, length),
            Step::UpdateRange(n, at, length) => self.update_range(&table, n, at, length),
            Step::DeleteRange(low, high, in_steps) => self.delete_range(&table, low, high, in_steps),
            Step::Scan(low, high, ends) => self.scan(&table, &key(low), &key(high), &ends),
            Step::GetMany(numbers) => {
                let expected: Vec<_> = numbers.iter().map(|&n| self.model.get(&key(n)).cloned()).collect();
                assert_eq!(table.get_many(numbers.iter().map(|&n| key(n))).unwrap(), expected);
            }
            Step::TakeSnapshot => self.snapshot = Some((db.snapshot(), self.model.clone())),
            Step::CheckSnapshot => self.check_snapshot(&table),
            Step::Checkpoint => db.checkpoint().unwrap(),
            Step::Reopen => self.reopen(db, table),
        }
    }

    fn batch(&mut self, db: &Db, table: &Table, changes: &[(u16, Option<usize>)]) {
        let mut batch = WriteBatch::new();
        for (n, length) in changes {
            match length {
                Some(length) => batch.put(table, key(*n), value(*n, *length)),
                None => batch.delete(table, key(*n)),
            };
        }
        db.write(batch, Durability::Buffered).unwrap();
        apply(&mut self.model, changes);
    }

    fn transaction(&mut self, db: &Db, table: &Table, changes: &[(u16, Option<usize>)], commit: bool) {
        let mut model = self.model.clone();
        let transaction = db.begin();
        for (n, length) in changes {
            match length {
                Some(length) => transaction.put(table, key(*n), value(*n, *length)).unwrap(),
                None => {
                    let was_there = transaction.delete(table, key(*n)).unwrap();
                    assert_eq!(was_there, model.contains_key(&key(*n)));
                }
            }
            apply(&mut model, std::slice::from_ref(&(*n, *length)));
            assert_eq!(transaction.get(table, key(*n)).unwrap(), model.get(&key(*n)).cloned());
        }
        let some = (0..400).step_by(3);
        let expected: Vec<_> = some.clone().map(|n| model.get(&key(n)).cloned()).collect();
        assert_eq!(transaction.get_many(table, some.map(key)).unwrap(), expected);
        let all = transaction.range::<&[u8]>(table, ..).map(Result::unwrap);
        assert!(all.eq(model.clone()), "a transaction does not see its own changes");
        if commit {
            transaction.commit().unwrap();
            self.model = model;
        }
    }

    fn swap(&mut self, table: &Table, n: u16, guess: Guess, length: Option<usize>) {
        let now = self.model.get(&key(n)).cloned();
        let expected = match guess {
            Guess::Right => now.clone(),
            Guess::Absent => None,
            Guess::Wrong(length) => Some(value(n + 1, length)),
        };
        let new = length.map(|length| value(n, length));
        let swap = table.compare_and_swap(key(n), expected.as_deref(), new.as_deref()).unwrap();
        if expected == now {
            assert_eq!(swap, Swap::Done);
            match new {
                Some(new) => self.model.insert(key(n), new),
                None => self.model.remove(&key(n)),
            };
        } else {
            assert_eq!(swap, Swap::Found(now));
        }
    }

    fn update_range(&mut self, table: &Table, n: u16, at: usize, length: usize) {
        let bytes = value(!n, length);
        let (end, snapshot) = (at + length, self.db.as_ref().unwrap().snapshot());
        let now = self.model.get(&key(n)).map(|value| value.get(at..end));
        for read in [table.get_range(key(n), at..end), snapshot.get_range(table, key(n), at..end)] {
            match now {
                Some(None) => assert!(matches!(read, Err(Error::OutsideValue { .. }))),
                part => assert_eq!(read.unwrap().as_deref(), part.flatten()),
            }
        }
        drop(snapshot);
        let updated = table.update_range(key(n), at, &bytes);
        match self.model.get_mut(&key(n)) {
            None => assert!(!updated.unwrap()),
            Some(value) => match value.get_mut(at..at + length) {
                Some(part) => {
                    assert!(updated.unwrap());
                    part.copy_from_slice(&bytes);
                }
                None => assert!(matches!(updated, Err(Error::OutsideValue { .. }))),
            },
        }
    }

    fn delete_range(&mut self, table: &Table, low: u16, high: u16, in_steps: bool) {
        let range = (Bound::Included(key(low)), Bound::Excluded(key(high)));
        let deleted = if in_steps {
            table.delete_range_in_steps(range).unwrap()
        } else {
            match table.delete_range(range.clone()) {
                Err(Error::TransactionTooLarge { .. }) => {
                    assert_eq!(table.len().unwrap(), self.model.len() as u64, "refused and done");
                    table.delete_range_in_steps(range).unwrap()
                }
                deleted => deleted.unwrap(),
            }
        };
        assert_eq!(deleted, delete_range(&mut self.model, low, high));
    }

    /// Compares a range from `low` to `high`, read by a scan and by an iterator from both ends.
    fn scan(&self, table: &Table, low: &[u8], high: &[u8], ends: &[bool]) {
        let bounds = || (Bound::Included(low.to_vec()), Bound::Excluded(high.to_vec()));
        let mut range = table.range::<Vec<u8>>(bounds());
        let inside = |key: &[u8]| low < high && key >= low && key < high;
        let expected: Vec<_> = self.model.iter().filter(|(key, _)| inside(key)).take(ends.len()).collect();
        let mut left = expected.iter();
        let broke = table.scan::<Vec<u8>, ()>(bounds(), |key, value| {
            assert_eq!(left.next().map(|(key, value)| (&key[..], &value[..])), Some((key, value)));
            if left.len() == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!((broke.unwrap().is_some(), left.len()), (!expected.is_empty(), 0));
        let mut expected = self.model.iter().filter(|(key, _)| inside(key));
        for &back in ends {
            let (got, expected) = if back {
                (range.next_back(), expected.next_back())
            } else {
                (range.next(), expected.next())
            };
            let expected = expected.map(|(key, value)| (key.clone(), value.clone()));
            assert_eq!(got.map(Result::unwrap), expected);
        }
    }

    fn check_snapshot(&self, table: &Table) {
        if let Some((snapshot, model)) = &self.snapshot {
            let all = snapshot.iter(table).map(Result::unwrap);
            assert!(all.eq(model.clone()), "a snapshot has changed");
            let back = snapshot.iter(table).rev().map(Result::unwrap);
            assert!(back.eq(model.clone().into_iter().rev()), "a snapshot differs from behind");
            let mut left = model.iter();
            let shown = snapshot.scan::<&[u8], ()>(table, .., |key, value| {
                assert_eq!(left.next().map(|(key, value)| (&key[..], &value[..])), Some((key, value)));
                ControlFlow::Continue(())
            });
            assert_eq!(
                (shown.unwrap(), left.len(), snapshot.len(table).unwrap()),
                (None, 0, model.len() as u64)
            );
            for n in (0..400).step_by(7) {
                assert_eq!(snapshot.get(table, key(n)).unwrap(), model.get(&key(n)).cloned());
            }
            let all: Vec<_> = (0..400).map(|n| model.get(&key(n)).cloned()).collect();
            assert_eq!(snapshot.get_many(table, (0..400).map(key)).unwrap(), all);
        }
    }

    fn reopen(&mut self, db: Db, table: Table) {
        drop(table);
        (self.snapshot, self.table) = (None, None);
        db.close().unwrap();
        self.db = None;
        let (db, table) = Self::open(&self.directory, self.pages);
        (self.db, self.table) = (Some(db), Some(table));
    }

    fn nested(&mut self, db: &Db, table: &Table, steps: Vec<Nested>, commit: bool) {
        let mut model = self.model.clone();
        let transaction = db.begin();
        let mut savepoints: Vec<(Savepoint, Map)> = Vec::new();
        let mut gone: Vec<Savepoint> = Vec::new();
        for step in steps {
            match step {
                Nested::Change(n, length) => {
                    match length {
                        Some(length) => transaction.put(table, key(n), value(n, length)).unwrap(),
                        None => assert_eq!(
                            transaction.delete(table, key(n)).unwrap(),
                            model.contains_key(&key(n))
                        ),
                    }
                    apply(&mut model, &[(n, length)]);
                }
                Nested::DeleteRange(low, high) => {
                    match transaction.delete_range(table, key(low)..key(high)) {
                        Err(Error::TransactionTooLarge { .. }) => {}
                        deleted => assert_eq!(deleted.unwrap(), delete_range(&mut model, low, high)),
                    }
                }
                Nested::Save => savepoints.push((transaction.savepoint(), model.clone())),
                Nested::Back(n) if n < savepoints.len() => {
                    transaction.rollback_to(&savepoints[n].0).unwrap();
                    model = savepoints[n].1.clone();
                    gone.extend(savepoints.drain(n + 1..).map(|(savepoint, _)| savepoint));
                }
                Nested::Back(n) => {
                    if let Some(gone) = gone.get(n) {
                        assert!(matches!(transaction.rollback_to(gone), Err(Error::SavepointGone)));
                    }
                }
            }
            let all = transaction.range::<&[u8]>(table, ..).map(Result::unwrap);
            assert!(all.eq(model.clone()), "a transaction with savepoints does not see its own changes");
        }
        if commit {
            transaction.commit().unwrap();
            self.model = model;
        }
    }

    fn check(&self) {
        let (db, table) = (self.db.as_ref().unwrap(), self.table.as_ref().unwrap());
        assert!(table.iter().map(Result::unwrap).eq(self.model.clone()));
        assert_eq!(table.len().unwrap(), self.model.len() as u64);
        assert_eq!(table.first().unwrap().map(|entry| entry.0), self.model.keys().next().cloned());
        assert_eq!(table.last().unwrap().map(|entry| entry.0), self.model.keys().next_back().cloned());
        assert_eq!(db.verify().unwrap().errors, []);
    }
}

fn delete_range(model: &mut Map, low: u16, high: u16) -> u64 {
    let (low, high, before) = (key(low), key(high), model.len());
    model.retain(|key, _| !(low <= *key && *key < high));
    (before - model.len()) as u64
}

fn apply(model: &mut Map, changes: &[(u16, Option<usize>)]) {
    for &(n, length) in changes {
        match length {
            Some(length) => model.insert(key(n), value(n, length)),
            None => model.remove(&key(n)),
        };
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_calls_gives_what_a_map_would(steps in steps(), pages in pages()) {
        let mut run = Run::new(pages);
        for step in steps {
            run.step(step);
            // Exact after every step, even a failed one, and a close does not count again.
            let counted = run.table.as_ref().unwrap().len_if_known().unwrap();
            prop_assert_eq!(counted, Some(run.model.len() as u64));
        }
        run.check();
        run.step(Step::Reopen);
        run.check();
    }
}
