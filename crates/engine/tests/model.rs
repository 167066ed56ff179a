//! The database against maps: any sequence of calls, closed and opened in between, gives what a `BTreeMap` would.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use proptest::prelude::*;
use terrace::{Db, Durability, MemoryDirectory, Mode, Snapshot, Table, WriteBatch};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug)]
enum Step {
    Put(u16, usize),
    Delete(u16),
    Batch(Vec<(u16, Option<usize>)>),
    Transaction(Vec<(u16, Option<usize>)>, bool),
    Scan(u16, u16, Vec<bool>),
    TakeSnapshot,
    CheckSnapshot,
    Checkpoint,
    Reopen,
}

/// Keys of very different lengths, in an order that is not that of the numbers.
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
    let step = prop_oneof![
        20 => (n(), length()).prop_map(|(n, length)| Step::Put(n, length)),
        8 => n().prop_map(Step::Delete),
        6 => changes().prop_map(Step::Batch),
        6 => (changes(), any::<bool>()).prop_map(|(changes, commit)| Step::Transaction(changes, commit)),
        6 => (n(), n(), prop::collection::vec(any::<bool>(), 20))
            .prop_map(|(low, high, ends)| Step::Scan(low, high, ends)),
        3 => Just(Step::TakeSnapshot),
        5 => Just(Step::CheckSnapshot),
        1 => Just(Step::Checkpoint),
        2 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..60)
}

struct Run {
    directory: MemoryDirectory,
    db: Option<Db>,
    table: Option<Table>,
    model: Map,
    snapshot: Option<(Snapshot, Map)>,
}

impl Run {
    fn open(directory: &MemoryDirectory) -> (Db, Table) {
        let builder = Db::builder().directory(Arc::new(directory.clone())).dram(2 << 20).log_max(2 << 20);
        let db = builder.old_version_bytes_max(1 << 20).mode(Mode::Inline).open("").unwrap();
        let table = db.open_or_create_table("t").unwrap();
        (db, table)
    }

    fn new() -> Self {
        let directory = MemoryDirectory::new();
        let (db, table) = Self::open(&directory);
        Run { directory, db: Some(db), table: Some(table), model: Map::new(), snapshot: None }
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
            Step::Batch(changes) => {
                let mut batch = WriteBatch::new();
                for (n, length) in &changes {
                    match length {
                        Some(length) => batch.put(&table, key(*n), value(*n, *length)),
                        None => batch.delete(&table, key(*n)),
                    };
                }
                db.write(batch, Durability::Buffered).unwrap();
                apply(&mut self.model, &changes);
            }
            Step::Transaction(changes, commit) => {
                let mut model = self.model.clone();
                let mut transaction = db.begin();
                for (n, length) in &changes {
                    match length {
                        Some(length) => transaction.put(&table, key(*n), value(*n, *length)).unwrap(),
                        None => {
                            let was_there = transaction.delete(&table, key(*n)).unwrap();
                            assert_eq!(was_there, model.contains_key(&key(*n)));
                        }
                    }
                    apply(&mut model, std::slice::from_ref(&(*n, *length)));
                    assert_eq!(transaction.get(&table, key(*n)).unwrap(), model.get(&key(*n)).cloned());
                }
                let all = transaction.range::<&[u8]>(&table, ..).map(Result::unwrap);
                assert!(all.eq(model.clone()), "a transaction does not see its own changes");
                if commit {
                    transaction.commit().unwrap();
                    self.model = model;
                }
            }
            Step::Scan(low, high, ends) => {
                let (low, high) = (key(low), key(high));
                let mut range =
                    table.range::<Vec<u8>>((Bound::Included(low.clone()), Bound::Excluded(high.clone())));
                let empty = low >= high;
                let mut expected =
                    self.model.iter().filter(|(key, _)| !empty && **key >= low && **key < high);
                for back in ends {
                    let (got, expected) = if back {
                        (range.next_back(), expected.next_back())
                    } else {
                        (range.next(), expected.next())
                    };
                    let expected = expected.map(|(key, value)| (key.clone(), value.clone()));
                    assert_eq!(got.map(Result::unwrap), expected);
                }
            }
            Step::TakeSnapshot => self.snapshot = Some((db.snapshot(), self.model.clone())),
            Step::CheckSnapshot => {
                if let Some((snapshot, model)) = &self.snapshot {
                    let all = snapshot.iter(&table).map(Result::unwrap);
                    assert!(all.eq(model.clone()), "a snapshot has changed");
                    let back = snapshot.iter(&table).rev().map(Result::unwrap);
                    assert!(back.eq(model.clone().into_iter().rev()), "a snapshot differs from behind");
                    for n in (0..400).step_by(7) {
                        assert_eq!(snapshot.get(&table, key(n)).unwrap(), model.get(&key(n)).cloned());
                    }
                }
            }
            Step::Checkpoint => db.checkpoint().unwrap(),
            Step::Reopen => {
                drop(table);
                (self.snapshot, self.table) = (None, None);
                db.close().unwrap();
                self.db = None;
                let (db, table) = Self::open(&self.directory);
                (self.db, self.table) = (Some(db), Some(table));
            }
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
    fn any_sequence_of_calls_gives_what_a_map_would(steps in steps()) {
        let mut run = Run::new();
        for step in steps {
            run.step(step);
        }
        run.check();
        run.step(Step::Reopen);
        run.check();
    }
}
